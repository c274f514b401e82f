"""Operators that compute attention, as the rules for exported attention see it.

Attention of opset 23 and 24, and MultiHeadAttention and GroupQueryAttention of com.microsoft. Their kernels keep
floats. GroupQueryAttention that rotates or packs its operands is split before (attention_parts.py).
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ..analysis.nodes import input_of, is_standard
from ..analysis.shapes import is_equal
from ..reasons import Reason, Unconverted
from .score_steps import Added, Masked, Padding, Step
from .scores import Attention, Scores
from .views import Axes, Axis, Dim, Factor, View, dims_of

_ONNX_INPUTS = {4: "past keys", 5: "past values", 6: "numbers of keys that are no padding"}
BIAS = 3  # of MultiHeadAttention
_MICROSOFT_INPUTS = {BIAS: "bias of query, key and value", 6: "past keys", 7: "past values"}
_GROUP_INPUTS = {
    11: "attention sinks",
    **dict.fromkeys((12, 13), "quantized keys and values"),
    **dict.fromkeys((14, 15), "norms of query and key"),
    16: "lengths of queries",
}
_GROUP_ATTRIBUTES = (
    *("causal", "kv_num_heads", "local_window_size", "num_heads", "qk_output", "scale", "smooth_softmax", "softcap"),
    # Without keys of earlier runs, norms and quantized keys, these change nothing:
    *("k_norm_epsilon", "k_quant_type", "kv_cache_bit_width", "q_norm_epsilon", "qk_norm_epsilon"),
    *("sliding_window_cache", "v_quant_type"),
    *("do_rotary", "rotary_interleaved"),
)
_ATTRIBUTES = {
    "qk_matmul_output_mode": "output of scores",
    "qk_output": "output of scores",
    "smooth_softmax": "softmax with a sink",
}
_FILTER = -10000.0  # ONNX Runtime adds it to the scores of padding
_LATER_INPUTS = "length or cache of past keys"


def operator_attention(node: ir.Node, opset: int) -> Attention | None:
    """Returns the attention that one operator computes; None for other operators.

    Raises:
        Unconverted: It has an input, an output or an attribute that no other operator takes.
    """
    if is_standard(node, "Attention"):
        return _attention(node, opset)
    if node.domain != MICROSOFT or node.op_type not in ("MultiHeadAttention", "GroupQueryAttention"):
        return None
    return _multi_head(node) if node.op_type == "MultiHeadAttention" else _group_query(node)


def _attention(node: ir.Node, opset: int) -> Attention:
    _check(
        node, _ONNX_INPUTS, ("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap")
    )
    heads = node.attributes.get_int("q_num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    views = _views(node, *heads)
    mask = input_of(node, 3)
    if mask is not None and opset > 23 and not is_equal((dims_of(mask) or [1])[-1], dims_of(views[1].value)[-2]):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="mask, which may have fewer numbers than there are keys")
    found = _with(node, *views, factor=node.attributes.get_float("scale", None), mask=mask)
    found.softcap = node.attributes.get_float("softcap", 0.0)
    found.is_causal = node.attributes.get_int("is_causal", 0) == 1
    return found


def _multi_head(node: ir.Node) -> Attention:
    check_multi_head(node)
    heads = node.attributes.get_int("num_heads", 0)
    scale = node.attributes.get_float("scale", 0.0) or None
    found = _with(node, *_views(node, heads, heads), factor=scale, mask=input_of(node, 5))
    found.is_safe, found.is_causal = False, node.attributes.get_int("unidirectional", 0) == 1
    if (mask := input_of(node, 4)) is not None:
        found.scores.steps.append(_padding(mask, node.attributes.get_float("mask_filter_value", _FILTER), found))
    return found


def check_multi_head(node: ir.Node, *, is_split: bool = True) -> None:
    """Checks that MultiHeadAttention has only what the rules know; `is_split`: and no bias of query, key and value.

    Raises:
        Unconverted: It has more.
    """
    inputs = {i: what for i, what in _MICROSOFT_INPUTS.items() if is_split or i != BIAS}
    _check(node, inputs, ("mask_filter_value", "num_heads", "scale", "unidirectional"))


def _padding(mask: ir.Value, number: float, found: Attention) -> Step:
    """Returns the padding that a mask of MultiHeadAttention hides.

    Raises:
        Unconverted: Its form is not known.
    """
    batch, _, queries, keys = found.probabilities
    dims = dims_of(mask)
    if len(dims) == 1 and is_equal(dims[0], dims_of(found.scores.query.value)[0]):
        return Padding(mask, number, more=0)
    if len(dims) not in (2, 3):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="padding mask, which is not known to have one of the forms")
    return Padding(mask, number, (batch, keys) if len(dims) == 2 else (batch, queries, keys))


def _group_query(node: ir.Node) -> Attention:
    """GroupQueryAttention without past is causal: a query sees keys up to its own number, none of them padding."""
    check_group_query(node)
    heads = (node.attributes.get_int(name, 0) for name in ("num_heads", "kv_num_heads"))
    scale = node.attributes.get_float("scale", 0.0) or None
    found = _with(node, *_views(node, *heads), factor=scale, mask=input_of(node, 10))
    if (lengths := input_of(node, 5)) is not None:
        found.scores.steps.append(Padding(lengths, -math.inf, more=1))
    found.softcap = node.attributes.get_float("softcap", 0.0)
    found.is_causal, found.window = True, max(0, node.attributes.get_int("local_window_size", -1))
    return found


def check_group_query(node: ir.Node, *, is_split: bool = True) -> None:
    """Checks that GroupQueryAttention has only what the rules know.

    Args:
        node: The node.
        is_split: Whether its operands are neither packed nor rotated by it, and it has one output.

    Raises:
        Unconverted: It has more.
    """
    if any(input_of(node, i) is not None for i in (3, 4)):
        raise Unconverted(Reason.ATTENTION_PAST)
    if node.attributes.get_int("causal", 1) == 0:
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="attribute causal")
    _check(node, _GROUP_INPUTS, _GROUP_ATTRIBUTES, first_unused=1 if is_split else 3)
    if is_split and node.attributes.get_int("do_rotary", 0) == 1:
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="rotated query and key")


def _check(node: ir.Node, inputs: dict[int, str], attributes: tuple[str, ...], *, first_unused: int = 1) -> None:
    """Checks that an operator has only what the rules know. Its outputs from `first_unused` on must have no use.

    Raises:
        Unconverted: It has more.
    """
    for i, value in enumerate(node.inputs):
        if value is not None and (i in inputs or i > max(inputs)):
            raise Unconverted(Reason.ATTENTION_OPERATOR, what=inputs.get(i, _LATER_INPUTS))
    for output in node.outputs[first_unused:]:
        if output.uses() or output.is_graph_output():
            raise Unconverted(Reason.ATTENTION_OPERATOR, what="second output")
    for name in node.attributes:
        is_set = name in _ATTRIBUTES and node.attributes.get_int(name, 0) != 0
        if is_set or (name not in attributes and name != "softmax_precision"):
            raise Unconverted(Reason.ATTENTION_OPERATOR, what=_ATTRIBUTES.get(name, f"attribute {name}"))


def _views(node: ir.Node, heads: int, key_heads: int) -> tuple[View, View, View, View]:
    """Returns query, key, value and result as views, of [B, S, H * D] or [B, H, S, D].

    Raises:
        Unconverted: A number of heads or a size is not known.
    """
    values = [*node.inputs[:3], node.outputs[0]]
    shapes = [[] if value is None else dims_of(value) for value in values]
    query, key, value, _ = shapes
    if not all(len(each) in (3, 4) for each in (query, key, value)):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="operands: the rank of one is not known, or not 3 or 4")
    given = [each[1] if len(each) == 4 else n for each, n in ((query, heads), (key, key_heads))]
    heads, key_heads = (each if isinstance(each, int) else 0 for each in given)
    if min(heads, key_heads) < 1 or heads % key_heads or not all(isinstance(each[-1], int) for each in (query, value)):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="heads: their number or size is not known")
    batch, queries, keys = (_axis(each) for each in (query[0], query[-2], key[-2]))
    shared, repeats = _axis(key_heads), _axis(heads // key_heads)
    size, width = (
        _axis(each[-1] if len(each) == 4 else each[-1] // n) for each, n in ((query, heads), (value, key_heads))
    )

    def view(at: int, tokens: Axis, elements: Axis, of: Axis) -> View:
        value = values[at]
        assert value is not None
        is_joined = len(shapes[at] or shapes[0]) == 3
        axes: Axes = (batch, tokens, (*of, *elements)) if is_joined else (batch, of, tokens, elements)
        return View(value, axes)

    all_heads = *shared, *repeats
    return (
        view(0, queries, size, all_heads),
        view(1, keys, size, shared),
        view(2, keys, width, shared),
        view(3, queries, width, all_heads),
    )


def _axis(dim: Dim) -> Axis:
    return () if dim == 1 else (Factor(dim),)


def _with(
    node: ir.Node, query: View, key: View, value: View, result: View, *, factor: float | None, mask: ir.Value | None
) -> Attention:
    """Returns attention of views and a mask.

    Raises:
        Unconverted: The rank of the mask is not known.
    """
    batch, tokens = query.axes[0], key.axes[-2] if len(key.axes) == 4 else key.axes[1]
    queries = query.axes[-2] if len(query.axes) == 4 else query.axes[1]
    size = tuple(each for each in key.order if each not in value.order)
    heads = tuple(each for each in query.order if each not in (*batch, *queries, *size))
    axes: Axes = (batch, heads, queries, tokens)
    if factor is None:
        factor = 1 / math.sqrt(np.prod([each.length for each in size if isinstance(each.length, int)] or [1]))
    scores = Scores(query, key)
    if mask is not None:
        dims = dims_of(mask)
        if not 1 < len(dims) <= 4:
            raise Unconverted(Reason.ATTENTION_OPERATOR, what="mask, whose rank is not known, or not 2 to 4")
        lead = ((),) * (4 - len(dims))
        given = *lead, *(() if dim == 1 else axis for dim, axis in zip(dims, axes[len(lead) :], strict=True))
        is_mask = mask.dtype == ir.DataType.BOOL
        scores.steps.append(Masked(mask, True, -math.inf, given) if is_mask else Added(mask, given))
    return Attention(scores, axes, value, node, result, True, (), factor=factor)
