"""Recognizes how a scale is computed from the range of x, as exporters write it.

RANGE   over the last dimensions: max|x| | max(|min|, |max|) | max - min | max(max / qmax, min / qmin)
SCALE   range / c | range * k | (1 / range) * c | c / range; Where(s == 0, e, s)
        range and scale bounded by Clip, Max or comparisons (analysis/bounds.py), or with an epsilon added

s is the scale. Casts to float16 and back may round minimum, maximum or max|x|, and the scale before its bounds.
range_zero_point.py recognizes the zero point, arithmetic.py and qdq.py the quantization. The result has the attributes
and constants of DynamicRangeQuantize.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf as _INFINITY

import onnx_ir as ir

from ...operators.encodings import AddedEpsilon, InverseScale, RangeConstants, RangeKind
from ..analysis.bounds import LARGEST, Bounded, bounds_of, constant_operand, signed_magnitude_of
from ..analysis.constants import constant_scalar, is_zero
from ..analysis.nodes import operand, producer_of, rounded_to_float16, skip_identity
from ..analysis.shapes import axes_of, does_not_grow, unreshaped
from ..reasons import Reason, Unconverted
from .range_zero_point import ZeroPoint, zero_point_of

_ATTRIBUTES = ("axis", "range_kind", "inverse_scale", "added_epsilon", "float16_range", "float16_scale")


@dataclass
class Recipe:
    """How a scale and a zero point are computed from x. :func:`recipe_of` fills it step by step; then it is constant.

    Attributes:
        axis, range_kind, inverse_scale, added_epsilon, float16_range, float16_scale: As in DynamicRangeQuantize.
        constants: The input of DynamicRangeQuantize.
        keepdims: Whether the reductions keep dimensions of length 1.
        zero_point: How the zero point is computed.
        start: The node that computes the scale before its epsilon. The operator is inserted before it.
        takes_magnitude: Whether the chain takes the magnitude of its range, which the recipe leaves out. That changes
            the scale of empty rows, whose range is -infinity.
    """

    axis: int = 0
    range_kind: RangeKind = RangeKind.ABS_MAX
    inverse_scale: InverseScale = InverseScale.NONE
    added_epsilon: AddedEpsilon = AddedEpsilon.NONE
    float16_range: int = 0
    float16_scale: int = 0
    constants: RangeConstants = field(default_factory=RangeConstants)
    keepdims: bool = True
    zero_point: ZeroPoint = field(default_factory=ZeroPoint)
    start: ir.Node | None = None
    takes_magnitude: bool = False

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes by name."""
        return {
            **{name: int(getattr(self, name)) for name in _ATTRIBUTES},
            "zero_point_rule": int(self.zero_point.rule),
            "zero_point_before_epsilon": int(self.zero_point.before_epsilon),
            "zero_point_type": int(self.zero_point.type),
        }

    def set(self, **constants: float) -> None:
        """Sets fields of the constants."""
        self.constants = self.constants._replace(**constants)


