"""Affine forms, and their scales, zero points and offsets (terms.py) after nodes that move elements.

Example: Concat of rows of 32 and of 16 numbers, each with one scale: rows of 48 with 3 scales, in blocks of 16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import all_bounds_of
from ..analysis.constants import constant_array
from ..analysis.limits import CHAIN
from ..analysis.nodes import producer_of
from ..analysis.shape_arithmetic import known_lengths
from ..analysis.shapes import does_not_grow, is_equal, unreshaped
from ..analysis.standard import AXES, RESHAPES, ROUNDING, SCALING, SELECTING
from ..analysis.types import CODE_TYPES
from ..analysis.values import Values
from .terms import (
    ZERO,
    CodesOf,
    Op,
    Param,
    Term,
    dtype_of,
    key_of,
    lead,
    like,
    number_of,
    rank_of,
    scope_of,
    unmoved,
    unsqueezed,
    with_dim,
    with_last_dims,
)

if TYPE_CHECKING:
    from .quotients import Quotient

ROUNDINGS = ROUNDING | {"Sign"}
_INVERTED = 2.0**-22  # the roundings of a number and of its inverse, relative
NUMBERS = ("scale", "zero_point", "offset")  # fields of a form
MARKS = ("mark", "nan")
"""The fields that a form may lose: a product that needs one then stays."""


def moved(param: Param, node: ir.Node, index: int, after: ir.Value, before: ir.Value) -> Param | None:
    """Returns a scale, zero point or offset after a node that moves elements; None if it is not known."""
    if param.is_one:
        return param
    rank, out_rank, op_type = rank_of(before), rank_of(after), node.op_type
    if rank is None or out_rank is None or before.shape is None or after.shape is None:
        return None
    axes = param.axes if param.axes is not None else lead(rank, -1)
    if param.rank != rank:
        if param.rank is None or param.rank > rank:
            return None
        param = replace(unsqueezed(param, list(range(rank - param.rank))), rank=rank)
    if op_type == "Transpose":
        perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else list(range(rank))[::-1]
        if param.block and perm[-1] != rank - 1:
            return None
        new_axes = frozenset(list(perm).index(axis + rank) - rank for axis in axes)
        return replace(param.of("Transpose", perm=tuple(perm)), axes=new_axes)
    if op_type in RESHAPES:
        return _reshaped(param, axes, node, before.shape, after.shape)
    if op_type == "Expand":
        return _expanded(param, axes, before.shape, after.shape)
    if op_type == "Tile":
        return _tiled(param, axes, known_lengths(node.inputs[1]))
    if op_type in SELECTING and rank == out_rank:
        along = _sliced_axes(node, rank)
        if op_type == "Slice" and param.block and along is not None and set(along) == {-1}:
            return _sliced_blocks(param, node, before.shape[-1], after.shape[-1])
        if along is None or (param.block and -1 in along) or (along & axes and not along <= axes):
            return None
        if not along & axes:
            return param
        return param.of(
            op_type,
            *[each for each in node.inputs[1:] if each is not None],
            output=index,
            outputs=len(node.outputs),
            **_given(node),
        )
    return None


def _expanded(param: Param, axes: frozenset[int], before: ir.Shape, after: ir.Shape) -> Param | None:
    """Returns numbers after an Expand: elements that it repeats share one; None if it is not known what it repeats."""
    repeated = frozenset(i for i in range(-len(before), 0) if not is_equal(before[i], after[i]))
    if any(before[i] != 1 for i in repeated) or (param.block and -1 in repeated):
        return None
    return replace(param, axes=axes - repeated)


def _tiled(param: Param, axes: frozenset[int], repeats: Sequence[int | None] | None) -> Param | None:
    """Returns numbers after a Tile, which repeats those that vary along its axes; None if they are not known."""
    if repeats is None or None in repeats or (repeats[-1] != 1 and (param.block or -1 in axes)):
        return None
    of_numbers = [each if i in axes else 1 for i, each in zip(range(-len(repeats), 0), repeats, strict=True)]
    return param.of("Tile", np.array(of_numbers)) if set(of_numbers) != {1} else param


def concatenated(name: str, parts: Sequence[Affine], concat: ir.Node) -> Param | None:
    """Returns a number or a mark, by the name of its field, of a Concat of these forms; None if it is not known."""
    data = parts[0].value
    given: list[Param] = [found for each in parts if (found := getattr(each, name)) is not None]
    if len(given) < len(parts):
        return None
    if len({dtype_of(each.term) for each in given}) > 1:  # zero points of DynamicQuantizeLinear, and floats
        given = [like(each, Param(np.zeros((), np.float32))) for each in given]
    param = given[0]
    if all(each.is_one and key_of(each.term) == key_of(param.term) for each in given):
        return param
    rank = rank_of(data)
    axis = None if rank is None else concat.attributes.get_int("axis", 0) % rank - rank
    if axis is None or rank is None:
        return None
    is_same = all(each.axes == param.axes and each.rank == rank and not each.is_one for each in given)
    if axis == -1 and rank > 1 and all(each.is_of_rows for each in given):
        if is_same:
            return _with_common_blocks(given, concat)
        expanded = [_for_each_row(each, concat, i, rank) for i, each in enumerate(given)]
        known = [each for each in expanded if each is not None]
        return _with_common_blocks(known, concat) if len(known) == len(given) else None
    if not is_same or any(each.block != param.block for each in given):
        return None
    if axis not in (lead(rank, -1) if param.axes is None else param.axes):
        pairs = zip(given, parts, strict=True)
        given = [found for each, part in pairs if (found := _for_each_index(each, part, axis)) is not None]
        if len(given) < len(parts):
            return None
    first, *behind = given
    return first.of("Concat", *(each.term for each in behind), axis=axis)


def _for_each_row(param: Param, concat: ir.Node, index: int, rank: int) -> Param | None:
    """Returns numbers of all rows or samples of an input of a Concat along rows as numbers of each row."""
    part = concat.inputs[index]
    width = None if part is None or part.shape is None else part.shape[-1]
    if not isinstance(width, int) or param.rank is None or param.rank > rank:
        return None
    count = np.array([width // param.block if param.block else 1])
    shape = with_last_dims(CodesOf(concat.outputs[0]), -1, count)
    return replace(param.of("Expand", shape), axes=None, rank=rank)


def _for_each_index(param: Param, part: Affine, axis: int) -> Param | None:
    """Returns numbers that do not vary along an axis as numbers for each index of it; None if it is not known."""
    if part.value.shape is None or param.rank is None or param.axes is None or axis == -1:
        return None
    length, lengths = part.value.shape[axis], np.ones(param.rank, np.int64)
    lengths[axis] = length if isinstance(length, int) else 1
    shape = lengths if isinstance(length, int) else with_dim(lengths, axis, part.codes)
    return replace(param.of("Expand", shape), axes=param.axes | {axis})


def _with_common_blocks(params: Sequence[Param], concat: ir.Node) -> Param | None:
    """Returns the numbers of rows that consist of parts, each with its own numbers: one for each block of all parts."""
    widths = [None if each is None or each.shape is None else each.shape[-1] for each in concat.inputs]
    blocks = [each.block or width for each, width in zip(params, widths, strict=True)]
    lengths = [each for each in blocks if isinstance(each, int) and each]
    if len(lengths) < len(params) or not all(isinstance(each, int) for each in widths):
        return None
    common, terms = math.gcd(*lengths), list[Term]()
    for param, width, length in zip(params, widths, lengths, strict=True):
        assert isinstance(width, int)
        indices = np.repeat(np.arange(width // length), length // common)
        terms.append(param.term if len(indices) == width // length else param.of("Gather", indices, axis=-1).term)
    whole = params[0].of("Concat", axis=-1)
    assert isinstance(whole.term, Op)
    return replace(whole, term=replace(whole.term, inputs=tuple(terms)), axes=None, block=common)


def _sliced_blocks(
    param: Param, node: ir.Node, before: int | ir.SymbolicDim, after: int | ir.SymbolicDim
) -> Param | None:
    """Returns the numbers of blocks after a Slice of the last axis that does not cut a block; None for others."""
    starts = known_lengths(node.inputs[1])
    if not isinstance(before, int) or not isinstance(after, int) or starts is None or starts[0] is None:
        return None
    if len(node.inputs) > 4 and known_lengths(node.inputs[4]) != [1]:
        return None
    start = range(before)[starts[0] :].start
    if start % param.block or after % param.block or not after:
        return None
    if after == before:
        return param
    first, last = start // param.block, (start + after) // param.block
    return param.of("Slice", np.array([first]), np.array([last]), np.array([-1]))


def _sliced_axes(node: ir.Node, rank: int) -> frozenset[int] | None:
    """Returns the axes along which a Split, Slice or Gather of vectors selects, negative; None if not known."""
    if node.op_type == "Slice":
        if len(node.inputs) < 4 or None in node.inputs:
            return None
        elements = constant_array(node.inputs[3])
        return None if elements is None else frozenset(int(axis) % rank - rank for axis in elements.reshape(-1))
    return frozenset({node.attributes.get_int("axis", 0) % rank - rank})


def _reshaped(param: Param, axes: frozenset[int], node: ir.Node, before: ir.Shape, after: ir.Shape) -> Param | None:
    """Returns a parameter after a Reshape, Flatten, Squeeze or Unsqueeze; None if it is not known."""
    rank, out_rank = len(before), len(after)
    pairs = list(zip(before, after, strict=False))
    same = next((i for i, pair in enumerate(pairs) if not is_equal(*pair)), len(pairs))
    if not param.block and all(axis + rank < same for axis in axes):  # only dimensions without numbers change
        if out_rank >= rank:
            found = unsqueezed(param, list(range(rank, out_rank))) if out_rank > rank else param
        elif node.op_type == "Reshape" or node.op_type == "Squeeze" or node.op_type == "Flatten":
            found = _squeezed(param, list(range(out_rank, rank)))
        return replace(found, axes=frozenset(axis + rank - out_rank for axis in axes), rank=out_rank)
    last, new_last = before[-1], after[-1]
    is_full = all(axis in axes or before[axis] == 1 for axis in range(-rank, -1))
    if not is_full or not isinstance(last, int) or not isinstance(new_last, int) or not last or -1 in axes:
        return None
    block = param.block or last
    if new_last % block:  # a block of adjacent elements stays one
        return None
    count = new_last // block
    shape: Term
    lengths = constant_array(node.inputs[1]) if node.op_type == "Reshape" else None
    if out_rank == 2:
        shape = np.array([-1, count])
    elif after.is_static():
        shape = np.array([*list(after.numpy())[:-1], count])
    elif lengths is not None and 0 not in lengths:
        shape = np.array([*lengths[:-1].tolist(), count])
    elif node.op_type == "Reshape":
        shape = with_last_dims(CodesOf(node.outputs[0]), -1, np.array([count]))
    elif node.op_type in AXES and last == new_last:
        given = [each for each in node.inputs[1:] if each is not None]
        return replace(param.of(node.op_type, *given, **_given(node)), axes=None, rank=out_rank)
    else:
        return None
    return replace(param.of("Reshape", shape), axes=None, rank=out_rank, block=block if count > 1 else 0)


def _squeezed(param: Param, axes: Sequence[int]) -> Param:
    return param.of("Squeeze", np.array(axes)) if axes else param


def _given(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


@dataclass(frozen=True)
class Rearrangement:
    """A node that moves codes, or leaves out some.

    Attributes:
        node: The node.
        output: The index of its output.
        others: The forms of the other inputs of a Concat.
        data: The index of its input: 1 or 2 for a Where, else 0.
        other: The code that a Where chooses for other elements.
    """

    node: ir.Node
    output: int
    others: tuple[Affine, ...] = ()
    data: int = 0
    other: int = 0


@dataclass(frozen=True)
class Affine:
    """An affine form.

    Attributes:
        value: The value.
        root: The codes before all moves, of any type.
        low, high: The bounds of the codes.
        moves: The nodes that move the codes, the first one first.
        scale: None for 1.
        zero_point: None for 0.
        offset: None for 0.
        is_rounded: Whether the model rounds the value to float16.
        divisor: What x is divided by, if the model casts NaN, the quotient of zeros, to integers. They are any numbers.
        mark: NaN for the rows with codes that are not finite, 0 for the others (marks.py); None if that is not known.
            The rows are those of the scale.
        nan: NaN for the rows in which x is, 0 for the others; None if codes are never NaN for it, or it is not known.
        quotient: What the codes are rounded from; None if it is not known, or the mark holds for all of these rows.
    """

    value: ir.Value
    root: ir.Value
    low: int
    high: int
    moves: tuple[Rearrangement, ...] = ()
    scale: Param | None = None
    zero_point: Param | None = None
    offset: Param | None = None
    is_rounded: bool = False
    divisor: ir.Value | None = None
    mark: Param | None = None
    nan: Param | None = None
    quotient: Quotient | None = None

    @property
    def shift(self) -> int:
        """What is added to the codes to make them uint8."""
        return 0 if self.low >= 0 and self.high <= 255 else 128 if self.low >= -128 and self.high <= 127 else -self.low

    @property
    def codes(self) -> CodesOf:
        """The codes after all moves."""
        move = self.moves[-1] if self.moves else None
        return CodesOf(self.root if move is None else move.node.outputs[move.output])

    @property
    def params(self) -> list[Param]:
        """The scale, zero point and offset that it has."""
        return [each for each in (self.scale, self.zero_point, self.offset) if each is not None]

    @property
    def parts(self) -> list[Affine]:
        """This form, as that of the first input of every Concat, and the parts of the other inputs."""
        return [self, *(part for move in self.moves for each in move.others for part in each.parts)]

    def mapped(self, value: ir.Value, change: Callable[[str, Param], Param | None]) -> Affine:
        """Returns the form of another value: a function computes its scale, zero point, offset and marks from these."""
        found: dict[str, Any] = {}
        for name in (*NUMBERS, *MARKS):
            param = getattr(self, name)
            found[name] = None if param is None else change(name, param)
        return replace(self, value=value, **found)

    def may_have_nan_codes(self, values: Values) -> bool:
        """Returns whether codes that stay floats may be NaN: a quotient of zeros."""
        return self.root.dtype not in CODE_TYPES and not values.known(self.root).is_regular

    def has_bounded_codes(self, values: Values) -> bool:
        """Returns whether codes fit 8 bits for any x, also an infinite one."""
        return values.of_any_inputs.known(self.root).fits(-self.shift, 255 - self.shift)

    def is_scaled_by(self, divisor: ir.Value) -> bool:
        """Returns whether codes that are not numbers are multiplied by 0: by the divisor of the quotient."""
        if self.scale is None:
            return False
        scale, same = scaled_value(self.scale.term, until=divisor), scaled_value(divisor)
        if scale is None or same is None:
            return False
        if unreshaped(scale.value) is unreshaped(divisor):
            return not scale.is_inverse
        is_twice = unreshaped(scale.value) is unreshaped(same.value)  # the divisor is computed twice
        is_same = scale.is_inverse == same.is_inverse and math.isclose(scale.number, same.number, rel_tol=_INVERTED)
        return is_twice and is_same

    def __str__(self) -> str:
        """Returns the text for ``inspect --values``."""
        name = self.root.name or "codes"
        text = name if self.zero_point is None else f"({name} - zero point)"
        text = text if self.scale is None else f"scale{scope_of(self.scale)} * {text}"
        return f"{text}{' + offset' if self.offset is not None else ''}, codes {self.low} to {self.high}"


class Scaled(NamedTuple):
    """A scale: number * value, or number / value."""

    number: float
    value: ir.Value
    is_inverse: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether it may be finite although the value without its bounds is infinite."""
        bounds = all_bounds_of(self.value)
        return bounds.least > 0 if self.is_inverse else math.isfinite(bounds.most)


