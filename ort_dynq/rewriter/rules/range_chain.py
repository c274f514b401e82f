"""From a scale and a zero point back to the range that they are computed from, as the attributes of DynamicRangeQuantize.

RANGE        over the last dimensions: max|x| | max(|min|, |max|) | max - min | max(max / qmax, min / qmin)
SCALE        range / c | range * k | (1 / range) * c; range and scale bounded by Clip or Max; Where(s == 0, e, s)
ZERO POINT   none | round(clip(qmin - min/s)) | clip(qmin - round(min/s)) | clip(round(-min/s)) | floor((0 - min)/s)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..facts.shapes import axes_of, same_shape, unreshaped
from ..facts.values import cast_to, does_not_grow, integer, is_zero, op, same, scalar

_INFINITY = float("inf")
_LARGEST = float(np.finfo(np.float32).max)


class Unrecognised(Exception):
    """Why a value is not what a rule looks for."""


@dataclass
class Recipe:
    """How scale and zero point follow from the data, as DynamicRangeQuantize's attributes and constants have it.

    Attributes beyond those:
        keepdims: Whether the range has dimensions of 1 in place of those that it is over.
        is_int32: Whether the zero point is cast to int32 and no further.
        start: What scale and zero point both are computed from.
    """

    axis: int = 0
    range: int = 0
    inverse: int = 0
    zero_point_rule: int = 0
    zero_point_before_epsilon: int = 0
    zero_point_type: int = 1
    keepdims: bool = True
    is_int32: bool = False
    start: ir.Value | None = None
    constants: list[float] = field(
        default_factory=lambda: [-_INFINITY, _INFINITY, -_INFINITY, _INFINITY, 1.0, 1.0, -_INFINITY, _INFINITY, 0.0]
    )

    def bound(self, low: int, least: float, most: float) -> None:
        """Sets the bounds at constants[low] and constants[low + 1]."""
        self.constants[low : low + 2] = [least, most]


@dataclass
class _Bounded:
    value: ir.Value
    least: float
    most: float


def recipe_of(x: ir.Value, scale: ir.Value, zero_point: ir.Value | None, quant_min: int, quant_max: int) -> Recipe:
    """The recipe by which `scale` and `zero_point` follow from `x`.

    Raises:
        Unrecognised: They follow in another way, or from something else.
    """
    recipe = Recipe()
    final = unreshaped(scale)
    value = final
    if (where := op(value, "Where")) is not None:
        value, recipe.constants[8] = _where_zero(where)
    bounded = _bounds(value)
    recipe.bound(6, bounded.least, bounded.most)
    before = recipe.start = bounded.value
    value = before
    if (node := op(value, "Mul")) is not None and (factor := _operand(node, commutative=True)) is not None:
        value, recipe.constants[5] = factor
    if (node := op(value, "Div")) is not None and (divisor := _operand(node, commutative=False)) is not None:
        value, recipe.constants[4] = divisor
    if recipe.constants[4] <= 0 or recipe.constants[5] <= 0:
        raise Unrecognised("the range is multiplied or divided by a number that is not positive")
    if (node := op(value, "Reciprocal")) is not None:
        recipe.inverse, value = 1, _input(node)
    low = _range(x, value, recipe)
    if recipe.inverse and recipe.range != 0:
        raise Unrecognised("the scale is an inverse one, and its range has two ends")
    if zero_point is not None:
        _zero_point(recipe, zero_point, low, final, before, quant_min, quant_max)
    return recipe


def _input(node: ir.Node, i: int = 0) -> ir.Value:
    value = node.inputs[i] if i < len(node.inputs) else None
    if value is None:
        raise Unrecognised(f"{node.op_type} has no input {i}")
    return same(value)


def _operand(node: ir.Node, *, commutative: bool) -> tuple[ir.Value, float] | None:
    """A binary node's variable operand and its constant one."""
    for i in (1, 0) if commutative else (1,):
        constant = scalar(node.inputs[i])
        if constant is not None and does_not_grow(node.inputs[i], node.inputs[1 - i]):
            return _input(node, 1 - i), constant
    return None


