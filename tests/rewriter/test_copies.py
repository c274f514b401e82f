"""Nodes that only copy hide no chain."""

from __future__ import annotations

import pytest
from rewriting import check, found, parse, rows


@pytest.mark.parametrize("copy", ["Cast<to = 1>", "Cast<to = 10>", "Floor"])
@pytest.mark.parametrize("place", ["quotient", "rounded", "clipped", "scale"])
def test_copies_within_a_chain(copy: str, place: str) -> None:
    """TorchScript writes a Cast from float32 to float32 for x.to(x.dtype).

    A Cast to float16 and back rounds.
    """
    lines = {
        "scale": "scale = Div(m, c127)",
        "quotient": "quotient = Div(x, scale)",
        "rounded": "rounded = Round(quotient)",
        "clipped": "clipped = Clip(rounded, low, high)",
    }
    copied = f"before = {lines[place].split(' = ')[1]} other = {copy}(before) {place} = Cast<to = 1>(other)"
    body = " ".join(
        ["a = Abs(x) m = ReduceMax(a, one)", *(lines | {place: copied}).values(), "y = Mul(clipped, scale)"]
    )
    report = check(parse(body), {"x": rows((5, 7))})
    assert found(report) == ["RowProgram"]


def test_copy_of_x_that_is_computed_after_its_range() -> None:
    body = """a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127) copy = Identity(x) d = Div(copy, s) r = Round(d)
        y = Mul(r, s)"""
    assert found(check(parse(body), {"x": rows((9, 33))})) == ["RowProgram"]
