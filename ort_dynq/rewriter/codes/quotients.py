"""The quotient that codes are rounded from, whatever bounds, zero points and estimators follow it.

So Clip(Round(Div(x, s)) + z, 0, 255) is rounded from the quotient of x and s, with the zero point z.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import all_bounds_of, constant_operand, magnitude_beside_sign
from ..analysis.inference import Facts
from ..analysis.limits import CHAIN
from ..analysis.nodes import producer_of
from ..analysis.shapes import before_split, unreshaped
from ..analysis.standard import ARITHMETIC, ROUNDING, SCALING, SIGNS, SUMS
from ..analysis.values import Values
from .terms import ZERO, Op, Param, Term, combined, dtype_of, lead, rank_of

ParamOf = Callable[[ir.Value, ir.Value], Param | None]
"""Returns a value as a number for rows of another value, or for all of it; None if it is none."""

_ONE = np.ones((), np.float32)
_STEPS = ROUNDING | SIGNS | {"Sign", "Identity"}


@dataclass(frozen=True)
class Quotient:
    """The quotient that codes are rounded from.

    Attributes:
        node: A Div or Mul.
        x: What it divides.
        number: The other operand, a number of rows, or of all of x.
        zero_points: What is added to it or to its rounding.
        is_exact: Whether codes are not finite wherever it is not: without bounds, or q + (round(q) - q). Otherwise,
            bounds make codes of infinite ones, where a number is divided by 0.
    """

    node: ir.Node
    x: ir.Value
    number: Param
    zero_points: tuple[Param, ...] = ()
    is_exact: bool = False

    @property
    def is_division(self) -> bool:
        """Whether x is divided by the number, not multiplied by it."""
        return self.node.op_type == "Div"

    def limits(self, *, is_whole: bool) -> Param:
        """Returns NaN where the number lets codes be NaN, else 0.

        Args:
            is_whole: Whether also where only codes of infinite x are NaN.
        """
        of_zero, of_infinity = combined("Div", Param(ZERO), self.number), self.number.of("Mul", ZERO)
        if self.zero_points or is_whole:
            return combined("Add", of_zero, of_infinity)
        return of_zero if self.is_division else of_infinity

    def marks(self, magnitudes: Param) -> Param:
        """Returns NaN where codes of these magnitudes of x are not finite, else 0."""
        sides = (magnitudes, self.number) if self.node.inputs[0] is self.x else (self.number, magnitudes)
        end = combined(self.node.op_type, *sides)
        marks = [(end if self.is_exact else end.of("Clip", ZERO, _ONE)).of("Mul", ZERO)]
        if self.zero_points:
            marks += [each.of("Mul", ZERO) for each in self.zero_points]  # infinite where a quotient is
            # They are the codes of an infinite scale: the row is 0 * infinity, but codes add up to any sum.
            marks.append(combined("Mul" if self.is_division else "Div", Param(ZERO), self.number))
        return functools.reduce(functools.partial(combined, "Add"), marks)

    def of_elements(self) -> Term:
        """Returns NaN for the elements of x with codes that are not finite, else 0."""
        rank = rank_of(self.x)
        magnitudes = Op("Abs", (self.x,), ir.DataType.FLOAT)
        return self.marks(Param(magnitudes, None if rank is None else lead(rank, 0), rank)).term


def rounded_quotient(codes: ir.Value, param_of: ParamOf, values: Values, facts: Facts) -> Quotient | None:
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
        if is_float or node.op_type in _STEPS:
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
        if node.op_type not in SUMS:
            return Quotient(node, value, number, tuple(zero_points), is_estimated)
        zero_points.append(number)
    return None


def _beside_condition(node: ir.Node) -> ir.Value | None:
    """Returns what 1 is added to, or subtracted from, where a condition holds; None for other nodes."""
    for i in (0, 1) if node.op_type in SUMS else ():
        cast = producer_of(node.inputs[1 - i], "Cast")
        if cast is not None and cast.inputs[0] is not None and cast.inputs[0].dtype == ir.DataType.BOOL:
            return node.inputs[i]
    return None


def _number_beside(node: ir.Node, param_of: ParamOf) -> tuple[ir.Value, Param] | None:
    """Returns an operand of a binary node, and the other one, if that is a number for its rows, or for all."""
    for i in (0, 1) if node.op_type in ARITHMETIC else ():
        value, other = node.inputs[i], node.inputs[1 - i]
        if value is None or other is None or (node.op_type == "Div" and i):
            continue
        if (number := param_of(other, value)) is not None and dtype_of(number.term) == ir.DataType.FLOAT:
            return value, number
    return None


def undefined_divisor(codes: ir.Value, param_of: ParamOf, values: Values, facts: Facts) -> ir.Value | None:
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


def quotient_of(value: ir.Value) -> ir.Node | None:
    """Returns the node of two computed numbers before a rounding, bounds and constants: a quotient, or a product."""
    steps = ROUNDING | {"Sign"} | SIGNS | ARITHMETIC
    division = producer_of(_unbounded(value), *steps)
    while division is not None and division.inputs[0] is not None:
        before = division.inputs[0]
        if (magnitude := magnitude_beside_sign(division)) is not None:
            before = magnitude
        elif division.op_type in ARITHMETIC:
            found = constant_operand(division, commutative=division.op_type != "Div")
            if found is None or (not found[1] and division.op_type in SCALING):
                break
            before = found[0]
        division = producer_of(_unbounded(before), *steps)
    return division


def _unbounded(value: ir.Value) -> ir.Value:
    return all_bounds_of(before_split(value)).value


def divisor_of(value: ir.Value, values: Values) -> ir.Value | None:
    """Returns what a rounded quotient is divided by, if it is NaN only where that is 0 or not finite; or None."""
    division = quotient_of(value)
    if division is None or division.op_type != "Div":
        return None
    if None in division.inputs or not values.known(division.inputs[0]).is_regular:
        return None
    return division.inputs[1]
