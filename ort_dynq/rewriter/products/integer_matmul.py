"""The rule for integer matrix products of codes that are quantized at run time.

MatMulInteger [Sub] Cast, [Mul by the scale of rows, and by that of columns, in any order], [Add bias]
    -> QuantizedMatMul
Cast of codes to int32, [Sub zero point], MatMul of int32, the same
    -> QuantizedMatMul
MatMulInteger of int8 codes
    -> MatMulInteger of uint8 codes

The first two need constant weights, and constant zero points of the weights. Reshapes that keep the rows may be between
all of these nodes. The results are the same bit for bit: int32 holds every sum. On x86 without VNNI, ONNX Runtime's
sums of uint8 codes and int8 weights saturate, those of other types do not. So the last one makes uint8 weights of int8
ones, too, unless they are known to be small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ..analysis.folding import evaluate
from ..analysis.inference import Facts
from ..analysis.shapes import same_shape
from ..analysis.values import constant_scalar, has_one_element, producer_of, skip_identity
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .grid import Grid, grid_of_integers
from .integer_product import converted, grid_of_weights, is_static, wide_codes_of
from .tail import Channels, check_length, tail_of
from .unsigned_codes import UnsignedCodes


class _Factors(NamedTuple):
    """What a product multiplies: (codes - zero_point) @ weights.

    Attributes:
        integers: The left factor: the codes, or wider integers that contain them.
        codes: uint8 or int8 codes of the same shape; or `integers`, if nothing else has their shape.
        is_signed: Whether the codes are int8.
        zero_point: Of the type of the codes, or a constant; None if there is none.
        grid: The weights.
    """

    integers: ir.Value
    codes: ir.Value
    is_signed: bool
    zero_point: ir.Value | None
    grid: Grid


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("MatMul", "MatMulInteger"):
        return None
    codes, weights = node.inputs[:2]
    if codes is None or weights is None or context.facts.is_constant(codes):
        return None
    if node.op_type == "MatMul":
        wide = wide_codes_of(codes)
        if wide is None:
            return None
        grid = _grid_of_integers(weights, context.facts)
        is_signed = wide.codes.dtype == ir.DataType.INT8
        return _as_one_operator(node, _Factors(codes, wide.shape, is_signed, wide.zero_point, grid), context)
    if is_static(codes, context.facts) or _is_fused_by_onnxruntime(codes):
        return None
    if codes.dtype != ir.DataType.INT8 and tail_of(node, codes, _columns(codes, weights), context.facts) is None:
        return None
    return converted(node, context, _of_codes)


RULE = Rule("integer matrix product", 13, _apply)


def _is_fused_by_onnxruntime(codes: ir.Value) -> bool:
    """Returns whether codes come from DynamicQuantizeLinear: ONNX Runtime fuses the two to DynamicQuantizeMatMul."""
    return producer_of(skip_identity(codes), "DynamicQuantizeLinear") is not None


def _columns(codes: ir.Value, weights: ir.Value) -> Channels:
    """Returns the output channels of weights [K, N]; none if their number is not known."""
    shape = weights.shape
    size = shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else 0
    return Channels(size, rank=1 if codes.shape is None else len(codes.shape))


def _of_codes(node: ir.Node, context: Context) -> Edit:
    """Returns the edit that puts QuantizedMatMul in place of a MatMulInteger and its tail.

    Raises:
        Unconverted: See :func:`_as_one_operator`.
    """
    codes, weights, zero_point = [*node.inputs, None][:3]
    assert codes is not None
    assert weights is not None
    if tail_of(node, codes, _columns(codes, weights), context.facts) is None:
        raise Unconverted(Reason.SUMS_NOT_CONVERTED)
    is_signed = codes.dtype == ir.DataType.INT8
    return _as_one_operator(
        node, _Factors(codes, codes, is_signed, zero_point, grid_of_weights(node, context.facts)), context
    )


def _as_one_operator(node: ir.Node, factors: _Factors, context: Context) -> Edit:
    """Returns the edit that puts QuantizedMatMul in place of a product and its tail.

    Raises:
        Unconverted: The weights or zero points are not known, or int32 may not hold the sums.
    """
    integers, codes, is_signed, zero_point, grid = factors
    channels = Channels(grid.codes.shape[1], rank=1 if codes.shape is None else len(codes.shape))
    tail = tail_of(node, codes, channels, context.facts)
    if tail is None:
        raise Unconverted(Reason.SUMS_NOT_CONVERTED)
    check_length(grid)
    number = 0 if zero_point is None else constant_scalar(zero_point)
    is_one = number is not None or zero_point is None or has_one_element(zero_point)
    if node.op_type == "MatMulInteger" and zero_point is not None and zero_point.shape is None:
        is_one = True  # it takes no other
    if not is_one and (tail.row is None or tail.is_row_moved or not _have_same_shape(zero_point, tail.row)):
        raise Unconverted(Reason.ACTIVATION_ZERO_POINT)
    if tail.subtracted is not None:
        number = _zero_point_of(tail.subtracted, number, grid)
        if number is None:
            raise Unconverted(Reason.SUBTRACTED_NUMBERS)
    if number is not None and not 0 <= number + 128 * is_signed <= 255:
        raise Unconverted(Reason.SUBTRACTED_NUMBERS)
    edit = context.edit("QuantizedMatMul", node)
    unsigned = context.shared(UnsignedCodes)
    if number is not None:
        zero_point = edit.add_constant(np.uint8(number + 128 * is_signed), before=node)
    else:
        assert zero_point is not None
        zero_point = unsigned.shifted(zero_point, edit) if is_signed else zero_point
    if node.op_type == "MatMul":
        codes = unsigned.of_wide(integers, edit)
    elif is_signed:
        codes = unsigned.shifted(codes, edit)
    tail.replace(codes, zero_point, grid, channels, context, edit)
    return edit


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
