"""The rule for integer products with an activation that is quantized at run time, as quantize_dynamic writes them.

DynamicQuantizeLinear, MatMulInteger, Cast, Mul, [Add bias]    -> MatMul, [Add bias]
DynamicQuantizeLinear, ConvInteger, Cast, Mul, [Add bias]      -> Conv
Round(x / s), Cast, MatMulInteger, Cast, Mul by s, ...         -> MatMul of x
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..rewriter.analysis.constants import constant_scalar
from ..rewriter.analysis.nodes import first_inputs, is_standard, producer_of
from ..rewriter.analysis.standard import INTEGER_PRODUCTS
from ..rewriter.codes.affine import AffineForms
from ..rewriter.edit import Edit
from ..rewriter.products.epilogue import Epilogue, epilogue_of
from ..rewriter.products.integer_product import stored_weights_of
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers
from ..rewriter.weights.channels import Channels, columns_of
from .stored import StoredWeights, in_one_shape

_RANK_OF_MATRIX = 2


@dataclass(frozen=True)
class _RestoredProduct:
    activation: ir.Value
    weights: StoredWeights
    epilogue: Epilogue
    form: str


def _match(node: ir.Node, context: Context, form: str) -> _RestoredProduct | None:
    if not is_standard(node, *INTEGER_PRODUCTS):
        return None
    codes, _, zero_point = first_inputs(node, 3)
    if codes is None:
        return None
    found = _activation_of(codes, zero_point, context)
    if found is None:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its activation is not known to be quantized from floats")
    x, scale = found
    elements, zeros = stored_weights_of(node, context.facts)
    is_conv = node.op_type == "ConvInteger"
    if not is_conv and elements.ndim != _RANK_OF_MATRIX:
        raise Unconverted(Reason.WEIGHTS_RANK, rank=elements.ndim, expected=_RANK_OF_MATRIX)
    size = elements.shape[0 if is_conv else 1]
    channels = Channels(size, elements.ndim - 2) if is_conv else columns_of(size, (), codes)
    epilogue = epilogue_of(node, codes, channels, context.facts)
    if epilogue is None or epilogue.row is not scale or epilogue.added or epilogue.is_row_moved:
        raise Unconverted(Reason.SUMS_NOT_SCALED_BY_ACTIVATION)
    column = np.ones((), np.float32) if epilogue.column is None else epilogue.column
    scales, zero_points = in_one_shape(column, zeros, size)
    return _RestoredProduct(x, StoredWeights(elements, zero_points, scales, 0 if is_conv else 1), epilogue, form)


def _activation_of(codes: ir.Value, zero_point: ir.Value | None, context: Context) -> tuple[ir.Value, ir.Value] | None:
    """Returns the floats that codes are quantized from, and their scale; None if they are not known."""
    quantizer = producer_of(codes, "DynamicQuantizeLinear")
    if quantizer is not None:
        x = quantizer.inputs[0]
        return None if x is None or zero_point is not quantizer.outputs[2] else (x, quantizer.outputs[1])
    forms = context.shared(AffineForms)
    form = forms.of(codes)
    quotient = None if form is None or form.moves else rounded_from(codes, context)
    if quotient is None or (zero_point is not None and constant_scalar(zero_point) != 0):
        return None
    return quotient


def rounded_from(codes: ir.Value, context: Context) -> tuple[ir.Value, ir.Value] | None:
    """Returns x and s of codes that are x / s, rounded, clipped and cast; None for others."""
    forms = context.shared(AffineForms)
    quotient = forms.quotient(codes)
    if quotient is None or quotient.zero_points or quotient.node.op_type != "Div":
        return None
    return (quotient.x, quotient.number.term) if isinstance(quotient.number.term, ir.Value) else None


def _build(match: _RestoredProduct, edit: Edit) -> None:
    node, epilogue = edit.node, match.epilogue
    before = epilogue.last_node
    weights, bias = match.weights.insert(match.form, before, edit), epilogue.bias
    if bias is not None and not isinstance(bias, ir.Value):
        bias = edit.shared(SharedInitializers).of(np.ascontiguousarray(bias.reshape(-1)), edit)
    inputs = [match.activation, weights]
    if node.op_type == "ConvInteger":
        inputs += [] if bias is None else [bias]
        result = edit.insert_main(ir.node("Conv", inputs, dict(node.attributes)), before=before)
        edit.replace(epilogue.last, result)
        return
    result = epilogue.moved(edit.insert_main(ir.node("MatMul", inputs), before=before), edit)
    if bias is not None:
        result = edit.insert(ir.node("Add", [result, bias]), before=before)
    edit.replace(epilogue.last, result)


def rule(form: str) -> Rule[_RestoredProduct]:
    """Returns the rule for weights of a form."""
    return Rule("integer product", 10, functools.partial(_match, form=form), _build)
