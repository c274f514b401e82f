"""The rule for LSTM, GRU and RNN with constant float weights.

LSTM | GRU | RNN    -> quantization, QuantizedMatMul of all steps, QuantizedRecurrence

The products of the inputs stay in float if they are so few that quantizing the inputs costs more.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..opsets import OPSET
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
from .activations import codes_of
from .options import Options
from .weights import check_constant, floats_of, grid_of_columns, release


@dataclass(frozen=True)
class _Match:
    activation: ir.Value
    recurrence: Recurrence
    weights: npt.NDArray[np.float32]  # of the inputs, [I, directions * gates * hidden_size]
    grid: Grid | None  # the same; None: the products of the inputs stay in float
    bias: npt.NDArray[np.float32]  # of the inputs
    options: Options


def _match(node: ir.Node, context: Context, options: Options) -> _Match | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in GATES:
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
    input_weights, weights = (_constant(each, 3, facts) for each in (w, r))
    directions, columns, size = weights.shape
    depth = input_weights.shape[2]
    cell = cell_of(node, directions)
    bias = np.zeros((directions, 2 * columns), np.float32) if b is None else _constant(b, 2, facts)
    extra = np.zeros((directions, 0), np.float32) if peepholes is None else _constant(peepholes, 2, facts)
    if (
        directions != (2 if direction == DIRECTIONS["bidirectional"] else 1)
        or columns != cell.gates * size
        or input_weights.shape != (directions, columns, depth)
        or bias.shape != (directions, 2 * columns)
        or extra.shape[0] != directions
        or extra.shape[1] not in (0, 3 * size)
    ):
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if node.attributes.get_int("hidden_size", size) != size:
        raise Unconverted(Reason.RECURRENT_ATTRIBUTE, name="hidden_size")
    if is_tiny_recurrence(x, size, columns):
        raise Unconverted(Reason.WEIGHTS_TOO_FEW, depth=size, columns=columns)
    check_sums(max(depth, size), np.zeros(1, np.int8))
    recurrence = Recurrence(
        node,
        cell,
        direction,
        size,
        tuple(grid_of_columns(np.ascontiguousarray(each.T)) for each in weights),
        np.ascontiguousarray(bias[:, columns:]),
        extra,
    )
    matrix = np.ascontiguousarray(input_weights.reshape(directions * columns, depth).T)
    grid = None if is_tiny_matrix(depth, directions * columns) else grid_of_columns(matrix)
    for each in (w, r):
        release(each)
    return _Match(x, recurrence, matrix, grid, np.ascontiguousarray(bias[:, :columns]).reshape(-1), options)


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
    x = steps_first(match.recurrence, match.activation, edit)
    build_recurrence(match.recurrence, _products(match, x, edit), edit)
    notes = ["int8"] if match.options.weights == "int4" else []
    notes += ["the products of the inputs stay in float"] if match.grid is None else []
    edit.note = "; ".join(notes)


def _products(match: _Match, x: ir.Value, edit: Edit) -> ir.Value:
    """Returns the products of the inputs of all steps, with their bias."""
    if match.grid is not None:
        return input_products(codes_of(x, edit, match.options), match.grid, match.bias, edit)
    weights, bias = (edit.shared(SharedInitializers).of(each, edit) for each in (match.weights, match.bias))
    product = edit.insert(ir.node("MatMul", [x, weights]), before=edit.node)
    return edit.insert(ir.node("Add", [product, bias]), before=edit.node)


def rule(options: Options) -> Rule[_Match]:
    """Returns the rule with these options."""
    return Rule("recurrent layer", OPSET, functools.partial(_match, options=options), _build, reports_opset=True)
