"""The rounding errors that attention, and products with codes, may have.

Those of attention are errors of its scores, of Softmax, and of its product with the values.

Its result may be far smaller than the values that it adds, and an error of a score is relative to the score's terms. So
the largest element of a row is no measure of the errors of float32, as it is of a normalization. This is:

    y = p @ v, p = softmax(s), s = factor * q @ transposed(k) + bias
    size(s) = |factor| * |q| @ transposed(|k|) + |bias|
    size(y) = (p * (1 + size(s) + sum of p * size(s))) @ |v|

An error of e * size(s) in each score changes y by at most e * (size(y) - p @ |v|), to first order.

CompressedAttention rounds queries and weights p * scale of v to words: multiples of 1/32512 of the largest number of
their group. Its size(s) and size(y) have the largest sums of these roundings as well, in units of 2^-20: a sixteenth of
the 2^-24 of the others; verification allows 16 of these. The same holds for CompressedMatMul: its size is |x| @ |w|.

The size of the mean of a channel is the mean of |x|. A ChannelGate has functions that are at most as steep as 1:

    size(g) = |weight_2| @ (|weight_1| @ mean(|x|) + |bias_1| + 1) + |bias_2| + 1
    size(y) = (1 + |x|) * size(g)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...inputs import Array
from ...operators import DOMAIN
from ...rewriter.analysis.nodes import is_standard
from ...rewriter.analysis.standard import OWN_ATTENTION

_OWN = OWN_ATTENTION - {"QuantizedAttention"} | {"ChannelGate", "CompressedMatMul"}
_WORD = 2.0**20 / (2 * 32512)
_BLOCK = 256  # of CompressedMatMul: products with words that share a step
_BIAS = 5  # the inputs of MultiHeadAttention are query, key, value, bias, key_padding_mask, attention_bias


def has_size(node: ir.Node) -> bool:
    """Returns whether :func:`size_of` has the size of a node's result."""
    if (node.domain, node.op_type) == (MICROSOFT, "MultiHeadAttention") or is_standard(node, "ReduceMean"):
        return True
    return node.domain == DOMAIN and node.op_type in _OWN


def size_of(node: ir.Node, inputs: Sequence[Array | None]) -> Array:
    """Returns size(y) of each element of the result, float64, of MultiHeadAttention [B, S, H * E].

    Args:
        node: The node.
        inputs: Its inputs. Those of MultiHeadAttention are query [B, S, H * D]; key and value of three dimensions or
            [B, H, T, D]; the bias, which broadcasts to [B, H, S, T].
    """
    if node.op_type == "CompressedMatMul":
        return _size_of_product(*inputs)
    if node.op_type == "ChannelGate":
        return _size_of_gate(*(np.abs(each).astype(np.float64) for each in inputs if each is not None))
    if node.op_type == "ReduceMean" and inputs[0] is not None:  # of the positions of each channel
        return np.asarray(np.abs(inputs[0]).mean(tuple(range(2, inputs[0].ndim)), np.float64, keepdims=True))
    if node.op_type == "CompressedAttention":
        return _size_of_compressed(node, inputs)
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


def _size_of_gate(x: Array, weight_1: Array, bias_1: Array, weight_2: Array, bias_2: Array) -> Array:
    """Returns size(y) of ChannelGate, of the shape of x, by the magnitudes of the inputs."""
    with np.errstate(all="ignore"):  # x may be infinite
        hidden = x.mean(tuple(range(2, x.ndim))) @ weight_1.T + bias_1 + 1
        gate = hidden @ weight_2.T + bias_2 + 1
        return np.asarray((1 + x) * gate.reshape(*x.shape[:2], *[1] * (x.ndim - 2)))


def _size_of_product(*inputs: Array | None) -> Array:
    """Returns size(y) of CompressedMatMul, [..., M, N]."""
    x, codes, scale, zero_point = (np.zeros(1) if each is None else each.astype(np.float64) for each in inputs)
    depth, columns = codes.shape
    scale = scale.reshape(depth, -1)
    points = np.broadcast_to(zero_point.reshape(depth if zero_point.size > 1 else 1, -1), scale.shape)
    w = np.abs(codes.reshape(depth, scale.shape[1], -1) - points[..., None])  # [K, parts, columns of a part]
    with np.errstate(all="ignore"):  # x may be infinite
        size = np.einsum("...k,kp,kpc->...pc", np.abs(x), np.abs(scale), w)
        for first in range(0, depth, _BLOCK):
            block = slice(first, first + _BLOCK)
            scaled = np.abs(x[..., block, None] * scale[block])
            size += scaled.max(-2)[..., None] * w[block].sum(0) * _WORD
    return np.asarray(size.reshape(*x.shape[:-1], columns))


