"""The rule for DynamicQuantizeLinear whose codes operators of ort_dynq read.

DynamicQuantizeLinear(x)    -> ort_dynq.DynamicQuantizeLinear(x)

ONNX Runtime's takes longer than many convolutions that read its codes. It stays where ONNX Runtime fuses it with a
MatMulInteger.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ...operators import DOMAIN
from ..analysis.values import producer_of
from ..edit import Edit, call
from ..policy.cost import FEWEST_ELEMENTS
from ..rule import Context, Rule


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if producer_of(node.outputs[0], "DynamicQuantizeLinear") is not node:
        return None
    x, users = node.inputs[0], [use.node for use in node.outputs[0].uses()]
    if x is None or not any(user.domain == DOMAIN for user in users):
        return None
    if any(user.op_type == "MatMulInteger" for user in users):
        return None
    if x.shape is not None and x.shape.is_static() and math.prod(x.shape.numpy()) < FEWEST_ELEMENTS:
        return None
    edit = context.edit("DynamicQuantizeLinear", node)
    new = call(edit.operator, [x])
    edit.insert_main(new, before=node)
    for old, replacement in zip(node.outputs, new.outputs, strict=True):
        edit.replace(old, replacement)
    return edit


RULE = Rule("DynamicQuantizeLinear", 11, _apply)
