"""Proves bounds of quotients whose divisor is computed from the range of the dividend.

Let r >= |x|, as ReduceMax(Abs(x)) is. Then x / (r / 127), x * (127 / r) and x / r * 127 lie within 127, except for
rounding: every step rounds to float32, which changes a normal number by a factor of at most 1 + 2**-24. The divisor
must be known to be 2**-100 or more, so that every step is normal. x must be finite: a Clip without an upper bound makes
an infinite range finite.

Example: r = Clip(ReduceMax(Abs(x)), 1e-5), q = Div(x, Div(r, 127)): abs(q) is at most 127.00004.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import onnx_ir as ir

from .bounds import LARGEST, all_bounds_of, constant_operand
from .constants import constant_scalar
from .nodes import producer_of
from .shapes import RESHAPES, axes_of, before_split, has_one_element, is_shape_of_rows, lines_up, same_shape, unreshaped

_ROUNDED = 1 - 2.0**-23  # more than one rounding takes away
SMALLEST_DIVISOR = 2.0**-100
_MOST_STEPS = 24
_MOST_CLAMPS = 4
_KEPT = ("keepdims", "noop_with_empty_axes")


class AnyBounds(Protocol):
    """The bounds of a value."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class _Multiples(NamedTuple):
    """r >= above * x and r >= -below * x, for each element of x and the element of r that applies to it."""

    above: float
    below: float

    def times(self, factor: float) -> _Multiples:
        return _Multiples(self.above * factor * _ROUNDED, self.below * factor * _ROUNDED)


