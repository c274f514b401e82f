"""Chains of primitive operators."""

from __future__ import annotations

SYMMETRIC_BODY = """a = Abs(x) m = ReduceMax<keepdims = {keep}>(a, one) s = Div(m, c127) {align}
    d = Div(x, {s}) r = Round(d) y = Mul(r, {s})"""


def symmetric(align: str = "", s: str = "s", keep: int = 1) -> str:
    return SYMMETRIC_BODY.format(align=align, s=s, keep=keep)
