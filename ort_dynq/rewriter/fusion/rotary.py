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
from ..analysis.nodes import input_of, is_standard, only_use, producer_of
from ..analysis.shape_arithmetic import known_lengths
from ..analysis.shapes import has_one_element, is_equal, known_as, same_shape
from ..analysis.standard import ARITHMETIC, AXES, PASSING
from ..edit import Edit
from ..rule import Context, Rule

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
    if not context.options.fuse or not is_standard(node, "Add"):
        return None
    products = [producer_of(each, "Mul") for each in node.inputs]
    for first, second in (products, products[::-1]):
        found = None if first is None or second is None else _rotary(first, second, node.graph)
        if found is not None:
            return found
    return None


def _rotary(plain: ir.Node, turned: ir.Node, graph: ir.Graph | ir.Function | None) -> _Rotary | None:
    """Returns the embedding with the products x * cos and rotated * sin."""
    if only_use(plain.outputs[0]) is None or only_use(turned.outputs[0]) is None:
        return None
    for i in (0, 1):
        concat = producer_of(turned.inputs[i], "Concat")
        x = None if concat is None or concat.graph is not graph else _rotated(concat)
        sin = turned.inputs[1 - i]
        if x is None or sin is None or x not in plain.inputs:
            continue
        cos = plain.inputs[1 - plain.inputs.index(x)]
        shape = x.shape
        if cos is None or shape is None or len(shape) != _RANK or x.dtype != ir.DataType.FLOAT:
            return None
        size = shape[-1]
        if (
            isinstance(size, int)
            and all(_fits(each, shape) and _has_equal_halves(each) for each in (cos, sin))
            and same_shape(cos, sin)
        ):
            return _Rotary(x, cos, sin, size)
    return None


def _rotated(concat: ir.Node) -> ir.Value | None:
    """Returns x of Concat(-x[..., D / 2:], x[..., :D / 2]); None if it is something else."""
    if concat.attributes.get_int("axis", 0) not in (-1, _RANK - 1) or len(concat.inputs) != 2:
        return None
    negated = producer_of(concat.inputs[0], "Neg")
    high, low = None if negated is None else negated.inputs[0], concat.inputs[1]
    if high is None or low is None:
        return None
    split = producer_of(low, "Split")
    if split is not None:
        halves = [each.shape[-1] if each.shape else None for each in split.outputs]
        is_last = split.attributes.get_int("axis", 0) in (-1, _RANK - 1)
        is_rotated = is_last and [*split.outputs] == [low, high] and halves[0] == halves[1] is not None
        return split.inputs[0] if is_rotated else None
    slices = [producer_of(each, "Slice") for each in (low, high)]
    sources = [None if each is None else each.inputs[0] for each in slices]
    x = sources[0]
    size = x.shape[-1] if x is not None and x.shape is not None and len(x.shape) else None
    if x is None or x is not sources[1] or not isinstance(size, int) or size % 2:
        return None
    parts = [_part(each, size) for each in slices if each is not None]
    return x if parts == [(0, size // 2), (size // 2, size)] else None


def _part(node: ir.Node, size: int) -> tuple[int, int] | None:
    """Returns the first element and the end of a Slice of the last dimension."""
    given = [known_lengths(input_of(node, i)) for i in range(1, 4)]
    step = input_of(node, 4)
    if any(each is None or len(each) != 1 or each[0] is None for each in given):
        return None
    if step is not None and known_lengths(step) != [1]:
        return None
    first, end, axis = (each[0] for each in given if each is not None)
    if first is None or end is None or axis not in (-1, _RANK - 1):
        return None
    first, end, _ = slice(first, end).indices(size)
    return first, end


def _fits(value: ir.Value, x: ir.Shape) -> bool:
    """Returns whether the shape of a factor is [B or 1, 1, S, D], where x has [B, H, S, D].

    With one table for the batch, S may have another name or none: then it is S, or 1.
    """
    shape = value.shape
    if shape is None or len(shape) != _RANK or value.dtype != ir.DataType.FLOAT:
        return False
    if shape[1] != 1 or not is_equal(shape[3], x[3]):
        return False
    is_whole = is_equal(shape[2], x[2])
    return shape[0] == 1 or (is_whole and is_equal(shape[0], x[0]))


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
    cos, sin = (_half(each, match.x, match.size // 2, edit) for each in (match.cos, match.sin))
    main = ir.node("RotaryEmbedding", [match.x, _rows(match.cos, edit), cos, sin], domain=MICROSOFT)
    edit.replace(edit.node.outputs[0], edit.insert_main(main, before=edit.node))


def _half(table: ir.Value, x: ir.Value, size: int, edit: Edit) -> ir.Value:
    """Returns [B * S, D / 2] or [S, D / 2] of cos or sin. Layers share them."""
    assert table.shape is not None
    assert x.shape is not None
    is_whole = is_equal(table.shape[2], x.shape[2])

    def half() -> ir.Value:
        found = _add(edit, "Slice", table, *(_number(edit, [each]) for each in (0, size, -1)))
        if not is_whole:  # ONNX Runtime needs a row for each token
            tokens = _add(edit, "Gather", _add(edit, "Shape", x), _number(edit, [2]))
            ones = _number(edit, [1, 1]), _number(edit, [1])
            found = _add(edit, "Expand", found, _add(edit, "Concat", ones[0], tokens, ones[1], axis=0))
        return _add(edit, "Reshape", found, _number(edit, [-1, size]))

    return edit.once(("half", table, *([] if is_whole else [known_as(x.shape[2], x)])), half)


def _rows(table: ir.Value, edit: Edit) -> ir.Value:
    """Returns the row of the first token, if that is the same for the batch, or those of all tokens, [B, S]."""

    def rows() -> ir.Value:
        assert table.shape is not None
        if table.shape[0] == 1:
            return _number(edit, [0])
        lead = _add(edit, "Gather", _add(edit, "Shape", table), _number(edit, [0, 2]))
        count = _add(edit, "ReduceProd", lead, keepdims=0)
        return _add(edit, "Reshape", _add(edit, "Range", _number(edit, 0), count, _number(edit, 1)), lead)

    return edit.once(("rows", table), rows)


RULE = Rule("rotary embedding", OPSET, _match, _build, fuses=True)


def _add(edit: Edit, op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
    return edit.insert(ir.node(op_type, inputs, attributes), before=edit.node)


def _number(edit: Edit, number: int | list[int]) -> ir.Value:
    return edit.add_constant(np.array(number), before=edit.node)
