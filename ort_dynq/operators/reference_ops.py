"""NumPy functions that several operators share: clips, casts, extremes, and the checks of shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DynqError

Array = npt.NDArray[Any]
Attributes = dict[str, Any]
CodeDtype = type[np.uint8] | type[np.int8]

ONE = np.float32(1)


def clip(values: Array, low: npt.ArrayLike, high: npt.ArrayLike) -> Array:
    """ONNX's Clip. A NaN stays NaN, and a zero that equals a bound keeps its sign."""
    values = np.where(values < low, low, values)
    return np.where(values > high, high, values)


def cast(values: Array, dtype: CodeDtype) -> Array:
    """ONNX Runtime's Cast of float32 to an 8-bit type.

    The value is truncated to int32 and its low byte is kept. NaN and values outside int32 become 0.
    """
    fits = (values >= -(2.0**31)) & (values < 2.0**31)
    return np.where(fits, values, 0).astype(np.int64).astype(dtype)


def row_minimum(rows: Array) -> Array:
    """The minimum of each row, as a column; see :func:`row_maximum`. It is +infinity for empty rows."""
    return _row_extreme(rows, np.inf, np.argmin)


def row_maximum(rows: Array) -> Array:
    """The maximum of each row, as a column; -infinity for empty rows.

    The first of several equal maxima decides the sign of a zero. The result is NaN if the first element is NaN; a NaN
    elsewhere is ignored.
    """
    return _row_extreme(rows, -np.inf, np.argmax)


def _row_extreme(rows: Array, worst: float, index_of: Callable[..., Array]) -> Array:
    if rows.size == 0:
        return np.full((len(rows), 1), worst, np.float32)
    first = index_of(np.where(np.isnan(rows), np.float32(worst), rows), axis=1, keepdims=True)
    extreme = np.take_along_axis(rows, first, 1)
    return np.where(np.isnan(rows[:, :1]), rows[:, :1], extreme)


def check_zero_point(name: str, zero_point: Array, scale_name: str, scale: Array) -> None:
    """Checks that a zero point has the shape of its scale, or one element.

    Raises:
        DynqError: It has another shape.
    """
    if zero_point.size != 1 and zero_point.shape != scale.shape:
        raise DynqError(
            f"{name} has shape {shape_text(zero_point.shape)}, expected that of {scale_name}, "
            f"{shape_text(scale.shape)}, or one element"
        )


def shape_text(shape: Sequence[int]) -> str:
    """A shape for messages: ``2x3``, or ``scalar``."""
    return "x".join(map(str, shape)) or "scalar"


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """The float32 values in the type of the result, rounded half to even. NaN of 16 bits keeps its sign only."""
    if dtype == np.float32:
        return np.asarray(values)
    values = np.where(np.isnan(values), np.copysign(np.float32(np.nan), values), values)
    return np.asarray(values).astype(dtype)


def to_float16(values: Array) -> Array:
    """Values rounded to float16, half to even, as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float16).astype(np.float32)
