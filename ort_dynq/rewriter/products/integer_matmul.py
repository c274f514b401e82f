"""The rule for integer matrix products of codes that are quantized at run time.

MatMulInteger, [Add or Sub of integers], Cast, [Mul by the scales of rows and columns in any order], [Add bias]
    -> QuantizedMatMul
Cast of codes to int32, [Sub zero point], MatMul or Einsum of int32, then the same nodes
    -> QuantizedMatMul
MatMulInteger of int8 codes or weights
    -> MatMulInteger of uint8 codes and weights

MatMulInteger may have a zero point for each row, which ONNX Runtime does not run: [..., M, 1], or [M] beside a matrix.

The first two need constant weights, and constant zero points of the weights; corrections.py has the integers that may
be added. Reshapes that keep the rows may stand between all of these nodes. The results are the same bit for bit: int32
holds every sum. On x86 without VNNI, ONNX Runtime's sums of uint8 codes and int8 weights may saturate
(../policy/saturation.py). So products are converted at any size, also those that ONNX Runtime fuses with
DynamicQuantizeLinear, and the last form turns int8 weights into uint8, unless they are known to be small: then the
fused kernel is exact as well, and on CPUs without VNNI it is faster, because it adds products in int16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...operators import DOMAIN
from ..analysis.evaluation import evaluate_if_constant
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs, input_of, producer_of
from ..analysis.shapes import has_one_element, is_equal, is_shape_of_rows, same_shape
from ..analysis.standard import STACKED_PRODUCTS
from ..codes.affine import AffineForms
from ..codes.codes import Codes
from ..codes.unsigned_codes import UnsignedCodes
from ..codes.wide_codes import WideCodes, wide_codes_of
from ..edit import Edit
from ..policy.saturation import has_small_weights
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.channels import Channels, columns_of
from ..weights.grid import QuantizedWeights, check_length, columns_of_stack, grid_of_integers
from ..weights.matrix_product import matrix_product_of, stack_beside
from .corrections import Correction, Numbers, RowSums, added, correction_of, terms_of_zero_point
from .epilogue import Epilogue, epilogue_of
from .integer_product import (
    UnsignedProduct,
    build_unsigned_product,
    grid_of_weights,
    has_several,
    is_static,
    match_product,
    zero_points_of_columns,
)
from .quantized_matmul import build_quantized_matmul


@dataclass(frozen=True)
class _IntegerMatMul:
    """A product of integers that becomes QuantizedMatMul.

    Attributes:
        factor: The left factor: the codes, or wider integers that contain them.
        is_signed: Whether the codes are int8.
        grid: The weights.
        epilogue: The nodes after the product: scales and bias.
        correction: What is subtracted from the sums of the uint8 codes.
        has_vector: Whether the zero points of the rows are a vector, [M].
    """

    factor: ir.Value
    is_signed: bool
    grid: QuantizedWeights
    epilogue: Epilogue
    correction: Correction
    has_vector: bool = False


def _match(node: ir.Node, context: Context) -> _IntegerMatMul | UnsignedProduct | None:
    (codes, weights), facts = first_inputs(node, 2), context.facts
    if codes is None or weights is None or facts.is_constant(codes):
        return None
    if node.op_type != "MatMulInteger":
        return _match_wide(node, codes, weights, facts)
    if is_static(codes, facts):
        return None
    return match_product(node, facts, lambda: _match_integer(node, codes, weights, context))


def _match_integer(node: ir.Node, codes: ir.Value, weights: ir.Value, context: Context) -> _IntegerMatMul | None:
    """Recognizes a MatMulInteger.

    Raises:
        Unconverted: It does not become QuantizedMatMul.
    """
    facts = context.facts
    channels = _columns(codes, weights)
    epilogue = epilogue_of(node, codes, channels, facts, lambda: _largest_sum(grid_of_weights(node, facts)))
    # ONNX Runtime also fuses products of stacked weights, but does not run them.
    is_fused = _is_fused_by_onnxruntime(codes) and not channels.stack
    if is_fused and (epilogue is None or not epilogue.added):
        if context.options.keep_fused:
            return None
        if epilogue is not None and has_small_weights(node, facts):
            raise Unconverted(Reason.SMALL_WEIGHTS)
    if not facts.is_constant(weights):
        form = context.shared(AffineForms).of(weights)
        is_activation = form is not None and not form.root.is_graph_input()
        raise Unconverted(
            Reason.TWO_QUANTIZED_ACTIVATIONS if is_activation else Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME
        )
    zero_point, grid = input_of(node, 2), grid_of_weights(node, facts)
    grid = replace(grid, stack=stack_beside(grid.stack, codes))
    if epilogue is None and has_several(zero_point):
        raise Unconverted(Reason.ACTIVATION_ONE_ZERO_POINT)
    if epilogue is None:
        is_fast = codes.dtype == ir.DataType.UINT8
        raise Unconverted(Reason.SUMS_NOT_SCALED if is_fast else Reason.SUMS_NOT_CONVERTED)
    return _match_product(codes, WideCodes(codes, zero_point, codes), grid, epilogue)


def _build(match: _IntegerMatMul | UnsignedProduct, edit: Edit) -> None:
    if isinstance(match, UnsignedProduct):
        build_unsigned_product(match, edit)
        return
    unsigned, codes = edit.shared(UnsignedCodes), match.factor
    zero_point = match.correction.build_zero_point(match.is_signed, edit)
    if match.has_vector:
        column = edit.add_constant(np.array([-1, 1]), before=edit.node)
        zero_point = edit.insert(ir.node("Reshape", [zero_point, column]), before=edit.node)
    if match.epilogue.product.op_type != "MatMulInteger":
        codes = unsigned.of_wide(codes, edit)
    elif match.is_signed:
        codes = unsigned.shifted(codes, edit)
    repeats_scale = match.epilogue.row is None and not has_one_element(zero_point)
    found = Codes(codes, None, zero_point, repeats_scale=repeats_scale)
    build_quantized_matmul(match.epilogue, found, match.grid, edit, match.correction)


RULE: Rule[_IntegerMatMul | UnsignedProduct] = Rule(
    "integer matrix product", 13, _match, _build, operators=STACKED_PRODUCTS | {"MatMulInteger"}
)


def _is_fused_by_onnxruntime(codes: ir.Value) -> bool:
    """Returns whether codes come from DynamicQuantizeLinear: ONNX Runtime fuses the two to DynamicQuantizeMatMul."""
    return producer_of(codes, "DynamicQuantizeLinear") is not None


def _columns(codes: ir.Value, weights: ir.Value) -> Channels:
    """Returns the output channels of weights [..., K, N]; none if their number is not known.

    Raises:
        Unconverted: The weights are stacked, and the codes are a vector, or may be one.
    """
    if weights.shape is None or len(weights.shape) < 2 or not weights.shape.is_static():
        return Channels(0)
    *lead, _, columns = weights.shape.numpy()
    return columns_of(columns * math.prod(lead), stack_beside(tuple(lead), codes), codes)


def _match_wide(node: ir.Node, factor: ir.Value, weights: ir.Value, facts: Facts) -> _IntegerMatMul | None:
    """Recognizes a MatMul, or an Einsum like it, of int32 or int64 integers, which contain codes.

    Raises:
        Unconverted: It has codes, but does not become QuantizedMatMul.
    """
    wide = wide_codes_of(factor)
    product = None if wide is None else matrix_product_of(node)
    if wide is None or product is None:
        return None
    grid = _grid_of_integers(weights, facts, product.has_transposed_b)
    grid = replace(grid, stack=stack_beside(grid.stack, wide.shape))
    channels = columns_of(grid.codes.shape[1], grid.stack, wide.shape)
    epilogue = epilogue_of(node, wide.shape, channels, facts, lambda: _largest_sum(grid))
    if epilogue is None:
        raise Unconverted(Reason.SUMS_NOT_CONVERTED)
    match = _match_product(factor, wide, grid, epilogue)
    if node.outputs[0].dtype != ir.DataType.INT32 and match.correction.sums is not None:  # int64 does not wrap around
        raise Unconverted(Reason.ADDED_NUMBERS)
    return match


def _match_product(factor: ir.Value, codes: WideCodes, grid: QuantizedWeights, epilogue: Epilogue) -> _IntegerMatMul:
    """Recognizes a product with known weights and an epilogue.

    Raises:
        Unconverted: int32 may not hold the sums, or the zero points are not known to belong to the rows or to be codes.
    """
    zero_point = codes.zero_point
    terms = added(epilogue.added, terms_of_zero_point(zero_point, grid.sums[0]))
    row_sums = (RowSums(codes.shape),)
    if row_sums in terms:
        grid = _with_zero_points(grid, -terms[row_sums])
        terms = {factors: numbers for factors, numbers in terms.items() if factors != row_sums}
    check_length(grid)
    correction = correction_of(terms, grid.sums[0], codes.codes, zero_point, epilogue.channels)
    value = correction.zero_point
    has_vector = value is zero_point and _is_vector_of_rows(value, codes.shape, epilogue)
    if isinstance(value, ir.Value) and not (
        has_vector
        or has_one_element(value, epilogue.channels.rank)
        or (
            value is zero_point and value.shape is None and epilogue.product.op_type == "MatMulInteger"
        )  # takes no other
        or (epilogue.row is None and is_shape_of_rows(value, codes.shape))
        or (epilogue.row is not None and not epilogue.is_row_moved and _have_same_shape(value, epilogue.row))
        or (epilogue.row is not None and not epilogue.is_row_moved and _are_of_rows((value, epilogue.row), codes.shape))
    ):
        raise Unconverted(Reason.ACTIVATION_ZERO_POINT)
    return _IntegerMatMul(factor, codes.codes.dtype == ir.DataType.INT8, grid, epilogue, correction, has_vector)


def _is_vector_of_rows(value: int | ir.Value | None, codes: ir.Value, epilogue: Epilogue) -> bool:
    """Returns whether the zero point of MatMulInteger is a vector, one number for each row of a matrix of codes.

    If rows have scales, they have one for each row, too.
    """
    if epilogue.product.op_type != "MatMulInteger" or not isinstance(value, ir.Value):
        return False
    if value.shape is None or codes.shape is None or (len(value.shape), len(codes.shape)) != (1, 2):
        return False
    if has_one_element(value) or not is_equal(value.shape[0], codes.shape[0]):
        return False
    return epilogue.row is None or (not epilogue.is_row_moved and _are_of_rows((epilogue.row,), codes))


def _largest_sum(grid: QuantizedWeights) -> float:
    """Returns a bound of the magnitude of the sums of codes, minus a zero point, times weights."""
    return 255.0 * float(np.abs(grid.codes.astype(np.int64) - grid.zero_point).sum(0).max())


def _with_zero_points(grid: QuantizedWeights, numbers: Numbers) -> QuantizedWeights:
    """Returns weights with zero points that are larger by these numbers.

    Raises:
        Unconverted: The zero points do not fit 8 bits.
    """
    zeros = grid.zero_point + numbers
    if zeros.min() < -128 or zeros.max() > 127:
        raise Unconverted(Reason.ADDED_NUMBERS)
    return replace(grid, zero_point=zero_points_of_columns(zeros.astype(np.int8)))


def _are_of_rows(values: Iterable[ir.Value], codes: ir.Value) -> bool:
    """Returns whether values are known to have one number for each row of the codes, not one for all."""
    return all(is_shape_of_rows(each, codes, is_shared=False) and not has_one_element(each) for each in values)


def _have_same_shape(zero_point: ir.Value, scale: ir.Value) -> bool:
    """Returns whether a zero point is known to have the shape of a scale."""
    quantizer = scale.producer()
    is_of_one = quantizer is not None and quantizer.domain == DOMAIN and quantizer is zero_point.producer()
    return is_of_one or same_shape(zero_point, scale)


def _grid_of_integers(weights: ir.Value, facts: Facts, is_transposed: bool) -> QuantizedWeights:
    """Returns integer weights, [..., K, N] or, transposed, [..., N, K], as 8-bit codes.

    Raises:
        Unconverted: They are not known, or do not fit 8 bits.
    """
    elements = evaluate_if_constant(weights, facts)
    if elements is None:
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    elements = elements.swapaxes(-1, -2) if is_transposed else elements
    matrix, stack = columns_of_stack(elements) if elements.ndim > 1 else (elements, ())
    grid = grid_of_integers(matrix)
    if grid is None:
        raise Unconverted(Reason.WEIGHTS_NOT_8_BITS)
    return replace(grid, stack=stack)
