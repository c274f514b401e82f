"""Recognizes integers that nodes add to the int32 sums of a product, such as the corrections of its zero points.

sums - zero_point * column_sums - weights_zero_point * row_sums + K * zero_point * weights_zero_point + bias

Exporters write these terms in any order, and compute some of them at run time. They are read as a polynomial: its
variables are computed at run time. QuantizedMatMul and QuantizedConv subtract one product of a zero point and the sums
of the weights: `correction_of` finds numbers for it. int32 wraps around, so every identity holds modulo 2**32.

Example: sums - z * [5, -3] - 2 * row_sums + bias: the weights have the zero point 2 and the sums 5 and -3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.inference import Facts
from ..analysis.limits import OPERANDS
from ..analysis.nodes import producer_of
from ..analysis.shapes import axes_of, has_one_element
from ..analysis.standard import ARITHMETIC
from ..analysis.types import CODE_TYPES, WIDE_TYPES
from ..codes.unsigned_codes import UnsignedCodes
from ..codes.wide_codes import narrow
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..shared_initializers import SharedInitializers
from ..weights.channels import Channels

_MAX_VALUE = 2**31
EXACT_IN_FLOAT = 2**24
"""float32 holds all integers of at most this magnitude."""


class RowSums(NamedTuple):
    """The sums of the rows of codes."""

    codes: ir.Value


Numbers: TypeAlias = "npt.NDArray[np.int64]"
Terms: TypeAlias = "Mapping[tuple[ir.Value | RowSums, ...], Numbers]"
"""A sum of products: the factors that are computed at run time, and the numbers [N] that multiply them."""


def terms_of(value: ir.Value, channels: Channels, facts: Facts, depth: int = 0) -> Terms:
    """Returns an integer value, of int32, int64 or float32, as terms.

    Raises:
        Unconverted: Its constants exceed int32, or a float32 value is not known to be an integer without roundings.
    """
    numbers, terms = channels.vector(value, None, facts), _computed(value, channels, facts, depth)
    if numbers is not None and np.abs(numbers, dtype=float).max() < _MAX_VALUE and (numbers == np.rint(numbers)).all():
        terms = {(): numbers.astype(np.int64)}
    elif terms is None:
        terms = {(_row_sums_of(value) or narrow(value) or value,): np.ones(channels.size, np.int64)}
    if value.dtype == ir.DataType.FLOAT and bound_of(terms) > EXACT_IN_FLOAT:
        raise Unconverted(Reason.ADDED_NUMBERS)
    return terms


def _computed(value: ir.Value, channels: Channels, facts: Facts, depth: int) -> Terms | None:
    """Returns the terms of a sum, a difference, a product or a Cast of integers; None for other values."""
    node = producer_of(value, *ARITHMETIC - {"Div"}, "Cast", "Neg")
    if node is None or OPERANDS.is_passed(depth + 1) or value.dtype not in (*WIDE_TYPES, ir.DataType.FLOAT):
        return None
    types = WIDE_TYPES if node.op_type == "Cast" else (value.dtype,)
    inputs = [each for each in node.inputs if each is not None and each.dtype in types]
    if len(inputs) < len(node.inputs):
        return None
    left, *others = (terms_of(each, channels, facts, depth + 1) for each in inputs)
    if node.op_type == "Mul":
        return _product(left, others[0])
    if node.op_type == "Neg":
        return added({}, left, -1)
    return added(left, others[0], -1 if node.op_type == "Sub" else 1) if others else left


def bound_of(terms: Terms) -> float:
    """Returns a bound of the magnitude of terms, infinity if there is none."""
    return sum(float(np.abs(numbers).max()) * math.prod(map(_bound_of, factors)) for factors, numbers in terms.items())


def _bound_of(factor: ir.Value | RowSums) -> float:
    if isinstance(factor, ir.Value):
        return 255.0 if factor.dtype in CODE_TYPES else math.inf
    length = None if factor.codes.shape is None else factor.codes.shape[-1]
    return 255.0 * length if isinstance(length, int) else math.inf


def added(terms: Terms, others: Terms, sign: int = 1) -> Terms:
    """Returns the sum or difference of terms.

    Raises:
        Unconverted: Its numbers exceed int32.
    """
    total = dict(terms)
    for factors, numbers in others.items():
        total[factors] = total.get(factors, 0) + sign * numbers
        if np.abs(total[factors]).max(initial=0) >= _MAX_VALUE:
            raise Unconverted(Reason.ADDED_NUMBERS)
    return total


def _product(left: Terms, right: Terms) -> Terms:
    terms: Terms = {}
    for (a, m), (b, n) in product(left.items(), right.items()):
        terms = added(terms, {(*a, *b): m * n})
    return terms


def terms_of_zero_point(zero_point: ir.Value | None, sums: npt.NDArray[np.int32]) -> Terms:
    """Returns what a product with a zero point adds to the product without it; `sums` are those of its weights."""
    if zero_point is None:
        return {}
    number = constant_scalar(zero_point)
    factors = (zero_point,) if number is None else ()
    return {factors: sums.astype(np.int64) * (-1 if number is None else -int(number))}


def _row_sums_of(value: ir.Value) -> RowSums | None:
    """Returns the codes if a value, [..., 1], is the sums of their rows; None if it is something else."""
    unsqueeze = producer_of(value, "Unsqueeze")
    node = producer_of(value if unsqueeze is None else unsqueeze.inputs[0], "ReduceSum")
    codes = None if node is None or node.inputs[0] is None else narrow(node.inputs[0])
    if node is None or codes is None or codes.shape is None:
        return None
    last = ([-1], [len(codes.shape) - 1])
    if unsqueeze is not None and axes_of(unsqueeze) not in last:
        return None
    keepdims = 1 if unsqueeze is None else 0
    return RowSums(codes) if node.attributes.get_int("keepdims", 1) == keepdims and axes_of(node) in last else None


@dataclass(frozen=True)
class Correction:
    """zero_point * (sums - terms), subtracted from the sums of uint8 codes.

    Attributes:
        zero_point: A uint8 number, or a value of the type of the codes.
        sums: int32, [N]; None: the sums of the weights.
        terms: The part that is computed at run time, if the zero point is 1.
    """

    zero_point: int | ir.Value = 0
    sums: npt.NDArray[np.int32] | None = None
    terms: Terms | None = None

    def build_zero_point(self, is_signed: bool, edit: Edit) -> ir.Value:
        """Returns the zero point of the uint8 codes that int8 or uint8 codes become."""
        if not isinstance(self.zero_point, ir.Value):
            return edit.add_constant(np.uint8(self.zero_point), before=edit.node)
        return edit.shared(UnsignedCodes).shifted(self.zero_point, edit) if is_signed else self.zero_point

    def build_sums(self, of_weights: npt.NDArray[np.int32], edit: Edit, before: ir.Node) -> ir.Value:
        """Returns the sums that take the place of the sums of the weights, of their shape."""
        shape = of_weights.shape
        sums = of_weights if self.sums is None else self.sums.reshape(shape)
        if not self.terms:
            return edit.shared(SharedInitializers).of(sums, edit)
        value = edit.add_constant(sums, before=before)
        for factors, numbers in self.terms.items():
            ones = (numbers == 1).all()
            parts = [] if ones else [edit.add_constant(numbers.astype(np.int32).reshape(shape), before=before)]
            for factor in factors:
                assert isinstance(factor, ir.Value)
                if factor.dtype != ir.DataType.INT32:
                    factor = edit.insert(ir.node("Cast", [factor], {"to": int(ir.DataType.INT32)}), before=before)
                reshape = ir.node("Reshape", [factor, edit.add_constant(np.array([-1]), before=before)])
                parts.append(edit.insert(reshape, before=before))
            term = parts.pop(0)
            for part in parts:
                term = edit.insert(ir.node("Mul", [term, part]), before=before)
            value = edit.insert(ir.node("Sub", [value, term]), before=before)
        return value


def correction_of(
    terms: Terms, sums: npt.NDArray[np.int32], codes: ir.Value, zero_point: ir.Value | None, channels: Channels
) -> Correction:
    """Returns what to subtract from the sums of uint8 codes so that terms are added to the sums of the codes.

    Args:
        terms: The terms, with that of the zero point.
        sums: The sums of the weights, [N].
        codes: The codes. If they are int8, the uint8 codes are 128 larger.
        zero_point: The zero point of the product. Another factor of its type may become the zero point of the result;
            for matrices, the caller checks its shape.
        channels: The output channels.

    Raises:
        Unconverted: There is no such correction.
    """
    shift, column_sums = 128 * (codes.dtype == ir.DataType.INT8), sums.astype(np.int64)
    constant = terms.get((), 0) - shift * column_sums
    others = {factors: numbers for factors, numbers in terms.items() if factors and numbers.any()}
    if not others:
        number = _ratio(-constant, column_sums)
        return Correction(1, (-constant).astype(np.int32)) if number is None else Correction(number)
    (first, *_), numbers = next(iter(others.items()))
    is_alone = [(first,)] == list(others) and (constant == shift * numbers).all()
    if is_alone and isinstance(first, ir.Value) and (first is zero_point or _may_be_zero_point(first, codes, channels)):
        return Correction(first, None if (numbers == -column_sums).all() else (-numbers).astype(np.int32))
    is_one = zero_point is not None and (zero_point.shape is None or has_one_element(zero_point))
    check_columns([factors for factors in others if not is_one or factors != (zero_point,)], channels)
    return Correction(1, (-constant).astype(np.int32), others)


def _may_be_zero_point(value: ir.Value, codes: ir.Value, channels: Channels) -> bool:
    fits = not channels.spatial_rank or has_one_element(value, channels.most_dimensions)
    return fits and value.dtype == codes.dtype


def check_columns(terms: Collection[tuple[ir.Value | RowSums, ...]], channels: Channels) -> None:
    """Checks that terms are known to be the same for all rows.

    Raises:
        Unconverted: They are not.
    """
    for factor in (factor for factors in terms for factor in factors):
        if not isinstance(factor, ir.Value) or not channels.fits(factor):
            raise Unconverted(Reason.ADDED_NUMBERS)


def _ratio(vector: Numbers, sums: Numbers) -> int | None:
    """Returns the uint8 number that multiplies the sums to give a vector, or None."""
    at = np.argmax(np.abs(sums))
    number = int(vector[at] // sums[at]) if sums[at] else 0
    return number if 0 <= number <= 255 and (number * sums == vector).all() else None
