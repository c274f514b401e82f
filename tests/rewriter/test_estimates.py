"""x + (y - x), where x is not larger than the range of y, and where it may be."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_models import WEIGHTS, data, model_of
from onnx import numpy_helper
from rewriting import F, check_products, parse, products

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("is_of_rows", [True, False])
def test_maximum_that_is_a_pool(is_of_rows: bool) -> None:
    """tf2onnx writes the maximum of rows as GlobalMaxPool. That of the columns of a square matrix bounds no row."""
    a = "a = Abs(x)" if is_of_rows else "a0 = Abs(x) a = Transpose<perm = [0, 2, 1]>(a0)"
    body = f"""{a} m = GlobalMaxPool(a) b = Max(m, eps) s = Div(b, c127) q = Div(x, s) r = Round(q)
        c = Clip(r, low, high) f = Mul(c, s) d = Sub(f, x) v = Add(x, d) y = MatMul(v, w)"""
    model = parse(body, inputs="float[1, 64, 64] x")
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w"))
    assert ("QuantizedMatMul" in products(rewrite(model).report)) == is_of_rows
    check_products(model, {"x": np.tile(data()["x"][:8], (8, 1))[None] * np.geomspace(1, 99, 64, dtype=F)[:, None]})


ASYMMETRIC = """l = ReduceMin(x, one) h = ReduceMax(x, one) g = Sub(h, l) s0 = Div(g, c255) t = Max(s0, eps)
    o = Neg(l) p = Div(o, t) z = Round(p) e = Div(x, t) n = Round(e) i = Add(n, z) c = Clip(i, none, c255) k = Sub(c, z)
    f = Mul(k, t) d = Sub(f, x) v = Add(x, d)"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("o = Neg(l) p = Div(o, t) z = Round(p)", "p = Div(l, t) o = Round(p) z = Sub(low, o)"),
        (
            "i = Add(n, z) c = Clip(i, none, c255)",
            "j = Div(other, t) u = Round(j) i = Add(u, z) c = Clip(i, none, c255)",
        ),
    ],
)
def test_range_that_does_not_reach_0(old: str, new: str) -> None:
    """y lies between the minimum and the maximum of x, however far these are from 0."""
    assert old in ASYMMETRIC
    nodes = ASYMMETRIC.replace(old, new)
    model = model_of(nodes.replace("Clip(i, none, c255)", "Clip(i, low, high)") if "low" in new else nodes)
    assert "QuantizedMatMul" in products(rewrite(model).report)
    given = {name: each + np.linspace(-99, 999, 9, dtype=F)[:, None] for name, each in data().items()}
    check_products(model, given)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("z = Round(p)", "z0 = Round(p) z = Clip(z0, none, c255)"),
        ("o = Neg(l)", "o = Abs(l)"),
        ("o = Neg(l)", "o = Identity(l)"),
        ("o = Neg(l)", "o = Neg(h)"),
        ("l = ReduceMin(x, one)", "l = ReduceMin(other, one)"),
        ("p = Div(o, t)", "p = Div(o, c127)"),
        ("z = Round(p)", "z0 = Round(p) z = Add(z0, c127)"),
        ("t = Max(s0, eps)", "t = Mul(s0, eps)"),
        ("d = Sub(f, x) v = Add(x, d)", "d = Sub(f, other) v = Add(other, d)"),
    ],
)
def test_near_misses_of_a_range(old: str, new: str) -> None:
    assert old in ASYMMETRIC
    assert "QuantizedMatMul" not in products(rewrite(model_of(ASYMMETRIC.replace(old, new))).report)
