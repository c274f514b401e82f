"""Whether floats are x, quantized and dequantized: then the straight-through estimator x + (y - x) is y.

Each of its two roundings is at most 2**-24 of abs(x), abs(y - x) or abs(y). So y must be x except for the rounding of
the codes, and x must lie within the range of the codes: 3e36 + (127 - 3e36) is 0.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ...operators.encodings import RangeConstants, RangeKind, Scaling
from ..analysis.bounds import LARGEST, all_bounds_of, constant_operand
from ..analysis.constants import constant_array, constant_scalar
from ..analysis.magnitudes import largest_ratio
from ..analysis.nodes import attributes_of, producer_of, skip_identity
from ..analysis.shapes import unreshaped
from ..analysis.values import Values
from .affine_form import Affine, Op, Param, Term

_MOST_STEPS = 16
_ROUNDED = 2.0**-16  # more than the roundings of factors change their product by
_MOVES = ("Reshape", "Squeeze", "Unsqueeze")  # of a scale that moves together with the codes
_WITH_OUTPUTS = ("DynamicQuantizeLinear", "DynamicRangeQuantize")  # scale and zero point are outputs
_QUANTIZATIONS = ("QuantizeLinear", "AffineQuantize", "DynamicQuantize", *_WITH_OUTPUTS)


class _Product(NamedTuple):
    """A number times powers of values."""

    factor: float
    powers: Counter[ir.Value]

    def times(self, other: _Product, exponent: int = 1) -> _Product:
        powers = Counter(self.powers)
        for value, power in other.powers.items():
            powers[value] += exponent * power
        factor = self.factor * (other.factor if exponent > 0 else 1 / other.factor)
        return _Product(factor, Counter({value: power for value, power in powers.items() if power}))


def is_fake_quantized(form: Affine, x: ir.Value, values: Values) -> bool:
    """Returns whether a form is x quantized and dequantized by the same parameters, by a scale from the range of x.

    Where the scale is nearly 0, x may be outside of the range; but then x is as small, and denormal sums are exact.

    Args:
        form: The form of y.
        x: The value that y is to be.
        values: The bounds of the model's values.
    """
    if form.source is not None:  # one node quantizes and dequantizes
        node = form.source.node
        is_x = node.inputs[0] is not None and unreshaped(node.inputs[0]) is unreshaped(x)
        return is_x and unreshaped(form.value) is form.root and _is_in_range(x, node, form, values)
    if form.offset is not None or form.scale is None:
        return False
    found = _quotient_of(form, x, values)
    scale = _product_of(form.scale.term, x)
    if found is None or scale is None:
        return False
    node, quotient = found
    inverse = quotient.times(scale)
    if inverse.powers != {unreshaped(x): 1} or abs(inverse.factor - 1) > _ROUNDED:
        return False
    return _is_in_range(x, node, form, values, scale)


def _quotient_of(form: Affine, x: ir.Value, values: Values) -> tuple[ir.Node, _Product] | None:
    """Returns the quotient that codes are rounded from, and the node that computes or quantizes it; or None.

    Numbers of at most 1 may be added before the rounding, and the zero point of the form.
    """
    value, zero, has_zero = form.root, form.zero_point, False
    for _ in range(_MOST_STEPS):
        value = skip_identity(value)
        value = values.estimated_exactly(value) or skip_identity(all_bounds_of(value).value)
        node = value.producer()
        if node is None or None in node.inputs[:2]:
            return None
        if node.op_type in _QUANTIZATIONS and node.domain in (*STANDARD_DOMAINS, DOMAIN):
            given = (node.outputs if node.op_type in _WITH_OUTPUTS else node.inputs)[1:3]
            scale = None if not given or given[0] is None else _product_of(given[0], x)
            its_zero = given[1] if len(given) > 1 else None
            if scale is None or has_zero or not _is_same(zero, its_zero):
                return None
            is_inverse = node.domain == DOMAIN and attributes_of(node).get("scaling") == Scaling.MULTIPLY
            source = _product_of(node.inputs[0], x)
            return None if source is None else (node, source.times(scale, 1 if is_inverse else -1))
        if node.domain not in STANDARD_DOMAINS:
            return None
        inputs = [each for each in node.inputs if each is not None]
        if node.op_type in ("Mul", "Div"):
            quotient = _product_of(value, x)
            return None if quotient is None or not (has_zero or _is_same(zero, None)) else (node, quotient)
        if node.op_type in ("Round", "Floor", "Ceil", "Cast"):
            value = inputs[0]
        elif node.op_type in ("Add", "Sub") and (found := constant_operand(node, commutative=node.op_type == "Add")):
            if abs(found[1]) > 1:
                return None
            value = found[0]
        elif node.op_type == "Add" and not has_zero and any(_is_same(zero, each) for each in inputs):
            value = next(each for each in inputs[::-1] if not _is_same(zero, each) or each is inputs[0])
            has_zero = True
        else:
            return None
    return None


def _is_same(param: Param | None, value: ir.Value | None) -> bool:
    """Returns whether a zero point is a value; None is 0."""
    term = None if param is None else param.term
    numbers = [constant_scalar(each) if isinstance(each, ir.Value) else None for each in (term, value)]
    if term is None or numbers[0] == 0:
        return value is None or numbers[1] == 0
    return isinstance(term, ir.Value) and value is not None and skip_identity(term) is skip_identity(value)


def _product_of(term: Term | None, x: ir.Value, depth: int = 0) -> _Product | None:
    """Returns what a term multiplies and divides; None if it is something else. x stays one value."""
    if isinstance(term, np.ndarray):
        return _Product(float(term.reshape(-1)[0]), Counter()) if term.size == 1 and term.reshape(-1)[0] else None
    if isinstance(term, Op):
        op_type, inputs = term.op_type, list(term.inputs)
        if op_type in _MOVES:
            return _product_of(inputs[0], x, depth + 1)
    elif isinstance(term, ir.Value):
        number = constant_scalar(term)
        if number is not None:
            return _Product(number, Counter()) if number else None
        if unreshaped(term) is unreshaped(x):
            return _Product(1.0, Counter({unreshaped(x): 1}))
        value = skip_identity(term)
        while (wide := producer_of(value, "Expand", "Tile")) is not None and wide.inputs[0] is not None:
            value = skip_identity(wide.inputs[0])
        node = producer_of(value, "Mul", "Div", "Reciprocal")
        if node is None or None in node.inputs:
            return _Product(1.0, Counter({value: 1}))
        op_type, inputs = node.op_type, [each for each in node.inputs if each is not None]
    else:
        return None
    if op_type not in ("Mul", "Div", "Reciprocal") or depth > _MOST_STEPS:
        return None
    factors = [_product_of(each, x, depth + 1) for each in inputs[:2]]
    if op_type == "Reciprocal":
        factors.insert(0, _Product(1.0, Counter()))
    a, b = factors
    return None if a is None or b is None else a.times(b, 1 if op_type == "Mul" else -1)


def _is_in_range(x: ir.Value, node: ir.Node, form: Affine, values: Values, scale: _Product | None = None) -> bool:
    """Returns whether x is known to lie within the range of the codes, from 1/2 on."""
    if _has_own_range(node):
        return True
    if scale is None and node.op_type in ("AffineFakeQuantize", "DynamicFakeQuantize") and node.inputs[1] is not None:
        scale = _product_of(node.inputs[1], x)
        if scale is not None and attributes_of(node).get("scaling") == Scaling.MULTIPLY:
            scale = _Product(1.0, Counter()).times(scale, -1)
    if scale is None or len(scale.powers) != 1 or scale.factor <= 0:
        return False
    ((base, power),) = scale.powers.items()
    largest = largest_ratio(x, base, values.known, 0, is_inverse=power < 0) if abs(power) == 1 else None
    return largest is not None and largest / scale.factor <= form.high - form.low + 0.5


def _has_own_range(node: ir.Node) -> bool:
    """Returns whether a node quantizes by the range of its input, which nothing limits."""
    if node.op_type in ("DynamicQuantizeLinear", "DynamicQuantizeDequantizeLinear"):
        return True
    if node.domain != DOMAIN or not node.op_type.startswith("DynamicRange"):
        return False
    elements = constant_array(node.inputs[1])
    if elements is None or elements.size != len(RangeConstants._fields):
        return False
    constants, attributes = RangeConstants(*map(float, elements)), attributes_of(node)
    is_limited = constants.highest_range < LARGEST or constants.highest_scale < LARGEST
    has_inverse = bool(attributes["inverse_scale"]) and constants.lowest_scale > 0
    kinds = (RangeKind.ABS_MAX, RangeKind.MIN_MAX_WITH_ZERO)
    ends = min(-constants.lowest_minimum, constants.highest_maximum)
    return attributes["range_kind"] in kinds and not is_limited and not has_inverse and ends >= LARGEST
