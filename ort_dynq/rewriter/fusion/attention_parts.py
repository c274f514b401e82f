"""The rule that splits GroupQueryAttention and MultiHeadAttention before they become integer.

[Split of packed query, key and value], [RotaryEmbedding of query and key], GroupQueryAttention, [present key and value]
Add of the biases of query, key and value, MultiHeadAttention

What is left of the operator is attention alone, which the rule for attention takes (attention_operators.py). Only
prompts have this form: with keys and values of earlier runs the operator stays whole. Products before take the biases.
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
from .attention_operators import (
    BIAS,
    by_head,
    check_group_query,
    check_multi_head,
    heads_of,
    noted,
    operands_of,
    rotates,
    size_of_heads,
)
from .views import dims_of

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_ROTARY = ("do_rotary", "rotary_interleaved")
_QUERY_KEY_VALUE = 3


@dataclass(frozen=True)
class _Parts:
    """GroupQueryAttention that is split.

    Attributes:
        heads: The numbers of heads of query, key and value.
        size: The elements of a head.
    """

    heads: tuple[int, int, int]
    size: int


@dataclass(frozen=True)
class _Biases:
    """The biases of query, key and value of MultiHeadAttention, and the values to which they are added."""

    operands: list[ir.Value]
    biases: list[npt.NDArray[Any]]


def _match(node: ir.Node, context: Context) -> _Parts | _Biases | None:
    if context.options.fuse and node.domain == MICROSOFT and node.op_type == "MultiHeadAttention":
        return _biases_of(node, context)
    if not context.options.fuse or node.domain != MICROSOFT or node.op_type != "GroupQueryAttention":
        return None
    try:
        check_group_query(node, is_split=False)
    except Unconverted:  # the rule for attention reports it
        return None
    if not (input_of(node, 1) is None or rotates(node) or any(_is_used(each) for each in node.outputs[1:])):
        return None
    size = size_of_heads(node)
    heads, key_heads = heads_of(node)
    return None if size is None else _Parts((heads, key_heads, key_heads), size)


def _biases_of(node: ir.Node, context: Context) -> _Biases | None:
    """Returns the biases of MultiHeadAttention, if they are constant."""
    bias, operands = input_of(node, BIAS), node.inputs[:_QUERY_KEY_VALUE]
    if bias is None or not context.facts.is_constant(bias):
        return None
    try:
        check_multi_head(node, is_split=False)
    except Unconverted:  # the rule for attention reports it
        return None
    values = [each for each in operands if each is not None and each.dtype in _FLOATS and len(dims_of(each)) == 3]
    widths = [dims_of(each)[-1] for each in values]
    numbers = [each for each in widths if isinstance(each, int)]
    elements = evaluate(bias, context.facts)
    if len(numbers) != _QUERY_KEY_VALUE or elements is None or elements.shape != (sum(numbers),):
        return None
    return _Biases(values, np.split(elements, np.cumsum(numbers)[:-1]))


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _build(match: _Parts | _Biases, edit: Edit) -> None:
    if isinstance(match, _Biases):
        _build_biases(match, edit)
        return
    node = edit.node
    operands = operands_of(node, match.heads, match.size, edit)
    kept = {name: value for name, value in node.attributes.items() if name not in _ROTARY}
    rest = [input_of(node, i) for i in range(_QUERY_KEY_VALUE, 7)]
    inputs = [*operands, *rest, None, None, None, input_of(node, 10)]
    main = ir.node("GroupQueryAttention", inputs, kept, domain=MICROSOFT, num_outputs=_QUERY_KEY_VALUE)
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))
    for output, value in zip(node.outputs[1:], operands[1:], strict=False):
        if _is_used(output):
            edit.replace(output, by_head(value, match.heads[1], edit))


def _build_biases(match: _Biases, edit: Edit) -> None:
    node, operands = edit.node, []
    for value, elements in zip(match.operands, match.biases, strict=True):
        bias = edit.add_constant(elements, before=node)
        total = edit.insert(ir.node("Add", [value, bias]), before=node)
        operands.append(noted(total, value, dims_of(value), edit))
    inputs = [*operands, None, *node.inputs[BIAS + 1 :]]
    main = ir.node("MultiHeadAttention", inputs, dict(node.attributes), domain=MICROSOFT)
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))


RULE: Rule[_Parts | _Biases] = Rule("operands of attention", OPSET, _match, _build, fuses=True, prepares=True)