def _bounds(value: ir.Value) -> _Bounded:
    """Clip and Max with constants. A Clip without a bound has the largest float for one, and takes infinity to it."""
    if (node := op(value, "Clip")) is not None:
        low = node.inputs[1] if len(node.inputs) > 1 else None
        high = node.inputs[2] if len(node.inputs) > 2 else None
        least, most = (-_LARGEST if low is None else scalar(low)), (_LARGEST if high is None else scalar(high))
        if least is None or most is None:
            raise Unrecognised("a Clip's bounds are computed at run time")
        return _Bounded(_input(node), least, most)
    if (node := op(value, "Max")) is not None and len(node.inputs) == 2 and (found := _operand(node, commutative=True)):
        return _Bounded(found[0], found[1], _INFINITY)
    return _Bounded(value, -_INFINITY, _INFINITY)


def _where_zero(where: ir.Node) -> tuple[ir.Value, float]:
    """Where(Equal(s, 0), e, s): s and e."""
    condition = where.inputs[0]
    equal = None if condition is None else op(same(condition), "Equal")
    value, replacement = _input(where, 2), scalar(where.inputs[1])
    if equal is None or replacement is None or not does_not_grow(where.inputs[1], where.inputs[2]):
        raise Unrecognised("a Where chooses by something else than whether the scale is 0")
    found = _operand(equal, commutative=True)
    if found is None or found[1] != 0 or found[0] is not value:
        raise Unrecognised("a Where chooses by something else than whether the scale is 0")
    return value, replacement


def _range(x: ir.Value, value: ir.Value, recipe: Recipe) -> ir.Value | None:
    """Fills in what `value` says of the range; returns the minimum that zero points refer to."""
    bounded = _bounds(value)
    value = bounded.value
    recipe.bound(2, bounded.least, bounded.most)
    if (node := op(value, "ReduceMax")) is not None:
        inner = op(_input(node), "Abs")
        if inner is None or _input(inner) is not same(x):
            raise Unrecognised("the scale follows from the maximum of something else than |x|")
        recipe.axis, recipe.keepdims = _rows(node, x)
        return None
    if (node := op(value, "Max")) is not None and len(node.inputs) == 2:
        _two_sided(x, node, recipe)
        return None
    if (node := op(value, "Sub")) is None:
        raise Unrecognised("the scale does not follow from a range of x")
    low, high = _input(node, 1), _input(node, 0)
    low_end, high_end = _end(low, "ReduceMin"), _end(high, "ReduceMax")
    _same_rows(x, low_end.value, high_end.value, recipe)
    if is_zero(low_end.most) and is_zero(high_end.least):
        recipe.range = 2
        recipe.bound(0, low_end.least, high_end.most)
    elif (low_end.least, low_end.most, high_end.least, high_end.most) == (-_INFINITY, _INFINITY) * 2:
        recipe.range = 1
    else:
        raise Unrecognised("the minimum and the maximum are not bounded by 0 alike")
    return low


