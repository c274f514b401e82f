"""Codes of x - min divided by the range without an epsilon, and a float offset: scale * codes + min."""

from __future__ import annotations

import pytest
from product_models import model_of
from published_forms import CONSTANTS, FORMS, INPUTS, PRODUCT
from rewriting import check, products
from unbounded_models import data

NEAR_MISSES = {
    "half of the range": ("v = Div(u, r)", "r2 = Mul(r, half)\n v = Div(u, r2)"),
    "another minimum": ("u = Sub(x, mn)", "mn2 = Mul(mn, half)\n u = Sub(x, mn2)"),
    "another range": (
        "mx = ReduceMax<keepdims = 1>(x, one)",
        "x2 = Mul(x, half)\n mx = ReduceMax<keepdims = 1>(x2, one)",
    ),
    "the sum of both ends": ("r = Sub(mx, mn)", "r = Add(mx, mn)"),
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_near_misses(miss: str) -> None:
    """Codes that may be larger than 255 stay floats."""
    body, (old, new) = FORMS["codes from the minimum"], NEAR_MISSES[miss]
    assert old in body
    model = model_of(body.replace(old, new) + PRODUCT, CONSTANTS, inputs=INPUTS)
    report = check(model, {"x": data()}, exact=False)
    assert not products(report)
    assert [each.op_type for each in report.unconverted] == ["MatMul"]
