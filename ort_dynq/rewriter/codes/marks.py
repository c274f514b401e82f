"""Marks: what a scale gets so that a row is not finite where the model's is, although its codes are uint8.

The mark is NaN for these rows and 0 for the others, and is added to the scale. The model's codes are floats before they
are cast, so they tell: a row needs the mark where one of them is NaN or infinite. The quotient that they are rounded
from (quotients.py) says where, without a pass over the codes:

- Codes without bounds are not finite where the quotient of the largest magnitude is not. If only the divisor decides,
  the mark is 0 / divisor, which holds for all rows that share it.
- Codes within bounds are NaN where the quotient of the smallest magnitude is: 0 / 0. Others by 0 are the bounds.
- NaN of x make NaN of codes, but a range that ONNX Runtime reduces ignores most of them: min(x == x), inverted and
  times 0. The kernel that finds the range of x also finds that. It is left out where it would cost a pass.

Rows that share a number have marks of their own only in the runs in which the number lets codes be NaN: see codes.py.

Example: the mark of Clip(Round(x / s), -128, 127) is Clip(min|x| / s, 0, 1) * 0, which is NaN for x = [0, 3], s = 0.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import all_bounds_of
from ..analysis.inference import Facts
from ..analysis.magnitudes import MIN_DIVISOR
from ..analysis.values import Values
from ..reasons import Reason, Unconverted
from .affine_form import Affine, is_bounded, scaled_value
from .quotients import ParamOf, Quotient, divisor_of, quotient_of, rounded_quotient
from .terms import ZERO, Op, Param, combined, dtype_of, interval_of, lead, like, rank_of, reduced, unmoved

_add = functools.partial(combined, "Add")


def with_marks(form: Affine, codes: ir.Value, param_of: ParamOf, values: Values, facts: Facts) -> Affine:
    """Returns a form with the mark of its codes, if they are floats; `param_of` is that of quotients."""
    form = replace(form, mark=None, nan=None, quotient=None)
    found = rounded_quotient(codes, param_of, values, facts) if codes.dtype == ir.DataType.FLOAT else None
    if found is None:
        return form
    known, number = values.of_any_inputs.known(codes), found.number.term
    has_bounds = known.high - known.low <= 255
    divisor = values.known(number) if isinstance(number, ir.Value) else None
    is_never_0 = divisor is not None and divisor.low >= MIN_DIVISOR
    if found.is_division and not (has_bounds or known.is_regular or is_never_0):
        is_whole = not isinstance(number, ir.Value) or math.isinf(all_bounds_of(number).most)
        return replace(form, mark=found.limits(is_whole=is_whole))
    found = replace(found, is_exact=found.is_exact or not has_bounds)
    magnitude = _magnitude("ReduceMax" if found.is_exact else "ReduceMin", found.x, found.number, facts)
    if not known.is_regular:
        return replace(form, mark=found.marks(magnitude), quotient=found)
    mark = None if has_bounds else magnitude.of("Mul", ZERO)
    return replace(form, mark=mark, nan=_nan_mark(found.x, found.number, facts), quotient=found)


def marked(form: Affine, values: Values, *, is_image: bool, is_of_rows: bool) -> tuple[Affine, Quotient | None]:
    """Returns a form with the mark in its scale; and what codes are rounded from, if rows that share it need their own.

    Args:
        form: The form of an activation.
        values: The bounds of the model's values.
        is_image: Whether it is that of a convolution. A sample is then NaN if one of its elements is.
        is_of_rows: Whether the mark is known to belong to rows, and to all elements that it is computed from.

    Raises:
        Unconverted: It is not known where codes are not finite.
    """
    has_nan = form.divisor is None and form.may_have_nan_codes(values)
    is_needed = has_nan or _may_be_infinite(form, values)
    if has_nan and form.scale is None and form.mark is not None:
        form = replace(form, scale=Param(np.ones((), np.float32)))
    if has_nan and form.scale is None:
        raise Unconverted(Reason.NAN_CODES)
    if form.scale is None:
        return form, None
    if has_nan and form.mark is None:
        divisor = divisor_of(form.root, values)
        if divisor is None or form.has_bounded_codes(values) or not form.is_scaled_by(divisor) or form.is_rounded:
            raise Unconverted(Reason.NAN_CODES)
        scale = like(form.scale, Param(ZERO))  # what divides x, or a multiple of it
        return replace(form, scale=_add(scale, combined("Div", Param(ZERO), scale))), None
    if is_needed and not is_of_rows and any(part.quotient is not None for part in form.parts):
        return form, form.quotient
    marks = []
    if form.mark is not None and is_needed:
        marks.append(form.mark)
        if has_nan and is_of_rows and not is_image and is_bounded(form.scale):
            marks.append(form.mark.with_operator("ReduceMax", instead="ReduceMin"))  # infinity * 0 is NaN, too
    if form.nan is not None and is_of_rows and not is_image:
        marks.append(form.nan)
    zero = form.zero_point
    if zero is not None and dtype_of(zero.term) == ir.DataType.FLOAT and not interval_of(zero.term, values).is_regular:
        marks.append(zero.of("Mul", ZERO))
    return replace(form, scale=functools.reduce(_add, (like(each, form.scale) for each in marks), form.scale)), None


def _may_be_infinite(form: Affine, values: Values) -> bool:
    """Returns whether codes may be infinite although their scale is finite, since it is bounded.

    Raises:
        Unconverted: Such codes are possible, and it is not known in which rows.
    """
    if form.root.dtype != ir.DataType.FLOAT or form.scale is None or form.has_bounded_codes(values):
        return False
    quotient = quotient_of(form.root)
    is_proven = values.known(form.root).fits(-form.shift, 255 - form.shift)
    if not is_proven and form.mark is None and quotient is not None and quotient.op_type == "Mul":
        raise Unconverted(Reason.CODES_NOT_PROVEN)  # an inverse scale may be infinite
    scale = scaled_value(unmoved(form.scale.term))
    if scale is not None and not scale.is_inverse and math.isinf(all_bounds_of(scale.value).most):
        return False  # an infinite range gives an infinite scale
    if form.mark is None:
        raise Unconverted(Reason.CODES_NOT_PROVEN)
    return True


def scale_of_estimate(scale: Param | None, x: ir.Value, facts: Facts) -> Param | None:
    """Returns the scale of y in x + (y - x), NaN for rows of x that are not finite, if they do not share a number."""
    rank = rank_of(x)
    if scale is None or (scale.axes is not None and (rank is None or scale.axes != lead(rank, -1))):
        return scale
    marks = [_nan_mark(x, scale, facts)]
    marks += [_magnitude("ReduceMax", x, scale, facts).of("Mul", ZERO)] if is_bounded(scale) else []
    return functools.reduce(_add, filter(None, marks), scale)


def _nan_mark(x: ir.Value, like: Param, facts: Facts) -> Param | None:
    """Returns NaN if one of the elements of x that share a number is, else 0; None unless x is reduced to its range."""
    uses = [use.node for use in x.uses()]
    uses += [use.node for node in uses if node.op_type == "Abs" for use in node.outputs[0].uses()]
    if not any(node.op_type == "ReduceMax" for node in uses):
        return None
    numbers = Op("Cast", (Op("Equal", (x, x), ir.DataType.BOOL),), ir.DataType.FLOAT, (("to", int(ir.DataType.FLOAT)),))
    return reduced("ReduceMin", numbers, x, like, facts).of("Reciprocal").of("Mul", ZERO)


def _magnitude(reduction: str, x: ir.Value, like: Param, facts: Facts) -> Param:
    """Returns the smallest or largest magnitude among the elements of x that share a number."""
    return reduced(reduction, Op("Abs", (x,), ir.DataType.FLOAT), x, like, facts)
