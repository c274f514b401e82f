"""Proves bounds of quotients of x by a divisor that is computed from the range of x.

Let r >= |x|, as ReduceMax(Abs(x)) is. Then x / (r / 127), x * (127 / r) and x / r * 127 lie within 127, except for
rounding: every step rounds to float32, which changes a normal number by a factor of at most 1 + 2**-24. The divisor
must be known to be 2**-100 or more, so that every step is normal. x must be finite: a Clip without an upper bound makes
an infinite range finite.

More than 450 lines: the forms of ranges and of quotients are recognized by functions that call each other.

Example: r = Clip(ReduceMax(Abs(x)), 1e-5), q = Div(x, Div(r, 127)): abs(q) is at most 127.00004.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from .bounds import MAX_FINITE, all_bounds_of, constant_operand
from .constants import constant_scalar
from .limits import CHAIN, OPERANDS
from .nodes import input_of, producer_of
from .shapes import axes_of, before_split, has_one_element, is_shape_of_rows, lines_up, same_shape, unreshaped
from .standard import BOUNDING, CHOOSING, COMPARISONS, DIVIDING, ORDERINGS, RANGES, RESHAPES, SCALING, SUMS

_ROUNDED = 1 - 2.0**-23  # more than one rounding takes away
MIN_DIVISOR = 2.0**-100
_KEPT = ("keepdims", "noop_with_empty_axes")
_MINIMA = RANGES - {"ReduceMax"}
_POWERS = {"Floor": (0.5, 1.0), "Ceil": (1.0, 2.0), "Round": (0.5**0.5, 2.0**0.5)}
_ERROR_OF_POWER = 2.0**-14
_MAXIMA = RANGES - {"ReduceMin"} | {"GlobalMaxPool"}  # tf2onnx writes the latter for the last dimensions


class AnyBounds(Protocol):
    """The bounds of a value."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def is_integer(self) -> bool: ...


class _Nothing(NamedTuple):
    low: float = -math.inf
    high: float = math.inf
    is_integer: bool = False


class _Cover(NamedTuple):
    """r >= above * x and r >= -below * x, for each element of x and the element of r that applies to it; 0: not known.

    Attributes:
        axes: The reduced dimensions; none if r is the same number for all of x, None if r is not known to be of rows.
        is_kept: Whether they stay as dimensions of length 1, and nothing reshapes r.
        is_scaled: Whether r was multiplied, so that it may have lost digits.
    """

    above: float
    below: float
    axes: tuple[int, ...] | None = ()
    is_kept: bool = True
    is_scaled: bool = False

    def times(self, factor: float) -> _Cover:
        above, below = self.above * factor * _ROUNDED, self.below * factor * _ROUNDED
        return self._replace(above=above, below=below, is_scaled=True)

    def reshaped(self) -> _Cover:
        return self._replace(is_kept=False)


def largest_quotient(
    node: ir.Node, known: Callable[[ir.Value | None], AnyBounds], smallest: float = MIN_DIVISOR
) -> float | None:
    """Returns a bound of the magnitude of a Div or Mul, if it divides x by a range of x; else None.

    Args:
        node: The node.
        known: Returns the bounds of a value.
        smallest: What the divisor must be known to be at least. The bound may be exceeded where it is less than
            MIN_DIVISOR.
    """
    a, b = node.inputs[:2]
    if a is None or b is None:
        return None
    if node.op_type == "Div":
        return largest_ratio(a, b, known, smallest)
    pairs = ((a, b), (b, a))
    return next((each for x, r in pairs if (each := largest_ratio(x, r, known, smallest, is_inverse=True))), None)


def largest_ratio(
    x: ir.Value,
    scale: ir.Value,
    known: Callable[[ir.Value | None], AnyBounds],
    smallest: float = MIN_DIVISOR,
    *,
    is_inverse: bool = False,
) -> float | None:
    """Returns a bound of the magnitude of x / scale, or of x * scale if it is inverse; see :func:`largest_quotient`."""
    for multiple, factor in _multiples(x):
        proof = _Proof(multiple, abs(factor), known, smallest)
        found = proof.largest_product(scale) if is_inverse else proof.largest(scale)
        if found is not None:
            return found
    return None


def difference_of_minimum(node: ir.Node) -> ir.Value | None:
    """Returns x of x - min(x, ...), which is not negative; None for another Sub."""
    x, low = node.inputs[:2]
    if x is None or low is None:
        return None
    return x if is_end(low, x, is_upper=False) else None


