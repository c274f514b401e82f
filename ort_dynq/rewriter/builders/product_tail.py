"""The nodes after a product of codes, which turn its int32 sums into floats: with it, they become QuantizedMatMul."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators import DOMAIN
from ...operators.encodings import ScaleOrder
from ...operators.packing import pack
from ...operators.quantized_matmul import LONGEST_SUM, LONGEST_SYMMETRIC_SUM
from ..edit import Edit, call
from ..facts.folding import evaluate
from ..facts.grid import Grid
from ..facts.inference import Facts
from ..facts.shapes import is_shape_of_rows
from ..facts.values import attributes_of, only_use, producer_of, skip_identity
from ..report import Left
from ..rule import Context
from .shared_initializers import SharedInitializers
from .unsigned_codes import UnsignedCodes


@dataclass
class Tail:
    """What follows the sums of a product.

    Attributes:
        last: The float value that QuantizedMatMul computes.
        row: A scale for each row, or for each of its groups, or one for all; None if there is none.
        column: float32, [N] or [groups, N], a scale for each column, or for each of its groups; None if there is none.
        scale_order: The order in which the sums are multiplied by the scales.
        bias: One number for each column, or for all; None if there is none.
        subtracted: int32, [N], subtracted from the sums; None if nothing is.
    """

    last: ir.Value
    row: ir.Value | None = None
    column: npt.NDArray[np.float32] | None = None
    scale_order: ScaleOrder = ScaleOrder.COLUMN_FIRST
    bias: ir.Value | None = None
    subtracted: npt.NDArray[np.int32] | None = None

    @property
    def node(self) -> ir.Node:
        """The node that computes `last`."""
        node = self.last.producer()
        assert node is not None
        return node

    def take_bias(self, columns: int, facts: Facts) -> None:
        """Moves `last` past an Add of a bias, if one follows."""
        use = only_use(self.last)
        if use is None or use.node.op_type != "Add":
            return
        bias = use.node.inputs[1 - use.idx]
        if bias is not None and is_bias(bias, columns, facts):
            self.bias, self.last = bias, use.node.outputs[0]

    def replace(self, codes: ir.Value, zero_point: ir.Value, grid: Grid, context: Context, edit: Edit) -> None:
        """Puts QuantizedMatMul in place of the product and of everything up to `last`.

        Args:
            codes: The codes of the activation, uint8, [..., M, K].
            zero_point: Their zero points, uint8: one for each row, or for each of its groups, or one for all.
            grid: The weights. Their scales are :attr:`column`.
            context: The context of the product.
            edit: The edit of the product.
        """
        columns, product, bias = grid.codes.shape[1], edit.node, self.bias
        shared = context.shared(SharedInitializers)

        def initializer(elements: npt.NDArray[Any]) -> ir.Value:
            return shared.of(elements, product, edit)

        if bias is None or bias.shape is None or list(bias.shape) != [columns]:
            numbers = None if bias is None else column_vector(bias, columns, np.float32, context.facts)
            # -0 + x is x for every x; 0 + -0 is not -0.
            bias = initializer(np.full(columns, -0.0, np.float32) if numbers is None else numbers)
        if self.row is None:
            row = edit.add_constant(np.float32(1), before=product)
        else:
            row = context.shared(UnsignedCodes).scale_of(self.row)
        column = np.ones(columns, np.float32) if self.column is None else self.column
        weights: list[npt.NDArray[Any]] = [
            pack(grid.codes, grid.bits),
            grid.zero_point,
            column.reshape(-1, columns),
            grid.sums,
        ]
        main = call(
            "QuantizedMatMul",
            [codes, row, zero_point, *(initializer(each) for each in weights), bias],
            bits=grid.bits,
            group_size=grid.group_size,
            scale_order=int(self.scale_order),
        )
        edit.replace(self.last, edit.insert_main(main, before=self.node))


def check_length(grid: Grid) -> None:
    """Checks that int32 holds the sums of products with these weights.

    Raises:
        Left: It may not.
    """
    is_symmetric = grid.bits == 8 and grid.zero_point.size == 1 and not grid.zero_point.any()
    length = grid.group_size or len(grid.codes)
    if length > (LONGEST_SYMMETRIC_SUM if is_symmetric else LONGEST_SUM):
        raise Left(f"sums of {length} products may overflow int32")


def is_bias(value: ir.Value, columns: int, facts: Facts) -> bool:
    """Returns whether a value is known to be a float32 vector of one number for each column, or a constant."""
    is_vector = value.dtype == ir.DataType.FLOAT and value.shape is not None and list(value.shape) == [columns]
    return is_vector or column_vector(value, columns, np.float32, facts) is not None


def column_vector(
    value: ir.Value | None, columns: int, dtype: type[np.generic], facts: Facts
) -> npt.NDArray[Any] | None:
    """Returns a constant as one value per column, [columns]; a scalar is broadcast. None for other values."""
    if value is None or not facts.is_constant(value) or value.shape is None or len(value.shape) > 1:
        return None
    elements = evaluate(value, facts.opset)
    if elements is None or elements.dtype != dtype or elements.size not in (1, columns):
        return None
    return np.array(np.broadcast_to(elements, columns))


def is_row_scale(value: ir.Value | None, codes: ir.Value) -> bool:
    """Returns whether `value` is known to hold float32 scales of the rows of `codes`, or one for all."""
    if value is None or value.dtype != ir.DataType.FLOAT:
        return False
    quantizer = skip_identity(value).producer()
    if quantizer is not None and quantizer.domain == DOMAIN and skip_identity(value) in quantizer.outputs[1:2]:
        cast = producer_of(codes, "Cast")
        of = codes if cast is None or cast.inputs[0] is None else cast.inputs[0]
        if of.producer() is quantizer and attributes_of(quantizer)["axis"] <= 0:
            return True
    return is_shape_of_rows(value, codes)
