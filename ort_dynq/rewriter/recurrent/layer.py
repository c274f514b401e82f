"""Builds QuantizedRecurrence in place of a recurrent layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import Direction
from ...operators.packing import pack
from ..edit import Edit, call
from ..products.codes import Codes
from ..products.grid import Grid
from ..products.unsigned_codes import UnsignedCodes
from ..shared_initializers import SharedInitializers
from .cell import Cell

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
    grids: tuple[Grid, ...]
    bias: npt.NDArray[np.float32]
    peepholes: npt.NDArray[np.float32]

    @property
    def is_batch_first(self) -> bool:
        """Whether the sequences are the first dimension of inputs and outputs: the attribute layout."""
        return self.node.attributes.get_int("layout", 0) == 1


def build_recurrence(layer: Recurrence, src: ir.Value, edit: Edit) -> None:
    """Puts QuantizedRecurrence in place of a layer.

    Args:
        layer: The steps of the layer.
        src: The products of its inputs by their weights, with their bias: float32, [steps, batch, directions * gates *
            hidden_size].
        edit: The edit of the layer.
    """
    node, shared = layer.node, edit.shared(SharedInitializers)
    lengths, state, state_2 = (node.inputs[i] if i < len(node.inputs) else None for i in (4, 5, 6))
    zeros = np.zeros((1, 1, 1), np.float32)
    inputs = [
        src,
        shared.of(np.stack([pack(grid.codes) for grid in layer.grids]), edit),
        shared.of(np.concatenate([grid.scale for grid in layer.grids]), edit),
        shared.of(np.concatenate([grid.sums for grid in layer.grids]), edit),
        shared.of(layer.bias, edit),
        *(
            shared.of(zeros, edit) if each is None else _transposed(each, [1, 0, 2], layer, edit)
            for each in (state, state_2)
        ),
        shared.of(np.array([2**31 - 1], np.int32), edit) if lengths is None else lengths,
        shared.of(layer.peepholes, edit),
    ]
    main = call(
        "QuantizedRecurrence",
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


def input_products(codes: Codes, grid: Grid, bias: npt.NDArray[np.float32], edit: Edit) -> ir.Value:
    """Returns the products of the inputs of all steps by their weights.

    Args:
        codes: The codes of the inputs, [steps, batch, I], with a scale for each row, or for all.
        grid: The weights, [I, directions * gates * hidden_size].
        bias: The bias, [directions * gates * hidden_size].
        edit: The edit of the layer.
    """
    assert codes.scale is not None
    shared, row = edit.shared(SharedInitializers), edit.shared(UnsignedCodes).scale_of(codes.scale)
    constants = (shared.of(each, edit) for each in (pack(grid.codes), grid.zero_point, grid.scale, grid.sums, bias))
    product = call("QuantizedMatMul", [codes.codes, row, codes.zero_point, *constants], terms=codes.terms)
    return edit.insert(product, before=edit.node)


def steps_first(layer: Recurrence, value: ir.Value, edit: Edit) -> ir.Value:
    """Returns the input of a layer as [steps, batch, ...]."""
    return _transposed(value, [1, 0, 2], layer, edit)


def _transposed(value: ir.Value, order: list[int], layer: Recurrence, edit: Edit) -> ir.Value:
    """Returns a value in the layout of QuantizedRecurrence, or one of its outputs in the layout of the layer."""
    if not layer.is_batch_first:
        return value
    return edit.insert(ir.node("Transpose", [value], {"perm": order}), before=layer.node)