def is_end(value: ir.Value, x: ir.Value, *, is_upper: bool) -> bool:
    """Returns whether no element of x is larger (smaller) than the element of a value that applies to it."""
    proof = _Proof(x, 1, lambda _: _Nothing(), 0)
    cover = proof.cover(value, is_negated=not is_upper)
    if cover is None or cover.is_scaled:
        return False
    return (cover.above if is_upper else cover.below) == 1 and proof.lines_up(value, cover)


def is_magnitude(value: ir.Value) -> bool:
    """Returns whether a maximum is one of numbers of both signs, such as max(x, -x): it is not negative."""
    x = value
    while (node := producer_of(x, *RANGES, "Max", "Neg")) is not None and node.inputs[0] is not None:
        x = node.inputs[0]
    cover = _Proof(x, 1, lambda _: _Nothing(), 0).cover(value)
    return cover is not None and cover.above > 0 and cover.below > 0


def is_clamped_to(x: ir.Value, r: ir.Value) -> bool:
    """Returns whether x is clamped to -r and r, in any way and order, by nothing else than these and numbers.

    Example: Max(Min(v, r), Neg(r)), where r is 4 standard deviations.
    """
    is_above, is_below = False, False
    for _ in CHAIN.steps():
        node = producer_of(x, *CHOOSING, "Clip")
        if node is None:
            return False
        inner, below, above = _clamps(node, r)
        if inner is None:
            return False
        x, is_below, is_above = inner, is_below or below, is_above or above
        if is_below and is_above:
            return True
    return False


def is_range(node: ir.Node) -> bool:
    """Returns whether a Sub is the maximum minus the minimum of a value over the same dimensions."""
    high, low = node.inputs[:2]
    reduced = producer_of(high, "ReduceMax")
    x = None if reduced is None else input_of(reduced, 0)
    if high is None or low is None or x is None:
        return False
    return is_end(high, x, is_upper=True) and is_end(low, x, is_upper=False)


class _Part(NamedTuple):
    """u = clamp(x, low, low + range) - low."""

    low: ir.Value
    range: ir.Value


def clamped_part(u: ir.Value, known: Callable[[ir.Value | None], AnyBounds]) -> ir.Value | None:
    """Returns r, if u is x clamped to [low, low + r], less low: from 0 to r, except for rounding; or None.

    NNCF and OpenVINO write FakeQuantize so. low is not positive, and r at least -low: then low + r is at most r, and
    each of the two roundings is at most 2**-24 of it.
    """
    part = _part_of(u)
    if part is None or known(part.low).high > 0 or known(part.range).low < 0:
        return None
    cover = _Proof(part.low, 1, known, 0).cover(part.range)
    return part.range if cover is not None and cover.below == 1 and not cover.is_scaled else None


def _part_of(u: ir.Value) -> _Part | None:
    """Returns the numbers of clamp(x, low, low + range) - low, where no other bound is beside them."""
    node = producer_of(u, "Sub")
    x, low = (None, None) if node is None else node.inputs
    has_low, range_ = False, None
    for _ in CHAIN.steps():
        clamp = producer_of(x, *BOUNDING)
        if clamp is None or low is None or len(clamp.inputs) != (3 if clamp.op_type == "Clip" else 2):
            break
        limits = clamp.inputs[1:] if clamp.op_type == "Clip" else clamp.inputs
        ends = [end for each in limits if (end := _sum_with(each, low)) is not None]
        is_lower, is_upper = any(each is low for each in limits), len(ends) == 1
        if (is_lower, is_upper) != (clamp.op_type != "Min", clamp.op_type != "Max"):
            break
        has_low, range_ = has_low or is_lower, ends[0] if is_upper else range_
        x = clamp.inputs[0]
        if clamp.op_type != "Clip" and (x is low or _sum_with(x, low) is not None):
            x = clamp.inputs[1]
    return _Part(low, range_) if low is not None and range_ is not None and has_low else None


def _sum_with(value: ir.Value | None, low: ir.Value) -> ir.Value | None:
    """Returns r of low + r."""
    node = producer_of(value, "Add")
    for i in (0, 1) if node is not None else ():
        if node is not None and node.inputs[i] is low:
            return node.inputs[1 - i]
    return None


