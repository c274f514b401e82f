"""Rows that are not finite in the model: quotients without an epsilon, and infinities behind a bounded range."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import diagonals, make_session, stock_session
from product_models import F, model_of
from published_forms import ASYMMETRIC, CONSTANTS, ENDS, FORMS, INPUTS, PRODUCT, RANGE, K
from rewriting import products
from unbounded_models import STEP, check_rows, data, part_of, with_nan

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("axes", ["one", "tensor"])
@pytest.mark.parametrize("product", ["y = MatMul(c, w)", "y0 = MatMul(c, w) y = Mul(y0, s)"])
def test_codes_are_multiplied_without_their_scale(axes: str, product: str) -> None:
    body = SHARED.replace("{axes}", axes) + "i = Reciprocal(s) t = Mul(x, i) n = Round(t) c = Clip(n, low, high) "
    model = model_of(body + product, CONSTANTS | {"tensor": np.array([0, 1, 2])}, inputs=INPUTS)
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    assert np.isnan(check_rows(model, data())).any() == (axes == "one")
    assert np.isnan(check_rows(model, np.zeros((2, 3, K), F))).all()
    x = np.random.default_rng(5).normal(0, 1, (2, 3, K)).astype(F)
    assert np.isfinite(check_rows(model, x)).all()
    x[0, 1, 4] = np.inf
    assert np.isnan(check_rows(model, x)[0, 1]).all()


SHARED = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, {axes}) s = Div(m, c127) "
SHARED_ENDS = ENDS.replace("one)", "{axes})")
INVERSE = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, {axes}) i = Div(c127, m) t = Mul(x, i) n = Round(t)"
QUOTIENT = "t = Div(x, s) n = Round(t) c = Clip(n, low, high) y0 = Mul(c, s) "
PLACES = {  # which rows share a scale, and what the product multiplies
    "tensor": (f"float[B, M, {K}] x", "tensor", "y = MatMul(y0, w)"),
    "sample": (f"float[B, M, {K}] x", "sample", "y = MatMul(y0, w)"),
    "token of all samples": (f"float[B, M, {K}] x", "outer", "y = MatMul(y0, w)"),
    "columns": (f"float[B, M, {K}] x", "one", "p = Slice(y0, start, end, one) y = MatMul(p, half_of_w)"),
    "columns twice": (
        f"float[B, M, {K}] x",
        "one",
        "p = Slice(y0, start, end, one) h = Concat<axis = -1>(p, p) y = MatMul(h, w)",
    ),
    "columns of indices": (f"float[B, M, {K}] x", "one", "p = Gather<axis = -1>(y0, indices) y = MatMul(p, w)"),
    "heads": (f"float[B, M, {K}] x", "one", "p = Reshape(y0, heads) y = MatMul(p, half_of_w)"),
    "head twice": (
        f"float[B, M, {K}] x",
        "one",
        "h = Reshape(y0, heads) o = Gather<axis = 2>(h, head) p = Reshape(o, joined) y = MatMul(p, w)",
    ),
}
SPELLINGS = {
    "quotient": SHARED + QUOTIENT,
    "inverse": INVERSE + " c = Clip(n, low, high) y0 = Div(c, i) ",
    "zero point": SHARED_ENDS + ASYMMETRIC,
    "estimator": SHARED
    + "t = Div(x, s) n = Round(t) d = Sub(n, t) e = Add(d, t) c = Clip(e, low, high) y0 = Mul(c, s) ",
}


@pytest.mark.parametrize(("spelling", "place"), diagonals(2, SPELLINGS, PLACES))
def test_rows_that_share_a_scale(place: str, spelling: str) -> None:
    """All share a scale of 0, or an infinite inverse; only those with an element of 0 are NaN in the model."""
    inputs, axes, product = PLACES[place]
    rng, shape = np.random.default_rng(4), (3, 4, K)
    x = rng.choice(np.array([-1, 1], F), shape) * rng.integers(1, 60, shape).astype(F) * STEP
    x[0, 0, 5], x[1, 2, K - 1], x[2, 3] = 0, 0, 0
    constants = {**CONSTANTS, "tensor": np.array([0, 1, 2]), "sample": np.array([1, 2]), "outer": np.array([0, 2])}
    constants |= {"start": np.array([0]), "end": np.array([K // 2]), "half_of_w": CONSTANTS["w"][: K // 2]}
    constants |= {"indices": np.where(np.arange(K) == 5, 6, np.arange(K)), "head": np.array([0, 0])}
    model = model_of(SPELLINGS[spelling].replace("{axes}", axes) + product, constants, inputs=inputs)
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    check_rows(model, np.random.default_rng(5).normal(0, 1, shape).astype(F))
    expected = check_rows(model, x)
    if spelling == "quotient":
        assert 0 < np.isnan(expected).any(-1).sum() < expected[..., 0].size // 2


@pytest.mark.parametrize("axes", [("tensor", "tensor"), ("sample", "one"), ("sample", "sample")])
def test_parts_with_one_scale_for_all_rows(axes: tuple[str, str]) -> None:
    body = "p0, p1 = Split<axis = -1>(x, parts) "
    for i, each in enumerate(axes):
        body += part_of("quotient", i).replace(", one)", f", {each})")
    rng, shape = np.random.default_rng(4), (3, 12, K)
    x = rng.choice(np.array([-1, 1], F), shape) * rng.integers(1, 60, shape).astype(F) * STEP
    x[0, 0, 5], x[1, 2, K - 1] = 0, 0
    constants = {**CONSTANTS, "tensor": np.array([0, 1, 2]), "sample": np.array([1, 2])}
    model = model_of(body + "y0 = Concat<axis = -1>(y0_0, y0_1) " + PRODUCT, constants, inputs=INPUTS)
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    ordinary = rng.normal(0, 1, shape).astype(F)
    ordinary[0, 1], ordinary[0, 2, K // 4 :] = 0, 0  # rows without a scale, in an ordinary sample
    assert np.isnan(check_rows(model, ordinary)).any(-1).sum() == (2 if axes[1] == "one" else 0)
    assert np.isnan(check_rows(model, x)).any(-1).sum() == 2


@pytest.mark.parametrize("first", ["g = Identity(x) ", "g = MatMul(x, identity) "])
@pytest.mark.parametrize("last", ["c = Identity(n) ", "c = Clip(n, low, high) "])
def test_blocks_of_rows_without_an_epsilon(first: str, last: str) -> None:
    """Each scale is that of a block of several rows, as Jetfire has it."""
    body = first + "h = Reshape(g, heads) b = Transpose<perm = [0, 2, 1, 3]>(h) a = Abs(b) "
    body += f"m = ReduceMax<keepdims = 1>(a, block) s = Div(m, c127) t = Div(b, s) n = Round(t) {last} q = Mul(c, s) "
    body += "u = Transpose<perm = [0, 2, 1, 3]>(q) y0 = Reshape(u, joined) " + PRODUCT
    numbers = {"block": np.array([2, 3]), "identity": np.eye(K, dtype=F)}
    model = model_of(body, CONSTANTS | numbers, inputs=f"float[3, 12, {K}] x")
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    x = data()
    x[0, :, K // 2 :], x[2, :, : K // 2] = 0, x[1, 1, : K // 2]
    x[2, 5, 7] = 0
    finite = np.isfinite(check_rows(model, x)).any(-1).sum(-1)
    assert finite.tolist() == [0, 12, 11 if "Clip" in last else 0]


@pytest.mark.parametrize(
    "forms", [("quotient", "signed zero point"), ("signed zero point", "quotient"), ("NaN replaced", "quotient")]
)
@pytest.mark.parametrize("axis", [-1, 1])
def test_parts_of_different_forms(forms: tuple[str, str], axis: int) -> None:
    """Only some parts of a Concat have a zero point, or may be NaN: the others' numbers hold for these only."""
    parts = {"parts": CONSTANTS["parts"] if axis == -1 else np.array([5, 7])}
    body = f"p0, p1 = Split<axis = {axis}>(x, parts) " + part_of(forms[0], 0) + part_of(forms[1], 1)
    body += f"y0 = Concat<axis = {axis}>(y0_0, y0_1) " + PRODUCT
    check_rows(model_of(body, {**CONSTANTS, **parts}, inputs=INPUTS), data())