def recipe_of(
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    bounds: tuple[int, int],
    graph: ir.Graph | ir.Function | None,
) -> Recipe:
    """Returns the recipe by which `scale` and `zero_point` are computed from `x`.

    Args:
        x: The tensor that is quantized.
        scale: The scale, or an inverse one.
        zero_point: The zero point; None if there is none.
        bounds: The range of the codes, to which the zero point is clipped.
        graph: The graph of the quantization.

    Raises:
        Unconverted: They are computed in another way, from something else, or in another graph.
    """
    recipe = Recipe()
    final = unreshaped(scale)
    value = final
    if (where := producer_of(value, "Where")) is not None and bounds_of(value) is None:
        value, scale_of_zero = _where_zero(where)
        recipe.set(scale_of_zero=scale_of_zero)
    bounded = _guarded(value, recipe, AddedEpsilon.SCALE)
    recipe.set(lowest_scale=bounded.least, highest_scale=bounded.most)
    before = bounded.value
    recipe.start, value = before.producer(), before
    if (exact := rounded_to_float16(value)) is not None:
        recipe.float16_scale, value = 1, skip_identity(exact)
    if (node := producer_of(value, "Mul")) is not None and (found := constant_operand(node, commutative=True)):
        value, factor = found
        recipe.set(factor=factor)
    elif (node := producer_of(value, "Div")) is not None and (number := _numerator(node)) is not None:
        recipe.inverse_scale, value = InverseScale.QUOTIENT, operand(node, 1)
        recipe.set(factor=number)
    if (node := producer_of(value, "Div")) is not None and (found := constant_operand(node, commutative=False)):
        value, divisor = found
        recipe.set(divisor=divisor)
    if recipe.constants.divisor <= 0 or recipe.constants.factor <= 0:
        raise Unconverted(Reason.RANGE_FACTOR_NOT_POSITIVE)
    if not recipe.inverse_scale and (node := producer_of(value, "Reciprocal")) is not None:
        recipe.inverse_scale, value = InverseScale.RECIPROCAL, operand(node)
    low = _range(x, value, recipe)
    if recipe.inverse_scale and recipe.range_kind != RangeKind.ABS_MAX:
        raise Unconverted(Reason.INVERSE_SCALE_OF_ANOTHER_RANGE)
    if recipe.takes_magnitude and not _is_positive(recipe):
        raise Unconverted(Reason.MAGNITUDE_OF_MINUS_ZERO)
    if zero_point is not None:
        recipe.zero_point = zero_point_of(zero_point, low, final, before, recipe.constants, bounds)
    if recipe.start is None or recipe.start.graph is not graph:
        raise Unconverted(Reason.RANGE_IN_ANOTHER_GRAPH)
    return recipe


def _numerator(division: ir.Node) -> float | None:
    """Returns the constant that a node divides by its variable operand, or None."""
    number = constant_scalar(division.inputs[0])
    return number if does_not_grow(division.inputs[0], division.inputs[1]) else None


def _guarded(value: ir.Value, recipe: Recipe, where: AddedEpsilon) -> Bounded:
    """Returns a range or a scale before the bounds or the added epsilon that keep it away from 0, with the bounds.

    Magnitudes are skipped and noted in the recipe, as is the sign in Where(v >= 0, 1, -1) * clip(|v|).
    """
    found, is_added = Bounded(value), False
    while True:
        value = found.value
        if (magnitude := producer_of(value, "Abs")) is not None:
            recipe.takes_magnitude = True
            found = replace(found, value=operand(magnitude))
        elif (magnitude_of := signed_magnitude_of(value)) is not None:
            found = replace(found, value=magnitude_of)
        elif (inner := _bounds(value)).value is not value:
            if recipe.takes_magnitude and inner.most < 0:
                raise Unconverted(Reason.MAGNITUDE_OF_NEGATIVE)
            if is_added:
                raise Unconverted(Reason.RANGE_BOUNDED_TWICE)
            found = inner.within(found)
        elif (added := _added(value)) is not None:
            if recipe.added_epsilon or found.least != -_INFINITY:
                raise Unconverted(Reason.RANGE_BOUNDED_TWICE)
            recipe.added_epsilon, is_added = where, True
            found = Bounded(*added, found.most)
        else:
            return found


def _added(value: ir.Value) -> tuple[ir.Value, float] | None:
    """Returns the two operands of the Add of a positive constant, or None."""
    node = producer_of(value, "Add")
    found = None if node is None else constant_operand(node, commutative=True)
    return found if found is not None and found[1] > 0 else None


def _is_positive(recipe: Recipe) -> bool:
    """Returns whether the magnitude of the range of a row with elements is the range, and never -0.

    max|x| is not negative. The minimum is not larger than the maximum, but their difference may be -0.
    """
    is_difference = recipe.range_kind in (RangeKind.MIN_MAX, RangeKind.MIN_MAX_WITH_ZERO)
    return recipe.range_kind == RangeKind.ABS_MAX or (is_difference and recipe.constants.lowest_range > 0)


def _bounds(value: ir.Value) -> Bounded:
    """Returns the input and the bounds of a node that bounds `value`; `value` without bounds if there is none."""
    found = bounds_of(value)
    if found is None and producer_of(value, "Clip") is not None:
        raise Unconverted(Reason.CLIP_BOUNDS_AT_RUN_TIME)
    return found or Bounded(value)


