"""Straight-through estimators of training, x + (y - x): y, except for rounding.

torch's `detach` leaves no trace in ONNX, so that the sum and the difference stay in the model.

Example: q + (Round(q) - q) of q = x / s is Round(q).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from .bounds import Bounded, all_bounds_of, constant_operand, magnitude_beside_sign
from .magnitudes import AnyBounds, largest_quotient
from .nodes import producer_of, rounded_to_float16
from .standard import BOUNDING, PASSING, ROUNDING, SCALING, SUMS

_MAX_VALUE = 2.0**24  # that abs(x) may be in case 1 of the proof
_MODERATE = 2.0**20
_SMALL = 2.0**10
_ROUNDING = 2.0**-4  # of a difference of moderate numbers, at most
_BETWEEN, _MAX_BETWEEN = PASSING | {"Mul"}, 3  # nodes between a difference and its sum


def estimated(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Returns y and x of an Add that computes x + (y - x); None for other nodes."""
    for x, other in (node.inputs[:2], node.inputs[1::-1]) if node.op_type == "Add" else ():
        times = producer_of(other, "Mul")  # by a part of the way from x to y that was 1 when the model was exported
        scaled = None if times is None else constant_operand(times, commutative=True)
        difference = producer_of(scaled[0] if scaled is not None and scaled[1] == 1 else other, "Sub")
        if x is None or difference is None or None in difference.inputs:
            continue
        y, subtracted = (each for each in difference.inputs if each is not None)
        if subtracted is x:
            return y, x
    return None


def is_added_back(difference: ir.Value, x: ir.Value | None) -> bool:
    """Returns whether y - x is added to x, or to x within bounds of any kind, through Casts and products or not."""
    nodes = [use.node for use in difference.uses()]
    for _ in range(_MAX_BETWEEN):
        later = [[use.node for use in each.outputs[0].uses()] if each.op_type in _BETWEEN else [each] for each in nodes]
        nodes = [node for found in later for node in found]
    of = _before(x, "Cast")
    sums = [each for each in nodes if each.op_type == "Add"]
    return of is not None and any(_before(each, *BOUNDING, "Cast") is of for node in sums for each in node.inputs)


def _before(value: ir.Value | None, *operators: str) -> ir.Value | None:
    while (node := producer_of(value, *operators)) is not None:
        value = node.inputs[0]
    return value


def is_exact(y: ir.Value, x: ir.Value, known: Callable[[ir.Value | None], AnyBounds]) -> bool:
    """Returns whether x + (y - x) is y: y is x, rounded to integers and perhaps clipped to a range around 0.

    Proof, for float32. Let y be an integer, and d = y - x.

    1. y lies between 0 and x: then abs(d) <= abs(x). If abs(x) <= 2**24, y and so d are multiples of the distance
       between x and its neighbors. So d is a float, and x + d is y.
    2. abs(d) <= 1 and abs(x) >= 1/2: d is a multiple of 2**-24 and at most 1, so it is a float, and x + d is y.
    3. abs(d) <= 1 and abs(x) < 1/2: y is -1, 0 or 1. If y is 0, d is -x. Otherwise d is rounded by at most 2**-25, so
       that x + d rounds to y, at worst in a tie between y and its neighbor, and y is even.

    A rounding alone is case 2 or 3, or x is an integer. A clip to a range around 0, before or after it, may also be
    case 1. Where x is a quotient by 0, or a product with its infinite inverse, the sum is NaN.

    An integer z may be added after the rounding, and in x before it: y = round(v) + z, x = v + z. The sum v + z has one
    more rounding of at most 2**-4, if both are at most 2**20, so that abs(d) <= 1 without a clip.

    x may be rounded to float16 before it is rounded to y: if abs(x) <= 2**10, that is at most 1/4.

    Args:
        y: The rounded value.
        x: The value.
        known: Returns what is known of a value.
    """
    bounded = all_bounds_of(y)
    if (v := _without_integer(bounded.value, x, known)) is not None:
        return bounded.least <= 0 <= bounded.most and (
            _is_at_most(_MODERATE, known(v)) or _is_finite_quotient(v, known, _MODERATE)
        )
    given = _before_rounding(bounded.value)
    if given is None:
        return False
    if (rounded := rounded_to_float16(given)) is x:
        is_around_0 = bounded.least <= 0 <= bounded.most
        return is_around_0 and (_is_at_most(_SMALL, known(rounded)) or _is_finite_quotient(rounded, known, _SMALL))
    before = Bounded(given) if given is x else all_bounds_of(given)
    if before.value is not x:
        return False
    if before.value is given and bounded.value is y:
        return True
    is_around_0 = before.least <= 0 <= before.most and bounded.least <= 0 <= bounded.most
    return is_around_0 and (_is_at_most(_MAX_VALUE, known(x)) or _is_finite_quotient(x, known, _MAX_VALUE))


