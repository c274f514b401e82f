"""Reads a recurrent layer, and builds QuantizedRecurrence or WordRecurrence in place of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import Direction
from ...operators.packing import pack, pack_words
from ..analysis.evaluation import evaluate_if_constant
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs
from ..codes.codes import Codes
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..shared_initializers import SharedInitializers
from ..weights.grid import WORD_BITS, QuantizedWeights, check_sums
from .cell import Cell, cell_of

DIRECTIONS = {"forward": Direction.FORWARD, "reverse": Direction.REVERSE, "bidirectional": Direction.BIDIRECTIONAL}


@dataclass(frozen=True)
class Recurrence:
    """The steps of a layer.

    Attributes:
        node: The layer: an operator with ONNX's inputs from sequence_lens on, and its outputs.
        cell: Its cell.
        direction: The order of its steps.
        hidden_size: The elements of a state.
        grids: The recurrent weights of each direction, [hidden_size, gates * hidden_size]; they have no zero points.
        bias: The recurrent bias, [directions, gates * hidden_size].
        peepholes: [directions, 0 or 3 * hidden_size].
    """

    node: ir.Node
    cell: Cell
    direction: Direction
    hidden_size: int
    grids: tuple[QuantizedWeights, ...]
    bias: npt.NDArray[np.float32]
    peepholes: npt.NDArray[np.float32]

    @property
    def is_batch_first(self) -> bool:
        """Whether the sequences are the first dimension of inputs and outputs: the attribute layout."""
        return self.node.attributes.get_int("layout", 0) == 1


def recurrence_of(
    node: ir.Node, operator: str, grids: tuple[QuantizedWeights, ...], depth: int, facts: Facts
) -> tuple[Recurrence, npt.NDArray[np.float32]]:
    """Returns the steps of a layer, and the bias of its inputs, [directions * gates * hidden_size].

    Args:
        node: The layer, with ONNX's inputs from the bias on.
        operator: LSTM, GRU or RNN.
        grids: The recurrent weights of each direction, [hidden_size, columns].
        depth: The elements of an input.
        facts: What is known of the model.

    Raises:
        Unconverted: Shapes do not fit, an attribute is not valid, or a program cannot compute the cell.
    """
    direction = DIRECTIONS.get(node.attributes.get_string("direction", "forward"))
    if direction is None:
        raise Unconverted(Reason.RECURRENT_ATTRIBUTE, name="direction")
    directions, (size, columns) = len(grids), grids[0].codes.shape
    cell = cell_of(node, directions, operator)
    b, *_, peepholes = first_inputs(node, 8)[3:]
    bias = np.zeros((directions, 2 * columns), np.float32) if b is None else _floats(b, facts)
    extra = np.zeros((directions, 0), np.float32) if peepholes is None else _floats(peepholes, facts)
    if (
        directions != (2 if direction == Direction.BIDIRECTIONAL else 1)
        or columns != cell.gates * size
        or bias.shape != (directions, 2 * columns)
        or extra.shape not in ((directions, 0), (directions, 3 * size))
    ):
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if node.attributes.get_int("hidden_size", size) != size:
        raise Unconverted(Reason.RECURRENT_ATTRIBUTE, name="hidden_size")
    check_sums(max(depth, size), np.zeros(1, np.int8))
    of_inputs, of_states = (np.ascontiguousarray(each) for each in (bias[:, :columns], bias[:, columns:]))
    return Recurrence(node, cell, direction, size, grids, of_states, extra), of_inputs.reshape(-1)


def _floats(value: ir.Value, facts: Facts) -> npt.NDArray[np.float32]:
    """Returns a bias or peepholes."""
    elements = evaluate_if_constant(value, facts)
    if elements is None:
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    if elements.dtype != np.float32:
        raise Unconverted(Reason.WEIGHTS_TYPE, dtype=elements.dtype)
    if not np.isfinite(elements).all():
        raise Unconverted(Reason.WEIGHTS_NOT_FINITE)
    return elements


def build_recurrence(layer: Recurrence, src: ir.Value, edit: Edit) -> None:
    """Puts QuantizedRecurrence in place of a layer, or WordRecurrence if its weights are words.

    Args:
        layer: The steps of the layer.
        src: The products of its inputs by their weights, with their bias: float32, [steps, batch, directions * gates *
            hidden_size].
        edit: The edit of the layer.
    """
    node, shared = layer.node, edit.shared(SharedInitializers)
    has_words = layer.grids[0].bits == WORD_BITS
    lengths, state, state_2 = first_inputs(node, 7)[4:]
    zeros = np.zeros((1, 1, 1), np.float32)
    inputs = [
        src,
        shared.of(np.stack([(pack_words if has_words else pack)(grid.codes) for grid in layer.grids]), edit),
        shared.of(np.concatenate([grid.scale for grid in layer.grids]), edit),
        *([] if has_words else [shared.of(np.concatenate([grid.sums for grid in layer.grids]), edit)]),
        shared.of(layer.bias, edit),
        *(
            shared.of(zeros, edit) if each is None else _transposed(each, [1, 0, 2], layer, edit)
            for each in (state, state_2)
        ),
        shared.of(np.array([2**31 - 1], np.int32), edit) if lengths is None else lengths,
        shared.of(layer.peepholes, edit),
    ]
    main = call(
        "WordRecurrence" if has_words else "QuantizedRecurrence",
        inputs,
        program=layer.cell.program,
        hidden_size=layer.hidden_size,
        direction=int(layer.direction),
        last_gate=int(layer.cell.last_gate),
    )
    edit.insert_main(main, before=node)
    for old, new, order in zip(node.outputs, main.outputs, ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2]), strict=False):
        if old.uses() or old.is_graph_output():
            edit.replace(old, _transposed(new, order, layer, edit))


def input_products(
    inputs: Codes | ir.Value, grid: QuantizedWeights, bias: npt.NDArray[np.float32], edit: Edit
) -> ir.Value:
    """Returns the products of the inputs of all steps by their weights.

    Args:
        inputs: The codes of the inputs, [steps, batch, I], with a scale for each row, or for all; of weights that are
            words the inputs, float32.
        grid: The weights, [I, directions * gates * hidden_size].
        bias: The bias, [directions * gates * hidden_size].
        edit: The edit of the layer.
    """
    shared = edit.shared(SharedInitializers)
    if isinstance(inputs, ir.Value):
        words = (shared.of(each, edit) for each in (pack_words(grid.codes), grid.scale[0], bias))
        return edit.insert(call("WordMatMul", [inputs, *words]), before=edit.node)
    codes, row = inputs, inputs.scale
    assert row is not None
    constants = (shared.of(each, edit) for each in (pack(grid.codes), grid.zero_point, grid.scale, grid.sums, bias))
    product = call("QuantizedMatMul", [codes.codes, row, codes.zero_point, *constants], terms=codes.terms)
    return edit.insert(product, before=edit.node)


def steps_first(layer: Recurrence, value: ir.Value, edit: Edit) -> ir.Value:
    """Returns the input of a layer as [steps, batch, ...]."""
    return _transposed(value, [1, 0, 2], layer, edit)


def _transposed(value: ir.Value, order: list[int], layer: Recurrence, edit: Edit) -> ir.Value:
    """Returns a value in the layout of our operators, or one of its outputs in the layout of the layer."""
    if not layer.is_batch_first:
        return value
    return edit.insert(ir.node("Transpose", [value], {"perm": order}), before=layer.node)
