"""Codes of 8 bits in wider integers: which are proven to fit, and rows without codes."""

from __future__ import annotations

import numpy as np
import pytest
from product_models import DATA, WEIGHTS, F, K, codes_of, model_of, scales_of, symmetric
from rewriting import products

import ort_dynq
from ort_dynq.rewriter import rewrite


def test_integers_that_may_not_fit_8_bits_stay() -> None:
    """A row of zeros gives NaN, which a Cast to int32 makes a number beyond all bounds; 128 with -128 is no 8 bits."""
    arrays = {"w": codes_of().astype(np.int32), "ws": scales_of(), "more": F(128)}
    tail = "i = Cast<to = 6>(c)\n p = MatMul(i, w)\n f = Cast<to = 1>(p)\n y = Mul(f, ws)"
    half = (
        symmetric().replace("Clip(r, low, high)", "Identity(r)").replace("Round(t)", "Cast<to = 10>(t)")
    )  # no integer
    for chain in (symmetric(epsilon=False), symmetric().replace("c127", "c255").replace("high", "more"), half):
        assert "QuantizedMatMul" not in products(rewrite(model_of(chain + tail, arrays)).report)


WITHOUT_EPSILON = """a = Abs(x) m = ReduceMax(a, last) s = Div(m, c127) {} r = Round(d)
    c = Clip(r, low, high) i = Cast<to = 6>(c) f = Cast<to = 1>(i) dx = Mul(f, {}) y = MatMul(dx, w)"""


@pytest.mark.parametrize(
    ("quotient", "scale", "fits"),
    [
        ("d = Div(x, s)", "s", True),
        ("e = Div(x, m) d = Mul(e, c127)", "s", True),
        ("d = Div(x, s) t = Max(s, eps)", "t", False),
        ("e = Div(x, m) d = Mul(e, c127) t = Reciprocal(m)", "t", False),
    ],
)
def test_rows_of_zeros_with_codes_that_are_cast_to_int32(quotient: str, scale: str, fits: bool) -> None:
    """0 / 0 is NaN, and as int32 any number: 0 times it is 0, another scale times it is not."""
    model = model_of(WITHOUT_EPSILON.format(quotient, scale), WEIGHTS["folded"][1], inputs=f"float[2, 6, {K}] x")
    report = rewrite(model).report
    assert ("QuantizedMatMul" in products(report)) == fits
    if fits:
        x = np.nan_to_num(DATA["x"][:, :6], posinf=1, neginf=-1)
        x[:, 2] = 0
        assert ort_dynq.verify(model, rewrite(model).model, inputs={"x": x}).passed
    else:
        assert any("a row of zeros has NaN instead of codes" in each.reason for each in report.unconverted)
