"""The rounding errors that attention may have: those of its scores, of Softmax, and of its product with the values.

Its result may be far smaller than the values that it adds, and an error of a score is relative to the score's terms. So
the largest element of a row is no measure of the errors of float32, as it is of a normalization. This is:

    y = p @ v, p = softmax(s), s = factor * q @ transposed(k) + bias
    size(s) = |factor| * |q| @ transposed(|k|) + |bias|
    size(y) = (p * (1 + size(s) + sum of p * size(s))) @ |v|

An error of e * size(s) in each score changes y by at most e * (size(y) - p @ |v|), to first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..graphs import MICROSOFT
from ..inputs import Array

_BIAS = 5  # the inputs of MultiHeadAttention are query, key, value, bias, key_padding_mask, attention_bias


def is_attention(node: ir.Node) -> bool:
    """Returns whether a node is a MultiHeadAttention as the rewriter writes it."""
    return node.domain == MICROSOFT and node.op_type == "MultiHeadAttention"


def size_of_attention(node: ir.Node, inputs: Sequence[Array | None]) -> Array:
    """Returns size(y) of each element of the result, float64, [B, S, H * E].

    Args:
        node: The node.
        inputs: Its inputs: query [B, S, H * D]; key and value of three dimensions or [B, H, T, D]; the bias, which
            broadcasts to [B, H, S, T].
    """
    heads = node.attributes.get_int("num_heads", 1)
    q, k, v, *rest = (None if each is None else each.astype(np.float64) for each in inputs)
    assert q is not None
    assert k is not None
    assert v is not None
    q, k, v = (_split(each, heads) for each in (q, k, v))
    factor = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    bias = rest[_BIAS - 3] if len(rest) > _BIAS - 3 else None
    k = np.swapaxes(k, -1, -2)
    with np.errstate(all="ignore"):  # scores may be infinite
        s, size = factor * (q @ k), abs(factor) * (np.abs(q) @ np.abs(k))
        if bias is not None:
            s, size = s + bias, size + np.where(np.isfinite(bias), np.abs(bias), 0)
        p = np.exp(s - s.max(-1, keepdims=True, initial=-np.inf))
        p = np.nan_to_num(p / p.sum(-1, keepdims=True))
        y = (p * (1 + size + (p * size).sum(-1, keepdims=True))) @ np.abs(v)
    return np.asarray(y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1))


def _split(x: Array, heads: int) -> Array:
    """Returns [B, H, S, D]."""
    return x if x.ndim == 4 else np.asarray(x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2))
