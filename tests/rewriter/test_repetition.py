"""Numbers that are repeated along the last dimension, by blocks and by computed shapes."""

from __future__ import annotations

import numpy as np
import pytest
from product_models import K, model_of
from repeated_models import FINITE, USED, WEIGHTS
from rewriting import check, check_products, products, rows

from ort_dynq.rewriter import rewrite

BLOCKED = {"x": rows((2, 9, 64), seed=5)}
BLOCKS = (
    "x4 = Reshape(x, cut)\n a = Abs(x4)\n m = ReduceMax<keepdims = 1>(a, one)\n s1 = Div(m, c127)\n"
    "mask = Equal(m, zero)\n s2 = Where(mask, unit, s1)\n"
)


@pytest.mark.parametrize("zero", [False, True])
def test_scale_of_blocks_that_is_repeated(zero: bool) -> None:
    """Rows are cut into blocks where the scale is used, and joined again."""
    scale = BLOCKS + "t = Tile(s2, times_blocks)\n s = Reshape(t, joined)\n"
    code = "c0 = Add(r, unit)\n c1 = Clip(c0, low, high)\n c = Sub(c1, unit)" if zero else "c = Clip(r, low, high)"
    body = scale + USED.replace("c = Clip(r, low, high)", code).replace("w)", "wide_w)")
    model = model_of(body, WEIGHTS, inputs="float[B, M, 64] x")
    check(model, BLOCKED, exact=True)
    check_products(model, {"x": BLOCKED["x"][:, [0, 1, 2, 3, 4, 6, 7]]})
    assert products(rewrite(model).report) == ["QuantizedMatMul"]


EXPANDED = (
    "a = Abs(x)\n m = ReduceMax<keepdims = 0>(a)\n o = ConstantOfShape<value = int64[1] {1}>(ones)\n n = Neg(o)\n"
    "e = Equal(given, n)\n t = Where(e, o, given)\n wide = Expand(m, t)\n m0 = Max(wide, eps)\n s0 = Div(m0, c127)\n"
    "s = Reshape(s0, vector)\n"
)


@pytest.mark.parametrize("is_input", [False, True])
def test_shape_that_is_computed_from_constants(is_input: bool) -> None:
    """torch computes the shape of an Expand so. A shape that is an input may have any length."""
    body = (EXPANDED if is_input else EXPANDED.replace("given", "ones")) + USED
    model = model_of(body, WEIGHTS, inputs=f"float[B, M, {K}] x{', int64[1] given' * is_input}")
    data = {**FINITE, **({"given": np.array([K])} if is_input else {})}
    check(model, data)
    check_products(model, data)
    assert len(products(rewrite(model).report)) == (not is_input)
