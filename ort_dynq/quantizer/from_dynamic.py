"""The rule for models that onnxruntime's quantize_dynamic made: their weights stay as they are.

DynamicQuantizeLinear, MatMulInteger, Cast, Mul, [Add bias]    -> quantization per token, QuantizedMatMul
DynamicQuantizeLinear, ConvInteger, Cast, Mul, [Add bias]      -> DynamicQuantizeLinear, QuantizedConv
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..opsets import OPSET
from ..rewriter.analysis.nodes import producer_of, skip_identity
from ..rewriter.convolutions import integer_conv
from ..rewriter.edit import Edit
from ..rewriter.products.channels import columns_of
from ..rewriter.products.float_activations import check_activation
from ..rewriter.products.grid import Grid
from ..rewriter.products.integer_product import UnsignedProduct, grid_of_weights
from ..rewriter.products.matrix_product import with_stack_of
from ..rewriter.products.provenance import note_activation
from ..rewriter.products.quantized_matmul import build_quantized_matmul
from ..rewriter.products.tail import Tail, check_length, tail_of
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from .activations import codes_of
from .options import Options

PRODUCTS = ("MatMulInteger", "ConvInteger")
"""The integer products that quantize_dynamic writes."""


@dataclass(frozen=True)
class _Match:
    activation: ir.Value
    grid: Grid
    tail: Tail
    options: Options


def _match(node: ir.Node, context: Context, options: Options) -> _Match | integer_conv.Match | UnsignedProduct | None:
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
    grid = with_stack_of(grid_of_weights(node, facts), codes)
    check_length(grid)
    channels = columns_of(grid.codes.shape[1], grid.stack, codes)
    tail = tail_of(node, codes, channels, facts)
    if tail is None or tail.row is None or skip_identity(tail.row) is not quantizer.outputs[1] or tail.added:
        raise Unconverted(Reason.SUMS_NOT_SCALED_BY_ACTIVATION)
    return _Match(x, grid, dataclasses.replace(tail, row=None, is_row_moved=False), options)


def _build(match: _Match | integer_conv.Match | UnsignedProduct, edit: Edit) -> None:
    if not isinstance(match, _Match):
        integer_conv.RULE.build(match, edit)
        return
    codes = codes_of(match.activation, edit, match.options)
    build_quantized_matmul(match.tail, codes, match.grid, edit)
    note_activation(edit, match.activation)
    edit.note = "int8: the weights of the model" if match.options.weights == "int4" else ""


def rule(options: Options) -> Rule[_Match | integer_conv.Match | UnsignedProduct]:
    """Returns the rule with these options."""
    match = functools.partial(_match, options=options)
    return Rule("product of quantize_dynamic", OPSET, match, _build, reports_opset=True)
