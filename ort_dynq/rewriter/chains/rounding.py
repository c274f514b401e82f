"""The rules for codes that are made without Round.

By arithmetic, as code for devices without a rounding instruction writes it:

(v + c) - c              -> Round(v) + 0           v, or the bounds after it, lie where floats near c are integers
v - Mod(v, 1)            -> v + (t - v)            t = Sign(v) * Floor(Abs(v))
Mod(v, 1) >= 1/2         -> (v - t) >= 1/2

All results stay bit for bit. c is an even integer from 2^23 to 2^24, such as 1.5 * 2^23: there the distance of float32
numbers is 1, so that the sum is rounded, half to even. It has no -0, as Round(v) + 0 has none. Mod(v, 1), with the sign
of v, is v - t, and v - (v - t) is t, except for infinite v, where both are NaN, and for the sign of a zero, which
v + (t - v) has. That is the straight-through estimator of t, which other rules read.

What then is left of x / s is reported, without a change:

Cast(x / s) to 8 bits                               -> unconverted
Cast(Cast(x / s)) to int32 or int64 and back        -> unconverted
(x / s + c) - c, where c is 2^22 or more            -> unconverted
x / s - Mod(x / s, 1)                               -> unconverted
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import bounds_of, constant_operand
from ..analysis.constants import constant_scalar
from ..analysis.limits import CHAIN
from ..analysis.nodes import cast_to, is_standard, only_use, producer_of
from ..analysis.shapes import broadcasts, same_shape
from ..analysis.standard import BOUNDING, ORDERINGS, ROUNDING, SCALING, SUMS
from ..analysis.types import CODE_TYPES, WIDE_TYPES
from ..analysis.values import Values
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule

_INTEGERS = 2.0**23, 2.0**24  # between these, float32 numbers are the integers
_MIN_SUM = 2.0**22  # the distance of float32 numbers is 1/2 from here on
_OTHER_ROUNDING = ROUNDING - {"Round"}


class _Rounded(NamedTuple):
    """What is rounded: by a sum, or by its remainder."""

    value: ir.Value
    by_sum: bool


def _match(node: ir.Node, context: Context) -> _Rounded | None:
    if node.op_type == "Sub" and node.outputs[0].dtype == ir.DataType.FLOAT:
        return _by_sum(node, context)
    is_remainder = node.op_type == "Mod" and node.attributes.get_int("fmod", 0) == 1
    value, one = node.inputs if is_remainder else (None, None)
    if value is None or value.dtype != ir.DataType.FLOAT or constant_scalar(one) != 1:
        return None
    uses = [use for use in node.outputs[0].uses() if use.node.graph is node.graph]
    is_known = len(uses) == len(node.outputs[0].uses()) and not node.outputs[0].is_graph_output()
    if not is_known or not any(_is_difference(use.node, value, node) for use in uses):
        return None
    are_read = all(_is_difference(use.node, value, node) or is_standard(use.node, *ORDERINGS) for use in uses)
    return _Rounded(value, by_sum=False) if are_read else None


def _is_difference(node: ir.Node, value: ir.Value, remainder: ir.Node) -> bool:
    return is_standard(node, "Sub") and list(node.inputs) == [value, remainder.outputs[0]]


def _added_and_subtracted(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Returns v and c of (v + c) - c, or of (v - c) + c, which is the same; None for other nodes."""
    added, number = producer_of(node.inputs[0], "Add"), constant_scalar(node.inputs[1])
    found = None if added is None else constant_operand(added, commutative=True)
    return found if found is not None and found[1] == number else None


def _by_sum(node: ir.Node, context: Context) -> _Rounded | None:
    found = _added_and_subtracted(node)
    if found is None or found[1] % 2:
        return None
    value, (least, most) = found[0], (end - found[1] for end in _INTEGERS)
    known = context.shared(Values).known(value)
    if not (least <= known.low and known.high <= most):
        low, high = _bounds_after(node.outputs[0])
        if not (least <= low and high <= most):
            return None
    return _Rounded(value, by_sum=True)


