"""Forms in which published code quantizes an activation, as data: the nodes from x to y0, which a product reads.

test_published_forms.py runs all of them. The tests of modules take some of them, and change them.
"""

from __future__ import annotations

import numpy as np
from helpers import Array
from product_models import F

K, N = 64, 160
INPUTS = f"float[B, M, {K}] x"
CODES: Array = np.concatenate([np.full((1, N), 127), np.random.default_rng(1).integers(-127, 128, (K - 1, N))])
CONSTANTS: dict[str, Array] = {
    "w": CODES.astype(F) * F(0.01),
    "one": np.array([-1]),
    "whole": np.arange(3),
    "half": F(0.5),
    "three": F(3),
    "minus": F(-1),
    "tiny": F(1e-6),
    "heads": np.array([0, 0, -1, K // 2]),
    "joined": np.array([0, 0, K]),
    "flat": np.array([-1, K]),
    "parts": np.array([K // 4, K - K // 4]),
}
PRODUCT = "y = MatMul(y0, w)"
RANGE = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) "
ENDS = "mx = ReduceMax<keepdims = 1>(x, one) mn = ReduceMin<keepdims = 1>(x, one) "
ASYMMETRIC = (
    "r = Sub(mx, mn) s = Div(r, c255) f = Div(mn, s) g = Neg(f) n = Round(g) z = Clip(n, zero, c255) t = Div(x, s)"
    " n1 = Round(t) u = Add(n1, z) c = Clip(u, zero, c255) v = Sub(c, z) y0 = Mul(v, s) "
)

DEVIATION = """g = ReduceMean<keepdims = 1>(x, {axes})  h = Sub(x, g)  i = Mul(h, h)
    j = ReduceMean<keepdims = 1>(i, {axes})  k = Sqrt(j)  r0 = Mul(k, three)  r = Clip(r0, eps)\n"""
ROWS, WHOLE = DEVIATION.format(axes="one"), DEVIATION.format(axes="whole")
CLAMP = "o = Neg(r)  u = Min(x, r)  v = Max(u, o)\n"
CLAMPED = "s = Div(r, c127)  t = Div(v, s)  n = Round(t)  y0 = Mul(n, s)  "

WIDTH = """mx = ReduceMax<keepdims = 1>(x, one)\n mn = ReduceMin<keepdims = 1>(x, one)\n r = Sub(mx, mn)\n"""
EXPANDED = WIDTH.replace("r = Sub(mx, mn)", "shape = Shape(x)\n wide = Expand(mx, shape)\n r = Sub(wide, mn)")
FROM_MIN = "u = Sub(x, mn)\n v = Div(u, r)\n t = Mul(v, c255)\n n = Round(t)\n"
PLUS_MIN = "d = Div(n, c255)\n g = Mul(d, r)\n y0 = Add(g, mn)\n"

FAKE_RANGE = """l0 = ReduceMin<keepdims = 1>(x, one) h0 = ReduceMax<keepdims = 1>(x, one) l = Min(l0, zero)
    h = Max(h0, zero) d0 = Sub(h, l) d = Max(d0, eps) sc = Div(c255, d) """
FAKE_CLAMPS = {
    "Min, Max": "e = Add(l, d) c0 = Min(x, e) c = Max(c0, l) ",
    "Max, Min": "e = Add(d, l) c0 = Max(l, x) c = Min(e, c0) ",
}
FAKE_CODES = {
    "plain": "u = Sub(c, l) g = Mul(u, sc) q = Round(g) f = Div(q, sc) y0 = Add(f, l) ",
    "shifted": "u = Sub(c, l) g = Mul(u, sc) n = Neg(l) t = Mul(n, sc) z = Round(t) k = Sub(g, z) q = Round(k)"
    " y0 = Div(q, sc) ",
}

FORMS = {
    "quotient": RANGE + "s = Div(m, c127) t = Div(x, s) n = Round(t) c = Clip(n, low, high) y0 = Mul(c, s) ",
    "inverse": RANGE + "s = Div(c127, m) t = Mul(x, s) n = Round(t) c = Clip(n, low, high) y0 = Div(c, s) ",
    "inverse, two numbers": RANGE
    + "i = Div(c127, m) s = Div(m, c127) t = Mul(x, i) n = Round(t) c = Clip(n, low, high) y0 = Mul(c, s) ",
    "reciprocal, two numbers, no bounds": RANGE
    + "s = Div(m, c127) i = Reciprocal(s) t = Mul(x, i) c = Round(t) y0 = Mul(c, s) ",
    "reciprocal, guarded, no bounds": RANGE
    + "s = Div(m, c127) g = Greater(s, zero) j = Reciprocal(s) i = Where(g, j, zero) t = Mul(x, i) c = Round(t)"
    " y0 = Mul(c, s) ",
    "reciprocal, a number for zeros, no bounds": RANGE
    + "s = Div(m, c127) g = Greater(s, zero) j = Reciprocal(s) i = Where(g, j, c127) t = Mul(x, i) c = Round(t)"
    " y0 = Mul(c, s) ",
    "reciprocal, a number for zeros, scale of float16": RANGE
    + "s0 = Div(m, c127) g = Equal(s0, zero) j = Reciprocal(s0) i = Where(g, c127, j) t = Mul(x, i) c = Round(t)"
    " h = Cast<to = 10>(s0) s = Cast<to = 1>(h) y0 = Mul(c, s) ",
    "inverse of a scale that is not 0, no bounds": RANGE
    + "s = Div(m, c127) i = Div(c127, m) t = Div(x, s) c = Round(t) y0 = Div(c, i) ",
    "reciprocal of an infinite inverse, no bounds": RANGE
    + "s0 = Div(m, c127) i = Div(c127, m) s = Reciprocal(i) t = Div(x, s0) c = Round(t) y0 = Mul(c, s) ",
    "range as the divisor, no bounds": RANGE
    + "s = Div(m, c127) u = Mul(x, c127) t = Div(u, m) c = Round(t) y0 = Mul(c, s) ",
    "range after the codes": RANGE
    + "s = Div(m, c127) t = Div(x, s) n = Round(t) c = Clip(n, low, high) d = Div(c, c127) y0 = Mul(d, m) ",
    "magnitude and sign": RANGE
    + "s = Div(m, c127) t = Div(x, s) i = Sign(t) b = Abs(t) h = Add(b, half) n = Floor(h) j = Mul(i, n)"
    " c = Clip(j, low, high) y0 = Mul(c, s) ",
    "magnitude and sign, guarded": RANGE
    + "g = Greater(m, zero) s0 = Div(m, c127) s = Where(g, s0, c255) t = Div(a, s) h = Add(t, half) n = Floor(h)"
    " i = Sign(x) c = Mul(n, i) y0 = Mul(c, s) ",
    "estimator": RANGE
    + "s = Div(m, c127) t = Div(x, s) n = Round(t) d = Sub(n, t) e = Add(d, t) c = Clip(e, low, high) y0 = Mul(c, s) ",
    "estimator of clipped codes": RANGE
    + "s = Div(m, c127) t = Div(x, s) n = Round(t) k = Clip(n, low, high) d = Sub(k, t) c = Add(d, t) y0 = Mul(c, s) ",
    "estimator, zero point": ENDS
    + ASYMMETRIC.replace("n1 = Round(t) u = Add(n1, z)", "n0 = Round(t) d = Sub(n0, t) n1 = Add(t, d) u = Add(n1, z)"),
    "zero point": ENDS + ASYMMETRIC,
    "zero point, zero in the range": ENDS.replace("mx =", "m0 =").replace("mn =", "l0 =")
    + "mx = Max(m0, zero) mn = Min(l0, zero) "
    + ASYMMETRIC,
    "signed zero point": ENDS
    + ASYMMETRIC.replace("n = Round(g)", "n0 = Round(g) n = Add(n0, low)").replace("zero, c255", "low, high"),
    "NaN replaced": RANGE
    + "s = Div(m, c127) t = Div(x, s) n = Round(t) i = IsNaN(n) o = Where(i, zero, n) c = Clip(o, low, high)"
    " y0 = Mul(c, s) ",
    "groups": "h = Reshape(x, heads) a = Abs(h) m = ReduceMax<keepdims = 1>(a, one) s = Div(m, c127) t = Div(h, s)"
    " n = Round(t) c = Clip(n, low, high) q = Mul(c, s) y0 = Reshape(q, joined) ",
    "LLM-QAT: an epsilon is added twice": RANGE + "r = Add(m, tiny)  i = Reciprocal(r)  e = Mul(i, c127)  v = Mul(x, e)"
    "  n = Round(v)  t = Add(e, tiny)  y0 = Div(n, t)  ",
    "clamped to three deviations": ROWS + CLAMP + CLAMPED,
    "clamped to three deviations of all": WHOLE + CLAMP + CLAMPED,
    "clamped, Max first": ROWS + "o = Mul(r, minus)  u = Max(x, o)  v = Min(r, u)\n" + CLAMPED,
    "clamped by Clip": WHOLE.replace("keepdims = 1>(i", "keepdims = 0>(i")
    + "o = Neg(r)  v = Clip(x, o, r)\n"
    + CLAMPED,
    "clamped by Where": ROWS
    + "o = Neg(r)  a = Greater(x, r)  u = Where(a, r, x)  b = Less(u, o)  v = Where(b, o, u)\n"
    + CLAMPED,
    "clamped, inverse": ROWS + CLAMP + "s = Div(c127, r)  t = Mul(v, s)  n = Round(t)  y0 = Div(n, s)  ",
    "codes from the minimum": WIDTH + FROM_MIN + PLUS_MIN,
    "codes from the minimum, ranges that are expanded first": EXPANDED + FROM_MIN + PLUS_MIN,
    "codes from the minimum, Clip": WIDTH
    + FROM_MIN.replace("n = Round(t)", "n0 = Round(t)\n n = Clip(n0, zero, c255)")
    + PLUS_MIN,
}
FORMS |= {
    f"FakeQuantize of NNCF: {clamp}, {codes}": FAKE_RANGE + FAKE_CLAMPS[clamp] + FAKE_CODES[codes]
    for clamp in FAKE_CLAMPS
    for codes in FAKE_CODES
}
"""All become a RowProgram, and a QuantizedMatMul of its codes. Most have no epsilon."""
