"""The rules for QuantizeLinear and DequantizeLinear with a scale or zero point that is computed at run time.

QuantizeLinear(x, s[, z])                                       -> DynamicQuantize(x, s, z)
DequantizeLinear(x, s[, z])                                     -> DynamicDequantize(x, s, z)
QuantizeLinear, DequantizeLinear                                -> DynamicFakeQuantize(x, s, z)
DynamicQuantizeLinear(x), DequantizeLinear                      -> DynamicQuantizeDequantizeLinear(x)

Opset 10 and newer, per tensor, per axis and in blocks. The first two are also for float16, bfloat16, uint4 and int4. A
DequantizeLinear becomes part of the operator if it is the only use of the codes. Products and programs have taken the
nodes that they can compute: those behind the range of x become RowProgram.
"""

from __future__ import annotations

import onnx_ir as ir

from ...runtime import version
from ..analysis.nodes import data_type, is_standard, producer_of
from ..analysis.types import CODE_TYPES, check_type
from ..edit import Edit, call
from ..metadata import DEQUANTIZES
from ..policy.cost import too_small
from ..policy.ort_fusions import fused, is_dynamic
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .quantize_linear import (
    FLOATS,
    LinearNode,
    arithmetic_of,
    build_linear,
    check_parameters,
    dequantize_linear,
    granularity_attributes,
    inputs_of,
    is_rounded,
)

_OLDEST_OPSET_OF_PRECISION = 23
_ROUNDS_FLOAT16 = 1, 30


def _match_quantize(node: ir.Node, context: Context) -> LinearNode | None:
    facts = context.facts
    if not is_dynamic(node, "QuantizeLinear", facts):
        return None
    x, _, zero_point = inputs_of(node)
    check_type("x", x, FLOATS)
    if node.attributes.get_int("precision", 0) not in (0, ir.DataType.FLOAT):
        raise Unconverted(Reason.PRECISION)
    default = ir.DataType.UINT8 if zero_point is None else zero_point.dtype
    codes = check_parameters(node, data_type(node, "output_dtype") or default)
    _raise(fused(node, context))
    is_joined = x.dtype == ir.DataType.FLOAT and codes in CODE_TYPES
    if is_joined and (dq := _only_dequantizer(node, context)) is not None:
        return LinearNode("DynamicFakeQuantize", codes, dq.outputs[0])
    if x.dtype == ir.DataType.FLOAT16:
        if facts.opset >= _OLDEST_OPSET_OF_PRECISION and "precision" not in node.attributes:
            raise Unconverted(Reason.FLOAT16_QUOTIENT_ROUNDED)
        if version() < _ROUNDS_FLOAT16:
            raise Unconverted(Reason.FLOAT16_QUOTIENT_TRUNCATED)
    _raise(too_small(node))
    return LinearNode("DynamicQuantize", codes, node.outputs[0], arithmetic_of(node))


def _build_quantize(match: LinearNode, edit: Edit) -> None:
    build_linear(match, edit)
    if match.operator == "DynamicFakeQuantize":
        edit.metadata[DEQUANTIZES] = "1"


def _match_dequantize(node: ir.Node, context: Context) -> ir.Value | LinearNode | None:
    """Returns the tensor if DynamicQuantizeLinear computes the codes, and nothing else reads them or their scale."""
    if not is_dynamic(node, "DequantizeLinear", context.facts):
        return None
    _raise(fused(node, context))
    if (x := _quantized_for(node)) is not None:
        return x
    _raise(too_small(node))
    scale = inputs_of(node)[1]
    if scale.dtype == ir.DataType.FLOAT16 and not is_rounded(scale):
        raise Unconverted(Reason.FLOAT16_SCALE_NOT_ROUNDED)
    return dequantize_linear(node)


def _build_dequantize(match: ir.Value | LinearNode, edit: Edit) -> None:
    if isinstance(match, LinearNode):
        build_linear(match, edit)
    else:
        main = call("DynamicQuantizeDequantizeLinear", [match])
        edit.replace(edit.node.outputs[0], edit.insert_main(main, before=edit.node))
    edit.metadata[DEQUANTIZES] = "1"


QUANTIZE: Rule[LinearNode] = Rule(
    "QuantizeLinear", 10, _match_quantize, _build_quantize, reports_opset=True, operators=("QuantizeLinear",)
)
DEQUANTIZE: Rule[ir.Value | LinearNode] = Rule(
    "DequantizeLinear", 10, _match_dequantize, _build_dequantize, reports_opset=True, operators=("DequantizeLinear",)
)


def _raise(reason: Unconverted | None) -> None:
    if reason is not None:
        raise reason


def _quantized_for(node: ir.Node) -> ir.Value | None:
    """Returns x of a DynamicQuantizeLinear with outputs that only this DequantizeLinear uses; None for others."""
    quantizer = producer_of(node.inputs[0], "DynamicQuantizeLinear")
    if quantizer is None or quantizer.graph is not node.graph or list(node.inputs) != list(quantizer.outputs):
        return None
    if node.attributes.get_int("output_dtype", 0) not in (0, ir.DataType.FLOAT):
        return None
    if any(len(value.uses()) != 1 or value.is_graph_output() for value in quantizer.outputs):
        return None
    return quantizer.inputs[0]


def _only_dequantizer(node: ir.Node, context: Context) -> ir.Node | None:
    """Returns the DequantizeLinear that is the inverse of `node`, the only use of its codes and not fused, or None."""
    codes = node.outputs[0]
    if len(codes.uses()) != 1 or codes.is_graph_output():
        return None
    dq = next(iter(codes.uses())).node
    is_inverse = (
        is_standard(dq, "DequantizeLinear")
        and dq.graph is node.graph
        and list(dq.inputs[1:]) == list(node.inputs[1:])
        and granularity_attributes(dq) == granularity_attributes(node)
        and dq.attributes.get_int("output_dtype", 0) in (0, ir.DataType.FLOAT)
    )
    return dq if is_inverse and fused(dq, context) is None else None
