"""The nodes after a product of codes, which turn its int32 sums into floats: they become AccumulatorDequantize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators import DOMAIN
from ...operators.encodings import ScaleOrder
from ..edit import Edit, call
from ..facts.folding import evaluate
from ..facts.inference import Facts
from ..facts.shapes import is_shape_of_rows
from ..facts.values import attributes_of, only_use, producer_of, skip_identity
from ..rule import Context
from .unsigned_codes import UnsignedCodes


@dataclass
class Tail:
    """What follows the sums of a product.

    Attributes:
        last: The float value that AccumulatorDequantize computes.
        row: A scale for each row, or one for all; None if there is none.
        column: float32, [N], a scale for each column; None if there is none.
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

    def replace(
        self,
        sums: ir.Value,
        zero_point: ir.Value,
        column_sums: npt.NDArray[np.int32],
        context: Context,
        edit: Edit,
    ) -> None:
        """Puts AccumulatorDequantize in place of everything between the sums and `last`.

        Args:
            sums: The int32 sums, [..., M, N].
            zero_point: The zero point of the codes that were multiplied.
            column_sums: The sum of each column of the weights, [N], by which the zero point is multiplied.
            context: The context of the product.
            edit: The edit that inserts the nodes.
        """
        columns, product, bias = column_sums.size, edit.node, self.bias
        if bias is None or bias.shape is None or list(bias.shape) != [columns]:
            numbers = None if bias is None else column_vector(bias, columns, np.float32, context.facts)
            # -0 + x is x for every x; 0 + -0 is not -0.
            bias = edit.add_initializer(
                np.full(columns, -0.0, np.float32) if numbers is None else numbers, near=product
            )
        if self.row is None:
            row = edit.add_constant(np.float32(1), before=product)
        else:
            row = context.shared(UnsignedCodes).scale_of(self.row)
        column = np.ones(columns, np.float32) if self.column is None else self.column
        weights = [edit.add_initializer(each, near=product) for each in (column, column_sums)]
        main = call("AccumulatorDequantize", [sums, row, zero_point, *weights, bias], scale_order=int(self.scale_order))
        edit.replace(self.last, edit.insert_main(main, before=self.node))


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
