"""Recognizes how a zero point is computed from the minimum of a range and from the scale.

round(clip(qmin - min/s)) | clip(qmin - round(min/s)) | clip(round(-min/s)) | floor((0 - min)/s)

s is the scale, with its epsilon or without. The zero point may be cast to integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf as _INFINITY

import onnx_ir as ir

from ...operators.encodings import CodeType, RangeConstants, ZeroPointRule
from ..analysis.bounds import all_bounds_of
from ..analysis.constants import constant_scalar, is_zero
from ..analysis.nodes import cast_to, operand, producer_of
from ..analysis.shapes import does_not_grow, same_shape, unreshaped
from ..reasons import Reason, Unconverted


@dataclass(frozen=True)
class ZeroPoint:
    """How a zero point is computed.

    Attributes:
        rule: The attribute zero_point_rule of DynamicRangeQuantize.
        type: The type that it is cast to; float32 if it is cast to int32 or not at all.
        is_int32: Whether it is cast to int32 and not to 8 bits.
        before_epsilon: Whether the minimum is divided by the scale before its epsilon.
    """

    rule: ZeroPointRule = ZeroPointRule.NONE
    type: CodeType = CodeType.FLOAT32
    is_int32: bool = False
    before_epsilon: bool = False


@dataclass(frozen=True)
class _Form:
    """The rule, and the quotient that it rounds: `numerator`, the minimum or its negative, divided by the scale."""

    rule: ZeroPointRule
    quotient: ir.Value
    numerator: ir.Value


def zero_point_of(
    zero_point: ir.Value,
    low: ir.Value | None,
    scale: ir.Value,
    before: ir.Value,
    constants: RangeConstants,
    bounds: tuple[int, int],
) -> ZeroPoint:
    """Returns how a zero point is computed.

    Args:
        zero_point: The zero point.
        low: The minimum of the range; None if the range has none.
        scale: The scale.
        before: The scale before its epsilon.
        constants: How the scale is computed.
        bounds: The range of the codes, to which the zero point is clipped.

    Raises:
        Unconverted: It is computed in another way, or from something else.
    """
    value, type_, is_int32 = _uncast(zero_point)
    if low is None:
        raise Unconverted(Reason.ZERO_POINT_NOT_OF_RANGE)
    form = _form_of(value, low, bounds)
    divisor = None if form is None else _divisor(form)
    if form is not None and (divisor is scale or divisor is before):
        found = ZeroPoint(form.rule, type_, is_int32, divisor is not scale)
        if form.rule == ZeroPointRule.ROUND_NEGATED and type_ == CodeType.FLOAT32:
            raise Unconverted(Reason.ZERO_POINT_MINUS_ZERO)
        if _is_same(found, constants):
            return found
    raise Unconverted(Reason.ZERO_POINT_INT32 if is_int32 else Reason.ZERO_POINT_UNKNOWN_WAY)


def _uncast(zero_point: ir.Value) -> tuple[ir.Value, CodeType, bool]:
    """Returns the zero point before its casts to integers, the 8-bit type or float32, and whether it is int32."""
    value, type_, is_int32 = unreshaped(zero_point), CodeType.FLOAT32, False
    while (cast := producer_of(value, "Cast")) is not None:
        to = cast_to(cast)
        if type_ == CodeType.FLOAT32 and to in (ir.DataType.UINT8, ir.DataType.INT8):
            type_ = CodeType(to)
        elif to not in (ir.DataType.FLOAT, ir.DataType.INT32):
            raise Unconverted(Reason.ZERO_POINT_CAST)
        is_int32 |= to == ir.DataType.INT32
        value = unreshaped(operand(cast))
    return value, type_, is_int32 and type_ == CodeType.FLOAT32


def _form_of(value: ir.Value, low: ir.Value, bounds: tuple[int, int]) -> _Form | None:
    """Returns the form in which a zero point is rounded, or None; the divisor of its quotient is not checked yet."""
    if (floor := producer_of(value, "Floor")) is not None:
        quotient = operand(floor)
        numerator = _numerator(quotient)
        negated = None if numerator is None else producer_of(numerator, "Sub")
        if numerator is None or negated is None or operand(negated, 1) is not low:
            return None
        is_negative = constant_scalar(negated.inputs[0]) == 0 and does_not_grow(negated.inputs[0], low)
        return _Form(ZeroPointRule.FLOOR_NEGATED, quotient, numerator) if is_negative else None
    if (round_ := producer_of(value, "Round")) is not None:
        inner = _unclipped(operand(round_), bounds)
        offset = None if inner is None else _subtracted(inner, bounds[0])
        return None if offset is None else _Form(ZeroPointRule.ROUND_CLIPPED, offset, low)
    inner = _unclipped(value, bounds)
    if inner is None:
        return None
    if (round_ := producer_of(inner, "Round")) is not None:
        quotient = operand(round_)
        numerator = _numerator(quotient)
        negated = None if numerator is None else producer_of(numerator, "Neg")
        if numerator is None or negated is None or operand(negated) is not low:
            return None
        return _Form(ZeroPointRule.ROUND_NEGATED, quotient, numerator)
    offset = _subtracted(inner, bounds[0])
    round_ = None if offset is None else producer_of(offset, "Round")
    return None if round_ is None else _Form(ZeroPointRule.SUBTRACT_ROUNDED, operand(round_), low)


def _unclipped(value: ir.Value, to: tuple[int, int]) -> ir.Value | None:
    """Returns the value before one or more Clips to the range of the codes; None if there is no Clip."""
    found = None
    while (bounds := all_bounds_of(value)).value is not value:
        if (bounds.least, bounds.most) != to:
            raise Unconverted(Reason.ZERO_POINT_CLIPPED_TO_ANOTHER_RANGE)
        found = value = bounds.value
    return found


def _subtracted(value: ir.Value, quant_min: int) -> ir.Value | None:
    """Returns the value that is subtracted from quant_min, or None."""
    node = producer_of(value, "Sub")
    if node is None:
        return None
    number = constant_scalar(node.inputs[0])
    if number != quant_min or (number == 0 and not is_zero(number)) or not does_not_grow(*node.inputs):
        return None
    return operand(node, 1)


def _numerator(quotient: ir.Value) -> ir.Value | None:
    division = producer_of(quotient, "Div")
    return None if division is None else operand(division)


def _divisor(form: _Form) -> ir.Value | None:
    """Returns the divisor of the numerator of a form, before any Reshape of it, or None."""
    division = producer_of(form.quotient, "Div")
    if division is None or operand(division) is not form.numerator:
        return None
    divisor = operand(division, 1)
    keeps_shape = same_shape(division.outputs[0], form.numerator)
    return unreshaped(divisor) if keeps_shape else divisor


def _is_same(found: ZeroPoint, constants: RangeConstants) -> bool:
    """Returns whether the operator computes the same zero point. A cast to int32 turns a NaN into a number."""
    if found.rule == ZeroPointRule.FLOOR_NEGATED:
        return found.type != CodeType.FLOAT32
    if found.rule == ZeroPointRule.SUBTRACT_ROUNDED and found.is_int32:  # harmless if the NaN comes from the scale
        is_bounded = constants.lowest_scale > 0 and constants.highest_scale < _INFINITY
        return is_bounded and not found.before_epsilon
    return not found.is_int32