def _bounds_after(value: ir.Value) -> tuple[float, float]:
    """Returns the bounds that are given to a value before anything else reads it."""
    low, high = -np.inf, np.inf
    for _ in CHAIN.steps():
        use = only_use(value)
        bounds = None if use is None else bounds_of(use.node.outputs[0])
        if use is None or bounds is None or bounds.value is not value:
            break
        low, high = max(low, bounds.least), min(high, bounds.most)
        value = use.node.outputs[0]
    return low, high


def _build(match: _Rounded, edit: Edit) -> None:
    node, value = edit.node, match.value

    def insert(op_type: str, *inputs: ir.Value, before: ir.Node = node) -> ir.Value:
        result = edit.insert(new := ir.node(op_type, list(inputs)), before=before, origin=before)
        edit.facts.note(result, ir.DataType.FLOAT, value.shape)
        return new.outputs[0]

    if match.by_sum:
        rounded, zero = insert("Round", value), edit.add_constant(np.float32(0), before=node)
        edit.replace(node.outputs[0], edit.insert_main(ir.node("Add", [rounded, zero]), before=node))
        return
    truncated = insert("Mul", insert("Sign", value), insert("Floor", insert("Abs", value)))
    remainder = insert("Sub", value, truncated)
    for user, index in list(node.outputs[0].uses()):
        if _is_difference(user, value, node):
            difference = insert("Sub", truncated, value, before=user)
            edit.replace(user.outputs[0], insert("Add", value, difference, before=user))
        else:
            edit.replace_input(user, index, remainder)


def _report(node: ir.Node, context: Context) -> None:
    """Reports the quotient of x and a scale that becomes an integer without Round."""
    found = _arithmetic(node) if node.op_type == "Sub" else _cast(node)
    value, how = found or (None, "")
    while (step := producer_of(value, *BOUNDING, *_OTHER_ROUNDING, "Cast")) is not None:
        how = f"rounded by {step.op_type}" if step.op_type in _OTHER_ROUNDING else how
        value = step.inputs[0]
    quotient = producer_of(value, *SCALING)
    if quotient is None or None in quotient.inputs or any(map(context.facts.is_constant, quotient.inputs)):
        return
    x, scale = (each for each in quotient.inputs if each is not None)
    pairs = ((x, scale),) if quotient.op_type == "Div" else ((x, scale), (scale, x))
    if any(broadcasts(small, large) and not same_shape(small, large) for large, small in pairs):
        raise Unconverted(Reason.NOT_ROUNDED, how=how)


def _cast(node: ir.Node) -> tuple[ir.Value | None, str] | None:
    """Returns what is cast to 8 bits, or to a wider integer and back, and how the codes are made."""
    use = only_use(node.outputs[0]) if cast_to(node) in WIDE_TYPES else None
    is_back = use is not None and use.node.op_type == "Cast" and cast_to(use.node).is_floating_point()
    return (node.inputs[0], "truncated") if is_back or cast_to(node) in CODE_TYPES else None


def _arithmetic(node: ir.Node) -> tuple[ir.Value | None, str] | None:
    """Returns what is rounded by a sum or a remainder, and how the codes are made."""
    value, remainder = node.inputs[0], producer_of(node.inputs[1], "Mod")
    if value is not None and remainder is not None and _is_difference(node, value, remainder):
        return (value, "rounded by Mod") if constant_scalar(remainder.inputs[1]) == 1 else None
    found = _added_and_subtracted(node)
    if found is None or abs(found[1]) < _MIN_SUM:
        return None
    return found[0], f"rounded by adding and subtracting {found[1]:.0f}"


_SUB = SUMS - {"Add"}
RULE: Rule[_Rounded] = Rule("rounding by arithmetic", 13, _match, _build, prepares=True, operators=_SUB | {"Mod"})
NOT_ROUNDED: Rule[None] = Rule("truncated codes", 10, _report, operators=_SUB | {"Cast"})
