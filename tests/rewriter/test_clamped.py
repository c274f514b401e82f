"""Codes without a Clip that fit 8 bits since x was clamped to a range that is computed at run time."""

from __future__ import annotations

import numpy as np
import pytest
from product_models import model_of
from published_forms import CLAMP, CLAMPED, CONSTANTS, FORMS, INPUTS, PRODUCT, ROWS
from rewriting import check, products
from unbounded_models import check_rows, data

from ort_dynq.rewriter import rewrite

CODES = CLAMPED + PRODUCT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("u = Min(x, r)", "u = Identity(x)"),
        ("u = Min(x, r)", "u = Min(x, r0)"),
        ("o = Neg(r)", "o = Neg(r0)"),
        ("v = Max(u, o)", "v0 = Max(u, o)  v = Add(v0, r)"),
        ("s = Div(r, c127)", "s = Div(r, c255)"),
        ("r = Clip(r0, eps)", "r = Sub(r0, eps)"),  # may be negative
    ],
)
def test_near_misses(old: str, new: str) -> None:
    form = FORMS["clamped to three deviations"]
    assert old in form
    model = model_of(form.replace(old, new) + PRODUCT, CONSTANTS, inputs=INPUTS)
    report = check(model, {"x": data()}, exact=False)
    assert not products(report)
    assert [each.op_type for each in report.unconverted] == ["MatMul"]


def test_a_range_of_columns_that_divides_rows() -> None:
    """The range clamps the columns of a square matrix. Unsqueezed, it divides the rows."""
    square = {**CONSTANTS, "w": CONSTANTS["w"][:16], "first": np.array([0])}
    body = """q = Mul(x, x)  p = ReduceMean<keepdims = 0>(q, first)  r0 = Sqrt(p)  r = Clip(r0, eps)  o = Neg(r)
        u = Min(x, r)  v = Max(u, o)  z = Unsqueeze(r, one)  s = Div(z, c127)  t = Div(v, s)  n = Round(t)
        y0 = Mul(n, s)  y = MatMul(y0, w)"""
    x = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32) * np.geomspace(1, 1e4, 16, dtype=np.float32)
    report = check(model_of(body, square, inputs="float[16, 16] x"), {"x": x}, exact=False)
    assert not products(report)


MAXIMUM = "a = Abs(x)  m = ReduceMax<keepdims = 1>(a, one)  "
INFINITE = {
    "deviation": ROWS + CLAMP + CODES,
    "a part of the range": f"{MAXIMUM} e = Clip(m, eps)  r = Mul(e, part)\n" + CLAMP + CODES,
    "given": "b = Abs(r9)  r = Clip(b, eps)\n" + CLAMP + CODES,
    "clamped to the range before its Clip": "q = Abs(r9)  o = Neg(q)  u = Min(x, q)  v = Max(u, o)  r = Clip(q, eps)\n"
    + CODES,
    "not clamped": f"{MAXIMUM} b = Abs(r9)  e = Max(m, b)  r = Clip(e, eps)  v = Identity(x)\n" + CODES,
    "two Clips": f"{MAXIMUM} e = Clip(m, eps)  f = Reshape(e, shape)  r = Clip(f, eps)  v = Identity(x)\n" + CODES,
}


@pytest.mark.parametrize("form", INFINITE)
def test_a_range_that_only_its_clip_makes_finite(form: str) -> None:
    """A finite row, even one of infinite variance, has codes of 0; that of an infinite x need not be finite."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, 8, len(CONSTANTS["w"]))).astype(np.float32)
    x[0, 1] *= np.float32(1e20)
    x[0, 2], x[0, 3, 3], x[0, 4, :2] = 0, np.inf, (np.inf, -np.inf)
    ranges = np.array([[1], [np.inf], [np.nan], [1], [-2], [0], [1e30], [np.nan]], np.float32)[None]
    constants = {**CONSTANTS, "part": np.float32(0.01), "shape": np.array([0, 0, 1])}
    model = model_of(INFINITE[form], constants, inputs=f"float[B, M, {x.shape[-1]}] x, float[B, M, 1] r9")
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    assert np.isfinite(check_rows(model, x, r9=ranges))[0, 1].all()
