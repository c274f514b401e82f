"""The nodes after a product of codes, which turn its int32 sums into floats.

With the product, they become QuantizedMatMul (:meth:`Tail.replace`) or QuantizedConv (convolution.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import ScaleOrder
from ...operators.packing import pack
from ...operators.quantized_matmul import LONGEST_SUM, LONGEST_SYMMETRIC_SUM
from ..analysis.folding import evaluate
from ..analysis.inference import Facts
from ..analysis.shapes import RESHAPES, is_shape_of_rows, unreshaped
from ..analysis.values import WIDE_TYPES, cast_to, has_one_element, only_use, producer_of, skip_identity
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context
from ..shared_initializers import SharedInitializers
from .grid import Grid
from .unsigned_codes import UnsignedCodes


class Channels(NamedTuple):
    """The output channels of a product.

    Attributes:
        size: Their number; the columns of a matrix product.
        after: The number of dimensions after that of the channels: 0 for a matrix product, else those of the image.
        rank: The fewest dimensions of a matrix product.
    """

    size: int
    after: int = 0
    rank: int = 1

    def vector(self, value: ir.Value | None, dtype: type[np.generic], facts: Facts) -> npt.NDArray[Any] | None:
        """Returns a constant as one number for each channel, [size]; one number for all is broadcast.

        Returns:
            None for other values, and if the value may have more dimensions than the product.
        """
        most = self.after + 2 if self.after else self.rank
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
        return (
            0 <= before < (2 if self.after else self.rank)
            and list(shape) == [1] * before + [self.size] + [1] * self.after
        )


class Step(NamedTuple):
    """The node that uses a value next.

    Attributes:
        node, idx: The node, and the index of the input at which it uses the value.
        moves: The Reshapes and the like between the value and the node. They keep the rows.
    """

    node: ir.Node
    idx: int
    moves: tuple[ir.Node, ...]

    @property
    def operand(self) -> ir.Value | None:
        """The other input of a node with two inputs."""
        return self.node.inputs[1 - self.idx]


@dataclass
class Tail:
    """What follows the sums of a product.

    Attributes:
        product: The product.
        last: The float value that the new operator computes.
        row: A scale for each row, or for each of its groups, or one for all; None if there is none.
        column: float32, [N] or [groups, N], a scale for each column, or for each of its groups; None if there is none.
        scale_order: The order in which the sums are multiplied by the scales.
        bias: One number for each column, or for all; None if there is none.
        subtracted: int32, [N], subtracted from the sums; None if nothing is.
        moves: The Reshapes and the like between the product and `last`. They keep the rows.
        is_row_moved: Whether `row` has a number for each row of a later shape, and the product is a matrix.
    """

    product: ir.Node
    last: ir.Value
    row: ir.Value | None = None
    column: npt.NDArray[np.float32] | None = None
    scale_order: ScaleOrder = ScaleOrder.COLUMN_FIRST
    bias: ir.Value | None = None
    subtracted: npt.NDArray[np.int32] | None = None
    moves: list[ir.Node] = field(default_factory=list)
    is_row_moved: bool = False

    @property
    def node(self) -> ir.Node:
        """The node that computes `last`."""
        node = self.last.producer()
        assert node is not None
        return node

    def step(self, channels: Channels) -> Step | None:
        """Returns the only use of `last`; Reshapes that keep the rows of a matrix product may precede it."""
        use, moves = only_use(self.last), []
        while use is not None and not channels.after and use.node.op_type in RESHAPES and use.idx == 0:
            moved = use.node.outputs[0]
            if moved.shape is None or not len(moved.shape) or moved.shape[-1] != channels.size:
                return None
            moves.append(use.node)
            use = only_use(moved)
        return None if use is None else Step(*use, tuple(moves))

    def take(self, step: Step) -> None:
        """Moves `last` past a step."""
        self.moves += step.moves
        self.last = step.node.outputs[0]

    def take_bias(self, channels: Channels, facts: Facts) -> None:
        """Moves `last` past an Add of a bias, if one follows."""
        step = self.step(channels)
        if step is None or step.node.op_type != "Add":
            return
        bias = channels.bias(step.operand, facts)
        if bias is not None:
            self.bias = bias
            self.take(step)

    def take_casts(self, channels: Channels) -> None:
        """Moves `last` past a Cast of integer sums to int32 or int64 and one back, if both follow."""
        step, before, moves = self.step(channels), self.last, list(self.moves)
        if step is None or step.node.op_type != "Cast" or cast_to(step.node) not in WIDE_TYPES:
            return
        self.take(step)
        step = self.step(channels)
        if step is not None and step.node.op_type == "Cast" and cast_to(step.node) == ir.DataType.FLOAT:
            self.take(step)
        else:
            self.last, self.moves = before, moves

    def take_scales(self, activation: ir.Value, channels: Channels, facts: Facts) -> None:
        """Moves `last` past the Muls by the scales of the columns and of the rows of an activation without a scale."""
        while (step := self.step(channels)) is not None and step.node.op_type == "Mul":
            factor = step.operand
            column = channels.vector(factor, np.float32, facts)
            if column is not None and self.column is not None:
                self.column = np.asarray(self.column * column)
            elif self.row is None and self.is_row(factor, step, activation, channels):
                self.take_row(factor, step)
            elif (
                self.row is None
                and self.column is not None
                and (scales := self.scales(step, activation, channels, facts))
            ):
                self.take_row(scales[0], step)
                self.column = np.asarray(self.column * scales[1])
            else:
                break
            self.take(step)

    def is_row(self, value: ir.Value | None, step: Step, codes: ir.Value, channels: Channels) -> bool:
        """Returns whether `value`, or one that a step multiplies by it, is known to be the scale of `codes`."""
        if not (self.moves or step.moves) or (value is not None and has_one_element(value, 1)):
            return channels.is_scale(value, codes)
        sums, moved = self.product.outputs[0], step.node.inputs[step.idx]
        if value is None or value.dtype != ir.DataType.FLOAT or moved is None:
            return False
        return sums.shape is not None and len(sums.shape) == 2 and is_shape_of_rows(value, moved, is_shared=False)

    def take_row(self, value: ir.Value | None, step: Step) -> None:
        """Sets the scale of the rows, which a step multiplies."""
        assert value is not None
        self.row, self.is_row_moved = value, bool(self.moves or step.moves) and not has_one_element(value, 1)

    def scales(
        self, step: Step, codes: ir.Value, channels: Channels, facts: Facts
    ) -> tuple[ir.Value, npt.NDArray[np.float32]] | None:
        """Returns the scale of the rows and that of the columns, if a step multiplies by their product, or None."""
        product = None if step.operand is None else producer_of(skip_identity(step.operand), "Mul")
        if product is None:
            return None
        for row, column in (tuple(product.inputs), tuple(reversed(product.inputs))):
            vector = channels.vector(column, np.float32, facts)
            if vector is not None and row is not None and self.is_row(row, step, codes, channels):
                return row, vector
        return None

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
            if self.is_row_moved:
                shape = edit.add_constant(np.array([-1, 1]), before=self.node)
                row = edit.insert(ir.node("Reshape", [row, shape]), before=self.node)
        column = np.ones(columns, np.float32) if self.column is None else self.column
        column = column.reshape(columns) if channels.after else column.reshape(-1, columns)
        return row, shared.of(column, product, edit), bias

    def replace(
        self, codes: ir.Value, zero_point: ir.Value, grid: Grid, channels: Channels, context: Context, edit: Edit
    ) -> None:
        """Puts QuantizedMatMul in place of the product and of everything up to `last`.

        Args:
            codes: The codes of the activation, uint8, [..., M, K].
            zero_point: Their zero points, uint8: one for each row, or for each of its groups, or one for all.
            grid: The weights. Their scales are :attr:`column`.
            channels: Their columns.
            context: The context of the product.
            edit: The edit of the product.
        """
        shared = context.shared(SharedInitializers)
        row, column, bias = self.operands(channels, context, edit)
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
        result = edit.insert_main(main, before=self.node)
        for move in self.moves:
            moved = ir.node(move.op_type, [result, *move.inputs[1:]], dict(move.attributes))
            result = edit.insert(moved, before=self.node, origin=move)
        edit.replace(self.last, result)


def tail_of(product: ir.Node, codes: ir.Value, channels: Channels, facts: Facts) -> Tail | None:
    """Returns the tail of int32 sums: a Cast, then Muls by the scale of the rows, of the columns, or their product.

    A Sub of a vector may precede the Cast of a matrix product, and an Add of the bias may follow. A convolution needs a
    scale.
    """
    tail = Tail(product, product.outputs[0])
    step = tail.step(channels)
    if step is not None and not channels.after and step.node.op_type == "Sub" and step.idx == 0:
        tail.subtracted = channels.vector(step.node.inputs[1], np.int32, facts)
        tail.take(step)
        step = None if tail.subtracted is None else tail.step(channels)
    if not channels.size or step is None or step.node.op_type != "Cast" or cast_to(step.node) != ir.DataType.FLOAT:
        return None
    tail.take(step)
    while (step := tail.step(channels)) is not None and step.node.op_type == "Mul":
        factor = step.operand
        is_first = tail.row is None and tail.column is None
        column = channels.vector(factor, np.float32, facts)
        if column is not None and tail.column is None:
            tail.column = column
            tail.scale_order = ScaleOrder.COLUMN_FIRST if is_first else ScaleOrder.ROW_FIRST
        elif is_first and (scales := tail.scales(step, codes, channels, facts)) is not None:
            tail.take_row(scales[0], step)
            tail.column = scales[1]
            tail.scale_order = ScaleOrder.SCALES_FIRST
        elif column is None and tail.row is None and tail.is_row(factor, step, codes, channels):
            tail.take_row(factor, step)
            tail.scale_order = ScaleOrder.ROW_FIRST if is_first else ScaleOrder.COLUMN_FIRST
        else:
            break
        tail.take(step)
    if channels.after and tail.row is None and tail.column is None:
        return None
    tail.take_bias(channels, facts)
    return tail


def check_length(grid: Grid) -> None:
    """Checks that int32 holds the sums of products with these weights.

    Raises:
        Unconverted: It may not.
    """
    check_sums(grid.group_size or len(grid.codes), grid.zero_point if grid.bits == 8 else None)


def check_sums(length: int, zero_point: npt.NDArray[np.int8] | None) -> None:
    """Checks that int32 holds sums of so many products.

    Args:
        length: The number of products.
        zero_point: The zero points of 8-bit weights, int8; None for 4-bit weights.

    Raises:
        Unconverted: It may not.
    """
    is_symmetric = zero_point is not None and zero_point.size == 1 and not zero_point.any()
    if length > (LONGEST_SYMMETRIC_SUM if is_symmetric else LONGEST_SUM):
        raise Unconverted(Reason.SUMS_OVERFLOW, length=length)


def is_row_scale(value: ir.Value | None, codes: ir.Value) -> bool:
    """Returns whether `value` is known to hold float32 scales of the rows of `codes`, or one for all."""
    return value is not None and value.dtype == ir.DataType.FLOAT and is_shape_of_rows(value, codes)