def _two_sided(x: ir.Value, node: ir.Node, recipe: Recipe) -> None:
    """max(|min|, |max|), which is the largest magnitude, or max(max / qmax, min / qmin)."""
    sides = [_input(node, 0), _input(node, 1)]
    divisions = [op(side, "Div") for side in sides]
    if all(divisions):
        ends: dict[str, tuple[ir.Value, float]] = {}
        for division in divisions:
            assert division is not None
            found = _operand(division, commutative=False)
            reduce = None if found is None else op(found[0], "ReduceMin", "ReduceMax")
            if found is None or reduce is None:
                raise Unrecognised("the scale does not follow from a range of x")
            ends[reduce.op_type] = found
        if len(ends) != 2 or ends["ReduceMin"][1] >= 0 or ends["ReduceMax"][1] <= 0:
            raise Unrecognised("the scale does not follow from a range of x")
        if (recipe.constants[2], recipe.constants[3]) != (-_INFINITY, _INFINITY):
            raise Unrecognised("the range is bounded twice")
        recipe.range = 3
        _same_rows(x, ends["ReduceMin"][0], ends["ReduceMax"][0], recipe)
        recipe.bound(0, ends["ReduceMin"][1], ends["ReduceMax"][1])
        return
    low = high = None
    for side in sides:
        positive = op(side, "Abs", "Neg")
        end = _input(positive) if positive is not None else side
        if _reduces(end, "ReduceMin") and positive is not None:
            low = _end(end, "ReduceMin")
        elif _reduces(end, "ReduceMax") and (positive is None or positive.op_type == "Abs"):
            high = _end(end, "ReduceMax")
    if low is None or high is None:
        raise Unrecognised("the scale does not follow from a range of x")
    _same_rows(x, low.value, high.value, recipe)
    if low.most not in (0, _INFINITY) or high.least not in (0, -_INFINITY) or recipe.constants[3] < _LARGEST:
        raise Unrecognised("the minimum and the maximum are not bounded by 0 alike")
    if low.least > -_LARGEST or high.most < _LARGEST:
        raise Unrecognised("the minimum and the maximum are bounded away from 0")
    # Bounds at the largest float take an infinite end to it, and so the larger of the two.
    if _LARGEST in (-low.least, high.most):
        if low.least != -high.most:
            raise Unrecognised("the minimum and the maximum are not bounded by 0 alike")
        recipe.constants[3] = _LARGEST


def _reduces(value: ir.Value, op_type: str) -> bool:
    return op(_bounds_or_zero(value).value, op_type) is not None


def _bounds_or_zero(value: ir.Value) -> _Bounded:
    """As _bounds(), Min with a constant included."""
    if (node := op(value, "Min")) is not None and len(node.inputs) == 2 and (found := _operand(node, commutative=True)):
        return _Bounded(found[0], -_INFINITY, found[1])
    return _bounds(value)


def _end(value: ir.Value, op_type: str) -> _Bounded:
    """One end of the range: a reduction, bounded or not."""
    bounded = _bounds_or_zero(value)
    if op(bounded.value, op_type) is None:
        raise Unrecognised("the scale does not follow from a range of x")
    return bounded


def _same_rows(x: ir.Value, low: ir.Value, high: ir.Value, recipe: Recipe) -> None:
    nodes = [op(low, "ReduceMin"), op(high, "ReduceMax")]
    for node in nodes:
        if node is None or _input(node) is not same(x):
            raise Unrecognised("minimum and maximum are not those of x")
    rows = {_rows(node, x) for node in nodes if node is not None}
    if len(rows) != 1:
        raise Unrecognised("minimum and maximum are taken over different dimensions")
    recipe.axis, recipe.keepdims = rows.pop()


def _rows(reduce: ir.Node, x: ir.Value) -> tuple[int, bool]:
    """The first of the last dimensions that a reduction is over, counted from the end, 0 for all; and keepdims."""
    keepdims = integer(reduce, "keepdims", 1)
    if keepdims is None:
        raise Unrecognised("keepdims of the range is given by a function's caller")
    return _axis(reduce, x), keepdims == 1


def _axis(reduce: ir.Node, x: ir.Value) -> int:
    rank = None if x.shape is None else len(x.shape)
    axes = axes_of(reduce)
    if axes is None:
        raise Unrecognised("the dimensions of the range are computed at run time")
    if not axes:
        if integer(reduce, "noop_with_empty_axes", 0) != 0:
            raise Unrecognised("the range is over no dimension")
        return 0
    if rank is None and any(axis >= 0 for axis in axes):
        raise Unrecognised("the rank of x is not known")
    last = sorted(axis if axis < 0 else axis - (rank or 0) for axis in axes)
    if last != list(range(-len(last), 0)):
        raise Unrecognised("the range is not over the last dimensions")
    return 0 if rank is not None and len(last) == rank else -len(last)


