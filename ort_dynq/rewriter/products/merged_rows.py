"""Scales, zero points and offsets after a Reshape that merges or splits the dimensions before those that it keeps.

[batch, frames, channels, height, width] -> [batch * frames, channels, height, width], as before a convolution
[batch, tokens, k] -> [batch * tokens, k], with one number for each sample
[batch * tokens, k] -> [batch, tokens, k]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_array
from .affine_form import Param, is_unnamed, lead, rank_of


def with_merged_rows(param: Param, node: ir.Node, after: ir.Value, before: ir.Value) -> Param | None:
    """Returns numbers that do not vary along the dimensions that a Reshape keeps; None if they may, or are not known.

    Args:
        param: The numbers.
        node: The node that moves elements.
        after: Its output.
        before: The value that it moves.
    """
    if node.op_type != "Reshape" or before.shape is None or after.shape is None or param.block:
        return None
    kept = _kept(before.shape, after.shape)
    rank, count = len(before.shape), len(before.shape) - kept
    axes = lead(rank, -1) if param.axes is None else param.axes
    if not kept or param.rank != rank_of(before) or any(axis + rank >= count for axis in axes):
        return None
    rows = [-1]
    if len(after.shape) - kept != 1:
        lengths = constant_array(node.inputs[1])
        if lengths is None or 0 in lengths[: len(after.shape) - kept]:
            return None
        rows = lengths[: len(after.shape) - kept].tolist()
    shared = [1] * rank
    for i, dim in enumerate(before.shape[:count]):  # these dimensions share numbers, which have to be repeated
        if i - rank not in axes and dim != 1:
            if not isinstance(dim, int):
                return None
            shared[i] = dim
    found = param.of("Expand", np.array(shared)) if max(shared) > 1 else param
    found = found.of("Reshape", np.array([*rows, *[1] * kept]))
    return replace(found, axes=lead(len(after.shape), -kept), rank=len(after.shape))


def _kept(before: ir.Shape, after: ir.Shape) -> int:
    """Returns the number of last dimensions that both shapes have."""
    count = 0
    for a, b in zip(reversed(list(before)), reversed(list(after)), strict=False):
        if a != b or is_unnamed(a):
            break
        count += 1
    return min(count, len(before) - 1, len(after) - 1)
