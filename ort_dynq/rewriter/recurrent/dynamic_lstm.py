"""The rule for DynamicQuantizeLSTM, the LSTM of com.microsoft that quantize_dynamic writes.

DynamicQuantizeLSTM    -> RowProgram of rows, QuantizedMatMul of all steps, QuantizedRecurrence

ONNX Runtime quantizes the inputs of all steps with one scale, and at each step the states of all sequences with one.
Here each input of a step and each state has a scale of its own, by the same formula: its steps are never larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs
from ..codes.float_activations import FloatActivations, check_activation
from ..edit import Edit
from ..products.provenance import note_activation
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.grid import QuantizedWeights
from .layer import Recurrence, build_recurrence, input_products, recurrence_of

DYNAMIC_LSTM = "DynamicQuantizeLSTM"
"""The operator."""


@dataclass(frozen=True)
class LstmLayer:
    """A layer that is converted.

    Attributes:
        activation: Its input.
        recurrence: Its steps.
        inputs: The weights of the inputs, [I, directions * gates * hidden_size].
        bias: The bias of the inputs, [directions * gates * hidden_size].
    """

    activation: ir.Value
    recurrence: Recurrence
    inputs: QuantizedWeights
    bias: npt.NDArray[np.float32]


def is_dynamic_lstm(node: ir.Node) -> bool:
    """Returns whether a node is a DynamicQuantizeLSTM."""
    return node.domain == MICROSOFT and node.op_type == DYNAMIC_LSTM


def weights_of(node: ir.Node, facts: Facts) -> tuple[QuantizedWeights, tuple[QuantizedWeights, ...]]:
    """Returns the weights of a DynamicQuantizeLSTM. Their codes stay.

    Args:
        node: The layer: W and R are [directions, I or hidden_size, columns].
        facts: What is known of the model.

    Returns:
        The weights of the inputs, [I, directions * columns], and the recurrent weights of each direction, [hidden_size,
        columns].

    Raises:
        Unconverted: They are not known, do not have these shapes, or codes minus zero points exceed 8 bits.
    """
    given = first_inputs(node, 12)
    inputs, recurrent = (_grids(given[i], given[k], given[k + 1], facts) for i, k in ((1, 8), (2, 10)))
    if len(inputs) != len(recurrent) or inputs[0].codes.shape[1] != recurrent[0].codes.shape[1]:
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    codes, scale = (
        np.concatenate(each, 1) for each in zip(*((grid.codes, grid.scale) for grid in inputs), strict=True)
    )
    return QuantizedWeights(np.ascontiguousarray(codes), np.zeros(1, np.int8), scale), recurrent


def _grids(
    weights: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None, facts: Facts
) -> tuple[QuantizedWeights, ...]:
    """Returns the weights of each direction: codes minus zero points, and a scale for each column."""
    values = (weights, scale, zero_point)
    if not all(map(facts.is_constant, values)):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    codes, scales, zps = (evaluate(each, facts) for each in values)
    if codes is None or scales is None or codes.ndim != 3 or not codes.size:
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    count, _, columns = codes.shape
    zps = np.zeros(1, codes.dtype) if zps is None else zps
    if codes.dtype not in (np.int8, np.uint8) or scales.dtype != np.float32 or zps.dtype != codes.dtype:
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if any(each.size not in (1, count, count * columns) for each in (scales, zps)):
        raise Unconverted(Reason.RECURRENT_WEIGHTS)
    if not np.isfinite(scales).all():
        raise Unconverted(Reason.WEIGHTS_NOT_FINITE)

    def of_columns(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.broadcast_to(array.reshape(count if array.size > 1 else 1, 1, -1), (count, 1, columns))

    centered = codes.astype(np.int32) - of_columns(zps).astype(np.int32)
    if centered.min() < -128 or centered.max() > 127:
        raise Unconverted(Reason.WEIGHTS_NOT_8_BITS)
    none = np.zeros(1, np.int8)
    return tuple(
        QuantizedWeights(each.astype(np.int8), none, np.ascontiguousarray(of_scale))
        for each, of_scale in zip(centered, of_columns(scales), strict=True)
    )


def _match(node: ir.Node, context: Context) -> LstmLayer | None:
    if context.options.exact:
        raise Unconverted(Reason.EXACT)
    x = node.inputs[0]
    if x is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=0)
    check_activation(x)
    inputs, recurrent = weights_of(node, context.facts)
    recurrence, bias = recurrence_of(node, "LSTM", recurrent, len(inputs.codes), context.facts)
    return LstmLayer(x, recurrence, inputs, bias)


def _build(match: LstmLayer, edit: Edit) -> None:
    codes = edit.shared(FloatActivations).of_rows(match.activation, edit)
    build_recurrence(match.recurrence, input_products(codes, match.inputs, match.bias, edit), edit)
    note_activation(edit, match.activation)


RULE = Rule(DYNAMIC_LSTM, OPSET, _match, _build, reports_opset=True, operators=(f"{MICROSOFT}.{DYNAMIC_LSTM}",))