@pytest.mark.parametrize(
    "guard", ["e = Equal(s0, zero) s = Where(e, c255, s0)", "e = Greater(s0, zero) s = Where(e, s0, c255)"]
)
def test_a_scale_that_is_never_0_has_no_mark(guard: str) -> None:
    body = FORMS["quotient"].replace("s = Div(m, c127)", "s0 = Div(m, c127) " + guard)
    model = model_of(body + PRODUCT, CONSTANTS, inputs=INPUTS)
    check_rows(model, data())
    assert np.isnan(check_rows(model, with_nan())[2, :5]).all()
    assert not any(b"ReduceMin(r" in node.SerializeToString() for node in rewrite(model).to_proto().graph.node)


@pytest.mark.parametrize(
    "guard", ["g = Greater(m, half) r = Where(g, unit, m)", "g = Less(m, half) r = Where(g, m, unit)"]
)
def test_a_number_in_place_of_large_ranges(guard: str) -> None:
    """The codes are not clipped, and a range of 1 does not cover larger numbers."""
    body = RANGE + guard + " s = Div(r, c127) t = Div(x, s) n = Round(t) y0 = Mul(n, s) " + PRODUCT
    result = rewrite(model_of(body, {**CONSTANTS, "unit": F(1)}, inputs=INPUTS))
    assert not products(result.report)


