"""Operators that compute attention, as the rules for exported attention see it.

Attention of opset 23 and 24, and MultiHeadAttention and GroupQueryAttention of com.microsoft. Their kernels keep
floats. Those that append to past keys, unpack or rotate their operands have a rule of their own: attention_operands.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import replace

import onnx_ir as ir

from ...graphs import MICROSOFT, operator_of
from ...operators.encodings import HeadLayout
from ..analysis.nodes import input_of
from ..analysis.shapes import is_equal
from ..reasons import Reason, Unconverted
from ..views import View, axes_of, broadcast, dims_of, length_of
from .score_steps import Added, Masked, Padding, Step, Steps
from .scores import Attention, Part

_ONNX_INPUTS = {4: "past keys", 5: "past values", 6: "numbers of keys that are no padding"}
BIAS = 3  # of MultiHeadAttention
_MICROSOFT_INPUTS = {BIAS: "bias of query, key and value", 6: "past keys", 7: "past values"}
_ONNX_ATTRIBUTES = ("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap")
_MICROSOFT_ATTRIBUTES = ("mask_filter_value", "num_heads", "scale", "unidirectional")
_GROUP_INPUTS = {
    11: "attention sinks",
    **dict.fromkeys((12, 13), "quantized keys and values"),
    **dict.fromkeys((14, 15), "norms of query and key"),
    16: "lengths of queries",
}
_GROUP_ATTRIBUTES = (
    *("causal", "kv_num_heads", "local_window_size", "num_heads", "qk_output", "scale", "smooth_softmax", "softcap"),
    # Without norms and quantized keys, these change nothing:
    *("k_norm_epsilon", "k_quant_type", "kv_cache_bit_width", "q_norm_epsilon", "qk_norm_epsilon"),
    "v_quant_type",
    *("do_rotary", "rotary_interleaved"),
)
_ATTRIBUTES = {
    "sliding_window_cache": "cache of a window",
    "qk_matmul_output_mode": "output of scores",
    "qk_output": "output of scores",
    "smooth_softmax": "softmax with a sink",
}
_PAST = {"Attention": (4, 5), f"{MICROSOFT}.MultiHeadAttention": (6, 7), f"{MICROSOFT}.GroupQueryAttention": (3, 4)}
_OUTPUTS_WITH_PAST = 3  # the present keys and values, too
QUERY_KEY_VALUE = 3
LAST = 5  # of GroupQueryAttention: the number of the last key of each sample
_FILTER = -10000.0  # ONNX Runtime adds it to the scores of padding
_LATER_INPUTS = "length or cache of past keys"
_OTHER_NUMBERS = "causal mask for other numbers of queries and keys"


def operator_attention(node: ir.Node, opset: int, operands: Sequence[ir.Value] | None = None) -> Attention | None:
    """Returns the attention that one operator computes; None for other operators.

    Args:
        node: The node.
        opset: The opset of the model.
        operands: Query, key and value, if it appends key and value to past ones, packs or rotates them: those that have
            all tokens, apart and rotated. None: its inputs.

    Raises:
        Unconverted: It has an input, an output or an attribute that no other operator takes.
    """
    if not is_attention(node):
        return None
    if node.op_type == "Attention":
        return _attention(node, opset, operands)
    return (_multi_head if node.op_type == "MultiHeadAttention" else _group_query)(node, operands)


def is_attention(node: ir.Node) -> bool:
    """Returns whether a node is one of the operators."""
    return operator_of(node) in _PAST


def past_of(node: ir.Node) -> list[ir.Value]:
    """Returns the past keys and values of one of the operators; none if it has none."""
    past = [input_of(node, i) for i in _PAST[operator_of(node)]]
    return [each for each in past if each is not None]


def heads_of(node: ir.Node) -> tuple[int, int]:
    """Returns the numbers of heads of query and key that one of the operators states; 0: it states none."""
    names = ("num_heads", "kv_num_heads") if node.domain == MICROSOFT else ("q_num_heads", "kv_num_heads")
    heads, key_heads = (node.attributes.get_int(name, 0) for name in names)
    return heads, heads if node.op_type == "MultiHeadAttention" else key_heads


def rotates(node: ir.Node) -> bool:
    """Returns whether GroupQueryAttention gives query and key their positions."""
    return node.attributes.get_int("do_rotary", 0) == 1


def _attention(node: ir.Node, opset: int, operands: Sequence[ir.Value] | None) -> Attention:
    _check(node, operands, _ONNX_INPUTS, _ONNX_ATTRIBUTES)
    is_causal = node.attributes.get_int("is_causal", 0) == 1
    if is_causal and operands is not None and not _has_key_for_each_query(node):  # the first query sees the first one
        raise Unconverted(Reason.ATTENTION_OPERATOR, what=_OTHER_NUMBERS)
    mask = input_of(node, 3)
    found = _with(node, operands, node.attributes.get_float("scale", None), mask)
    if mask is not None and opset > 23 and not is_equal(dims_of(mask)[-1], dims_of(found.key.value)[-2]):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="mask, which may have fewer numbers than there are keys")
    return replace(found, softcap=node.attributes.get_float("softcap", 0.0), is_causal=is_causal)


def _multi_head(node: ir.Node, operands: Sequence[ir.Value] | None) -> Attention:
    check_multi_head(node, operands)
    is_causal = node.attributes.get_int("unidirectional", 0) == 1
    if is_causal and not _has_key_for_each_query(node):  # ONNX Runtime hides none from the last
        raise Unconverted(Reason.ATTENTION_OPERATOR, what=_OTHER_NUMBERS)
    found = _with(node, operands, node.attributes.get_float("scale", 0.0) or None, input_of(node, 5))
    steps = found.steps
    if (mask := input_of(node, 4)) is not None:
        steps += (_padding(mask, node.attributes.get_float("mask_filter_value", _FILTER), found),)
    return replace(found, is_safe=False, is_causal=is_causal, steps=steps)


def _has_key_for_each_query(node: ir.Node) -> bool:
    """Returns whether an operator with inputs of query and key is known to have as many new keys as queries."""
    query, key = ([] if value is None else dims_of(value) for value in node.inputs[:2])
    return len(query) in (3, 4) and len(key) in (3, 4) and is_equal(query[-2], key[-2])


def check_multi_head(node: ir.Node, operands: Sequence[ir.Value] | None, *, has_bias: bool = False) -> None:
    """Checks that MultiHeadAttention has only what the rules know, and a bias of query, key and value, if it may.

    Raises:
        Unconverted: It has more.
    """
    inputs = {i: what for i, what in _MICROSOFT_INPUTS.items() if not (has_bias and i == BIAS)}
    if operands is not None:
        inputs[4] = "padding mask beside past keys"
    _check(node, operands, inputs, _MICROSOFT_ATTRIBUTES)


def _padding(mask: ir.Value, number: float, found: Attention) -> Step:
    """Returns the padding that a mask of MultiHeadAttention hides.

    Raises:
        Unconverted: Its form is not known.
    """
    batch, _, queries, keys = found.probabilities
    dims = dims_of(mask)
    if len(dims) == 1 and is_equal(dims[0], dims_of(found.query.value)[0]):
        return Padding(mask, (keys,), number=number, more=0)
    if len(dims) not in (2, 3):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="padding mask, which is not known to have one of the forms")
    return Padding(mask, (batch, keys) if len(dims) == 2 else (batch, queries, keys), number=number)


def _group_query(node: ir.Node, operands: Sequence[ir.Value] | None) -> Attention:
    """GroupQueryAttention is causal: a query sees keys up to its own position, none of them padding."""
    if node.attributes.get_int("causal", 1) == 0:
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="attribute causal")
    if (window := node.attributes.get_int("local_window_size", -1)) == 0:
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="window of no keys")
    _check(node, operands, _GROUP_INPUTS, _GROUP_ATTRIBUTES)
    if operands is None and rotates(node):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="rotated query and key")
    found = _with(node, operands, node.attributes.get_float("scale", 0.0) or None, input_of(node, 10))
    lengths = input_of(node, LAST)
    steps = found.steps if lengths is None else (*found.steps, Padding(lengths, found.probabilities[3:], more=1))
    softcap = node.attributes.get_float("softcap", 0.0)
    return replace(found, softcap=softcap, is_causal=True, window=max(0, window), steps=steps)


def _check(
    node: ir.Node, operands: Sequence[ir.Value] | None, inputs: dict[int, str], attributes: tuple[str, ...]
) -> None:
    """Checks that an operator has only what the rules know, also past keys and values if its operands are given.

    Raises:
        Unconverted: It has more.
    """
    past, has_past = _PAST[operator_of(node)], bool(past_of(node))
    for i, value in enumerate(node.inputs):
        if value is not None and i not in past and (i in inputs or i > max(inputs)):
            raise Unconverted(Reason.ATTENTION_OPERATOR, what=inputs.get(i, _LATER_INPUTS))
    if any(map(is_used, node.outputs[1 if operands is None and not has_past else _OUTPUTS_WITH_PAST :])):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="second output")
    for name in node.attributes:
        is_set = name in _ATTRIBUTES and node.attributes.get_int(name, 0) != 0
        if is_set or (name not in attributes and name != "softmax_precision"):
            raise Unconverted(Reason.ATTENTION_OPERATOR, what=_ATTRIBUTES.get(name, f"attribute {name}"))
    if has_past and operands is None:
        raise Unconverted(Reason.ATTENTION_PAST)


def is_used(value: ir.Value) -> bool:
    """Returns whether the model uses an output."""
    return bool(value.uses()) or value.is_graph_output()


def order_of(axes: Sized) -> HeadLayout:
    """Returns the order of axes, [B, S, H * D] or [B, H, S, D]."""
    return HeadLayout.TOKENS_FIRST if len(axes) == 3 else HeadLayout.HEADS_FIRST


def _with(node: ir.Node, operands: Sequence[ir.Value] | None, factor: float | None, mask: ir.Value | None) -> Attention:
    """Returns attention of operands of [B, S, H * D] or [B, H, S, D], and a mask.

    Raises:
        Unconverted: A number of heads, a size, or the rank of the mask is not known.
    """
    values = [each for each in operands or node.inputs[:QUERY_KEY_VALUE] if each is not None]
    shapes = [dims_of(each) for each in values]
    if len(shapes) != QUERY_KEY_VALUE or not all(len(each) in (3, 4) for each in shapes):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="operands: the rank of one is not known, or not 3 or 4")
    query, key, value = shapes
    given = [each[1] if len(each) == 4 else n for each, n in zip((query, key), heads_of(node), strict=True)]
    heads, key_heads = (each if isinstance(each, int) else 0 for each in given)
    widths = [each[-1] for each in (query, value) if isinstance(each[-1], int)]
    if min(heads, key_heads) < 1 or heads % key_heads or len(widths) != 2:
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="heads: their number or size is not known")
    lengths = (
        query[-1] if len(query) == 4 else widths[0] // heads,
        value[-1] if len(value) == 4 else widths[1] // key_heads,
    )
    batch, queries, keys, size, width = axes_of((query[0], query[-2], key[-2], *lengths))
    shared, repeats = axes_of((key_heads, heads // key_heads))
    axes = batch, (*shared, *repeats), queries, keys
    parts = (
        Part(*axes[:3], size),
        Part(batch, shared, keys, size),
        Part(batch, shared, keys, width),
        Part(*axes[:3], width),
    )
    values.append(node.outputs[0])
    shapes.append(dims_of(node.outputs[0]) or query)
    q, k, v, y = (View(each, part.axes(order_of(dims))) for each, part, dims in zip(values, parts, shapes, strict=True))
    if factor is None:
        factor = 1 / math.sqrt(length_of(size) or 1)
    steps: Steps = ()
    if mask is not None:
        view = broadcast(mask, axes)
        if view is None or len(dims_of(mask)) < 2:
            raise Unconverted(Reason.ATTENTION_OPERATOR, what="mask: its rank is not known, or not 2 to 4")
        is_mask = mask.dtype == ir.DataType.BOOL
        steps = (Masked(mask, view.axes) if is_mask else Added(mask, view.axes),)
    return Attention(q, k, v, axes, node, y, factor=factor, steps=steps)
