"""The rule for embeddings of codes: ONNX Runtime dequantizes the whole table in every run, and picks rows after it.

DequantizeLinear of a constant table, Gather of rows    -> Gather of codes, DequantizeLinear
                                                        -> Gather of codes and of scales, Cast, Sub, Mul

The second form has a scale for each row. Both have the same bits: an element is (code - zero point) * scale, rounded
once, wherever it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..analysis.nodes import input_of, is_standard, producer_of
from ..analysis.shapes import has_one_element
from ..edit import Edit
from ..policy.cost import is_short_table
from ..rule import Context, Rule

_RANK_OF_TABLE = 2
_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class _EmbeddedRows:
    """The nodes of an embedding, and whether it has a scale for each row."""

    dequantizer: ir.Node
    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    is_of_rows: bool


def _match(node: ir.Node, context: Context) -> _EmbeddedRows | None:
    if not is_standard(node, "Gather") or node.attributes.get_int("axis", 0) != 0 or None in node.inputs:
        return None
    dequantizer, indices = producer_of(node.inputs[0], "DequantizeLinear"), node.inputs[1]
    if dequantizer is None or indices is None or context.facts.is_constant(indices):
        return None
    codes, scale = dequantizer.inputs[:2]
    zero_point = input_of(dequantizer, 2)
    given = [each for each in (codes, scale, zero_point) if each is not None]
    if codes is None or scale is None or not all(map(context.facts.is_constant, given)):
        return None
    shape, count = codes.shape, None if indices.shape is None else indices.shape
    if codes.dtype not in _TYPES or scale.dtype != ir.DataType.FLOAT or shape is None or not shape.is_static():
        return None
    picked = math.prod(count.numpy()) if count is not None and count.is_static() else None
    is_plain = not dequantizer.attributes.get_int("block_size", 0) and len(shape) == _RANK_OF_TABLE
    if not is_plain or is_short_table(shape.numpy()[0], picked):
        return None
    axis = dequantizer.attributes.get_int("axis", 1) % _RANK_OF_TABLE
    is_of_rows = not has_one_element(scale) and axis == 0
    return _EmbeddedRows(dequantizer, codes, scale, zero_point, is_of_rows)


def _build(match: _EmbeddedRows, edit: Edit) -> None:
    node, indices, result = edit.node, edit.node.inputs[1], edit.node.outputs[0]

    def gathered(value: ir.Value) -> ir.Value:
        found = edit.insert(ir.node("Gather", [value, indices], {"axis": 0}), before=node)
        if value.dtype is not None:
            edit.facts.note(found, value.dtype, result.shape if value is match.codes else None)
        return found

    rows = gathered(match.codes)
    if not match.is_of_rows:
        others = [each for each in (match.scale, match.zero_point) if each is not None]
        attributes = {} if has_one_element(match.scale) else {"axis": -1}
        main = ir.node("DequantizeLinear", [rows, *others], attributes)
        edit.replace(result, edit.insert_main(main, before=node))
        return
    last = edit.add_constant(np.array([-1]), before=node)

    def of_rows(value: ir.Value) -> ir.Value:
        return edit.insert(ir.node("Unsqueeze", [gathered(value), last]), before=node)

    def as_float(value: ir.Value) -> ir.Value:
        return edit.insert(ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}), before=node)

    numbers = as_float(rows)
    if match.zero_point is not None:
        numbers = edit.insert(ir.node("Sub", [numbers, as_float(of_rows(match.zero_point))]), before=node)
    edit.replace(result, edit.insert_main(ir.node("Mul", [numbers, of_rows(match.scale)]), before=node))


RULE: Rule[_EmbeddedRows] = Rule("rows of a dequantized table", 13, _match, _build)
