"""The rule for integer products of codes that are quantized at run time.

MatMulInteger [Sub] Cast, Mul by the scale of rows and by that of columns in any order, [Add bias]
    -> QuantizedMatMul
MatMulInteger | ConvInteger of int8 codes
    -> MatMulInteger | ConvInteger of uint8 codes

The first applies to constant weights and zero points of weights. The results are the same bit for bit: int32 holds
every sum. On x86 without VNNI, ONNX Runtime's sums of uint8 codes and int8 weights saturate, those of other types do
not. So the second makes uint8 weights of int8 ones, too, unless they are known to be small.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators.encodings import ScaleOrder
from ..builders.product_tail import Tail, check_length, column_vector, is_row_scale
from ..builders.shared_initializers import SharedInitializers
from ..builders.unsigned_codes import UnsignedCodes
from ..edit import Edit
from ..facts.folding import evaluate
from ..facts.grid import Grid
from ..facts.inference import Facts
from ..facts.values import CODE_TYPES, cast_to, constant_scalar, only_use, producer_of, skip_identity
from ..report import Left
from ..rule import Context, Rule

# On x86 without VNNI, ONNX Runtime adds pairs of u8 x s8 products in int16, which saturates with larger weights.
_LARGEST_UNSATURATED_WEIGHT = 64
_OTHER_NUMBERS = "the numbers subtracted from the sums are not a zero point times the sums of the weights"


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("MatMulInteger", "ConvInteger"):
        return None
    codes, weights = node.inputs[:2]
    facts = context.facts
    if codes is None or weights is None or _is_static(codes, facts) or _is_fused_by_onnxruntime(codes):
        return None
    is_signed = codes.dtype == ir.DataType.INT8
    tail = _tail_of(node, codes, _columns(weights), facts) if node.op_type == "MatMulInteger" else None
    if tail is None:
        return _as_unsigned(node, codes, weights, context) if is_signed else None
    try:
        return _as_one_operator(node, codes, weights, tail, context)
    except Left:
        if not is_signed:
            raise
        return _as_unsigned(node, codes, weights, context)


RULE = Rule("integer matrix product", 13, _apply)


def _is_static(codes: ir.Value, facts: Facts) -> bool:
    """Returns whether codes are constant or have constant parameters: static quantization is left to ONNX Runtime."""
    quantizer = producer_of(skip_identity(codes), "QuantizeLinear")
    return facts.is_constant(codes) or (quantizer is not None and all(map(facts.is_constant, quantizer.inputs[1:])))


def _is_fused_by_onnxruntime(codes: ir.Value) -> bool:
    """Returns whether codes come from DynamicQuantizeLinear: ONNX Runtime fuses the two to DynamicQuantizeMatMul."""
    return producer_of(skip_identity(codes), "DynamicQuantizeLinear") is not None


def _columns(weights: ir.Value) -> int:
    """Returns the number of output channels of weights [K, N]; 0 if it is not known."""
    shape = weights.shape
    return shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else 0


def _as_one_operator(node: ir.Node, codes: ir.Value, weights: ir.Value, tail: Tail, context: Context) -> Edit:
    """Returns the edit that puts QuantizedMatMul in place of a product and its tail.

    Raises:
        Left: The weights or zero points are not known, or int32 may not hold the sums.
    """
    zero_point, weights_zero_point = [*node.inputs[2:], None, None][:2]
    grid = _grid(weights, weights_zero_point, context.facts)
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


def _grid(weights: ir.Value, zero_point: ir.Value | None, facts: Facts) -> Grid:
    """Returns weights [K, N] and their zero points as int8; the scales are not those of the tail.

    Raises:
        Left: They are not known.
    """
    elements, zeros = (
        evaluate(each, facts.opset) if each is not None and facts.is_constant(each) else None
        for each in (weights, zero_point)
    )
    if elements is None or (zero_point is not None and zeros is None):
        raise Left("the weights or their zero points are computed at run time")
    if elements.ndim != 2 or not elements.size:
        raise Left("the weights are not a matrix, or empty")
    columns = elements.shape[1]
    if zeros is None:
        zeros = np.zeros(1, elements.dtype)
    if zeros.dtype != elements.dtype or zeros.shape not in ((), (1,), (columns,)):
        raise Left("the zero points of the weights are not one number for each output channel")
    zeros = zeros.reshape(1, -1) if (zeros != zeros.reshape(-1)[0]).any() else zeros.reshape(-1)[:1]
    if elements.dtype == np.uint8:
        elements, zeros = ((each ^ np.uint8(0x80)).view(np.int8) for each in (elements, zeros))
    return Grid(elements, zeros, np.ones((1, columns), np.float32))


def _zero_point_of(subtracted: npt.NDArray[np.int32], zero_point: float | None, grid: Grid) -> float | None:
    """Returns the zero point that has the effect of `zero_point` and of the subtraction of a vector, or None."""
    sums, vector = grid.sums[0].astype(np.int64), subtracted.astype(np.int64)
    if zero_point is None:
        return None
    at = np.argmax(np.abs(sums))
    more = vector[at] // sums[at] if sums[at] else 0
    return zero_point + int(more) if (more * sums == vector).all() else None


def _as_unsigned(node: ir.Node, codes: ir.Value, weights: ir.Value, context: Context) -> Edit:
    """Returns the edit that makes uint8 codes of the int8 codes of a product, and uint8 weights unless they are small.

    Raises:
        Left: The type of the weights is not known.
    """
    zero_point, weights_zero_point = [*node.inputs[2:], None, None][:2]
    if weights.dtype not in CODE_TYPES:
        raise Left("the type of the weights is not known")
    may_saturate = weights.dtype == ir.DataType.INT8 and not _is_small(weights, context.facts)
    edit = context.edit(node.op_type, node)
    unsigned, half = context.shared(UnsignedCodes), np.uint8(128)

    def shifted(value: ir.Value | None) -> ir.Value:
        return edit.add_constant(half, before=node) if value is None else unsigned.shifted(value, edit)

    if may_saturate:
        weights_zero_point = shifted(weights_zero_point)
        elements = evaluate(weights, context.facts.opset) if context.facts.is_constant(weights) else None
        if elements is None:
            weights = unsigned.shifted(weights, edit)
        else:
            weights = context.shared(SharedInitializers).of(elements.view(np.uint8) ^ np.uint8(0x80), node, edit)
    inputs = [unsigned.shifted(codes, edit), weights, shifted(zero_point), weights_zero_point]
    while inputs[-1] is None:
        inputs.pop()
    product = ir.node(node.op_type, inputs, dict(node.attributes))
    edit.replace(node.outputs[0], edit.insert_main(product, before=node))
    return edit


def _is_small(weights: ir.Value, facts: Facts) -> bool:
    """Returns whether weights are known to be so small that no pair of products saturates int16."""
    elements = evaluate(weights, facts.opset) if facts.is_constant(weights) else None
    return elements is not None and np.abs(elements.astype(np.int32)).max(initial=0) <= _LARGEST_UNSATURATED_WEIGHT


def _tail_of(node: ir.Node, codes: ir.Value, columns: int, facts: Facts) -> Tail | None:
    """Returns the tail of the sums: a Cast, then Muls by the rows' scale, the columns' scale, or their product."""
    tail = Tail(node.outputs[0])
    use = only_use(tail.last)
    if use is not None and use.node.op_type == "Sub" and use.idx == 0:
        tail.subtracted = column_vector(use.node.inputs[1], columns, np.int32, facts)
        use = None if tail.subtracted is None else only_use(use.node.outputs[0])
    if not columns or use is None or use.node.op_type != "Cast" or cast_to(use.node) != ir.DataType.FLOAT:
        return None
    tail.last = use.node.outputs[0]
    while (use := only_use(tail.last)) is not None and use.node.op_type == "Mul":
        factor = use.node.inputs[1 - use.idx]
        is_first = tail.row is None and tail.column is None
        column = column_vector(factor, columns, np.float32, facts)
        if column is not None and tail.column is None:
            tail.column = column
            tail.scale_order = ScaleOrder.COLUMN_FIRST if is_first else ScaleOrder.ROW_FIRST
        elif column is None and tail.row is None and is_row_scale(factor, codes):
            tail.row = factor
            tail.scale_order = ScaleOrder.ROW_FIRST if is_first else ScaleOrder.COLUMN_FIRST
        elif is_first and (scales := _scales_of(factor, codes, columns, facts)) is not None:
            tail.row, tail.column = scales
            tail.scale_order = ScaleOrder.SCALES_FIRST
        else:
            break
        tail.last = use.node.outputs[0]
    if tail.row is None and tail.column is None:
        return None
    tail.take_bias(columns, facts)
    return tail


def _scales_of(
    value: ir.Value | None, codes: ir.Value, columns: int, facts: Facts
) -> tuple[ir.Value, npt.NDArray[np.float32]] | None:
    """Returns the scale of the rows and that of the columns, if `value` is their product, or None."""
    product = None if value is None else producer_of(skip_identity(value), "Mul")
    if product is None:
        return None
    for row, column in (tuple(product.inputs), tuple(reversed(product.inputs))):
        vector = column_vector(column, columns, np.float32, facts)
        if vector is not None and row is not None and is_row_scale(row, codes):
            return row, vector
    return None
