"""The rule that reports codes which are cast to 8 bits without Round. It changes nothing.

Cast(x / s) to 8 bits, without Round    -> unconverted
"""

from __future__ import annotations

import onnx_ir as ir

from ..analysis.nodes import cast_to, producer_of
from ..analysis.shapes import broadcasts, same_shape
from ..analysis.types import CODE_TYPES
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule


def _match(node: ir.Node, context: Context) -> None:
    """Reports the quotient of x and a scale that is cast to 8 bits without Round."""
    if producer_of(node.outputs[0], "Cast") is not node or cast_to(node) not in CODE_TYPES or node.inputs[0] is None:
        return
    value, how = node.inputs[0], "truncated"
    while (step := producer_of(value, "Cast", "Clip", "Floor", "Ceil", "Min", "Max")) is not None:
        if step.inputs[0] is None:
            return
        how = f"rounded by {step.op_type}" if step.op_type in ("Floor", "Ceil") else how
        value = step.inputs[0]
    quotient = producer_of(value, "Div", "Mul")
    if quotient is None or None in quotient.inputs or any(map(context.facts.is_constant, quotient.inputs)):
        return
    x, scale = (each for each in quotient.inputs if each is not None)
    pairs = ((x, scale),) if quotient.op_type == "Div" else ((x, scale), (scale, x))
    if not any(broadcasts(small, large) and not same_shape(small, large) for large, small in pairs):
        return
    raise Unconverted(Reason.NOT_ROUNDED, how=how)


RULE: Rule[None] = Rule("truncated codes", 10, _match)
