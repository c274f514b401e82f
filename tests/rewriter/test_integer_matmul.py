"""MatMulInteger: run-time zero points, sums of any length, and products that ONNX Runtime gets wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import in_turn, make_session, stock_session
from onnx import TensorProto
from product_models import (
    DATA,
    INTEGER_TAILS,
    INTEGER_WEIGHTS,
    PRODUCTS,
    WEIGHTS,
    F,
    K,
    N,
    activations_of,
    asymmetric,
    check_products,
    codes_of,
    model_of,
    symmetric,
)
from rewriting import check, found, products, rows

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(("tail", "product", "exact"), in_turn(INTEGER_TAILS, PRODUCTS, [False, True]))
def test_integer_products(tail: str, product: str, exact: bool) -> None:
    body = symmetric() + "q = Cast<to = 3>(c)\n" + PRODUCTS[product] + INTEGER_TAILS[tail]
    model = model_of(body, INTEGER_WEIGHTS)
    report = check(model, DATA, exact=exact)
    assert "QuantizedMatMul" in products(report)
    assert activations_of(rewrite(model, exact=exact).to_proto()) == {TensorProto.UINT8}


def test_weights_of_run_time_zero_points_stay_matmulinteger() -> None:
    body = f"{symmetric()} q = Cast<to = 3>(c)\n i = MatMulInteger(q, wq, zq, wr)\n f = Cast<to = 1>(i)\n y = Mul(f, s)"
    model = model_of(body, INTEGER_WEIGHTS, inputs=f"float[B, M, {K}] x, int8 wr")
    assert found(check(model, DATA | {"wr": np.array(-7, np.int8)})) == ["MatMulInteger", "RowProgram"]


@pytest.mark.parametrize("per", ["token", "tensor"])
def test_run_time_zero_points(per: str) -> None:
    """MatMulInteger takes one zero point for all rows; zero points of rows need a correction by other nodes."""
    chain = asymmetric().replace("<keepdims = 1>(x, last)", "<keepdims = 0>(x)") if per == "tensor" else asymmetric()
    z8 = ", z8" if per == "tensor" else ""
    body = (
        chain + f"q = Cast<to = 3>(c)\n z8 = Cast<to = 3>(z)\n i = MatMulInteger(q, wq{z8})\n"
        "f = Cast<to = 1>(i)\n k = Mul(f, s)\n"
    )
    model = model_of(body + "y = Mul(k, ws)", INTEGER_WEIGHTS)
    assert found(check(model, DATA)) == ["QuantizedMatMul", "RowProgram"]
    assert activations_of(rewrite(model).to_proto()) == {TensorProto.UINT8}


def test_zero_points_that_split() -> None:
    """The lengths of a Split are no zero points."""
    body = asymmetric() + "v = Sub(c, z) f = Mul(v, s) start, dx = Split<axis = 1>(f, lengths) y = MatMul(dx, w)"
    rest = DATA["x"].shape[1] - 1
    report = check_products(model_of(body, {"w": codes_of().astype(F), "lengths": np.array([1, rest])}), DATA)
    assert "QuantizedMatMul" in found(report)


@pytest.mark.parametrize(("depth", "fits"), [(65793, True), (65794, False)])
def test_sums_that_may_overflow(depth: int, fits: bool) -> None:
    """65793 * 255 * 128 is the largest bound of a sum that fits int32."""
    text = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)"
    weights = np.full((depth, 1), 127 * 0.5, F)
    weights[0] = 126 * 0.5  # so that the others are not 1
    model = model_of(text, {"w": weights}, inputs=f"float[M, {depth}] x")
    result = rewrite(model)
    assert ("QuantizedMatMul" in products(result.report)) == fits
    if fits:
        x = np.full((2, depth), 1, F)
        x[1] = -1
        ours = make_session(result.to_proto(), "native").run(None, {"x": x})[0]
        assert (np.abs(ours - x.astype(np.float64) @ weights) <= 2.0**-22 * depth * 63.5).all()
    else:
        assert ["overflow" in finding.reason for finding in result.report.unconverted] == [True]


@pytest.mark.parametrize(("depth", "zero_point", "fits"), [(33025, 5, True), (33026, 5, False), (65793, 0, True)])
def test_long_integer_products(depth: int, zero_point: int, fits: bool) -> None:
    """33025 * 255 * 255 fits int32. Longer sums may wrap around, as in MatMulInteger."""
    weights = {"w": np.full((depth, 1), -128, np.int8), "wz": np.int8(zero_point), "zq": np.uint8(0)}
    body = "i = MatMulInteger(q, w, zq, wz)\n f = Cast<to = 1>(i)\n y = Mul(f, s)"
    model = model_of(body, weights, inputs=f"uint8[M, {depth}] q, float s")
    report = check(model, {"q": np.full((2, depth), 255, np.uint8), "s": np.array(0.5, F)})
    assert found(report) == ["QuantizedMatMul" if fits else "MatMulInteger"]


@pytest.mark.parametrize(("zero_point", "weights"), [*itertools.product([True, False], ["DequantizeLinear", "folded"])])
def test_products_that_onnxruntime_gets_wrong(zero_point: bool, weights: str) -> None:
    """u8 per row: ONNX Runtime's default level fails with zero points; without them it is wrong if M equals N."""
    z = ", z8" if zero_point else ""
    body = "m = ReduceMax<keepdims = 0>(x, last)\n p = Max(m, eps)\n s = Div(p, c255)\n zs = Shape(s)\n"
    body += (
        f"z8 = Expand(zero8, zs)\n q = QuantizeLinear<axis = 0>(x, s{z})\n dx = DequantizeLinear<axis = 0>(q, s{z})\n"
    )
    text, arrays = WEIGHTS[weights]
    x = {"x": np.abs(rows((N, K), seed=3))[:, :]}
    x["x"][~np.isfinite(x["x"])] = 1
    model = model_of(body + text + "y = MatMul(dx, w)", arrays | {"zero8": np.uint8(0)}, inputs=f"float[{N}, {K}] x")
    report = check_products(model, x)
    assert "QuantizedMatMul" in products(report)
    plain = stock_session(model).run(None, x)[0]
    ours = make_session(rewrite(model).to_proto(), "native", optimize=True).run(None, x)[0]
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5 * np.abs(plain).max())
