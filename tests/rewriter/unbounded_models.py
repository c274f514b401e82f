"""Quantizations of rows that may not be finite, and a check of which rows are."""

from __future__ import annotations

import re

import numpy as np
import onnx
from helpers import Array, make_session, stock_session
from product_models import F

from ort_dynq.rewriter import rewrite

K, N = 64, 160
INPUTS = f"float[B, M, {K}] x"
STEP = F(1e-45)
CODES: Array = np.concatenate([np.full((1, N), 127), np.random.default_rng(1).integers(-127, 128, (K - 1, N))])
CONSTANTS: dict[str, Array] = {
    "w": CODES.astype(F) * F(0.01),
    "one": np.array([-1]),
    "half": F(0.5),
    "heads": np.array([0, 0, -1, K // 2]),
    "joined": np.array([0, 0, K]),
    "flat": np.array([-1, K]),
    "parts": np.array([K // 4, K - K // 4]),
}
RANGE = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) "
ENDS = "mx = ReduceMax<keepdims = 1>(x, one) mn = ReduceMin<keepdims = 1>(x, one) "
ASYMMETRIC = (
    "r = Sub(mx, mn) s = Div(r, c255) f = Div(mn, s) g = Neg(f) n = Round(g) z = Clip(n, zero, c255) t = Div(x, s)"
    " n1 = Round(t) u = Add(n1, z) c = Clip(u, zero, c255) v = Sub(c, z) y0 = Mul(v, s) "
)
PRODUCT = "y = MatMul(y0, w)"
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
}


def data() -> Array:
    """Returns rows whose scale or inverse scale is 0 or infinite, with zeros and without, and ordinary rows."""
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (3, 12, K)).astype(F)
    signs = rng.choice(np.array([-1, 1], F), (6, K))
    x[1, 0] = 0
    x[1, 1] = signs[0] * rng.integers(1, 60, K).astype(F) * STEP
    x[1, 2] = x[1, 1] * (np.arange(K) > 3)
    x[1, 3], x[1, 4] = 3, -0.1
    x[1, 5] = np.abs(x[1, 1])
    x[1, 6] = -np.abs(x[1, 2])
    x[1, 7] = signs[1] * F(1e-38)
    x[1, 8] = x[1, 7] * (np.arange(K) > 3)
    x[1, 9] = signs[2] * 2
    x[1, 10] *= F(1e-37)
    x[1, 11, : K // 2] = 0
    return x


def with_nan() -> Array:
    """Returns rows with NaN at the places that ONNX Runtime's ReduceMax ignores or not, and ordinary rows."""
    x = data()
    x[1], x[2, 0, 0], x[2, 1, 20], x[2, 2, K - 1], x[2, 3], x[2, 4, 13:] = x[0], *[np.nan] * 5
    return x


def check_rows(model: onnx.ModelProto, x: Array, **others: Array) -> Array:
    """Checks which rows are finite and their numbers against ONNX Runtime's; returns these."""
    result, feeds = rewrite(model).to_proto(), {"x": x, **others}
    (expected,) = stock_session(model).run(None, feeds)
    for session in (make_session(result, "native"), stock_session(result)):
        (actual,) = session.run(None, feeds)
        finite = np.isfinite(expected)
        assert (np.isfinite(actual) == finite).all()
        most = np.abs(np.where(finite, expected, 0)).max(-1, keepdims=True)
        assert (np.abs(actual - expected) <= 1e-5 * most + 2.0**-126)[finite].all()
    return np.asarray(expected)


def part_of(form: str, i: int) -> str:
    """Returns a form of p0, p1, .. instead of x, with names of its own."""
    body = FORMS[form]
    names = {*re.findall(r"(\w+) = \w+[(<]", body)}
    return re.sub(r"\b[a-z]\w*\b", lambda m: f"p{i}" if m[0] == "x" else m[0] + f"_{i}" * (m[0] in names), body)
