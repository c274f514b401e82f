"""Recognizes the nodes after a product of codes, which turn its int32 sums into floats.

Cast, Mul by the scale of the rows, Mul by the scale of the columns, Add of the bias

They become one operator with the product: quantized_matmul.py and ../convolutions/quantized_conv.py build it.

Example: Cast(sums) * s * [0.5, 2] + [1, -1] has the rows' scale s, the columns' [0.5, 2] and the bias [1, -1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import ScaleOrder
from ..analysis.inference import Facts
from ..analysis.nodes import cast_to, only_use, producer_of
from ..analysis.shapes import has_one_element, is_shape_of_rows
from ..analysis.standard import RESHAPES
from ..analysis.types import WIDE_TYPES
from ..edit import Edit
from ..reasons import Unconverted
from ..weights.channels import Channels
from .corrections import EXACT_IN_FLOAT, Terms, added, bound_of, check_columns, terms_of


class NextNode(NamedTuple):
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

    @property
    def adds(self) -> bool:
        """Whether the node adds another value, or subtracts it."""
        is_sum = self.node.op_type == "Add" or (self.node.op_type == "Sub" and self.idx == 0)
        return is_sum and self.operand is not None


@dataclass(frozen=True)
class Epilogue:
    """The nodes after the sums of a product, up to `last`.

    Attributes:
        product: The product.
        channels: Its output channels.
        last: The float value that the new operator computes.
        row: The scale that the epilogue multiplies each row by, or one for all; None if it has none.
        column: float32, [N] or [groups, N], a scale for each column, or for each of its groups; None if there is none.
        scale_order: The order in which the sums are multiplied by the scales.
        bias: [N]: a float32 value, or numbers; None if there is none.
        added: Integers that are added to the sums.
        moves: The Reshapes and the like between the product and `last`. They keep the rows.
        merges_rows: Whether the result of the new operator has the rows of a product before a Reshape that merges them.
        is_row_moved: Whether `row` has a number for each row of a later shape, and the product is a matrix.
    """

    product: ir.Node
    channels: Channels
    last: ir.Value
    row: ir.Value | None = None
    column: npt.NDArray[np.float32] | None = None
    scale_order: ScaleOrder = ScaleOrder.COLUMN_FIRST
    bias: ir.Value | npt.NDArray[np.float32] | None = None
    added: Terms = field(default_factory=dict)
    moves: tuple[ir.Node, ...] = ()
    merges_rows: bool = False
    is_row_moved: bool = False

    @property
    def last_node(self) -> ir.Node:
        """The node that computes `last`."""
        node = self.last.producer()
        assert node is not None
        return node

    def next_step(self) -> NextNode | None:
        """Returns the only use of `last`; Reshapes that keep the rows of a matrix product may precede it."""
        use, moves = only_use(self.last), []
        may_move = not (self.channels.spatial_rank or self.channels.stack)
        while use is not None and may_move and use.node.op_type in RESHAPES and use.idx == 0:
            moved = use.node.outputs[0]
            if moved.shape is None or not len(moved.shape) or moved.shape[-1] != self.channels.size:
                return None
            moves.append(use.node)
            use = only_use(moved)
        return None if use is None else NextNode(*use, tuple(moves))

    def moved(self, result: ir.Value, edit: Edit) -> ir.Value:
        """Returns the result of the new operator after the Reshapes that `last` has, before a bias or an offset."""
        before = self.last_node
        if self.merges_rows:
            shape = edit.add_constant(np.array([-1, self.channels.size]), before=before)
            result = edit.insert(ir.node("Reshape", [result, shape]), before=before)
        for move in self.moves:
            node = ir.node(move.op_type, [result, *move.inputs[1:]], dict(move.attributes))
            result = edit.insert(node, before=before, origin=move)
        return result

    def past(self, step: NextNode, **found: Any) -> Epilogue:
        """Returns the epilogue up to the end of a step, with the fields that the step sets."""
        return replace(self, last=step.node.outputs[0], moves=(*self.moves, *step.moves), **found)

    def past_bias(self, facts: Facts) -> Epilogue:
        """Returns the epilogue up to the end of an Add of a bias, if one follows."""
        step = self.next_step()
        if step is None or step.node.op_type != "Add":
            return self
        bias = self.channels.bias(step.operand, facts)
        return self if bias is None else self.past(step, bias=bias)

    def constant_bias(self, facts: Facts) -> npt.NDArray[np.float32] | None:
        """Returns the bias of a convolution as numbers, float32 [N]; None if it has none, or one of run time."""
        if not isinstance(self.bias, ir.Value):
            return self.bias
        return Channels(self.channels.size).vector(self.bias, np.float32, facts)

    def past_integers(self, step: NextNode, facts: Facts) -> Epilogue:
        """Returns the epilogue up to the end of a step that adds or subtracts integers.

        Raises:
            Unconverted: They are not known to be integers, or the rows may be reshaped before they are added.
        """
        assert step.operand is not None
        terms = terms_of(step.operand, self.channels, facts)
        if self.moves or step.moves:
            check_columns(terms, self.channels)
        return self.past(step, added=added(self.added, terms, -1 if step.node.op_type == "Sub" else 1))

    def past_floats(self, facts: Facts, largest_sum: Callable[[], float]) -> Epilogue:
        """Returns the epilogue up to the end of the steps that add integers in float32, where float32 rounds none.

        Args:
            facts: What is known of the model.
            largest_sum: Returns a bound of the magnitude of the product's sums, or raises Unconverted.
        """
        epilogue = self
        while (step := epilogue.next_step()) is not None and step.adds:
            if step.node.op_type == "Add" and self.channels.bias(step.operand, facts) is not None:
                break
            try:
                longer = epilogue.past_integers(step, facts)
                if largest_sum() + max(bound_of(epilogue.added), bound_of(longer.added)) > EXACT_IN_FLOAT:
                    break
            except Unconverted:
                break
            epilogue = longer
        return epilogue

    def past_casts(self) -> Epilogue:
        """Returns the epilogue up to the end of a Cast of sums to int32 or int64 and one back, if both follow."""
        step = self.next_step()
        if step is None or step.node.op_type != "Cast" or cast_to(step.node) not in WIDE_TYPES:
            return self
        wide = self.past(step)
        step = wide.next_step()
        is_float = step is not None and step.node.op_type == "Cast" and cast_to(step.node) == ir.DataType.FLOAT
        return wide.past(step) if step is not None and is_float else self

    def past_scales(self, activation: ir.Value, facts: Facts) -> Epilogue:
        """Returns the epilogue up to the Muls by the scales of the columns, and of the rows of an activation.

        Args:
            activation: The activation, which is not scaled.
            facts: What is known of the model.
        """
        epilogue = self
        while (step := epilogue.next_step()) is not None and step.node.op_type == "Mul":
            column = epilogue.channels.vector(step.operand, np.float32, facts)
            if column is not None:
                epilogue = epilogue.past(step, column=epilogue.times(column))
            elif epilogue.row is None and epilogue.is_row(step.operand, step, activation):
                epilogue = epilogue.past_row(step.operand, step)
            elif epilogue.row is None and (scales := epilogue.scales(step, activation, facts)) is not None:
                epilogue = epilogue.past_row(scales[0], step, column=epilogue.times(scales[1]))
            else:
                break
        return epilogue

    def times(self, column: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns the scales of the columns, multiplied by the scales of a further step."""
        return column if self.column is None else np.asarray(self.column * column)

    def past_row(self, value: ir.Value | None, step: NextNode, **found: Any) -> Epilogue:
        """Returns the epilogue up to the end of a step that multiplies by the scale of the rows."""
        assert value is not None
        is_moved = bool(self.moves or step.moves) and not has_one_element(value, 1)
        return self.past(step, row=value, is_row_moved=is_moved, **found)

    def is_row(self, value: ir.Value | None, step: NextNode, codes: ir.Value) -> bool:
        """Returns whether `value` is known to be the scale of `codes`, if a step multiplies by it or a multiple."""
        if not (self.moves or step.moves) or (value is not None and has_one_element(value, 1)):
            return self.channels.is_scale(value, codes)
        sums, moved = self.product.outputs[0], step.node.inputs[step.idx]
        if value is None or value.dtype != ir.DataType.FLOAT or moved is None:
            return False
        return sums.shape is not None and len(sums.shape) == 2 and is_shape_of_rows(value, moved, is_shared=False)

    def scales(self, step: NextNode, codes: ir.Value, facts: Facts) -> tuple[ir.Value, npt.NDArray[np.float32]] | None:
        """Returns the scales of the rows and of the columns, if a step multiplies by their product, or None."""
        product = None if step.operand is None else producer_of(step.operand, "Mul")
        if product is None:
            return None
        for row, column in (tuple(product.inputs), tuple(reversed(product.inputs))):
            vector = self.channels.vector(column, np.float32, facts)
            if vector is not None and row is not None and self.is_row(row, step, codes):
                return row, vector
        return None


