"""Which numbers a value may hold: bounds, and whether all of them are integers.

Bounds and integrality hold for every element that is not NaN. A bound is rounded as float32 rounds the operation, which
is monotonic, so bounds are not widened. magnitudes.py proves bounds of quotients such as x / (max|x| / 127).

Example: Clip(Round(x), -128, 127) + 128 are integers from 0 to 255.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS, with_subgraphs
from . import standard
from .bounds import all_bounds_of, power_of_remainder, signed_magnitude_of
from .constants import constant_array, constant_scalar, is_idle_dropout, is_number
from .estimators import estimated, is_exact, rounded_apart
from .evaluation import evaluate
from .inference import Facts
from .limits import CHAIN
from .magnitudes import MIN_DIVISOR, clamped_part, difference_of_minimum, is_magnitude, is_range, largest_quotient
from .nodes import cast_to, producer_of

INF = math.inf
_LAST_DIGITS = 2.0**-20  # more than the errors of Log and Pow, which are not rounded correctly
_MAX_INTEGER = 2**24  # float32 represents integers up to this one
_MIN_NORMAL = float(np.finfo(np.float32).tiny)  # its reciprocal is finite


@dataclass(frozen=True)
class Interval:
    """The interval of the elements of a value that are not NaN, and what else is known of them.

    Attributes:
        low, high: Their bounds.
        is_integer: Whether all finite ones are integers.
        is_regular: Whether NaN and infinities come from those of the model's inputs, not from a divisor near 0. A Cast
            of NaN to int32 gives a number beyond all bounds.
        overflows: Whether some come from finite numbers that are rounded to a narrower type, as an inverse scale is.
    """

    low: float = -INF
    high: float = INF
    is_integer: bool = False
    is_regular: bool = True
    overflows: bool = False

    def within(self, low: float, high: float) -> Interval:
        """Returns the same for elements that are also known to lie within further bounds."""
        if low <= self.low and self.high <= high:
            return self
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    def fits(self, low: float, high: float) -> bool:
        """Returns whether all elements are integers within bounds."""
        return self.is_integer and low <= self.low and self.high <= high

    def __str__(self) -> str:
        """Returns the text for ``inspect --values``."""
        kind = "integers" if self.is_integer else "numbers"
        bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", self.low), ("<=", self.high)) if math.isfinite(bound)]
        return f"{kind} {' and '.join(bounds)}" if bounds else kind if self.is_integer else "nothing"


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_CHOOSING = standard.BOUNDING | {"Where"}
_FIXED = {
    "Sign": Interval(-1, 1, True),
    "Sigmoid": Interval(0, 1),
    "HardSigmoid": Interval(0, 1),
    "Softmax": Interval(0, 1),
    "Tanh": Interval(-1, 1),
    "Erf": Interval(-1, 1),
    "Sin": Interval(-1, 1),
    "Cos": Interval(-1, 1),
}


class Values:
    """The bounds of the values of one model, computed when they are asked for. A value never changes.

    They hold for finite inputs of the model: the quotient of an infinity by a range may be infinite.
    """

    _inputs_are_finite, _smallest_divisor = True, MIN_DIVISOR

    def __init__(self, facts: Facts) -> None:
        """Visits all nodes in their order, so that no later question goes deep."""
        self._facts = facts
        self._known: dict[ir.Value, Interval] = {}
        for _, graph in with_subgraphs(facts.model.graph):
            for node in graph:
                for output in node.outputs:
                    self.known(output)

    @property
    def of_any_inputs(self) -> AnyValues:
        """The bounds that hold for infinite inputs, too."""
        return self._facts.shared(AnyValues)

    @property
    def near(self) -> NearValues:
        """The bounds that hold for all but denormal ranges."""
        return self._facts.shared(NearValues)

    def known(self, value: ir.Value | None) -> Interval:
        """Returns what is known of a value; nothing of an absent one."""
        if value is None:
            return Interval()
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def estimated_exactly(self, value: ir.Value) -> ir.Value | None:
        """Returns y of x + (y - x), if that is y bit for bit, except for the sign of 0; or None."""
        node = value.producer()
        pair = None if node is None or value.dtype != ir.DataType.FLOAT else estimated(node)
        return pair[0] if pair is not None and is_exact(*pair, self.known) else None

    def _find(self, value: ir.Value) -> Interval:
        of_type = _of_type(value.dtype)
        node = value.producer()
        if node is None or node.op_type in standard.CONSTANT_NODES:
            return _of_constant(value) or of_type
        if self._facts.is_constant(value) and (constant := _of_constant(value)) is not None:
            return constant
        found = self._of_node(node, value) if node.domain in STANDARD_DOMAINS else Interval()
        if found.low < 0 and value.dtype in _FLOATS and _is_not_negative(node, self.known):
            found = replace(found, low=0.0)
        inputs = [self.known(each) for each in node.inputs]
        divides = node.op_type in standard.DIVIDING and bool(inputs)
        is_bounded = math.isfinite(of_type.low)  # whatever NaN becomes, it is within the bounds of the type
        if not all(each.is_regular for each in inputs) or (divides and inputs[-1].low < _MIN_NORMAL):
            found = replace(found, is_regular=is_bounded)
        if (not found.is_regular or node.op_type == "Where") and (constant := self._of_finite_constant(value)):
            found = constant
        if not found.is_regular and node.op_type in _CHOOSING and _is_finite(found) and self._has_no_nan(value):
            found = replace(found, is_regular=True)
        if value.dtype is not None and value.dtype.is_floating_point() and value.dtype != ir.DataType.FLOAT:
            given = inputs[0] if node.op_type == "Cast" else found
            found = _cast(found, value.dtype)  # it is rounded to this type
            if _is_finite(given) and not _is_finite(found):
                found = replace(found, is_regular=False, overflows=True)
        if any(each.overflows for each in inputs):
            found = replace(found, overflows=not is_bounded)
        if found.low < of_type.low or found.high > of_type.high:  # integers wrap around
            found = replace(found, low=of_type.low, high=of_type.high)
        is_number = found.low == found.high and float(found.low).is_integer()
        is_integer = found.is_integer or of_type.is_integer or is_number
        return found if is_integer == found.is_integer else replace(found, is_integer=is_integer)

    def _of_finite_constant(self, value: ir.Value) -> Interval | None:
        """Returns the bounds of a constant that a node reads which is computed at run time; None if it is not finite.

        Weights that the model divides by their largest magnitude, and scales that Where keeps from 0, are such ones.
        """
        if not self._facts.is_constant(value) or all(map(self._facts.is_constant, _outputs_of_uses(value))):
            return None
        elements = evaluate(value, self._facts)
        return None if elements is None else _of_elements(elements)

    def _of_node(self, node: ir.Node, value: ir.Value) -> Interval:
        op_type, inputs = node.op_type, [self.known(each) for each in node.inputs]
        if op_type in _FIXED:
            return _FIXED[op_type]
        is_picked = value is node.outputs[0] and (op_type in standard.PICKING or is_idle_dropout(node))
        if op_type in standard.MOVES or is_picked:
            return _union(inputs if op_type == "Concat" else inputs[:1])
        if op_type in standard.BOUNDING:
            return _bounded(node, inputs)
        if op_type == "Where":
            bounded = all_bounds_of(value)
            if bounded.value is not value:
                found = self.known(bounded.value)
                low, high = (min(max(each, bounded.least), bounded.most) for each in (found.low, found.high))
                return Interval(low, high, found.is_integer and _are_integers(bounded.least, bounded.most))
            return _union(inputs[1:])
        if (y := self.estimated_exactly(value)) is not None:
            return self.known(y)
        if op_type == "Cast":
            return _cast(inputs[0], cast_to(node))
        if op_type in standard.RANGES | {"GlobalMaxPool"}:
            return inputs[0]
        if op_type in standard.POOLS:  # of zeros, too, if there are pads
            return _widened(min(inputs[0].low, 0.0), max(inputs[0].high, 0.0))
        if op_type == "Mod" and (divisor := constant_scalar(node.inputs[1])) and math.isfinite(divisor):
            return _remainder(inputs[0], divisor, is_signed=node.attributes.get_int("fmod", 0) == 1)
        if op_type in standard.ROUNDING:
            function = {"Round": np.rint, "Floor": np.floor, "Ceil": np.ceil}[op_type]
            return Interval(float(function(inputs[0].low)), float(function(inputs[0].high)), True)
        if op_type == "Pow" and (base := constant_scalar(node.inputs[0])) is not None and base >= 1:
            with np.errstate(over="ignore"):
                return _widened(*(float(np.float64(base) ** end) for end in (inputs[1].low, inputs[1].high)))
        if (monotonic := _MONOTONIC.get(op_type)) is not None:
            return monotonic(inputs[0])
        if (arithmetic := _ARITHMETIC.get(op_type)) is not None and len(inputs) == 2:
            found = _corners(arithmetic, *inputs)
            if op_type in standard.SCALING and value.dtype == ir.DataType.FLOAT and self._inputs_are_finite:
                largest = largest_quotient(node, self.known, self._smallest_divisor)
                if largest is not None:
                    found = found.within(0 if all(each.low >= 0 for each in inputs) else -largest, largest)
            if op_type == "Sub" and (difference_of_minimum(node) is not None or is_range(node)):
                found = found.within(0, INF)
            if op_type == "Sub" and clamped_part(value, self.known) is not None:
                found = found.within(0, INF)
            if op_type == "Add" and (rounded := rounded_apart(node, self.known)) is not None:
                found = found.within(*rounded)
            if (divisor := power_of_remainder(node)) is not None and inputs[0].fits(-_MAX_INTEGER, _MAX_INTEGER):
                found = found.within(0, divisor - 1)
            if op_type == "Mul" and (magnitude := signed_magnitude_of(value)) is not None:
                found = self._with_sign(magnitude)
            is_float = value.dtype is None or value.dtype.is_floating_point()
            if not is_float and max(-found.low, found.high) >= _MAX_INTEGER:
                return Interval(is_integer=True)  # the bounds were rounded, or the integers wrap around
            return replace(found, is_integer=op_type != "Div" and all(each.is_integer for each in inputs))
        return Interval()

    def _with_sign(self, magnitude: ir.Value) -> Interval:
        """Returns what is known of the product of a value's sign and its magnitude within bounds."""
        known, signed = self.known(magnitude), producer_of(all_bounds_of(magnitude).value, "Abs")
        is_positive = signed is not None and self.known(signed.inputs[0]).low >= 0
        return known if is_positive else replace(known, low=-known.high)

    def _has_no_nan(self, value: ir.Value) -> bool:
        """Returns whether a value within bounds is NaN only where an input of the model is not finite.

        A Where replaces NaN by a number (torch writes nan_to_num so), or 0 in the divisor of a quotient: that may be
        infinite, and the bounds of infinities are numbers.
        """
        for _ in CHAIN.steps():
            node = producer_of(value, *_CHOOSING, *standard.SUMS, *standard.ROUNDING, "Div")
            if node is None or not node.inputs:
                return False
            given = list(node.inputs)
            if node.op_type == "Div":
                return self._is_nonzero(given[1]) and all(self.known(each).is_regular for each in given)
            if node.op_type == "Where":
                condition = producer_of(given.pop(0), "IsNaN")  # a condition has no NaN to pass on
                if condition is not None and condition.inputs[0] is given[1]:
                    number = constant_scalar(given[0])
                    return number is not None and math.isfinite(number)
            others = [each for each in given if each is not None and not _is_number(self.known(each))]
            if len(others) != 1:
                return False
            value = others[0]
        return False

    def _is_nonzero(self, value: ir.Value | None) -> bool:
        """Returns whether no element of a value is 0, also if some are denormal.

        A Where replaces 0 by a number: Where(s == 0, number, s), Where(s <= 0, number, s), or Where(s > 0, s, number)
        with s >= 0.
        """
        while (node := producer_of(value, *(standard.MOVES - {"Concat"}))) is not None:
            value = node.inputs[0]
        if self.known(value).low > 0:
            return True
        if (where := producer_of(value, "Where")) is None:
            return False
        condition, then, otherwise = where.inputs
        is_greater = producer_of(condition, "Greater") is not None
        kept, number = (then, otherwise) if is_greater else (otherwise, then)
        compare = producer_of(condition, *standard.COMPARISONS - {"GreaterOrEqual", "Less"})
        if compare is None or compare.inputs[0] is not kept or constant_scalar(compare.inputs[1]) != 0:
            return False
        return self.known(number).low > 0 and (not is_greater or self.known(kept).low >= 0)


