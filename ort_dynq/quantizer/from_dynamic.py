"""The rule for models that onnxruntime's quantize_dynamic made: their weights stay as they are.

DynamicQuantizeLinear, MatMulInteger, Cast, Mul, [Add bias]    -> quantization per token, QuantizedMatMul
DynamicQuantizeLinear, ConvInteger, Cast, Mul, [Add bias]      -> quantization per sample, QuantizedConv
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import onnx_ir as ir

from ..graphs import MICROSOFT, STANDARD_DOMAINS
from ..opsets import OPSET
from ..rewriter.analysis.nodes import first_inputs, producer_of
from ..rewriter.analysis.standard import INTEGER_LAYERS, INTEGER_PRODUCTS
from ..rewriter.codes.float_activations import check_activation
from ..rewriter.convolutions import integer_conv
from ..rewriter.convolutions.quantized_conv import build_quantized_conv
from ..rewriter.edit import Edit
from ..rewriter.products.epilogue import Epilogue, epilogue_of
from ..rewriter.products.integer_product import UnsignedProduct, grid_of_weights
from ..rewriter.products.provenance import note_activation
from ..rewriter.products.quantized_matmul import build_quantized_matmul
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.weights.channels import columns_of
from ..rewriter.weights.grid import QuantizedWeights, check_length
from ..rewriter.weights.matrix_product import stack_beside
from .activations import codes_of, codes_of_images
from .options import Options


@dataclass(frozen=True)
class _DynamicProduct:
    activation: ir.Value
    weights: QuantizedWeights | integer_conv.IntegerConv
    epilogue: Epilogue
    options: Options


def _match(
    node: ir.Node, context: Context, options: Options
) -> _DynamicProduct | integer_conv.IntegerConv | UnsignedProduct | None:
    if node.domain == MICROSOFT and node.op_type in INTEGER_LAYERS and options.from_dynamic:
        options.check(node)
        raise Unconverted(Reason.OF_QUANTIZE_DYNAMIC)
    if node.domain not in STANDARD_DOMAINS or node.op_type not in INTEGER_PRODUCTS:
        return None
    options.check(node)
    facts, (codes, _, zero_point) = context.facts, first_inputs(node, 3)
    quantizer = None if codes is None else producer_of(codes, "DynamicQuantizeLinear")
    if quantizer is not None and zero_point is not quantizer.outputs[2]:
        quantizer = None
    x = None if quantizer is None else quantizer.inputs[0]
    if node.op_type == "ConvInteger":
        found = integer_conv.RULE.match(node, context)
        if not isinstance(found, integer_conv.IntegerConv) or x is None or not _has_scale_of(found.epilogue, quantizer):
            return found
        return _DynamicProduct(x, found, replace(found.epilogue, row=None), options)
    if codes is None or x is None:
        raise Unconverted(Reason.ACTIVATION_NOT_QUANTIZED)
    check_activation(x)
    grid = grid_of_weights(node, facts)
    grid = replace(grid, stack=stack_beside(grid.stack, codes))
    check_length(grid)
    channels = columns_of(grid.codes.shape[1], grid.stack, codes)
    epilogue = epilogue_of(node, codes, channels, facts)
    if epilogue is None or not _has_scale_of(epilogue, quantizer):
        raise Unconverted(Reason.SUMS_NOT_SCALED_BY_ACTIVATION)
    return _DynamicProduct(x, grid, replace(epilogue, row=None, is_row_moved=False), options)


def _has_scale_of(epilogue: Epilogue, quantizer: ir.Node | None) -> bool:
    """Returns whether the sums are multiplied by the scale of a DynamicQuantizeLinear, and nothing is added before."""
    if epilogue.row is None or quantizer is None:
        return False
    return epilogue.row is quantizer.outputs[1] and not epilogue.added


def _build(match: _DynamicProduct | integer_conv.IntegerConv | UnsignedProduct, edit: Edit) -> None:
    if not isinstance(match, _DynamicProduct):
        integer_conv.RULE.build(match, edit)
        return
    if isinstance(match.weights, integer_conv.IntegerConv):
        codes = codes_of_images(match.activation, edit, match.options)
        build_quantized_conv(match.epilogue, codes, match.weights.weights, match.weights.geometry, edit)
    else:
        build_quantized_matmul(match.epilogue, codes_of(match.activation, edit, match.options), match.weights, edit)
    note_activation(edit, match.activation)
    edit.note = "int8: the weights of the model" if match.options.weights != "int8" else ""


def rule(options: Options) -> Rule[_DynamicProduct | integer_conv.IntegerConv | UnsignedProduct]:
    """Returns the rule with these options."""
    match = functools.partial(_match, options=options)
    return Rule("product of quantize_dynamic", OPSET, match, _build, reports_opset=True)
