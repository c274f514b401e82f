"""The rule for recurrent layers with constant weights.

LSTM | GRU | RNN | DynamicQuantizeLSTM    -> quantization, QuantizedMatMul of all steps, QuantizedRecurrence

The products of the inputs stay in float if they are so few that quantizing the inputs costs more. DynamicQuantizeLSTM
is of com.microsoft; quantize_dynamic writes it, and its weights stay as they are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import MICROSOFT, STANDARD_DOMAINS
from ..opsets import OPSET
from ..rewriter.analysis.evaluation import evaluate
from ..rewriter.analysis.inference import Facts
from ..rewriter.edit import Edit
from ..rewriter.policy.cost import is_tiny_matrix, is_tiny_recurrence
from ..rewriter.products.float_activations import check_activation
from ..rewriter.products.grid import Grid
from ..rewriter.products.provenance import note_activation
from ..rewriter.products.tail import check_sums
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.recurrent.cell import GATES, cell_of
from ..rewriter.recurrent.layer import DIRECTIONS, Recurrence, build_recurrence, input_products, steps_first
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers
from .activations import codes_of, note_on
from .options import DYNAMIC, Options
from .weights import check_constant, floats_of, grid_of_columns, release


@dataclass(frozen=True)
class _Weights:
    """The weights of a layer.

    Attributes:
        depth: The elements of an input.
        recurrent: The recurrent weights of each direction, [hidden_size, gates * hidden_size].
        inputs: Those of the inputs, [I, directions * gates * hidden_size], as codes.
        floats: The same as floats, if the products of the inputs stay in float.
    """

    depth: int
    recurrent: tuple[Grid, ...]
    inputs: Grid | None
    floats: npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class _Match:
    activation: ir.Value
    recurrence: Recurrence
    weights: _Weights
    bias: npt.NDArray[np.float32]  # of the inputs
    options: Options


def _match(node: ir.Node, context: Context, options: Options) -> _Match | None:
    is_dynamic = node.domain == MICROSOFT and node.op_type == DYNAMIC
    if not is_dynamic and (node.domain not in STANDARD_DOMAINS or node.op_type not in GATES):
        return None
    x, w, r, b, *_, peepholes = [*node.inputs, *[None] * 8][:8]
    if x is None or w is None or r is None:
        return None
    facts = context.facts
    if not facts.is_constant(w) and not facts.is_constant(r):
        return None
    options.check(node)
    check_activation(x)
    direction = DIRECTIONS.get(node.attributes.get_string("direction", "forward"))
    if direction is None:
        raise Unconverted(Reason.RECURRENT_ATTRIBUTE, name="direction")
    weights = (
        _weights_of_codes(node, facts)
        if is_dynamic
        else _weights_of_floats(x, w, r, 2 if options.has_two_terms(node) else 1, facts)
    )
    directions, (size, columns) = len(weights.recurrent), weights.recurrent[0].codes.shape
    cell = cell_of(node, directions, "LSTM" if is_dynamic else node.op_type)
    bias = np.zeros((directions, 2 * columns), np.float32) if b is None else _constant(b, 2, facts)
    extra = np.zeros((directions, 0), np.float32) if peepholes is None else _constant(peepholes, 2, facts)
    if (
        directions != (2 if direction == DIRECTIONS["bidirectional"] else 1)
        or columns != cell.gates * size
        or bias.shape != (directions, 2 * columns)
        or extra.shape[0] != directions
        or extra.shape[1] not in (0, 3 * size)
    ):
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if node.attributes.get_int("hidden_size", size) != size:
        raise Unconverted(Reason.RECURRENT_ATTRIBUTE, name="hidden_size")
    check_sums(max(weights.depth, size), np.zeros(1, np.int8))
    recurrent_bias = np.ascontiguousarray(bias[:, columns:])
    recurrence = Recurrence(node, cell, direction, size, weights.recurrent, recurrent_bias, extra)
    return _Match(x, recurrence, weights, np.ascontiguousarray(bias[:, :columns]).reshape(-1), options)


def _weights_of_floats(x: ir.Value, w: ir.Value, r: ir.Value, terms: int, facts: Facts) -> _Weights:
    """Returns W and R, [directions, columns, I or hidden_size], with a scale for each row."""
    inputs, recurrent = (_constant(each, 3, facts) for each in (w, r))
    directions, columns, size = recurrent.shape
    depth = inputs.shape[2]
    if inputs.shape != (directions, columns, depth):
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if is_tiny_recurrence(x, size, columns):
        raise Unconverted(Reason.WEIGHTS_TOO_FEW, depth=size, columns=columns)
    grids = tuple(grid_of_columns(np.ascontiguousarray(each.T)) for each in recurrent)
    matrix = np.ascontiguousarray(inputs.reshape(directions * columns, depth).T)
    for each in (w, r):
        release(each)
    if is_tiny_matrix(depth, directions * columns, terms=terms):
        return _Weights(depth, grids, None, matrix)
    return _Weights(depth, grids, grid_of_columns(matrix), None)


def _weights_of_codes(node: ir.Node, facts: Facts) -> _Weights:
    """Returns W and R of DynamicQuantizeLSTM, [directions, I or hidden_size, columns], whose codes stay."""
    given = [*node.inputs, *[None] * 12][:12]
    inputs, recurrent = (_grids_of_codes(given[i], given[k], given[k + 1], facts) for i, k in ((1, 8), (2, 10)))
    codes = [grid.codes for grid in inputs]
    if len(inputs) != len(recurrent) or codes[0].shape[1] != recurrent[0].codes.shape[1]:
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    scale = np.concatenate([grid.scale for grid in inputs], 1)
    matrix = Grid(np.ascontiguousarray(np.concatenate(codes, 1)), np.zeros(1, np.int8), scale)
    return _Weights(len(codes[0]), recurrent, matrix, None)


def _grids_of_codes(
    weights: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None, facts: Facts
) -> tuple[Grid, ...]:
    """Returns the weights of each direction: codes minus zero points, and a scale for each column."""
    values = (weights, scale, zero_point)
    if not all(map(facts.is_constant, values)):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    codes, scales, zps = (evaluate(each, facts) for each in values)
    if codes is None or scales is None or codes.ndim != 3:
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    count, _, columns = codes.shape
    zps = np.zeros(1, codes.dtype) if zps is None else zps
    if any(each.size not in (1, count, count * columns) for each in (scales, zps)):
        raise Unconverted(Reason.RECURRENT_WEIGHTS)

    def of_columns(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.broadcast_to(array.reshape(count if array.size > 1 else 1, 1, -1), (count, 1, columns))

    centered = codes.astype(np.int32) - of_columns(zps).astype(np.int32)
    if centered.min(initial=0) < -128 or centered.max(initial=0) > 127:
        raise Unconverted(Reason.WEIGHTS_NOT_8_BITS)
    none = np.zeros(1, np.int8)
    return tuple(
        Grid(each.astype(np.int8), none, np.ascontiguousarray(of_scale))
        for each, of_scale in zip(centered, of_columns(scales), strict=True)
    )


def _constant(value: ir.Value, rank: int, facts: Facts) -> npt.NDArray[np.float32]:
    check_constant(value, facts)
    elements = floats_of(value, facts)
    if elements.ndim != rank:
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if not np.isfinite(elements).all():
        raise Unconverted(Reason.WEIGHTS_NOT_FINITE)
    return elements


def _build(match: _Match, edit: Edit) -> None:
    note_activation(edit, match.activation)
    x, weights, options = steps_first(match.recurrence, match.activation, edit), match.weights, match.options
    notes = ["int8"] if options.weights == "int4" else []
    if weights.inputs is not None:
        codes = codes_of(x, edit, options)
        src = input_products(codes, weights.inputs, match.bias, edit)
        notes.append(note_on(codes, options))
    else:
        assert weights.floats is not None
        matrix, bias = (edit.shared(SharedInitializers).of(each, edit) for each in (weights.floats, match.bias))
        product = edit.insert(ir.node("MatMul", [x, matrix]), before=edit.node)
        src = edit.insert(ir.node("Add", [product, bias]), before=edit.node)
        notes.append("the products of the inputs stay in float")
    build_recurrence(match.recurrence, src, edit)
    edit.note = "; ".join(filter(None, notes))


def rule(options: Options) -> Rule[_Match]:
    """Returns the rule with these options."""
    return Rule("recurrent layer", OPSET, functools.partial(_match, options=options), _build, reports_opset=True)
