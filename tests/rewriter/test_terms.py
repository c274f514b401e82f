"""Numbers of the parts of a Concat: zero points of only some of them, and of different types."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import diagonals
from product_models import F, model_of
from published_forms import CONSTANTS, ENDS, INPUTS, PRODUCT, K
from rewriting import products
from unbounded_models import check_rows, part_of

from ort_dynq import verify
from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(("order", "axis"), diagonals(1, [(0, 1), (1, 0)], [-1, 1]))
def test_only_a_part_has_a_zero_point(order: tuple[int, int], axis: int) -> None:
    """The zero points of the other part are 0. All codes have epsilons."""
    parts = np.array([K // 4, K - K // 4]) if axis == -1 else np.array([5, 7])
    symmetric = "a = Abs(p0) m = ReduceMax<keepdims = 1>(a, one) r0 = Max(m, eps) s0 = Div(r0, c127) t0 = Div(p0, s0)"
    symmetric += " n0 = Round(t0) c0 = Clip(n0, low, high) q0 = Mul(c0, s0) "
    ends = ENDS.replace("x, one", "p1, one")
    other = "h = Max(mx, zero) l = Min(mn, zero) d = Sub(h, l) r1 = Max(d, eps) s1 = Div(r1, c255) f = Div(l, s1)"
    other += " g = Round(f) i = Sub(low, g)"
    other += " z = Clip(i, low, high) t1 = Div(p1, s1) n1 = Round(t1) u = Add(n1, z) c1 = Clip(u, low, high)"
    other += " v = Sub(c1, z) q1 = Mul(v, s1) "
    both = "y0 = Concat<axis = {}>(q{}, q{}) ".format(axis, *order)
    body = f"p0, p1 = Split<axis = {axis}>(x, parts) " + symmetric + ends + other + both + PRODUCT
    model = model_of(body, {**CONSTANTS, "parts": parts}, inputs=f"float[B, 12, {K}] x")
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    assert "MatMul" not in [node.op_type for node in result.to_proto().graph.node]  # the zero point is a code
    x = np.random.default_rng(6).normal(0.3, 1, (3, 12, K)).astype(F)
    assert verify(model, result.to_proto(), inputs={"x": x}).passed
    assert np.isfinite(check_rows(model, x)).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_parts_with_zero_points_of_different_types(order: tuple[int, int]) -> None:
    body = "p0, p1 = Split<axis = -1>(x, parts) " + part_of("zero point, zero in the range", 0)
    body = body.replace("s_0 = Div(r_0, c255)", "e = Max(r_0, eps) s_0 = Div(e, c255)")
    body += " q, sq, zq = DynamicQuantizeLinear(p1) y0_1 = DequantizeLinear(q, sq, zq) "
    body += "y0 = Concat<axis = -1>(y0_{}, y0_{}) ".format(*order) + PRODUCT
    model = model_of(body, CONSTANTS, inputs=INPUTS)
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    x = np.random.default_rng(6).normal(0.3, 1, (3, 12, K)).astype(F)
    assert np.isfinite(check_rows(model, x)).all()