class AnyValues(Values):
    """Bounds that hold for infinite inputs, too."""

    _inputs_are_finite = False


class NearValues(Values):
    """Bounds that hold for quotients by a range unless it is denormal: there, the difference is less than 2**-132.

    Products with an inverse range are within these bounds or infinite, where the inverse is infinite.
    """

    _smallest_divisor = 0.0


def _is_number(known: Interval) -> bool:
    return known.is_regular and _is_finite(known)


def _outputs_of_uses(value: ir.Value) -> list[ir.Value]:
    return [output for node, _ in value.uses() for output in node.outputs]


def _is_finite(known: Interval) -> bool:
    return math.isfinite(known.low) and math.isfinite(known.high)


@functools.cache  # onnx-ir makes a set of all integer types for each question
def _of_type(dtype: ir.DataType | None) -> Interval:
    """Returns the range of an integer type of at most 8 bits; only integrality of a wider one."""
    if dtype == ir.DataType.BOOL:
        return Interval(0, 1, True)
    if dtype is None or not dtype.is_integer():
        return Interval()
    bits = int(dtype.itemsize * 8)
    if bits > 8:
        return Interval(is_integer=True)
    return (
        Interval(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, True) if dtype.is_signed() else Interval(0, 2**bits - 1, True)
    )


