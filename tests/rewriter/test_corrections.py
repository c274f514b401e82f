"""Integers that are added to the sums of integer products: corrections of zero points, and biases.

The results equal those of the original in ONNX Runtime with optimizations off, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from correction_models import CONSTANTS, I32, F, data_of
from helpers import Array, in_turn, pairwise
from onnx import numpy_helper
from product_models import K, N, codes_of, model_of
from rewriting import check, found, products, tails

from ort_dynq.rewriter import rewrite

TAIL = "f = Cast<to = 1>(i)\n g = Mul(f, s)\n y = Mul(g, ws)"
PRODUCT = "p = MatMulInteger(q, wq)\n"
OF_UNSIGNED = "p = MatMulInteger(q, wu)\n"
COLUMNS = "cs = Mul(za, sums)\n"
AT_RUN_TIME = "w32 = Cast<to = 6>(wq)\n sums_r = ReduceSum<keepdims = 0>(w32, first)\n cs = Mul(sums_r, za)\n"
ROWS = "q32 = Cast<to = 6>(q)\n rs = ReduceSum<keepdims = 1>(q32, last)\n rz = Mul(rs, zb)\n"
# Sums with no run-time numbers but the zero points of rows, and the sums of rows of codes.
ZERO_POINTS = {
    "columns": PRODUCT + COLUMNS + "i = Sub(p, cs)\n",
    "columns, summed at run time": PRODUCT + AT_RUN_TIME + "i = Sub(p, cs)\n",
    "columns, negated": PRODUCT + "nz = Neg(za)\n cs = Mul(nz, sums)\n i = Add(cs, p)\n",
    "columns, negated after": PRODUCT + COLUMNS + "n = Neg(cs)\n i = Add(p, n)\n",
    "all": OF_UNSIGNED + ROWS + "cs = Mul(za, sums_wu)\n zk = Mul(za, k)\n zz = Mul(zk, zb)\n"
    "i0 = Sub(p, cs)\n i1 = Sub(i0, rz)\n i = Add(i1, zz)\n",
    "all, nested": OF_UNSIGNED + ROWS + "cs = Mul(za, sums_wu)\n zk = Mul(zb, k)\n zz = Mul(zk, za)\n"
    "c = Add(rz, cs)\n d = Sub(c, zz)\n i = Sub(p, d)\n",
    "all, distributed": OF_UNSIGNED + "q32 = Cast<to = 6>(q)\n rs = ReduceSum<keepdims = 0>(q32, last)\n"
    "rs1 = Unsqueeze(rs, last)\n ka = Mul(k, za)\n r = Sub(rs1, ka)\n rz = Mul(r, zb)\n cs = Mul(sums_wu, za)\n"
    "i0 = Sub(p, rz)\n i = Sub(i0, cs)\n",
    "all, weights by column": OF_UNSIGNED + ROWS.replace("zb", "zbs") + "kz = Mul(k, zbs)\n v = Sub(sums_wu, kz)\n"
    "cs = Mul(za, v)\n c = Add(cs, rz)\n i = Sub(p, c)\n",
    "int64": OF_UNSIGNED.replace("p =", "p32 =")
    + ROWS.replace("<to = 6>", "<to = 7>").replace("zb", "zb64")
    + "zb64 = Cast<to = 7>(zb)\n s64 = Cast<to = 7>(sums_wu)\n z64 = Cast<to = 7>(za)\n zk = Mul(z64, k64)\n"
    "zz = Mul(zk, zb64)\n cs = Mul(z64, s64)\n c0 = Add(cs, rz)\n c1 = Sub(c0, zz)\n c = Cast<to = 6>(c1)\n"
    "i = Sub(p32, c)\n",
}
# Sums with numbers that are no zero point.
OTHERS = {
    "bias": PRODUCT + "i = Add(p, b)\n",
    "number": PRODUCT + "i = Add(b1, p)\n",
    "bias after a zero point": "p = MatMulInteger(q, wq, z)\n i = Add(p, b)\n",
    "bias after zero points": "p = MatMulInteger(q, wu, z, wz)\n i0 = Add(p, b)\n i = Sub(i0, b1)\n",
    "bias at run time": "p = MatMulInteger(q, wq, z)\n i = Sub(p, br)\n",
    "number at run time": "p = MatMulInteger(q, wq, z)\n i = Add(p, br1)\n",
    "zero points and bias": OF_UNSIGNED + ROWS + "cs = Mul(za, sums_wu)\n c = Add(cs, rz)\n i0 = Sub(p, c)\n"
    "zk = Mul(za, k)\n zz = Mul(zk, zb)\n i1 = Add(i0, zz)\n i = Add(i1, b)\n",
    "another multiple": PRODUCT + "cs = Mul(za, b1)\n i = Sub(p, cs)\n",
    "square": PRODUCT + "z2 = Mul(za, za)\n cs = Mul(z2, sums)\n i = Sub(p, cs)\n",
    "zero points in product and sums": "p = MatMulInteger(q, wq, z)\n" + COLUMNS + "i = Sub(p, cs)\n",
    "float zero point": PRODUCT + "zr = Cast<to = 6>(s)\n cs = Mul(zr, sums)\n i = Sub(p, cs)\n",
}


def product_of(
    body: str, dtype: Any, per: str, *, tail: str = TAIL, depth: int = K, **constants: Array
) -> onnx.ModelProto:
    code, rows = np.dtype(dtype).name, "[M, 1]" if per == "token" else ""
    inputs = f"{code}[M, {depth}] q, {code}{rows} z, float{rows} s, int32[{N}] br, int32[1] br1, {code}[1, 1, 1] z3"
    text = f"za = Cast<to = 6>(z)\n zt = Cast<to = 6>(z3)\n{body}{tail}"
    return model_of(text, CONSTANTS | {"wz": np.uint8(121)} | constants, inputs=inputs)


@pytest.mark.parametrize(("dtype", "per", "body"), pairwise([np.uint8, np.int8], ["token", "tensor"], ZERO_POINTS))
def test_zero_points(body: str, per: str, dtype: Any) -> None:
    """The corrections disappear: QuantizedMatMul has the zero points."""
    model = product_of(ZERO_POINTS[body], dtype, per)
    report = check(model, data_of(dtype, per), exact=True)
    assert "QuantizedMatMul" in products(report)
    assert not report.unconverted
    nodes = rewrite(model).to_proto().graph.node
    assert {node.op_type for node in nodes} <= {"Constant", "Cast", "Add", "QuantizedMatMul"}
    assert sum(node.op_type == "Add" for node in nodes) == (0 if dtype is np.uint8 else 2)  # 128 to codes, zero points


@pytest.mark.parametrize("per", ["token", "tensor"])
def test_zero_points_without_scales(per: str) -> None:
    """A Div by scales stays; the scales of the rows are 1."""
    model = product_of(ZERO_POINTS["all"], np.uint8, per, tail="f = Cast<to = 1>(i)\n g = Mul(f, ws)\n y = Div(g, s)")
    report = check(model, data_of(np.uint8, per), exact=True)
    assert "QuantizedMatMul" in products(report)
    kinds = [node.op_type for node in rewrite(model).to_proto().graph.node]
    assert kinds.count("Expand") == (per == "token")
    assert "Sub" not in kinds


@pytest.mark.parametrize(("dtype", "body"), in_turn([np.uint8, np.int8], OTHERS))
def test_other_integers(body: str, dtype: Any) -> None:
    model = product_of(OTHERS[body], dtype, "tensor")
    for seed in range(3):
        report = check(model, data_of(dtype, "tensor", seed), exact=seed == 0)
    assert "QuantizedMatMul" in products(report)
    assert not report.unconverted


@pytest.mark.parametrize("number", [-5, 0, 128, 256])
@pytest.mark.parametrize("zero_point", [0, 5])
def test_multiples_of_the_column_sums(zero_point: int, number: int) -> None:
    """Both corrections together are one zero point, if it is a code."""
    sums = codes_of().sum(0, dtype=I32) * number
    model = product_of(
        "p = MatMulInteger(q, wq, zq)\n i = Sub(p, more)\n", np.uint8, "tensor", more=sums, zq=np.uint8(zero_point)
    )
    assert found(check(model, data_of(np.uint8, "tensor"))) == ["QuantizedMatMul"]
    (node,) = rewrite(model).to_proto().graph.node[-1:]
    converted = {t.name: numpy_helper.to_array(t) for t in rewrite(model).to_proto().graph.initializer}
    is_code = 0 <= zero_point + number <= 255
    assert (converted[node.input[6]] == codes_of().sum(0)).all() == is_code


STAY = {
    "matrix": PRODUCT + "i = Add(p, matrix)\n",
    "negated sums": PRODUCT + "i = Sub(b, p)\n",
    "multiplied sums": PRODUCT + "i = Mul(p, b1)\n",
    "zero points of rows and a bias": PRODUCT + COLUMNS + "i0 = Sub(p, cs)\n i = Add(i0, b)\n",
    "no codes as zero points": PRODUCT + "zr = Cast<to = 6>(s)\n cs = Mul(zr, sums)\n i = Sub(p, cs)\n",
    "zero points of weights beyond 8 bits": PRODUCT + ROWS.replace("zb", "b") + "i = Sub(p, rz)\n",
    "maxima of rows": PRODUCT + ROWS.replace("ReduceSum", "ReduceMax") + "i = Sub(p, rz)\n",
    "sums of columns of codes": PRODUCT + ROWS.replace("last", "first") + "i = Sub(p, rz)\n",
    "reshaped": PRODUCT + "r = Reshape(p, flat)\n c = Mul(za, sums)\n c1 = Reshape(c, flat)\n i0 = Sub(r, c1)\n"
    "i = Reshape(i0, back)\n",
    "another rank": PRODUCT + "c = Mul(zt, sums)\n i = Sub(p, c)\n",
    "beyond int32": PRODUCT.replace("p =", "p0 =") + "p = Cast<to = 7>(p0)\n i = Add(p, huge)\n",
}


@pytest.mark.parametrize("body", STAY)
def test_integers_that_stay(body: str) -> None:
    model = product_of(STAY[body], np.uint8, "token", flat=np.array([-1, 1, N]), back=np.array([-1, N]))
    runs = body != "sums of columns of codes"  # which do not broadcast to the sums
    report = check(model, data_of(np.uint8, "token")) if runs else rewrite(model).report
    assert "QuantizedMatMul" not in products(report)


@pytest.mark.parametrize(("dtype", "bias", "fits"), [(6, "b", True), (7, "b64", False), (7, "sums64", True)])
def test_matmul_of_wide_integers(dtype: int, bias: str, fits: bool) -> None:
    """int64 does not wrap around: there, only a zero point may be added."""
    wide = {"b64": CONSTANTS["b"].astype(np.int64), "sums64": -7 * CONSTANTS["sums"].astype(np.int64)}
    weights = {"w": codes_of().astype(I32 if dtype == 6 else np.int64)}
    body = f"c = Cast<to = {dtype}>(q)\n p = MatMul(c, w)\n i = Add(p, {bias})\n"
    report = check(product_of(body, np.uint8, "token", **wide, **weights), data_of(np.uint8, "token"))
    assert ("QuantizedMatMul" in products(report)) == fits


@pytest.mark.parametrize("bias", ["", "i = Add(p, b)\n"])
def test_products_that_onnxruntime_does_not_fuse(bias: str) -> None:
    """DynamicQuantizeLinear before a MatMulInteger, and its sums are changed before they are scaled: not kept."""
    body = "q, s, z = DynamicQuantizeLinear(x)\n p = MatMulInteger(q, wq, z)\n" + (bias or "i = Identity(p)\n") + TAIL
    model = model_of(body, CONSTANTS, inputs=f"float[M, {K}] x")
    x = np.random.default_rng(0).normal(0, 1, (7, K)).astype(F)
    assert "QuantizedMatMul" in products(check(model, {"x": x}, exact=True))
    assert ("QuantizedMatMul" in products(rewrite(model, keep_fused=True).report)) == bool(bias)


CONV = {
    "plain": "<kernel_shape = [3, 3]>",
    "pads": "<pads = [1, 0, 2, 1], strides = [2, 1]>",
    "groups": "<pads = [2, 2, 2, 2], dilations = [2, 2], group = 2>",
    "valid": '<auto_pad = "VALID">',
    "same": '<auto_pad = "SAME_UPPER", strides = [2, 2]>',
}
CONV_BIASES = {
    "constant": "i = Add(p, b)\n",
    "number": "i = Sub(p, one)\n",
    # As older versions of quantize_dynamic write it
    "at run time": "k = Mul(s, ws)\n d = Div(bf, k)\n r = Floor(d)\n c = Cast<to = 6>(r)\n cr = Reshape(c, across)\n"
    "i = Add(p, cr)\n",
}


@pytest.mark.parametrize(
    ("conv", "bias", "codes"), pairwise(CONV, CONV_BIASES, ["uint8", "int8", "int8 without zero point"])
)
def test_convolutions(conv: str, bias: str, codes: str) -> None:
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 256, (6, 2 if conv == "groups" else 4, 3, 3))
    constants = {
        "w": weights.astype(np.uint8),
        "wz": np.uint8(131),
        "ws": np.asarray(0.0123, F),
        "b": rng.integers(-(2**27), 2**27, (1, 6, 1, 1)).astype(I32),
        "bf": np.linspace(-300, 300, 6).astype(F),
        "one": np.asarray(12345, I32),
        "across": np.array([1, -1, 1, 1]),
    }
    dtype, z = codes.split()[0], "" if codes.endswith("point") else "z"
    body = f"p = ConvInteger{CONV[conv]}(q, w, {z}, wz)\n{CONV_BIASES[bias]} k0 = Mul(s, ws)\n"
    body += "y = DequantizeLinear(i, k0)" if conv == "pads" else "f = Cast<to = 1>(i)\n y = Mul(f, k0)"
    model = model_of(body, constants, inputs=f"{dtype}[B, 4, H, W] q, {dtype} z, float s")
    info = np.iinfo(dtype)
    q = rng.integers(info.min, info.max + 1, (2, 4, 9, 8)).astype(dtype)
    for zero_point in (0, info.max):
        feeds = {"q": q, "z": np.asarray(zero_point, dtype), "s": np.asarray(0.7, F)}
        report = check(model, feeds, exact=zero_point == 0)
    assert ("QuantizedConv" in products(report)) == (conv != "same")
    stays = conv == "same" and codes == "uint8"  # the others become a ConvInteger of uint8 codes
    assert ["auto_pad computes" in finding.reason for finding in report.unconverted] == [True] * stays


FLOATS = {
    "columns": PRODUCT + "f0 = Cast<to = 1>(p)\n zf = Cast<to = 1>(z)\n sf = Cast<to = 1>(sums)\n c = Mul(zf, sf)\n"
    "f = Sub(f0, c)\n",
    "integers, cast": PRODUCT + "f0 = Cast<to = 1>(p)\n" + COLUMNS + "c = Cast<to = 1>(cs)\n f = Sub(f0, c)\n",
    "all": PRODUCT + "f0 = Cast<to = 1>(p)\n qf = Cast<to = 1>(q)\n rs = ReduceSum<keepdims = 1>(qf, last)\n"
    "rz = Mul(rs, three)\n v = Sub(sums_f, k3)\n zf = Cast<to = 1>(z)\n c = Mul(v, zf)\n f1 = Sub(f0, c)\n"
    "f = Sub(f1, rz)\n",
}


@pytest.mark.parametrize(
    ("dtype", "per", "body", "factor"), pairwise([np.uint8, np.int8], ["token", "tensor"], FLOATS, [1, 30])
)
def test_zero_points_after_the_cast(body: str, per: str, dtype: Any, factor: int) -> None:
    """float32 holds the integers, unless the weights are repeated `factor` times: a program has the corrections."""
    depth, codes = factor * K, np.tile(codes_of(), (factor, 1))
    constants = {
        "wq": codes,
        "sums": codes.sum(0, dtype=I32),
        "sums_f": codes.sum(0, dtype=F),
        "three": F(3),
        "k3": F(3 * depth),
    }
    model = product_of(FLOATS[body], dtype, per, tail=TAIL.partition("\n")[2], depth=depth, **constants)
    report = check(model, data_of(dtype, per, depth=depth), exact=True)
    assert "QuantizedMatMul" in products(report)
    corrected = "Sub(x, tensor1)" if per == "token" else "Sub(x, column1)"
    if per == "tensor" and body != "all":
        corrected = f"Mul(Mul({corrected}, row2), column3)"  # the scales follow
    converted = rewrite(model).to_proto()
    assert tails(converted) == [f"dst = {corrected}"] * (factor > 1)
    assert factor > 1 or "Sub" not in [node.op_type for node in converted.graph.node]
