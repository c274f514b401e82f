"""The rule for recurrent layers with constant weights.

LSTM | GRU | RNN | DynamicQuantizeLSTM    -> quantization, QuantizedMatMul of all steps, QuantizedRecurrence
                                          -> WordMatMul of all steps, WordRecurrence

The products of the inputs stay in float if they are so few that quantizing the inputs costs more. DynamicQuantizeLSTM
is of com.microsoft; quantize_dynamic writes it, and its weights stay as they are.
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
from ..rewriter.analysis.nodes import first_inputs
from ..rewriter.codes.float_activations import check_activation
from ..rewriter.edit import Edit
from ..rewriter.policy.cost import is_tiny_matrix, is_tiny_recurrence
from ..rewriter.products.provenance import note_activation
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.recurrent.cell import GATES
from ..rewriter.recurrent.dynamic_lstm import is_dynamic_lstm, weights_of
from ..rewriter.recurrent.layer import Recurrence, build_recurrence, input_products, recurrence_of, steps_first
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers
from ..rewriter.weights.grid import WORD_BITS, QuantizedWeights
from .activations import codes_of, note_on_8_bits, note_on_words
from .options import Options
from .weights import check_constant, floats_of, grid_of_columns, release, words_of


@dataclass(frozen=True)
class _Weights:
    """The weights of a layer.

    Attributes:
        depth: The elements of an input.
        recurrent: The recurrent weights of each direction, [hidden_size, gates * hidden_size].
        inputs: Those of the inputs, [I, directions * gates * hidden_size], as codes or words.
        floats: The same as floats, if the products of the inputs stay in float.
    """

    depth: int
    recurrent: tuple[QuantizedWeights, ...]
    inputs: QuantizedWeights | None
    floats: npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class _RecurrentLayer:
    activation: ir.Value
    recurrence: Recurrence
    weights: _Weights
    bias: npt.NDArray[np.float32]  # of the inputs
    options: Options


def _match(node: ir.Node, context: Context, options: Options) -> _RecurrentLayer | None:
    is_dynamic = is_dynamic_lstm(node)
    if not is_dynamic and (node.domain not in STANDARD_DOMAINS or node.op_type not in GATES):
        return None
    x, w, r = first_inputs(node, 3)
    if x is None or w is None or r is None:
        return None
    facts = context.facts
    if not facts.is_constant(w) and not facts.is_constant(r):
        return None
    options.check(node)
    check_activation(x)
    weights = _weights_of_codes(node, facts) if is_dynamic else _weights_of_floats(node, (x, w, r), options, facts)
    operator = "LSTM" if is_dynamic else node.op_type
    recurrence, bias = recurrence_of(node, operator, weights.recurrent, weights.depth, facts)
    return _RecurrentLayer(x, recurrence, weights, bias, options)


def _weights_of_floats(
    node: ir.Node, operands: tuple[ir.Value, ir.Value, ir.Value], options: Options, facts: Facts
) -> _Weights:
    """Returns W and R of x, W and R, [directions, columns, I or hidden_size], with a scale for each row."""
    x, w, r = operands
    has_words = options.has_words(node)
    terms = 2 if options.has_two_terms(node) and not has_words else 1
    grid_of = words_of if has_words else grid_of_columns
    inputs, recurrent = (_constant(each, facts) for each in (w, r))
    directions, columns, size = recurrent.shape
    depth = inputs.shape[2]
    if inputs.shape != (directions, columns, depth):
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if is_tiny_recurrence(x, size, columns):
        raise Unconverted(Reason.WEIGHTS_TOO_FEW, depth=size, columns=columns)
    grids = tuple(grid_of(np.ascontiguousarray(each.T)) for each in recurrent)
    matrix = np.ascontiguousarray(inputs.reshape(directions * columns, depth).T)
    for each in (w, r):
        release(each)
    if is_tiny_matrix(depth, directions * columns, terms=terms):
        return _Weights(depth, grids, None, matrix)
    return _Weights(depth, grids, grid_of(matrix), None)


def _weights_of_codes(node: ir.Node, facts: Facts) -> _Weights:
    """Returns W and R of DynamicQuantizeLSTM. Their codes stay."""
    inputs, recurrent = weights_of(node, facts)
    return _Weights(len(inputs.codes), recurrent, inputs, None)


def _constant(value: ir.Value, facts: Facts) -> npt.NDArray[np.float32]:
    check_constant(value, facts)
    elements = floats_of(value, facts)
    if elements.ndim != 3:
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    return elements


def _build(match: _RecurrentLayer, edit: Edit) -> None:
    note_activation(edit, match.activation)
    x, weights, options = steps_first(match.recurrence, match.activation, edit), match.weights, match.options
    has_words = weights.recurrent[0].bits == WORD_BITS
    codes = None if has_words or weights.inputs is None else codes_of(x, edit, options)
    if weights.inputs is not None:
        src = input_products(x if codes is None else codes, weights.inputs, match.bias, edit)
    else:
        assert weights.floats is not None
        matrix, bias = (edit.shared(SharedInitializers).of(each, edit) for each in (weights.floats, match.bias))
        product = edit.insert(ir.node("MatMul", [x, matrix]), before=edit.node)
        src = edit.insert(ir.node("Add", [product, bias]), before=edit.node)
    build_recurrence(match.recurrence, src, edit)
    note = note_on_words(options) if has_words else note_on_8_bits(codes, options)
    notes = note, "the products of the inputs stay in float" if weights.inputs is None else ""
    edit.note = "; ".join(filter(None, notes))


def rule(options: Options) -> Rule[_RecurrentLayer]:
    """Returns the rule with these options."""
    return Rule("recurrent layer", OPSET, functools.partial(_match, options=options), _build, reports_opset=True)