def _of_constant(value: ir.Value) -> Interval | None:
    elements = constant_array(value)
    if elements is None and (number := constant_scalar(value)) is not None:
        elements = np.array(number)
    return None if elements is None else _of_elements(elements)


def _of_elements(elements: npt.NDArray[Any]) -> Interval | None:
    if not elements.size or not is_number(elements.dtype):
        return None
    elements = elements.astype(np.float64)
    if not np.isfinite(elements).all():
        return None
    return Interval(float(elements.min()), float(elements.max()), bool((elements == np.rint(elements)).all()))


def _are_integers(*numbers: float) -> bool:
    return all(math.isinf(number) or number.is_integer() for number in numbers)


def _is_not_negative(node: ir.Node, known: Callable[[ir.Value | None], Interval]) -> bool:
    """Returns whether a node computes a square, a norm, or a sum or a mean of numbers that are not negative."""
    if node.domain not in STANDARD_DOMAINS:
        return False
    if node.op_type in standard.SUMMING:
        return known(node.inputs[0]).low >= 0
    if node.op_type == "Pow":
        power = constant_scalar(node.inputs[1])
        return known(node.inputs[0]).low >= 0 or (power is not None and power % 2 == 0)
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type == "Max":
        return is_magnitude(node.outputs[0])
    return node.op_type in standard.NORMS | {"Softplus"}