def _where_zero(where: ir.Node) -> tuple[ir.Value, float]:
    """Returns s and e of Where(Equal(s, 0), e, s)."""
    condition = where.inputs[0]
    equal = None if condition is None else producer_of(skip_identity(condition), "Equal")
    value, replacement = operand(where, 2), constant_scalar(where.inputs[1])
    if equal is None or replacement is None or not does_not_grow(where.inputs[1], where.inputs[2]):
        raise Unconverted(Reason.WHERE_CONDITION)
    found = constant_operand(equal, commutative=True)
    if found is None or found[1] != 0 or found[0] is not value:
        raise Unconverted(Reason.WHERE_CONDITION)
    return value, replacement


def _range(x: ir.Value, value: ir.Value, recipe: Recipe) -> ir.Value | None:
    """Recognizes the range, sets it in the recipe, and returns the minimum, if it has one."""
    bounded = _guarded(value, recipe, AddedEpsilon.RANGE)
    value = bounded.value
    recipe.set(lowest_range=bounded.least, highest_range=bounded.most)
    value = _exact(value, recipe)
    if (node := producer_of(value, "ReduceMax")) is not None:
        inner = producer_of(_exact(operand(node), recipe), "Abs")
        if inner is None or not _is_x(node, operand(inner), x):
            raise Unconverted(Reason.MAXIMUM_OF_ANOTHER_VALUE)
        recipe.axis, recipe.keepdims = _rows(node, x)
        return None
    if (node := producer_of(value, "Max")) is not None and len(node.inputs) == 2:
        _two_sided(x, node, recipe)
        if recipe.float16_range and recipe.range_kind == RangeKind.LARGER_SIDE:
            raise Unconverted(Reason.RANGE_ROUNDED)
        return None
    if (node := producer_of(value, "Sub")) is None:
        raise Unconverted(Reason.RANGE_NOT_OF_X)
    if recipe.float16_range:
        raise Unconverted(Reason.RANGE_ROUNDED)
    low, high = operand(node, 1), operand(node, 0)
    low_end, high_end = _end(low, "ReduceMin"), _end(high, "ReduceMax")
    _same_rows(x, low_end.value, high_end.value, recipe)
    are_rounded = [rounded_to_float16(_bounds(end).value) is not None for end in (low, high)]
    if any(are_rounded) and not all(are_rounded):
        raise Unconverted(Reason.ENDS_ROUNDED_APART)
    recipe.float16_range |= int(all(are_rounded))
    if is_zero(low_end.most) and is_zero(high_end.least):
        recipe.range_kind = RangeKind.MIN_MAX_WITH_ZERO
        recipe.set(lowest_minimum=low_end.least, highest_maximum=high_end.most)
    elif (low_end.least, low_end.most, high_end.least, high_end.most) == (-_INFINITY, _INFINITY) * 2:
        recipe.range_kind = RangeKind.MIN_MAX
    else:
        raise Unconverted(Reason.ENDS_BOUNDED_APART)
    return low


def _two_sided(x: ir.Value, node: ir.Node, recipe: Recipe) -> None:
    """Recognizes max(|min|, |max|), which equals max|x|, and max(max / qmax, min / qmin)."""
    sides = [operand(node, 0), operand(node, 1)]
    divisions = [producer_of(side, "Div") for side in sides]
    if all(divisions):
        ends: dict[str, tuple[ir.Value, float]] = {}
        for division in divisions:
            assert division is not None
            found = constant_operand(division, commutative=False)
            reduce = None if found is None else producer_of(found[0], "ReduceMin", "ReduceMax")
            if found is None or reduce is None:
                raise Unconverted(Reason.RANGE_NOT_OF_X)
            ends[reduce.op_type] = found
        if len(ends) != 2 or ends["ReduceMin"][1] >= 0 or ends["ReduceMax"][1] <= 0:
            raise Unconverted(Reason.RANGE_NOT_OF_X)
        if (recipe.constants.lowest_range, recipe.constants.highest_range) != (-_INFINITY, _INFINITY):
            raise Unconverted(Reason.RANGE_BOUNDED_TWICE)
        recipe.range_kind = RangeKind.LARGER_SIDE
        _same_rows(x, ends["ReduceMin"][0], ends["ReduceMax"][0], recipe)
        recipe.set(lowest_minimum=ends["ReduceMin"][1], highest_maximum=ends["ReduceMax"][1])
        return
    low = high = None
    for side in sides:
        positive = producer_of(side, "Abs", "Neg")
        end = operand(positive) if positive is not None else side
        if _reduces(end, "ReduceMin") and positive is not None:
            low = _end(end, "ReduceMin")
        elif _reduces(end, "ReduceMax") and (positive is None or positive.op_type == "Abs"):
            high = _end(end, "ReduceMax")
    if low is None or high is None:
        raise Unconverted(Reason.RANGE_NOT_OF_X)
    _same_rows(x, low.value, high.value, recipe)
    if low.most not in (0, _INFINITY) or high.least not in (0, -_INFINITY) or recipe.constants.highest_range < LARGEST:
        raise Unconverted(Reason.ENDS_BOUNDED_APART)
    if low.least > -LARGEST or high.most < LARGEST:
        raise Unconverted(Reason.ENDS_BOUNDED_AWAY_FROM_ZERO)
    # A bound at the largest float makes an infinite minimum or maximum finite, and the range, too.
    if LARGEST in (-low.least, high.most):
        if low.least != -high.most or recipe.added_epsilon:
            raise Unconverted(Reason.ENDS_BOUNDED_APART)
        recipe.set(highest_range=LARGEST)


