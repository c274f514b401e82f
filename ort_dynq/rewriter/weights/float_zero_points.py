"""Float weights as codes with a zero point that is no code: (code - zero point) * scale, as HQQ has them.

Each column, or each group of adjacent elements of a column, is an arithmetic progression: its distances to its smallest
element are multiples of one scale, except for the roundings of float32. A product takes the nearest code as zero point;
what that leaves is one number for all elements of a group, which the sum of the activation over the group multiplies:

    x @ ((q - z) * s) = x @ ((q - code) * s) + (sums of x over groups) @ ((code - z) * s)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .grid import MAX_ROUNDING_OF_ALL, QuantizedWeights, in_groups, sizes_of_groups

_PROBED_COLUMNS = 16  # a sample of the columns rejects most weights
_BLOCK_COLUMNS = 4096  # of one step: its temporary arrays take some twelve times its size
_PROBED_ROWS = (4, 64)  # they reject most steps
_ROUNDINGS = 2.0**-21  # of (code - zero point) * scale, and of the distance of two of them, relative to the largest
_MAX_DISTANCE = 2.0**-5  # of a number of steps to an integer: more would take any numbers for integers
_MIN_ELEMENTS = 8  # fewer numbers are multiples of some step by chance
_MAX_CODE = {4: 15, 8: 255}

_Floats = npt.NDArray[np.float64]


def grid_of_float_zero_points(weights: npt.NDArray[np.float32]) -> QuantizedWeights | None:
    """Returns codes, scales and zero points of float32 weights [K, N], and what these leave; None if they have none.

    One group for each column is tried first, then smaller groups.
    """
    if weights.ndim != 2 or weights.dtype != np.float32 or not weights.size or not np.isfinite(weights).all():
        return None
    depth, columns = weights.shape
    for group_size in sizes_of_groups(depth):
        size = group_size or depth
        probe = in_groups(weights[:, :: -(-columns // _PROBED_COLUMNS)], size)[:, :_PROBED_COLUMNS]
        if size >= _MIN_ELEMENTS and _steps(probe.astype(np.float64)) is not None:
            return _grid(in_groups(weights, size), weights.shape, group_size)
    return None


def _steps(weights: _Floats) -> npt.NDArray[np.int16] | None:
    """Returns the number of steps between the smallest and largest element of each column: as few as possible.

    Returns:
        0 to 255, [columns]; None if a column is no progression of at most 256 numbers.
    """
    low, span = weights.min(0), np.ptp(weights, 0)
    steps, todo = np.zeros(len(low), np.int16), np.flatnonzero(span)
    tolerance = _ROUNDINGS * np.maximum(np.abs(weights).max(0), span)
    samples = [weights[:: max(1, len(weights) // rows)] for rows in _PROBED_ROWS] + [weights]
    first = todo[:_PROBED_COLUMNS]  # all counts at once: most weights end here
    steps_of_counts = span[first] / np.arange(1, _MAX_CODE[8] + 1)[:, None, None]
    if not _are_multiples(samples[0][:, first] - low[first], steps_of_counts, tolerance[first]).any(0).all():
        return None
    for count in range(1, _MAX_CODE[8] + 1):
        found = todo
        for rows in samples:
            found = found[_are_multiples(rows[:, found] - low[found], span[found] / count, tolerance[found])]
        steps[found] = count
        todo = np.setdiff1d(todo, found, assume_unique=True)
        if not todo.size:
            return steps
    return None


def _are_multiples(distances: _Floats, step: _Floats, tolerance: _Floats) -> npt.NDArray[np.bool_]:
    """Returns whether all distances of a column, [..., rows, columns], are multiples of its step, but for roundings."""
    numbers = distances / step
    allowed = np.minimum(tolerance / step, _MAX_DISTANCE)
    return np.asarray((np.abs(numbers - np.rint(numbers)) <= allowed).all(-2))


def _grid(weights: npt.NDArray[np.float32], shape: tuple[int, ...], group_size: int) -> QuantizedWeights | None:
    """Returns the grid of the weights of groups, [size, groups * N]; None if a group is no progression."""
    blocks = [slice(first, first + _BLOCK_COLUMNS) for first in range(0, weights.shape[1], _BLOCK_COLUMNS)]
    found = []
    for block in blocks:
        if (part := _progressions(weights[:, block].astype(np.float64))) is None:
            return None
        found.append(part)
    codes, steps, scale = (np.concatenate(parts, -1) for parts in zip(*found, strict=True))
    # One group stays 8-bit: see grid.py.
    bits = 4 if group_size and steps.max() <= _MAX_CODE[4] else 8
    left = []
    for block in blocks:
        if (rest := _rest(weights[:, block].astype(np.float64), codes[:, block], scale[block], bits)) is None:
            return None
        left.append(rest)
    zero_point, offset = (np.concatenate(parts) for parts in zip(*left, strict=True))
    depth, columns = shape
    groups, lowest = depth // len(weights), 0 if bits == 4 else 128
    by_row = (codes - np.uint8(lowest)).view(np.int8).reshape(len(weights), groups, columns)
    return QuantizedWeights(
        by_row.transpose(1, 0, 2).reshape(depth, columns),
        (zero_point - lowest).astype(np.int8).reshape(groups, columns),
        scale.reshape(groups, columns),
        bits,
        group_size,
        offset=offset.reshape(groups, columns),
    )


def _progressions(
    weights: _Floats,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int16], npt.NDArray[np.float32]] | None:
    """Returns the codes of columns from 0 on, their steps, and scales by linear regression; None if they have none."""
    if (steps := _steps(weights)) is None:
        return None
    low, span = weights.min(0), np.ptp(weights, 0)
    codes = np.rint((weights - low) * np.divide(steps, span, out=np.zeros_like(span), where=span > 0))
    centered = codes - codes.mean(0)
    squares = np.square(centered).sum(0)
    slope = np.divide((centered * weights).sum(0), squares, out=np.ones_like(squares), where=squares > 0)
    scale = slope.astype(np.float32)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    return codes.astype(np.uint8), steps, scale


def _rest(
    weights: _Floats, codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32], bits: int
) -> tuple[_Floats, npt.NDArray[np.float32]] | None:
    """Returns the zero points of columns, which are codes, and what they leave; None if that is not one number."""
    zero_point = np.clip(np.rint(codes.mean(0) - weights.mean(0) / scale), 0, _MAX_CODE[bits])
    products = (codes - zero_point) * scale
    offset = (weights - products).mean(0).astype(np.float32)
    allowed = 2 * MAX_ROUNDING_OF_ALL * np.maximum(np.abs(weights).max(0), np.ptp(weights, 0))
    return None if (np.abs(products + offset - weights) > allowed).any() else (zero_point, offset)
