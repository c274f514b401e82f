"""Straight-through estimators, x + (y - x): where they are y bit for bit, and where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_models import data, model_of
from rewriting import F, check_products, products

from ort_dynq.rewriter import rewrite

HALVES = (np.arange(-600, 601) / 2).astype(F)
NEAR = [HALVES]
for _ in range(8):
    NEAR = [*NEAR, np.nextafter(NEAR[-1], F(np.inf)), np.nextafter(NEAR[0], F(-np.inf))]
POWERS = np.ldexp(F(1), np.arange(-149, 25)).astype(F)
SMALL = np.arange(np.array(2**-2, F).view(np.uint32), np.array(2, F).view(np.uint32), 13, dtype=np.uint32).view(F)
X = np.concatenate([*NEAR, POWERS, -POWERS, POWERS * F(0.7), SMALL, -SMALL, [F(0), F(-0.0)]])
"""Every 13th float of magnitude 1/4 to 2, floats around integers and halves up to 300, and powers of 2 up to 2**24."""
ROUNDINGS = {
    "Round": np.rint,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Ceil(x - 0.5)": lambda x: np.ceil(x - F(0.5)),
    "Floor(x + 0.5)": lambda x: np.floor(x + F(0.5)),
    "Clip(Round)": lambda x: np.clip(np.rint(x), F(-128), F(127)),
    "Clip(Floor)": lambda x: np.clip(np.floor(x), F(0), F(255)),
    "Clip(Ceil)": lambda x: np.clip(np.ceil(x), F(-7), F(0)),
}
ROUNDINGS |= {
    "Round(Clip)": lambda x: np.rint(np.clip(x, F(-127.5), F(126.9))),
    "Round(Clip to 0)": lambda x: np.rint(np.clip(x, F(0), F(254.9))),
    "Sign(x) * Floor(Abs(x) + 0.5)": lambda x: np.sign(x) * np.floor(np.abs(x) + F(0.5)),
}


@pytest.mark.parametrize("name", ROUNDINGS)
def test_the_sum_is_the_rounded_value(name: str) -> None:
    y = ROUNDINGS[name](X)
    assert y.dtype == F
    np.testing.assert_array_equal(X + (y - X), y)


@pytest.mark.parametrize("z", [-383, -128, -1, 0, 3, 127, 255])
def test_the_sum_is_the_rounded_value_plus_an_integer(z: int) -> None:
    v, most = X[np.abs(X) <= 2**20], F(127)
    x = v + F(z)
    for y in (np.rint(v) + F(z), np.clip(np.floor(v) + F(z), -most, most)):
        np.testing.assert_array_equal(x + (y - x), y)


def test_the_sum_is_the_rounded_value_of_float16() -> None:
    x = X[np.abs(X) <= 2**10]
    y = np.rint(x.astype(np.float16).astype(F))
    for each in (y, np.clip(y, F(-128), F(127))):
        np.testing.assert_array_equal(x + (each - x), each)


MASKED = (  # a scale with zeros that become 1, and a mask that is reshaped as it is
    "ms = Div(m, c127) l = Squeeze(ms, one) k = Squeeze({}, one) z = Equal(k, none) zu = Unsqueeze(z, one)"
    " lu = Unsqueeze(l, one) t = Where(zu, unit, lu) p = Div(x, t) e = Round(p) c = Clip(e, low, high)"
    " f = Mul(c, t) d = Sub(f, x) v = Add(x, d)"
)


@pytest.mark.parametrize(
    "nodes",
    [
        "d = Sub(r, q) t = Add(d, q) v = Mul(t, s)",
        "d = Sub(r, q) t = Add(q, d) c = Clip(t, low, high) v = Mul(c, s)",
        "c = Clip(r, low, high) d = Sub(c, q) t = Add(q, d) v = Mul(t, s)",
        "c = Clip(r, low, high) f = Mul(c, s) d = Sub(f, x) v = Add(x, d)",
        "c = Clip(r, low, high) f = Mul(c, s) d = Sub(f, x) i = Identity(x) v = Add(d, i)",
        "c = Clip(r, low, high) f = Mul(c, s) d = Sub(f, x) e = Mul(d, unit) v = Add(x, e)",
        "i = Div(c127, b) p = Mul(x, i) e = Round(p) c = Clip(e, low, high) f = Div(c, i) d = Sub(f, x) v = Add(x, d)",
        "h = Exp(x) p = Div(h, s) e = Round(p) c = Clip(e, low, high) f = Mul(c, s) d = Sub(f, x) v = Add(x, d)",
        "c = Clip(r, low, high) f0 = Mul(c, s) f = Add(f0, s) d = Sub(f, x) v = Add(x, d)",
        MASKED.format("ms"),
        "k = Clip(q, low, high) e = Round(k) d = Sub(e, k) t = Add(d, k) v = Mul(t, s)",
        "o = Sign(q) a1 = Abs(q) a2 = Add(a1, half) a3 = Floor(a2) e = Mul(o, a3) c = Clip(e, low, high)"
        " d = Sub(c, q) t = Add(d, q) v = Mul(t, s)",
        "i = Div(c127, m) p = Mul(x, i) e = Round(p) c = Clip(e, low, high) d = Sub(c, p) t = Add(p, d) v = Mul(t, s)",
    ],
)
def test_products(nodes: str) -> None:
    model = model_of(nodes)
    assert "QuantizedMatMul" in products(check_products(model, data()))


@pytest.mark.parametrize(
    "nodes",
    [
        "d = Sub(r, x) t = Add(d, q) v = Mul(t, s)",
        "d = Sub(q, r) t = Add(d, q) v = Mul(t, s)",
        "d = Sub(r, q) t = Sub(d, q) v = Mul(t, s)",
        "c = Clip(r, low, high) f = Mul(c, s) d = Sub(f, other) v = Add(other, d)",
        "c = Clip(r, low, high) f = Mul(c, s) d = Sub(f, x) v = Add(other, d)",
        "c = Clip(r, low, high) f = Mul(c, s) d = Sub(x, f) v = Add(x, d)",
        "c = Clip(r, low, high) f0 = Mul(c, s) f = Gather<axis = 0>(f0, first) d = Sub(f, x) v = Add(x, d)",
        "p = Div(other, s) e = Round(p) c = Clip(e, low, high) f = Mul(c, s) d = Sub(f, other) v = Add(other, d)",
        "p = Div(other, s) e = Round(p) c = Clip(e, low, high) d = Sub(c, p) t = Add(p, d) v = Mul(t, s)",
        "u = Add(x, other) m1 = Abs(u) m2 = ReduceMax(m1, one) m3 = Max(m2, eps) t = Div(m3, c127) p = Div(u, t)"
        " e = Round(p) c = Clip(e, low, high) f = Mul(c, t) d = Sub(f, x) v = Add(x, d)",
        "c = Clip(r, low, high) t = Mul(s, eps) f = Mul(c, t) d = Sub(f, x) v = Add(x, d)",
        "h = Sub(half, q) e = Ceil(h) c = Clip(e, low, high) d = Sub(c, q) t = Add(q, d) v = Mul(t, s)",
        "c = Clip(r, low, high) f0 = Mul(c, s) f = Mul(f0, eps) d = Sub(f, x) v = Add(x, d)",
        "o1 = Abs(other) o2 = ReduceMax(o1, one) " + MASKED.format("o2"),
    ],
)
def test_near_misses(nodes: str) -> None:
    assert "QuantizedMatMul" not in products(rewrite(model_of(nodes)).report)