def largest_quotient(
    node: ir.Node, known: Callable[[ir.Value | None], AnyBounds], smallest: float = SMALLEST_DIVISOR
) -> float | None:
    """Returns a bound of the magnitude of a Div or Mul, if it divides x by a range of x; else None.

    Args:
        node: The node.
        known: Returns the bounds of a value.
        smallest: What the divisor must be known to be at least. The bound may be exceeded where it is less than
            SMALLEST_DIVISOR.
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
    smallest: float = SMALLEST_DIVISOR,
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
    return x if _end_of(low, x, "ReduceMin") else None


def is_clamped_to(x: ir.Value, r: ir.Value) -> bool:
    """Returns whether x is clamped to -r and r, in any way and order, by nothing else than these and numbers.

    Example: Max(Min(v, r), Neg(r)), where r is 4 standard deviations.
    """
    is_above, is_below = False, False
    for _ in range(_MOST_CLAMPS):
        node = producer_of(x, "Clip", "Max", "Min", "Where")
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
    reduced = None if node.inputs[0] is None else producer_of(node.inputs[0], "ReduceMax")
    x = None if reduced is None else _first(reduced)
    return x is not None and _both_ends(node, x) is not None


def _multiples(x: ir.Value) -> Iterator[tuple[ir.Value, float]]:
    """Yields x, and the values that it is a multiple of, each with the factor, whose magnitude is rounded up."""
    factor = 1.0
    yield x, factor
    for _ in range(_MOST_STEPS):
        node = producer_of(x, "Mul", "Div", "Neg")
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
        self._reduced: tuple[list[int], bool] = [], True
        self._is_scaled = False
        self._covers: dict[tuple[ir.Value, int], tuple[_Multiples | None, tuple[list[int], bool]]] = {}
        self._is_limit = False  # the range clamps x: both broadcast to it in the same way

    def largest(self, divisor: ir.Value) -> float | None:
        """Returns the largest magnitude of x / divisor, or None."""
        cover = self._cover(divisor, 0)
        # A quotient by the range itself is at most 1 in any rounding; a range that is scaled has to stay normal.
        needs_normal = self._is_scaled or self._factor != 1
        is_small = needs_normal and self._known(divisor).low < self._smallest
        if cover is None or is_small or not self._lines_up(divisor):
            return None
        smallest = min(cover)
        return self._factor / smallest / _ROUNDED if smallest > 0 else None

    def largest_product(self, inverse: ir.Value) -> float | None:
        """Returns the largest magnitude of x * inverse, if `inverse` is a number divided by a range; or None."""
        factor = 1.0
        self._is_scaled = True  # the reciprocal of a small range may be infinite
        for _ in range(_MOST_STEPS):
            if (node := producer_of(inverse, *RESHAPES, "Expand")) is not None and node.inputs[0] is not None:
                inverse = node.inputs[0]
            elif (node := producer_of(inverse, "Reciprocal")) is not None and node.inputs[0] is not None:
                break
            elif (node := producer_of(inverse, "Div")) is not None and (number := constant_scalar(node.inputs[0])):
                factor *= abs(number)
                break
            elif (node := producer_of(inverse, "Mul", "Div")) is not None:
                found = constant_operand(node, commutative=node.op_type == "Mul")
                if found is None or found[1] == 0:
                    return None
                inverse, factor = found[0], factor * _scaled(abs(found[1]), node) / _ROUNDED
            else:
                return None
        else:
            return None
        divisor = node.inputs[-1]
        found_ = None if divisor is None else self.largest(divisor)
        return None if found_ is None else found_ * factor / _ROUNDED

    def _lines_up(self, divisor: ir.Value) -> bool:
        """Returns whether each number of the divisor is known to apply to the elements that it covers."""
        axes, is_kept = self._reduced
        if not axes or is_kept or has_one_element(divisor):
            return True
        return not self._is_limit and _is_of_rows(divisor, self._x, axes)

    def _cover(self, r: ir.Value | None, depth: int) -> _Multiples | None:
        """Returns the cover of a value, at a distance from the divisor; operands may be the same value."""
        if r is None or depth > _MOST_STEPS:
            return None
        if (r, depth) not in self._covers:
            self._covers[r, depth] = self._find(r, depth), self._reduced
        cover, reduced = self._covers[r, depth]
        if cover is not None:
            self._reduced = reduced
        return cover

    def _find(self, r: ir.Value, depth: int) -> _Multiples | None:
        if is_clamped_to(self._x, r) and self._known(r).low >= 0:
            self._reduced, self._is_limit = ([0], True), True
            return _Multiples(1, 1)
        node = r.producer()
        if node is None:
            return None
        bounded = all_bounds_of(r)
        if bounded.value is not r:
            return self._cover(bounded.value, depth + 1) if bounded.most >= LARGEST else None
        inner = self._cover(node.inputs[0], depth + 1) if node.op_type in (*RESHAPES, "Expand", "Relu") else None
        if inner is not None:
            self._reduced = self._reduced[0], self._reduced[1] and node.op_type in ("Expand", "Relu")
            return inner
        if (end := self._end(r)) is not None:
            return end
        if node.op_type in ("Max", "Add"):
            covers = [self._cover(each, depth + 1) for each in node.inputs]
            found = [each for each in covers if each is not None]
            if node.op_type == "Add" and (len(found) != 1 or min(self._known(each).low for each in node.inputs) < 0):
                return None
            return _Multiples(max(each.above for each in found), max(each.below for each in found)) if found else None
        if node.op_type in ("Mul", "Div"):
            self._is_scaled = True
            found_ = constant_operand(node, commutative=node.op_type == "Mul")
            inner = None if found_ is None or found_[1] <= 0 else self._cover(found_[0], depth + 1)
            return None if found_ is None or inner is None else inner.times(_scaled(found_[1], node))
        return self._where(node, depth) if node.op_type == "Where" else None

    def _end(self, r: ir.Value) -> _Multiples | None:
        """Returns the cover of the magnitude, the maximum, the negated minimum, or the range of x."""
        node, x = r.producer(), self._x
        if node is None:
            return None
        if (maximum := _maximum(r)) is not None:
            whole, given = maximum
            changed = producer_of(given, "Abs", "Neg")
            of = given if changed is None else _first(changed)
            if of is None or not _is_of(whole, of, x):
                return None
            self._note(whole)
            is_negated = changed is not None and changed.op_type == "Neg"
            return _Multiples(0 if is_negated else 1, 0 if changed is None else 1)
        if node.op_type in ("Neg", "Abs"):
            inner = _first(node)
            inner = None if inner is None else all_bounds_of(inner).value
            for op_type, cover in (("ReduceMin", _Multiples(0, 1)), ("ReduceMax", _Multiples(1, 0))):
                reduced = producer_of(inner, op_type)
                is_of_x = reduced is not None and (of := _first(reduced)) is not None and _is_of(reduced, of, x)
                if reduced is not None and is_of_x and (op_type == "ReduceMin" or node.op_type == "Abs"):
                    self._note(reduced)
                    return cover
        if node.op_type == "Sub" and x in node.inputs:
            high, low = (self._known(each) for each in node.inputs)
            return _Multiples(_ROUNDED, _ROUNDED) if low.high <= 0 <= high.low else None  # |x| <= high - low
        if node.op_type == "Sub" and (both := _both_ends(node, x)) is not None:
            high, low = (self._known(each) for each in node.inputs)
            self._note(both)
            return _Multiples(_ROUNDED, _ROUNDED) if low.high <= 0 <= high.low else None  # max - min >= |x|
        if node.op_type == "Sub" and (difference := producer_of(x, "Sub")) is not None:
            origin, least, most = difference_of_minimum(difference), difference.inputs[1], node.inputs[0]
            is_same = _is_same_end(least, node.inputs[1])
            if origin is not None and is_same and most is not None and (reduced := _end_of(most, origin, "ReduceMax")):
                self._note(reduced)
                return _Multiples(_ROUNDED, 1)
        return None

    def _where(self, node: ir.Node, depth: int) -> _Multiples | None:
        """Returns the cover of Where(r == 0, e, r) and the like: e is positive, where r, and so x, is 0."""
        mask, then, otherwise = node.inputs
        compared = None if mask is None else unreshaped(mask)
        condition = producer_of(compared, "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
        for value, other in ((then, otherwise), (otherwise, then)):
            number = constant_scalar(other)
            if condition is None or mask is None or value is None or number is None or number <= 0:
                continue
            limits = [constant_scalar(each) for each in condition.inputs]
            i = next((i for i, each in enumerate(limits) if each is not None), None)
            limit = None if i is None else limits[i]
            is_first = i == 1  # the compared value stands before its limit
            takes_large = condition.op_type.startswith("Greater" if is_first else "Less")
            if i is None or limit is None or limit < 0 or (value is then) != takes_large:
                continue  # the number would replace large values
            of = condition.inputs[1 - i]
            for each, scale in itertools.takewhile(lambda found: found[1] > 0, _multiples(value)):
                compares = each is of and mask is compared
                if not compares and of is not None and same_shape(mask, each):  # both may be reshaped in the same way
                    compares = unreshaped(each) is unreshaped(of)
                if compares and limit * scale <= number:
                    return self._cover(value, depth + 1)
        return None

    def _note(self, reduced: ir.Node) -> None:
        """Notes the reduced dimensions, and whether they stay as dimensions of length 1."""
        axes = axes_of(reduced)
        self._reduced = (
            [0] if axes is None else axes,
            axes is not None and reduced.attributes.get_int("keepdims", 1) == 1,
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
        compare = producer_of(inputs[0], "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
        if compare is None or list(compare.inputs) != inputs[:0:-1]:
            return None, False, False
        is_upper, pairs = compare.op_type.startswith("Greater"), [(inputs[2], inputs[1])]
    else:
        is_upper, pairs = node.op_type == "Min", [(inputs[0], inputs[-1]), (inputs[-1], inputs[0])]
    for inner, limit in pairs if len(inputs) == (3 if node.op_type == "Where" else 2) else ():
        if limit is not None and (limit is r if is_upper else _is_negated(limit, r)):
            return inner, not is_upper, is_upper
    return None, False, False


def _is_negated(value: ir.Value, r: ir.Value) -> bool:
    """Returns whether a value is -r."""
    node = producer_of(value, "Neg", "Mul")
    if node is None or node.op_type == "Neg":
        return node is not None and node.inputs[0] is r
    found = constant_operand(node, commutative=True)
    return found is not None and found[0] is r and found[1] == -1


def _is_same_end(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Returns whether two values are the same, or the same reduction of the same value, expanded or not."""
    ends = [each if (node := producer_of(each, "Expand")) is None else node.inputs[0] for each in (a, b)]
    if ends[0] is None or ends[0] is ends[1]:
        return ends[0] is not None
    nodes = [producer_of(each, "ReduceMax", "ReduceMin") for each in ends]
    if nodes[0] is None or nodes[1] is None or nodes[0].op_type != nodes[1].op_type:
        return False
    axes = axes_of(nodes[0])
    kept, noop = ([node.attributes.get_int(name, int(name == "keepdims")) for node in nodes if node] for name in _KEPT)
    is_same = nodes[0].inputs[0] is nodes[1].inputs[0] and axes is not None and axes == axes_of(nodes[1])
    return is_same and kept[0] == kept[1] and noop[0] == noop[1]


