"""The rule for a part of a tensor that a model writes, as torch does for ``x[..., a:b] = y``: the parts are a Concat.

Transpose, ScatterND at Range(n)[a:b], Transpose          -> Slice, Concat
ScatterND at all indices of x[:, :, a:b], joined          -> Slice, Concat

The elements are the same. The part lies between two numbers along one axis, and is whole along the others. Parts that
are written one after the other become one Concat, so that other rules find codes and scales of each part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.evaluation import evaluate_if_constant
from ..analysis.inference import Facts
from ..analysis.limits import CHAIN
from ..analysis.nodes import is_inverse_transpose, only_use, producer_of
from ..analysis.shape_arithmetic import known_lengths, known_product
from ..analysis.shapes import is_equal, unreshaped
from ..analysis.standard import RESHAPES
from ..edit import Edit
from ..rule import Context, Rule

_Dim = int | ir.SymbolicDim


class _Written(NamedTuple):
    """A part of a tensor that is written.

    Attributes:
        data, part: The tensor before, and what is written, which has its rank.
        axis: The axis along which the part ends before the tensor does.
        length: The length of the tensor along it.
        start, end: The indices of the part along it.
        turn: The Transpose of the tensor, as the part has one, before they are used; None if there is none.
    """

    data: ir.Value
    part: ir.Value
    axis: int
    length: int
    start: int
    end: int
    turn: ir.Node | None = None


def _match(node: ir.Node, context: Context) -> _Written | None:
    if (node.attributes.get_string("reduction", "none") or "none") != "none":
        return None
    data, indices, updates = node.inputs
    if data is None or indices is None or updates is None or data.shape is None or data.dtype is None:
        return None
    box, dims = _box(indices, list(data.shape), context.facts), list(data.shape)
    partial = [i for i, (ends, dim) in enumerate(zip(box or (), dims, strict=False)) if ends != (0, dim)]
    axis = partial[0] if partial else 0
    if box is None or len(partial) > 1 or not isinstance(length := dims[axis], int):
        return None
    start, end = box[axis]
    if not isinstance(end, int) or start >= end:
        return None
    part = _before_copies(updates, [*dims[:axis], end - start, *dims[axis + 1 :]]) or updates
    turn, other = (producer_of(each, "Transpose") for each in (data, part))
    if turn is not None and other is not None and (perm := list(turn.attributes.get_ints("perm", ()))):
        (x, y), is_same = (turn.inputs[0], other.inputs[0]), list(other.attributes.get_ints("perm", ())) == perm
        if is_same and x is not None and y is not None and x.shape is not None:
            return _Written(x, y, perm[axis], length, start, end, turn)
    return _Written(data, part, axis, length, start, end)


def _box(indices: ir.Value, dims: list[_Dim], facts: Facts) -> list[tuple[int, _Dim]] | None:
    """Returns the first index and the end along each leading axis of indices of a box; None if they are none."""
    if (elements := evaluate_if_constant(indices, facts)) is not None:
        return _box_of(elements)
    if indices.shape is not None and len(indices.shape) == 2 and indices.shape[-1] == 1:
        found = _interval(unreshaped(indices), dims[0], facts)
        return None if found is None else [found]
    joined = producer_of(indices, "Concat")
    if joined is None or len(joined.inputs) > len(dims):
        return None
    intervals = list[tuple[int, _Dim]]()
    for i, each in enumerate(joined.inputs):  # indices of all axes that are expanded to one shape
        last_axis = producer_of(each, "Unsqueeze")
        expand = None if last_axis is None else producer_of(last_axis.inputs[0], "Expand")
        vector = None if expand is None else expand.inputs[0]
        shape = None if vector is None else vector.shape
        if last_axis is None or vector is None or shape is None or known_lengths(last_axis.inputs[1]) != [-1]:
            return None
        is_along = len(shape) == len(joined.inputs) - i and all(dim == 1 for dim in list(shape)[1:])
        found = _interval(unreshaped(vector), dims[i], facts) if is_along else None
        if found is None:
            return None
        intervals.append(found)
    return intervals


def _box_of(indices: npt.NDArray[Any]) -> list[tuple[int, _Dim]] | None:
    """Returns the first index and the end along each axis if these are all indices of a box, in their order."""
    if not indices.size or indices.ndim != indices.shape[-1] + 1 or indices.min() < 0:
        return None
    first, last = indices.reshape(-1, indices.shape[-1])[[0, -1]]
    lengths = last - first + 1
    if tuple(lengths) != indices.shape[:-1] or (np.moveaxis(np.indices(lengths), 0, -1) + first != indices).any():
        return None
    return [(int(a), int(b) + 1) for a, b in zip(first, last, strict=True)]


def _interval(indices: ir.Value, dim: _Dim, facts: Facts, depth: int = 0) -> tuple[int, _Dim] | None:
    """Returns the first index and the end of a vector of adjacent indices along an axis; None if it is none."""
    if (elements := evaluate_if_constant(indices, facts)) is not None:
        box = _box_of(elements[..., None]) or ()
        return box[0] if len(box) == 1 else None
    if (node := producer_of(indices, "Range")) is not None:
        length = known_product(node.inputs[1])
        is_all = [constant_scalar(node.inputs[i]) for i in (0, 2)] == [0, 1]
        return (0, dim) if is_all and length is not None and is_equal(length, dim) else None
    node = producer_of(indices, "Slice")
    if node is None or node.inputs[0] is None or CHAIN.is_passed(depth):
        return None
    inner = _interval(node.inputs[0], dim, facts, depth + 1)
    numbers = [known_lengths(each) for each in node.inputs[1:]]
    given = [each[0] for each in numbers if each is not None and len(each) == 1]
    if inner is None or not isinstance(inner[1], int) or None in given or len(given) < len(numbers):
        return None
    start, end, axis, step = given + [0, 1][len(given) - 2 :]
    found = range(inner[0], inner[1])[start:end]
    return (found.start, found.stop) if axis in (0, -1) and step == 1 else None


def _before_copies(value: ir.Value, shape: list[_Dim]) -> ir.Value | None:
    """Returns the value of this shape before Reshapes and Expands that together keep it; None if none is known.

    All of them have as many elements as the shape: ONNX Runtime checks that of the last one.
    """
    at, found = value, None
    for _ in CHAIN.steps():
        if at.shape is not None and len(at.shape) == len(shape) and all(map(is_equal, at.shape, shape)):
            found = at
        node = producer_of(at, "Expand", *RESHAPES)
        if node is None or node.inputs[0] is None:
            break
        at = node.inputs[0]
    return found


def _build(match: _Written, edit: Edit) -> None:
    node, x, axis = edit.node, match.data, match.axis
    assert x.dtype is not None
    parts = [*_between(match, 0, match.start, edit), match.part, *_between(match, match.end, match.length, edit)]
    whole = edit.insert_main(ir.node("Concat", parts, {"axis": axis}), before=node)
    edit.facts.note(whole, x.dtype, x.shape)
    old = node.outputs[0]
    if match.turn is not None:
        use = only_use(old)
        if use is not None and is_inverse_transpose(match.turn, use.node):
            old = use.node.outputs[0]
        else:
            whole = edit.insert(ir.node("Transpose", [whole], dict(match.turn.attributes)), before=node)
    edit.replace(old, whole)


def _between(match: _Written, start: int, end: int, edit: Edit) -> list[ir.Value]:
    """Returns the parts of the tensor between two indices: inputs of a Concat, or slices of them."""
    x, axis, found, position = match.data, match.axis, list[ir.Value](), 0
    assert x.dtype is not None
    for value, length in _parts(x, axis, match.length):
        first, last = max(start - position, 0), min(end - position, length)
        position += length
        if first < last and (first, last) != (0, length):
            ends = (edit.add_constant(np.array([each]), before=edit.node) for each in (first, last, axis))
            shape = [last - first if i == axis else dim for i, dim in enumerate(x.shape or ())]
            value = edit.insert(ir.node("Slice", [value, *ends]), before=edit.node)
            edit.facts.note(value, x.dtype, ir.Shape(shape))
        if first < last:
            found.append(value)
    return found


def _parts(x: ir.Value, axis: int, whole: int) -> list[tuple[ir.Value, int]]:
    """Returns the inputs of a Concat along an axis and their lengths; the tensor itself if it is none."""
    node = producer_of(x, "Concat")
    parts = [] if node is None or x.shape is None else [each for each in node.inputs if each is not None]
    lengths = [None if each.shape is None else each.shape[axis] for each in parts]
    is_along = node is not None and x.shape is not None and node.attributes.get_int("axis", 0) % len(x.shape) == axis
    known = [(each, length) for each, length in zip(parts, lengths, strict=True) if isinstance(length, int)]
    return known if is_along and len(known) == len(lengths) else [(x, whole)]


RULE: Rule[_Written] = Rule("parts that are written", 13, _match, _build, prepares=True, operators=("ScatterND",))
