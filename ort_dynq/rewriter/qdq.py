"""QuantizeLinear(x, s[, z])   -> DynamicQuantize(x, s, z)
DequantizeLinear(x, s[, z]) -> DynamicDequantize(x, s, z)

where s or z is computed at run time. Opsets 10 to 25; per tensor, per axis and in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..operators import DOMAIN, OPERATORS
from .analysis import STANDARD_DOMAINS, Facts
from .policy import fused_by_onnxruntime

_CODES = (ir.DataType.UINT8, ir.DataType.INT8)


@dataclass
class Replacement:
    """New nodes in order, the last of which takes the place of the node matched, outputs and all."""

    operator: str
    nodes: list[ir.Node]


def quantize(node: ir.Node, facts: Facts) -> Replacement | str | None:
    """The rule for QuantizeLinear."""
    if not _is_dynamic(node, "QuantizeLinear", facts):
        return None
    x, _, zero_point = _inputs(node)
    if x.dtype != ir.DataType.FLOAT:
        return _unsupported("x", x.dtype, "float32")
    if node.attributes.get_int("precision", 0) not in (0, ir.DataType.FLOAT):
        return "precision asks for a division in another type than float32"
    asked = ir.DataType(node.attributes.get_int("output_dtype", 0))
    codes = asked or (ir.DataType.UINT8 if zero_point is None else zero_point.dtype)
    return _replace(node, facts, "DynamicQuantize", codes)


def dequantize(node: ir.Node, facts: Facts) -> Replacement | str | None:
    """The rule for DequantizeLinear."""
    if not _is_dynamic(node, "DequantizeLinear", facts):
        return None
    if node.attributes.get_int("output_dtype", 0) not in (0, ir.DataType.FLOAT):
        return "output_dtype is not float32"
    return _replace(node, facts, "DynamicDequantize", _inputs(node)[0].dtype)


def _is_dynamic(node: ir.Node, op_type: str, facts: Facts) -> bool:
    if (
        node.domain not in STANDARD_DOMAINS
        or node.op_type != op_type
        or len(node.inputs) < 2
        or None in node.inputs[:2]
    ):
        return False
    return not all(facts.is_constant(parameter) for parameter in node.inputs[1:])


def _inputs(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    x, scale = node.inputs[:2]
    assert x is not None
    assert scale is not None
    return x, scale, node.inputs[2] if len(node.inputs) > 2 else None


def _unsupported(what: str, dtype: ir.DataType | None, expected: str) -> str:
    return f"the type of {what} is {'not known' if dtype is None else dtype.name.lower()}, expected {expected}"


def _replace(node: ir.Node, facts: Facts, operator: str, codes: ir.DataType | None) -> Replacement | str:
    x, scale, zero_point = _inputs(node)
    if codes not in _CODES:
        return _unsupported("the codes", codes, "uint8 or int8")
    if scale.dtype != ir.DataType.FLOAT:
        return _unsupported("the scale", scale.dtype, "float32")
    if zero_point is not None and zero_point.dtype != codes:
        return _unsupported("the zero point", zero_point.dtype, f"that of the codes, {codes.name.lower()}")
    reason = fused_by_onnxruntime(node, facts.is_constant)
    if reason is not None:
        return reason
    nodes = []
    if zero_point is None:
        zero = ir.node("Constant", [], {"value": ir.tensor(np.zeros((), codes.numpy()))})
        nodes.append(zero)
        zero_point = zero.outputs[0]
    given: dict[str, str | int] = {
        "qtype": _qtype(node, scale),
        "axis": node.attributes.get_int("axis", 1),
        "block_size": node.attributes.get_int("block_size", 0),
    }
    attributes = {a.name: given.get(a.name, a.default) for a in OPERATORS[operator].attributes}
    nodes.append(ir.node(operator, [x, scale, zero_point], attributes, domain=DOMAIN))
    return Replacement(operator, nodes)


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
