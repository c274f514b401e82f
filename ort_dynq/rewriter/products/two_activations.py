"""The rules for matrix products of two factors of 8-bit codes that stay integers, such as attention in integers.

Cast of codes to int32 or int64, [Sub zero point], MatMul or Einsum of two of them   -> MatMulInteger of uint8 codes
the same of codes and constant weights, which integer_matmul.py left as it was      -> MatMulInteger of uint8 codes
QLinearMatMul of int8 codes                                                         -> QLinearMatMul of uint8 codes

The sums are the same integers. ONNX Runtime multiplies wide integers, and int8 by int8, one by one, and uint8 codes in
vectors. int8 codes that no quantization of the model makes, such as those of a cache, have to be shifted in each run:
they stay if the product may have one row.

integer_matmul.py makes uint8 codes of MatMulInteger of two activations. QuantizedMatMul would have to pack one factor
in each run (decisions.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.quantized_matmul import MAX_SUM_LENGTH
from ..analysis.constants import constant_scalar
from ..analysis.evaluation import evaluate
from ..analysis.nodes import first_inputs
from ..analysis.shapes import has_one_element
from ..analysis.standard import STACKED_PRODUCTS
from ..analysis.types import WIDE_TYPES
from ..codes.unsigned_codes import UnsignedCodes, is_made_unsigned
from ..codes.wide_codes import WideCodes, wide_codes_of
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from ..weights.matrix_product import MatrixProduct, matrix_product_of


@dataclass(frozen=True)
class _ProductOfTwo:
    """A product of two activations, or of one and constants.

    Attributes:
        product: The product of wide integers.
        factors: The codes in each of its factors that is no constant.
        weights: The elements of a constant factor, [K, N].
    """

    product: MatrixProduct
    factors: tuple[WideCodes, ...]
    weights: npt.NDArray[Any] | None = None


_ZERO_POINTS = (2, 5, 7)  # inputs of QLinearMatMul


def _match(node: ir.Node, context: Context) -> _ProductOfTwo | None:
    if not _is_wide(node) or any(each is not None and context.facts.is_constant(each) for each in node.inputs):
        return None
    return _product_of(node, list(node.inputs))


def _is_wide(node: ir.Node) -> bool:
    """Returns whether a node is a product of two factors of int32 or int64."""
    return len(node.inputs) == 2 and all(each is not None and each.dtype in WIDE_TYPES for each in node.inputs)


def _match_constant(node: ir.Node, context: Context) -> _ProductOfTwo | None:
    """Returns a product by constants of 8 bits that the rule of integer products had no use for."""
    a, b = first_inputs(node, 2) if _is_wide(node) else (None, None)
    if a is None or b is None or context.facts.is_constant(a) or not context.facts.is_constant(b):
        return None
    try:
        found = _product_of(node, [a])
    except Unconverted:
        return None
    weights = None if found is None else evaluate(b, context.facts)
    if found is None or weights is None or weights.ndim != 2 or not weights.size:
        return None
    is_code = weights.min() >= -128 and weights.max() <= 127 + 128 * (weights.min() >= 0)
    weights = weights.swapaxes(-1, -2) if found.product.has_transposed_b else weights
    return replace(found, weights=weights) if is_code else None


def _product_of(node: ir.Node, activations: Sequence[ir.Value | None]) -> _ProductOfTwo | None:
    """Returns a product of wide integers if these factors are codes, else None.

    Raises:
        Unconverted: MatMulInteger does not compute the same, or not faster.
    """
    found = [codes for each in activations if each is not None and (codes := wide_codes_of(each)) is not None]
    product = matrix_product_of(node) if len(found) == len(activations) else None
    if product is None:
        return None
    for each in found:
        _check_zero_point(each)
    if product.has_transposed_b and product.b.shape is None:
        raise Unconverted(Reason.RANK_NOT_KNOWN)
    if node.outputs[0].dtype != ir.DataType.INT32 and not _is_short(product.a):  # int64 does not wrap around
        raise Unconverted(Reason.SUMS_LENGTH)
    if not all(is_made_unsigned(each.codes) for each in found) and not _has_rows(product.a):
        raise Unconverted(Reason.CODES_FROM_OUTSIDE)
    return _ProductOfTwo(product, tuple(found))


def _check_zero_point(factor: WideCodes) -> None:
    """Checks that MatMulInteger takes the zero point of a factor.

    Raises:
        Unconverted: It is not one number, or not a code.
    """
    if factor.zero_point is None:
        return
    if not has_one_element(factor.zero_point):
        raise Unconverted(Reason.ACTIVATION_ONE_ZERO_POINT)
    number, lowest = constant_scalar(factor.zero_point), _lowest(factor)
    if number is not None and not lowest <= number <= lowest + 255:
        raise Unconverted(Reason.ZERO_POINT_NO_CODE)


def _lowest(factor: WideCodes) -> int:
    return -128 if factor.codes.dtype == ir.DataType.INT8 else 0


def _is_short(a: ir.Value) -> bool:
    """Returns whether the sums of a product by A, [..., M, K], are known to fit int32."""
    depth = None if a.shape is None or not len(a.shape) else a.shape[-1]
    return isinstance(depth, int) and depth <= MAX_SUM_LENGTH


def _has_rows(a: ir.Value) -> bool:
    """Returns whether A, [..., M, K], is known to have several rows."""
    rows = None if a.shape is None or len(a.shape) < 2 else a.shape[-2]
    return isinstance(rows, int) and rows > 1


def _without_garbage(sums: ir.Value, codes: ir.Value, edit: Edit) -> ir.Value:
    """Returns the sums, 0 if there are no products: ONNX Runtime's MatMulInteger does not write them then."""
    depth = None if codes.shape is None or not len(codes.shape) else codes.shape[-1]
    if isinstance(depth, int) and depth > 0:
        return sums
    node = edit.node
    last, one = (edit.add_constant(np.array(each, np.int64), before=node) for each in (-1, 1))
    length = edit.insert(ir.node("Gather", [edit.insert(ir.node("Shape", [codes]), before=node), last]), before=node)
    is_any = edit.insert(ir.node("Min", [length, one]), before=node)
    factor = edit.insert(ir.node("Cast", [is_any], {"to": int(ir.DataType.INT32)}), before=node)
    product = edit.insert(ir.node("Mul", [sums, factor]), before=node)
    edit.facts.note(product, ir.DataType.INT32, node.outputs[0].shape)
    return product


