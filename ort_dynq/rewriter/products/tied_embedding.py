"""The rule for embeddings of the weights of a product: tied embeddings.

GatherBlockQuantized    -> GatherDequantize
Gather of 8-bit codes   -> GatherDequantize with scales of 1, Cast

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
from ..rule import Context, Rule
from ..weights.dequantized_weights import is_rows_of
from ..weights.tied_tables import TiedTable, TiedTables, root_of


@dataclass(frozen=True)
class _TiedRows:
    ids: ir.Value
    table: TiedTable
    is_codes: bool


def _match(node: ir.Node, context: Context) -> _TiedRows | None:
    data, ids = node.inputs[:2]
    is_codes = node.domain != MICROSOFT
    root = data if is_codes else root_of(data)
    table = None if root is None else context.shared(TiedTables).found.get(root)
    if table is None or ids is None or root is None or (is_codes and not is_rows_of(node, root)):
        return None
    return _TiedRows(ids, table, is_codes)


def _build(match: _TiedRows, edit: Edit) -> None:
    node, table, result = edit.node, match.table, edit.node.outputs[0]
    assert result.dtype is not None
    scale, zero_point = table.scale, table.zero_point
    if match.is_codes:  # packed weights are 128 smaller than unsigned codes
        one = edit.add_constant(np.float32(1), before=node)
        shape = edit.add_constant(np.array([1, table.columns]), before=node)
        scale = edit.insert(ir.node("Expand", [one, shape]), before=node)
        zero_point = edit.add_constant(np.int8(-128 if result.dtype == ir.DataType.UINT8 else 0), before=node)
    elif scale.dtype != result.dtype:
        scale = edit.insert(ir.node("Cast", [scale], {"to": int(result.dtype)}), before=node)
    main = call("GatherDequantize", [match.ids, table.packed, zero_point, scale], bits=table.bits)
    rows = edit.insert_main(main, before=node)
    if match.is_codes:
        rows = edit.insert(ir.node("Cast", [rows], {"to": int(result.dtype)}), before=node)
    edit.replace(result, rows)
    edit.note = "rows of the packed weights of a product"


RULE: Rule[_TiedRows] = Rule(
    "tied embedding", OPSET, _match, _build, operators=("Gather", f"{MICROSOFT}.GatherBlockQuantized")
)
