"""The rule for Attention of com.microsoft, as ONNX Runtime's optimizer writes it: its weights become those of products.

x, Attention    -> MatMul, Add of query, of key and of value, MultiHeadAttention

The rule for matrix products converts the three products then, and the rule for attention what is left.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import MICROSOFT, label
from ..opsets import OPSET
from ..rewriter.analysis.nodes import input_of
from ..rewriter.edit import Edit
from ..rewriter.products.fused_products import check_merged
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from .options import Options
from .weights import check_constant, floats_of

_NAMES = ("query", "key", "value")
_KEPT = ("num_heads", "unidirectional", "mask_filter_value", "scale")
_MASK, _BIAS = 3, 5  # the inputs
_PAST = (4, 6)  # keys and values, and their length


@dataclass(frozen=True)
class _Parts:
    """Attention with split weights.

    Attributes:
        x: The activation, [B, S, K].
        weights, biases: Those of query, key and value, [K, N] and [N].
    """

    x: ir.Value
    weights: list[npt.NDArray[np.float32]]
    biases: list[npt.NDArray[np.float32]]


def is_packed_attention(node: ir.Node) -> bool:
    """Returns whether a node is Attention of com.microsoft."""
    return node.domain == MICROSOFT and node.op_type == "Attention"


def parts_of(node: ir.Node, context: Context, options: Options) -> _Parts:
    """Returns the weights of query, key and value.

    Raises:
        Unconverted: The node stays.
    """
    options.check(node)
    x, w, bias = (input_of(node, i) for i in range(3))
    if x is None or w is None or x.shape is None or len(x.shape) != len(_NAMES):
        raise Unconverted(Reason.ATTENTION_OPERATOR, what="activation: its shape is not known")
    check_constant(w, context.facts)
    if bias is not None:
        check_constant(bias, context.facts)
    weights = floats_of(w, context.facts)
    columns = weights.shape[-1]
    b = np.zeros(columns, np.float32) if bias is None else floats_of(bias, context.facts)
    sizes = list(node.attributes.get_ints("qkv_hidden_sizes", [])) or [columns // len(_NAMES)] * len(_NAMES)
    is_whole = weights.ndim == 2 and b.shape == (columns,) and sum(sizes) == columns
    past = next((each for i in _PAST if (each := input_of(node, i)) is not None), None)
    check_merged(node, past, input_of(node, _MASK), sizes if is_whole else [])
    at = np.cumsum(sizes)[:-1]
    return _Parts(x, np.split(weights, at, axis=1), np.split(b, at))


def _match(node: ir.Node, context: Context, options: Options) -> _Parts | None:
    if not is_packed_attention(node):
        return None
    try:
        return parts_of(node, context, options)
    except Unconverted:  # other_layers.py reports it
        return None


def _build(match: _Parts, edit: Edit) -> None:
    node, x = edit.node, match.x
    assert x.shape is not None
    assert x.dtype is not None
    operands = []
    for name, weights, bias in zip(_NAMES, match.weights, match.biases, strict=True):
        w, b = (edit.add_constant(np.ascontiguousarray(each), before=node) for each in (weights, bias))
        product = ir.node("MatMul", [x, w], name=f"{label(node)}/{name}")
        total = ir.node("Add", [product.outputs[0], b])
        edit.insert(product, total, before=node)
        for value in (product.outputs[0], total.outputs[0]):
            edit.facts.note(value, x.dtype, ir.Shape([*x.shape[:2], len(bias)]))
        operands.append(total.outputs[0])
    kept = {name: node.attributes[name] for name in _KEPT if name in node.attributes}
    inputs = [*operands, None, input_of(node, _MASK), input_of(node, _BIAS)]
    main = ir.node("MultiHeadAttention", inputs, kept, domain=MICROSOFT)
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))


def rule(options: Options) -> Rule[_Parts]:
    """Returns the rule with these options."""
    match = functools.partial(_match, options=options)
    return Rule("packed attention", OPSET, match, _build, prepares=True)