def _multiples(x: ir.Value) -> Iterator[tuple[ir.Value, float]]:
    """Yields x, and the values that it is a multiple of, each with the factor. Its magnitude is rounded up."""
    factor = 1.0
    yield x, factor
    for _ in CHAIN.steps():
        node = producer_of(x, *SCALING, "Neg")
        if node is None or node.inputs[0] is None:
            return
        if node.op_type == "Neg":
            x, factor = node.inputs[0], -factor
        elif (found := constant_operand(node, commutative=node.op_type == "Mul")) is not None and found[1]:
            x, factor = found[0], factor * _scaled(found[1], node) / _ROUNDED
        else:
            return
        yield x, factor


class _Proof:
    """Proves that values are at least as large as the magnitude of x."""

    def __init__(
        self, x: ir.Value, factor: float, known: Callable[[ir.Value | None], AnyBounds], smallest: float
    ) -> None:
        self._x, self._factor, self._known = x, factor, known
        self._smallest = smallest
        self._is_inverted = False
        self._covers: dict[tuple[ir.Value, bool], _Cover | None] = {}
        magnitude = producer_of(x, "Abs")
        inner = None if magnitude is None else magnitude.inputs[0]
        self._signed = x if inner is None else inner  # which has the magnitude of x; covers are those of it

    def largest(self, divisor: ir.Value, reshaped: ir.Value | None = None) -> float | None:
        """Returns the largest magnitude of x / divisor, or None; x may be divided by it in another shape."""
        cover = self.cover(divisor)
        if cover is not None and reshaped is not None:
            cover = cover.reshaped()
        if cover is None or not self.lines_up(reshaped or divisor, cover):
            return None
        # A quotient by the range itself is at most 1 in any rounding; a range that is scaled has to stay normal.
        needs_normal = self._is_inverted or cover.is_scaled or self._factor != 1
        least = max(self._known(divisor).low, 0 if cover.above > 0 and cover.below > 0 else -math.inf)
        if needs_normal and least < self._smallest:
            return None
        of = self._known(self._signed)
        smallest = cover.above if of.low >= 0 else cover.below if of.high <= 0 else min(cover.above, cover.below)
        return self._factor / smallest / _ROUNDED if smallest > 0 else None

    def largest_product(self, inverse: ir.Value) -> float | None:
        """Returns the largest magnitude of x * inverse, if `inverse` is a number divided by a range; or None."""
        factor, whole, is_reshaped = 1.0, inverse, False
        self._is_inverted = True  # the reciprocal of a small range may be infinite
        for _ in CHAIN.steps():
            if (node := producer_of(inverse, *RESHAPES, "Expand")) is not None and node.inputs[0] is not None:
                inverse, is_reshaped = node.inputs[0], is_reshaped or node.op_type in RESHAPES
            elif (guarded := _guarded(inverse)) is not None:
                inverse = guarded
            elif (node := producer_of(inverse, "Reciprocal")) is not None and node.inputs[0] is not None:
                break
            elif (node := producer_of(inverse, "Div")) is not None and (number := constant_scalar(node.inputs[0])):
                factor *= abs(number)
                break
            elif (power := _power_of_2(inverse)) is not None:  # 2**floor(log2(i)) is at most i
                inverse, factor = power.of, factor * power.most
            elif (node := producer_of(inverse, *SCALING)) is not None:
                found = constant_operand(node, commutative=node.op_type == "Mul")
                if found is None or found[1] == 0:
                    return None
                inverse, factor = found[0], factor * _scaled(abs(found[1]), node) / _ROUNDED
            else:
                return None
        else:
            return None
        divisor = node.inputs[-1]
        found_ = None if divisor is None else self.largest(divisor, whole if is_reshaped else None)
        return None if found_ is None else found_ * factor / _ROUNDED

    def lines_up(self, divisor: ir.Value, cover: _Cover) -> bool:
        """Returns whether each number of the divisor is known to apply to the elements that it covers."""
        if cover.is_kept or cover.axes == () or has_one_element(divisor):
            return True
        return cover.axes is not None and _is_of_rows(divisor, self._x, [*cover.axes])

    def cover(self, r: ir.Value | None, *, is_negated: bool = False, depth: int = 0) -> _Cover | None:
        """Returns what is known of r, or of -r; `depth` is the distance from the divisor."""
        if r is None or CHAIN.is_passed(depth):
            return None
        key = r, is_negated
        if key not in self._covers:
            self._covers[key] = self._find(r, is_negated, depth + 1)
        return self._covers[key]

    def _find(self, r: ir.Value, is_negated: bool, depth: int) -> _Cover | None:
        if r is self._signed:
            return _Cover(0, 1, None) if is_negated else _Cover(1, 0, None)
        if not is_negated and clamped_part(self._signed, self._known) is r:
            return _Cover(_ROUNDED * _ROUNDED, 1, None)
        if not is_negated and is_clamped_to(self._signed, r) and self._known(r).low >= 0:
            return _Cover(1, 1, None)
        node = r.producer()
        if node is None or node.domain not in STANDARD_DOMAINS:
            return None
        bounded = all_bounds_of(r)
        if bounded.value is not r:
            is_free = bounded.least <= -MAX_FINITE if is_negated else bounded.most >= MAX_FINITE
            return self.cover(bounded.value, is_negated=is_negated, depth=depth) if is_free else None
        inputs, op_type = node.inputs, node.op_type
        if op_type in (*RESHAPES, "Expand") or (op_type == "Relu" and not is_negated):
            inner = self.cover(inputs[0], is_negated=is_negated, depth=depth)
            return inner.reshaped() if inner is not None and op_type in RESHAPES else inner
        if op_type == "Neg":
            return self.cover(inputs[0], is_negated=not is_negated, depth=depth)
        if op_type in (_MINIMA if is_negated else _MAXIMA):
            return self._reduced(node, is_negated, 0)
        if op_type == ("Min" if is_negated else "Max"):
            return _joined(self.cover(each, is_negated=is_negated, depth=depth) for each in inputs)
        if op_type in SCALING:
            found = constant_operand(node, commutative=op_type == "Mul")
            inner = None if found is None or found[1] <= 0 else self.cover(found[0], is_negated=is_negated, depth=depth)
            return None if found is None or inner is None else inner.times(_scaled(found[1], node))
        if is_negated:
            return None
        if (power := _power_of_2(r)) is not None:  # 2**ceil(log2(i)) is at least i
            inner = self.cover(power.of, depth=depth)
            return None if inner is None else inner.times(power.least)
        if op_type == "Abs":
            return _joined(self.cover(inputs[0], is_negated=sign, depth=depth) for sign in (False, True))
        if op_type in SUMS:
            return self._sum(node, depth)
        return self._where(node, depth) if op_type == "Where" else None

    def _sum(self, node: ir.Node, depth: int) -> _Cover | None:
        """Returns the cover of a + b, which is at least a if b >= 0, or of a - b; rounding is monotonic."""
        is_difference = node.op_type == "Sub"
        a, b = node.inputs[:2]
        low_a, known_b = self._known(a).low, self._known(b)
        least_b = -known_b.high if is_difference else known_b.low
        found = [self.cover(a, depth=depth) if least_b >= 0 else None]
        found.append(self.cover(b, is_negated=is_difference, depth=depth) if low_a >= 0 else None)
        if (cover := _joined(found)) is not None or not is_difference or b is None:
            return cover
        difference = producer_of(self._signed, "Sub")  # max - min >= x - min
        if difference is None or a is None or not _is_same_end(difference.inputs[1], b):
            return None
        origin = difference_of_minimum(difference)
        of_origin = None if origin is None else _Proof(origin, 1, self._known, 0).cover(a)
        return None if of_origin is None or of_origin.above != 1 else of_origin._replace(below=1)

    def _reduced(self, node: ir.Node, is_negated: bool, depth: int) -> _Cover | None:
        """Returns the cover of a maximum, or of a negated minimum."""
        is_whole, axes = _is_whole(node), _reduced_axes(node)
        inner = None if node.inputs[0] is None else self._of_elements(node.inputs[0], is_negated, is_whole, depth)
        is_kept = node.attributes.get_int("keepdims", 1) == 1
        if inner is None or is_whole:
            return None if inner is None else inner._replace(axes=(), is_kept=True)
        if not axes or not inner.is_kept or inner.axes is None:
            return None
        return inner._replace(axes=(*inner.axes, *axes), is_kept=is_kept)

    def _of_elements(self, value: ir.Value, is_negated: bool, is_whole: bool, depth: int) -> _Cover | None:
        """Returns the cover of a value before it is reduced: of the elements of x, or of an extreme of them."""
        before = unreshaped if is_whole else before_split
        if (value := before(value)) is before(self._signed):
            return _Cover(0, 1) if is_negated else _Cover(1, 0)
        node = value.producer()
        if node is None or node.domain not in STANDARD_DOMAINS or OPERANDS.is_passed(depth):
            return None
        signs: tuple[bool, ...] = (is_negated,)
        if node.op_type in (_MINIMA if is_negated else _MAXIMA):
            return self._reduced(node, is_negated, depth + 1)
        if node.op_type == "Neg":
            signs = (not is_negated,)
        elif node.op_type == "Abs" and not is_negated:
            signs = (False, True)
        elif node.op_type != ("Min" if is_negated else "Max"):
            return None
        found = [
            self._of_elements(each, sign, is_whole, depth + 1)
            for each in node.inputs
            for sign in signs
            if each is not None and not has_one_element(each, 1)
        ]
        return None if None in found and len(node.inputs) > 1 else _joined(found)

    def _where(self, node: ir.Node, depth: int) -> _Cover | None:
        """Returns the cover of Where(r == 0, e, r) and the like: e is positive, where r, and so x, is 0."""
        _, then, otherwise = node.inputs
        for value, other in ((then, otherwise), (otherwise, then)):
            number = constant_scalar(other)
            if value is not None and number is not None and _replaces_small(node, value, number, value is then):
                return self.cover(value, depth=depth)
        return None


