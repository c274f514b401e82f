"""The rule for codes from which a zero point is subtracted before they are rounded, as OpenVINO and NNCF write them.

Round(g - z)    -> (Round(g - z) + z) - z       z is an integer, g lies within 0 and 255

The codes of a row lie within -z and 255 - z, other bounds for each row. The sum with z lies within 0 and 255: it is the
code, and z its zero point. Only the sign of a zero changes, so the rule does not apply if results must be exact.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..analysis.nodes import is_standard, only_use, producer_of
from ..analysis.shapes import same_shape
from ..analysis.standard import SCALING
from ..analysis.values import Values
from ..edit import Edit
from ..rule import Context, Rule

_CODES = 255


def _match(node: ir.Node, context: Context) -> ir.Value | None:
    """Returns the zero point."""
    difference = None if context.options.exact else producer_of(node.inputs[0], "Sub")
    use = only_use(node.outputs[0]) if difference is not None else None
    if difference is None or use is None or not is_standard(use.node, *SCALING) or None in difference.inputs:
        return None
    values = context.shared(Values)
    g, z = (each for each in difference.inputs if each is not None)
    known, zero_point, codes = values.known(g), values.known(z), values.known(node.outputs[0])
    is_row = zero_point.is_integer and not same_shape(g, z) and not context.facts.is_constant(z)
    if not is_row or node.outputs[0].dtype != ir.DataType.FLOAT or codes.high - codes.low <= _CODES:
        return None
    is_zero_point = zero_point.fits(-_CODES - 1, _CODES + 1)
    return z if is_zero_point and np.rint(known.high) - np.rint(known.low) <= _CODES else None


def _build(zero_point: ir.Value, edit: Edit) -> None:
    node, shape = edit.node, edit.node.outputs[0].shape
    rounded = edit.insert(ir.node("Round", node.inputs), before=node)
    codes = edit.insert(ir.node("Add", [rounded, zero_point]), before=node)
    for value in (rounded, codes):
        edit.facts.note(value, ir.DataType.FLOAT, shape)
    edit.replace(node.outputs[0], edit.insert_main(ir.node("Sub", [codes, zero_point]), before=node))


RULE: Rule[ir.Value] = Rule("codes beside a zero point", 13, _match, _build, prepares=True, operators=("Round",))
