"""Float weights that are an 8-bit grid: the grid is found, and other weights are rejected."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Array, assert_same

from ort_dynq.rewriter.facts.grid import grid_of

F = np.float32


def columns(codes: Array, scale: Array | float) -> Array:
    return np.asarray(np.asarray(codes).astype(F) * F(scale))


@pytest.mark.parametrize("low", [-127, -128, -1, -7, 0, -255])
@pytest.mark.parametrize("scale", [0.01, 1.0, 2.0**-20, 1 / 3, 1e-38, 3e35, 1.4e-45])
def test_a_grid_is_recovered(low: int, scale: float) -> None:
    rng = np.random.default_rng(0)
    high = min(127, low + 255) if low < 0 else 255
    codes = rng.integers(low, high + 1, (200, 40))
    scales = F(scale) * F(1) if scale < 1e-40 else (rng.uniform(1, 2, 40) * scale).astype(F)
    weights = columns(codes, scales)
    weights[:, 5] = 0
    grid = grid_of(weights)
    assert grid is not None
    assert_same(columns(grid.numbers, grid.scale) + F(0), weights + F(0))  # -0 is 0


@pytest.mark.parametrize("column", [0, 39])
def test_weights_that_are_almost_a_grid_are_rejected(column: int) -> None:
    weights = columns(np.random.default_rng(0).integers(-127, 128, (200, 40)), 0.01)
    for change in (np.nextafter(weights[7, column], F(1)), F(np.nan), F(np.inf), weights[7, column] + F(0.005)):
        changed = weights.copy()
        changed[7, column] = change
        assert grid_of(changed) is None
    assert grid_of(weights) is not None
    assert grid_of(columns(np.random.default_rng(0).integers(-128, 129, (300, 3)), 0.01)) is None  # 257 codes
    assert grid_of(weights.astype(np.float64)) is None
    assert grid_of(weights[0]) is None
    assert grid_of(weights[:0]) is None