def _size_of_compressed(node: ir.Node, inputs: Sequence[Array | None]) -> Array:
    """Returns size(y) of CompressedAttention, [B, H, S, E]."""
    q, *operands, bias, factor, k_offset, v_offset = (
        np.zeros(1) if each is None else each.astype(np.float64) for each in inputs
    )
    if node.attributes.get_int("transposed_key", 0):
        operands[:3], k_offset = [each.swapaxes(-1, -2) for each in operands[:3]], k_offset.swapaxes(-1, -2)
    (k, k_scale, k_offset), (v, v_scale, v_offset) = (
        _grouped(operands[i], operands[i + 1], operands[i + 2], offset, is_float=bool(node.attributes.get_int(name, 0)))
        for i, offset, name in ((0, k_offset, "float_key"), (3, v_offset, "float_value"))
    )
    repeats = q.shape[1] // max(k.shape[1], 1)
    k, k_scale, k_offset = (np.repeat(each, repeats, 1) for each in (k, k_scale, k_offset))
    v, v_scale, v_offset = (np.repeat(each, repeats, 1) for each in (v, v_scale, v_offset))
    keys, scale = k * k_scale[..., None], abs(float(factor.reshape(-1)[0]))
    groups = q.reshape(*q.shape[:3], keys.shape[3], -1)
    with np.errstate(all="ignore"):
        of_offsets = np.einsum("bhsg,bhtg->bhst", groups.sum(-1), k_offset)
        s = (np.einsum("bhsgd,bhtgd->bhst", groups, keys) + of_offsets) * factor.reshape(-1)[0] + bias
        if node.attributes.get_int("scale_query", 0):  # the words are of the products with the scales of all groups
            scaled = np.abs(groups[:, :, :, None] * k_scale[:, :, None, ..., None])  # [B, H, S, T, groups, size]
            roundings = scaled.max((-1, -2), initial=0) * np.abs(k).sum((-1, -2))[:, :, None]
            moved = np.abs(groups[:, :, :, None] * k_offset[:, :, None, ..., None])
            roundings = roundings + moved.max((-1, -2), initial=0) * q.shape[3]
        else:
            sums = np.abs(keys).sum(-1) + np.abs(k_offset) * keys.shape[4]
            roundings = np.einsum("bhsg,bhtg->bhst", np.abs(groups).max(-1, initial=0), sums)
        size = np.einsum("bhsgd,bhtgd->bhst", np.abs(groups), np.abs(keys) + np.abs(k_offset)[..., None]) * scale
        if node.attributes.get_int("float_key", 0):
            roundings = roundings + np.einsum(
                "bhsg,bhtg->bhst", np.abs(groups).sum(-1), np.abs(keys).max(-1, initial=0)
            )
        size = size + np.where(np.isfinite(bias), np.abs(bias), 0) + scale * roundings * _WORD
        p = np.exp(s - s.max(-1, keepdims=True, initial=-np.inf))
        p = np.nan_to_num(p / p.sum(-1, keepdims=True))
        factors = p * (1 + size + (p * size).sum(-1, keepdims=True))
        sizes = np.abs(v * v_scale[..., None]) + np.abs(v_offset)[..., None]
        y = np.einsum("bhst,bhtgd->bhsgd", factors, sizes)
        if node.attributes.get_int("scale_result", 0):  # the words are of the powers
            roundings = p.max(-1, initial=0)[..., None, None] * sizes.sum(2)[:, :, None]
        else:
            weights, moved = (  # [B, H, S, groups]
                (p[:, :, :, None] * np.abs(each).swapaxes(-1, -2)[:, :, None]).max(-1, initial=0)[..., None]
                for each in (v_scale, v_offset)
            )
            roundings = weights * np.abs(v).sum(2)[:, :, None] + moved * v.shape[2]
        y = y + roundings * _WORD
        if node.attributes.get_int("float_value", 0):
            y = y + np.einsum("bhst,bhtg->bhsg", p, np.abs(v).max(-1, initial=0))[..., None] * _WORD
    return np.asarray(y.reshape(*y.shape[:3], -1))


def _grouped(x: Array, scale: Array, zero_point: Array, offset: Array, *, is_float: bool) -> tuple[Array, Array, Array]:
    """Returns codes minus zero points [B, K, T, groups, D / groups], or floats; scales; offsets [B, K, T, groups]."""
    if is_float:
        return x[..., None, :], np.ones((*x.shape[:3], 1)), np.zeros((*x.shape[:3], 1))
    whole = (*x.shape[:3], scale.shape[-1])
    scale, zero_point, offset = (
        np.broadcast_to(_of_tokens(each, x.shape[2]), whole) for each in (scale, zero_point, offset)
    )
    return x.reshape(*whole, -1) - zero_point[..., None], scale, offset


def _of_tokens(parameters: Array, tokens: int) -> Array:
    """Returns scales or zero points [.., token groups, groups] for each token."""
    return np.repeat(parameters, tokens // max(parameters.shape[2], 1), 2)


def _split(x: Array, heads: int) -> Array:
    """Returns [B, H, S, D]."""
    return x if x.ndim == 4 else np.asarray(x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2))
