"""Arithmetic of integer codes: 8-bit results are codes themselves, which wrap around. Integer divisions round."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Array
from product_models import K, codes_of, model_of, symmetric
from rewriting import check, check_products, products, rows

from ort_dynq.rewriter import rewrite

CODES = symmetric() + "q = Cast<to = 3>(c)\n "
SUMS = "f = Cast<to = 1>(p)\n sums = MatMul(f, w)\n y = Mul(sums, s)"
WEIGHTS: dict[str, Array] = {
    "w": codes_of().astype(np.float32),
    "outliers": np.arange(K) % 5 != 0,
    "threes": np.full(K, 3, np.int8),
    "three": np.array(3, np.int8),
    "large": np.array(2**28 + 1, np.int32),
    "two": np.array(2, np.int32),
    "half": np.array(0.5, np.float32),
    "true": np.array(True),
    "false": np.array(False),
}
FORMS = {
    "mask of columns": "mask = Cast<to = 3>(outliers)\n p = Mul(q, mask)",
    "columns wrap around": "p = Mul(q, threes)",
    "all wrap around": "p = Mul(q, three)",
    "differences wrap around": "u = Cast<to = 2>(c)\n v = Cast<to = 2>(three)\n p = Sub(u, v)",
    "int32 wraps around": "i = Cast<to = 6>(q)\n p = Mul(i, large)",
    "a division rounds": "i = Cast<to = 6>(q)\n p = Div(i, two)",
}


@pytest.mark.parametrize("form", FORMS)
def test_arithmetic(form: str) -> None:
    """LLM.int8 sets the codes of columns with outliers to 0 by a product with a mask."""
    model, x = model_of(CODES + FORMS[form] + "\n " + SUMS, WEIGHTS), rows((3, 9, K), seed=4)
    check(model, {"x": x})
    check_products(model, {"x": x})
    assert len(products(rewrite(model).report)) == (form != "int32 wraps around")


@pytest.mark.parametrize("training", ["", ", half", ", half, false", ", half, true"])
def test_dropout(training: str) -> None:
    """A Dropout that trains multiplies the codes that it keeps."""
    sums = f"d = Dropout<seed = 3>(c{training})\n sums = MatMul(d, w)\n y = Mul(sums, s)"
    model = model_of(symmetric() + sums, WEIGHTS)
    check(model, {"x": rows((3, 9, K), seed=4)})
    assert len(products(rewrite(model).report)) == (not training.endswith("true"))
