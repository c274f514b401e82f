"""Which values are numbers of rows: reshaped scales, squares, and dimensions without names."""

from __future__ import annotations

import numpy as np
import pytest
from chain_models import symmetric
from rewriting import check, found, parse, rows


def test_rows_of_a_square_are_not_its_columns() -> None:
    """A scale for each row, of rank 1, broadcasts along the columns."""
    report = check(parse(symmetric(keep=0), inputs="float[5, 5] x"), {"x": rows((5, 5))})
    assert found(report) == []


@pytest.mark.parametrize(
    ("shape", "target", "operator"),
    [
        ("4, 4", "[-1, 1]", "RowProgram"),
        ("4, 4", "[1, -1]", "RowProgram"),
        ("4, 4", "[-1]", "RowProgram"),
        ("N, K", "[-1, 1]", "RowProgram"),
        ("N, K", "[1, -1]", None),
        ("1, 4, 4", "[1, 4, 1]", "RowProgram"),
        ("1, 4, 4", "[4, 1, 1]", None),
        ("4, 1, 4", "[1, 4, 1]", None),
        ("2, 2, 2", "[1, 2, 2]", None),
    ],
)
def test_reshaped_scale(shape: str, target: str, operator: str | None) -> None:
    """A reshaped scale may not line up with the rows any more, or may enlarge the result."""
    body = symmetric(f"shape = Constant<value_ints = {target}>() u = Reshape(s, shape)", "u")
    if shape == "2, 2, 2":
        body = body.replace("ReduceMax<keepdims = 1>", "ReduceMax<keepdims = 0>")
    x = rows(tuple(4 if dim in "NK" else int(dim) for dim in shape.split(", ")))
    report = check(parse(body, inputs=f"float[{shape}] x"), {"x": x})
    assert found(report) == ([operator] if operator else [])


@pytest.mark.parametrize("dims", ["[?, ?, ?]", "[]"])
@pytest.mark.parametrize("align", ["kept", "unsqueezed", "concatenated"])
def test_dimensions_without_names(dims: str, align: str) -> None:
    """Without inferred shapes, the nodes show that a scale lines up with the rows of x."""
    parts = (
        "first = Shape<start = 0, end = 1>(x) second = Shape<start = 1, end = 2>(x) i = Constant<value_ints = [1]>()"
    )
    body = {
        "kept": symmetric(),
        "unsqueezed": symmetric("u = Unsqueeze(s, one)", "u", keep=0),
        "concatenated": symmetric(f"{parts} c = Concat<axis = 0>(first, second, i) u = Reshape(s, c)", "u", keep=0),
    }[align]
    report = check(parse(body, inputs=f"float{dims} x"), {"x": rows((3, 4, 5))})
    assert found(report) == ([] if (dims, align) == ("[]", "concatenated") else ["RowProgram"])


@pytest.mark.parametrize("target", [[-1], [1, -1], [-1, 1]])
def test_scale_reshaped_at_run_time(target: list[int]) -> None:
    model = parse(symmetric("u = Reshape(s, shape)", "u"), inputs="float[4, 4] x, int64[rank] shape")
    report = check(model, {"x": rows((4, 4)), "shape": np.array(target)})
    assert found(report) == []
