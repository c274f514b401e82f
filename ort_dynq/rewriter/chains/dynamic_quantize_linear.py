"""The rule for DynamicQuantizeLinear with codes or a scale that operators of ort_dynq read.

DynamicQuantizeLinear(x)    -> ort_dynq.DynamicQuantizeLinear(x)

ONNX Runtime's own operator takes longer than many convolutions that read its codes. It stays where ONNX Runtime fuses
it with a MatMulInteger.
"""

from __future__ import annotations

import onnx_ir as ir

from ...operators import DOMAIN
from ..edit import Edit, call
from ..policy.cost import has_few_elements
from ..rule import Context, Rule


def _match(node: ir.Node, _: Context) -> ir.Value | None:
    x, users = node.inputs[0], [[use.node for use in output.uses()] for output in node.outputs]
    if x is None or not any(user.domain == DOMAIN for of_output in users for user in of_output):
        return None  # a product reads the scale, also if other nodes move the codes first
    if has_few_elements(x) or any(user.op_type == "MatMulInteger" for user in users[0]):
        return None
    return x


def _build(x: ir.Value, edit: Edit) -> None:
    new = call("DynamicQuantizeLinear", [x])
    edit.insert_main(new, before=edit.node)
    for old, replacement in zip(edit.node.outputs, new.outputs, strict=True):
        edit.replace(old, replacement)


RULE = Rule("DynamicQuantizeLinear", 11, _match, _build, operators=("DynamicQuantizeLinear",))
