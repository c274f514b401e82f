"""Rows and elements of codes that a Where leaves out, as masks of tokens and of sparse activations do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import diagonals, make_session, stock_session, with_arrays
from rewriting import F, check, check_products, parse, products, rows

from ort_dynq.rewriter import rewrite

CHAIN = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) b = Max(m, eps) s = Div(b, c127) v = Div(x, s) r = Round(v) "
CHAIN += "c = Clip(r, low, high) d = Mul(c, s) "
NO_EPSILON = CHAIN.replace("Max(m, eps)", "Identity(m)")
HIGHER = CHAIN.replace("d = Mul(c, s)", "h = Sub(c, three) d = Mul(h, s)")
UNSIGNED = (
    "n = Relu(x) m = ReduceMax<keepdims = 1>(n, one) b = Max(m, eps) s = Div(b, c255) v = Div(n, s) r = Round(v) "
)
UNSIGNED += "c = Clip(r, zero, c255) d = Mul(c, s) "
ASYMMETRIC = """l0 = ReduceMin<keepdims = 1>(x, one) l = Min(l0, zero) h0 = ReduceMax<keepdims = 1>(x, one)
    h = Max(h0, zero) w0 = Sub(h, l) w1 = Max(w0, eps) s = Div(w1, c255) n = Neg(l) t = Div(n, s) z = Round(t)
    v = Div(x, s) r = Round(v) i = Add(r, z) c = Clip(i, zero, c255) k = Sub(c, z) d = Mul(k, s) """
ROWS = "g = Greater(m, half) "
ELEMENTS = "g = Greater(x, half) "
WEIGHTS = (np.arange(64 * 32).reshape(64, 32) * 37 % 255 - 127).astype(F) * F(0.01)


def model_of(body: str) -> onnx.ModelProto:
    model = parse(f"{body} y = MatMul(e, w)", inputs="float[N, 64] x, bool[N, 1] given")
    arrays = {"w": WEIGHTS, "half": F(0.5), "three": F(3)}
    return with_arrays(model, arrays)


def data(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": x, "given": np.arange(len(x))[:, None] % 3 > 0}


BODIES = [
    *(chain + ROWS for chain in (CHAIN, NO_EPSILON, HIGHER)),
    *(chain + ELEMENTS for chain in (CHAIN, HIGHER, UNSIGNED)),
    UNSIGNED + "g = Identity(given) ",
    ASYMMETRIC + "g = Identity(given) ",
]


@pytest.mark.parametrize(("body", "where"), diagonals(1, BODIES, ["Where(g, d, zero)", "Where(g, zero, d)"]))
def test_products(body: str, where: str) -> None:
    model = model_of(f"{body} e = {where}")
    x = np.nan_to_num(rows((18, 64)), posinf=1, neginf=-1)
    report = check_products(model, data(x))
    assert products(report) == ["QuantizedMatMul"]
    assert not report.unconverted
    used = {each.name for each in model.graph.input}
    check(model, {name: each for name, each in data(x).items() if name in used})


@pytest.mark.parametrize("chain", [NO_EPSILON, ASYMMETRIC.replace("Max(w0, eps)", "Identity(w0)")])
def test_rows_that_are_left_out_are_0_whatever_they_hold(chain: str) -> None:
    """Not NaN, although their scale or zero point is; rows that stay are NaN as the model's."""
    model = model_of(chain + "e = Where(given, d, zero)")
    inputs = data(rows((27, 64), nan=True))
    inputs["x"][3:5] = 0
    (expected,) = stock_session(model).run(None, inputs)
    (actual,) = make_session(rewrite(model).to_proto(), "native").run(None, inputs)
    assert np.isnan(expected).any()
    assert not actual[~inputs["given"][:, 0]].any()
    finite = np.isfinite(inputs["x"]).all(1)  # ReduceMax ignores most NaN, the integer product does not
    assert np.array_equal(np.isnan(actual[finite]), np.isnan(expected[finite]))


@pytest.mark.parametrize(
    "body",
    [
        CHAIN + ELEMENTS + "e = Where(g, d, half)",
        CHAIN + ELEMENTS + "e = Where(g, d, x)",
        ASYMMETRIC + ELEMENTS + "e = Where(g, d, zero)",
        NO_EPSILON + ELEMENTS + "e = Where(g, d, zero)",
    ],
)
def test_near_misses(body: str) -> None:
    report = rewrite(model_of(body)).report
    assert not products(report)
    assert [each.op_type for each in report.unconverted] == ["MatMul"]
