"""Weights with zero points that are no codes, as HQQ has them: their grid is found, and products have their sums."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import numpy_helper
from rewriting import F, check_products, parse, products, rows

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason, Unconverted
from ort_dynq.rewriter.weights.float_zero_points import grid_of_float_zero_points

K, N = 128, 160
CODES = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) b = Max(m, eps) s = Div(b, c127) v = Div(x, s) r = Round(v)"
CODES += " c = Clip(r, low, high) "
FAKE = CODES + "d = Mul(c, s) "
FROM_MINIMUM = "t = ReduceMin<keepdims = 1>(x, one) g = Sub(x, t) m = ReduceMax<keepdims = 1>(g, one) b = Max(m, eps)"
FROM_MINIMUM += " s = Div(b, c255) v = Div(g, s) r = Round(v) c = Clip(r, zero, c255) f = Mul(c, s) d = Add(f, t) "


def weights_of(bits: int, size: int, columns: int = N, *, seed: int = 0) -> Array:
    """Computes weights of float32 as HQQ does, (code - zero point) * scale."""
    rng, top = np.random.default_rng(seed), (1 << bits) - 1
    codes = rng.integers(0, top + 1, (K // size, size, columns)).astype(F)
    zero_points = rng.uniform(0, top, (K // size, 1, columns)).astype(F)
    scales = rng.uniform(0.01, 0.02, (K // size, 1, columns)).astype(F)
    return ((codes - zero_points) * scales).reshape(K, columns)


def model_of(body: str, weights: Array) -> onnx.ModelProto:
    model = parse(body, inputs=f"float[64, {K}] x")
    arrays = {"w": weights, "wt": weights.T.copy(), "bias": np.linspace(-9, 9, weights.shape[1], dtype=F)}
    arrays |= {"c255": F(255), "zero": F(0)}
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in arrays.items() if name in used)
    return model


@pytest.mark.parametrize(("bits", "size"), [(8, K), (4, K), (4, 64), (3, 64), (2, 32), (8, 32), (4, 16)])
def test_weights_are_recovered(bits: int, size: int) -> None:
    weights = weights_of(bits, size)
    weights[:size, 3] = 0.37  # one number
    weights[:size, 4] = np.where(np.arange(size) % 2, 0.1, 40)
    grid = grid_of_float_zero_points(weights)
    assert grid is not None
    assert grid.offset is not None
    assert grid.group_size == (0 if size == K else size)
    assert grid.bits == (8 if size == K or bits == 8 else 4)

    def of_rows(numbers: Array) -> Array:
        return np.repeat(numbers.astype(np.float64), size, 0)

    found = (grid.codes - of_rows(grid.zero_point)) * of_rows(grid.scale) + of_rows(grid.offset)
    largest = np.abs(weights).reshape(-1, size, N).max(1)
    assert (np.abs(found - weights) <= 2.0**-22 * of_rows(largest)).all()


def test_other_weights_are_not() -> None:
    weights, rng = weights_of(4, 64), np.random.default_rng(1)
    assert grid_of_float_zero_points(rng.normal(0, 1, (K, N)).astype(F)) is None
    weights[77, 150] += F(0.003)
    assert grid_of_float_zero_points(weights) is None
    weights[77, 150] = np.nan
    assert grid_of_float_zero_points(weights) is None


@pytest.mark.parametrize(
    ("body", "has_nan"),
    [
        (FAKE + "p = MatMul(d, w) y = Add(p, bias)", True),
        (FAKE + "y = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(d, wt, bias)", True),
        (CODES + "p = MatMul(c, w) y = Mul(p, s)", False),  # codes without their scale have no mark
        (FROM_MINIMUM + "y = MatMul(d, w)", True),
    ],
)
@pytest.mark.parametrize("size", [64, K])
def test_products(body: str, has_nan: bool, size: int) -> None:
    model = model_of(body, weights_of(4, size))
    report = rewrite(model).report
    assert products(report) == ["QuantizedMatMul"]
    assert not report.unconverted
    x = np.nan_to_num(rows((64, K)), posinf=1, neginf=-1)
    check_products(model, {"x": x})
    x[4, 5] = np.nan
    converted = rewrite(model).to_proto()
    results = [
        session.run(None, {"x": x})[0] for session in (make_session(converted, "native"), stock_session(converted))
    ]
    assert_same(*results)
    assert not has_nan or all(np.isnan(each[4]).all() for each in results)


def test_few_products_stay() -> None:
    """The sums take as long as integers save."""
    report = rewrite(model_of(FAKE + "y = MatMul(d, w)", weights_of(4, 64, 32))).report
    assert not products(report)
    assert report.unconverted[0].reason == str(Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_SUMS))


def test_exact_products_stay() -> None:
    report = rewrite(model_of(FAKE + "y = MatMul(d, w)", weights_of(4, 64)), exact=True).report
    assert not products(report)
    assert [each.op_type for each in report.unconverted] == ["MatMul"]
