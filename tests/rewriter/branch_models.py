"""Models with subgraphs."""

from __future__ import annotations

CONSTANTS = "int64[1] one = {-1}, float c127 = {127.0}, float low = {-128.0}, float high = {127.0}"


def chain(x: str, y: str) -> str:
    """A whole chain: it needs only the type of x."""
    return f"""a = Abs({x}) m = ReduceMax(a, one) s = Div(m, c127) d = Div({x}, s) r = Round(d) c = Clip(r, low, high)
        {y} = Mul(c, s)"""