class _Power(NamedTuple):
    """A power of 2 near a value, 2**n, and the bounds of its ratio to the value."""

    of: ir.Value
    least: float
    most: float


def _power_of_2(value: ir.Value) -> _Power | None:
    """Returns 2**n, where n is the logarithm of a value to the base 2, rounded to an integer; None for others.

    The logarithm of a float is at most 149. Its error is that of Log, of a quotient and of a constant: 2**-22 of it.
    """
    node = producer_of(value, "Pow")
    rounded = None if node is None or constant_scalar(node.inputs[0]) != 2 else node.inputs[1]
    rounding = producer_of(rounded, *_POWERS)
    scaled = None if rounding is None else producer_of(rounding.inputs[0], *SCALING)
    found = None if scaled is None else constant_operand(scaled, commutative=scaled.op_type == "Mul")
    log = None if found is None else producer_of(found[0], "Log")
    if rounding is None or scaled is None or found is None or log is None or log.inputs[0] is None:
        return None
    if not math.isclose(_scaled(found[1], scaled), 1 / math.log(2), rel_tol=2.0**-22):
        return None
    least, most = _POWERS[rounding.op_type]
    return _Power(log.inputs[0], least * (1 - _ERROR_OF_POWER), most * (1 + _ERROR_OF_POWER))


