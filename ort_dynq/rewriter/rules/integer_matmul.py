"""The rule for integer matrix products of codes that are quantized at run time.

MatMulInteger [Sub] Cast, Mul by the scale of rows and by that of columns in any order, [Add bias]
    -> QuantizedMatMul
MatMulInteger of int8 codes
    -> MatMulInteger of uint8 codes

The first needs constant weights, and constant zero points of the weights. The results are the same bit for bit: int32
holds every sum. On x86 without VNNI, ONNX Runtime's sums of uint8 codes and int8 weights saturate, those of other types
do not. So the second makes uint8 weights of int8 ones, too, unless they are known to be small.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..builders.integer_product import converted, is_static, weights_of
from ..builders.product_tail import Channels, check_length, tail_of
from ..builders.unsigned_codes import UnsignedCodes
from ..edit import Edit
from ..facts.grid import Grid
from ..facts.inference import Facts
from ..facts.values import constant_scalar, producer_of, skip_identity
from ..report import Left
from ..rule import Context, Rule

_OTHER_NUMBERS = "the numbers subtracted from the sums are not a zero point times the sums of the weights"
_NO_TAIL = "the sums are not converted to float32 and multiplied by a scale"


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type != "MatMulInteger":
        return None
    codes, weights = node.inputs[:2]
    if codes is None or weights is None or is_static(codes, context.facts) or _is_fused_by_onnxruntime(codes):
        return None
    if codes.dtype != ir.DataType.INT8 and tail_of(node.outputs[0], codes, _columns(weights), context.facts) is None:
        return None
    return converted(node, context, _as_one_operator)


RULE = Rule("integer matrix product", 13, _apply)


def _is_fused_by_onnxruntime(codes: ir.Value) -> bool:
    """Returns whether codes come from DynamicQuantizeLinear: ONNX Runtime fuses the two to DynamicQuantizeMatMul."""
    return producer_of(skip_identity(codes), "DynamicQuantizeLinear") is not None


def _columns(weights: ir.Value) -> Channels:
    """Returns the output channels of weights [K, N]; none if their number is not known."""
    shape = weights.shape
    return Channels(shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else 0)


def _as_one_operator(node: ir.Node, context: Context) -> Edit:
    """Returns the edit that puts QuantizedMatMul in place of a product and its tail.

    Raises:
        Left: The weights or zero points are not known, or int32 may not hold the sums.
    """
    codes, weights, zero_point = [*node.inputs, None][:3]
    assert codes is not None
    assert weights is not None
    tail = tail_of(node.outputs[0], codes, _columns(weights), context.facts)
    if tail is None:
        raise Left(_NO_TAIL)
    grid = _grid(node, context.facts)
    check_length(grid)
    is_signed = codes.dtype == ir.DataType.INT8
    if zero_point is not None and zero_point.shape is not None and any(dim != 1 for dim in zero_point.shape):
        raise Left("the activation's zero point is not one number")
    number = 0 if zero_point is None else constant_scalar(zero_point)
    if tail.subtracted is not None:
        number = _zero_point_of(tail.subtracted, number, grid)
        if number is None:
            raise Left(_OTHER_NUMBERS)
    if number is not None and not 0 <= number + 128 * is_signed <= 255:
        raise Left(_OTHER_NUMBERS)
    edit = context.edit("QuantizedMatMul", node)
    unsigned = context.shared(UnsignedCodes)
    if number is not None:
        zero_point = edit.add_constant(np.uint8(number + 128 * is_signed), before=node)
    else:
        assert zero_point is not None
        zero_point = unsigned.shifted(zero_point, edit) if is_signed else zero_point
    tail.replace(unsigned.shifted(codes, edit) if is_signed else codes, zero_point, grid, context, edit)
    return edit


def _grid(node: ir.Node, facts: Facts) -> Grid:
    """Returns weights [K, N] and their zero points as int8; the scales are not those of the tail.

    Raises:
        Left: They are not known.
    """
    elements, zeros = weights_of(node, facts)
    if elements.ndim != 2 or not elements.size:
        raise Left("the weights are not a matrix, or empty")
    columns = elements.shape[1]
    if zeros.shape not in ((), (1,), (columns,)):
        raise Left("the zero points of the weights are not one number for each output channel")
    zeros = zeros.reshape(1, -1) if (zeros != zeros.reshape(-1)[0]).any() else zeros.reshape(-1)[:1]
    return Grid(elements, zeros, np.ones((1, columns), np.float32))


def _zero_point_of(subtracted: npt.NDArray[np.int32], zero_point: float | None, grid: Grid) -> float | None:
    """Returns the zero point that has the effect of `zero_point` and of the subtraction of a vector, or None."""
    sums, vector = grid.sums[0].astype(np.int64), subtracted.astype(np.int64)
    if zero_point is None:
        return None
    at = np.argmax(np.abs(sums))
    more = vector[at] // sums[at] if sums[at] else 0
    return zero_point + int(more) if (more * sums == vector).all() else None
