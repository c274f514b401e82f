"""Marks of rows that are not finite in the model, although uint8 codes, which have no NaN and no infinity, are.

1. Codes within bounds, no epsilon: a Clip makes the quotient of a number by 0 a code, but not that of 0 by 0. The
   model's row is NaN if one of its elements is 0; else it consists of the lowest and the highest code.
2. Codes without bounds, which fit 8 bits because of their range: if x is infinite, so are the model's codes, but the
   scale is not if the range is bounded.
3. As 1, but without bounds after a NaN, or rounded by a straight-through estimator q + (round(q) - q): they are not
   finite wherever the quotient is not.
4. Codes of NaN: a range that ONNX Runtime reduces ignores most of them, and a guard may hide NaN of the range.

The mark is NaN for these rows and 0 for the others. The scale of the product is the sum of the scale and the mark.

The first mark costs one more reduction of x, as in the example; the second one of Round(x / (Clip(r, 1e-5) / 127)) is
r * 0. It is one more reduction of x too if r is infinite in other cases than x is, as max(max|x|, an input) may be.

The fourth mark is min(x == x), inverted and times 0. It costs nothing where x is finite: the kernel that finds the
range of x also finds that out. It is left out where it would cost a pass: if x is not reduced to its range, or beside
the first or the third mark, which is NaN if the first element of a row is.

Example: the mark of Clip(Round(x / s), -128, 127) is Clip(min|x| / s, 0, 1) * 0, which is NaN for x = [0, 3], s = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import all_bounds_of, constant_operand, magnitude_beside_sign
from ..analysis.constants import constant_scalar
from ..analysis.inference import Facts
from ..analysis.limits import CHAIN, VISITED
from ..analysis.magnitudes import MIN_DIVISOR, difference_of_minimum, is_clamped_to
from ..analysis.nodes import producer_of
from ..analysis.shapes import REDUCES_BY_INPUT, before_split, unreshaped
from ..analysis.standard import ARITHMETIC, CHOOSING, RESHAPES, SCALING, SIGNS
from ..analysis.types import CODE_TYPES
from ..analysis.values import Values
from .affine_form import ROUNDINGS, Affine, divisor_of, is_bounded, scaled_value
from .terms import NODE_MOVES, ZERO, Op, Param, Quotient, Term, combined, dtype_of, lead, rank_of

_ParamOf = Callable[[ir.Value, ir.Value], Param | None]


def has_nan_codes(form: Affine, values: Values) -> bool:
    """Returns whether codes that stay floats may be NaN: a quotient of zeros."""
    return form.root.dtype not in CODE_TYPES and not values.known(form.root).is_regular


def has_bounded_codes(form: Affine, values: Values) -> bool:
    """Returns whether codes fit 8 bits for any x, also an infinite one."""
    return values.of_any_inputs.known(form.root).fits(-form.shift, 255 - form.shift)


def with_marks(form: Affine, codes: ir.Value, param_of: _ParamOf, values: Values, facts: Facts) -> Affine:
    """Returns a form with the marks of codes that are floats.

    Args:
        form: The form.
        codes: The codes.
        param_of: Returns a value as a number for rows of another value, or for all of it; None if it is none.
        values: The bounds of the model's values.
        facts: Types and shapes.
    """
    found = rounded_quotient(codes, param_of, values, facts) if codes.dtype == ir.DataType.FLOAT else None
    if found is None:
        return replace(form, mark=None, quotient=None, nan=None)
    mark, quotient = _mark_of(codes, found, param_of, values, facts)
    nan = _nan_mark(found.x, found.number, facts) if values.of_any_inputs.known(codes).is_regular else None
    return replace(form, mark=mark, quotient=quotient, nan=nan)


def _nan_mark(x: ir.Value, like: Param, facts: Facts) -> Param | None:
    """Returns NaN if one of the elements of x that share a number is, else 0; None unless x is reduced to its range."""
    uses = [use.node for use in x.uses()]
    uses += [use.node for node in uses if node.op_type == "Abs" for use in node.outputs[0].uses()]
    if not any(node.op_type == "ReduceMax" for node in uses):
        return None
    numbers = Op("Cast", (Op("Equal", (x, x), ir.DataType.BOOL),), ir.DataType.FLOAT, (("to", int(ir.DataType.FLOAT)),))
    return _reduced("ReduceMin", numbers, x, like, facts).of("Reciprocal").of("Mul", ZERO)


def _mark_of(
    codes: ir.Value, found: Quotient, param_of: _ParamOf, values: Values, facts: Facts
) -> tuple[Param | None, Quotient]:
    """Returns NaN for the rows of finite x and of infinite x with codes that are not finite, and 0 for the others.

    None if all such codes are finite, or these rows are not known; and what codes are rounded from.
    """
    known = values.of_any_inputs.known(codes)
    is_bounded = known.high - known.low <= 255
    if known.is_regular and is_bounded:
        return None, found
    is_divided = found.node.op_type == "Div"
    range_ = _range_of(found.number.term, found.x, is_divisor=is_divided) if known.is_regular else None
    if range_ is not None:
        mark = param_of(range_, found.x)
        is_float = mark is not None and dtype_of(mark.term) == ir.DataType.FLOAT
        found = replace(found, is_exact=True)
        return (mark.of("Mul", ZERO), found) if mark is not None and is_float else (None, found)
    if is_divided and not is_bounded and not _is_finite_factor(found.number.term, values, is_divisor=True):
        return None, found  # the scale of these rows shows them
    found = replace(found, is_exact=found.is_exact or not is_bounded)
    magnitude = _magnitude("ReduceMax" if found.is_exact else "ReduceMin", found.x, found.number, facts)
    return found.marks(magnitude), found


def of_largest(mark: Param) -> Param:
    """Returns the mark that the largest magnitudes have instead of the smallest ones: infinity times 0 is NaN, too."""

    def replaced(term: Term) -> Term:
        if not isinstance(term, Op):
            return term
        name = "ReduceMax" if term.op_type == "ReduceMin" else term.op_type
        return replace(term, op_type=name, inputs=tuple(map(replaced, term.inputs)))

    return replace(mark, term=replaced(mark.term))


def marked(term: Term, divisor: ir.Value) -> Term | None:
    """Returns a product that has a divisor as a factor, NaN where that is 0 or infinite; None if it is no factor."""
    if isinstance(term, ir.Value):
        if term is not divisor:
            return None
        nothing = Op("Mul", (term, np.zeros((), dtype_of(term).numpy())), dtype_of(term))
        return Op("Add", (term, Op("Div", (nothing, term), dtype_of(term))), dtype_of(term))
    for i, each in enumerate(term.inputs) if isinstance(term, Op) and term.op_type in SCALING | NODE_MOVES else ():
        if (found := marked(each, divisor)) is not None and isinstance(term, Op):
            return replace(term, inputs=(*term.inputs[:i], found, *term.inputs[i + 1 :]))
    return None


def scale_of_estimate(scale: Param | None, x: ir.Value, facts: Facts) -> Param | None:
    """Returns the scale of y in x + (y - x), NaN for rows of x that are not finite, if they do not share a number."""
    rank = rank_of(x)
    if scale is None or (scale.axes is not None and (rank is None or scale.axes != lead(rank, -1))):
        return scale
    marks = [_nan_mark(x, scale, facts)]
    marks += [_magnitude("ReduceMax", x, scale, facts).of("Mul", ZERO)] if is_bounded(scale) else []
    for mark in marks:
        scale = scale if mark is None else combined("Add", scale, mark)
    return scale


def undefined_divisor(codes: ir.Value, param_of: _ParamOf, values: Values, facts: Facts) -> ir.Value | None:
    """Returns what codes are divided by, if they are not finite only where that is 0 or not finite; or None."""
    found = rounded_quotient(codes, param_of, values, facts)
    divisor = None if found is None or found.node.op_type != "Div" else found.number.term
    if found is None or not isinstance(divisor, ir.Value) or not values.known(found.x).is_regular:
        return None
    for each in found.zero_points:
        zero_point = each.term if isinstance(each.term, ir.Value) else None
        if zero_point is None:
            return None
        if not values.known(zero_point).is_regular:
            other = divisor_of(zero_point, values)
            if other is None or unreshaped(other) is not unreshaped(divisor):
                return None
    return divisor


def rounded_quotient(codes: ir.Value, param_of: _ParamOf, values: Values, facts: Facts) -> Quotient | None:
    """Returns the quotient that codes are rounded from; None if they are computed in another way."""
    value, zero_points, is_estimated = codes, list[Param](), False
    for _ in CHAIN.steps():
        if (y := values.estimated_exactly(value)) is not None:
            value, is_estimated = y, True
            continue
        if (bounded := all_bounds_of(value)).value is not value:
            value = bounded.value
            continue
        node = (value := before_split(value)).producer()
        before = None if node is None or not node.inputs else node.inputs[0]
        if node is None or before is None:
            return None
        is_float = node.op_type == "Cast" and before.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)
        if is_float or node.op_type in ROUNDINGS | SIGNS | {"Identity"}:
            value = before
            continue
        if (magnitude := magnitude_beside_sign(node)) is not None:
            value = magnitude
            continue
        if (beside := _beside_condition(node)) is not None:  # half up: trunc(v) + Cast(v - trunc(v) >= 1/2)
            value = beside
            continue
        pair = _number_beside(node, param_of)
        if pair is None:
            return None
        value, number = pair
        if isinstance(number.term, ir.Value) and facts.is_constant(number.term):
            continue
        if node.op_type not in ("Add", "Sub"):
            return Quotient(node, value, number, tuple(zero_points), is_estimated)
        zero_points.append(number)
    return None


def _is_finite_factor(term: Term, values: Values, *, is_divisor: bool) -> bool:
    """Returns whether a divisor is known not to be near 0, or a factor to be finite, unless it is NaN."""
    if not isinstance(term, ir.Value):
        return False
    known = values.known(term)
    return known.low >= MIN_DIVISOR if is_divisor else math.isfinite(known.high)


def _range_of(term: Term, x: ir.Value, *, is_divisor: bool) -> ir.Value | None:
    """Returns r, which is infinite only where x is, of x / (r / number), or of x * (number / (r + epsilon)); or None.

    The codes of an infinite x are not finite, and neither is the model's row, whatever they are multiplied by. If x is
    clamped to r, its codes are finite where r is: this r is returned with its bounds, which may make it finite.
    """
    scale = scaled_value(term)
    if scale is None or scale.is_inverse == is_divisor:
        return None
    if (limit := _limit_of(x, term)) is not None:
        return limit
    value = scale.value
    while not is_divisor and (node := producer_of(value, "Add")) is not None:
        found = constant_operand(node, commutative=True)
        if found is None or abs(found[1]) > 1:  # a larger number might make a finite range infinite
            return None
        value = found[0]
    value = all_bounds_of(value).value
    if not is_divisor and producer_of(value, "ReduceMax") is None:
        return None
    return value if _is_infinite_with(value, _source_of(x)) else None


def _limit_of(x: ir.Value, term: Term) -> ir.Value | None:
    """Returns r if x is clamped to it, and a scale is r times a number, or a number divided by r; else None."""
    value = term if isinstance(term, ir.Value) else None
    for _ in CHAIN.steps():
        if value is None or is_clamped_to(x, value):
            return value
        node = producer_of(value, *RESHAPES, *SCALING, "Reciprocal")
        if node is None:
            return None
        operands = [each for each in node.inputs if constant_scalar(each) is None]
        if node.op_type in ("Mul", "Div") and len(operands) != 1:
            return None
        value = operands[0] if operands else None
    return None


def _is_infinite_with(r: ir.Value | None, source: ir.Value) -> bool:
    """Returns whether a range is computed from extremes of x, and nothing else, without bounds from above."""
    todo, seen = [r], set[ir.Value]()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        node = None if value is None else value.producer()
        if value is None or node is None or VISITED.is_passed(len(seen) + 1):
            return False
        seen.add(value)
        if node.op_type in ("ReduceMax", "ReduceMin"):
            if node.inputs[0] is None or _source_of(node.inputs[0]) is not source:
                return False
        elif node.op_type in RESHAPES | SIGNS | {"Expand", "Relu"}:
            todo.append(node.inputs[0])
        elif node.op_type not in ARITHMETIC | CHOOSING or (
            node.op_type == "Div" and constant_scalar(node.inputs[0]) is not None
        ):
            return False
        else:
            operands = [each for each in node.inputs[node.op_type == "Where" :] if constant_scalar(each) is None]
            if not operands:
                return False
            todo += operands
    return True


def _source_of(x: ir.Value) -> ir.Value:
    """Returns what x is computed from by steps that keep infinities; of a zero point's dividend, what it reduces."""
    if (reduced := producer_of(all_bounds_of(x).value, "ReduceMax", "ReduceMin")) and reduced.inputs[0] is not None:
        x = reduced.inputs[0]
    while (node := producer_of(x, *RESHAPES, *SIGNS, *SCALING, "Sub")) is not None:
        inner = node.inputs[0]
        if node.op_type == "Sub":
            inner = difference_of_minimum(node)
        elif node.op_type in ("Mul", "Div"):
            found = constant_operand(node, commutative=node.op_type == "Mul")
            inner = None if found is None or found[1] == 0 else found[0]
        if inner is None:
            return x
        x = inner
    return x


def _beside_condition(node: ir.Node) -> ir.Value | None:
    """Returns what 1 is added to, or subtracted from, where a condition holds; None for other nodes."""
    for i in (0, 1) if node.op_type in ("Add", "Sub") else ():
        cast = producer_of(node.inputs[1 - i], "Cast")
        if cast is not None and cast.inputs[0] is not None and cast.inputs[0].dtype == ir.DataType.BOOL:
            return node.inputs[i]
    return None


def _number_beside(node: ir.Node, param_of: _ParamOf) -> tuple[ir.Value, Param] | None:
    """Returns an operand of a binary node, and the other one, if that is a number for its rows, or for all."""
    for i in (0, 1) if node.op_type in ARITHMETIC else ():
        value, other = node.inputs[i], node.inputs[1 - i]
        if value is None or other is None or (node.op_type == "Div" and i):
            continue
        if (number := param_of(other, value)) is not None and dtype_of(number.term) == ir.DataType.FLOAT:
            return value, number
    return None


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
