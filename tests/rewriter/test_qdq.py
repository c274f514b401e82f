"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear with run-time parameters."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import pairwise
from rewriting import REDUCE, F, check, found, operators, parse, rows

from ort_dynq.errors import DynqError
from ort_dynq.opsets import check_versions
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


@pytest.mark.parametrize(("dequantizes", "codes", "per_row"), pairwise([True, False], ["int8", "uint8"], [True, False]))
def test_another_scale_of_the_range(dequantizes: bool, codes: str, per_row: bool) -> None:
    """A scale that no operator computes: the quantization is a step of a program. NaN becomes the lowest code."""
    reduce = REDUCE[18].format("Max", "a", 0) if per_row else "ReduceMax<keepdims = 0>(a)"
    body = f"""a = Abs(x) m0 = {reduce} m = Clip(m0, eps) t = Div(m, c127) r = Add(m, t) s = Div(r, c127)
        t0 = Div(c127, r) z0 = Clip(t0, zero, c127) z1 = Round(z0) z = Cast<to = {2 if codes == "uint8" else 3}>(z1)
        q = QuantizeLinear<axis = 0>(x, s, z)
        {"y = DequantizeLinear<axis = 0>(q, s, z)" if dequantizes else "y = Identity(q)"}"""
    model = parse(body, opset=18, outputs="float[] y" if dequantizes else f"{codes}[] y")
    special = rows((18, 33), 1)
    special[3, 5], special[4] = np.nan, 0
    assert operators(rewrite(model).to_proto()) == {"ort_dynq.RowProgram": 1}
    check(model, {"x": rows((18, 33))}, {"x": special}, {"x": rows((1, 33))}, {"x": rows((2, 70000))})


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
    assert "ort_dynq.QuantizedMatMul" in operators(rewrite(linear(body)).to_proto())


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


@pytest.mark.parametrize(
    ("opset", "precision"), [(22, ""), (23, ""), (23, "<precision = 1>"), (23, "<precision = 10>")]
)
def test_precision_of_float16(opset: int, precision: str) -> None:
    """From opset 23 on, QuantizeLinear rounds the quotient to the type of the scale, or to another one."""
    inputs = "float16[N, 4096] x, float16 s, int8 z"
    model = parse(f"y = QuantizeLinear{precision}(x, s, z)", opset=opset, inputs=inputs, outputs="int8[N, 4096] y")
    try:
        check_versions(ir.from_proto(model))
    except DynqError as error:
        assert version() < (1, 24)
        pytest.skip(str(error))
    x = (np.arange(-4096, 4096) / 997).astype(np.float16).reshape(-1, 4096)
    report = check(model, {"x": x, "s": np.array(0.05, np.float16), "z": np.array(3, np.int8)})
    is_converted = version() >= (1, 30) and (opset == 22 or precision == "<precision = 1>")
    assert found(report) == ["DynamicQuantize"] * is_converted


@pytest.mark.parametrize(
    ("half", "codes"),
    [
        *((True, codes) for codes in ("uint8", "int8", "uint4", "int4")),
        *((False, codes) for codes in ("uint4", "int4")),
    ],
)
@pytest.mark.parametrize(
    ("granularity", "scale"), [("", ""), ("<axis = 1>", "[64]"), ("<axis = 1, block_size = 16>", "[M, K]")]
)
@pytest.mark.parametrize("has_zero_point", [True, False])
def test_half_precision_and_4_bits(half: bool, codes: str, granularity: str, scale: str, has_zero_point: bool) -> None:
    """float16 with infinities and NaN; 4 bits with both types of floats. The pair does not become one operator."""
    is_converted = (not half or version() >= (1, 30)) and (codes.endswith("8") or version() >= (1, 23))
    kind = "float16" if half else "float"
    shape = {"": "", "[64]": "[64]", "[M, K]": "[48, 4]"}[scale]
    number = {"uint8": 2, "int8": 3, "uint4": 21, "int4": 22}[codes]
    inputs = "x, s, z" if has_zero_point else "x, s"
    output_dtype = "" if has_zero_point else f"output_dtype = {number}"
    quantize = f"<{', '.join(filter(None, (granularity.strip('<>'), output_dtype)))}>".replace("<>", "")
    body = f"q = QuantizeLinear{quantize}({inputs}) y = DequantizeLinear{granularity}(q{inputs[1:]})"
    model = parse(body, opset=21, inputs=f"{kind}[48, 64] x, {kind}{shape} s", outputs=f"{kind}[48, 64] y")
    dims = [int(dim) for dim in shape.strip("[]").split(",") if dim]
    if has_zero_point:
        size = int(np.prod(dims, dtype=int))
        zeros = (np.arange(size) % 8 - (0 if codes[0] == "u" else 4)).tolist()
        model.graph.initializer.append(onnx.helper.make_tensor("z", number, dims, zeros))
    x = rows((48, 64)).astype(np.float16 if half else F)
    if not half:  # of float32, ONNX Runtime wraps around in some of the elements
        x = np.where(np.abs(x) < 1e6, x, F(0))
    else:
        x[0, :5] = [np.inf, -np.inf, np.nan, 6e-8, 65504]
    s = np.full(dims, 0.25, x.dtype) if dims else np.array(0.25, x.dtype)
    report = check(model, {"x": x, "s": s}, {"x": np.round(x[::-1] * 4 if not half else x[::-1]) / 8, "s": s})
    both = ["DynamicDequantize", "DynamicQuantize"]
    only_dequantizes = half and codes.endswith("8")  # before 1.30, ONNX Runtime does not round float16
    assert sorted(found(report)) == (both if is_converted else both[:1] if only_dequantizes else [])
    assert len(report.unconverted) == 2 - len(report.rewritten)


@pytest.mark.parametrize(
    ("x", "z", "reason"),
    [
        ("float", "uint16", "the type of the codes is uint16, expected uint8, int8, uint4 or int4"),
        ("int32", "int8", "the type of x is int32, expected float32, float16 or bfloat16"),
    ],
)
def test_types_without_operators(x: str, z: str, reason: str) -> None:
    model = parse("y = QuantizeLinear(x, s, z)", opset=21, inputs=f"{x}[64, 64] x, float s, {z} z", outputs=f"{z}[] y")
    assert [finding.reason for finding in rewrite(model).report.findings] == [reason]