def _uncast(zero_point: ir.Value, recipe: Recipe) -> ir.Value:
    """The zero point before it became integers; fills in their type."""
    value = unreshaped(zero_point)
    while (cast := op(value, "Cast")) is not None:
        to = cast_to(cast)
        if recipe.zero_point_type == 1 and to in (ir.DataType.UINT8, ir.DataType.INT8):
            recipe.zero_point_type = int(to)
        elif to not in (ir.DataType.FLOAT, ir.DataType.INT32):
            raise Unrecognised("the zero point is cast to another type than uint8 or int8")
        recipe.is_int32 |= to == ir.DataType.INT32
        value = unreshaped(_input(cast))
    recipe.is_int32 &= recipe.zero_point_type == ir.DataType.FLOAT
    return value


def _zero_point(
    recipe: Recipe,
    zero_point: ir.Value,
    low: ir.Value | None,
    scale: ir.Value,
    before: ir.Value,
    quant_min: int,
    quant_max: int,
) -> None:
    value = _uncast(zero_point, recipe)
    if low is None:
        raise Unrecognised("the zero point does not follow from the range of x")

    def clipped(v: ir.Value) -> ir.Value | None:
        found = None
        while (node := op(v, "Clip")) is not None:
            bounds = _bounds(v)
            if (bounds.least, bounds.most) != (quant_min, quant_max):
                raise Unrecognised("the zero point is clipped to another range than the codes")
            found = v = same(_input(node))
        return found

    def steps(v: ir.Value, numerator: ir.Value) -> bool:
        node = op(v, "Div")
        if node is None or _input(node) is not numerator:
            return False
        divisor = _input(node, 1)
        if unreshaped(divisor) is not divisor and same_shape(node.outputs[0], numerator):
            divisor = unreshaped(divisor)
        if divisor is scale:
            return True
        recipe.zero_point_before_epsilon = 1
        return divisor is before

    def from_lowest(v: ir.Value) -> ir.Value | None:
        node = op(v, "Sub")
        if node is None or scalar(node.inputs[0]) != quant_min or not does_not_grow(node.inputs[0], node.inputs[1]):
            return None
        return _input(node, 1) if quant_min != 0 or is_zero(scalar(node.inputs[0])) else None

    if (node := op(value, "Floor")) is not None:
        quotient = op(_input(node), "Div")
        below = None if quotient is None else op(_input(quotient), "Sub")
        from_zero = below is not None and scalar(below.inputs[0]) == 0 and _input(below, 1) is low
        from_zero = from_zero and below is not None and does_not_grow(below.inputs[0], low)
        if quotient is not None and from_zero and steps(_input(node), _input(quotient)) and recipe.zero_point_type != 1:
            recipe.zero_point_rule = 4
            return
    elif (node := op(value, "Round")) is not None:
        inner = clipped(_input(node))
        offset = None if inner is None else from_lowest(inner)
        if offset is not None and steps(offset, low):
            recipe.zero_point_rule = 1
            if not recipe.is_int32:
                return
    elif (inner := clipped(value)) is not None:
        if (rounded := op(inner, "Round")) is not None:
            quotient = op(_input(rounded), "Div")
            negated = None if quotient is None else op(_input(quotient), "Neg")
            is_minimum = negated is not None and _input(negated) is low
            if quotient is not None and is_minimum and steps(_input(rounded), _input(quotient)):
                if recipe.zero_point_type == 1:
                    raise Unrecognised("the zero point stays a float, whose sign may be that of a negative zero")
                recipe.zero_point_rule = 3
                return
        elif (offset := from_lowest(inner)) is not None:
            rounded = op(offset, "Round")
            if rounded is not None and steps(_input(rounded), low):
                recipe.zero_point_rule = 2
                # In int32 a NaN becomes a number: the same only if it comes from a scale that is NaN.
                is_bounded = recipe.constants[6] > 0 and recipe.constants[7] < _INFINITY
                if not recipe.is_int32 or (is_bounded and not recipe.zero_point_before_epsilon):
                    return
    if recipe.is_int32:
        raise Unrecognised("the zero point is cast to int32, expected uint8 or int8")
    raise Unrecognised("the zero point does not follow from the range of x in a way that is known")
