"""Recognizes values with constant bounds: by Clip, Max, Min, or a comparison and Where, as exporters write them.

All of these forms give NaN for NaN, as a Clip does. Where(x <= c, x, c) does not, so it is not recognized.

Example: Where(x > 127, 127, Max(x, -128)) is x within -128 and 127.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf as _INFINITY

import numpy as np
import onnx_ir as ir

from .constants import constant_scalar
from .nodes import producer_of
from .shapes import does_not_grow
from .standard import EXTREMES, ORDERINGS, SCALING

MAX_FINITE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Bounded:
    """A value and its bounds: clip(value, least, most).

    Attributes:
        value: The value before its bounds.
        least, most: The bounds; infinite if there is none.
        keeps_negative_zero: Whether -0 stays -0 at a bound of 0, as it does in a Clip.
    """

    value: ir.Value
    least: float = -_INFINITY
    most: float = _INFINITY
    keeps_negative_zero: bool = True

    def within(self, outer: Bounded) -> Bounded:
        """Returns these bounds with further ones applied to the result."""
        least, most = (min(max(bound, outer.least), outer.most) for bound in (self.least, self.most))
        return Bounded(self.value, least, most, self.keeps_negative_zero and outer.keeps_negative_zero)


def constant_operand(node: ir.Node, *, commutative: bool) -> tuple[ir.Value, float] | None:
    """Returns the variable operand of a binary node and its constant one, which comes second; or None."""
    for i in (1, 0) if commutative else (1,):
        number, other = constant_scalar(node.inputs[i]), node.inputs[1 - i]
        if number is not None and other is not None and does_not_grow(node.inputs[i], other):
            return other, number
    return None


def bounds_of(value: ir.Value) -> Bounded | None:
    """Returns the input and the bounds of a node with constant bounds; None if the producer of `value` is none.

    The default bound of a Clip is the largest finite float.
    """
    if (node := producer_of(value, "Clip")) is not None and node.inputs[0] is not None:
        low, high = [*node.inputs[1:], None, None][:2]
        least = -MAX_FINITE if low is None else constant_scalar(low)
        most = MAX_FINITE if high is None else constant_scalar(high)
        if least is None or most is None or least > most:
            return None
        return Bounded(node.inputs[0], least, most)
    if (node := producer_of(value, *EXTREMES)) is not None and len(node.inputs) == 2:
        if (found := constant_operand(node, commutative=True)) is None:
            return None
        return _one_sided(*found, is_upper=node.op_type == "Min", keeps_negative_zero=False)
    node = producer_of(value, "Where")
    return None if node is None else _where(node)


def all_bounds_of(value: ir.Value) -> Bounded:
    """Returns the input and the bounds of all successive nodes that bound `value`; `value` itself if there are none."""
    found = Bounded(value)
    while (inner := bounds_of(found.value)) is not None:
        found = inner.within(found)
    return found


def signed_magnitude_of(value: ir.Value) -> ir.Value | None:
    """Returns m of Where(v >= 0, 1, -1) * m, if m is |v| within bounds; or None.

    The product is m if v is not negative, as a range or a scale is. If v is NaN, so are m and the product.
    """
    node = producer_of(value, "Mul")
    for i in (0, 1) if node is not None and None not in node.inputs else ():
        assert node is not None
        where, other = producer_of(node.inputs[i], "Where"), node.inputs[1 - i]
        compare = None if where is None else producer_of(where.inputs[0], "GreaterOrEqual")
        magnitude = None if other is None else producer_of(all_bounds_of(other).value, "Abs")
        if where is None or compare is None or magnitude is None:
            continue
        numbers = [constant_scalar(v) for v in (*where.inputs[1:], compare.inputs[1])]
        if numbers == [1, -1, 0] and magnitude.inputs[0] is compare.inputs[0]:
            constants = (*where.inputs[1:], compare.inputs[1])
            return other if all(does_not_grow(v, compare.inputs[0]) for v in constants) else None
    return None


def magnitude_beside_sign(node: ir.Node) -> ir.Value | None:
    """Returns m of Sign(x) * m; None for other nodes."""
    for i in (0, 1) if node.op_type == "Mul" else ():
        if producer_of(node.inputs[i], "Sign") is not None:
            return node.inputs[1 - i]
    return None


def power_of_remainder(node: ir.Node) -> float | None:
    """Returns n of x - n * floor(x / n), the remainder of a division by a power of 2; None for other nodes."""
    x, other = node.inputs[:2]
    times = producer_of(other, "Mul") if node.op_type == "Sub" else None
    scaled = None if times is None else constant_operand(times, commutative=True)
    floor = None if scaled is None else producer_of(scaled[0], "Floor")
    part = None if floor is None else producer_of(floor.inputs[0], *SCALING)
    divided = None if part is None else constant_operand(part, commutative=part.op_type == "Mul")
    if scaled is None or part is None or divided is None or x is None or divided[0] is not x:
        return None
    divisor = divided[1] if part.op_type == "Div" else 1 / divided[1] if divided[1] else 0
    is_power = divisor == scaled[1] > 0 and math.frexp(divisor)[0] == 0.5  # the quotient is exact
    return divisor if is_power else None


def _one_sided(value: ir.Value, bound: float, *, is_upper: bool, keeps_negative_zero: bool) -> Bounded:
    least, most = (-_INFINITY, bound) if is_upper else (bound, _INFINITY)
    return Bounded(value, least, most, keeps_negative_zero or bound != 0)


def _where(node: ir.Node) -> Bounded | None:
    """Recognizes Where(value > bound, bound, value) and the like; a NaN compares as false and stays."""
    if None in node.inputs:
        return None
    condition, then, otherwise = (value for value in node.inputs if value is not None)
    compare, bound = producer_of(condition, *ORDERINGS), constant_scalar(then)
    if compare is None or bound is None or not does_not_grow(then, otherwise) or None in compare.inputs:
        return None
    for i in (0, 1):
        value, other = compare.inputs[i], compare.inputs[1 - i]
        if value is not None and value is otherwise and constant_scalar(other) == bound:
            if not does_not_grow(other, value):
                return None
            is_upper = compare.op_type.startswith("Greater") == (i == 0)
            is_strict = not compare.op_type.endswith("OrEqual")
            return _one_sided(otherwise, bound, is_upper=is_upper, keeps_negative_zero=is_strict)
    return None
