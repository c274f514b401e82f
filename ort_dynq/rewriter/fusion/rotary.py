"""The rule for rotary position embeddings of queries and keys.

x * cos + Concat(-x[..., D / 2:], x[..., :D / 2]) * sin    -> com.microsoft.RotaryEmbedding

x is [B, H, S, D]; cos and sin are [B or 1, 1, S, D], computed by the model, and their halves along D are equal. The
operator reads halves [B * S, D / 2] and the numbers of rows. All layers of a model share these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.constants import constant_array
from ..analysis.limits import CHAIN
from ..analysis.nodes import is_standard, only_use, producer_of
from ..analysis.shape_arithmetic import known_lengths
from ..analysis.shapes import has_one_element, is_equal, known_as, same_shape
from ..analysis.standard import ARITHMETIC, AXES, PASSING, SELECTING
from ..edit import Edit
from ..rule import Context, Rule
from ..views import Nodes, dims_of

_RANK = 4
_KEEPING = AXES | PASSING | {"Cos", "Expand", "Sin"}


@dataclass(frozen=True)
class _Rotary:
    """A rotary embedding: x, and what it and its rotated halves are multiplied by."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    size: int


def _match(node: ir.Node, context: Context) -> _Rotary | None:
    muls = [producer_of(each, "Mul") for each in node.inputs] if context.options.fuse else []
    products = [each for each in muls if each is not None and only_use(each.outputs[0]) is not None]
    for plain, turned in (products, products[::-1]) if len(products) == len(node.inputs) else ():
        for rotated, sin in (turned.inputs, turned.inputs[::-1]):
            concat = producer_of(rotated, "Concat")
            x = None if concat is None or concat.graph is not node.graph else _rotated(concat)
            if x is None or sin is None or x.dtype != ir.DataType.FLOAT or x not in plain.inputs:
                continue
            cos, size = plain.inputs[1 - plain.inputs.index(x)], dims_of(x)[-1]
            if cos is None or not isinstance(size, int) or not same_shape(cos, sin):
                continue
            if all(_fits(each, x) and _has_equal_halves(each) for each in (cos, sin)):
                return _Rotary(x, cos, sin, size)
    return None


def _rotated(concat: ir.Node) -> ir.Value | None:
    """Returns x of Concat(-x[..., D / 2:], x[..., :D / 2]); None if it is something else."""
    negated = producer_of(concat.inputs[0], "Neg")
    if negated is None or len(concat.inputs) != 2 or not _is_last(concat):
        return None
    low, high = _part(concat.inputs[1]), _part(negated.inputs[0])
    if low is None or high is None or low[0] is not high[0]:
        return None
    size = dims_of(low[0])[-1]
    return low[0] if low[1] == 0 and low[2] == high[1] and size == high[2] == 2 * low[2] else None


def _part(value: ir.Value | None) -> tuple[ir.Value, int, int] | None:
    """Returns x [B, H, S, D], and where a value that is a part of it along D begins and ends; None for other values."""
    node = producer_of(value, *SELECTING - {"Gather"})
    x = None if node is None else node.inputs[0]
    size = None if x is None or len(dims_of(x)) != _RANK else dims_of(x)[-1]
    if value is None or node is None or x is None or not isinstance(size, int):
        return None
    if node.op_type == "Split":
        half, at = size // 2, list(node.outputs).index(value)
        is_halved = _is_last(node) and all(dims_of(each)[-1:] == [half] for each in node.outputs)
        return (x, at * half, at * half + half) if is_halved else None
    match [known_lengths(each) for each in node.inputs[1:]]:
        case [[int(first)], [int(end)], [-1 | 3], *steps] if steps in ([], [[1]]):
            first, end, _ = slice(first, end).indices(size)
            return x, first, end
    return None


def _is_last(node: ir.Node) -> bool:
    """Returns whether the axis of a node is the last one."""
    return node.attributes.get_int("axis", 0) in (-1, _RANK - 1)


def _fits(value: ir.Value, x: ir.Value) -> bool:
    """Returns whether the shape of a factor is [B or 1, 1, S, D], where x has [B, H, S, D].

    With one table for the batch, S may have another name or none: then it is S, or 1.
    """
    dims, (batch, _, tokens, size) = dims_of(value), dims_of(x)
    if len(dims) != _RANK or value.dtype != ir.DataType.FLOAT or dims[1] != 1 or not is_equal(dims[3], size):
        return False
    return dims[0] == 1 or (is_equal(dims[2], tokens) and is_equal(dims[0], batch))


def _has_equal_halves(value: ir.Value | None, depth: int = 0) -> bool:
    """Returns whether the halves of a value along its last dimension are known to be equal."""
    node = None if value is None else value.producer()
    if value is None or CHAIN.is_passed(depth):
        return False
    if node is None or is_standard(node, "Constant"):
        table = constant_array(value)
        if table is None or not table.ndim or table.shape[-1] % 2:
            return False
        low, high = np.split(table, 2, -1)
        return bool(np.array_equal(low, high))
    if is_standard(node, "Concat"):
        axis, rank = node.attributes.get_int("axis", 0), len(value.shape or ())
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and axis in (-1, rank - 1)
    source = node.inputs[0] if node.inputs else None
    if source is None or not source.shape or not value.shape or not is_equal(source.shape[-1], value.shape[-1]):
        return False
    if is_standard(node, "Gather") and node.attributes.get_int("axis", 0) != 0:
        return False
    keeps = is_standard(node, *_KEEPING, "Gather") or (
        is_standard(node, *ARITHMETIC) and node.inputs[1] is not None and has_one_element(node.inputs[1])
    )
    return keeps and _has_equal_halves(source, depth + 1)


def _build(match: _Rotary, edit: Edit) -> None:
    edit.facts.model.graph.opset_imports.setdefault(MICROSOFT, 1)
    nodes = Nodes(edit, edit.node)
    cos, sin = (_half(each, match.x, match.size // 2, nodes) for each in (match.cos, match.sin))
    main = ir.node("RotaryEmbedding", [match.x, _rows(match.cos, nodes), cos, sin], domain=MICROSOFT)
    edit.replace(edit.node.outputs[0], edit.insert_main(main, before=edit.node))


def _half(table: ir.Value, x: ir.Value, size: int, nodes: Nodes) -> ir.Value:
    """Returns [B * S, D / 2] or [S, D / 2] of cos or sin. Layers share them."""
    tokens = dims_of(x)[2]
    is_whole = is_equal(dims_of(table)[2], tokens)

    def half() -> ir.Value:
        found = nodes.add("Slice", table, [0], [size], [-1])
        if not is_whole:  # ONNX Runtime needs a row for each token
            count = nodes.add("Gather", nodes.add("Shape", x), [2])
            found = nodes.add("Expand", found, nodes.add("Concat", [1, 1], count, [1], axis=0))
        return nodes.add("Reshape", found, [-1, size])

    return nodes.edit.once(("half", table, *([] if is_whole else [known_as(tokens, x)])), half)


def _rows(table: ir.Value, nodes: Nodes) -> ir.Value:
    """Returns the row of the first token, if that is the same for the batch, or those of all tokens, [B, S]."""

    def rows() -> ir.Value:
        if dims_of(table)[0] == 1:
            return nodes.constant([0])
        lead = nodes.add("Gather", nodes.add("Shape", table), [0, 2])
        count = nodes.add("ReduceProd", lead, keepdims=0)
        return nodes.add("Reshape", nodes.add("Range", 0, count, 1), lead)

    return nodes.edit.once(("rows", table), rows)


RULE = Rule("rotary embedding", OPSET, _match, _build, fuses=True, operators=("Add",))
