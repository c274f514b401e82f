"""The time of a rewrite is linear in the number of chains."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rewriting import WHOLE_CHAIN, found, parse

import ort_dynq.rewriter
from ort_dynq.rewriter import rewrite


def calls(chains: int) -> int:
    """Returns the number of Python calls in the rewriter for a model of several chains in a row."""
    parts, x = [], "x"
    names = "|".join(re.findall(r"(\w+) = [A-Z]", WHOLE_CHAIN))
    for i in range(chains):
        parts.append(re.sub(rf"\b({names})\b", rf"\1_{i}", WHOLE_CHAIN).replace("(x,", f"({x},"))
        x = f"y_{i}"
    model = parse("\n".join(parts), outputs=f"float[] {x}")
    folder, count = str(Path(ort_dynq.rewriter.__file__).parent), 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(folder)

    sys.setprofile(profile)
    try:
        report = rewrite(model).report
    finally:
        sys.setprofile(None)
    assert set(found(report)) == {"RowProgram"}
    assert not {"Round", "Clip", "ReduceMax"} & {*report.after}  # no chain stays, or a part of one
    return count


@pytest.mark.parametrize("chains", [8, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_time_is_linear(chains: int) -> None:
    few, many = calls(chains), calls(3 * chains)
    assert many < 3.2 * few
