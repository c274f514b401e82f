"""Which weights behind a DequantizeLinear share a scale."""

from __future__ import annotations

import numpy as np
import pytest

from ort_dynq.rewriter.reasons import Unconverted
from ort_dynq.rewriter.weights.scale_indices import ScaleIndices

MOVES: list[list[tuple[str, list[int]]]] = [
    [("reshape", [192, 48]), ("transpose", [1, 0])],
    [("transpose", [1, 2, 0]), ("reshape", [16, 576])],
    [("reshape", [12, 4, 4, 48]), ("transpose", [0, 2, 1, 3]), ("reshape", [48, 192])],
    [("transpose", [2, 0, 1]), ("reshape", [96, 96])],
]
CUT = [(1, 5, 2), (0, 4, 3), (0, 8, 3)]  # axis, block and moves that put a part of a block into another dimension


@pytest.mark.parametrize(("axis", "block"), [(0, 0), (2, 0), (0, 4), (0, 8), (1, 8), (2, 16), (1, 5), (0, 12)])
@pytest.mark.parametrize("moves", range(len(MOVES)))
def test_indices_of_scales(axis: int, block: int, moves: int) -> None:
    """They are those of an array of indices that goes through the same nodes."""
    shape = (12, 16, 48)
    of_scale = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape)) if block else (shape[axis],)
    index = np.arange(np.prod(of_scale)).reshape(of_scale if block else [-1 if i == axis else 1 for i in range(3)])
    index = np.broadcast_to(index.repeat(block, axis).take(range(shape[axis]), axis) if block else index, shape)
    found = ScaleIndices.of(shape, of_scale, axis, block)
    try:
        for name, argument in MOVES[moves]:
            index, found = (getattr(each, name)(argument) for each in (index, found))
    except Unconverted:
        assert (axis, block, moves) in CUT
        return
    assert (axis, block, moves) not in CUT
    assert found.shape == index.shape
    np.testing.assert_array_equal(found.along(0)[:, None] + found.along(1), index)
