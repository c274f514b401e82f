"""Codes of x * (127 / (range + epsilon)) that are divided by another number: LLM-QAT adds an epsilon to both."""

from __future__ import annotations

import numpy as np
import published_forms as forms
import pytest
import unbounded_models as marks
from product_models import model_of
from rewriting import check, check_products, products

from ort_dynq.rewriter import rewrite

FORM = forms.FORMS["LLM-QAT: an epsilon is added twice"] + forms.PRODUCT
HUGE = {**forms.CONSTANTS, "huge": np.float32(1e38)}


@pytest.mark.parametrize("epsilon", ["tiny", "huge"])
def test_rows_with_infinities_are_those_of_the_model(epsilon: str) -> None:
    """The scale of an infinite row is 1e6, so its codes alone would give a finite result.

    A huge epsilon makes the range of finite numbers infinite, too: their codes are 0.
    """
    model = model_of(FORM.replace("r = Add(m, tiny)", f"r = Add(m, {epsilon})"), HUGE, inputs=forms.INPUTS)
    x = marks.rows_of_all_kinds()
    x[0, :2] *= np.float32(1e37) / np.abs(x[0, :2]).max(-1, keepdims=True) * np.array([[[30], [9]]], np.float32)[0]
    check(model, {"x": x}, exact=True)
    check_products(model, {"x": x[np.isfinite(x).all(-1)][None]})
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    assert not np.isfinite(marks.check_rows(model, x)).all()


@pytest.mark.parametrize(
    ("old", "new"),
    [("a = Abs(x)", "h = Mul(x, half)  a = Abs(h)"), ("r = Add(m, tiny)", "r = Mul(m, half)")],
)
def test_near_misses(old: str, new: str) -> None:
    """Codes that may be larger than 127."""
    assert old in FORM
    report = check(
        model_of(FORM.replace(old, new), HUGE, inputs=forms.INPUTS), {"x": marks.rows_of_all_kinds()}, exact=False
    )
    assert not products(report)
    assert [each.op_type for each in report.unconverted] == ["MatMul"]


@pytest.mark.parametrize(("limit", "expected"), [(0.1, ["QuantizedMatMul"]), (5, [])])
def test_a_reciprocal_that_is_1_below_a_limit(limit: float, expected: list[str]) -> None:
    """Codes of rows with a scale of at most 5 are numbers of up to 635."""
    constants = forms.CONSTANTS | {"limit": np.float32(limit), "unit": np.float32(1)}
    body = forms.RANGE + "s = Div(m, c127) g = Greater(s, limit) j = Reciprocal(s) i = Where(g, j, unit) t = Mul(x, i)"
    model = model_of(f"{body} c = Round(t) y0 = Mul(c, s) {forms.PRODUCT}", constants, inputs=forms.INPUTS)
    assert products(rewrite(model).report) == expected
    marks.check_rows(model, np.random.default_rng(3).normal(0, 100, marks.data().shape).astype(np.float32))
