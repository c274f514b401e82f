"""The rule for integer products of codes that are quantized at run time.

MatMulInteger [Sub] Cast, Mul by the scale of rows and by that of columns in any order, [Add bias]
    -> MatMulInteger, AccumulatorDequantize
MatMulInteger | ConvInteger of int8 codes
    -> MatMulInteger | ConvInteger of uint8 codes

The results are the same bit for bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators.encodings import ScaleOrder
from ..builders.product_tail import Tail, column_vector, is_row_scale
from ..builders.unsigned_codes import UnsignedCodes
from ..edit import Edit
from ..facts.folding import evaluate
from ..facts.inference import Facts
from ..facts.values import cast_to, only_use, producer_of, skip_identity
from ..report import Left
from ..rule import Context, Rule

# On x86 without VNNI, ONNX Runtime adds pairs of u8 x s8 products in int16, which saturates with larger weights.
_LARGEST_UNSATURATED_WEIGHT = 64


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("MatMulInteger", "ConvInteger"):
        return None
    codes, weights, zero_point, weights_zero_point = [*node.inputs, None, None, None, None][:4]
    facts = context.facts
    if codes is None or weights is None or _is_static(codes, facts) or _is_fused_by_onnxruntime(codes):
        return None
    is_signed = codes.dtype == ir.DataType.INT8
    columns = _columns(weights)
    tail = _tail_of(node, codes, columns, facts) if node.op_type == "MatMulInteger" else None
    if not is_signed and tail is None:
        return None
    unsigned_weights = None
    if is_signed and context.exact and weights.dtype == ir.DataType.INT8:
        unsigned_weights = _unsigned_weights(weights, facts)
    edit = context.edit(node.op_type if tail is None else "AccumulatorDequantize", node)
    if is_signed:
        unsigned, half = context.shared(UnsignedCodes), np.uint8(128)
        if unsigned_weights is not None:
            if weights_zero_point is None:
                weights_zero_point = edit.add_constant(half, before=node)
            else:
                weights_zero_point = unsigned.shifted(weights_zero_point, edit)
            weights = edit.add_initializer(unsigned_weights, near=node)
        zero_point = edit.add_constant(half, before=node) if zero_point is None else unsigned.shifted(zero_point, edit)
        codes = unsigned.shifted(codes, edit)
    inputs = [codes, weights, zero_point, weights_zero_point]
    while inputs[-1] is None:
        inputs.pop()
    product = ir.node(node.op_type, inputs, dict(node.attributes))
    if tail is None:
        edit.replace(node.outputs[0], edit.insert_main(product, before=node))
        return edit
    sums = edit.insert(product, before=tail.node)
    # AccumulatorDequantize subtracts zero_point * column_sums.
    has_subtracted = tail.subtracted is not None
    column_sums = np.zeros(columns, np.int32) if tail.subtracted is None else tail.subtracted
    tail.replace(sums, edit.add_constant(np.uint8(has_subtracted), before=node), column_sums, context, edit)
    return edit


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


def _unsigned_weights(weights: ir.Value, facts: Facts) -> npt.NDArray[np.uint8] | None:
    """Returns int8 weights as uint8, 128 larger, if sums of u8 x s8 products may saturate on older CPUs; else None.

    On x86 without VNNI, ONNX Runtime adds pairs of u8 x s8 products in int16. Sums of u8 x u8 products do not saturate,
    but take longer.

    Raises:
        Left: The weights are not known.
    """
    elements = evaluate(weights, facts.opset) if facts.is_constant(weights) else None
    if elements is None:
        raise Left("exact: sums of uint8 codes and int8 weights that are not known may saturate on older CPUs")
    if np.abs(elements.astype(np.int32)).max(initial=0) <= _LARGEST_UNSATURATED_WEIGHT:
        return None
    return np.asarray(elements.view(np.uint8) ^ np.uint8(0x80))


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
