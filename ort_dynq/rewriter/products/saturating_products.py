"""The rule for the int8 weights of integer products that stay ONNX Runtime's. They become uint8.

QGemm | QLinearMatMul | QAttention | DynamicQuantizeLSTM | ... of int8 weights     -> the same of uint8 weights
DequantizeLinear of int8 weights, MatMul | Gemm | Conv that ONNX Runtime fuses     -> DequantizeLinear of uint8 weights

Codes and zero points are 128 larger, so every result stays the same bit for bit, except where sums of uint8 by int8
saturate (../policy/saturation.py). The second form is left with exact results only: otherwise its product is ours.
Products of constant scales stay as they are: static quantization is left to ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..analysis.evaluation import evaluate_if_constant
from ..analysis.inference import Facts
from ..analysis.nodes import input_of, producer_of
from ..codes.unsigned_codes import UnsignedCodes, unsigned_array
from ..edit import Edit
from ..policy.ort_fusions import dequantizer
from ..policy.saturation import key_of, saturating_codes, saturating_inputs
from ..reasons import Unconverted
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from .integer_product import has_several, is_static

_SCALES = {"QLinearMatMul": 1, "QLinearConv": 1, "QGemm": 1, "MatMulIntegerToFloat": 2, "QAttention": 3}
_DEQUANTIZED = ((0, 2),)  # the codes of a DequantizeLinear, and their zero point


@dataclass(frozen=True)
class _SaturatingNode:
    """A node that gets uint8 inputs in place of int8 ones.

    Attributes:
        inputs: Their positions, each with that of the zero point, which may be absent.
        zero_shape: The shape of an absent zero point.
        why: Why the product is not ours, if an earlier rule has said it.
    """

    inputs: tuple[tuple[int, int], ...]
    zero_shape: tuple[int, ...] = ()
    why: Unconverted | None = None


def _match(node: ir.Node, context: Context) -> _SaturatingNode | None:
    if context.options.keep_fused or not node.inputs:
        return None
    facts = context.facts
    if producer_of(node.outputs[0], "DequantizeLinear") is node:
        return _match_dequantizer(node, facts)
    if node.op_type == "MatMulInteger" and has_several(input_of(node, 2)):
        return None  # ONNX Runtime does not run it
    inputs = saturating_inputs(node, facts)
    return _SaturatingNode(inputs, why=context.reported.get(node)) if inputs and not _is_static(node, facts) else None


def _match_dequantizer(node: ir.Node, facts: Facts) -> _SaturatingNode | None:
    """Recognizes a DequantizeLinear of int8 weights of a product that ONNX Runtime makes one of integers."""
    moved = [use.node.outputs[0] for use in node.outputs[0].uses() if use.node.op_type == "Transpose"]
    products = [use.node for value in (node.outputs[0], *moved) for use in value.uses()]
    if not any(saturating_codes(each, facts) is node.inputs[0] and _is_dynamic(each, facts) for each in products):
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        return _SaturatingNode(_DEQUANTIZED)
    scale = node.inputs[1]
    if scale is None or scale.shape is None or not scale.shape.is_static():
        return None
    return _SaturatingNode(_DEQUANTIZED, tuple(scale.shape.numpy()))


def _is_dynamic(product: ir.Node, facts: Facts) -> bool:
    """Returns whether the first factor of a product is dequantized by parameters that are computed at run time."""
    activation = None if product.inputs[0] is None else dequantizer(product.inputs[0])
    return activation is not None and not all(map(facts.is_constant, activation.inputs[1:]))


def _is_static(product: ir.Node, facts: Facts) -> bool:
    """Returns whether a product's activation is quantized by constants."""
    x, scale = product.inputs[0], _SCALES.get(product.op_type)
    if x is None or is_static(x, facts):
        return True
    return scale is not None and facts.is_constant(product.inputs[scale])


def _build(match: _SaturatingNode, edit: Edit) -> None:
    node = edit.node
    inputs = [*node.inputs]
    for weights, zero_point in match.inputs:
        inputs += [None] * (zero_point + 1 - len(inputs))
        inputs[weights] = _unsigned(inputs[weights], edit)
        if inputs[zero_point] is None:
            inputs[zero_point] = edit.add_constant(np.full(match.zero_shape, 128, np.uint8), before=node)
        else:
            inputs[zero_point] = _unsigned(inputs[zero_point], edit)
    domain, operator = key_of(node)
    main = ir.node(operator, inputs, dict(node.attributes), domain=domain, num_outputs=len(node.outputs))
    edit.insert_main(main, before=node)
    for old, new in zip(node.outputs, main.outputs, strict=True):
        edit.replace(old, new)
    edit.note = "; ".join(["uint8 weights: their sums do not saturate", *([str(match.why)] if match.why else [])])


def _unsigned(value: ir.Value | None, edit: Edit) -> ir.Value:
    """Returns the uint8 form of int8 weights or zero points."""
    assert value is not None
    elements = evaluate_if_constant(value, edit.facts)
    if elements is None:
        return edit.shared(UnsignedCodes).shifted(value, edit)
    return edit.shared(SharedInitializers).of(unsigned_array(elements), edit)


RULE: Rule[_SaturatingNode] = Rule("int8 weights that saturate", 10, _match, _build)
