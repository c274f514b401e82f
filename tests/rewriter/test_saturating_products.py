"""Products that stay with ONNX Runtime get uint8 weights, so that no sum saturates."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import assert_same
from rewriting import operators
from saturating_models import COLUMNS, DEPTH, FORMS, QUANTIZE, F, activation, model_of, sessions, sums, weights

import ort_dynq
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason


@pytest.mark.parametrize("weights_at_run_time", [False, True])
def test_sums_that_stay_integers_do_not_saturate(weights_at_run_time: bool) -> None:
    """They stay ONNX Runtime's, with uint8 weights."""
    constants, x = weights("int8"), activation(3, DEPTH)
    further = f", int8[{DEPTH}, {COLUMNS}] w" if weights_at_run_time else ""
    given = {name: each for name, each in constants.items() if name != "w" or not weights_at_run_time}
    text = f"{QUANTIZE} y = MatMulInteger(q, w, z, wz)"
    model = model_of(text, f"float[N, {DEPTH}] x{further}", "int32[] y", **given)
    rewritten = rewrite(model, exact=True)
    assert [(each.op_type, each.operator) for each in rewritten.report.findings] == [("MatMulInteger",) * 2]
    assert not rewritten.report.cpu.saturating
    feeds = {"x": x} | ({"w": constants["w"]} if weights_at_run_time else {})
    for session in sessions(rewritten.to_proto(), weights_at_run_time):
        assert_same(session.run(None, feeds)[0], sums(x, constants).astype(np.int32))


def test_sums_of_small_weights_and_of_uint8_stay() -> None:
    for kind in ("int8 of 7 bits", "uint8"):
        text = f"{QUANTIZE} y = MatMulInteger(q, w, z, wz)"
        report = rewrite(model_of(text, f"float[N, {DEPTH}] x", "int32[] y", **weights(kind))).report
        assert [each.unconverted and each.unconverted.reason for each in report.findings] == [Reason.SUMS_NOT_SCALED]
        assert not report.cpu.saturating


STAYING = {  # the text, and whether only exact results keep the product ONNX Runtime's
    "DequantizeLinear, MatMul": (FORMS["DequantizeLinear, MatMul"], True),
    "DequantizeLinear, Gemm": (FORMS["DequantizeLinear, Gemm"], True),
    "DequantizeLinear, Transpose, MatMul": (
        f"""{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 0>(wt, ws, wz)
        t = Transpose<perm = [1, 0]>(v) y = MatMul(f, t)""",
        True,
    ),
    "no zero point": (
        f"{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 1>(w, ws) y = MatMul(f, v)",
        True,
    ),
    "QGemm": (f"{QUANTIZE} y = com.microsoft.QGemm(q, s, z, w, ws, wz)", False),
    "QLinearMatMul": (f"{QUANTIZE} c = QLinearMatMul(q, s, z, w, ws, wz, k, h) y = DequantizeLinear(c, k, h)", False),
    "weights at run time": (f"{QUANTIZE} y = com.microsoft.MatMulIntegerToFloat(q, w, s, ws, z, wz)", False),
}


@pytest.mark.parametrize("form", STAYING)
def test_products_that_stay_do_not_saturate(form: str) -> None:
    """Their weights become uint8, which ONNX Runtime multiplies exactly on every CPU."""
    text, is_exact = STAYING[form]
    constants, x = weights("int8 of channels"), activation(5, DEPTH)
    constants["ws"] = np.exp2(-np.arange(COLUMNS) % 5, dtype=F)
    constants |= {"wt": np.ascontiguousarray(constants["w"].T), "k": np.array(4096, F), "h": np.array(128, np.uint8)}
    expected = sums(x, constants).astype(F) * constants["ws"]
    if form == "QLinearMatMul":
        expected = (np.clip(np.rint(expected / constants["k"]) + 128, 0, 255) - 128).astype(F) * constants["k"]
    feeds, further = {"x": x}, ""
    if form == "weights at run time":
        feeds["w"], further = constants.pop("w"), f", int8[{DEPTH}, {COLUMNS}] w"
    model = model_of(text, f"float[5, {DEPTH}] x{further}", **constants)
    result = rewrite(model, exact=is_exact)
    assert not result.report.cpu.saturating
    assert not any("QuantizedMatMul" in name for name in operators(result.to_proto()))
    for session in sessions(result.to_proto(), 0):
        assert_same(session.run(None, feeds)[0], expected)
    assert ort_dynq.verify(model, result.to_proto(), inputs=feeds).passed
    assert len(rewrite(model, exact=is_exact, keep_fused=True).report.cpu.saturating) == 1


def test_convolutions_that_stay_do_not_saturate() -> None:
    rng = np.random.default_rng(4)
    constants = {
        "w": rng.choice([-127, 127], (8, 4, 3, 3)).astype(np.int8),
        "ws": np.array(0.125, F),
        "k": np.array(64, F),
        "h": np.array(99, np.uint8),
    }
    x = activation(2, 4, 7, 7)
    body = "f = DequantizeLinear(q, s, z) v = DequantizeLinear(w, ws) m = Conv(f, v) y = QuantizeLinear(m, k, h)"
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), (3, 3), axis=(2, 3))
    exact = np.einsum("nchwij,ocij->nohw", windows, constants["w"].astype(np.int64))
    expected = np.clip(np.rint(exact.astype(F) * F(0.125 / 64)) + 99, 0, 255).astype(np.uint8)
    result = rewrite(model_of(f"{QUANTIZE} {body}", "float[2, 4, 7, 7] x", "uint8[] y", **constants), exact=True)
    assert not result.report.cpu.saturating
    for session in sessions(result.to_proto(), 0):
        assert_same(session.run(None, {"x": x})[0], expected)
