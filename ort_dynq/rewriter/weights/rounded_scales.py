"""The scales of weights that an exporter has rounded to float16: each column is float16(code * scale).

A rounded weight stands for an interval: half of the distance to its neighbors on each side. Divided by the code, it is
an interval for the scale. The scale of a column lies in the intervals of all its weights. In the end, every weight is
compared with float16(code * scale) bit for bit.

Example: [1.27, 0.5] of float16 with the codes [127, 50] have scales of 0.00999756 to 0.01000015: 0.0099989.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FEW_ROWS = 4  # enough to reject most candidates for a scale
_SOME_ROWS = 64
_MAX_ROUNDING = 2.0**-10  # relative, of the quotient of two weights that are rounded to float16
_SUBNORMAL_ROUNDING = 2.0**-24  # absolute, of two subnormal weights

Floats = npt.NDArray[np.float64]


def float16_scales(weights: npt.NDArray[np.float32], largest_codes: Sequence[int]) -> npt.NDArray[np.float32] | None:
    """Returns one scale for each column; None if a column has none.

    Args:
        weights: Finite numbers of float16, [rows, columns].
        largest_codes: Candidates for the code of the largest magnitude, the most frequent first.
    """
    largest = np.abs(weights).max(0).astype(np.float64)
    scales = np.ones(largest.size, np.float32)
    todo = np.flatnonzero(largest)
    few, some = (weights[:: max(1, len(weights) // rows)] for rows in (_FEW_ROWS, _SOME_ROWS))
    for code in largest_codes:
        if not todo.size:
            break
        near = largest[todo] / code
        steps, rounding = few[:, todo] / near, code * _MAX_ROUNDING + _SUBNORMAL_ROUNDING / near
        found = todo[(np.abs(steps - np.rint(steps)) <= rounding).all(0)]
        for rows in (some, weights):
            scale, fits = _within(rows[:, found].astype(np.float64), largest[found] / code)
            found, scale = found[fits], scale[fits]
        scales[found] = scale
        todo = np.setdiff1d(todo, found, assume_unique=True)
    return None if todo.size else scales


def _within(weights: Floats, near: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Returns a scale for each column, close to `near`, and whether it gives every weight."""
    codes = np.rint(weights / near)
    magnitudes, counts = np.abs(weights), np.maximum(np.abs(codes), 1)
    above = np.spacing(magnitudes.astype(np.float16)).astype(np.float64) / 2
    exponents = np.frexp(magnitudes)[0]
    below = np.where((exponents == 0.5) & (magnitudes > 2.0**-14), above / 2, above)
    is_counted = codes != 0
    low = np.where(is_counted, (magnitudes - below) / counts, 0).max(0, initial=0)
    high = np.where(is_counted, (magnitudes + above) / counts, np.inf).min(0, initial=np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.where(np.isfinite(high), (low + high) / 2, near).astype(np.float32)
        rounded = (codes * scale.astype(np.float64)).astype(np.float16)
    return scale, np.asarray((rounded == weights).all(0) & (scale > 0))
