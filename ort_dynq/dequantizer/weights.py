"""The rule for weights behind DequantizeLinear: they become float initializers, with the numbers that it computes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..rewriter.analysis.evaluation import evaluate
from ..rewriter.analysis.nodes import producer_of
from ..rewriter.analysis.standard import MOVES
from ..rewriter.edit import Edit
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers

_Weights = tuple[tuple[int, npt.NDArray[np.generic]], ...]


def _match(node: ir.Node, context: Context) -> _Weights | None:
    found = []
    for i, value in enumerate(node.inputs):
        if value is None or not context.facts.is_constant(value) or not _is_dequantized(value):
            continue
        elements = evaluate(value, context.facts)
        if elements is not None:
            found.append((i, elements))
    return tuple(found) or None


def _is_dequantized(value: ir.Value) -> bool:
    """Returns whether a constant is computed by DequantizeLinear, and moved or cast after it."""
    while (node := producer_of(value, *MOVES, "Cast")) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    return producer_of(value, "DequantizeLinear") is not None


def _build(match: _Weights, edit: Edit) -> None:
    edit.operator = edit.node.op_type
    for index, elements in match:
        edit.replace_input(edit.node, index, edit.shared(SharedInitializers).of(elements, edit))


RULE: Rule[_Weights] = Rule("dequantized weights", 7, _match, _build)
