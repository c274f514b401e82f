"""The rule for models that onnxruntime's quantize_dynamic made: their weights stay as they are.

DynamicQuantizeLinear, MatMulInteger, Cast, Mul, [Add bias]    -> quantization per token, QuantizedMatMul
DynamicQuantizeLinear, ConvInteger, Cast, Mul, [Add bias]      -> DynamicQuantizeLinear, QuantizedConv
"""

from __future__ import annotations

import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..rewriter.analysis.values import producer_of, skip_identity
from ..rewriter.convolutions import integer_conv
from ..rewriter.edit import Edit
from ..rewriter.metadata import ACTIVATION
from ..rewriter.products.integer_product import grid_of_weights
from ..rewriter.products.tail import Channels, check_length, tail_of
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context
from .activations import FloatActivations, check_activation
from .options import Options

PRODUCTS = ("MatMulInteger", "ConvInteger")
"""The integer products that quantize_dynamic writes."""


def apply(node: ir.Node, context: Context, options: Options) -> Edit | None:
    """Returns the edit of a node with these options; see :class:`ort_dynq.rewriter.rule.Rule`."""
    if node.domain not in STANDARD_DOMAINS or node.op_type not in PRODUCTS:
        return None
    options.check(node)
    if node.op_type == "ConvInteger":
        return integer_conv.RULE.match(node, context)
    facts, (codes, _, zero_point) = context.facts, [*node.inputs, None, None, None][:3]
    quantizer = None if codes is None else producer_of(skip_identity(codes), "DynamicQuantizeLinear")
    x = None if quantizer is None else quantizer.inputs[0]
    if codes is None or quantizer is None or x is None or zero_point is not quantizer.outputs[2]:
        raise Unconverted(Reason.ACTIVATION_NOT_QUANTIZED)
    check_activation(x)
    grid = grid_of_weights(node, facts)
    check_length(grid)
    channels = Channels(grid.codes.shape[1], rank=1 if codes.shape is None else len(codes.shape))
    tail = tail_of(node, codes, channels, facts)
    if (
        tail is None
        or tail.row is None
        or skip_identity(tail.row) is not quantizer.outputs[1]
        or tail.subtracted is not None
    ):
        raise Unconverted(Reason.SUMS_NOT_SCALED_BY_ACTIVATION)
    edit = context.edit("QuantizedMatMul", node)
    edit.note = "int8: the weights of the model" if options.weights == "int4" else ""
    activation = context.shared(FloatActivations).of_rows(x, edit, options)
    tail.row, tail.is_row_moved = activation.scale, False
    tail.replace(activation.codes, activation.zero_point, grid, channels, context, edit)
    if x.name is not None:
        edit.metadata[ACTIVATION] = x.name
    return edit
