"""Tables of embeddings that are the weights of a MatMulNBits, too: GatherBlockQuantized reads the same codes.

The weights of products note them here, and the rule of tied_embedding.py finds them, so that weights know no rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import MICROSOFT
from ...operators.packing import is_whole
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs, producer_of
from ..analysis.standard import RESHAPES

_MOVES = ("Identity", *RESHAPES)


@dataclass(frozen=True)
class TiedTable:
    """The weights of a product that rows can be gathered from.

    Attributes:
        columns, bits: Those of the product; a column is a row of the table.
        packed, zero_point, scale: The weights as QuantizedMatMul has them.
    """

    columns: int
    bits: int
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
    data, ids, *parameters = first_inputs(node, 4)
    if data is None or ids is None or data.shape is None or data.dtype != ir.DataType.UINT8:
        return False
    others = first_inputs(product, 4)[2:]
    has_same = all(root_of(one) is root_of(other) for one, other in zip(parameters, others, strict=True))
    is_code = others[1] is None or others[1].dtype == ir.DataType.UINT8
    given = number("bits", 4), number("block_size", 128), number("gather_axis", 0), number("quantize_axis", 1) % 2
    is_matrix = data.shape == (columns, depth * bits // 8)
    fits = is_whole(depth, bits) and size > 0 and depth % size == 0
    return has_same and is_code and given == (bits, size, 0, 1) and is_matrix and fits