def _reduces(value: ir.Value, op_type: str) -> bool:
    return producer_of(_bounds(value).value, op_type) is not None


def _exact(value: ir.Value, recipe: Recipe) -> ir.Value:
    """Returns a range, or |x|, before it is rounded to float16, which is noted in the recipe: rounding is monotonic."""
    exact = rounded_to_float16(value)
    recipe.float16_range |= int(exact is not None)
    return value if exact is None else skip_identity(exact)


def _end(value: ir.Value, op_type: str) -> Bounded:
    """Returns one end of the range: a reduction, not rounded to float16, and its bounds."""
    bounded = _bounds(value)
    if (exact := rounded_to_float16(bounded.value)) is not None:
        bounded = replace(bounded, value=skip_identity(exact))
    if producer_of(bounded.value, op_type) is None:
        raise Unconverted(Reason.RANGE_NOT_OF_X)
    return bounded


def _same_rows(x: ir.Value, low: ir.Value, high: ir.Value, recipe: Recipe) -> None:
    """Checks that minimum and maximum are taken over the same rows of x, and sets the rows in the recipe."""
    nodes = [producer_of(low, "ReduceMin"), producer_of(high, "ReduceMax")]
    for node in nodes:
        if node is None or not _is_x(node, operand(node), x):
            raise Unconverted(Reason.ENDS_NOT_OF_X)
    rows = {_rows(node, x) for node in nodes if node is not None}
    if len(rows) != 1:
        raise Unconverted(Reason.ENDS_OF_OTHER_DIMENSIONS)
    recipe.axis, recipe.keepdims = rows.pop()


def _is_x(reduce: ir.Node, value: ir.Value, x: ir.Value) -> bool:
    """Returns whether a node reduces `value`, which is x; or reduces all of it, and `value` is x reshaped."""
    x = skip_identity(x)
    return value is x or (axes_of(reduce) == [] and unreshaped(value) is x)


def _rows(reduce: ir.Node, x: ir.Value) -> tuple[int, bool]:
    """Returns the first of the last dimensions that a node reduces, negative, or 0 for all; and keepdims."""
    return _axis(reduce, x), reduce.attributes.get_int("keepdims", 1) == 1


def _axis(reduce: ir.Node, x: ir.Value) -> int:
    rank = None if x.shape is None else len(x.shape)
    axes = axes_of(reduce)
    if axes is None:
        raise Unconverted(Reason.RANGE_DIMENSIONS_AT_RUN_TIME)
    if not axes:
        if reduce.attributes.get_int("noop_with_empty_axes", 0) != 0:
            raise Unconverted(Reason.RANGE_OF_NO_DIMENSION)
        return 0
    if rank is None and any(axis >= 0 for axis in axes):
        raise Unconverted(Reason.RANK_NOT_KNOWN)
    last = sorted(axis if axis < 0 else axis - (rank or 0) for axis in axes)
    if last != list(range(-len(last), 0)):
        raise Unconverted(Reason.RANGE_NOT_OF_LAST_DIMENSIONS)
    return 0 if rank is not None and len(last) == rank else -len(last)
