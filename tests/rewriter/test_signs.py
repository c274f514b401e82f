"""Zeros of either sign in chains of primitive operators."""

from __future__ import annotations

import numpy as np
from rewriting import check, parse, rows


def test_negative_zero() -> None:
    """-0.0 + -0.0 is -0.0, -0.0 + 0.0 is 0.0. Clip at 0 and then Round gives 0.0, Round and then Clip keeps -0.0."""
    minus = "minus_zero = Neg(zero)"
    given = f"{minus} a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127) d = Div(x, s)"
    bodies = (
        f"{given} r = Round(d) q = Add(r, minus_zero) c = Clip(q, low, high) b = Sub(c, minus_zero) y = Mul(b, s)",
        f"{given} r = Round(d) q = Add(r, zero) c = Clip(q, low, high) b = Sub(c, minus_zero) y = Mul(b, s)",
        f"{given} c = Clip(d, zero, high) r = Round(c) y = Mul(r, s)",
        f"{given} r = Round(d) c = Clip(r, zero, high) y = Mul(r, s)",
        f"{given} t = Add(d, zero) r = Round(t) c = Clip(r, zero, high) b = Sub(c, zero) y = Mul(b, s)",
    )
    x = rows((9, 33), 3)
    x[0, :5] = [-0.1 * np.abs(x[0]).max() / 127, -0.0, 0.0, -1e-40, 1e-40]
    for body in bodies:
        literal = body.replace("Neg(zero)", "Constant<value = float {-0.0}>()")
        check(parse(literal), {"x": x})
