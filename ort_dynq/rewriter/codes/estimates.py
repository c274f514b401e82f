"""Whether a straight-through estimator x + (y - x) is y, except for rounding.

Its two roundings are at most 2**-24 of abs(y - x) and of abs(y). They are as small as those of y itself if x is not
much larger than the codes of y times their scale, or if both lie between the minimum and the maximum of x. That has to
be proven: 3e36 + (127 - 3e36) is 0.

Example: y = s * Clip(Round(x / s), -127, 127), s = max(abs(x)) / 127: no x is larger than 127 * s, so x + (y - x) is y.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ..analysis.bounds import MAX_FINITE, all_bounds_of
from ..analysis.constants import constant_scalar
from ..analysis.magnitudes import is_end, largest_ratio
from ..analysis.nodes import is_standard, producer_of
from ..analysis.shapes import is_shape_of_rows, unreshaped
from ..analysis.standard import RESHAPES, SUMS
from ..analysis.values import Values
from .affine_form import Affine, Scaled, scaled_value
from .terms import Param

_CODES_OF_DYNAMIC = 255  # the largest abs(x) / scale of DynamicQuantizeLinear
_MAX_RATIO = 2  # of abs(x) to the number of codes times the scale


def is_estimate(form: Affine, x: ir.Value, values: Values) -> bool:
    """Returns whether x + (y - x) is y, except for roundings that are as small as those of y.

    Where the scale is nearly 0, x may be larger than proven; but then x is as small, and denormal sums are exact.

    Args:
        form: The form of y, which has the shape of x.
        x: The value that is subtracted and added.
        values: The bounds of the model's values.
    """
    if form.scale is None or any(move.node.op_type not in RESHAPES for move in form.moves):
        return False
    scale = scaled_value(form.scale.term)
    if scale is None or scale.number <= 0:
        return False
    largest = _MAX_RATIO * (form.high - form.low + 1) * scale.number
    node = unreshaped(scale.value).producer()
    if node is not None and _quantizes(node, x):
        return largest >= _CODES_OF_DYNAMIC and not scale.is_inverse
    if _spans_range(form, scale, x, largest):
        return True
    for dividend, divisor in _quotients(form, form.scale, scale, x):
        ratio = largest_ratio(dividend, divisor, values.known, 0, is_inverse=scale.is_inverse)
        if ratio is not None and ratio <= largest:
            return True
    return False


def _quotients(form: Affine, param: Param, scale: Scaled, x: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yields x, or x minus the offset of y, each with the scale, in shapes in which they line up as y and its scale do.

    Reshapes keep the order of elements. So rows and scales may be reshaped if the scales are those of runs of elements.
    """
    whole, numbers = unreshaped(x), unreshaped(scale.value)
    if not form.moves and (isinstance(param.term, ir.Value) or is_shape_of_rows(scale.value, x)):
        yield from ((each, scale.value) for each in _without_offset(form, x))
    reshaped = [use.node.outputs[0] for use in whole.uses() if is_standard(use.node, *RESHAPES)]
    for dividend in dict.fromkeys((x, whole, *reshaped)) if param.is_of_runs(form.value.shape) else ():
        if param.is_one or is_shape_of_rows(numbers, dividend):
            yield from ((each, numbers) for each in _without_offset(form, dividend))


def _without_offset(form: Affine, x: ir.Value) -> Iterator[ir.Value]:
    yield x
    if form.offset is None or not isinstance(form.offset.term, ir.Value):
        return
    for use in x.uses():
        subtracted = use.node.inputs[1] if is_standard(use.node, "Sub") and use.idx == 0 else None
        if subtracted is not None and unreshaped(subtracted) is unreshaped(form.offset.term):
            yield use.node.outputs[0]


def _quantizes(node: ir.Node, x: ir.Value) -> bool:
    """Returns whether a node is a DynamicQuantizeLinear of x."""
    whole = node.inputs[0] if is_standard(node, "DynamicQuantizeLinear") else None
    return whole is not None and unreshaped(whole) is unreshaped(x)


def _spans_range(form: Affine, scale: Scaled, x: ir.Value, largest: float) -> bool:
    """Returns whether y lies between the minimum and the maximum of x, except for a few steps, as x does.

    Its lowest code stands for the minimum, and the scale is at least the range divided by a number of codes.
    """
    bounded, zero = all_bounds_of(scale.value), None if form.zero_point is None else form.zero_point.term
    part = scaled_value(bounded.value) if bounded.most >= MAX_FINITE and not scale.is_inverse else None
    range_ = None if part is None or part.is_inverse else producer_of(part.value, "Sub")
    if part is None or range_ is None or form.moves or not isinstance(zero, ir.Value) or part.number * largest < 1:
        return False
    high, low = range_.inputs[:2]
    if high is None or low is None or not is_end(high, x, is_upper=True) or not is_end(low, x, is_upper=False):
        return False
    first, sign = 0.0, 1
    while (node := producer_of(zero, *SUMS, "Neg", "Round")) is not None:
        numbers = [constant_scalar(each) for each in node.inputs]
        i = int(numbers[0] is not None)
        number = numbers[1 - i] if len(numbers) == 2 else 0
        if number is None or i == len(numbers):
            return False
        zero = node.inputs[i]
        first += sign * (-number if node.op_type == "Sub" and i == 0 else number)
        sign = -sign if node.op_type == "Neg" or (node.op_type == "Sub" and i == 1) else sign
    quotient = producer_of(zero, "Div")
    end = None if quotient is None else producer_of(quotient.inputs[0], "Neg")
    is_low = quotient is not None and (quotient.inputs[0] if end is None else end.inputs[0]) is low
    is_scale = quotient is not None and form.scale is not None and quotient.inputs[1] is form.scale.term
    sign = sign if end is None else -sign
    return is_low and is_scale and (first, sign) == (form.low, -1)
