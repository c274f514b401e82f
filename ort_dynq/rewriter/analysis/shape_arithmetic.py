"""Numbers that a model computes from constants and from the shapes of its tensors.

Example: Mul(Gather(Shape(x), 0), 3) is 12 if x is [4, n].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .constants import constant_array, is_number
from .nodes import producer_of

_FARTHEST = 16  # nodes
_LONGEST = 64  # elements of a shape
_MOVES = ("Identity", "Cast", "Concat", "Slice", "Gather", "Squeeze", "Unsqueeze")
_SLICE_WITHOUT_STEPS = 3  # inputs after the data: starts, ends, axes
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
}


def known_number(value: ir.Value) -> float | None:
    """Returns the number that a tensor of one element is known to have before run time, or None.

    Exporters compute the scale of attention from the shape of the query, whose last dimension is known, also if others
    are not.
    """
    try:
        with np.errstate(all="ignore"):
            elements = _elements(value)
    except (ArithmeticError, LookupError, ValueError):  # an index is not known, or out of range
        return None
    number = math.nan if elements is None or elements.size != 1 else float(elements.reshape(()))
    return None if math.isnan(number) else number


def known_lengths(value: ir.Value | None) -> list[int | None] | None:
    """Returns the elements of a vector of integers, such as a shape, None for those that are not known; or None."""
    try:
        elements = _elements(value)
    except (ArithmeticError, LookupError, ValueError):
        return None
    if elements is None or elements.ndim != 1:
        return None
    return [None if math.isnan(each) else int(each) for each in elements.tolist()]


def _elements(value: ir.Value | None, distance: int = 0) -> npt.NDArray[np.float64] | None:
    """Returns the elements of a number or a shape; NaN for a length that is not known."""
    if value is None or distance > _FARTHEST:
        return None
    if (elements := constant_array(value)) is not None:
        return elements.astype(np.float64) if is_number(elements.dtype) else None
    node = producer_of(value, *_MOVES, "ConstantOfShape", "Shape", *_ARITHMETIC)
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Concat":
        return np.concatenate([_part(each, distance + 1) for each in node.inputs])
    if node.op_type == "ConstantOfShape":
        given, length = node.attributes.get("value"), _elements(node.inputs[0], distance + 1)
        number = 0.0 if given is None else float(given.as_tensor().numpy().reshape(-1)[0])
        return None if length is None or math.prod(length.tolist()) > _LONGEST else np.full(length.astype(int), number)
    if node.op_type in ("Cast", *_ARITHMETIC) and (value.dtype is None or not value.dtype.is_floating_point()):
        return None  # integers round
    if node.op_type == "Shape":
        if node.inputs[0].shape is None:
            return None
        dims = [dim if isinstance(dim, int) else math.nan for dim in node.inputs[0].shape]
        return np.array(dims[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(dims))])
    inputs = [_elements(each, distance + 1) for each in node.inputs]
    known = [each for each in inputs if each is not None]
    if len(known) < len(inputs):
        return None
    first, *others = known
    if node.op_type in _ARITHMETIC:
        return np.asarray(_ARITHMETIC[node.op_type](*known))
    if node.op_type == "Slice":
        start, end = (int(each.reshape(-1)[0]) for each in others[:2])
        return first[start:end] if first.ndim == 1 and len(others) <= _SLICE_WITHOUT_STEPS else None
    if node.op_type == "Gather":
        return first[others[0].astype(np.int64)] if first.ndim == 1 else None
    if node.op_type in ("Squeeze", "Unsqueeze"):
        return first.reshape(()) if first.size == 1 else None
    return first


def _part(value: ir.Value | None, distance: int) -> npt.NDArray[np.float64]:
    """Returns the elements of an input of a Concat of vectors; NaN for those that are not known.

    Raises:
        ValueError: Their number is not known.
    """
    elements = _elements(value, distance)
    if elements is not None:
        return np.atleast_1d(elements)
    if value is None or value.shape is None or len(value.shape) != 1 or not isinstance(value.shape[0], int):
        raise ValueError
    return np.full(value.shape[0], math.nan)
