"""The rules for activations that are quantized and dequantized again: what reads them reads the floats before.

QuantizeLinear | DynamicQuantizeLinear, DequantizeLinear     -> nothing, or Clip
Round(x / s) * s and other fake quantizations of products    -> nothing

quantize_static removes a Relu or a Relu6 before codes if the lowest code stands for 0: the codes are its bounds. So
floats are clipped there if the zero point is a constant, the lowest code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..rewriter.analysis.constants import constant_scalar
from ..rewriter.analysis.evaluation import evaluate
from ..rewriter.analysis.inference import Facts
from ..rewriter.analysis.nodes import first_inputs, is_standard, producer_of
from ..rewriter.analysis.shapes import same_shape, unreshaped
from ..rewriter.analysis.standard import FLOAT_PRODUCTS, QUANTIZERS
from ..rewriter.analysis.values import Values
from ..rewriter.codes.affine import AffineForms
from ..rewriter.codes.affine_form import Rearrangement, scaled_value
from ..rewriter.codes.terms import unmoved
from ..rewriter.edit import Edit
from ..rewriter.rule import Context, Rule

_ENDS = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127)}


class _Restored(NamedTuple):
    """An input of a product, what it is quantized from, and the nodes that move that as they move the codes."""

    position: int
    floats: ir.Value
    moves: tuple[Rearrangement, ...]


class _QuantizedPair(NamedTuple):
    """What a DequantizeLinear restores, and the bounds that codes give it; None if they give none."""

    x: ir.Value
    bounds: tuple[float, float] | None


def _match_pair(node: ir.Node, context: Context) -> _QuantizedPair | None:
    """Returns what a DequantizeLinear restores."""
    if not is_standard(node, "DequantizeLinear"):
        return None
    codes, scale, zero_point = first_inputs(node, 3)
    quantizer = producer_of(codes, *QUANTIZERS)
    x = None if quantizer is None else quantizer.inputs[0]
    if quantizer is None or x is None or x.dtype != node.outputs[0].dtype:
        return None
    if quantizer.op_type == "DynamicQuantizeLinear":
        is_same = scale is quantizer.outputs[1] and zero_point is quantizer.outputs[2]
    else:
        _, first_scale, first_zero_point = first_inputs(quantizer, 3)
        names = (("axis", 1), ("block_size", 0))
        is_same = all(quantizer.attributes.get_int(*each) == node.attributes.get_int(*each) for each in names)
        is_same = is_same and _are_equal(scale, first_scale, context.facts)
        is_same = is_same and _are_equal(zero_point, first_zero_point, context.facts)
    return _QuantizedPair(x, _bounds_of(x, codes, scale, zero_point, context)) if is_same else None


def _bounds_of(
    x: ir.Value, codes: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None, context: Context
) -> tuple[float, float] | None:
    """Returns 0 and the float of the highest code, if the zero point is the lowest one and x is not known within."""
    number, zero = constant_scalar(scale), 0.0 if zero_point is None else constant_scalar(zero_point)
    if codes is None or codes.dtype not in _ENDS or number is None or zero != _ENDS[codes.dtype][0]:
        return None
    known, most = context.shared(Values).known(x), number * (_ENDS[codes.dtype][1] - zero)
    return None if known.low >= 0 and known.high <= most else (0.0, most)


def _are_equal(a: ir.Value | None, b: ir.Value | None, facts: Facts) -> bool:
    if a is b:
        return True
    if a is None or b is None or not facts.is_constant(a) or not facts.is_constant(b):
        return False
    arrays = [evaluate(each, facts) for each in (a, b)]
    return arrays[0] is not None and arrays[1] is not None and np.array_equal(*arrays)  # type: ignore[arg-type]


def _build_pair(match: _QuantizedPair, edit: Edit) -> None:
    edit.operator = "float activation"
    restored, x = edit.node.outputs[0], match.x
    if match.bounds is not None:
        edit.operator = "Clip"
        dtype = (match.x.dtype or ir.DataType.FLOAT).numpy()
        bounds = [edit.add_constant(np.array(each, dtype), before=edit.node) for each in match.bounds]
        x = edit.insert(ir.node("Clip", [x, *bounds]), before=edit.node)
        edit.facts.note(x, match.x.dtype or ir.DataType.FLOAT, restored.shape)
    for user, index in list(restored.uses()):
        edit.replace_input(user, index, x)
    if restored.is_graph_output():
        edit.replace(restored, edit.insert(ir.node("Identity", [x]), before=edit.node))


PAIRS: Rule[_QuantizedPair] = Rule("quantized activation", 12, _match_pair, _build_pair)


def _match_fake(node: ir.Node, context: Context) -> tuple[_Restored, ...] | None:
    """Returns the floats that a product reads in place of fake quantizations."""
    if not is_standard(node, *FLOAT_PRODUCTS):
        return None
    found = []
    for i, value in enumerate(node.inputs[:2]):
        if value is not None and not context.facts.is_constant(value):
            found += _restored(i, value, context)
    return tuple(found) or None


def _restored(position: int, value: ir.Value, context: Context) -> list[_Restored]:
    """Returns what a fake quantization is one of; nothing for other values."""
    forms = context.shared(AffineForms)
    form = forms.of(value)
    if form is None or form.offset is not None or form.scale is None or any(move.others for move in form.moves):
        return []
    quotient = forms.quotient(form.root)
    if quotient is None or not same_shape(form.root, quotient.x) or quotient.x.dtype != value.dtype:
        return []
    scale, number = scaled_value(unmoved(form.scale.term)), scaled_value(unmoved(quotient.number.term))
    if scale is None or number is None or unreshaped(scale.value) is not unreshaped(number.value):
        return []
    is_divided = quotient.node.op_type == "Div"
    is_inverse = scale.is_inverse != number.is_inverse
    ratio = scale.number * number.number if is_inverse else scale.number / number.number
    is_one = is_inverse != is_divided and np.isclose(ratio, 1, rtol=2.0**-20)
    return [_Restored(position, quotient.x, form.moves)] if is_one else []


def _build_fake(match: tuple[_Restored, ...], edit: Edit) -> None:
    edit.operator = edit.node.op_type
    for position, floats, moves in match:
        value = floats
        for move in moves:
            node = move.node
            inputs = [value if i == move.data else each for i, each in enumerate(node.inputs)]
            new = ir.node(node.op_type, inputs, dict(node.attributes), num_outputs=len(node.outputs))
            edit.insert(new, before=edit.node, origin=node)
            value = new.outputs[move.output]
        edit.replace_input(edit.node, position, value)


FAKE: Rule[tuple[_Restored, ...]] = Rule("fake quantization", 7, _match_fake, _build_fake)
