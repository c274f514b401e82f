"""Products of quantize_dynamic are exact on every CPU after a rewrite, in each form that it or ONNX Runtime writes.

The codes of the activation are known: its range is -100 to 155, so that the scale is 1. NumPy's integers give the sums.
`.ci/emulated` also runs the tests with "saturate" in their name on emulated CPUs where ONNX Runtime's sums saturate.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import assert_same, make_session, nodes_of
from rewriting import operators
from saturating_models import (
    COLUMNS,
    DEPTH,
    FORMS,
    QUANTIZE,
    SCALED,
    WEIGHTS,
    F,
    activation,
    model_of,
    sessions,
    sums,
    weights,
)

import ort_dynq
from ort_dynq import cli
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason

SHAPES = {"matrix": (5, DEPTH), "3-D": (2, 3, DEPTH), "one row": (1, DEPTH)}


@pytest.mark.parametrize(
    ("turn", "form", "kind"), [(i, *each) for i, each in enumerate(itertools.product(FORMS, WEIGHTS))]
)
def test_no_product_saturates_after_a_rewrite(turn: int, form: str, kind: str) -> None:
    shape = SHAPES["matrix" if "Gemm" in form else list(SHAPES)[turn % len(SHAPES)]]
    x, constants = activation(*shape), weights(kind)
    dims = ["N" if axis == 0 else size for axis, size in enumerate(shape)]
    model = model_of(FORMS[form], f"float{dims} x".replace("'", ""), **constants)
    result = rewrite(model)
    rewritten = result.to_proto()
    reasons = {each.unconverted and each.unconverted.reason for each in result.report.unconverted}
    if kind == "int8 of 7 bits" and "DequantizeLinear" not in form:  # ONNX Runtime's sums are exact
        assert not operators(rewritten)
        assert Reason.SMALL_WEIGHTS in reasons
    else:
        assert operators(rewritten) == {"ort_dynq.DynamicQuantizedMatMul": 1}
        assert not reasons
    assert result.report.cpu == ((), {})
    expected = sums(x, constants).astype(F) * constants["ws"]
    expected = (
        expected if "b" not in {name for node in model.graph.node for name in node.input} else expected + constants["b"]
    )
    for session in sessions(rewritten, turn):
        assert_same(session.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("exact", [False, True])
def test_products_that_share_an_activation_do_not_saturate(exact: bool) -> None:
    text = " ".join(
        f"i{n} = MatMulInteger(q, w, z, wz) c{n} = Cast<to = 1>(i{n}) t{n} = Mul(s, ws) y{n} = Mul(c{n}, t{n})"
        for n in range(3)
    )
    constants, x = weights("int8"), activation(4, DEPTH)
    model = model_of(f"{QUANTIZE} {text}", f"float[N, {DEPTH}] x", "float[] y0, float[] y1, float[] y2", **constants)
    rewritten = rewrite(model, exact=exact).to_proto()
    assert operators(rewritten) == {"ort_dynq.DynamicQuantizeLinear": 1, "ort_dynq.QuantizedMatMul": 3}
    for y in make_session(rewritten, "native", optimize=True).run(None, {"x": x}):
        assert_same(y, sums(x, constants).astype(F) * constants["ws"])


def test_static_products_and_fused_activations_that_stay_are_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    constants = weights("int8") | {"xs": F(0.1), "xz": np.uint8(9)}
    static = (
        "a = QuantizeLinear(x, xs, xz) f = DequantizeLinear(a, xs, xz) v = DequantizeLinear(w, ws, wz) y = MatMul(f, v)"
    )
    model = model_of(static, f"float[N, {DEPTH}] x", **{name: np.asarray(each) for name, each in constants.items()})
    report = rewrite(model).report
    assert [each.node for each in report.cpu.saturating] == ["y"]
    assert report.to_dict()["depends_on_cpu"] == {
        "saturating": [{"node": "y", "op_type": "MatMul", "graph": "main"}],
        "rounding": {},
    }
    onnx.save(model, tmp_path / "model.onnx")
    assert cli.main(["inspect", str(tmp_path / "model.onnx")]) == 0
    printed = capsys.readouterr().out
    line = "wrong on x86 CPUs without VNNI, where sums saturate: 1 MatMul of uint8 by int8 (y); remedy: rewrite without"
    assert line in " ".join(printed.split())
    assert cli.main(["rewrite", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "b.onnx")]) == 0
    assert line in " ".join(capsys.readouterr().out.split())


def test_rounded_floats_are_listed() -> None:
    report = rewrite(model_of("h = MatMul(x, w) y = Softmax(h)", "float[4, 4] x", w=np.ones((4, 4), F))).report
    assert report.cpu == ((), {"MatMul": 1, "Softmax": 1})
    assert report.cpu_text == ["last bits depend on the CPU, since floats are rounded: 1 MatMul and 1 Softmax"]


def test_a_tiny_product_is_converted() -> None:
    """It would be wrong, not merely slow."""
    text = f"{QUANTIZE} i = MatMulInteger(q, w, z) {SCALED.format('y')}"
    tiny = model_of(text, "float[1, 4] x", w=np.full((4, 2), 127, np.int8), ws=F(1).reshape(()))
    assert operators(rewrite(tiny).to_proto()) == {"ort_dynq.DynamicQuantizedMatMul": 1}


def test_a_product_of_quantize_dynamic_is_ours(tmp_path: Any) -> None:
    """The whole way: quantize_dynamic with its options, then a rewrite and a verification."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    rng = np.random.default_rng(3)
    floats = {"w": rng.normal(size=(DEPTH, COLUMNS)).astype(F), "v": rng.normal(size=(9, COLUMNS)).astype(F)}
    source = model_of("h = MatMul(x, w) r = Relu(h) y = Gemm<transB = 1>(r, v)", f"float[N, {DEPTH}] x", **floats)
    verify = functools.partial(ort_dynq.verify, shapes={"x": (5, DEPTH)})
    for ours, options in ((2, {"weight_type": QuantType.QInt8, "per_channel": True}), (0, {"reduce_range": True})):
        path = tmp_path / f"{ours}.onnx"
        quantize_dynamic(source, path, **options)
        rewritten = rewrite(path, exact=True)
        assert sum("QuantizedMatMul" in node.op_type for node in nodes_of(rewritten.to_proto().graph)) == ours
        assert not rewritten.report.cpu.saturating
        assert verify(path, rewritten.to_proto()).passed
