"""QuantizeLinear(x, s[, z])     -> DynamicQuantize(x, s, z)
DequantizeLinear(x, s[, z])   -> DynamicDequantize(x, s, z)
QuantizeLinear, DequantizeLinear of its codes alone -> DynamicFakeQuantize(x, s, z)
DynamicQuantizeLinear, DequantizeLinear of its codes alone -> DynamicQuantizeDequantizeLinear(x)

where s or z is computed at run time; opsets 10 to 25, per tensor, per axis and in blocks. Where s and z follow from x's
own range (ranges.py):

range, scale, zero point, QuantizeLinear                      -> DynamicRangeQuantize
range, scale, zero point, QuantizeLinear, DequantizeLinear    -> DynamicRangeFakeQuantize
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..edit import Replacement, call, constant
from ..facts.inference import Facts
from ..facts.ort_fusions import fused_by_onnxruntime, too_small
from ..facts.values import is_zero, op, scalar
from .decomposed import whole
from .range_chain import Recipe, Unrecognised, recipe_of

_CODES = (ir.DataType.UINT8, ir.DataType.INT8)
_OLDEST_OPSET_OF_RANGES = 13
_REFERENCES = "an attribute is given by the function's caller"


def quantize(node: ir.Node, facts: Facts) -> Replacement | str | None:
    """The rule for QuantizeLinear."""
    if not _is_dynamic(node, "QuantizeLinear", facts):
        return None
    if _has_references(node):
        return _REFERENCES
    x, _, zero_point = _inputs(node)
    if x.dtype != ir.DataType.FLOAT:
        return _unsupported("x", x.dtype, "float32")
    if node.attributes.get_int("precision", 0) not in (0, ir.DataType.FLOAT):
        return "precision asks for a division in another type than float32"
    asked = ir.DataType(node.attributes.get_int("output_dtype", 0))
    codes = asked or (ir.DataType.UINT8 if zero_point is None else zero_point.dtype)
    reason = _unsupported_parameters(node, codes) or fused_by_onnxruntime(node, facts.is_constant)
    if reason is not None:
        return reason
    whole_chain = _whole(node, facts, codes)
    if whole_chain is not None:
        return whole_chain
    dq = _only_dequantizer(node, facts)
    if dq is not None:
        return _one_operator(node, "DynamicFakeQuantize", codes, dq.outputs[0])
    return too_small(node) or _one_operator(node, "DynamicQuantize", codes, node.outputs[0])


def dequantize(node: ir.Node, facts: Facts) -> Replacement | str | None:
    """The rule for DequantizeLinear."""
    if not _is_dynamic(node, "DequantizeLinear", facts):
        return None
    if _has_references(node):
        return _REFERENCES
    return fused_by_onnxruntime(node, facts.is_constant) or _linear(node) or too_small(node) or dequantize_any(node)


def _linear(node: ir.Node) -> Replacement | None:
    """DynamicQuantizeLinear and its DequantizeLinear, if that is the only use of codes, scale and zero point."""
    quantizer = op(node.inputs[0], "DynamicQuantizeLinear")
    if quantizer is None or quantizer.graph is not node.graph or quantizer.inputs[0] is None:
        return None
    if list(node.inputs) != list(quantizer.outputs) or node.attributes.get_int("output_dtype", 1) != 1:
        return None
    if any(len(value.uses()) != 1 or value.is_graph_output() for value in quantizer.outputs):
        return None
    new = call("DynamicQuantizeDequantizeLinear", [quantizer.inputs[0]])
    return Replacement("DynamicQuantizeDequantizeLinear", [new], {node.outputs[0]: new.outputs[0]}, node)


def dequantize_any(node: ir.Node) -> Replacement | str:
    """DynamicDequantize in the place of a DequantizeLinear, whoever computes its parameters."""
    if node.attributes.get_int("output_dtype", 0) not in (0, ir.DataType.FLOAT):
        return "output_dtype is not float32"
    codes = _inputs(node)[0].dtype
    return _unsupported_parameters(node, codes) or _one_operator(node, "DynamicDequantize", codes, node.outputs[0])


def _is_dynamic(node: ir.Node, op_type: str, facts: Facts) -> bool:
    if (
        node.domain not in STANDARD_DOMAINS
        or node.op_type != op_type
        or len(node.inputs) < 2
        or None in node.inputs[:2]
    ):
        return False
    return not all(facts.is_constant(parameter) for parameter in node.inputs[1:])


def _has_references(node: ir.Node) -> bool:
    return any(attribute.is_ref() for attribute in node.attributes.values())


def _inputs(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    x, scale = node.inputs[:2]
    assert x is not None
    assert scale is not None
    return x, scale, node.inputs[2] if len(node.inputs) > 2 else None


def _unsupported(what: str, dtype: ir.DataType | None, expected: str) -> str:
    return f"the type of {what} is {'not known' if dtype is None else dtype.name.lower()}, expected {expected}"


def _unsupported_parameters(node: ir.Node, codes: ir.DataType | None) -> str | None:
    _, scale, zero_point = _inputs(node)
    if codes not in _CODES:
        return _unsupported("the codes", codes, "uint8 or int8")
    if scale.dtype != ir.DataType.FLOAT:
        return _unsupported("the scale", scale.dtype, "float32")
    if zero_point is not None and zero_point.dtype != codes:
        return _unsupported("the zero point", zero_point.dtype, f"that of the codes, {codes.name.lower()}")
    return None


def _one_operator(node: ir.Node, operator: str, codes: ir.DataType | None, last: ir.Value) -> Replacement:
    assert codes is not None
    x, scale, zero_point = _inputs(node)
    nodes = []
    if zero_point is None:
        nodes.append(constant(np.zeros((), codes.numpy())))
        zero_point = nodes[0].outputs[0]
    nodes.append(
        call(
            operator,
            [x, scale, zero_point],
            qtype=_qtype(node, scale),
            axis=node.attributes.get_int("axis", 1),
            block_size=node.attributes.get_int("block_size", 0),
        )
    )
    return Replacement(operator, nodes, {last: nodes[-1].outputs[0]}, node)


def _whole(node: ir.Node, facts: Facts, codes: ir.DataType | None) -> Replacement | None:
    """The chain from x's range on, and back to floats where that is the codes' only use."""
    x, scale, zero_point = _inputs(node)
    low, high = (0, 255) if codes == ir.DataType.UINT8 else (-128, 127)
    zero = None if is_zero(scalar(zero_point)) else zero_point
    if codes is None or facts.opset < _OLDEST_OPSET_OF_RANGES:
        return None
    attributes = {
        "scaling": 0,
        "rounding_order": 0,
        "code_type": int(codes),
        "output_dtype": int(codes),
        "quant_min": low,
        "quant_max": high,
        "clip": 1,
        "nan_code": 1,
    }
    dq = _only_dequantizer(node, facts)
    last = node.outputs[0] if dq is None else dq.outputs[0]
    try:
        recipe = recipe_of(x, scale, zero, low, high)
        if recipe.inverse or not _is_granularity_of(node, recipe, x, scale) or recipe.zero_point_type not in (1, codes):
            return None
        return whole(node, x, scale, zero, last, recipe, attributes, is_fake=dq is not None)
    except Unrecognised:
        return None


def _is_granularity_of(node: ir.Node, recipe: Recipe, x: ir.Value, scale: ir.Value) -> bool:
    """Whether the elements that share a scale are those that it is the range of."""
    if x.shape is None or scale.shape is None or _attribute(node, "block_size") > 0:
        return False
    rank, qtype = len(x.shape), _qtype(node, scale)
    if qtype == "per_tensor":
        return recipe.axis == 0
    axis = node.attributes.get_int("axis", 1)
    # One element for each index along the first dimension, which may turn out to be one.
    return qtype != "per_group" and len(scale.shape) == 1 and axis in (0, -rank) and recipe.axis == 1 - rank


def _only_dequantizer(node: ir.Node, facts: Facts) -> ir.Node | None:
    """The DequantizeLinear that undoes `node`, if it is the codes' only use and ONNX Runtime does not fuse it."""
    codes = node.outputs[0]
    uses = list(codes.uses())
    if len(uses) != 1 or codes.is_graph_output():
        return None
    dq = uses[0].node
    is_inverse = (
        dq.domain in STANDARD_DOMAINS
        and dq.graph is node.graph
        and not _has_references(dq)
        and dq.op_type == "DequantizeLinear"
        and list(dq.inputs[1:]) == list(node.inputs[1:])
        and all(_attribute(dq, name) == _attribute(node, name) for name in ("axis", "block_size"))
        and dq.attributes.get_int("output_dtype", 0) in (0, ir.DataType.FLOAT)
    )
    return dq if is_inverse and fused_by_onnxruntime(dq, facts.is_constant) is None else None


def _attribute(node: ir.Node, name: str) -> int:
    default = 1 if name == "axis" else 0
    return node.attributes.get_int(name, default)


def _qtype(node: ir.Node, scale: ir.Value) -> str:
    """The granularity as far as shapes tell; ``auto`` leaves it to the shapes at run time, as ONNX does."""
    if node.attributes.get_int("block_size", 0) > 0:
        return "per_group"
    shape = scale.shape
    if shape is None or len(shape) > 1:
        return "auto"
    if len(shape) == 0 or shape[0] == 1:
        return "per_tensor"
    return "per_channel" if isinstance(shape[0], int) else "auto"
