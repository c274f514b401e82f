"""The quantized activation of a float product: its affine form, and what QuantizedMatMul and QuantizedConv take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...operators.quantized_matmul import GROUP_UNIT
from ..analysis.bounds import all_bounds_of
from ..analysis.nodes import producer_of
from ..analysis.shapes import is_equal
from ..analysis.standard import RESHAPES, SELECTING, SUMS
from ..analysis.values import Values
from ..reasons import Reason, Unconverted
from .affine_form import MARKS, Affine, Rearrangement, range_of
from .marks import marked
from .quotients import Quotient
from .terms import Param, combined, interval_of, lead, rank_of

_RANGES = SUMS | {"Max", "ReduceMax", "Where"}


@dataclass(frozen=True)
class Activation:
    """A quantized activation.

    Attributes:
        form: Its affine form.
        groups: The number of scales for each row.
        parts: The number of equal parts into which the product cuts each group.
        zero_point: The zero point, if it is a constant that is a code; else None.
        has_code_zero_point: Whether the zero point is known to be a code. Otherwise the product has an offset.
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
    is_of_rows = is_image or _has_marks_of_its_rows(form, form.value, depth=depth)
    form, quotient = marked(_checked(form, values), values, is_image=is_image, is_of_rows=is_of_rows)
    if form.scale is not None and quotient is None and form.zero_point is not None and _is_of_infinite_range(form):
        # Codes of finite numbers are the zero point: the model adds infinity * 0, but the sum of codes need not be 0.
        form = replace(form, scale=combined("Add", form.scale, form.scale.of("Sub", form.scale.term)))
    number, is_code = _zero_point_of(form, values)
    found = Activation(form, groups, parts, number, is_code, quotient)
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
    form = _with_runs(form)
    if form.divisor is not None and not form.is_scaled_by(form.divisor):
        raise Unconverted(Reason.NAN_CODES)
    if form.value.dtype not in (ir.DataType.FLOAT, None):
        raise Unconverted(Reason.ACTIVATION_TYPE, dtype=str(form.value.dtype).lower())
    if len({param.block for param in form.params if not param.is_one}) > 1:
        raise Unconverted(Reason.ACTIVATION_SCALES)
    return form


def _zero_point_of(form: Affine, values: Values) -> tuple[int | None, bool]:
    """Returns the zero point, if it is a constant that is a code, else None; and whether it is known to be a code."""
    if form.zero_point is None:
        return None, True
    known = interval_of(form.zero_point.term, values)
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
        if found is None and name not in MARKS:
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


def _is_of_infinite_range(form: Affine) -> bool:
    """Returns whether the model computes a scale for each row by nodes of its own, infinite where the range is."""
    found = None if form.scale is None or form.scale.is_one else range_of(form.scale)
    if found is None or found.is_bounded:
        return False
    return producer_of(all_bounds_of(found.value).value, *_RANGES) is not None


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
