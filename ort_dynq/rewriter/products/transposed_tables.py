"""The rule for tied tables of codes that are transposed before they are dequantized, as quantize_dynamic writes them.

table of codes, Transpose, DequantizeLinear     -> DequantizeLinear, Transpose

Both have the same bits. Gather reads rows of the same table, so that its product can share the packed weights with
them (tied_embedding.py): other rules read the second form. With ``exact``, the product stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ..analysis.nodes import input_of, producer_of
from ..analysis.shapes import has_one_element
from ..edit import Edit
from ..rule import Context, Rule
from ..weights.dequantized_weights import is_rows_of

_TURNED = [1, 0]


@dataclass(frozen=True)
class _Table:
    """The codes before the Transpose, and the axis of their scales."""

    codes: ir.Value
    axis: int


def _match(node: ir.Node, context: Context) -> _Table | None:
    if context.options.exact or len(node.inputs) < 2:
        return None
    transpose, scale = producer_of(node.inputs[0], "Transpose"), node.inputs[1]
    codes = None if transpose is None else transpose.inputs[0]
    if transpose is None or codes is None or codes.shape is None or len(codes.shape) != len(_TURNED) or scale is None:
        return None
    if list(transpose.attributes.get_ints("perm", _TURNED)) != _TURNED or node.attributes.get_int("block_size", 0) > 0:
        return None
    given = (codes, scale, input_of(node, 2))
    if not all(map(context.facts.is_constant, given)) or not any(is_rows_of(use.node, codes) for use in codes.uses()):
        return None
    axis = 0 if node.attributes.get_int("axis", 1) % len(_TURNED) else 1
    return _Table(codes, 1 if has_one_element(scale) else axis)


def _build(table: _Table, edit: Edit) -> None:
    node, result, facts = edit.node, edit.node.outputs[0], edit.facts
    attributes = {**node.attributes, "axis": ir.AttrInt64("axis", table.axis)}
    rows = edit.insert(ir.node("DequantizeLinear", [table.codes, *node.inputs[1:]], attributes), before=node)
    if result.dtype is not None:
        facts.note(rows, result.dtype, table.codes.shape)
    turned = edit.insert_main(ir.node("Transpose", [rows], {"perm": _TURNED}), before=node)
    edit.replace(result, turned)


RULE: Rule[_Table] = Rule("transposed table", 13, _match, _build, prepares=True, operators=("DequantizeLinear",))
