"""QuantizeLinear of float16, of 4 bits, and types without operators."""

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
