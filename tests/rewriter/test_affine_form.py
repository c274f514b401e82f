"""Codes of x - min divided by the range without an epsilon, and a float offset: scale * codes + min."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import make_session, stock_session
from offset_models import WEIGHTS, data
from product_models import F, model_of
from rewriting import check, check_products, products

from ort_dynq.rewriter import rewrite

MIN = float(np.finfo(F).tiny)
ENDS = "mx = ReduceMax<keepdims = 1>(x, one)\n mn = ReduceMin<keepdims = 1>(x, one)\n r = Sub(mx, mn)\n"
EXPANDED = ENDS.replace("r = Sub(mx, mn)", "shape = Shape(x)\n wide = Expand(mx, shape)\n r = Sub(wide, mn)")
CODES = "u = Sub(x, mn)\n v = Div(u, r)\n t = Mul(v, c255)\n n = Round(t)\n"
FLOATS = "d = Div(n, c255)\n g = Mul(d, r)\n y0 = Add(g, mn)\n y = MatMul(y0, w)"
FORMS = {
    "offset": ENDS + CODES + FLOATS,
    "ranges that are expanded first": EXPANDED + CODES + FLOATS,
    "offset and Clip": ENDS + CODES.replace("n = Round(t)", "n0 = Round(t)\n n = Clip(n0, zero, c255)") + FLOATS,
}


@pytest.mark.parametrize("form", FORMS)
def test_float_offset(form: str) -> None:
    """The product is one of integers; rows that are not finite are those of the model."""
    model, x = model_of(FORMS[form], WEIGHTS), data()
    check(model, {"x": x}, exact=True)
    is_normal = np.isfinite(x).all(-1) & (np.ptp(np.nan_to_num(x), -1) > MIN)
    check_products(model, {"x": x[is_normal][None]})
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    (expected,) = stock_session(model).run(None, {"x": x})
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        (actual,) = session.run(None, {"x": x})
        assert (np.isfinite(actual) == np.isfinite(expected)).all()
        finite = np.isfinite(expected)
        assert 0 < (~finite).all(-1).sum() < x.shape[0] * x.shape[1]
        assert np.isnan(actual[~finite]).all()
        # The model divides by 255 and multiplies by the range; range / 255 is a few denormal steps.
        assert np.abs(actual - expected)[~is_normal & finite.all(-1)].max() < MIN


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
    body, (old, new) = FORMS["offset"], NEAR_MISSES[miss]
    assert old in body
    model = model_of(body.replace(old, new), WEIGHTS)
    report = check(model, {"x": data()}, exact=False)
    assert not products(report)
    assert [each.op_type for each in report.unconverted] == ["MatMul"]