def _union(each: Sequence[Interval]) -> Interval:
    if not each:
        return Interval()
    return Interval(min(k.low for k in each), max(k.high for k in each), all(k.is_integer for k in each))


def _bounded(node: ir.Node, inputs: Sequence[Interval]) -> Interval:
    """Returns what is known of a Clip, Max or Min, also if the bounds are computed at run time."""
    if node.op_type != "Clip":
        choose = max if node.op_type == "Max" else min
        low, high = (choose(getattr(k, end) for k in inputs) for end in ("low", "high"))
        return Interval(low, high, all(k.is_integer for k in inputs))
    absent = {1: Interval(-INF, -INF, True), 2: Interval(INF, INF, True)}
    bounds = dict(zip(absent, inputs[1:], strict=False))
    least, most = (bounds[i] if i in bounds and node.inputs[i] is not None else absent[i] for i in absent)
    low, high = (
        min(max(x, at_least), at_most)
        for x, at_least, at_most in (
            (inputs[0].low, least.low, most.low),
            (inputs[0].high, least.high, most.high),
        )
    )
    return Interval(low, high, all(each.is_integer for each in (inputs[0], least, most)))


def _cast(x: Interval, to: ir.DataType) -> Interval:
    if to == ir.DataType.BOOL:
        return Interval(0, 1, True)
    if to == ir.DataType.UNDEFINED:
        return Interval()
    if not to.is_integer():
        with np.errstate(over="ignore"):
            narrow = to.numpy()
            low, high = (float(np.array(end).astype(narrow)) for end in (x.low, x.high))
            return replace(x, low=low, high=high)
    bits = int(to.itemsize * 8)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if to.is_signed() else (0, 2**bits - 1)
    if low <= x.low and x.high <= high and (x.is_regular or bits <= 8):
        return Interval(math.trunc(x.low), math.trunc(x.high), True)
    return Interval(low, high, True) if bits <= 8 else Interval(is_integer=True)


