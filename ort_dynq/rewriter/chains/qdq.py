"""The rules for QuantizeLinear and DequantizeLinear whose scale or zero point is computed at run time.

QuantizeLinear(x, s[, z])                                       -> DynamicQuantize(x, s, z)
DequantizeLinear(x, s[, z])                                     -> DynamicDequantize(x, s, z)
QuantizeLinear, DequantizeLinear                                -> DynamicFakeQuantize(x, s, z)
DynamicQuantizeLinear(x), DequantizeLinear                      -> DynamicQuantizeDequantizeLinear(x)
range, scale, zero point, QuantizeLinear                        -> DynamicRangeQuantize
range, scale, zero point, QuantizeLinear, DequantizeLinear      -> DynamicRangeFakeQuantize

Opset 10 and newer, per tensor, per axis and in blocks. The first two are also for float16, bfloat16, uint4 and int4. A
DequantizeLinear becomes part of the operator if it is the only use of the codes. The last two apply if scale and zero
point are computed from the range of x, from opset 13 on (chains/range_chain.py).
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators.encodings import CodeType, NanCode, RoundingOrder, Scaling
from ...runtime import version
from ..analysis.inference import Facts
from ..analysis.values import CODE_TYPES, constant_scalar, data_type, given_by_caller, is_zero, producer_of
from ..edit import Edit, call
from ..metadata import DEQUANTIZES
from ..policy.cost import too_small
from ..policy.ort_fusions import fused_by_onnxruntime
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .dynamic import (
    FLOATS,
    check_parameters,
    inputs_of,
    qtype_of,
    replace_by_operator,
    replace_dequantize_linear,
    unsupported,
)
from .range_chain import Recipe, recipe_of
from .range_operator import replace_range_chain

_OLDEST_OPSET_OF_RANGES = 13
_OLDEST_OPSET_OF_PRECISION = 23
_ROUNDS_FLOAT16, _SATURATES_FLOAT16 = (1, 30), (1, 32)


def _apply_quantize(node: ir.Node, context: Context) -> Edit | None:
    facts = context.facts
    if not _is_dynamic(node, "QuantizeLinear", facts):
        return None
    if (reason := given_by_caller(node)) is not None:
        raise reason
    x, _, zero_point = inputs_of(node)
    if x.dtype not in FLOATS:
        raise unsupported("x", x.dtype, "expected float32, float16 or bfloat16", x)
    if node.attributes.get_int("precision", 0) not in (0, ir.DataType.FLOAT):
        raise Unconverted(Reason.PRECISION)
    output_dtype = data_type(node, "output_dtype")
    codes = output_dtype or (ir.DataType.UINT8 if zero_point is None else zero_point.dtype)
    check_parameters(node, codes)
    if (reason := fused_by_onnxruntime(node, facts.is_constant)) is not None:
        raise reason
    if x.dtype != ir.DataType.FLOAT or codes not in CODE_TYPES:
        return _replace_without_dequantizer(node, context, codes)
    dq = _only_dequantizer(node, facts)
    edit = _replace_range_chain(node, context, codes, dq)
    if edit is None and dq is not None:
        edit = replace_by_operator(node, context, "DynamicFakeQuantize", codes, dq.outputs[0])
    if edit is None:
        if (reason := too_small(node)) is not None:
            raise reason
        return replace_by_operator(node, context, "DynamicQuantize", codes, node.outputs[0])
    if dq is not None:
        edit.metadata[DEQUANTIZES] = "1"
    return edit


def _apply_dequantize(node: ir.Node, context: Context) -> Edit | None:
    if not _is_dynamic(node, "DequantizeLinear", context.facts):
        return None
    if (reason := given_by_caller(node)) is not None:
        raise reason
    if (reason := fused_by_onnxruntime(node, context.facts.is_constant)) is not None:
        raise reason
    edit = _replace_dynamic_quantize_linear(node, context)
    if edit is None:
        if (reason := too_small(node)) is not None:
            raise reason
        edit = replace_dequantize_linear(node, context)
    edit.metadata[DEQUANTIZES] = "1"
    return edit


def _replace_without_dequantizer(node: ir.Node, context: Context, codes: ir.DataType | None) -> Edit:
    """Returns the edit of a QuantizeLinear of 16-bit floats or to 4-bit codes."""
    is_float16 = inputs_of(node)[0].dtype == ir.DataType.FLOAT16
    if is_float16 and context.facts.opset >= _OLDEST_OPSET_OF_PRECISION and "precision" not in node.attributes:
        raise Unconverted(Reason.FLOAT16_QUOTIENT_ROUNDED)
    if is_float16 and version() < _ROUNDS_FLOAT16:
        raise Unconverted(Reason.FLOAT16_QUOTIENT_TRUNCATED)
    if (reason := too_small(node)) is not None:
        raise reason
    arithmetic = "wrapping" if is_float16 and version() < _SATURATES_FLOAT16 else "onnx"
    return replace_by_operator(node, context, "DynamicQuantize", codes, node.outputs[0], arithmetic=arithmetic)


QUANTIZE = Rule("QuantizeLinear", 10, _apply_quantize, reports_opset=True)
DEQUANTIZE = Rule("DequantizeLinear", 10, _apply_dequantize, reports_opset=True)


def _replace_dynamic_quantize_linear(node: ir.Node, context: Context) -> Edit | None:
    """Returns the edit of a DynamicQuantizeLinear and its DequantizeLinear `node`, if nothing else uses its outputs."""
    quantizer = producer_of(node.inputs[0], "DynamicQuantizeLinear")
    if quantizer is None or quantizer.graph is not node.graph or quantizer.inputs[0] is None:
        return None
    if list(node.inputs) != list(quantizer.outputs):
        return None
    if node.attributes.get_int("output_dtype", 0) not in (0, ir.DataType.FLOAT):
        return None
    if any(len(value.uses()) != 1 or value.is_graph_output() for value in quantizer.outputs):
        return None
    edit = context.edit("DynamicQuantizeDequantizeLinear", node)
    edit.replace(node.outputs[0], edit.insert_main(call(edit.operator, [quantizer.inputs[0]]), before=node))
    return edit


def _is_dynamic(node: ir.Node, op_type: str, facts: Facts) -> bool:
    """Returns whether a node is an `op_type` with run-time parameters."""
    if (
        node.domain not in STANDARD_DOMAINS
        or node.op_type != op_type
        or len(node.inputs) < 2
        or None in node.inputs[:2]
    ):
        return False
    return not all(facts.is_constant(parameter) for parameter in node.inputs[1:])


def _replace_range_chain(node: ir.Node, context: Context, codes: ir.DataType | None, dq: ir.Node | None) -> Edit | None:
    """Returns the edit of the chain from the range of x to `node` or to its DequantizeLinear `dq`, or None."""
    if codes is None or context.facts.opset < _OLDEST_OPSET_OF_RANGES:
        return None
    x, scale, zero_point = inputs_of(node)
    low, high = (0, 255) if codes == ir.DataType.UINT8 else (-128, 127)
    zero = None if is_zero(constant_scalar(zero_point)) else zero_point
    attributes = {
        "scaling": int(Scaling.DIVIDE),
        "rounding_order": int(RoundingOrder.ROUND_THEN_ADD),
        "code_type": int(codes),
        "output_dtype": int(codes),
        "quant_min": low,
        "quant_max": high,
        "clip": 1,
        "nan_code": int(NanCode.QUANT_MIN),
    }
    try:
        recipe = recipe_of(x, scale, zero, low, high)
        if recipe.inverse_scale or not _is_granularity_of(node, recipe, x, scale):
            return None
        if recipe.zero_point_type not in (CodeType.FLOAT32, codes):
            return None
        return replace_range_chain(
            node,
            context,
            recipe,
            attributes,
            x=x,
            scale=scale,
            zero_point=zero,
            last=node.outputs[0] if dq is None else dq.outputs[0],
            is_fake=dq is not None,
        )
    except Unconverted:  # scale and zero point are computed in another way
        return None


def _is_granularity_of(node: ir.Node, recipe: Recipe, x: ir.Value, scale: ir.Value) -> bool:
    """Returns whether the elements that share a scale are those that its range is computed from."""
    if x.shape is None or scale.shape is None or _attribute(node, "block_size") > 0:
        return False
    rank, qtype = len(x.shape), qtype_of(node, scale)
    if qtype == "per_tensor":
        return recipe.axis == 0
    # One scale for each index of the first dimension. Its length may be 1 at run time.
    is_first = _attribute(node, "axis") in (0, -rank)
    return qtype != "per_group" and len(scale.shape) == 1 and is_first and recipe.axis == 1 - rank


def _only_dequantizer(node: ir.Node, facts: Facts) -> ir.Node | None:
    """Returns the DequantizeLinear that is the inverse of `node`, the only use of its codes and not fused, or None."""
    codes = node.outputs[0]
    uses = list(codes.uses())
    if len(uses) != 1 or codes.is_graph_output():
        return None
    dq = uses[0].node
    is_inverse = (
        dq.domain in STANDARD_DOMAINS
        and dq.graph is node.graph
        and not given_by_caller(dq)
        and dq.op_type == "DequantizeLinear"
        and list(dq.inputs[1:]) == list(node.inputs[1:])
        and all(_attribute(dq, name) == _attribute(node, name) for name in ("axis", "block_size"))
        and dq.attributes.get_int("output_dtype", 0) in (0, ir.DataType.FLOAT)
    )
    return dq if is_inverse and fused_by_onnxruntime(dq, facts.is_constant) is None else None


def _attribute(node: ir.Node, name: str) -> int:
    return node.attributes.get_int(name, 1 if name == "axis" else 0)
