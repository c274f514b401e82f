"""Whether a mask that the model computes hides all keys behind each query, so that their scores need not be computed.

The mask itself stays: it may hide other keys, too. If it hides them with a finite number, rows without keys are means
of all values, also of those behind.

For instance, Where(And(LessOrEqual(Range(0, T), Range(0, S) as a column), padding), 0, -inf).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_array, constant_scalar
from ..analysis.limits import CHAIN
from ..analysis.nodes import input_of, is_standard, producer_of
from ..analysis.shape_arithmetic import known_lengths
from ..analysis.standard import GREATER, LESS, PASSING, RESHAPES
from ..views import Axis, dims_of, leaves, skip_casts
from .score_steps import Added, Masked, Step

_KEEPING = PASSING | {"Expand"}
_MAX_VALUE = -1e8  # of numbers that hide keys: 2^-24 of it is no score, so the weights of hidden keys are 0


def number_of_later_keys(step: Step, queries: Axis, keys: Axis) -> float | None:
    """Returns a number; a step is known to add it or a lower one to the score of query i and each key from i + 1 on, or
    to put it in its place. None: none is known.

    Args:
        step: The step.
        queries, keys: The factors of the axes of scores, which must be the last two.
    """
    number: float | None = None
    if not isinstance(step, Masked | Added) or [leaves([each]) for each in step.axes[-2:]] != [queries, keys]:
        return None
    if isinstance(step, Masked):
        number = step.number if _is_lower(step.value, holds=step.keeps) else None
    elif not step.subtracts:
        number = _number_in(skip_casts(step.value))
    return number if number is not None and number <= _MAX_VALUE else None


def _number_in(value: ir.Value) -> float | None:
    elements = constant_array(value)
    if elements is not None:
        above = elements[..., _above(elements.shape)] if elements.ndim > 1 else elements[:0]
        return float(above.max()) if above.size else None
    where = producer_of(value, "Where")
    if where is None:
        return None
    for i in (1, 2):
        number = constant_scalar(where.inputs[i])
        if number is not None and number <= _MAX_VALUE and _is_lower(where.inputs[0], holds=i == 2):
            return number
    return None


def _above(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Returns which elements of the last two axes have a larger column than row."""
    return np.triu(np.ones(shape[-2:], bool), 1)


def _is_lower(value: ir.Value | None, *, holds: bool, distance: int = 0) -> bool:
    """Returns whether a condition is known to hold, or not to, only where the last index is at most the one before.

    A number holds if it is not 0.
    """
    node = None if value is None else value.producer()
    if value is None or CHAIN.is_passed(distance) or len(dims_of(value)) < 2 or dims_of(value)[-1] == 1:
        return False  # a last axis of 1 may be repeated
    elements = constant_array(value)
    if elements is not None:
        return not (elements[..., _above(elements.shape)].astype(bool) == holds).any()
    if node is None:
        return False
    source = node.inputs[0] if node.inputs else None
    if is_standard(node, "And" if holds else "Or"):
        return any(_is_lower(each, holds=holds, distance=distance + 1) for each in node.inputs)
    if is_standard(node, "Not"):
        return _is_lower(source, holds=not holds, distance=distance + 1)
    if is_standard(node, "Equal") and not holds and constant_scalar(node.inputs[1]) == 0:
        return _is_lower(source, holds=True, distance=distance + 1)
    starts = known_lengths(input_of(node, 1)) if is_standard(node, "Slice") and input_of(node, 4) is None else None
    if is_standard(node, *_KEEPING) or (starts is not None and not any(each != 0 for each in starts)):
        return _is_lower(source, holds=holds, distance=distance + 1)
    if is_standard(node, "Unsqueeze"):  # of axes in front
        dims = [] if source is None else dims_of(source)
        is_in_front = len(dims) > 1 and all(a == b for a, b in zip(dims, dims_of(value)[-len(dims) :], strict=True))
        return is_in_front and _is_lower(source, holds=holds, distance=distance + 1)
    if is_standard(node, "Trilu"):
        offset = input_of(node, 1)
        k = 0 if offset is None else constant_scalar(offset)
        return holds and node.attributes.get_int("upper", 1) == 0 and k is not None and k <= 0
    if is_standard(node, *LESS) if holds else is_standard(node, "Greater"):
        return _is_index(node.inputs[0], -1) and _is_index(node.inputs[1], -2)
    if is_standard(node, *GREATER) if holds else is_standard(node, "Less"):
        return _is_index(node.inputs[1], -1) and _is_index(node.inputs[0], -2)
    return False


def _is_index(value: ir.Value | None, axis: int) -> bool:
    """Returns whether elements are the numbers of their places along an axis, from 0, and alike along the others."""
    dims = [] if value is None else dims_of(value)
    if (
        value is None
        or len(dims) < -axis
        or dims[axis] == 1
        or any(dim != 1 for i, dim in enumerate(dims) if i - len(dims) != axis)
    ):
        return False
    for _ in CHAIN.steps():
        elements = constant_array(value)
        if elements is not None:
            return bool(np.array_equal(elements.ravel(), np.arange(elements.size)))
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return False
        if is_standard(node, "Range"):
            return constant_scalar(node.inputs[0]) == 0 and constant_scalar(node.inputs[2]) == 1
        if not is_standard(node, *PASSING, *RESHAPES):
            return False
        value = node.inputs[0]
    return False
