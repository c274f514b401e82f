"""Scales, zero points and offsets after a Reshape that merges or splits dimensions along which they vary, or rows.

[batch, frames, channels, height, width] -> [batch * frames, channels, height, width], as before a convolution
[batch, tokens, k] -> [batch * tokens, k], with one number for each sample
[batch, tokens, k] -> [batch * tokens, heads, k / heads]

Example: scales [2, 3, 1] of [2, 3, 8] become [6, 1] for [6, 8], and [6, 1, 1] for [6, 2, 4].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_array
from ..analysis.shape_arithmetic import factors_of
from .terms import Param, lead

Dims = Sequence[int | ir.SymbolicDim]


def with_merged_rows(param: Param, node: ir.Node, after: ir.Value, before: ir.Value) -> Param | None:
    """Returns numbers of adjacent elements after a Reshape, repeated if necessary; None if they are not known.

    Args:
        param: The numbers.
        node: The node that moves elements.
        after: Its output.
        before: The value that it moves.
    """
    if node.op_type != "Reshape" or before.shape is None or after.shape is None or param.block:
        return None
    dims, new = _completed(before.shape, after.shape), list(after.shape)
    rank = len(dims)
    axes = lead(rank, -1) if param.axes is None else param.axes
    varying = rank + max(axes, default=-rank - 1) + 1  # dimensions; those behind them share a number
    pairs = ((i, j) for i in range(varying, rank) for j in range(len(new) - 1, 0, -1) if _same_count(dims[i:], new[j:]))
    first, last = next(pairs, (0, 0))
    if param.rank != rank or last == 0:
        return None
    rows = [-1]
    if last != 1:
        lengths = constant_array(node.inputs[1])
        allows_zero = node.attributes.get_int("allowzero", 0) == 1
        if lengths is None or any(not n and (allows_zero or i >= first) for i, n in enumerate(lengths[:last])):
            return None
        rows = lengths[:last].tolist()
    shared = [1] * rank
    for i, dim in enumerate(dims[:first]):  # these dimensions share numbers, which have to be repeated
        if i - rank not in axes and dim != 1:
            if not isinstance(dim, int):
                return None
            shared[i] = dim
    found = param.of("Expand", np.array(shared)) if max(shared) > 1 else param
    found = found.of("Reshape", np.array([*rows, *[1] * (len(new) - last)]))
    return replace(found, axes=lead(len(new), last - len(new)), rank=len(new))


def _completed(before: ir.Shape, after: ir.Shape) -> list[int | ir.SymbolicDim]:
    """Returns a shape with its only unknown dimension, which follows from the number of elements."""
    dims = list(before)
    unknown = [i for i, dim in enumerate(dims) if not isinstance(dim, int)]
    others = math.prod(dim for dim in dims if isinstance(dim, int))
    if len(unknown) == 1 and after.is_static() and others:
        dims[unknown[0]] = math.prod(after.numpy()) // others
    return dims


def _same_count(a: Dims, b: Dims) -> bool:
    """Returns whether dimensions are known to have the same product, which is not known to be 0."""
    count = factors_of(a)
    return count is not None and count[0] > 0 and count == factors_of(b)
