"""The rule that reports products of quantized data which no other rule has converted or reported. It changes nothing.

MatMul | Gemm | Conv | ... of data that were quantized before it    -> unconverted

A product that multiplies weights only, or floats that were never quantized, is not reported.
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import RUNTIME_DOMAINS, STANDARD_DOMAINS
from ...operators import DOMAIN, affine, dynamic_range, granular
from ..analysis.nodes import only_use, uncast
from ..metadata import RULE as ADDED
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .affine import AffineForms

_FLOAT_PRODUCTS = frozenset(
    {"MatMul", "Gemm", "Conv", "ConvTranspose"}
    | {"FusedMatMul", "FusedGemm", "FusedConv", "TransposeMatMul", "MatMulNBits"}  # of com.microsoft
)
_INTEGER_PRODUCTS = frozenset({"MatMulInteger", "ConvInteger", "MatMulIntegerToFloat"})
_QLINEAR_PRODUCTS = frozenset({"QLinearMatMul", "QLinearConv", "QGemm"})
_DYNQ_QUANTIZERS = frozenset(
    operator.name for family in (granular, affine, dynamic_range) for operator in family.FAMILY.operators
)
_RUNTIME_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
# Operators that keep quantized data quantized: they move, select or convert elements.
_MOVES = frozenset(
    {"Cast", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Relu", "Reshape"}
    | {"Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
# Operators between the Round of an unconverted chain and its result.
_STEPS = frozenset({"Add", "Clip", "Div", "Max", "Min", "Mul", "Sub", "Where"})
_MOST_NODES = 16
_OLDEST_OPSET = 13


def _match(node: ir.Node, context: Context) -> None:
    """Reports a product of data that were quantized before it."""
    if node in context.reported or node.domain not in RUNTIME_DOMAINS or ADDED in node.metadata_props:
        return
    if node.op_type in _QLINEAR_PRODUCTS:
        raise Unconverted(Reason.INTEGER_OPERATOR)
    if node.op_type not in _FLOAT_PRODUCTS | _INTEGER_PRODUCTS:
        return
    activation, weights = (_source(value, context) for value in [*node.inputs, None, None][:2])
    lost = context.shared(AffineForms).lost(node.inputs[0])
    if activation is not None:
        why = _reason(node, *activation, context)
        raise lost if lost and why.reason in (Reason.ACTIVATION_MOVED, Reason.ACTIVATION_FORM) else why
    if lost is not None:
        raise lost
    if weights is not None:
        raise Unconverted(Reason.ONLY_WEIGHTS_QUANTIZED)


RULE: Rule[None] = Rule("unconverted product", 0, _match)


def _source(value: ir.Value | None, context: Context) -> tuple[ir.Node, str] | None:
    """Returns the node that quantized or dequantized data, and the operator that moved them afterwards, or "".

    A node that is unconverted for a reason counts as a quantizer.
    """
    todo, seen = [(value, "", True)], 0
    while todo and seen < _MOST_NODES:
        at, between, is_certain = todo.pop()
        node, seen = None if at is None or context.facts.is_constant(at) else at.producer(), seen + 1
        if node is None:
            continue
        if context.reported.get(node) or (is_certain and _is_quantizer(node, at)):
            return node, between
        if node.domain in STANDARD_DOMAINS and node.op_type in _MOVES:
            moved = between if node.op_type in ("Identity", "Cast") else node.op_type
            todo += [(each, moved, is_certain) for each in node.inputs[: None if node.op_type == "Concat" else 1]]
        elif node.domain in STANDARD_DOMAINS and node.op_type in _STEPS:
            todo += [(each, node.op_type, is_certain and uncast(each) is not None) for each in node.inputs]
    return None


def _is_quantizer(node: ir.Node, output: ir.Value | None) -> bool:
    if node.domain == DOMAIN:
        return node.op_type in _DYNQ_QUANTIZERS and output is node.outputs[0]
    return node.domain in RUNTIME_DOMAINS and node.op_type in _RUNTIME_QUANTIZERS and output is node.outputs[0]


def _reason(node: ir.Node, source: ir.Node, between: str, context: Context) -> Unconverted:
    """Returns why a product of data from `source` is unconverted."""
    is_linear = source.op_type in ("QuantizeLinear", "DequantizeLinear")
    if is_linear and all(map(context.facts.is_constant, source.inputs[1:])):
        return Unconverted(Reason.STATIC)
    if node.op_type in _INTEGER_PRODUCTS:
        is_fused = source.op_type == "DynamicQuantizeLinear" and (
            node.op_type == "MatMulIntegerToFloat" or _is_scaled(node.outputs[0])
        )
        return Unconverted(Reason.FUSED_MATMUL_INTEGER if is_fused and not between else Reason.SUMS_NOT_SCALED)
    if cause := context.reported.get(source):
        return cause if cause.reason == Reason.FUSED else Unconverted(Reason.ACTIVATION_QUANTIZATION, cause=cause)
    if between:
        return Unconverted(Reason.ACTIVATION_MOVED, operator=between)
    if node.domain not in STANDARD_DOMAINS:
        return Unconverted(Reason.NO_INTEGER_PRODUCT, operator=f"{node.domain}.{node.op_type}")
    if context.opset < _OLDEST_OPSET:
        return Unconverted(Reason.OPSET_TOO_OLD, opset=context.opset, oldest=_OLDEST_OPSET)
    return Unconverted(Reason.ACTIVATION_FORM)


def _is_scaled(sums: ir.Value) -> bool:
    """Returns whether sums are converted to float32 and multiplied."""
    use = only_use(sums)
    if use is None or use.node.op_type != "Cast":
        return False
    return (use := only_use(use.node.outputs[0])) is not None and use.node.op_type == "Mul"
