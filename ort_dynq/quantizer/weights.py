"""The codes and scales of float weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..rewriter.facts.grid import Grid
from ..rewriter.report import Left

_BLOCK = 1 << 20  # elements per step: the temporary arrays take several times their size
_LARGEST_CODE = np.float32(127)


def grid_of_columns(weights: npt.NDArray[np.float32]) -> Grid:
    """Returns weights as int8 codes with one scale for each column.

    scale[n] = max(abs(weights[:, n])) / 127, or 1 if that is 0
    code[k, n] = round(weights[k, n] / scale[n]), ties to even

    Every step is float32, so the codes are the same in every run and on every CPU.

    Args:
        weights: float32, [K, N].

    Raises:
        Left: The weights have NaN or an infinity.
    """
    depth, columns = weights.shape
    codes, scale = np.empty((depth, columns), np.int8), np.empty((1, columns), np.float32)
    for block in _blocks(weights):
        part = weights[:, block]
        largest = np.abs(part).max(0)
        if not np.isfinite(largest).all():
            raise Left("the weights have NaN or an infinity")
        scales = largest / _LARGEST_CODE
        scales[scales == 0] = 1
        scale[0, block] = scales
        quotients = part / scales
        # The quotient exceeds 127 if the scale is a denormal number, which is rounded more.
        codes[:, block] = np.clip(np.rint(quotients, out=quotients), -_LARGEST_CODE, _LARGEST_CODE, out=quotients)
    return Grid(codes, np.zeros(1, np.int8), scale)


def _blocks(matrix: npt.NDArray[Any]) -> Iterator[slice]:
    """Yields slices of columns of at most _BLOCK elements, or of one column."""
    rows, columns = matrix.shape
    step = max(1, _BLOCK // rows)
    return (slice(i, i + step) for i in range(0, columns, step))
