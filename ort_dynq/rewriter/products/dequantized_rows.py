"""The rule for embeddings of codes: ONNX Runtime dequantizes the whole table in every run, and picks rows after it.

DequantizeLinear of a constant table, [Cast], Gather of rows    -> Gather of codes, DequantizeLinear
                                                                -> Gather of codes and of scales, Cast, Sub, Mul

The second form has a scale for each row, scales of float16, or int8 codes with one scale. Between nodes without a
kernel of float16, ONNX Runtime runs a DequantizeLinear with an input that it computes in float32, and does not round.
It repeats one with one scale behind a Reshape or Transpose, after a QuantizeLinear of uint8: the session does not open,
or codes below 0 are lost. Both forms have the same bits: an element is (code - zero point) * scale, rounded once,
wherever it is. float32 holds the product with a scale of float16. ONNX Runtime leaves out a Cast to float16 before its
own Cast back: then the indices get a dimension, and the rows lose it after the Cast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..analysis.nodes import input_of, producer_of
from ..analysis.shapes import has_one_element
from ..chains.quantize_linear import reads_rounded
from ..edit import Edit
from ..policy.cost import is_short_table
from ..rule import Context, Rule

_RANK_OF_TABLE = 2
_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class _EmbeddedRows:
    """The nodes of an embedding, the type of its scales, and whether it has a scale for each row."""

    dequantizer: ir.Node
    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    dtype: ir.DataType
    is_of_rows: bool


def _match(node: ir.Node, context: Context) -> _EmbeddedRows | None:
    if node.attributes.get_int("axis", 0) != 0 or None in node.inputs:
        return None
    cast, indices = producer_of(node.inputs[0], "Cast"), node.inputs[1]
    dequantizer = producer_of(node.inputs[0] if cast is None else cast.inputs[0], "DequantizeLinear")
    if dequantizer is None or indices is None or context.facts.is_constant(indices):
        return None
    codes, scale = dequantizer.inputs[:2]
    zero_point = input_of(dequantizer, 2)
    given = [each for each in (codes, scale, zero_point) if each is not None]
    if codes is None or scale is None or not all(map(context.facts.is_constant, given)):
        return None
    shape, count = codes.shape, None if indices.shape is None else indices.shape
    if codes.dtype not in _TYPES or scale.dtype not in _FLOATS or shape is None or not shape.is_static():
        return None
    if "output_dtype" in dequantizer.attributes or node.outputs[0].dtype not in _FLOATS:
        return None
    picked = math.prod(count.numpy()) if count is not None and count.is_static() else None
    is_plain = not dequantizer.attributes.get_int("block_size", 0) and len(shape) == _RANK_OF_TABLE
    if not is_plain or is_short_table(shape.numpy()[0], picked):
        return None
    axis = dequantizer.attributes.get_int("axis", 1) % _RANK_OF_TABLE
    is_of_rows = not has_one_element(scale) and axis == 0
    return _EmbeddedRows(dequantizer, codes, scale, zero_point, scale.dtype, is_of_rows)


def _build(match: _EmbeddedRows, edit: Edit) -> None:
    node, indices, result = edit.node, edit.node.inputs[1], edit.node.outputs[0]
    assert indices is not None
    first = None
    if result.dtype == ir.DataType.FLOAT16 and not all(reads_rounded(use.node) for use in result.uses()):
        first = edit.add_constant(np.array([0]), before=node)
        shape, dtype = indices.shape, indices.dtype
        indices = edit.insert(ir.node("Unsqueeze", [indices, first]), before=node)
        if shape is not None and dtype is not None:
            edit.facts.note(indices, dtype, ir.Shape([1, *shape]))

    def gathered(value: ir.Value) -> ir.Value:
        found = edit.insert(ir.node("Gather", [value, indices], {"axis": 0}), before=node)
        if value.dtype is not None:
            is_rows = value is match.codes and first is None
            edit.facts.note(found, value.dtype, result.shape if is_rows else None)
        return found

    rows = gathered(match.codes)
    is_repeated = has_one_element(match.scale) and match.codes.dtype == ir.DataType.INT8
    if not (match.is_of_rows or is_repeated) and match.dtype == result.dtype == ir.DataType.FLOAT:
        others = [each for each in (match.scale, match.zero_point) if each is not None]
        attributes = {} if has_one_element(match.scale) else {"axis": -1}
        main = ir.node("DequantizeLinear", [rows, *others], attributes)
        edit.replace(result, edit.insert_main(main, before=node))
        return
    last = edit.add_constant(np.array([-1]), before=node) if match.is_of_rows else None

    def of_rows(value: ir.Value) -> ir.Value:
        return value if last is None else edit.insert(ir.node("Unsqueeze", [gathered(value), last]), before=node)

    def as_float(value: ir.Value) -> ir.Value:
        return edit.insert(ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}), before=node)

    numbers, scale = as_float(rows), of_rows(match.scale)
    if match.zero_point is not None:
        numbers = edit.insert(ir.node("Sub", [numbers, as_float(of_rows(match.zero_point))]), before=node)
    scale = scale if match.dtype == ir.DataType.FLOAT else as_float(scale)
    found = edit.insert_main(ir.node("Mul", [numbers, scale]), before=node)
    for dtype in dict.fromkeys((match.dtype, result.dtype)):
        if dtype is not None and not (dtype == ir.DataType.FLOAT == match.dtype):
            found = edit.insert(ir.node("Cast", [found], {"to": int(dtype)}), before=node)
    edit.replace(result, found if first is None else edit.insert(ir.node("Squeeze", [found, first]), before=node))


RULE: Rule[_EmbeddedRows] = Rule("rows of a dequantized table", 13, _match, _build, operators=("Gather",))
