"""The rule for codes that are rounded by arithmetic, as code for devices without a rounding instruction writes it.

(v + c) - c              -> Round(v) + 0           v, or the bounds after it, lie where floats near c are integers
v - Mod(v, 1)            -> v + (t - v)            t = Sign(v) * Floor(Abs(v))
Mod(v, 1) >= 1/2         -> (v - t) >= 1/2

All results stay bit for bit. c is an even integer from 2^23 to 2^24, such as 1.5 * 2^23: there the distance of float32
numbers is 1, so that the sum is rounded, half to even. It has no -0, as Round(v) + 0 has none. Mod(v, 1), with the sign
of v, is v - t, and v - (v - t) is t, except for infinite v, where both are NaN, and for the sign of a zero, which
v + (t - v) has. That is the straight-through estimator of t, which other rules read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import bounds_of, constant_operand
from ..analysis.constants import constant_scalar
from ..analysis.limits import CHAIN
from ..analysis.nodes import is_standard, only_use, producer_of
from ..analysis.standard import ORDERINGS, SUMS
from ..analysis.values import Values
from ..edit import Edit
from ..rule import Context, Rule

_INTEGERS = 2.0**23, 2.0**24  # between these, float32 numbers are the integers


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


def _by_sum(node: ir.Node, context: Context) -> _Rounded | None:
    """Returns v of (v + c) - c, or of (v - c) + c, which is the same."""
    added, number = producer_of(node.inputs[0], "Add"), constant_scalar(node.inputs[1])
    found = None if added is None else constant_operand(added, commutative=True)
    if found is None or number is None or found[1] != number or number % 2:
        return None
    value, (least, most) = found[0], (end - number for end in _INTEGERS)
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


RULE: Rule[_Rounded] = Rule(
    "rounding by arithmetic", 13, _match, _build, prepares=True, operators=SUMS - {"Add"} | {"Mod"}
)