def _first(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if node.inputs else None


def _scaled(number: float, node: ir.Node) -> float:
    return number if node.op_type == "Mul" else 1 / number


def _maximum(r: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """Returns the reduction, and v, of ReduceMax(v) and of -ReduceMin(-v); None for other values."""
    reduced = producer_of(r, "ReduceMax")
    given = None if reduced is None else _first(reduced)
    if (negation := producer_of(r, "Neg")) is not None:
        reduced = producer_of(_first(negation), "ReduceMin")
        inner = None if reduced is None else producer_of(_first(reduced), "Neg")
        given = None if inner is None else _first(inner)
    if reduced is None or given is None:
        return None
    return reduced, unreshaped(given) if _is_whole(reduced) else given


def _is_of(reduced: ir.Node, value: ir.Value, x: ir.Value) -> bool:
    """Returns whether a node reduces x or |x|; or all of it, reshaped."""
    magnitude = producer_of(x, "Abs")
    sources = (x, magnitude.inputs[0]) if magnitude is not None and magnitude.inputs[0] is not None else (x,)
    before = unreshaped if _is_whole(reduced) else before_split
    return any(value is each or before(value) is before(each) for each in sources)


def _is_whole(reduced: ir.Node) -> bool:
    """Returns whether a node reduces all dimensions of its input."""
    axes, given = axes_of(reduced), reduced.inputs[0]
    if not axes:
        return axes is not None and reduced.attributes.get_int("noop_with_empty_axes", 0) == 0
    rank = None if given is None or given.shape is None else len(given.shape)
    return rank is not None and len({axis % rank for axis in axes if rank}) == rank


def _both_ends(node: ir.Node, x: ir.Value) -> ir.Node | None:
    """Returns the ReduceMax of a Sub of the maximum and the minimum of x over the same dimensions; None for others."""
    most, least = node.inputs[:2]
    if most is None or least is None:
        return None
    high, low = _end_of(most, x, "ReduceMax"), _end_of(least, x, "ReduceMin")
    return high if high is not None and low is not None and axes_of(high) == axes_of(low) else None


def _unbounded_by_relu(value: ir.Value, op_type: str) -> ir.Value:
    """Returns v of Relu(v), which is a maximum, or of -Relu(-v), which is a minimum; else the value."""
    nodes = [producer_of(value, "Neg" if op_type == "ReduceMin" else "Relu")]
    for each in ("Relu", "Neg") if op_type == "ReduceMin" else ():
        nodes.append(None if nodes[-1] is None else producer_of(_first(nodes[-1]), each))
    inner = None if nodes[-1] is None else _first(nodes[-1])
    return value if inner is None else inner


def _end_of(value: ir.Value, x: ir.Value, op_type: str) -> ir.Node | None:
    """Returns the ReduceMin (ReduceMax) of x from which a value is computed that is not larger (smaller); or None."""
    end, is_reshaped = value, False
    while True:
        bounded = all_bounds_of(_unbounded_by_relu(value, op_type))
        if bounded.value is value:
            if unreshaped(value) is value:
                break
            is_reshaped, value = True, unreshaped(value)
            continue
        if (bounded.least > -LARGEST) if op_type == "ReduceMin" else (bounded.most < LARGEST):
            return None
        value = bounded.value
    reduced = producer_of(value, op_type)
    of = None if reduced is None else _first(reduced)
    if reduced is None or of is None or not _is_of(reduced, of, x):
        return None
    is_kept = reduced.attributes.get_int("keepdims", 1) == 1 and not is_reshaped
    return reduced if is_kept or _is_whole(reduced) or _is_of_rows(end, x, axes_of(reduced) or []) else None
