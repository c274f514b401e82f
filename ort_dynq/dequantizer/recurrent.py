"""The rule for DynamicQuantizeLSTM of com.microsoft.

DynamicQuantizeLSTM    -> LSTM

Its weights are [directions, I, 4 * hidden_size], those of LSTM are transposed. They are floats in any form: a
DequantizeLinear has scales along one axis.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..rewriter.analysis.evaluation import evaluate_if_constant
from ..rewriter.analysis.nodes import first_inputs, input_of
from ..rewriter.edit import Edit
from ..rewriter.products.integer_product import stored_weights_of
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.recurrent.dynamic_lstm import is_dynamic_lstm
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers


@dataclass(frozen=True)
class _Lstm:
    inputs: npt.NDArray[np.float32]
    recurrent: npt.NDArray[np.float32]


def _match(node: ir.Node, context: Context, form: str) -> _Lstm | None:
    if not is_dynamic_lstm(node):
        return None
    found = []
    for at, scale_at in ((1, 8), (2, 10)):
        codes, zeros = stored_weights_of(node, context.facts, (at, scale_at + 1))
        scale = evaluate_if_constant(input_of(node, scale_at), context.facts)
        if scale is None:
            raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
        zeros, scale = (each if each.size == 1 else each.reshape(len(codes), 1, -1) for each in (zeros, scale))
        reals = (codes.astype(np.int32) - zeros.astype(np.int32)) * scale
        found.append(np.ascontiguousarray(reals.astype(np.float32).transpose(0, 2, 1)))
    return _Lstm(*found)


def _build(match: _Lstm, edit: Edit) -> None:
    node, shared = edit.node, edit.shared(SharedInitializers)
    x, _, _, *others = first_inputs(node, 8)
    inputs = [x, shared.of(match.inputs, edit), shared.of(match.recurrent, edit), *others]
    while inputs and inputs[-1] is None:
        inputs.pop()
    kept = {name: each for name, each in node.attributes.items() if name != "input_forget" or each.as_int()}
    new = ir.node("LSTM", inputs, kept, num_outputs=len(node.outputs))
    edit.insert_main(new, before=node)
    for old, output in zip(node.outputs, new.outputs, strict=True):
        if old.uses() or old.is_graph_output():
            edit.replace(old, output)


def rule(form: str) -> Rule[_Lstm]:
    """Returns the rule; its weights are floats in any form."""
    return Rule("quantized LSTM", 7, functools.partial(_match, form=form), _build)
