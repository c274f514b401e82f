"""The rule for GatherBlockQuantized of the weights of a product: a tied embedding.

GatherBlockQuantized    -> GatherND of packed weights, Gather of scales and zero points, DynamicDequantize

The product has become QuantizedMatMul, whose packed weights are in another order. The rows are gathered from these, so
that the model stores them once. The result has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.inference import Facts
from ..analysis.nodes import producer_of
from ..analysis.shapes import RESHAPES
from ..edit import Edit, call
from ..packed_rows import gathered_codes, is_whole
from ..rule import Context, Rule

_MOVES = ("Identity", *RESHAPES)


@dataclass(frozen=True)
class TiedTable:
    """The weights of a product that rows can be gathered from.

    Attributes:
        depth, columns, bits, block_size: Those of the product; a column is a row of the table.
        packed, zero_point, scale: The weights as QuantizedMatMul has them.
    """

    depth: int
    columns: int
    bits: int
    block_size: int
    packed: ir.Value
    zero_point: ir.Value
    scale: ir.Value


class TiedTables:
    """The packed weights of the converted products, by the initializers that they were read from."""

    def __init__(self, _: Facts) -> None:
        self.found: dict[ir.Value, TiedTable] = {}


def root_of(value: ir.Value | None) -> ir.Value | None:
    """Returns the value that a value is a reshaping of."""
    while (node := producer_of(value, *_MOVES)) is not None:
        value = node.inputs[0]
    return value


def reads_table(reader: ir.Node, product: ir.Node) -> bool:
    """Returns whether a node only gathers rows of the weights of a MatMulNBits, or reshapes them for nodes that do."""
    if reader.op_type in _MOVES and not reader.domain:
        (moved,) = reader.outputs
        return not moved.is_graph_output() and all(reads_table(use.node, product) for use in moved.uses())
    return is_table_of(reader, product)


def is_table_of(node: ir.Node, product: ir.Node) -> bool:
    """Returns whether a node gathers rows of the weights of a MatMulNBits, with the same scales and zero points."""
    if node.domain != MICROSOFT or node.op_type != "GatherBlockQuantized":
        return False
    number, of_product = node.attributes.get_int, product.attributes.get_int
    depth, columns, bits = of_product("K", 0), of_product("N", 0), of_product("bits", 4)
    size = of_product("block_size", 0)
    data, ids, *parameters = [*node.inputs, None, None][:4]
    if data is None or ids is None or data.shape is None or ids.shape is None or data.dtype != ir.DataType.UINT8:
        return False
    others = [*product.inputs, None, None][2:4]
    has_same = all(root_of(one) is root_of(other) for one, other in zip(parameters, others, strict=True))
    is_code = others[1] is None or others[1].dtype == ir.DataType.UINT8
    given = number("bits", 4), number("block_size", 128), number("gather_axis", 0), number("quantize_axis", 1) % 2
    is_matrix = data.shape == (columns, depth * bits // 8)
    fits = is_whole(depth, bits) and size > 0 and depth % size == 0
    fits = fits and ids.shape.rank() > 0  # in functions, DequantizeLinear has no blocks of one scale
    return has_same and is_code and given == (bits, size, 0, 1) and is_matrix and fits


@dataclass(frozen=True)
class _Rows:
    ids: ir.Value
    table: TiedTable
    dtype: ir.DataType


def _match(node: ir.Node, context: Context) -> _Rows | None:
    if node.domain != MICROSOFT or node.op_type != "GatherBlockQuantized":
        return None
    data, ids, scales = node.inputs[:3]
    root = root_of(data)
    table = None if root is None else context.shared(TiedTables).found.get(root)
    if table is None or ids is None or scales is None or scales.dtype is None:
        return None
    return _Rows(ids, table, scales.dtype)


def _build(match: _Rows, edit: Edit) -> None:
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


RULE = Rule("tied embedding", OPSET, _match, _build)
