"""The rule for integer matrix products of codes that are quantized at run time.

MatMulInteger, [Sub], Cast, [Mul by the scales of rows and columns in any order], [Add bias]
    -> QuantizedMatMul
Cast of codes to int32, [Sub zero point], MatMul of int32, then the same nodes
    -> QuantizedMatMul
MatMulInteger of int8 codes
    -> MatMulInteger of uint8 codes

The first two need constant weights, and constant zero points of the weights. Reshapes that keep the rows may stand
between all of these nodes. The results are the same bit for bit: int32 holds every sum. On x86 without VNNI,
ONNX Runtime's sums of uint8 codes and int8 weights may saturate; sums of other types do not. So the last form also
turns int8 weights into uint8, unless they are known to be small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ..analysis.constants import constant_scalar
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.nodes import producer_of, skip_identity
from ..analysis.shapes import has_one_element, same_shape
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .channels import Channels
from .codes import Codes
from .grid import Grid, grid_of_integers
from .integer_product import UnsignedProduct, build_unsigned_product, grid_of_weights, is_static, unsigned_product_of
from .quantized_matmul import build_quantized_matmul
from .tail import Tail, check_length, tail_of
from .unsigned_codes import UnsignedCodes
from .wide_codes import wide_codes_of


@dataclass(frozen=True)
class _Match:
    """A product (codes - zero_point) @ weights that becomes QuantizedMatMul.

    Attributes:
        factor: The left factor: the codes, or wider integers that contain them.
        is_signed: Whether the codes are int8.
        zero_point: A uint8 number, or a value of the type of the codes.
        grid: The weights.
        tail: The nodes after the product: scales and bias.
    """

    factor: ir.Value
    is_signed: bool
    zero_point: int | ir.Value
    grid: Grid
    tail: Tail


def _match(node: ir.Node, context: Context) -> _Match | UnsignedProduct | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("MatMul", "MatMulInteger"):
        return None
    codes, weights = node.inputs[:2]
    if codes is None or weights is None or context.facts.is_constant(codes):
        return None
    if node.op_type == "MatMul":
        return _match_wide(node, codes, weights, context.facts)
    if is_static(codes, context.facts) or _is_fused_by_onnxruntime(codes):
        return None
    tail = tail_of(node, codes, _columns(codes, weights), context.facts)
    if codes.dtype != ir.DataType.INT8 and tail is None:
        return None
    try:
        if tail is None:
            raise Unconverted(Reason.SUMS_NOT_CONVERTED)
        is_signed, zero_point = codes.dtype == ir.DataType.INT8, [*node.inputs, None][2]
        return _match_product(codes, is_signed, zero_point, grid_of_weights(node, context.facts), tail)
    except Unconverted:
        if (unsigned := unsigned_product_of(node, context.facts)) is None:
            raise
        return unsigned


def _build(match: _Match | UnsignedProduct, edit: Edit) -> None:
    if isinstance(match, UnsignedProduct):
        build_unsigned_product(match, edit)
        return
    unsigned, zero_point = edit.shared(UnsignedCodes), match.zero_point
    if not isinstance(zero_point, ir.Value):
        zero_point = edit.add_constant(np.uint8(zero_point), before=edit.node)
    elif match.is_signed:
        zero_point = unsigned.shifted(zero_point, edit)
    codes = match.factor
    if match.tail.product.op_type == "MatMul":
        codes = unsigned.of_wide(codes, edit)
    elif match.is_signed:
        codes = unsigned.shifted(codes, edit)
    build_quantized_matmul(match.tail, Codes(codes, None, zero_point), match.grid, edit)


RULE: Rule[_Match | UnsignedProduct] = Rule("integer matrix product", 13, _match, _build)


def _is_fused_by_onnxruntime(codes: ir.Value) -> bool:
    """Returns whether codes come from DynamicQuantizeLinear: ONNX Runtime fuses the two to DynamicQuantizeMatMul."""
    return producer_of(skip_identity(codes), "DynamicQuantizeLinear") is not None


def _columns(codes: ir.Value, weights: ir.Value) -> Channels:
    """Returns the output channels of weights [K, N]; none if their number is not known."""
    shape = weights.shape
    size = shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else 0
    return Channels(size, rank=1 if codes.shape is None else len(codes.shape))


def _match_wide(node: ir.Node, factor: ir.Value, weights: ir.Value, facts: Facts) -> _Match | None:
    """Recognizes a MatMul of int32 or int64 integers, which contain codes.

    Raises:
        Unconverted: It has codes, but does not become QuantizedMatMul.
    """
    wide = wide_codes_of(factor)
    if wide is None:
        return None
    grid = _grid_of_integers(weights, facts)
    channels = Channels(grid.codes.shape[1], rank=1 if wide.shape.shape is None else len(wide.shape.shape))
    tail = tail_of(node, wide.shape, channels, facts)
    if tail is None:
        raise Unconverted(Reason.SUMS_NOT_CONVERTED)
    return _match_product(factor, wide.codes.dtype == ir.DataType.INT8, wide.zero_point, grid, tail)


def _match_product(factor: ir.Value, is_signed: bool, zero_point: ir.Value | None, grid: Grid, tail: Tail) -> _Match:
    """Recognizes a product with known weights and a tail.

    Raises:
        Unconverted: int32 may not hold the sums, or the zero points are not known to belong to the rows or to be codes.
    """
    check_length(grid)
    number = 0 if zero_point is None else constant_scalar(zero_point)
    is_one = number is not None or zero_point is None or has_one_element(zero_point)
    if tail.product.op_type == "MatMulInteger" and zero_point is not None and zero_point.shape is None:
        is_one = True  # it takes no other
    if not is_one and (tail.row is None or tail.is_row_moved or not _have_same_shape(zero_point, tail.row)):
        raise Unconverted(Reason.ACTIVATION_ZERO_POINT)
    if tail.subtracted is not None:
        number = _zero_point_of(tail.subtracted, number, grid)
        if number is None:
            raise Unconverted(Reason.SUBTRACTED_NUMBERS)
    if number is None:
        assert zero_point is not None
        return _Match(factor, is_signed, zero_point, grid, tail)
    if not 0 <= number + 128 * is_signed <= 255:
        raise Unconverted(Reason.SUBTRACTED_NUMBERS)
    return _Match(factor, is_signed, int(number) + 128 * is_signed, grid, tail)


def _have_same_shape(zero_point: ir.Value | None, scale: ir.Value) -> bool:
    """Returns whether a zero point is known to have the shape of a scale."""
    if zero_point is None:
        return False
    quantizer = skip_identity(scale).producer()
    is_of_one = quantizer is not None and quantizer.domain == DOMAIN and quantizer is zero_point.producer()
    return is_of_one or same_shape(zero_point, scale)


def _grid_of_integers(weights: ir.Value, facts: Facts) -> Grid:
    """Returns integer weights [K, N] as 8-bit codes.

    Raises:
        Unconverted: They are not known, or do not fit 8 bits.
    """
    elements = evaluate(weights, facts) if facts.is_constant(weights) else None
    if elements is None:
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    grid = grid_of_integers(elements)
    if grid is None:
        raise Unconverted(Reason.WEIGHTS_NOT_8_BITS)
    return grid


def _zero_point_of(subtracted: npt.NDArray[np.int32], zero_point: float | None, grid: Grid) -> float | None:
    """Returns the zero point that has the effect of `zero_point` and of the subtraction of a vector, or None."""
    sums, vector = grid.sums[0].astype(np.int64), subtracted.astype(np.int64)
    if zero_point is None:
        return None
    at = np.argmax(np.abs(sums))
    more = vector[at] // sums[at] if sums[at] else 0
    return zero_point + int(more) if (more * sums == vector).all() else None
