"""The quantized activation of a float product: its affine form, and what QuantizedMatMul and QuantizedConv take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...operators.quantized_matmul import GROUP_UNIT
from ..analysis.bounds import all_bounds_of
from ..analysis.nodes import producer_of
from ..analysis.shapes import is_equal, unreshaped
from ..analysis.standard import RESHAPES, SELECTING, SUMS
from ..analysis.values import Interval, Values
from ..reasons import Reason, Unconverted
from .affine_form import Affine, Rearrangement, divisor_of, is_bounded, quotient_of, range_of, scaled_value
from .marks import has_bounded_codes, has_nan_codes, marked, of_largest
from .terms import NODE_MOVES, ZERO, Op, Param, Quotient, Term, combined, dtype_of, lead, like, rank_of, unmoved

_ROUNDINGS = 2.0**-22  # of a number and of its inverse
_RANGES = SUMS | {"Max", "ReduceMax"} | {"Where"}


@dataclass(frozen=True)
class Activation:
    """A quantized activation.

    Attributes:
        form: Its affine form.
        groups: The number of scales for each row.
        parts: The number of equal parts into which the product cuts each group.
        zero_point: The zero point, if it is a constant that is a code; else None.
        has_code_zero_point: Whether the zero point is known to be a code. Otherwise the product has an offset.
        may_be_nan: Whether the model's codes may be NaN where the scale is 0: quotients of a row of zeros.
        quotient: What the codes are rounded from, if rows share a number, so that only some of them may be NaN.
        order: The order of axes to which the product transposes codes; the scales already have it. Empty for none.
        shape: The shape, as Reshape reads it, to which the product reshapes codes then; the scales already have it.
            Empty for none.
    """

    form: Affine
    groups: int = 1
    parts: int = 1
    zero_point: int | None = None
    has_code_zero_point: bool = True
    may_be_nan: bool = False
    quotient: Quotient | None = None
    order: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def value(self) -> ir.Value:
        """The float activation, [..., M, K]."""
        return self.form.value

    @property
    def is_rounded(self) -> bool:
        """Whether the model rounds it to float16. The product does not have this rounding."""
        return self.form.is_rounded

    @property
    def is_scaled(self) -> bool:
        """Whether it is codes times a scale; otherwise it is only the codes, minus a zero point or not."""
        return self.form.scale is not None

    @property
    def has_offset(self) -> bool:
        """Whether the product is more than a multiple of a sum of codes minus a zero point."""
        return self.form.offset is not None or not self.has_code_zero_point

    @property
    def has_offset_of_groups(self) -> bool:
        """Whether the groups of a row have different offsets; a zero point that is no code gives a scaled one."""
        params = [self.form.offset] if self.has_code_zero_point else self.form.params
        return self.groups > 1 and any(param is not None and param.block for param in params)


def activation_of(
    form: Affine, values: Values, *, groups: int = 1, parts: int = 1, is_image: bool = False, depth: int = -1
) -> Activation:
    """Returns an affine form as an activation.

    Args:
        form: The form of a float32 value.
        values: The bounds of the model's values.
        groups: The number of scales for each row; see :func:`group_size_of`.
        parts: The number of equal parts into which the product cuts each group.
        is_image: Whether it is that of a convolution. A sample is then NaN if one of its elements is.
        depth: The axis along which the product adds, negative. Its numbers are those of the product's rows.

    Raises:
        Unconverted: The value is not float32, or a number is not known to belong to rows or groups.
    """
    has_marks_of_rows = is_image or _has_marks_of_its_rows(form, form.value, depth=depth)
    form = _checked(form, values)
    form, quotient, may_be_nan = _with_mark(form, values, is_image=is_image, has_marks_of_rows=has_marks_of_rows)
    if form.nan is not None and has_marks_of_rows and not is_image and form.scale is not None:
        form = replace(form, scale=combined("Add", form.scale, like(form.nan, form.scale)), nan=None)
    number, is_code = _zero_point_of(form, values)
    found = Activation(form, groups, parts, number, is_code, may_be_nan, quotient)
    if (
        form.zero_point is not None
        and quotient is None
        and form.scale is not None
        and _is_of_infinite_range(form.scale)
    ):
        # Codes of finite numbers are the zero point: the model adds infinity * 0, but the sum of codes need not be 0.
        infinite = combined("Add", form.scale, form.scale.of("Sub", form.scale.term))
        found = replace(found, form=replace(form, scale=infinite))
    if found.has_offset and form.is_rounded:
        raise Unconverted(Reason.OFFSET_ROUNDED)
    return found


def _checked(form: Affine, values: Values) -> Affine:
    """Returns a form with as many zero points as scales, which a product can have as its activation.

    Raises:
        Unconverted: It cannot.
    """
    if not all(param.is_of_rows for param in form.params):
        raise Unconverted(Reason.ACTIVATION_CHANNELS)
    if form.scale is None and form.mark is not None and _has_nan(form, values):  # the mark makes it NaN
        form = replace(form, scale=Param(np.ones((), np.float32)))
    form = _with_runs(form)
    if form.divisor is not None and not _is_scaled_by(form, form.divisor):
        raise Unconverted(Reason.NAN_CODES)
    if form.value.dtype not in (ir.DataType.FLOAT, None):
        raise Unconverted(Reason.ACTIVATION_TYPE, dtype=str(form.value.dtype).lower())
    if len({param.block for param in form.params if not param.is_one}) > 1:
        raise Unconverted(Reason.ACTIVATION_SCALES)
    return form


def _with_mark(
    form: Affine, values: Values, *, is_image: bool, has_marks_of_rows: bool
) -> tuple[Affine, Quotient | None, bool]:
    """Returns a form whose scale is NaN where the model's row is; what its codes are rounded from, if some of a row may
    be NaN; and whether codes may still be NaN.

    Raises:
        Unconverted: It is not known where codes are NaN.
    """
    may_be_nan = _has_nan(form, values) or _has_nan_zero_points(form, values)
    is_marked = form.mark is not None and form.scale is not None and form.quotient is not None
    if may_be_nan and is_marked and not has_marks_of_rows:
        return form, form.quotient, False
    marked_form = _with_marked_scale(form, values, is_image=is_image) if may_be_nan else None
    if marked_form is not None:
        return marked_form, None, False
    if may_be_nan and (form.is_rounded or values.known(form.root).overflows):
        raise Unconverted(Reason.NAN_CODES)
    if not _may_be_infinite(form, values):
        return form, None, may_be_nan
    assert form.mark is not None
    quotient = None if has_marks_of_rows else form.quotient
    if quotient is None and form.scale is not None:
        form = replace(form, scale=combined("Add", form.scale, like(form.mark, form.scale)), mark=None)
    return form, quotient, may_be_nan


def _zero_point_of(form: Affine, values: Values) -> tuple[int | None, bool]:
    """Returns the zero point, if it is a constant that is a code, else None; and whether it is known to be a code."""
    if form.zero_point is None:
        return None, True
    known = _known(form.zero_point.term, values)
    is_code = known.fits(-form.shift, 255 - form.shift)
    return int(known.low) if is_code and known.low == known.high else None, is_code


def _with_runs(form: Affine) -> Affine:
    """Returns a form with as many zero points as scales, if there are several, each for adjacent elements.

    Raises:
        Unconverted: It is not known how to repeat them.
    """
    several = [each for each in (form.scale, form.zero_point) if each is not None and not each.is_one]
    last = max((-2 if each.axes is None else max(each.axes, default=-2) for each in several), default=-2)

    def as_runs(name: str, param: Param) -> Param | None:
        found = param.as_runs(form.value.shape, form.codes, last)
        if found is None and name != "nan":
            raise Unconverted(Reason.ACTIVATION_SCALES)
        return found

    return form.mapped(form.value, as_runs)


def _has_marks_of_its_rows(form: Affine, of: ir.Value, later: Sequence[Rearrangement] = (), depth: int = -1) -> bool:
    """Returns whether marks are known to belong to rows of a value, and to all elements that they are computed from.

    Args:
        form: The form of the value, or of a part of a Concat.
        of: The value.
        later: What moves the form's codes from the Concat on.
        depth: The axis along which the elements of a row are.
    """
    if form.quotient is None:
        return False
    if depth != -1:
        rank, number = rank_of(form.root), form.quotient.number
        is_whole = number.axes is not None and rank is not None and number.axes == lead(rank, 0) - {depth}
        return is_whole and number.rank == rank and not form.moves
    shape, axes = form.quotient.x.shape, form.quotient.number.axes
    if axes is not None and not (shape and all(axis in axes or shape[axis] == 1 for axis in lead(len(shape), -1))):
        return False
    moves = [*form.moves, *later]
    selections = [i for i, move in enumerate(moves) if move.node.op_type in SELECTING]
    if not _are_as_long(of, form.root) or not all(map(_keeps_rows, moves[: max(selections, default=-1) + 1])):
        return False
    return all(_has_marks_of_its_rows(part, of, moves[i:]) for i, move in enumerate(form.moves) for part in move.others)


def _keeps_rows(move: Rearrangement) -> bool:
    """Returns whether each row of the input is known to be in a row of the output, with all of its elements."""
    node, before, after = move.node, move.node.inputs[move.data], move.node.outputs[move.output]
    rank = None if before is None else rank_of(before)
    if not rank or not _are_as_long(after, before):
        return False
    if node.op_type == "Gather":  # it may repeat some elements of a row, and leave out others
        return node.attributes.get_int("axis", 0) % rank != rank - 1
    if node.op_type == "Transpose":
        return node.attributes.get_ints("perm", range(rank)[::-1])[-1] == rank - 1
    assert before is not None
    return node.op_type not in RESHAPES or _are_as_long(before, after)


def _are_as_long(value: ir.Value, other: ir.Value | None) -> bool:
    """Returns whether the rows of a value are known to be as long as those of another one, or longer."""
    if other is None or value.shape is None or other.shape is None or not len(value.shape) or not len(other.shape):
        return False
    dim, least = value.shape[-1], other.shape[-1]
    return dim >= least if isinstance(dim, int) and isinstance(least, int) else is_equal(dim, least)


def _has_nan(form: Affine, values: Values) -> bool:
    """Returns whether codes may be NaN when they are multiplied by the scale: integers are not."""
    return form.divisor is None and has_nan_codes(form, values)


def _has_nan_zero_points(form: Affine, values: Values) -> bool:
    """Returns whether zero points that stay floats may be NaN."""
    zero = form.zero_point
    return zero is not None and dtype_of(zero.term) == ir.DataType.FLOAT and not _known(zero.term, values).is_regular


def _with_marked_scale(form: Affine, values: Values, *, is_image: bool) -> Affine | None:
    """Returns a form whose scale is NaN where the model's row is, since codes or zero points are not finite; or None.

    Codes within bounds have a mark. Others are not finite where the divisor of x is 0 or infinite. None if the scale is
    that divisor. Another scale may be 0 where the divisor is not, such as 1 / (127 / r) for r near 1e-41.

    Raises:
        Unconverted: It is not known in which rows codes within bounds are NaN.
    """
    if form.scale is None:
        return None
    may_be_nan = _has_nan(form, values)
    if not may_be_nan or form.mark is not None:
        marks = [form.mark] if may_be_nan else []
        if marks and form.mark is not None and not is_image and is_bounded(form.scale):
            marks.append(of_largest(form.mark))
        if form.zero_point is not None and _has_nan_zero_points(form, values):
            marks.append(form.zero_point.of("Mul", ZERO))
        scale = form.scale
        for mark in marks:
            scale = scale if mark is None else combined("Add", scale, like(mark, scale))
        return replace(form, scale=scale, mark=None)
    if has_bounded_codes(form, values):
        raise Unconverted(Reason.NAN_CODES)
    quotient = form.quotient
    if quotient is not None and not form.moves and quotient.node.op_type == "Div" and quotient.number.is_of_rows:
        number = quotient.number.term
        if unmoved(form.scale.term) is unmoved(number):
            return None  # the scale is 0 where the quotient is not finite
        is_whole = not isinstance(number, ir.Value) or math.isinf(all_bounds_of(number).most)
        mark = like(quotient.limits(is_whole=is_whole), form.scale)
        return replace(form, scale=combined("Add", form.scale, mark))
    divisor = divisor_of(form.root, values)
    if divisor is None or not isinstance(form.scale.term, Op):
        return None
    term = marked(form.scale.term, divisor) if math.isinf(all_bounds_of(divisor).most) else None
    return None if term is None else replace(form, scale=replace(form.scale, term=term))


def _is_of_infinite_range(scale: Param) -> bool:
    """Returns whether the model computes a scale for each row by nodes of its own, infinite where the range is."""
    found = None if scale.is_one or is_bounded(scale) else range_of(scale)
    return found is not None and producer_of(all_bounds_of(found.value).value, *_RANGES) is not None


def _may_be_infinite(form: Affine, values: Values) -> bool:
    """Returns whether codes may be infinite although their scale is finite, since it is bounded.

    Raises:
        Unconverted: Such codes are possible, and it is not known in which rows.
    """
    if form.root.dtype != ir.DataType.FLOAT or form.scale is None or has_bounded_codes(form, values):
        return False
    if not values.known(form.root).fits(-form.shift, 255 - form.shift) and not _is_proven_where_finite(form):
        raise Unconverted(Reason.CODES_NOT_PROVEN)
    scale = scaled_value(unmoved(form.scale.term))
    if scale is not None and not scale.is_inverse and math.isinf(all_bounds_of(scale.value).most):
        return False  # an infinite range gives an infinite scale
    if form.mark is None:
        raise Unconverted(Reason.CODES_NOT_PROVEN)
    return True


def _is_proven_where_finite(form: Affine) -> bool:
    """Returns whether codes that are infinite where an inverse scale is have a mark, or are divided by it: the
    model's row is NaN.
    """
    if form.mark is not None and form.quotient is not None and form.quotient.is_exact:
        return True
    quotient = quotient_of(form.root)
    if quotient is None or quotient.op_type != "Mul" or form.scale is None:
        return True
    for each in quotient.inputs:
        scale = None if each is None else scaled_value(form.scale.term, until=each)
        if scale is not None and each is not None and unreshaped(scale.value) is unreshaped(each) and scale.is_inverse:
            return True
    return False


def _is_scaled_by(form: Affine, divisor: ir.Value) -> bool:
    """Returns whether codes that are not numbers are multiplied by 0: by the divisor of the quotient."""
    if form.scale is None:
        return False
    scale, same = scaled_value(form.scale.term, until=divisor), scaled_value(divisor)
    if scale is None or same is None:
        return False
    if unreshaped(scale.value) is unreshaped(divisor):
        return not scale.is_inverse
    is_twice = unreshaped(scale.value) is unreshaped(same.value)  # the divisor is computed twice
    is_same = scale.is_inverse == same.is_inverse and math.isclose(scale.number, same.number, rel_tol=_ROUNDINGS)
    return is_twice and is_same


def group_size_of(form: Affine, depth: int) -> int:
    """Returns the number of adjacent elements of a row that share a scale; 0 if all elements of a row do.

    Args:
        form: The form of the activation.
        depth: The length of a row.

    Raises:
        Unconverted: The groups do not divide a row, or QuantizedMatMul has no groups of this size.
    """
    group_size = max((param.block for param in form.params), default=0)
    if group_size in (0, depth):
        return 0
    if depth % group_size:
        raise Unconverted(Reason.GROUPS_DO_NOT_DIVIDE, group_size=group_size, depth=depth)
    if group_size % GROUP_UNIT:
        raise Unconverted(Reason.GROUPS_UNIT, group_size=group_size, unit=GROUP_UNIT)
    return group_size


def _known(term: Term, values: Values) -> Interval:
    """Returns what is known of the elements of a zero point."""
    if isinstance(term, np.ndarray):
        return Interval(float(term.min()), float(term.max()), bool((term == np.rint(term)).all()))
    if isinstance(term, ir.Value):
        return values.known(term)
    if not isinstance(term, Op):
        return Interval(0, 255, True)
    if term.op_type == "Mul" and any(isinstance(each, np.ndarray) and not each.any() for each in term.inputs):
        return Interval(0, 0, True)
    count = {"Add": 2, "Sub": 2, "Concat": len(term.inputs)}.get(term.op_type, 1)
    inputs = [_known(each, values) for each in term.inputs[:count]]
    if term.op_type == "Concat":
        low, high = min(each.low for each in inputs), max(each.high for each in inputs)
        is_regular = all(each.is_regular for each in inputs)
        return Interval(low, high, all(each.is_integer for each in inputs), is_regular)
    if term.op_type == "Neg":
        return Interval(-inputs[0].high, -inputs[0].low, inputs[0].is_integer)
    if term.op_type in ("Add", "Sub"):
        a, b = inputs
        low, high = (a.low + b.low, a.high + b.high) if term.op_type == "Add" else (a.low - b.high, a.high - b.low)
        return Interval(low, high, a.is_integer and b.is_integer)
    is_moved = term.op_type in NODE_MOVES | {"Cast"}
    return inputs[0] if is_moved else Interval()
