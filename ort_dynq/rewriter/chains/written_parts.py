"""The rule for a part of a tensor that a model writes, as torch does for ``x[..., a:b] = y``: the parts are a Concat.

Transpose, ScatterND at Range(n)[a:b], Transpose          -> Slice, Concat
ScatterND at all indices of x[:, :, a:b], joined          -> Slice, Concat

The elements are the same. The part lies between two numbers along one axis, and is whole along the others. Parts that
are written one after the other become one Concat, so that other rules find codes and scales of each part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.limits import CHAIN
from ..analysis.nodes import is_standard, only_use, producer_of
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
        start, end: The indices along it.
        perm: How the tensor and the part are transposed before they are used; None if they are not.
    """

    data: ir.Value
    part: ir.Value
    axis: int
    start: int
    end: int
    perm: list[int] | None = None


def _match(node: ir.Node, context: Context) -> _Written | None:
    if (node.attributes.get_string("reduction", "none") or "none") != "none":
        return None
    data, indices, updates = node.inputs
    if data is None or indices is None or updates is None or data.shape is None or data.dtype is None:
        return None
    found = _box(indices, list(data.shape), context.facts)
    if found is None:
        return None
    box, is_joined = found
    partial = [i for i, (length, dim) in enumerate(zip(box, data.shape, strict=False)) if length != (0, dim)]
    axis = partial[0] if partial else 0
    start, end = box[axis]
    if len(partial) > 1 or not isinstance(end, int) or not isinstance(data.shape[axis], int) or start >= end:
        return None
    part = updates
    if is_joined:  # ONNX Runtime checks the shape only of what remains after these nodes
        shape = [end - start if i == axis else dim for i, dim in enumerate(data.shape)]
        part = _before_copies(updates, shape) or updates
    transposes = [producer_of(each, "Transpose") for each in (data, part)]
    perms = [None if each is None else list(each.attributes.get_ints("perm", ())) for each in transposes]
    if perms[0] and perms[0] == perms[1]:
        (x, y), perm = ([None if each is None else each.inputs[0] for each in transposes]), perms[0]
        if x is not None and y is not None and x.shape is not None:
            return _Written(x, y, perm[axis], start, end, perm)
    return _Written(data, part, axis, start, end)


def _box(indices: ir.Value, dims: list[_Dim], facts: Facts) -> tuple[list[tuple[int, _Dim]], bool] | None:
    """Returns the first index and the end along each leading axis of indices of a box; None if they are none.

    Also returns whether they are indices of all axes that are expanded to one shape.
    """
    if facts.is_constant(indices):
        elements = evaluate(indices, facts)
        if elements is None or not elements.size or elements.ndim != elements.shape[-1] + 1 or elements.min() < 0:
            return None
        first, last = elements.reshape(-1, elements.shape[-1])[[0, -1]]
        lengths = last - first + 1
        if tuple(lengths) != elements.shape[:-1]:
            return None
        grid = np.moveaxis(np.indices(lengths), 0, -1) + first
        box = [(int(a), int(b) + 1) for a, b in zip(first, last, strict=True)]
        return (list[tuple[int, _Dim]](box), False) if (grid == elements).all() else None
    if indices.shape is not None and len(indices.shape) == 2 and indices.shape[-1] == 1:
        found = _interval(unreshaped(indices), dims[0], facts)
        return None if found is None else ([found], False)
    if (joined := producer_of(indices, "Concat")) is None or len(joined.inputs) > len(dims):
        return None
    intervals = list[tuple[int, _Dim]]()
    for i, each in enumerate(joined.inputs):
        last_axis = producer_of(each, "Unsqueeze")
        expand = None if last_axis is None else producer_of(last_axis.inputs[0], "Expand")
        vector = None if expand is None else expand.inputs[0]
        shape = None if vector is None else vector.shape
        if last_axis is None or vector is None or shape is None or known_lengths(last_axis.inputs[1]) != [-1]:
            return None
        if len(shape) != len(joined.inputs) - i or any(dim != 1 for dim in list(shape)[1:]):
            return None
        found = _interval(unreshaped(vector), dims[i], facts)
        if found is None:
            return None
        intervals.append(found)
    return intervals, True


def _interval(indices: ir.Value, dim: _Dim, facts: Facts, depth: int = 0) -> tuple[int, _Dim] | None:
    """Returns the first index and the end of a vector of adjacent indices along an axis; None if it is none."""
    if facts.is_constant(indices):
        elements = evaluate(indices, facts)
        is_range = elements is not None and elements.ndim == 1 and elements.size and elements[0] >= 0
        if elements is None or not is_range or (np.diff(elements) != 1).any():
            return None
        return int(elements[0]), int(elements[-1]) + 1
    if (node := producer_of(indices, "Range")) is not None:
        length = known_product(node.inputs[1])
        is_all = [constant_scalar(node.inputs[i]) for i in (0, 2)] == [0, 1] and length is not None
        return (0, dim) if is_all and length is not None and is_equal(length, dim) else None
    node = producer_of(indices, "Slice")
    if node is None or CHAIN.is_passed(depth):
        return None
    inner = None if node.inputs[0] is None else _interval(node.inputs[0], dim, facts, depth + 1)
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
    assert x.shape is not None
    assert x.dtype is not None
    length = x.shape[axis]
    assert isinstance(length, int)
    parts = [*_between(match, 0, match.start, edit), match.part, *_between(match, match.end, length, edit)]
    whole = edit.insert_main(ir.node("Concat", parts, {"axis": axis}), before=node)
    edit.facts.note(whole, x.dtype, x.shape)
    old = node.outputs[0]
    if match.perm is not None:
        use = only_use(old)
        back = None if use is None or not is_standard(use.node, "Transpose") else use.node
        inverse = np.argsort(match.perm).tolist()
        if back is not None and list(back.attributes.get_ints("perm", ())) == inverse:
            old = back.outputs[0]
        else:
            whole = edit.insert(ir.node("Transpose", [whole], {"perm": match.perm}), before=node)
    edit.replace(old, whole)


def _between(match: _Written, start: int, end: int, edit: Edit) -> list[ir.Value]:
    """Returns the parts of the tensor between two indices: inputs of a Concat, or slices of them."""
    x, axis, found, position = match.data, match.axis, list[ir.Value](), 0
    assert x.dtype is not None
    for value, length in _parts(x, axis):
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


def _parts(x: ir.Value, axis: int) -> list[tuple[ir.Value, int]]:
    """Returns the inputs of a Concat along an axis and their lengths; the tensor itself if it is none."""
    node = producer_of(x, "Concat")
    parts = [] if node is None or x.shape is None else [each for each in node.inputs if each is not None]
    lengths = [None if each.shape is None else each.shape[axis] for each in parts]
    is_along = node is not None and x.shape is not None and node.attributes.get_int("axis", 0) % len(x.shape) == axis
    if is_along and all(isinstance(each, int) for each in lengths):
        return [(each, length) for each, length in zip(parts, lengths, strict=True) if isinstance(length, int)]
    assert x.shape is not None
    length = x.shape[axis]
    assert isinstance(length, int)
    return [(x, length)]


RULE: Rule[_Written] = Rule("parts that are written", 13, _match, _build, prepares=True, operators=("ScatterND",))
