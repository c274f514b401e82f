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
from .attention_operators import BIAS, check_group_query, check_multi_head
from .views import Dim, dims_of

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # of RotaryEmbedding
_ROTARY = ("do_rotary", "rotary_interleaved")
_POSITIONS = 9  # the input
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
    is_packed, is_rotated = input_of(node, 1) is None, node.attributes.get_int("do_rotary", 0) == 1
    if not (is_packed or is_rotated or any(_is_used(each) for each in node.outputs[1:])):
        return None
    heads, key_heads = (node.attributes.get_int(name, 0) for name in ("num_heads", "kv_num_heads"))
    query = node.inputs[0]
    dims = [] if query is None else dims_of(query)
    all_heads = heads + 2 * key_heads if is_packed else heads
    if query is None or query.dtype not in _FLOATS or len(dims) != 3 or min(heads, key_heads) < 1:
        return None
    width = dims[-1]
    if not isinstance(width, int) or width % all_heads:
        return None
    cos, sin = input_of(node, 7), input_of(node, 8)
    if is_rotated and (cos is None or sin is None or not isinstance([None, *dims_of(cos)][-1], int)):
        return None
    return _Parts((heads, key_heads, key_heads), width // all_heads)


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
    node, size = edit.node, match.size
    query = node.inputs[0]
    assert query is not None
    operands = list(node.inputs[:_QUERY_KEY_VALUE])
    if input_of(node, 1) is None:
        widths = edit.add_constant(np.array([n * size for n in match.heads]), before=node)
        split = ir.node("Split", [query, widths], {"axis": -1}, num_outputs=_QUERY_KEY_VALUE)
        edit.insert(split, before=node)
        operands = [
            _noted(each, query, [*dims_of(query)[:2], n * size], edit)
            for each, n in zip(split.outputs, match.heads, strict=True)
        ]
    if node.attributes.get_int("do_rotary", 0):
        operands[:2] = [_rotated(operands[i], match.heads[i], size, edit) for i in (0, 1)]
    kept = {name: value for name, value in node.attributes.items() if name not in _ROTARY}
    rest = [input_of(node, i) for i in range(_QUERY_KEY_VALUE, 7)]
    inputs = [*operands, *rest, None, None, None, input_of(node, 10)]
    main = ir.node("GroupQueryAttention", inputs, kept, domain=MICROSOFT, num_outputs=_QUERY_KEY_VALUE)
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))
    for output, value in zip(node.outputs[1:], operands[1:], strict=False):
        if _is_used(output):
            shape = edit.add_constant(np.array([0, 0, match.heads[1], size]), before=node)
            heads = edit.insert(ir.node("Reshape", [value, shape]), before=node)
            swapped = ir.node("Transpose", [heads], {"perm": [0, 2, 1, 3]})
            edit.replace(output, edit.insert(swapped, before=node))


def _build_biases(match: _Biases, edit: Edit) -> None:
    node, operands = edit.node, []
    for value, elements in zip(match.operands, match.biases, strict=True):
        bias = edit.add_constant(elements, before=node)
        total = edit.insert(ir.node("Add", [value, bias]), before=node)
        operands.append(_noted(total, value, dims_of(value), edit))
    inputs = [*operands, None, *node.inputs[BIAS + 1 :]]
    main = ir.node("MultiHeadAttention", inputs, dict(node.attributes), domain=MICROSOFT)
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))


def _rotated(value: ir.Value | None, heads: int, size: int, edit: Edit) -> ir.Value:
    """Returns a query or key [B, S, heads * size] with its positions."""
    node = edit.node
    positions, cos, sin = input_of(node, _POSITIONS), input_of(node, 7), input_of(node, 8)
    assert value is not None
    assert cos is not None
    half = dims_of(cos)[-1]
    assert isinstance(half, int)
    first = edit.add_constant(np.zeros(1, np.int64), before=node)
    if positions is None:
        positions = first
    else:  # the operator uses the first element alone in a prompt
        vector = edit.add_constant(np.array([-1]), before=node)
        flat = edit.insert(ir.node("Reshape", [positions, vector]), before=node)
        positions = edit.insert(ir.node("Gather", [flat, first]), before=node)
    attributes = {"num_heads": heads, "interleaved": node.attributes.get_int("rotary_interleaved", 0)}
    if half * 2 != size:
        attributes["rotary_embedding_dim"] = half * 2
    rotary = ir.node("RotaryEmbedding", [value, positions, cos, sin], attributes, domain=MICROSOFT)
    return _noted(edit.insert(rotary, before=node), value, dims_of(value), edit)


def _noted(new: ir.Value, like: ir.Value, dims: list[Dim], edit: Edit) -> ir.Value:
    """Returns a new value, which has the type of another one."""
    assert like.dtype is not None
    edit.facts.note(new, like.dtype, ir.Shape(dims))
    return new


RULE: Rule[_Parts | _Biases] = Rule("operands of attention", OPSET, _match, _build, fuses=True, prepares=True)