def scaled_value(term: Term, until: ir.Value | None = None, depth: int = 0) -> Scaled | None:
    """Returns the number and the value that a scale consists of; None if it consists of others.

    Args:
        term: The scale.
        until: A value that is not taken apart, reshaped or not.
        depth: The number of steps so far.
    """
    whole = Scaled(1, term) if isinstance(term, ir.Value) else None
    if CHAIN.is_passed(depth) or (
        whole is not None and until is not None and unreshaped(whole.value) is unreshaped(until)
    ):
        return whole
    node = term if whole is None else producer_of(whole.value, *SCALING, "Reciprocal")
    if not isinstance(node, (Op, ir.Node)):
        return whole
    inputs: list[Term] = [each for each in node.inputs if each is not None]
    if node.op_type in RESHAPES or (node.op_type == "Add" and is_mark(inputs[1])):
        return scaled_value(inputs[0], until, depth + 1)
    if node.op_type == "Reciprocal":
        inputs.insert(0, np.ones(()))
    for i, each in enumerate(inputs) if node.op_type in SCALING | {"Reciprocal"} and len(inputs) == 2 else ():
        number, other = number_of(each), inputs[1 - i]
        keeps_shape = not isinstance(each, ir.Value) or not isinstance(other, ir.Value) or does_not_grow(each, other)
        inner = scaled_value(other, until, depth + 1) if number and keeps_shape else None
        if inner is None or not number:
            continue
        is_inverted, is_divided = node.op_type != "Mul" and i == 0, node.op_type != "Mul" and i == 1
        factor = number / inner.number if is_inverted else inner.number * number ** (-1 if is_divided else 1)
        if 0 < abs(factor) < math.inf:
            return Scaled(factor, inner.value, inner.is_inverse ^ is_inverted)
    return whole


