"""Codes that are clipped behind a factor, as formats of a shared exponent are."""

from __future__ import annotations

import numpy as np
import pytest
from group_models import DATA, SHAPES, WEIGHTS, F, K
from product_models import check_products, model_of
from rewriting import check, products, rows

from ort_dynq.rewriter.policy import cost

MX = """g = Reshape(x, split32) a = Abs(g) m = ReduceMax(a, last) o = Max(m, eps) l = Log(o) t = Div(l, ln2)
    e = Floor(t) p = Pow(two, e) v = Div(g, p) h = Mul(v, c64) i = Sign(h) k = Abs(h) n = Add(k, half) f = Floor(n)
    r = Mul(i, f) d = {}(r, factor) c = Clip(d, least, most) q = Mul(c, p) dx = Reshape(q, joined) """


@pytest.mark.parametrize(
    ("operator", "factor", "bounds", "expected"),
    [
        ("Div", 64, (-127 / 64, 127 / 64), True),
        ("Mul", 1 / 64, (-2, 127 / 64), True),
        ("Div", 100, (F(-127) / F(100), F(127) / F(100)), True),
        ("Div", 64, (-2, 127.5 / 64), False),
        ("Div", 100, (F(-127) / F(100), np.nextafter(F(127) / F(100), F(0))), False),
        ("Div", 64, (-2.5, 2.5), False),
        ("Div", -64, (-127 / 64, 127 / 64), False),
    ],
)
def test_codes_that_are_clipped_behind_a_factor(
    operator: str, factor: float, bounds: tuple[float, float], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MXINT8: a magnitude of almost twice its power of two is rounded to the code 128, which the bounds make 127."""
    monkeypatch.setattr(cost, "_MIN_PRODUCTS_OF_GROUPS", 0)
    monkeypatch.setattr(cost, "_MIN_PRODUCTS_OF_RESHAPED_GROUPS", 0)
    numbers = {"ln2": np.log(F(2)), "two": F(2), "c64": F(64), "half": F(0.5)}
    numbers |= {"factor": F(factor), "least": F(bounds[0]), "most": F(bounds[1])}
    body = MX.format(operator) + "y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["column"][1] | SHAPES | numbers, inputs=f"float[B, M, {K}] x")
    x = DATA["x"].copy()
    x[0, 0], x[0, 1, :32] = np.nextafter(F(2), F(0)), -np.nextafter(F(4), F(0))
    assert products(check_products(model, {"x": x}, groups=K // 32)) == ["QuantizedMatMul"] * expected
    activation = model_of(MX.format(operator), SHAPES | numbers, inputs=f"float[B, M, {K}] x", outputs="float[] dx")
    check(activation, {"x": x}, {"x": rows((3, 9, K), nan=True)})
