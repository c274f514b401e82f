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
from typing import Any

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import all_bounds_of
from ..analysis.inference import Facts
from ..analysis.magnitudes import MIN_DIVISOR
from ..analysis.shapes import REDUCES_BY_INPUT, unreshaped
from ..analysis.types import CODE_TYPES
from ..analysis.values import Values
from ..reasons import Reason, Unconverted
from .affine_form import Affine, is_bounded, scaled_value
from .quotients import ParamOf, Quotient, divisor_of, quotient_of, rounded_quotient
from .terms import ZERO, Op, Param, Term, combined, dtype_of, interval_of, lead, like, rank_of, unmoved

_ROUNDINGS = 2.0**-22  # of a number and of its inverse
_add = functools.partial(combined, "Add")


def has_nan_codes(form: Affine, values: Values) -> bool:
    """Returns whether codes that stay floats may be NaN: a quotient of zeros."""
    return form.root.dtype not in CODE_TYPES and not values.known(form.root).is_regular


def has_bounded_codes(form: Affine, values: Values) -> bool:
    """Returns whether codes fit 8 bits for any x, also an infinite one."""
    return values.of_any_inputs.known(form.root).fits(-form.shift, 255 - form.shift)


def with_marks(form: Affine, codes: ir.Value, param_of: ParamOf, values: Values, facts: Facts) -> Affine:
    """Returns a form with the mark of codes that are floats.

    Args:
        form: The form.
        codes: The codes.
        param_of: Returns a value as a number for rows of another value, or for all of it; None if it is none.
        values: The bounds of the model's values.
        facts: Types and shapes.
    """
    found = rounded_quotient(codes, param_of, values, facts) if codes.dtype == ir.DataType.FLOAT else None
    if found is None:
        return replace(form, mark=None, nan=None, quotient=None)
    known, number = values.of_any_inputs.known(codes), found.number.term
    has_bounds = known.high - known.low <= 255
    divisor = values.known(number) if isinstance(number, ir.Value) else None
    is_never_0 = divisor is not None and divisor.low >= MIN_DIVISOR
    if found.is_division and not (has_bounds or known.is_regular or is_never_0):
        is_whole = not isinstance(number, ir.Value) or math.isinf(all_bounds_of(number).most)
        return replace(form, mark=found.limits(is_whole=is_whole), nan=None, quotient=None)
    found = replace(found, is_exact=found.is_exact or not has_bounds)
    mark = nan = None
    if not known.is_regular:
        reduction = "ReduceMax" if found.is_exact else "ReduceMin"
        mark = found.marks(_magnitude(reduction, found.x, found.number, facts))
    else:
        nan = _nan_mark(found.x, found.number, facts)
        mark = None if has_bounds else _magnitude("ReduceMax", found.x, found.number, facts).of("Mul", ZERO)
    return replace(form, mark=mark, nan=nan, quotient=found)


def marked(form: Affine, values: Values, *, is_image: bool, is_of_rows: bool) -> tuple[Affine, Quotient | None]:
    """Returns a form whose scale has the mark; and what codes are rounded from, if rows that share it need their own.

    Args:
        form: The form of an activation.
        values: The bounds of the model's values.
        is_image: Whether it is that of a convolution. A sample is then NaN if one of its elements is.
        is_of_rows: Whether the mark is known to belong to rows, and to all elements that it is computed from.

    Raises:
        Unconverted: It is not known where codes are not finite.
    """
    has_nan = form.divisor is None and has_nan_codes(form, values)
    is_needed = has_nan or _may_be_infinite(form, values)
    if form.scale is None and form.mark is not None and has_nan:
        form = replace(form, scale=Param(np.ones((), np.float32)))
    if form.scale is None:
        if has_nan:
            raise Unconverted(Reason.NAN_CODES)
        return form, None
    if has_nan and form.mark is None:
        divisor = divisor_of(form.root, values)
        if divisor is None or has_bounded_codes(form, values) or not is_scaled_by(form, divisor) or form.is_rounded:
            raise Unconverted(Reason.NAN_CODES)
        scale = like(form.scale, Param(ZERO))  # what divides x, or a multiple of it
        return replace(form, scale=_add(scale, combined("Div", Param(ZERO), scale))), None
    is_of_numbers = all(part.quotient is None for part in form.parts)
    if is_needed and not (is_of_numbers or is_of_rows):
        return form, form.quotient
    marks = []
    if form.mark is not None and is_needed:
        marks.append(form.mark)
        if has_nan and is_of_rows and not is_image and is_bounded(form.scale):
            marks.append(_of_largest(form.mark))
    if form.nan is not None and is_of_rows and not is_image:
        marks.append(form.nan)
    zero = form.zero_point
    if zero is not None and dtype_of(zero.term) == ir.DataType.FLOAT and not interval_of(zero.term, values).is_regular:
        marks.append(zero.of("Mul", ZERO))
    return replace(form, scale=functools.reduce(_add, (like(each, form.scale) for each in marks), form.scale)), None


def is_scaled_by(form: Affine, divisor: ir.Value) -> bool:
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


def _may_be_infinite(form: Affine, values: Values) -> bool:
    """Returns whether codes may be infinite although their scale is finite, since it is bounded.

    Raises:
        Unconverted: Such codes are possible, and it is not known in which rows.
    """
    if form.root.dtype != ir.DataType.FLOAT or form.scale is None or has_bounded_codes(form, values):
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
    return _reduced("ReduceMin", numbers, x, like, facts).of("Reciprocal").of("Mul", ZERO)


def _of_largest(mark: Param) -> Param:
    """Returns the mark that the largest magnitudes have instead of the smallest ones: infinity times 0 is NaN, too."""

    def replaced(term: Term) -> Term:
        if not isinstance(term, Op):
            return term
        name = "ReduceMax" if term.op_type == "ReduceMin" else term.op_type
        return replace(term, op_type=name, inputs=tuple(map(replaced, term.inputs)))

    return replace(mark, term=replaced(mark.term))


def _magnitude(reduction: str, x: ir.Value, like: Param, facts: Facts) -> Param:
    """Returns the smallest or largest magnitude among the elements of x that share a number."""
    return _reduced(reduction, Op("Abs", (x,), ir.DataType.FLOAT), x, like, facts)


def _reduced(reduction: str, of: Term, x: ir.Value, like: Param, facts: Facts) -> Param:
    """Returns a reduction of the elements of a term that share a number, as those of x do."""
    rank = rank_of(x)
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
    return Param(term, like.axes, 0 if like.is_one else rank)
