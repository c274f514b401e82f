"""ONNX Runtime's own fused products and attention: replaced, kept if asked, and exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import assert_same, make_session, stock_session
from rewriting import operators
from saturating_models import DEPTH, FORMS, QUANTIZE, F, activation, model_of, sessions, weights

import ort_dynq
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason


def attention(mask: str = "", attributes: str = "", *, past: bool = False, kind: str = "int8 of channels") -> Any:
    """Returns a model of one QAttention with 4 heads."""
    inputs = ", ".join([f"float[B, S, {DEPTH}] x", *filter(None, [mask]), *["float[2, B, 4, P, 4] p"] * past])
    text = (
        f"{QUANTIZE} y{', o' * past} = com.microsoft.QAttention<num_heads = 4{attributes}>(q, w, b, s, ws, {{}}, z, wz"
    )
    text = text.format(mask.partition("]")[2].strip()) + (", p)" if past else ")")
    return model_of(text, inputs, "float[] y" + ", float[] o" * past, **weights(kind))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("mask", "attributes", "values"),
    [
        ("", "", None),
        ("", ", unidirectional = 1", None),
        ("int32[B] m", "", [7, 4]),
        ("int32[B, S] m", ", mask_filter_value = -100000.0", [[1] * 7, [1] * 5 + [0] * 2]),
        ("int32[B, S, S] m", ", unidirectional = 1, scale = 0.25", np.tril(np.ones((2, 7, 7)))),
    ],
)
def test_attention_does_not_saturate(mask: str, attributes: str, values: Any, exact: bool) -> None:
    model = attention(mask, attributes)
    result = rewrite(model, exact=exact)
    rewritten = result.to_proto()
    assert operators(rewritten) == {"ort_dynq.DynamicQuantizeLinear": 1, "ort_dynq.QuantizedMatMul": 3}
    assert result.report.cpu.saturating == ()
    feeds = {"x": activation(2, 7, DEPTH) / F(8)} | ({} if values is None else {"m": np.array(values, np.int32)})
    (expected,) = stock_session(model).run(None, feeds)  # with a product that does not saturate
    for session in sessions(rewritten, len(mask) + exact):
        assert_same(session.run(None, feeds)[0], expected)
    assert ort_dynq.verify(model, rewritten, inputs=feeds).passed


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (attention(past=True), Reason.QATTENTION_PAST),
        (attention(attributes=", do_rotary = 1"), Reason.QATTENTION_ROTARY),
        (attention("int32[M] m"), Reason.QATTENTION_MASK),
        (attention("int32[B, 1, S, S] m"), Reason.QATTENTION_MASK),
    ],
)
def test_other_attention_gets_uint8_weights(model: onnx.ModelProto, reason: Reason) -> None:
    report = rewrite(model).report
    assert [(each.op_type, each.operator) for each in report.findings] == [("QAttention", "QAttention")]
    assert reason.value in report.findings[0].reason
    assert not report.cpu.saturating
    (kept,) = rewrite(model, keep_fused=True).report.cpu.saturating
    assert kept.op_type == "QAttention"


@pytest.mark.parametrize("scale", ["s16", "s"])
def test_exact_products_of_float16_are_not_quantized_again(scale: str) -> None:
    """ONNX Runtime made MatMulNBits of a dequantized activation and DequantizeLinear of weights."""
    constants = weights("int8 of channels") | {"wh": weights("int8 of channels")["ws"].astype(np.float16)}
    dequantized = {
        "s16": "s16 = Cast<to = 10>(s) f = DequantizeLinear(q, s16, z)",
        "s": "g = DequantizeLinear(q, s, z) f = Cast<to = 10>(g)",
    }[scale]
    text = f"{QUANTIZE} {dequantized} v = DequantizeLinear<axis = 1>(w, wh, wz) y = MatMul(f, v)"
    model = model_of(text, f"float[64, {DEPTH}] x", "float16[] y", **constants)
    model.opset_import[0].version, model.ir_version = 21, 10
    rewritten = rewrite(model, exact=True).to_proto()
    assert "ort_dynq.DynamicDequantize" in operators(rewritten)
    x = activation(64, DEPTH)
    (actual,) = make_session(rewritten, "native", optimize=True).run(None, {"x": x})
    folded = (constants["w"].astype(F) * constants["wh"].astype(F)).astype(np.float16)
    exact = x.astype(np.float64) @ folded.astype(np.float64)
    rounding = 2.0**-11 + 2.0**-17  # of the result to float16, and of sums of 64 floats
    assert (np.abs(actual - exact) <= rounding * (np.abs(x) @ np.abs(folded.astype(np.float64)))).all()


@pytest.mark.parametrize("form", FORMS)
def test_keep_fused_keeps_the_nodes(form: str) -> None:
    model = model_of(FORMS[form], f"float[N, {DEPTH}] x", **weights("int8 of channels"))
    result = rewrite(model, keep_fused=True)
    assert operators(result.to_proto()) == {}
    assert len(result.report.cpu.saturating) == 1
    reasons = {each.unconverted and each.unconverted.reason for each in result.report.unconverted}
    assert reasons <= {Reason.FUSED, Reason.FUSED_MATMUL_INTEGER, Reason.KEPT}
    assert reasons