def _build(match: _ProductOfTwo, edit: Edit) -> None:
    node, product, unsigned = edit.node, match.product, edit.shared(UnsignedCodes)
    zero_points = [_zero_point(each, edit) for each in match.factors]
    a = unsigned.of_wide(product.a, edit)
    if match.weights is not None:
        lowest = -128 if match.weights.min() < 0 else 0
        b = edit.shared(SharedInitializers).of((match.weights - lowest).astype(np.uint8), edit)
        zero_points.append(edit.add_constant(np.uint8(-lowest), before=node))
    else:
        b = unsigned.of_wide(product.b, edit)
    if product.has_transposed_b and match.weights is None:
        assert product.b.shape is not None
        *lead, rows, columns = range(len(product.b.shape))
        b = edit.insert(ir.node("Transpose", [b], {"perm": [*lead, columns, rows]}), before=node)
    sums = edit.insert_main(ir.node("MatMulInteger", [a, b, *zero_points]), before=node)
    sums = _without_garbage(sums, a, edit)
    dtype = node.outputs[0].dtype
    if dtype is not None and dtype != ir.DataType.INT32:
        edit.facts.note(sums, ir.DataType.INT32, node.outputs[0].shape)
        sums = edit.insert(ir.node("Cast", [sums], {"to": int(dtype)}), before=node)
    edit.replace(node.outputs[0], sums)


def _zero_point(factor: WideCodes, edit: Edit) -> ir.Value:
    """Returns the zero point of the uint8 codes of a factor, a scalar."""
    number = 0.0 if factor.zero_point is None else constant_scalar(factor.zero_point)
    if number is not None:
        return edit.add_constant(np.uint8(int(number) - _lowest(factor)), before=edit.node)
    assert factor.zero_point is not None
    scalar = edit.add_constant(np.zeros(0, np.int64), before=edit.node)
    value = edit.shared(UnsignedCodes).of(factor.zero_point, edit)
    return edit.insert(ir.node("Reshape", [value, scalar]), before=edit.node)


def _match_linear(node: ir.Node, context: Context) -> tuple[ir.Value, ...] | None:
    """Returns the factors and zero points, all of int8, of a QLinearMatMul of two activations."""
    if len(node.inputs) != 8:
        return None
    values = [each for each in (node.inputs[0], node.inputs[3], *(node.inputs[i] for i in _ZERO_POINTS)) if each]
    if len(values) != 5 or any(each.dtype != ir.DataType.INT8 for each in values):
        return None
    if any(map(context.facts.is_constant, values[:2])):
        return None
    # The codes of the result become int8 again.
    a, b = values[:2]
    is_cheap = _has_rows(a) or (is_made_unsigned(a) and is_made_unsigned(b))
    return tuple(values) if is_cheap and _is_worth_shifts(a, b) else None


_MIN_PRODUCTS = 1 << 16  # with which the shifts of all codes take as long as they gain (Zen 3)


def _is_worth_shifts(a: ir.Value, b: ir.Value) -> bool:
    """Returns whether a product is not known to be small, or of one row."""
    if a.shape is None or b.shape is None or len(a.shape) < 2 or len(b.shape) < 2:
        return True
    sizes = (*a.shape, b.shape[-1])
    return a.shape[-2] != 1 and (
        not all(isinstance(each, int) for each in sizes)
        or math.prod(each for each in sizes if isinstance(each, int)) >= _MIN_PRODUCTS
    )


def _build_linear(values: tuple[ir.Value, ...], edit: Edit) -> None:
    """Puts the uint8 form in place: its codes and zero points are 128 larger, also those of the result."""
    node, unsigned = edit.node, edit.shared(UnsignedCodes)
    inputs = list(node.inputs)
    for i, value in zip((0, 3, *_ZERO_POINTS), values, strict=True):
        inputs[i] = unsigned.shifted(value, edit)
    codes = edit.insert_main(ir.node("QLinearMatMul", inputs), before=node)
    edit.facts.note(codes, ir.DataType.UINT8, node.outputs[0].shape)
    wide = edit.insert(ir.node("Cast", [codes], {"to": int(ir.DataType.INT32)}), before=node)
    half = edit.add_constant(np.array(128, np.int32), before=node)
    signed = edit.insert(ir.node("Sub", [wide, half]), before=node)
    edit.replace(node.outputs[0], edit.insert(ir.node("Cast", [signed], {"to": int(ir.DataType.INT8)}), before=node))


RULE: Rule[_ProductOfTwo] = Rule("integer product of two activations", 13, _match, _build, operators=STACKED_PRODUCTS)
CONSTANT: Rule[_ProductOfTwo] = Rule(
    "integer product by constants", 13, _match_constant, _build, operators=STACKED_PRODUCTS
)
LINEAR: Rule[tuple[ir.Value, ...]] = Rule(
    "QLinearMatMul of two activations", 13, _match_linear, _build_linear, operators=("QLinearMatMul",)
)