def _joined(covers: Iterable[_Cover | None]) -> _Cover | None:
    """Returns the cover of a value that is at least as large as several ones, as far as these line up."""
    found = [each for each in covers if each is not None]
    of_rows = [each for each in found if each.axes != ()]
    if not found:
        return None
    first = (of_rows or found)[0]
    axes = first.axes if all(each.axes == first.axes for each in of_rows) else None
    same = [each for each in found if each.axes in ((), first.axes) or (each.is_kept and first.is_kept)]
    return _Cover(
        max(each.above for each in same),
        max(each.below for each in same),
        axes,
        all(each.is_kept for each in same),
        any(each.is_scaled for each in same),
    )


def _is_of_rows(value: ir.Value, x: ir.Value, axes: list[int]) -> bool:
    """Returns whether numbers that are computed over axes of x, and reshaped, broadcast to their own rows of x."""
    rank = None if x.shape is None else len(x.shape)
    last = sorted(axis if axis < 0 or rank is None else axis - rank for axis in axes)
    if last != list(range(-len(last), 0)):
        return False
    return is_shape_of_rows(value, x) or lines_up(value, x, last[0], keepdims=False)


def _clamps(node: ir.Node, r: ir.Value) -> tuple[ir.Value | None, bool, bool]:
    """Returns the value that a node clamps to -r or r, and which ends it clamps; None for other nodes."""
    inputs = list(node.inputs)
    if node.op_type == "Clip":
        low, high = [*inputs[1:], None, None][:2]
        below, above = low is not None and _is_negated(low, r), high is r
        is_other = (low is not None and not below) or (high is not None and not above)
        return (None if is_other else inputs[0]), below, above
    if node.op_type == "Where":
        compare = producer_of(inputs[0], *ORDERINGS)
        if compare is None or list(compare.inputs) != inputs[:0:-1]:
            return None, False, False
        is_upper, pairs = compare.op_type.startswith("Greater"), [(inputs[2], inputs[1])]
    else:
        is_upper, pairs = node.op_type == "Min", [(inputs[0], inputs[-1]), (inputs[-1], inputs[0])]
    for inner, limit in pairs if len(inputs) == (3 if node.op_type == "Where" else 2) else ():
        if limit is not None and (limit is r if is_upper else _is_negated(limit, r)):
            return inner, not is_upper, is_upper
    return None, False, False


