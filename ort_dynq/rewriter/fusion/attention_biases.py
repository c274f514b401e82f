"""The rule for biases of query, key and value of MultiHeadAttention: they become Add, which the products before take.

What is left of the operator is attention alone, which the rule for attention takes (attention_operators.py).
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
from ..analysis.nodes import input_of
from ..edit import Edit
from ..reasons import Unconverted
from ..rule import Context, Rule
from ..views import FLOATS, Nodes, dims_of
from .attention_operators import BIAS, QUERY_KEY_VALUE, check_multi_head


@dataclass(frozen=True)
class _Biases:
    """The biases of query, key and value of MultiHeadAttention, and the values to which they are added."""

    operands: list[ir.Value]
    biases: list[npt.NDArray[Any]]


def _match(node: ir.Node, context: Context) -> _Biases | None:
    if not context.options.fuse or node.domain != MICROSOFT or node.op_type != "MultiHeadAttention":
        return None
    bias, operands = input_of(node, BIAS), node.inputs[:QUERY_KEY_VALUE]
    if bias is None or not context.facts.is_constant(bias):
        return None
    try:
        check_multi_head(node, None, has_bias=True)
    except Unconverted:  # the rule for attention reports it
        return None
    values = [each for each in operands if each is not None and each.dtype in FLOATS and len(dims_of(each)) == 3]
    widths = [width for each in values if isinstance(width := dims_of(each)[-1], int)]
    elements = evaluate(bias, context.facts)
    if len(widths) != QUERY_KEY_VALUE or elements is None or elements.shape != (sum(widths),):
        return None
    return _Biases(values, np.split(elements, np.cumsum(widths)[:-1]))


def _build(match: _Biases, edit: Edit) -> None:
    node, nodes = edit.node, Nodes(edit, edit.node)
    pairs = zip(match.operands, match.biases, strict=True)
    operands = [nodes.noted(nodes.add("Add", value, bias), value, dims_of(value)) for value, bias in pairs]
    inputs = [*operands, None, *node.inputs[BIAS + 1 :]]
    main = ir.node("MultiHeadAttention", inputs, dict(node.attributes), domain=MICROSOFT)
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))


RULE: Rule[_Biases] = Rule("biases of attention", OPSET, _match, _build, fuses=True, prepares=True)
