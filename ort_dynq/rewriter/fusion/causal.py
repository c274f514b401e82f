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
from ..analysis.nodes import first_inputs, input_of, is_standard, operand, producer_of
from ..analysis.shape_arithmetic import known_lengths
from ..analysis.standard import GREATER, LESS, LOGIC, PASSING, RESHAPES
from ..views import Axis, dims_of, leaves, skip_casts
from .score_steps import Added, Masked, Step

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
    dims = [] if value is None else dims_of(value)
    if value is None or CHAIN.is_passed(distance) or len(dims) < 2 or dims[-1] == 1:  # 1: it may be repeated
        return False
    elements, node = constant_array(value), value.producer()
    if elements is not None:
        return not (elements[..., _above(elements.shape)].astype(bool) == holds).any()
    if node is None or not node.inputs:
        return False
    source, other = first_inputs(node, 2)
    is_negated = is_standard(node, "Not") or (is_standard(node, "Equal") and constant_scalar(other) == 0)
    if is_negated or is_standard(node, "And" if holds else "Or") or _keeps_places(node):
        parts = node.inputs if is_standard(node, *LOGIC) else [source]
        return any(_is_lower(each, holds=holds != is_negated, distance=distance + 1) for each in parts)
    if is_standard(node, "Trilu"):
        k = 0 if other is None else constant_scalar(other)
        return holds and node.attributes.get_int("upper", 1) == 0 and k is not None and k <= 0
    if is_standard(node, *(GREATER if holds else {"Less"})):
        source, other = other, source
    elif not is_standard(node, *(LESS if holds else {"Greater"})):
        return False
    return _is_index(source, -1) and _is_index(other, -2)


def _keeps_places(node: ir.Node) -> bool:
    """Returns whether elements keep their indices along the last two axes, from 0."""
    if is_standard(node, "Slice"):
        starts = known_lengths(node.inputs[1])
        return input_of(node, 4) is None and starts is not None and {*starts} <= {0}
    if is_standard(node, "Unsqueeze"):  # of axes in front
        before, after = (dims_of(each) for each in (operand(node), node.outputs[0]))
        return len(before) > 1 and before == after[-len(before) :]
    return is_standard(node, *PASSING, "Expand")


def _is_index(value: ir.Value | None, axis: int) -> bool:
    """Returns whether elements are the numbers of their places along an axis, from 0, and alike along the others."""
    dims = [] if value is None else dims_of(value)
    if len(dims) < -axis or any((dim == 1) == (i == axis) for i, dim in enumerate(dims, -len(dims))):
        return False
    while (node := producer_of(value, *PASSING, *RESHAPES)) is not None:
        value = node.inputs[0]
    if (elements := constant_array(value)) is not None:
        return bool(np.array_equal(elements.ravel(), np.arange(elements.size)))
    node = producer_of(value, "Range")
    return node is not None and [constant_scalar(node.inputs[i]) for i in (0, 2)] == [0, 1]
