"""The rule for embeddings of the weights of a product: tied embeddings.

GatherBlockQuantized    -> GatherND of packed weights, Gather of scales and zero points, DynamicDequantize
Gather of 8-bit codes   -> GatherND of packed weights

The product has become QuantizedMatMul. Its packed weights are in another order. The rows are gathered from these, so
that the model stores them once. The result has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..edit import Edit, call
from ..packed_rows import gathered_codes
from ..rule import Context, Rule
from ..weights.dequantized_weights import is_rows_of
from ..weights.tied_tables import TiedTable, TiedTables, root_of


@dataclass(frozen=True)
class _TiedRows:
    ids: ir.Value
    table: TiedTable
    dtype: ir.DataType


def _match(node: ir.Node, context: Context) -> _TiedRows | TiedTable | None:
    if node.domain != MICROSOFT:
        return _match_codes(node, context)
    data, ids, scales = node.inputs[:3]
    root = root_of(data)
    table = None if root is None else context.shared(TiedTables).found.get(root)
    if table is None or ids is None or scales is None or scales.dtype is None:
        return None
    return _TiedRows(ids, table, scales.dtype)


def _build(match: _TiedRows | TiedTable, edit: Edit) -> None:
    if isinstance(match, TiedTable):
        _build_codes(match, edit)
        return
    node, table, ids = edit.node, match.table, match.ids
    assert ids.shape is not None
    rank = len(ids.shape)

    def of_rows(stored: ir.Value) -> ir.Value:
        """[blocks, N] becomes [..., blocks]."""
        gathered = edit.insert(ir.node("Gather", [stored, ids], {"axis": 1}), before=node)
        order = [*range(1, rank + 1), 0]
        return edit.insert(ir.node("Transpose", [gathered], {"perm": order}), before=node)

    codes = gathered_codes(table.packed, ids, table.columns, table.depth, table.bits, edit)
    edit.facts.note(codes, ir.DataType.INT8, node.outputs[0].shape)
    scales = of_rows(table.scale)
    if table.scale.dtype != match.dtype:
        scales = edit.insert(ir.node("Cast", [scales], {"to": int(match.dtype)}), before=node)
    is_one = table.zero_point.shape is not None and table.zero_point.shape.rank() == 1
    zero_point = table.zero_point if is_one else of_rows(table.zero_point)
    inputs = [codes, scales, zero_point]
    main = call("DynamicDequantize", inputs, qtype="per_group", axis=-1, block_size=table.block_size)
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))
    edit.note = "rows of the packed weights of a product"


def _match_codes(node: ir.Node, context: Context) -> TiedTable | None:
    root = node.inputs[0]
    table = None if root is None else context.shared(TiedTables).found.get(root)
    return table if table is not None and root is not None and is_rows_of(node, root) else None


def _build_codes(table: TiedTable, edit: Edit) -> None:
    node, ids, result = edit.node, edit.node.inputs[1], edit.node.outputs[0]
    assert ids is not None
    codes = gathered_codes(table.packed, ids, table.columns, table.depth, table.bits, edit)
    edit.facts.note(codes, ir.DataType.INT8, result.shape)
    edit.operator, edit.note = "GatherND", "rows of the packed weights of a product"
    if result.dtype == ir.DataType.UINT8:  # packed weights are 128 smaller
        wide = edit.insert(ir.node("Cast", [codes], {"to": int(ir.DataType.INT32)}), before=node)
        number = edit.add_constant(np.int32(128), before=node)
        larger = edit.insert(ir.node("Add", [wide, number]), before=node)
        codes = edit.insert(ir.node("Cast", [larger], {"to": int(ir.DataType.UINT8)}), before=node)
    edit.replace(result, codes)


RULE: Rule[_TiedRows | TiedTable] = Rule(
    "tied embedding", OPSET, _match, _build, operators=("Gather", f"{MICROSOFT}.GatherBlockQuantized")
)
