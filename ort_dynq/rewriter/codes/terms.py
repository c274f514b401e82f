"""Terms: what computes the scales, zero points and offsets of affine forms, and along which axes they vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.inference import Facts
from ..analysis.shapes import REDUCES_BY_INPUT
from ..analysis.standard import REPEATING, RESHAPES, SELECTING, SUMS
from ..analysis.values import Interval, Values
from ..reasons import Reason, Unconverted

ZERO, _ONE = np.zeros((), np.float32), np.ones((), np.float32)
NODE_MOVES = RESHAPES | SELECTING | REPEATING | {"Transpose"}
"""Operators of new nodes that move the elements of their first input, and repeat or leave out some."""


@dataclass(frozen=True)
class Op:
    """A new node that computes part of a scale, zero point or offset; `inputs` are terms.

    Attributes:
        dtype: The element type of the output.
        output, outputs: The index of the output that is used, and the number of outputs.
    """

    op_type: str
    inputs: tuple[Term, ...]
    dtype: ir.DataType
    attributes: tuple[tuple[str, Any], ...] = ()
    output: int = 0
    outputs: int = 1


@dataclass(frozen=True)
class CodesOf:
    """The codes before all moves, or after one."""

    value: ir.Value


Term = ir.Value | Op | CodesOf | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Param:
    """A scale, zero point or offset.

    Attributes:
        term: What computes it.
        axes: The axes along which it varies, negative; empty for one number, None for one number for each row.
        rank: Its number of dimensions; None if it is not known.
        block: The number of adjacent elements of the last axis that share a number; 0 if all do.
    """

    term: Term
    axes: frozenset[int] | None = frozenset()
    rank: int | None = 0
    block: int = 0

    @property
    def is_one(self) -> bool:
        """Whether it is one number."""
        return self.axes is not None and not self.axes and not self.block

    @property
    def is_of_rows(self) -> bool:
        """Whether each row has one number, or one for each block."""
        return self.axes is None or -1 not in self.axes

    def is_of_samples(self, shape: ir.Shape | None) -> bool:
        """Returns whether it is one number, or one for each index of the first axis of a shape, with all its axes."""
        if self.is_one:
            return True
        if shape is None or self.axes is None or self.block:
            return False
        return self.rank == len(shape) and self.axes <= {-len(shape)}

    def is_of_runs(self, shape: ir.Shape | None) -> bool:
        """Returns whether each number belongs to adjacent elements of a shape, in the order of the numbers."""
        if self.axes is None or not self.axes:
            return True
        lead = () if shape is None else range(-len(shape), max(self.axes))
        return shape is not None and all(axis in self.axes or shape[axis] == 1 for axis in lead)

    def as_runs(self, shape: ir.Shape | None, codes: CodesOf, last: int) -> Param | None:
        """Returns the numbers, repeated where the elements of one are not adjacent; None if that is not known.

        Args:
            shape: The shape of the value that they belong to.
            codes: Codes of this shape. Their dimensions are used if one is not known.
            last: An axis, negative, up to which there are numbers for each index; those that there are, if beyond it.
        """
        if self.axes is None or not self.axes or (self.is_of_runs(shape) and max(self.axes) >= last):
            return self
        if shape is None or self.rank is None:
            return None
        rank, runs = len(shape), lead(len(shape), max(*self.axes, last) + 1)
        gaps = {axis: shape[axis] for axis in runs - self.axes}
        if all(isinstance(dim, int) for dim in gaps.values()):
            lengths: Term = np.array([gaps.get(axis, 1) for axis in range(-rank, 0)])
        else:
            lengths = with_last_dims(codes, len(runs), np.ones(rank - len(runs), np.int64))
        return replace(self.of("Expand", lengths), axes=runs, rank=rank)

    def of(self, op_type: str, *others: Term, **attributes: Any) -> Param:
        """Returns the result of an operator that this is the first input of."""
        dtype = ir.DataType(attributes["to"]) if op_type == "Cast" else dtype_of(self.term)
        output, outputs = attributes.pop("output", 0), attributes.pop("outputs", 1)
        return replace(self, term=Op(op_type, (self.term, *others), dtype, tuple(attributes.items()), output, outputs))

    def with_operator(self, op_type: str, *, instead: str) -> Param:
        """Returns the result of the same nodes with another operator in the place of one."""

        def replaced(term: Term) -> Term:
            if not isinstance(term, Op):
                return term
            name = op_type if term.op_type == instead else term.op_type
            return replace(term, op_type=name, inputs=tuple(map(replaced, term.inputs)))

        return replace(self, term=replaced(self.term))


def scope_of(param: Param) -> str:
    if param.is_one:
        return ""
    return f" of blocks of {param.block}" if param.block else " of rows" if param.is_of_rows else " of another axis"


def dtype_of(term: Term) -> ir.DataType:
    """Returns the element type of a term."""
    if isinstance(term, np.ndarray):
        return ir.DataType.from_numpy(term.dtype)
    if isinstance(term, CodesOf):
        return ir.DataType.UINT8
    return term.dtype or ir.DataType.UNDEFINED


def number_of(term: Term) -> float | None:
    """Returns the number that a term is; None if it is computed at run time, or consists of several."""
    if isinstance(term, np.ndarray):
        return float(term.reshape(-1)[0]) if term.size == 1 else None
    if isinstance(term, Op) and term.op_type == "Neg":
        number = number_of(term.inputs[0])
        return None if number is None else -number
    if isinstance(term, Op) and term.op_type == "Div":
        a, b = map(number_of, term.inputs)
        return None if a is None or not b else a / b
    return constant_scalar(term) if isinstance(term, ir.Value) else None


def unmoved(term: Term) -> Term:
    """Returns a term before new nodes move its elements."""
    while isinstance(term, Op) and term.op_type in NODE_MOVES:
        term = term.inputs[0]
    return term


def key_of(term: Term) -> object:
    """Returns what two terms that compute the same have in common."""
    if isinstance(term, np.ndarray):
        return str(term.dtype), term.shape, term.tobytes()
    if isinstance(term, Op):
        return replace(term, inputs=()), *map(key_of, term.inputs)
    return term


def unsqueezed(param: Param, axes: Sequence[int]) -> Param:
    return param.of("Unsqueeze", np.array(axes)) if axes else param


def combined(op_type: str, a: Param, b: Param) -> Param:
    """Returns a sum, difference, product or quotient of two parameters.

    Raises:
        Unconverted: They vary along axes that do not fit together.
    """
    if (a.block or b.block) and a.block != b.block and not (a.is_one or b.is_one or not (a.block and b.block)):
        raise Unconverted(Reason.ACTIVATION_SCALES)
    axes = None if a.axes is None or b.axes is None else a.axes | b.axes
    if axes is None and not (a.is_of_rows and b.is_of_rows):
        raise Unconverted(Reason.ACTIVATION_SCALES)
    rank = None if a.rank is None or b.rank is None else max(a.rank, b.rank)
    return Param(_combined(op_type, a.term, b.term), axes, rank, a.block or b.block)


def _combined(op_type: str, a: Term, b: Term) -> Term:
    """Returns a binary operation on two terms, before nodes that move both alike: there it is a step of a program."""
    if (
        isinstance(a, Op)
        and isinstance(b, Op)
        and len(a.inputs) == len(b.inputs)
        and a.op_type in NODE_MOVES | {"Concat"}
    ):
        moved = len(a.inputs) if a.op_type == "Concat" else 1
        rest = (replace(each, inputs=each.inputs[moved:]) for each in (a, b))
        if len(set(map(key_of, rest))) == 1:
            found = [_combined(op_type, *pair) for pair in zip(a.inputs[:moved], b.inputs[:moved], strict=True)]
            return replace(a, inputs=(*found, *a.inputs[moved:]))
    return Op(op_type, (a, b), dtype_of(a))


def like(param: Param, other: Param) -> Param:
    """Returns a parameter in the element type of another one."""
    dtype = dtype_of(other.term)
    return param if dtype_of(param.term) == dtype else param.of("Cast", to=int(dtype))


def lead(rank: int, end: int) -> frozenset[int]:
    """Returns the axes before the axis `end`, which is negative."""
    return frozenset(range(-rank, end))


def with_last_dims(codes: CodesOf, end: int, last: np.ndarray[Any, Any]) -> Term:
    """Returns the shape of codes, with other lengths from the dimension `end` on."""
    i64 = ir.DataType.INT64
    dims = Op("Slice", (Op("Shape", (codes,), i64), np.array([0]), np.array([end])), i64)
    return Op("Concat", (dims, last), i64, (("axis", 0),))


def with_dim(shape: np.ndarray[Any, Any], axis: int, codes: CodesOf) -> Term:
    """Returns a shape with the length of codes along an axis, which is negative and not the last one."""
    i64 = ir.DataType.INT64
    dim = Op("Slice", (Op("Shape", (codes,), i64), np.array([axis]), np.array([axis + 1])), i64)
    return Op("Concat", (shape[:axis], dim, shape[axis + 1 :]), i64, (("axis", 0),))


def rank_of(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def interval_of(term: Term, values: Values) -> Interval:
    """Returns what is known of the elements of a term."""
    if isinstance(term, np.ndarray):
        return Interval(float(term.min()), float(term.max()), bool((term == np.rint(term)).all()))
    if isinstance(term, ir.Value):
        return values.known(term)
    if not isinstance(term, Op):
        return Interval(0, 255, True)
    if term.op_type == "Mul" and any(isinstance(each, np.ndarray) and not each.any() for each in term.inputs):
        return Interval(0, 0, True)
    read = {"Add": slice(2), "Sub": slice(2), "Concat": slice(None), "Where": slice(1, 3)}
    inputs = [interval_of(each, values) for each in term.inputs[read.get(term.op_type, slice(1))]]
    is_integer, is_regular = all(each.is_integer for each in inputs), all(each.is_regular for each in inputs)
    if term.op_type in SUMS:
        a, b = inputs
        low, high = (a.low + b.low, a.high + b.high) if term.op_type == "Add" else (a.low - b.high, a.high - b.low)
        return Interval(low, high, is_integer, is_regular)
    if term.op_type in read:
        low, high = min(each.low for each in inputs), max(each.high for each in inputs)
        return Interval(low, high, is_integer, is_regular)
    if term.op_type == "Neg":
        return Interval(-inputs[0].high, -inputs[0].low, is_integer, is_regular)
    is_moved = term.op_type in NODE_MOVES | {"Cast"}
    return inputs[0] if is_moved else Interval()


def reduced(reduction: str, of: Term, x: ir.Value, like: Param, facts: Facts) -> Param:
    """Returns a reduction of the elements of a float32 term that share a number, as those of x do."""
    axes = None if like.is_one else [-1]
    if like.axes and x.shape is not None:  # where x has one index, a program knows no reduction
        axes = [each for each in sorted(lead(len(x.shape), 0) - like.axes) if each == -1 or x.shape[each] != 1]
    attributes: dict[str, Any] = {"keepdims": int(not like.is_one)}
    inputs: list[Term] = [of]
    if axes is not None and facts.opset >= REDUCES_BY_INPUT:
        inputs.append(np.array(axes))
    elif axes is not None:
        attributes["axes"] = tuple(axes)
    term = Op(reduction, tuple(inputs), ir.DataType.FLOAT, tuple(attributes.items()))
    return Param(term, like.axes, 0 if like.is_one else rank_of(x))
