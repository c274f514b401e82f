"""Gathers rows of a table from the packed weights of a product: its columns are these rows.

So the table of a tied embedding, which the last product of a language model multiplies by, is stored once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..operators.packing import BLOCK_COLUMNS, QUAD
from .edit import Edit

_PER_BYTE = {8: 1, 4: 2}  # codes, by their bits


def is_whole(depth: int, bits: int) -> bool:
    """Returns whether packed weights of so many rows have no padding there."""
    return bits in _PER_BYTE and depth % (QUAD * _PER_BYTE[bits]) == 0


def gathered_codes(packed: ir.Value, ids: ir.Value, count: int, depth: int, bits: int, edit: Edit) -> ir.Value:
    """Records nodes that gather codes from packed weights; returns these, int8, [..., K].

    Row n is in the packed weights [block, quad, column, 4] at block n / 16, column n % 16, and all quads. A byte of 4
    bits has the code of one k, and of the k 4 later in its high half.

    Args:
        packed: The packed weights, of 8 or 4 bits.
        ids: The numbers of the rows, of known rank. They may count from the end.
        count, depth: The numbers of columns and of rows of the weights. These are :func:`is_whole`.
        bits: The bits of a code.
        edit: The edit.
    """
    node = edit.node
    assert ids.shape is not None

    def insert(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        return edit.insert(ir.node(op_type, list(inputs), attributes), before=node)

    def constant(numbers: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> ir.Value:
        return edit.add_constant(np.array(numbers, dtype), before=node)

    quads = np.zeros((depth // (QUAD * _PER_BYTE[bits]), 3), np.int64)
    quads[:, 1] = np.arange(len(quads))
    wide = insert("Cast", ids, to=int(ir.DataType.INT64))
    row = insert("Mod", wide, constant(count))  # of 0 and more
    column = insert("Unsqueeze", row, constant([-2, -1]))
    block_and_row = insert("Div", column, constant([BLOCK_COLUMNS, 2 * count, 1]))  # and 0 between them
    block_and_column = insert("Mod", block_and_row, constant([2 * count, 2 * count, BLOCK_COLUMNS]))
    indices = insert("Add", block_and_column, constant(quads))  # [..., quads, 3]
    collected = insert("GatherND", packed, indices)
    if bits == 4:
        numbers = insert("Cast", collected, to=int(ir.DataType.INT32))
        in_bytes = insert("Mod", numbers, constant(256, np.int32))
        low = insert("Mod", in_bytes, constant(16, np.int32))
        high = insert("Div", in_bytes, constant(16, np.int32))
        both = insert("Concat", low, high, axis=-1)
        collected = insert("Cast", both, to=int(ir.DataType.INT8))
    return insert("Reshape", collected, constant([0] * len(ids.shape) + [depth]))