def _guarded(value: ir.Value) -> ir.Value | None:
    """Returns v of Where(condition, v, 0): its product with x is one with v, or 0.

    Or 1 / r of Where(r > 0, 1 / r, 1), the inverse of Where(r > 0, r, 1).
    """
    node = producer_of(value, "Where")
    if node is None:
        return None
    _, then, otherwise = node.inputs
    for inverse, other in ((then, otherwise), (otherwise, then)):
        number, quotient = constant_scalar(other), producer_of(inverse, *DIVIDING)
        if number == 0:
            return inverse
        dividend = None if quotient is None else 1 if len(quotient.inputs) == 1 else constant_scalar(quotient.inputs[0])
        divisor = None if quotient is None else quotient.inputs[-1]
        if number is None or number < 0 or dividend is None or divisor is None:
            continue
        if _replaces_small(node, divisor, dividend / number, inverse is then):
            return inverse
    return None


def _replaces_small(node: ir.Node, value: ir.Value, number: float, is_then: bool) -> bool:
    """Returns whether a Where chooses a number in place of values that are not larger than it."""
    mask = node.inputs[0]
    compared = None if mask is None else unreshaped(mask)
    condition = producer_of(compared, *COMPARISONS)
    if condition is None or mask is None or number <= 0:
        return False
    limits = [constant_scalar(each) for each in condition.inputs]
    i = next((i for i, each in enumerate(limits) if each is not None), None)
    limit = None if i is None else limits[i]
    is_first = i == 1  # the compared value stands before its limit
    takes_large = condition.op_type.startswith("Greater" if is_first else "Less")
    if i is None or limit is None or limit < 0 or is_then != takes_large:
        return False  # the number would replace large values
    of = condition.inputs[1 - i]
    for each, scale in itertools.takewhile(lambda found: found[1] > 0, _multiples(value)):
        compares = each is of and mask is compared
        if not compares and of is not None and same_shape(mask, each):  # both may be reshaped in the same way
            compares = unreshaped(each) is unreshaped(of)
        if compares and limit * scale <= number:
            return True
    return False


def _is_negated(value: ir.Value, r: ir.Value) -> bool:
    """Returns whether a value is -r."""
    if (node := producer_of(value, "Neg")) is not None:
        return node.inputs[0] is r
    node = producer_of(value, "Mul")
    found = None if node is None else constant_operand(node, commutative=True)
    return found is not None and found[0] is r and found[1] == -1


def _is_same_end(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Returns whether two values are the same, or the same reduction of the same value, expanded or not."""
    ends = [each if (node := producer_of(each, "Expand")) is None else node.inputs[0] for each in (a, b)]
    if ends[0] is None or ends[0] is ends[1]:
        return ends[0] is not None
    nodes = [producer_of(each, *RANGES) for each in ends]
    if nodes[0] is None or nodes[1] is None or nodes[0].op_type != nodes[1].op_type:
        return False
    axes = axes_of(nodes[0])
    kept, noop = ([node.attributes.get_int(name, int(name == "keepdims")) for node in nodes if node] for name in _KEPT)
    is_same = nodes[0].inputs[0] is nodes[1].inputs[0] and axes is not None and axes == axes_of(nodes[1])
    return is_same and kept[0] == kept[1] and noop[0] == noop[1]


def _scaled(number: float, node: ir.Node) -> float:
    return number if node.op_type == "Mul" else 1 / number


def _is_whole(reduced: ir.Node) -> bool:
    """Returns whether a node reduces all dimensions of its input."""
    axes, given = _reduced_axes(reduced), reduced.inputs[0]
    if not axes:
        return axes is not None and reduced.attributes.get_int("noop_with_empty_axes", 0) == 0
    rank = None if given is None or given.shape is None else len(given.shape)
    return rank is not None and len({axis % rank for axis in axes if rank}) == rank


def _reduced_axes(node: ir.Node) -> list[int] | None:
    """Returns the axes of a reduction, or of a GlobalMaxPool: all but the first two; None if they are not known."""
    if node.op_type != "GlobalMaxPool":
        return axes_of(node)
    x = node.inputs[0]
    return None if x is None or x.shape is None else [*range(2, len(x.shape))] or None
