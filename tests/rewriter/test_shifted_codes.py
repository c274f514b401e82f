"""FakeQuantize of NNCF and OpenVINO: x is clamped to [low, low + range], numbers of run time, before it is rounded."""

from __future__ import annotations

import numpy as np
import pytest
from product_models import model_of
from published_forms import CONSTANTS, FAKE_CODES, FORMS, INPUTS, PRODUCT
from rewriting import F, products

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("c = Max(c0, l)", "c1 = Max(c0, l) c = Max(c1, other)"),
        ("c = Max(c0, l)", "c1 = Max(c0, l) c = Min(c1, other)"),
        ("c0 = Min(x, e)", "c0 = Min(x, other)"),
        ("e = Add(l, d)", "e = Add(l, other)"),
        ("l = Min(l0, zero)", "l = Identity(l0)"),
        ("u = Sub(c, l)", "u = Sub(c, other)"),
        ("d = Max(d0, eps)", "d = Max(other, eps)"),
    ],
)
def test_near_misses(old: str, new: str) -> None:
    """Other bounds, and a range that does not reach 0: its low end may be much larger than the range."""
    for codes in FAKE_CODES:
        body = FORMS[f"FakeQuantize of NNCF: Min, Max, {codes}"]
        assert old in body
        model = model_of(body.replace(old, new) + PRODUCT, CONSTANTS, inputs=f"{INPUTS}, float[B, M, 1] other")
        report = rewrite(model).report
        assert not products(report)
        assert "MatMul" in [each.op_type for each in report.unconverted]


def test_the_bounds_hold_for_all_rows() -> None:
    """The rounded sums and differences of NumPy's float32 are those of the model."""
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e30):
        x = (rng.normal(0, 1, (2000, 16)) * scale * 10.0 ** rng.integers(-8, 8, (2000, 1))).astype(F)
        low, high = np.minimum(x.min(1, keepdims=True), F(0)), np.maximum(x.max(1, keepdims=True), F(0))
        width = np.maximum(high - low, F(1e-5))
        inverse = F(255) / width
        g = (np.maximum(np.minimum(x, low + width), low) - low) * inverse
        zero_point = np.rint(-low * inverse)
        assert np.rint(g).min() >= 0
        assert np.rint(g).max() <= 255
        codes = np.rint(g - zero_point) + zero_point
        assert codes.min() >= 0
        assert codes.max() <= 255
