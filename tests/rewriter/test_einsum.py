"""Products with another place of the inner dimension: convolutions of 1x1, and weights as the first factor."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import diagonals, make_session, stock_session, with_arrays
from rewriting import F, check_products, parse, products, rows

from ort_dynq.rewriter import rewrite

CHAIN = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, axis) b = {} s = Div(b, c127) v = Div(x, s) r = Round(v) "
CHAIN += "c = Clip(r, low, high) d = Mul(c, s) "
PLAIN, NO_EPSILON = CHAIN.format("Max(m, eps)"), CHAIN.format("Identity(m)")
ASYMMETRIC = """l0 = ReduceMin<keepdims = 1>(x, axis) l = Min(l0, zero) h0 = ReduceMax<keepdims = 1>(x, axis)
    h = Max(h0, zero) w0 = Sub(h, l) w1 = Max(w0, eps) s = Div(w1, c255) n = Neg(l) t = Div(n, s) z = Round(t)
    v = Div(x, s) r = Round(v) i = Add(r, z) c = Clip(i, zero, c255) k = Sub(c, z) d = Mul(k, s) """
K, N = 128, 128
WEIGHTS = (np.arange(N * K).reshape(N, K) * 37 % 255 - 127).astype(F) * F(0.01)
BIAS = np.linspace(-9, 9, N, dtype=F)
SAMPLES = "float[B, 128, 9] x", (2, K, 9)
IMAGES = "float[B, 128, H, 5] x", (2, K, 3, 5)
MATRIX = "float[128, T] x", (K, 7)


def model_of(body: str, inputs: str, **arrays: np.ndarray) -> onnx.ModelProto:
    model = parse(body, inputs=inputs)
    arrays = {"w": WEIGHTS, "bias": BIAS} | arrays
    return with_arrays(model, arrays)


def data(shape: tuple[int, ...], axis: int, *, nan: bool = False) -> np.ndarray:
    moved = rows((*(n for i, n in enumerate(shape) if i != axis), K), nan=nan)
    x = np.moveaxis(moved, -1, axis)
    return np.ascontiguousarray(x if nan else np.nan_to_num(x, posinf=1, neginf=-1))


PRODUCTS = [
    *((product, *each) for product in ("Conv(d, w)", "Conv(d, w, bias)") for each in (SAMPLES, IMAGES)),
    *(("MatMul(w, d)", *each) for each in (SAMPLES, MATRIX)),
    ("Gemm(w, d)", *MATRIX),
    ("Gemm<alpha = 0.5, beta = 3.0>(w, d, column)", *MATRIX),
    ("Gemm<transA = 1>(turned, d, single)", *MATRIX),
    ('Einsum<equation = "oi,bit->bot">(w, d)', *SAMPLES),
    ("MatMul(stack, d)", "float[2, 128, 9] x", SAMPLES[1]),
]
ONE_ROW = ('Einsum<equation = "okl,klm->mo">(several, d)', "float[4, 32, 1] x", (4, 32, 1))
LAST_OF_ONE = ('Einsum<equation = "oiy,bit->ybto">(images, d)', *SAMPLES)


@pytest.mark.parametrize(("chain", "case"), diagonals(1, [PLAIN, NO_EPSILON, ASYMMETRIC], PRODUCTS))
def test_products(chain: str, case: tuple[str, str, tuple[int, ...]]) -> None:
    product, inputs, shape = case
    axis = shape.index(K)
    weights = WEIGHTS.reshape(N, K, *([1] * (len(shape) - 2))) if "Conv" in product else WEIGHTS
    stack = np.array([WEIGHTS, -WEIGHTS])
    others = {"stack": stack, "turned": WEIGHTS.T.copy(), "column": BIAS[:, None], "single": BIAS[:1]}
    model = model_of(f"{chain} y = {product}", inputs, axis=np.array([axis]), w=weights, **others)
    assert products(check_products(model, {"x": data(shape, axis)})) == ["QuantizedMatMul"]


@pytest.mark.parametrize("product", [ONE_ROW, LAST_OF_ONE], ids=["one row", "last of one"])
def test_orders_of_axes(product: tuple[str, str, tuple[int, ...]]) -> None:
    """A scale with more axes than the codes of the product, and weights with one element in their last axis."""
    text, inputs, shape = product
    axes, weights = ([0, 1], WEIGHTS) if text == ONE_ROW[0] else ([1], WEIGHTS)
    several, images = weights.reshape(N, 4, 32), weights[..., None]
    model = model_of(f"{PLAIN} y = {text}", inputs, axis=np.array(axes), several=several, images=images)
    x = np.nan_to_num(rows(shape), posinf=1, neginf=-1)
    assert products(check_products(model, {"x": x})) == ["QuantizedMatMul"]


def test_rows_with_nan() -> None:
    """A position with a NaN is NaN in all channels, and no other one is."""
    shape = (3, K, 9)
    model = model_of(f"{PLAIN} y = Conv(d, w)", "float[B, 128, 9] x", axis=np.array([1]), w=WEIGHTS[..., None])
    x = data(shape, 1, nan=True)
    (expected,) = stock_session(model).run(None, {"x": x})
    (actual,) = make_session(rewrite(model).to_proto(), "native").run(None, {"x": x})
    assert np.isnan(expected).any()
    assert np.array_equal(np.isnan(actual), ~np.isfinite(x).all(1, keepdims=True) | np.zeros_like(actual, bool))
    assert not (np.isnan(expected) & ~np.isnan(actual)).any()


@pytest.mark.parametrize(
    ("product", "kernel"),
    [
        ("Conv<strides = [2]>(d, w)", (N, K, 1)),
        ("Conv<pads = [1, 1]>(d, w)", (N, K, 1)),
        ("Conv<group = 2>(d, w)", (N, K // 2, 1)),
        ("Conv(d, w)", (N, K, 3)),
        ('Conv<auto_pad = "SAME_UPPER">(d, w)', (N, K, 1)),
    ],
)
def test_other_convolutions_stay(product: str, kernel: tuple[int, ...]) -> None:
    weights = np.resize(WEIGHTS, kernel)
    model = model_of(f"{PLAIN} y = {product}", "float[B, 128, 9] x", axis=np.array([1]), w=weights)
    report = rewrite(model).report
    assert not products(report)
    assert "Conv" in [each.op_type for each in report.unconverted]


def test_scales_along_the_sums_stay() -> None:
    """A scale for each channel, and weights as the first factor with a scale for each row of the second one."""
    for inputs, product, axis, weights in (
        ("float[B, 128, 9] x", "Conv(d, w)", 2, WEIGHTS[..., None]),
        ("float[B, 128, 9] x", "MatMul(w, d)", 2, WEIGHTS),
    ):
        model = model_of(f"{PLAIN} y = {product}", inputs, axis=np.array([axis]), w=weights)
        assert not products(rewrite(model).report)
