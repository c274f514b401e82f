"""The rule for the int32 sums of integer products that DequantizeLinear scales, as onnx-quantize writes them.

MatMulInteger | ConvInteger, [Add of int32], DequantizeLinear      -> the same nodes, Cast, Mul

ONNX Runtime computes the same: the integer as a float, times the scale. The rules of products read the second form.
"""

from __future__ import annotations

import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.nodes import first_inputs, producer_of
from ..analysis.shapes import has_one_element
from ..analysis.standard import INTEGER_PRODUCTS, SUMS
from ..edit import Edit
from ..rule import Context, Rule


def _match(node: ir.Node, _: Context) -> ir.Value | None:
    """Returns the scale: one number, or one for each index of the last axis."""
    sums, scale, zero_point = first_inputs(node, 3)
    if sums is None or scale is None or sums.dtype != ir.DataType.INT32 or scale.dtype != ir.DataType.FLOAT:
        return None
    if zero_point is not None and constant_scalar(zero_point) != 0:
        return None
    if node.attributes.get_int("block_size", 0) or not _is_sum(sums):
        return None
    last = (-1,) if sums.shape is None else (-1, len(sums.shape) - 1)
    return scale if has_one_element(scale) or node.attributes.get_int("axis", 1) in last else None


def _is_sum(value: ir.Value) -> bool:
    """Returns whether a value is a sum of an integer product, or this plus or minus another number."""
    node = producer_of(value, *SUMS)
    return any(producer_of(each, *INTEGER_PRODUCTS) for each in (value, *(node.inputs if node is not None else ())))


def _build(scale: ir.Value, edit: Edit) -> None:
    node, result = edit.node, edit.node.outputs[0]
    cast = edit.insert(ir.node("Cast", node.inputs[:1], {"to": int(ir.DataType.FLOAT)}), before=node)
    scaled = edit.insert_main(ir.node("Mul", [cast, scale]), before=node)
    for value in (cast, scaled):
        edit.facts.note(value, ir.DataType.FLOAT, result.shape)
    edit.replace(result, scaled)


RULE: Rule[ir.Value] = Rule(
    "DequantizeLinear of sums", 13, _match, _build, prepares=True, operators=("DequantizeLinear",)
)