def rounded_apart(node: ir.Node, known: Callable[[ir.Value | None], AnyBounds]) -> tuple[float, float] | None:
    """Returns the bounds of Round(x - z) + z, where z is an integer: those of x, rounded; None for others."""
    for z, rounded in (node.inputs[:2], node.inputs[1::-1]):
        rounding = producer_of(rounded, "Round")
        difference = None if rounding is None else producer_of(rounding.inputs[0], "Sub")
        if difference is None or difference.inputs[1] is not z or not known(z).is_integer:
            continue
        ends = [(each.low, each.high) for each in map(known, (difference.inputs[0], z))]
        if max(abs(end) for pair in ends for end in pair) <= _MODERATE / 2:
            low, high = ends[0]
            return float(np.rint(low - _ROUNDING)), float(np.rint(high + _ROUNDING))
    return None


def _without_integer(y: ir.Value, x: ir.Value, known: Callable[[ir.Value | None], AnyBounds]) -> ir.Value | None:
    """Returns v, if y is round(v) + z and x is v + z, where z is an integer; or None."""
    sums = [producer_of(each, *SUMS) for each in (y, x)]
    if sums[0] is None or sums[1] is None or sums[0].op_type != sums[1].op_type:
        return None
    for z in sums[0].inputs if sums[0].op_type == "Add" else sums[0].inputs[1:]:
        if z not in sums[1].inputs or not known(z).is_integer or not _is_at_most(_MODERATE, known(z)):
            continue
        rounded, v = (next((each for each in node.inputs if each is not z), None) for node in sums if node is not None)
        if rounded is not None and v is not None and _before_rounding(rounded) is v and sums[1].inputs[0] is not z:
            return v
    return None


def _before_rounding(value: ir.Value) -> ir.Value | None:
    """Returns what is rounded, in any way; None for values that are no integers next to it."""
    node = producer_of(value, *ROUNDING, "Mul")
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Mul":  # half away from 0: Sign(x) * Floor(Abs(x) + 0.5)
        magnitude = magnitude_beside_sign(node)
        rounded = None if magnitude is None else _before_rounding(magnitude)
        whole, signs = producer_of(rounded, "Abs"), [producer_of(each, "Sign") for each in node.inputs]
        of = None if whole is None else whole.inputs[0]
        return of if any(sign is not None and sign.inputs[0] is of for sign in signs) else None
    half = producer_of(node.inputs[0], {"Floor": "Add", "Ceil": "Sub"}.get(node.op_type, ""))  # half up, or down
    found = None if half is None else constant_operand(half, commutative=half.op_type == "Add")
    return found[0] if found is not None and found[1] == 0.5 else node.inputs[0]


def _is_finite_quotient(x: ir.Value, known: Callable[[ir.Value | None], AnyBounds], limit: float) -> bool:
    """Returns whether x is at most a limit, except where it is a quotient by 0, or a product with an infinity.

    An inverse that is finite is computed from a range of at least 2**-128, which has 21 digits.
    """
    while (node := producer_of(x, *SCALING)) is not None:
        found = constant_operand(node, commutative=node.op_type == "Mul")
        if found is None:
            largest = largest_quotient(node, known, 0)
            return largest is not None and largest <= limit
        if not found[1]:
            return False
        x, limit = found[0], limit * (abs(found[1]) if node.op_type == "Div" else 1 / abs(found[1]))
    return False


def _is_at_most(limit: float, known: AnyBounds) -> bool:
    return max(-known.low, known.high) <= limit