def test_infinite_rows_beside_a_zero_point_are_nan() -> None:
    """Codes of an infinite scale are the zero point, so that their sums need not be 0."""
    x = data()
    x[0, 0, 3], x[0, 1, 4], x[0, 2, :2] = np.inf, -np.inf, (-3e38, 3e38)
    model = model_of(FORMS["signed zero point"] + PRODUCT, CONSTANTS, inputs=INPUTS)
    (expected,) = stock_session(model).run(None, {"x": x})
    (actual,) = make_session(rewrite(model).to_proto(), "native").run(None, {"x": x})
    assert np.isnan(expected[0, :3]).all()
    assert (np.isnan(actual) == np.isnan(expected)).all()


SPLIT = "{0}_ = Reshape({0}0, heads) {0} = Reshape({0}_, joined) "
RESHAPED = {
    "range": "h = Reshape(x, flat) a = Abs(h) m = ReduceMax<keepdims = 1>(a, one) r = Clip(m, eps) s = Div(r, c127)"
    " t = Div(h, s) n = Round(t) q = Mul(n, s) shape = Shape(x) y0 = Reshape(q, shape) ",
    "split and joined": RANGE
    + "r = Clip(m, eps) s = Div(r, c127) t0 = Div(x, s) "
    + SPLIT.format("t")
    + "n0 = Round(t) "
    + SPLIT.format("n")
    + "y0 = Mul(n, s) ",
    "range of x that is split and joined": "x_ = Reshape(x, heads) v = Reshape(x_, joined) "
    + RANGE.replace("(x)", "(v)")
    + "r = Clip(m, eps) s = Div(r, c127) t = Div(x, s) n = Round(t) y0 = Mul(n, s) ",
    "parts are rounded": RANGE
    + "r = Clip(m, eps) s = Div(r, c127) t0 = Div(x, s) t = Reshape(t0, heads) n0 = Round(t) n = Reshape(n0, joined)"
    " y0 = Mul(n, s) ",
}


@pytest.mark.parametrize("form", RESHAPED)
def test_a_bounded_range_behind_a_reshape(form: str) -> None:
    """Codes are not clipped, and the Clip of the range makes it finite: the row of an infinite x is not finite."""
    body = RESHAPED[form] + PRODUCT
    model, x = model_of(body, CONSTANTS, inputs=INPUTS), data()
    x[0, 0, 3], x[0, 1, 4] = np.inf, -np.inf
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"] * (form != "parts are rounded")  # marks are of whole rows
    (expected,) = stock_session(model).run(None, {"x": x})
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        (actual,) = session.run(None, {"x": x})
        finite = np.isfinite(expected)
        assert not finite[0, :2].any()
        assert (np.isfinite(actual) == finite).all()
        assert np.allclose(actual[finite], expected[finite], rtol=1e-4, atol=1e-5)


BOUNDED = {
    "inverse without an epsilon": "i = Div(c127, m) t = Mul(x, i) n = Round(t) c = Clip(n, low, high) y0 = Mul(c, s) ",
    "quotient without an epsilon": "d = Div(x, m) t = Mul(d, c127) n = Round(t) c = Clip(n, low, high) y0 = Mul(c, s) ",
    "estimator": "t = Div(x, s) n = Round(t) c = Clip(n, low, high) q = Mul(c, s) d = Sub(q, x) y0 = Add(d, x) ",
}


@pytest.mark.parametrize(
    ("form", "axes"), [*((form, "one") for form in BOUNDED), *((form, "tensor") for form in list(BOUNDED)[:2])]
)
def test_an_infinity_beside_a_bounded_scale(form: str, axes: str) -> None:
    """The scale of an infinite row is the largest float, but infinity * 0 and infinity - infinity are NaN."""
    shared = SHARED.replace("{axes}", axes).replace("s = Div(m, c127)", "s0 = Div(m, c127) s = Clip(s0, eps)")
    model = model_of(shared + BOUNDED[form] + PRODUCT, CONSTANTS | {"tensor": np.array([0, 1, 2])}, inputs=INPUTS)
    x = np.random.default_rng(5).normal(0, 1, (3, 4, K)).astype(F)
    x[0, 0, 3], x[2, 1, 4] = np.inf, -np.inf
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    assert np.isnan(check_rows(model, x)).any(-1).sum() == 2


def test_a_range_that_is_infinite() -> None:
    """Codes of finite numbers are the zero point, and infinity times 0 is NaN: the sum of codes need not be 0."""
    body = ENDS + "h = Max(mx, zero) l = Min(mn, zero) e = Sub(h, l) r = Add(e, eps) s = Div(r, c255) f = Div(l, s)"
    body += " g = Round(f) z0 = Sub(low, g) z = Clip(z0, low, high) t = Div(x, s) u0 = Add(t, z) u = Round(u0)"
    body += " c = Clip(u, low, high) v = Sub(c, z) y0 = Mul(v, s) " + PRODUCT
    model = model_of(body, CONSTANTS, inputs=INPUTS)
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    x = np.random.default_rng(5).normal(0, 1, (3, 4, K)).astype(F)
    x[0, 0, 1], x[0, 1, 3], x[0, 2, :3] = -np.inf, np.inf, (3e38, 2e38, -3e38)
    assert np.isnan(check_rows(model, x)).all(-1).sum() == 3
