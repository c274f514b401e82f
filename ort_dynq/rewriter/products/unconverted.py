"""The rule that reports products of quantized data which no other rule has converted or reported. It changes nothing.

MatMul | Gemm | Conv | ... of data that were quantized before it    -> unconverted
MatMul | Conv | ... of weights that ONNX Runtime dequantizes         -> unconverted
AveragePool between DequantizeLinear and QuantizeLinear             -> unconverted
Conv of com.microsoft.nchwc                                         -> unconverted
First operators of domain trt (ModelOpt) on a way                   -> unconverted

The reason is the first value on the way from the codes to the product that is not codes times a scale (affine.py).
A product that multiplies weights only, or floats that were never quantized by floats, is not reported.
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import NCHWC, RUNTIME_DOMAINS, STANDARD_DOMAINS, TENSORRT
from ...opsets import OPSET
from ..analysis.nodes import first_inputs, input_of, is_standard, only_use, producer_of, program_of
from ..analysis.standard import (
    FLOAT_PRODUCTS,
    INTEGER_PRODUCTS,
    MADE_PRODUCTS,
    POOLS,
    REARRANGING,
    RECURRENT,
    STATIC_PRODUCTS,
)
from ..codes.affine import AffineForms
from ..metadata import RULE as ADDED
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.dequantized_weights import dequantizer_of, is_dequantized, quantized_weights
from .integer_product import is_static

_FLOAT_PRODUCTS = FLOAT_PRODUCTS | MADE_PRODUCTS | {"MatMulNBits"}
_INTEGER_PRODUCTS = INTEGER_PRODUCTS | {"MatMulIntegerToFloat"}
_MOVES = REARRANGING | {"Cast", "Pad"}


def _match(node: ir.Node, context: Context) -> None:
    """Reports a product of data that were quantized before it."""
    if node.domain == TENSORRT and all(each.domain != TENSORRT for each in node.predecessors()):
        raise Unconverted(Reason.TENSORRT)
    if node.domain == NCHWC and node.op_type == "Conv":
        raise Unconverted(Reason.NCHWC)
    if is_standard(node, *POOLS) and _is_between_static_codes(node, context):
        raise Unconverted(Reason.POOL_OF_CODES)
    if node in context.reported or node.domain not in RUNTIME_DOMAINS or ADDED in node.metadata_props:
        return
    if node.op_type in STATIC_PRODUCTS:
        is_static = len(node.inputs) > 1 and context.facts.is_constant(node.inputs[1])  # the scale of its activation
        raise Unconverted(Reason.INTEGER_OPERATOR if is_static else Reason.OPTIMIZED)
    if node.op_type in _INTEGER_PRODUCTS:
        _check(node, context)
    elif node.op_type in _FLOAT_PRODUCTS and _is_quantized_by_program(input_of(node, 0)):
        raise Unconverted(Reason.ACTIVATION_FORM)


def _match_float(node: ir.Node, context: Context) -> None:
    """Reports a product of floats before its quantization becomes a program, in which no codes are seen any more."""
    if is_standard(node, *RECURRENT) and node not in context.reported:
        _, *weights = first_inputs(node, 3)
        if any(each is not None and dequantizer_of(each, context.facts) is not None for each in weights):
            raise Unconverted(Reason.WEIGHTS_DEQUANTIZED)
    is_product = node.domain in RUNTIME_DOMAINS and node.op_type in _FLOAT_PRODUCTS
    if is_product and node not in context.reported and ADDED not in node.metadata_props:
        _check(node, context)


RULE: Rule[None] = Rule("unconverted product", 0, _match)
FLOATS: Rule[None] = Rule("unconverted float product", 0, _match_float)


def _check(node: ir.Node, context: Context) -> None:
    """Raises Unconverted if a factor of a product is codes times a scale, or was."""
    forms = context.shared(AffineForms)
    activation, weights = first_inputs(node, 2)
    if (lost := forms.lost(activation)) is not None or forms.of(activation) is not None:
        raise _reason(node, activation, lost, context)
    if forms.lost(weights) is not None or forms.of(weights) is not None:
        raise Unconverted(Reason.ONLY_WEIGHTS_QUANTIZED)
    if (few := _few_bits(activation)) is not None:
        raise Unconverted(Reason.ACTIVATION_FEW_BITS, dtype=few.name.lower())
    if weights is None or dequantizer_of(weights, context.facts) is None:
        return
    if not is_dequantized(activation):
        raise Unconverted(Reason.WEIGHTS_DEQUANTIZED)
    if node.op_type == "MatMul" and _is_of_plain_int8(activation):
        raise Unconverted(Reason.CODES_DEQUANTIZED)


def _few_bits(activation: ir.Value | None) -> ir.DataType | None:
    """Returns the type of the codes that QuantizeLinear made of an activation, if it has less than 8 bits; or None."""
    dequantizer = quantized_weights(activation)
    codes = None if dequantizer is None else dequantizer.node.inputs[0]
    is_few = codes is not None and codes.dtype is not None and codes.dtype.itemsize < 1
    return codes.dtype if codes is not None and is_few and producer_of(codes, "QuantizeLinear") is not None else None


def _is_of_plain_int8(activation: ir.Value | None) -> bool:
    """Returns whether a dequantized activation has int8 codes that no QuantizeLinear made.

    ONNX Runtime has integer products of uint8 codes, which it makes of a QuantizeLinear to int8, too.
    """
    value = activation
    while (node := producer_of(value, *_MOVES)) is not None:
        value = node.inputs[0]
    node = producer_of(value, "DequantizeLinear")
    codes = None if node is None else node.inputs[0]
    return codes is not None and codes.dtype == ir.DataType.INT8 and producer_of(codes, "QuantizeLinear") is None


def _is_between_static_codes(node: ir.Node, context: Context) -> bool:
    """Returns whether a node is between a DequantizeLinear and a QuantizeLinear of constant scales."""
    before, use = producer_of(node.inputs[0], "DequantizeLinear"), only_use(node.outputs[0])
    after = use.node if use is not None and is_standard(use.node, "QuantizeLinear") else None
    return all(each is not None and context.facts.is_constant(each.inputs[1]) for each in (before, after))


def _reason(node: ir.Node, activation: ir.Value | None, lost: Unconverted | None, context: Context) -> Unconverted:
    """Returns why a product of quantized data is unconverted.

    Args:
        node: The product.
        activation: Its first factor.
        lost: Where the first factor stops to be codes times a scale; None if it does not.
        context: The data of the rewrite.
    """
    if context.facts.opset < OPSET:
        return Unconverted(Reason.OPSET_TOO_OLD, opset=context.facts.opset, oldest=OPSET)
    if node.op_type in _INTEGER_PRODUCTS and lost is None:
        if activation is not None and is_static(activation, context.facts):
            return Unconverted(Reason.STATIC)
        is_linear = producer_of(activation, "DynamicQuantizeLinear") is not None
        is_fused = is_linear and (node.op_type == "MatMulIntegerToFloat" or _is_scaled(node.outputs[0]))
        return Unconverted(Reason.FUSED_MATMUL_INTEGER if is_fused else Reason.SUMS_NOT_SCALED)
    if lost is not None:
        return lost
    if node.domain not in STANDARD_DOMAINS:
        return Unconverted(Reason.NO_INTEGER_PRODUCT, operator=f"{node.domain}.{node.op_type}")
    return Unconverted(Reason.NO_INTEGER_PRODUCT, operator=node.op_type)


def _is_quantized_by_program(activation: ir.Value | None) -> bool:
    """Returns whether a RowProgram, which took the nodes of a quantization, computes an activation."""
    value = activation
    while (move := producer_of(value, *_MOVES)) is not None and move.inputs[0] is not None:
        value = move.inputs[0]
    node = None if value is None else value.producer()
    return (
        node is not None
        and node.op_type == "RowProgram"
        and ADDED in node.metadata_props
        and "Round(" in program_of(node)
    )


def _is_scaled(sums: ir.Value) -> bool:
    """Returns whether sums are converted to float32 and multiplied."""
    use = only_use(sums)
    if use is None or use.node.op_type != "Cast":
        return False
    return (use := only_use(use.node.outputs[0])) is not None and use.node.op_type == "Mul"
