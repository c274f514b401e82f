"""The nodes after a product of codes, which turn its int32 sums into floats.

With the product, they become QuantizedMatMul (:meth:`Tail.replace`) or QuantizedConv (convolution.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from ..facts.shapes import is_shape_of_rows, unreshaped
from ..facts.values import attributes_of, cast_to, has_one_element, only_use, producer_of, skip_identity
from ..report import Left
from ..rule import Context
from .shared_initializers import SharedInitializers
from .unsigned_codes import UnsignedCodes


class Channels(NamedTuple):
    """The output channels of a product.

    Attributes:
        size: Their number; the columns of a matrix product.
        after: The number of dimensions after that of the channels: 0 for a matrix product, else those of the image.
    """

    size: int
    after: int = 0

    def vector(self, value: ir.Value | None, dtype: type[np.generic], facts: Facts) -> npt.NDArray[Any] | None:
        """Returns a constant as one number for each channel, [size]; one number for all is broadcast.

        Returns:
            None for other values, and if the value may have more dimensions than the product.
        """
        most = self.after + 2 if self.after else 1
        if value is None or not facts.is_constant(value) or value.shape is None or len(value.shape) > most:
            return None
        elements = evaluate(value, facts)
        if elements is None or elements.dtype != dtype or len(elements.shape) > most:
            return None
        if elements.size != 1 and not self._has_shape(elements.shape):
            return None
        return np.array(np.broadcast_to(elements.reshape(-1), self.size))

    def bias(self, value: ir.Value | None, facts: Facts) -> ir.Value | None:
        """Returns the float32 vector [size] that `value` is, or a constant with a number for each channel, or None."""
        if value is None:
            return None
        source = unreshaped(value) if self.after and self._has_shape(value.shape) else value
        is_vector = source.dtype == ir.DataType.FLOAT and source.shape is not None and list(source.shape) == [self.size]
        if is_vector and (not self.after or source is not value):
            return source
        return None if self.vector(value, np.float32, facts) is None else value

    def is_scale(self, value: ir.Value | None, codes: ir.Value) -> bool:
        """Returns whether `value` is known to be the scale of `codes`: one, or for matrices also one for each row."""
        if not self.after:
            return is_row_scale(value, codes)
        is_float = value is not None and value.dtype == ir.DataType.FLOAT
        return is_float and value is not None and has_one_element(value, self.after + 2)

    def _has_shape(self, shape: Sequence[int | ir.SymbolicDim] | ir.Shape | None) -> bool:
        """Returns whether a shape is known to be that of one number for each channel."""
        if shape is None:
            return False
        before = len(shape) - self.after - 1
        return before in (0, 1 if self.after else 0) and list(shape) == [1] * before + [self.size] + [1] * self.after


@dataclass
class Tail:
    """What follows the sums of a product.

    Attributes:
        last: The float value that the new operator computes.
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

    def take_bias(self, channels: Channels, facts: Facts) -> None:
        """Moves `last` past an Add of a bias, if one follows."""
        use = only_use(self.last)
        if use is None or use.node.op_type != "Add":
            return
        bias = channels.bias(use.node.inputs[1 - use.idx], facts)
        if bias is not None:
            self.bias, self.last = bias, use.node.outputs[0]

    def take_scales(self, activation: ir.Value, channels: Channels, facts: Facts) -> None:
        """Moves `last` past the Muls by the scales of the columns and of the rows of an activation without a scale."""
        while (use := only_use(self.last)) is not None and use.node.op_type == "Mul":
            factor = use.node.inputs[1 - use.idx]
            column = channels.vector(factor, np.float32, facts)
            if column is not None and self.column is not None:
                self.column = np.asarray(self.column * column)
            elif self.row is None and channels.is_scale(factor, activation):
                self.row = factor
            else:
                break
            self.last = use.node.outputs[0]

    def operands(self, channels: Channels, context: Context, edit: Edit) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Returns the scale of the rows, those of the columns, [groups or 1, N], and the bias, [N]."""
        product, columns, bias = edit.node, channels.size, self.bias
        shared = context.shared(SharedInitializers)
        if bias is None or bias.shape is None or list(bias.shape) != [columns]:
            numbers = None if bias is None else channels.vector(bias, np.float32, context.facts)
            # -0 + x is x for every x; 0 + -0 is not -0.
            bias = shared.of(np.full(columns, -0.0, np.float32) if numbers is None else numbers, product, edit)
        if self.row is None:
            row = edit.add_constant(np.float32(1), before=product)
        else:
            row = context.shared(UnsignedCodes).scale_of(self.row)
        column = np.ones(columns, np.float32) if self.column is None else self.column
        column = column.reshape(columns) if channels.after else column.reshape(-1, columns)
        return row, shared.of(column, product, edit), bias

    def replace(self, codes: ir.Value, zero_point: ir.Value, grid: Grid, context: Context, edit: Edit) -> None:
        """Puts QuantizedMatMul in place of the product and of everything up to `last`.

        Args:
            codes: The codes of the activation, uint8, [..., M, K].
            zero_point: Their zero points, uint8: one for each row, or for each of its groups, or one for all.
            grid: The weights. Their scales are :attr:`column`.
            context: The context of the product.
            edit: The edit of the product.
        """
        shared = context.shared(SharedInitializers)
        row, column, bias = self.operands(Channels(grid.codes.shape[1]), context, edit)
        weights, zero_points, sums = (
            shared.of(each, edit.node, edit) for each in (pack(grid.codes, grid.bits), grid.zero_point, grid.sums)
        )
        main = call(
            "QuantizedMatMul",
            [codes, row, zero_point, weights, zero_points, column, sums, bias],
            bits=grid.bits,
            group_size=grid.group_size,
            scale_order=int(self.scale_order),
        )
        edit.replace(self.last, edit.insert_main(main, before=self.node))


def tail_of(sums: ir.Value, codes: ir.Value, channels: Channels, facts: Facts) -> Tail | None:
    """Returns the tail of int32 sums: a Cast, then Muls by the scale of the rows, of the columns, or their product.

    A Sub of a vector may precede the Cast of a matrix product, and an Add of the bias may follow.
    """
    tail = Tail(sums)
    use = only_use(tail.last)
    if use is not None and not channels.after and use.node.op_type == "Sub" and use.idx == 0:
        tail.subtracted = channels.vector(use.node.inputs[1], np.int32, facts)
        use = None if tail.subtracted is None else only_use(use.node.outputs[0])
    if not channels.size or use is None or use.node.op_type != "Cast" or cast_to(use.node) != ir.DataType.FLOAT:
        return None
    tail.last = use.node.outputs[0]
    while (use := only_use(tail.last)) is not None and use.node.op_type == "Mul":
        factor = use.node.inputs[1 - use.idx]
        is_first = tail.row is None and tail.column is None
        column = channels.vector(factor, np.float32, facts)
        if column is not None and tail.column is None:
            tail.column = column
            tail.scale_order = ScaleOrder.COLUMN_FIRST if is_first else ScaleOrder.ROW_FIRST
        elif is_first and (scales := _scales_of(factor, codes, channels, facts)) is not None:
            tail.row, tail.column = scales
            tail.scale_order = ScaleOrder.SCALES_FIRST
        elif column is None and tail.row is None and channels.is_scale(factor, codes):
            tail.row = factor
            tail.scale_order = ScaleOrder.ROW_FIRST if is_first else ScaleOrder.COLUMN_FIRST
        else:
            break
        tail.last = use.node.outputs[0]
    if tail.row is None and tail.column is None:
        return None
    tail.take_bias(channels, facts)
    return tail


def _scales_of(
    value: ir.Value | None, codes: ir.Value, channels: Channels, facts: Facts
) -> tuple[ir.Value, npt.NDArray[np.float32]] | None:
    """Returns the scale of the rows and that of the columns, if `value` is their product, or None."""
    product = None if value is None else producer_of(skip_identity(value), "Mul")
    if product is None:
        return None
    for row, column in (tuple(product.inputs), tuple(reversed(product.inputs))):
        vector = channels.vector(column, np.float32, facts)
        if vector is not None and row is not None and channels.is_scale(row, codes):
            return row, vector
    return None


def check_length(grid: Grid) -> None:
    """Checks that int32 holds the sums of products with these weights.

    Raises:
        Left: It may not.
    """
    check_sums(grid.group_size or len(grid.codes), grid.zero_point if grid.bits == 8 else None)


def check_sums(length: int, zero_point: npt.NDArray[np.int8] | None) -> None:
    """Checks that int32 holds sums of so many products.

    Args:
        length: The number of products.
        zero_point: The zero points of 8-bit weights, int8; None for 4-bit weights.

    Raises:
        Left: It may not.
    """
    is_symmetric = zero_point is not None and zero_point.size == 1 and not zero_point.any()
    if length > (LONGEST_SYMMETRIC_SUM if is_symmetric else LONGEST_SUM):
        raise Left(f"sums of {length} products may overflow int32")


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