def epilogue_of(
    product: ir.Node,
    codes: ir.Value,
    channels: Channels,
    facts: Facts,
    largest_sum: Callable[[], float] = lambda: math.inf,
) -> Epilogue | None:
    """Returns the epilogue of sums: a Cast, then Muls by the scale of the rows, of the columns, or their product.

    Integers may be added before the Cast, and after it where float32 rounds none; an Add of the bias may follow. A
    convolution needs a scale.

    Args:
        product: The product.
        codes: Its codes.
        channels: Its output channels.
        facts: What is known of the model.
        largest_sum: Returns a bound of the magnitude of the sums, or raises Unconverted.

    Raises:
        Unconverted: The integers that are added before the Cast exceed int32, or may be added to other rows.
    """
    epilogue = Epilogue(product, channels, product.outputs[0])
    while (step := epilogue.next_step()) is not None and step.adds and channels.size:
        epilogue = epilogue.past_integers(step, facts)
    if not channels.size or step is None or step.node.op_type != "Cast" or cast_to(step.node) != ir.DataType.FLOAT:
        return None
    epilogue = epilogue.past(step).past_floats(facts, largest_sum)
    while (step := epilogue.next_step()) is not None and step.node.op_type == "Mul":
        factor = step.operand
        is_first = epilogue.row is None and epilogue.column is None
        column = channels.vector(factor, np.float32, facts)
        if column is not None and epilogue.column is None:
            order = ScaleOrder.COLUMN_FIRST if is_first else ScaleOrder.ROW_FIRST
            epilogue = epilogue.past(step, column=column, scale_order=order)
        elif is_first and (scales := epilogue.scales(step, codes, facts)) is not None:
            epilogue = epilogue.past_row(scales[0], step, column=scales[1], scale_order=ScaleOrder.SCALES_FIRST)
        elif column is None and epilogue.row is None and epilogue.is_row(factor, step, codes):
            order = ScaleOrder.ROW_FIRST if is_first else ScaleOrder.COLUMN_FIRST
            epilogue = epilogue.past_row(factor, step, scale_order=order)
        else:
            break
    if channels.spatial_rank and epilogue.row is None and epilogue.column is None:
        return None
    return epilogue.past_bias(facts)