def _float32(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _remainder(x: Interval, divisor: float, *, is_signed: bool) -> Interval:
    """Returns what is known of a remainder, which has the sign of the dividend, or that of the divisor."""
    is_integer = x.is_integer and divisor.is_integer()
    most = abs(divisor) - is_integer
    if not is_signed:
        return Interval(0.0, most, is_integer) if divisor > 0 else Interval(-most, 0.0, is_integer)
    return Interval(0.0 if x.low >= 0 else -most, 0.0 if x.high <= 0 else most, is_integer)


def _log(number: float) -> float:
    return -INF if number <= 0 else math.log(number)


def _widened(low: float, high: float) -> Interval:
    """Returns bounds of a function that is monotonic except for the last digits."""
    return Interval(_float32(low - abs(low) * _LAST_DIGITS), _float32(high + abs(high) * _LAST_DIGITS))


def _corners(function: Callable[[Any, Any], Any], a: Interval, b: Interval) -> Interval:
    """Returns the bounds of a function that is monotonic in each argument, where it is defined."""
    if function is operator.truediv and b.low <= 0 <= b.high:
        return Interval()
    with np.errstate(all="ignore"):
        ends = [float(function(np.float64(x), np.float64(y))) for x in (a.low, a.high) for y in (b.low, b.high)]
    if any(map(math.isnan, ends)) and function in (operator.add, operator.sub):
        return Interval()
    ends = [0.0 if math.isnan(end) else end for end in ends]  # 0 times a number, or a number by a larger one
    return Interval(_float32(min(ends)), _float32(max(ends)))


_MONOTONIC: dict[str, Callable[[Interval], Interval]] = {
    "Abs": lambda x: Interval(max(x.low, -x.high, 0.0), max(abs(x.low), abs(x.high)), x.is_integer),
    "Neg": lambda x: Interval(-x.high, -x.low, x.is_integer),
    "Relu": lambda x: Interval(max(x.low, 0.0), max(x.high, 0.0), x.is_integer),
    "Sqrt": lambda x: Interval(_float32(math.sqrt(max(x.low, 0.0))), _float32(math.sqrt(max(x.high, 0.0)))),
    "Exp": lambda x: Interval(0.0, INF),
    "Log": lambda x: _widened(_log(x.low), _log(x.high)),
    "Reciprocal": lambda x: _corners(operator.truediv, Interval(1, 1), x),
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
}
