"""Queries, keys and values of attention: tensors of heads, in the orders of dimensions that exporters write.

Example: Transpose(Reshape(x, [0, 0, 4, 16]), [0, 2, 1, 3]) of x [2, n, 64] is x with 4 heads of 16 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_array
from ..analysis.nodes import producer_of
from ..analysis.shapes import is_equal, is_unnamed
from ..edit import Edit

HEADS_FIRST = [0, 2, 1, 3]  # from [B, S, H, D] to [B, H, S, D], and back
Dim = int | ir.SymbolicDim


@dataclass(frozen=True)
class Heads:
    """A query, a key or a value.

    Attributes:
        value: [B, S, H * D], [B, S, H, D] or, if `is_split_first`, [B, H, S, D].
        batch, heads, length, size: B, H, S and D.
        is_split_first: Whether the heads stand before the tokens.
    """

    value: ir.Value
    batch: Dim
    heads: int
    length: Dim
    size: int
    is_split_first: bool

    def joined(self, edit: Edit, before: ir.Node) -> ir.Value:
        """Returns the value as [B, S, H * D]."""
        if len(dims_of(self.value)) == 3:
            return self.value
        by_token = swapped(self.value, edit, before) if self.is_split_first else self.value
        return reshaped(by_token, [0, 0, self.heads * self.size], edit, before)

    def split(self, edit: Edit, before: ir.Node) -> ir.Value:
        """Returns the value as [B, H, S, D]."""
        if self.is_split_first:
            return self.value
        shape = [0, 0, self.heads, self.size]
        by_token = reshaped(self.value, shape, edit, before) if len(dims_of(self.value)) == 3 else self.value
        return swapped(by_token, edit, before)


def heads_of(value: ir.Value | None) -> Heads | None:
    """Returns a value [B, H, S, D] as heads; None if H or D is not known."""
    node = None if value is None else producer_of(value, "Transpose")
    if node is not None and list(node.attributes.get_ints("perm", [])) == HEADS_FIRST:
        return heads_by_token(node.inputs[0])
    return _with_known_size(value, is_split_first=True)


def heads_by_token(value: ir.Value | None) -> Heads | None:
    """Returns a value [B, S, H, D] as heads; None if H or D is not known."""
    heads = _with_known_size(value, is_split_first=False)
    node = None if heads is None else producer_of(heads.value, "Reshape")
    rows = None if node is None else node.inputs[0]
    if heads is None or node is None or rows is None:
        return heads
    if not splits_rows(node, rows, heads.value, heads.heads * heads.size):
        return heads
    return replace(heads, value=rows, length=dims_of(rows)[1] if is_unnamed(heads.length) else heads.length)


def _with_known_size(value: ir.Value | None, *, is_split_first: bool) -> Heads | None:
    """Returns a value as it is; None if it is no float tensor of rank 4, or if H or D is not known."""
    if value is None or len(dims := dims_of(value)) != 4 or value.dtype != ir.DataType.FLOAT:
        return None
    batch, first, second, size = dims
    heads, length = (first, second) if is_split_first else (second, first)
    if not isinstance(heads, int) or not isinstance(size, int):
        return None
    return Heads(value, batch, heads, length, size, is_split_first)


def splits_rows(reshape: ir.Node, joined: ir.Value, split: ir.Value, length: int) -> bool:
    """Returns whether a Reshape from one of two values to the other only splits or joins rows of a length."""
    narrow, wide = dims_of(joined), dims_of(split)
    if len(narrow) != 3 or len(wide) != 4 or narrow[2] != length:
        return False
    target = constant_array(reshape.inputs[1])
    is_copied = target is not None and 0 in target[:2] and not reshape.attributes.get_int("allowzero", 0)
    return is_copied or any(map(is_equal, narrow[:2], wide[:2]))  # the number of elements shows the other one


def reshaped(value: ir.Value, shape: list[int], edit: Edit, before: ir.Node) -> ir.Value:
    return edit.insert(ir.node("Reshape", [value, edit.add_constant(np.array(shape), before=before)]), before=before)


def swapped(value: ir.Value, edit: Edit, before: ir.Node) -> ir.Value:
    """Returns a value with its middle dimensions swapped."""
    return edit.insert(ir.node("Transpose", [value], {"perm": HEADS_FIRST}), before=before)


def dims_of(value: ir.Value) -> list[Dim]:
    """Returns the dimensions of a value; none if its rank is not known."""
    return [] if value.shape is None else list(value.shape)


def is_dynamic(dim: Dim) -> bool:
    return not isinstance(dim, int)
