"""The rule for operators that take codes with their scales, as QOperator models and ONNX Runtime's optimizations do.

QLinearMatMul, QLinearConv, QGemm, QLinearAdd, ...    -> DequantizeLinear, MatMul, Conv, Gemm, Add, ..., QuantizeLinear
MatMulIntegerToFloat, DynamicQuantizeMatMul           -> [DequantizeLinear], MatMul, [Add bias]
QAttention, QEmbedLayerNormalization                  -> Attention, EmbedLayerNormalization of com.microsoft

Constant codes are weights. Pairs of QuantizeLinear and DequantizeLinear go by another rule (activations.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..graphs import MICROSOFT, RUNTIME_DOMAINS
from ..rewriter.analysis.evaluation import evaluate_if_constant
from ..rewriter.analysis.nodes import first_inputs
from ..rewriter.analysis.shapes import has_one_element
from ..rewriter.analysis.standard import SCALED_PRODUCTS
from ..rewriter.edit import Edit
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers
from .stored import StoredWeights, in_one_shape

_CODES = (ir.DataType.UINT8, ir.DataType.INT8)


class _Operand(NamedTuple):
    """Codes, or others if there is no scale; weights if they are constant.

    Attributes:
        value: The codes; None if an input is absent.
        scale, zero_point: Numbers, or one for each index of an axis.
        axis: The axis.
        weights: The codes, if they are constant.
    """

    value: ir.Value | None
    scale: ir.Value | None = None
    zero_point: ir.Value | None = None
    axis: int = 0
    weights: StoredWeights | None = None


@dataclass(frozen=True)
class _Expansion:
    """A float operator in place of one of codes.

    Attributes:
        op_type, domain: The operator.
        operands: Its first inputs.
        bias: A float bias: added after a product, or an input of other operators; None if there is none.
        others: Inputs after these.
        scale, zero_point: Those of the codes of the result; no scale if it is floats.
        form: The form of weights.
        attributes: The attributes.
    """

    op_type: str
    operands: Sequence[_Operand]
    form: str
    scale: ir.Value | None = None
    zero_point: ir.Value | None = None
    bias: ir.Value | np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None = None
    others: Sequence[ir.Value | None] = ()
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict)
    domain: str = ""


_UNARY = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearSoftmax": "Softmax",
}
_BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_OF_ORT = ("channels_last", "opset")  # attributes that the float operators do not have


def _match(node: ir.Node, context: Context, form: str) -> _Expansion | None:
    if node.domain not in RUNTIME_DOMAINS:
        return None
    if node.op_type == "QLinearMatMul":
        return _matrix_product(node, context, form)
    if node.op_type == "QLinearConv":
        return _convolution(node, context, form)
    if node.domain != MICROSOFT:
        return None
    if node.op_type == "QGemm":
        return _gemm(node, context, form)
    if node.op_type in SCALED_PRODUCTS:
        return _product_to_floats(node, context, form)
    if node.op_type == "QAttention":
        return _attention(node, context, form)
    if node.op_type == "QEmbedLayerNormalization":
        return _embedding(node, context, form)
    if node.op_type == "QLinearConcat":
        scale, zero_point, *given = node.inputs
        parts = _operands(given, context)
        return _Expansion("Concat", parts, form, scale, zero_point, attributes=node.attributes)
    count = 1 if node.op_type in _UNARY else 2 if node.op_type in _BINARY else 0
    if not count:
        return None
    if node.attributes.get_int("channels_last", 0) > 0:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its channels are last")
    flags = [node.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad")]
    if node.op_type == "QLinearAveragePool" and all(flags):
        raise Unconverted(Reason.NO_FLOAT_FORM, what="AveragePool counts other pads with ceil_mode")
    given = first_inputs(node, 3 * count + 2)
    operands = _operands(given[:-2], context)
    kept = {name: each for name, each in node.attributes.items() if name not in _OF_ORT}
    if node.op_type == "QLinearSoftmax":
        kept["axis"] = ir.AttrInt64("axis", _axis_of_softmax(node, context.facts.opset))
    op_type = _UNARY.get(node.op_type) or _BINARY[node.op_type]
    return _Expansion(op_type, operands, form, given[-2], given[-1], attributes=kept)


def _axis_of_softmax(node: ir.Node, opset: int) -> int:
    """Returns the axis of QLinearSoftmax, from which on Softmax takes all axes together before opset 13.

    Raises:
        Unconverted: Softmax of the model's opset takes other axes together.
    """
    axis, x = node.attributes.get_int("axis", -1), node.inputs[0]
    is_last = axis == -1 or (x is not None and x.shape is not None and axis == len(x.shape) - 1)
    if not is_last and (node.attributes.get_int("opset", 13) < 13) != (opset < 13):
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its axes are those of another opset")
    return axis


def _matrix_product(node: ir.Node, context: Context, form: str) -> _Expansion:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero_point = first_inputs(node, 8)
    operands = [_operand(a, a_scale, a_zero, -2, context), _operand(b, b_scale, b_zero, -1, context)]
    return _Expansion("MatMul", operands, form, scale, zero_point)


def _convolution(node: ir.Node, context: Context, form: str) -> _Expansion:
    if node.attributes.get_int("channels_last", 0) > 0:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its channels are last")
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero_point, bias = first_inputs(node, 9)
    operands = [_operand(x, x_scale, x_zero, 1, context), _operand(w, w_scale, w_zero, 0, context)]
    kept = {name: each for name, each in node.attributes.items() if name not in _OF_ORT}
    floats = _float_bias(bias, x_scale, w_scale, context)
    return _Expansion("Conv", operands, form, scale, zero_point, floats, attributes=kept)


def _gemm(node: ir.Node, context: Context, form: str) -> _Expansion:
    a, a_scale, a_zero, b, b_scale, b_zero, bias, scale, zero_point = first_inputs(node, 9)
    axis = 0 if node.attributes.get_int("transB", 0) else 1
    operands = [_operand(a, a_scale, a_zero, 0, context), _operand(b, b_scale, b_zero, axis, context)]
    alpha = node.attributes.get_float("alpha", 1.0)
    floats = _float_bias(bias, a_scale, b_scale, context, alpha)
    return _Expansion("Gemm", operands, form, scale, zero_point, floats, attributes=node.attributes)


def _product_to_floats(node: ir.Node, context: Context, form: str) -> _Expansion:
    if node.op_type == "DynamicQuantizeMatMul":
        a, b, b_scale, b_zero, bias = first_inputs(node, 5)
        first = _floats(a)
    else:
        a, b, a_scale, b_scale, a_zero, b_zero, bias = first_inputs(node, 7)
        first = _operand(a, a_scale, a_zero, -2, context)
    return _Expansion("MatMul", [first, _operand(b, b_scale, b_zero, -1, context)], form, bias=bias)


def _attention(node: ir.Node, context: Context, form: str) -> _Expansion:
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = first_inputs(node, 9)
    operands = [_operand(x, x_scale, x_zero, 0, context), _operand(weights, w_scale, w_zero, 1, context)]
    others = [bias, mask, past]
    return _Expansion("Attention", operands, form, others=others, attributes=node.attributes, domain=MICROSOFT)


def _embedding(node: ir.Node, context: Context, form: str) -> _Expansion:
    ids, segments, *tables = first_inputs(node, 7)
    mask, *numbers = first_inputs(node, 18)[7:]
    triples = zip(tables, numbers[:5], numbers[5:], strict=True)
    operands = [_Operand(ids), _Operand(segments)]
    operands += [
        _Operand(None) if value is None else _operand(value, scale, zero_point, 0, context)
        for value, scale, zero_point in triples
    ]
    kind, kept = "EmbedLayerNormalization", node.attributes
    return _Expansion(kind, operands, form, others=[mask], attributes=kept, domain=MICROSOFT)


def _floats(value: ir.Value | None) -> _Operand:
    if value is None or value.dtype not in (ir.DataType.FLOAT, None):
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its activation is not known to be float32")
    return _Operand(value)


def _operands(given: Sequence[ir.Value | None], context: Context) -> list[_Operand]:
    """Returns operands that are given as codes, a scale and a zero point, one after the other."""
    triples = zip(given[::3], given[1::3], given[2::3], strict=True)
    return [_operand(value, scale, zero_point, 0, context) for value, scale, zero_point in triples]


def _operand(
    value: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None, axis: int, context: Context
) -> _Operand:
    """Returns codes as a factor of a float operator.

    Raises:
        Unconverted: Their type or rank is not known, or weights have scales or zero points of run time.
    """
    if value is None or scale is None or value.dtype not in _CODES or scale.dtype != ir.DataType.FLOAT:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its codes are not known to be of 8 bits with scales of float32")
    codes = evaluate_if_constant(value, context.facts)
    if codes is None:
        is_whole = has_one_element(scale) and (zero_point is None or has_one_element(zero_point))
        if not is_whole:
            raise Unconverted(Reason.NO_FLOAT_FORM, what="its activation has several scales")
        return _Operand(value, scale, zero_point, axis)
    scales = evaluate_if_constant(scale, context.facts)
    zeros = None if zero_point is None else evaluate_if_constant(zero_point, context.facts)
    if scales is None or (zero_point is not None and zeros is None):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    axis %= max(1, codes.ndim)
    zeros = np.zeros((), codes.dtype) if zeros is None else zeros
    length = codes.shape[axis] if codes.ndim else 1
    if {scales.size, zeros.size} - {1, length}:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its matrices of weights have scales of their own")
    scales, zeros = in_one_shape(scales, zeros, length)
    return _Operand(value, weights=StoredWeights(codes, zeros.astype(codes.dtype), scales, axis))


def _float_bias(
    bias: ir.Value | None,
    first: ir.Value | None,
    second: ir.Value | None,
    context: Context,
    alpha: float = 1.0,
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
    """Returns an int32 bias, in units of alpha times the product of both scales, as floats."""
    if bias is None:
        return None
    arrays = [evaluate_if_constant(each, context.facts) for each in (bias, first, second)]
    integers, *scales = arrays
    if integers is None or any(each is None for each in scales):
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its bias or a scale is computed at run time")
    x, w = (np.asarray(each, np.float32) for each in scales)
    return np.asarray(integers.astype(np.float32) * (np.float32(alpha) * x.reshape(-1)[:1] * w.reshape(-1)), np.float32)


def _build(match: _Expansion, edit: Edit) -> None:
    node, result, shared = edit.node, edit.node.outputs[0], edit.shared(SharedInitializers)
    inputs: list[ir.Value | None] = [_inserted(each, match.form, edit) for each in match.operands]
    bias = match.bias if not isinstance(match.bias, np.ndarray) else shared.of(match.bias, edit)
    is_added = bias is not None and match.op_type == "MatMul"
    inputs += [] if bias is None or is_added else [bias]
    inputs += match.others
    while inputs and inputs[-1] is None:
        inputs.pop()
    count = len(node.outputs)
    main = ir.node(match.op_type, inputs, dict(match.attributes), domain=match.domain, num_outputs=count)
    value = edit.insert_main(main, before=node)
    edit.facts.note(value, ir.DataType.FLOAT, result.shape)
    if is_added:
        value = edit.insert(ir.node("Add", [value, bias]), before=node)
        edit.facts.note(value, ir.DataType.FLOAT, result.shape)
    if match.scale is not None:
        given = [each for each in (value, match.scale, match.zero_point) if each is not None]
        value = edit.insert(ir.node("QuantizeLinear", given), before=node)
    edit.replace(result, value)
    for old, new in zip(node.outputs[1:], main.outputs[1:], strict=True):
        if old.uses() or old.is_graph_output():
            edit.replace(old, new)


def _inserted(operand: _Operand, form: str, edit: Edit) -> ir.Value | None:
    if operand.weights is not None:
        return operand.weights.insert(form, edit.node, edit)
    if operand.value is None or operand.scale is None:
        return operand.value
    given = [each for each in (operand.value, operand.scale, operand.zero_point) if each is not None]
    floats = edit.insert(ir.node("DequantizeLinear", given), before=edit.node)
    edit.facts.note(floats, ir.DataType.FLOAT, operand.value.shape)
    return floats


def rule(form: str) -> Rule[_Expansion]:
    """Returns the rule that gives weights a form."""
    return Rule("operator of codes", 10, functools.partial(_match, form=form), _build)
