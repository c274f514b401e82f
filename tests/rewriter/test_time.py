"""The time of a rewrite is linear in the number of chains, and of the nodes between them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from product_models import model_of
from rewriting import WHOLE_CHAIN, found, parse, products

import ort_dynq
from ort_dynq.rewriter import Report, rewrite

CONSTANTS: dict[str, Any] = {
    "half": np.array(0.5, np.float32),
    "whole": np.array([0, 0, 64]),
    "of_rows": np.array([0, 0, 1]),
    "w": np.eye(64, 8, dtype=np.float32),
}
ROWS = """a = Abs(h)  r0 = ReduceMax<keepdims = 1>(a, last)  {0}  q = Div(r, c127)  t = Div(h, q)  n = Round(t)
    g = Mul(n, q)  y = MatMul(g, w)"""


def calls(model: onnx.ModelProto) -> tuple[int, Report]:
    """Returns the number of Python calls in the rewriter, and its report."""
    folder, count = str(Path(ort_dynq.__file__).parent), 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(folder)

    sys.setprofile(profile)
    try:
        report = rewrite(model).report
    finally:
        sys.setprofile(None)
    return count, report


def calls_for_chains(chains: int) -> int:
    """Returns the number of calls for a model of several chains in a row."""
    parts, x = [], "x"
    names = "|".join(re.findall(r"(\w+) = [A-Z]", WHOLE_CHAIN))
    for i in range(chains):
        parts.append(re.sub(rf"\b({names})\b", rf"\1_{i}", WHOLE_CHAIN).replace("(x,", f"({x},"))
        x = f"y_{i}"
    count, report = calls(parse("\n".join(parts), outputs=f"float[] {x}"))
    assert set(found(report)) == {"RowProgram"}
    assert not {"Round", "Clip", "ReduceMax"} & {*report.after}  # no chain stays, or a part of one
    return count


@pytest.mark.parametrize("chains", [8, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_time_is_linear(chains: int) -> None:
    few, many = calls_for_chains(chains), calls_for_chains(3 * chains)
    assert many < 3.2 * few


def with_row(node: str, first: str, length: int) -> onnx.ModelProto:
    """A chain and a product, with several nodes in a row that read `first`: x, the range r0, or the shape s of x."""
    nodes = [f"e{i + 1} = " + re.sub(r"\bp\b", f"e{i}", node) for i in range(length)]
    text = f"e0 = Identity({first})  {'  '.join(nodes)}"
    if first == "r0":
        body = f"h = Identity(x)  {ROWS.format(f'{text}  r = Clip(e{length}, eps)')}"
    elif first == "x":
        body = f"{text}  h = Identity(e{length})  {ROWS.format('r = Clip(r0, eps)')}"
    else:
        body = f"s = Shape(x)  {text}  z = Reshape(x, e{length})  h = Identity(x)  {ROWS.format('r = Clip(r0, eps)')}"
    return model_of(body, CONSTANTS, inputs="float[B, M, 64] x")


@pytest.mark.parametrize(
    ("node", "first", "length"),
    [
        ("Add(p, p)", "s", 7),
        ("Max(p, p)", "r0", 7),
        ("Add(p, p)", "r0", 7),
        ("Mul(p, half)", "x", 50),
        ("Mul(p, half)", "r0", 30),
    ],
)
def test_time_is_linear_in_rows_of_nodes(node: str, first: str, length: int) -> None:
    few, many = (calls(with_row(node, first, count))[0] for count in (length, 2 * length))
    assert many < 2.5 * few


@pytest.mark.parametrize(
    ("node", "first"),
    [("Reshape(p, whole)", "x"), ("Reshape(p, of_rows)", "r0"), ("Clip(p, eps)", "r0")],
)
def test_long_rows_of_nodes(node: str, first: str) -> None:
    """They are longer than Python's stack."""
    model = with_row(node, first, sys.getrecursionlimit() + 200)
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
