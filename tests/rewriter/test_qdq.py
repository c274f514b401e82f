"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear with run-time parameters."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import pairwise
from rewriting import REDUCE, F, check, found, operators, parse, rows

from ort_dynq.rewriter import rewrite
from ort_dynq.runtime import version


@pytest.mark.parametrize(
    ("opset", "dequantizes", "zero", "per_row"),
    pairwise([13, 18, 21], [True, False], ["none", "z1", "z2", "z3"], [True, False]),
)
def test_range_and_quantize_linear(opset: int, dequantizes: bool, zero: str, per_row: bool) -> None:
    """The whole chain becomes one program, for every way to compute the zero point."""
    if per_row:
        low, high = (f"{REDUCE[18 if opset >= 18 else 13].format(which, 'x', 0)}" for which in ("Min", "Max"))
    else:
        low, high = "ReduceMin<keepdims = 0>(x)", "ReduceMax<keepdims = 0>(x)"
    steps = "steps = Div(mn, s)"
    zeros = {
        "none": "",
        "z1": f"{steps} o = Sub(low, steps) c = Clip(o, low, high) z0 = Round(c) z = Cast<to = 3>(z0)",
        "z2": f"{steps} r = Round(steps) o = Sub(low, r) z0 = Clip(o, low, high) z = Cast<to = 3>(z0)",
        "z3": "n = Neg(mn) steps = Div(n, s) r = Round(steps) z0 = Clip(r, low, high) z = Cast<to = 3>(z0)",
    }
    inputs = "x, s, z" if zero != "none" else "x, s"
    body = f"""mn0 = {low} mx0 = {high} mn = Min(mn0, zero) mx = Max(mx0, zero) w = Sub(mx, mn) s0 = Div(w, c255)
        s = Clip(s0, eps) {zeros[zero]} q = QuantizeLinear<axis = 0>({inputs})
        {f"y = DequantizeLinear<axis = 0>(q, {inputs[3:]})" if dequantizes else "y = Identity(q)"}"""
    output = "float[] y" if dequantizes else "int8[] y" if zero != "none" else "uint8[] y"
    model = parse(body, opset=opset, outputs=output)
    report = check(model, *({"x": rows((18, 33), seed)} for seed in range(2)), {"x": rows((1, 33))})
    assert found(report) == ["RowProgram"]


LINEAR = "q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = Relu(d)"


def linear(body: str, outputs: str = "float[] y") -> onnx.ModelProto:
    return parse(body, inputs="float[N, K] x", outputs=outputs)


def test_dynamic_quantize_linear() -> None:
    data = [{"x": x} for x in (rows((9, 33)), np.zeros((3, 4), F), np.full((2, 2), -0.0, F), np.zeros((0, 3), F))]
    tiny = [{"x": (np.arange(-4, 8) * F(1e-45)).astype(F).reshape(3, 4)}, {"x": np.full((3, 4), 1e-45, F)}]
    infinite = [{"x": F([[np.inf, 1, -1, 0]])}, {"x": F([[-np.inf, 1, 0, 0.5]])}, {"x": F([[3e38, -3e38, 1, 0]])}]
    report = check(linear(LINEAR), *data, *tiny, *infinite, {"x": np.tile(rows((90, 4000)), (2, 1))})
    assert [finding.operator for finding in report.findings] == ["DynamicQuantizeDequantizeLinear"]


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (LINEAR, "float[] y, uint8[] q"),
        (LINEAR, "float[] y, float s"),
        (LINEAR, "float[] y, uint8 z"),
        (LINEAR.replace("(q, s, z)", "(q, s)"), "float[] y"),
        (LINEAR + " w = Cast<to = 1>(q)", "float[] y, float[] w"),
        (LINEAR + " q2, s2, z2 = DynamicQuantizeLinear(y) w = DequantizeLinear(q2, s, z)", "float[] w"),
    ],
)
def test_dynamic_quantize_linear_used_elsewhere(body: str, outputs: str) -> None:
    report = check(linear(body, outputs), {"x": rows((9, 33))})
    assert "DynamicQuantizeDequantizeLinear" not in [finding.operator for finding in report.findings]


def test_dynamic_quantize_linear_that_is_fused() -> None:
    """It stays only on request: products of constant weights are ours."""
    body = f"""{LINEAR.replace("y = Relu(d)", "")} w = Constant<value = uint8[2, 2] {{1, 2, 3, 4}}>()
        ws = Constant<value_float = 0.5>() wz = Constant<value = uint8 {{1}}>() wf = DequantizeLinear(w, ws, wz)
        y = MatMul(d, wf)"""
    result = rewrite(linear(body), keep_fused=True)
    assert operators(result.to_proto()) == {}
    assert "fuses" in result.report.unconverted[0].reason
    assert operators(rewrite(linear(body)).to_proto()) == {"ort_dynq.DynamicQuantizedMatMul": 1}


def test_a_pair_of_float16_before_a_product() -> None:
    """ONNX Runtime does not round the floats between a DequantizeLinear and a MatMul: both are computed in float32."""
    body = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w)"
    inputs = "float16[48, 64] x, float16 s, int8 z, float16[64, 5] w"
    model = parse(body, opset=21, inputs=inputs, outputs="float16[48, 5] y")
    x, w = rows((48, 64)).astype(np.float16), rows((64, 5)).astype(np.float16)
    feeds = {"x": x, "s": np.array(0.0123, np.float16), "z": np.array(3, np.int8), "w": w}
    report = check(model, feeds)
    is_converted = version() >= (1, 30)
    assert found(report) == ["DynamicDequantize", "DynamicQuantize"][: 1 + is_converted]
