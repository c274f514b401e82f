"""The rule that reports codes which are made without Round. It changes nothing.

Cast(x / s) to 8 bits, without Round                      -> unconverted
Cast(Cast(x / s)) to int32 or int64 and back to floats    -> unconverted
(x / s + c) - c, where c is 2^22 or more                  -> unconverted
x / s - Mod(x / s, 1)                                     -> unconverted
"""

from __future__ import annotations

import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.nodes import cast_to, only_use, producer_of
from ..analysis.shapes import broadcasts, same_shape
from ..analysis.standard import BOUNDING, ROUNDING, SCALING, SUMS
from ..analysis.types import CODE_TYPES
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule

_WIDE = (ir.DataType.INT32, ir.DataType.INT64)
_MIN_SUM = 2.0**22  # the distance of float32 numbers is 1/2 from here on


def _match(node: ir.Node, context: Context) -> None:
    """Reports the quotient of x and a scale that becomes an integer without Round."""
    found = _arithmetic(node) if node.op_type == "Sub" else _cast(node)
    if found is None:
        return
    value, how = found
    while (step := producer_of(value, *BOUNDING, *ROUNDING - {"Round"}, "Cast")) is not None:
        if step.inputs[0] is None:
            return
        how = f"rounded by {step.op_type}" if step.op_type in ROUNDING - {"Round"} else how
        value = step.inputs[0]
    quotient = producer_of(value, *SCALING)
    if quotient is None or None in quotient.inputs or any(map(context.facts.is_constant, quotient.inputs)):
        return
    x, scale = (each for each in quotient.inputs if each is not None)
    pairs = ((x, scale),) if quotient.op_type == "Div" else ((x, scale), (scale, x))
    if not any(broadcasts(small, large) and not same_shape(small, large) for large, small in pairs):
        return
    raise Unconverted(Reason.NOT_ROUNDED, how=how)


def _cast(node: ir.Node) -> tuple[ir.Value, str] | None:
    """Returns what is cast to 8 bits, or to a wider integer and back, and how the codes are made."""
    if node.inputs[0] is None:
        return None
    use = only_use(node.outputs[0]) if cast_to(node) in _WIDE else None
    is_back = use is not None and use.node.op_type == "Cast" and cast_to(use.node).is_floating_point()
    return (node.inputs[0], "truncated") if is_back or cast_to(node) in CODE_TYPES else None


def _arithmetic(node: ir.Node) -> tuple[ir.Value, str] | None:
    """Returns what is rounded by a sum or a remainder, and how the codes are made."""
    value, other = node.inputs
    remainder = producer_of(other, "Mod")
    if value is not None and remainder is not None and remainder.inputs[0] is value:
        return (value, "rounded by Mod") if constant_scalar(remainder.inputs[1]) == 1 else None
    added, number = producer_of(value, "Add"), constant_scalar(other)
    if added is None or number is None or abs(number) < _MIN_SUM:
        return None
    terms = [each for each in added.inputs if each is not None and constant_scalar(each) != number]
    return (terms[0], f"rounded by adding and subtracting {number:.0f}") if len(terms) == 1 else None


RULE: Rule[None] = Rule("truncated codes", 10, _match, operators=SUMS - {"Add"} | {"Cast"})