def is_mark(term: Term) -> bool:
    """Returns whether a term is a number times 0, or a sum of such: NaN or 0."""
    if not isinstance(term, Op):
        return False
    return (term.op_type == "Mul" and term.inputs[1] is ZERO) or (
        term.op_type == "Add" and all(map(is_mark, term.inputs))
    )


def range_of(scale: Param) -> Scaled | None:
    """Returns the value that a scale is computed from by constants and reshapes, or its inverse; or None."""
    found = scaled_value(unmoved(scale.term))
    while found is not None and (inner := unreshaped(found.value)) is not found.value:
        behind = scaled_value(inner)
        found = None if behind is None else Scaled(1, behind.value, found.is_inverse ^ behind.is_inverse)
    return found


def is_bounded(scale: Param) -> bool:
    """Returns whether a scale may be finite although the range is infinite."""
    return (found := range_of(scale)) is None or found.is_bounded


def is_repeated_along_rows(value: ir.Value | None, node: ir.Node) -> bool:
    """Returns whether an operand has one element in each row, and the result of its node is known to have several.

    Such numbers, as rounded zero points are, are no activation any more.
    """
    shape, result = None if value is None else value.shape, node.outputs[0].shape
    if not shape or not result or shape[-1] != 1:
        return False
    return isinstance(result[-1], int) and result[-1] != 1
