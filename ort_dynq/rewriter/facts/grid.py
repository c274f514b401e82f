"""Float weights as an 8-bit grid: one scale for each output channel, times integer codes.

Exporters fold DequantizeLinear(codes) or Cast(codes) * scale into float weights. Each column of such weights is
float32(code * scale) for integer codes and one float32 scale. The scale is recovered, and every weight is compared bit
for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_PROBED_COLUMNS = 16  # a sample of the columns rejects most weights that are not a grid
_PROBED_ROWS = 64
_BLOCK = 1 << 22  # elements per step: the temporary arrays take many times their size
# Candidates for the code of the largest magnitude in a column: 127 is the most frequent, 1 occurs in ternary weights.
_LARGEST_CODES = (1, 127, 128, *range(2, 127), *range(129, 256))


@dataclass(frozen=True)
class Grid:
    """weights[k, n] == float32((codes[k, n] - zero_point[n]) * scale[n]).

    Attributes:
        codes: int8, [K, N].
        zero_point: int8, [N]; None if all are zero.
        scale: float32, [N].
    """

    codes: npt.NDArray[np.int8]
    zero_point: npt.NDArray[np.int8] | None
    scale: npt.NDArray[np.float32]

    @property
    def numbers(self) -> npt.NDArray[np.int32]:
        """The codes minus their zero points, [K, N]."""
        codes = self.codes.astype(np.int32)
        return codes if self.zero_point is None else codes - self.zero_point

    @property
    def sums(self) -> npt.NDArray[np.int64]:
        """The sum of each column of :attr:`numbers`, [N]."""
        return np.concatenate([block.numbers.sum(0) for block in self._blocks()])

    @property
    def largest_sum(self) -> int:
        """The largest sum of absolute values over the columns of :attr:`numbers`."""
        return max(int(np.abs(block.numbers).sum(0).max()) for block in self._blocks())

    def _blocks(self) -> Iterator[Grid]:
        for columns in _blocks(self.codes):
            zero_point = None if self.zero_point is None else self.zero_point[columns]
            yield Grid(self.codes[:, columns], zero_point, self.scale[columns])


def grid_of(weights: npt.NDArray[Any]) -> Grid | None:
    """Returns the grid of float32 weights of shape [K, N]; None if any column is not a grid."""
    if weights.ndim != 2 or weights.dtype != np.float32 or not weights.size:
        return None
    if _grid_of(weights[:, :_PROBED_COLUMNS]) is None:
        return None
    grids = []
    for columns in _blocks(weights):
        grid = _grid_of(np.ascontiguousarray(weights[:, columns]))
        if grid is None:
            return None
        grids.append(grid)
    zero_points = [np.zeros_like(g.scale, np.int8) if g.zero_point is None else g.zero_point for g in grids]
    return Grid(
        np.concatenate([grid.codes for grid in grids], 1),
        None if all(grid.zero_point is None for grid in grids) else np.concatenate(zero_points),
        np.concatenate([grid.scale for grid in grids]),
    )


def _blocks(matrix: npt.NDArray[Any]) -> Iterator[slice]:
    """Yields slices of columns of at most _BLOCK elements, or of one column."""
    rows, columns = matrix.shape
    step = max(1, _BLOCK // rows)
    return (slice(i, i + step) for i in range(0, columns, step))


def _grid_of(weights: npt.NDArray[np.float32]) -> Grid | None:
    scale = _scales(weights) if np.isfinite(weights).all() else None
    if scale is None:
        return None
    numbers = np.rint(weights / scale).astype(np.int32)
    low, high = numbers.min(0), numbers.max(0)
    zero_point = np.where((low < -128) | (high > 127), -128 - np.minimum(low, 0), 0)
    if (high + zero_point > 127).any():
        return None
    codes = (numbers + zero_point).astype(np.int8)
    return Grid(codes, zero_point.astype(np.int8) if zero_point.any() else None, scale)


def _scales(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
    """Returns one scale for each column; None if a column has none."""
    largest = np.abs(weights).max(0)
    scales = np.ones_like(largest)
    todo = np.flatnonzero(largest)
    probe = weights[:: max(1, len(weights) // _PROBED_ROWS)]
    for code in map(np.float32, _LARGEST_CODES):
        # Only the quotient and its two neighbors, times the code, can round to the largest magnitude.
        for neighbor in (None, np.float32(0), np.float32(np.inf)):
            if not todo.size:
                return np.asarray(scales)
            scale = largest[todo] / code
            if neighbor is not None:
                scale = np.nextafter(scale, neighbor)
            with np.errstate(over="ignore"):
                fits = (scale > 0) & (code * scale == largest[todo])
            fits &= _is_grid(probe[:, todo], scale)
            candidates = np.flatnonzero(fits)
            candidates = candidates[_is_grid(weights[:, todo[candidates]], scale[candidates])]
            scales[todo[candidates]] = scale[candidates]
            todo = np.delete(todo, candidates)
    return None if todo.size else np.asarray(scales)


def _is_grid(weights: npt.NDArray[np.float32], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray((np.rint(weights / scale) * scale == weights).all(0))
