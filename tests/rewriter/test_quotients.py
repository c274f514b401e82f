"""The quotient that codes are rounded from, behind Reshapes and replaced NaN."""

from __future__ import annotations

import numpy as np
import pytest
from product_models import F, model_of
from published_forms import CONSTANTS, FORMS, INPUTS, PRODUCT, RANGE, K
from rewriting import products
from unbounded_models import check_rows, data

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(("turned", "expected"), [([1, K], []), ([K, 1], ["QuantizedMatMul"])])
def test_a_reciprocal_that_is_reshaped_to_other_rows(turned: list[int], expected: list[str]) -> None:
    """Numbers of rows that became numbers of columns say nothing of the codes, which exceed 8 bits."""
    body = (
        RANGE + "o = Max(m, eps) s = Div(o, c127) j = Reciprocal(s) i = Reshape(j, turned) t = Mul(x, i) c = Round(t)"
    )
    model = model_of(
        f"{body} y0 = Mul(c, s) {PRODUCT}", CONSTANTS | {"turned": np.array(turned)}, inputs=f"float[{K}, {K}] x"
    )
    assert products(rewrite(model).report) == expected
    x = np.random.default_rng(2).normal(0, 1, (K, K)).astype(F)
    check_rows(model, x * np.logspace(-3, 0, K, dtype=F)[:, None])


def test_a_constant_condition_brings_nan_back() -> None:
    body = FORMS["NaN replaced"].replace("o = Where(i, zero, n)", "e = Where(i, zero, n) o = Where(yes, n, e)")
    expected = check_rows(model_of(body + PRODUCT, {**CONSTANTS, "yes": np.array(True)}, inputs=INPUTS), data())
    assert np.isnan(expected).any()
