"""The rule for convolutions with constant float weights.

activation, Conv, [Add bias]    -> DynamicQuantizeLinear, QuantizedConv
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..operators.encodings import ScaleOrder
from ..rewriter.builders.convolution import Weights, check_rank, geometry_of, replace_convolution
from ..rewriter.builders.product_tail import Tail
from ..rewriter.edit import Edit
from ..rewriter.facts.cost import is_tiny_convolution
from ..rewriter.metadata import ACTIVATION
from ..rewriter.report import Left
from ..rewriter.rule import Context
from .activations import FloatActivations, check_activation
from .options import Options
from .weights import floats_of, grid_of_columns


def apply(node: ir.Node, context: Context, options: Options) -> Edit | None:
    """Returns the edit of a node with these options; see :class:`ort_dynq.rewriter.rule.Rule`."""
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("Conv", "ConvTranspose"):
        return None
    options.check(node)
    a, w, bias = [*node.inputs, None, None, None][:3]
    if a is None or w is None:
        return None
    if node.op_type == "ConvTranspose":
        raise Left("ort_dynq has no integer product for a transposed convolution")
    facts = context.facts
    if not facts.is_constant(w):
        raise Left("the weights are computed at run time")
    check_activation(a)
    elements = floats_of(w, facts)
    check_rank(elements.ndim)
    if elements.shape[1] == 1:
        raise Left("a convolution of single channels: one of floats is faster")
    grid = grid_of_columns(elements.reshape(len(elements), -1).T)
    weights = Weights(np.ascontiguousarray(grid.codes.T).reshape(elements.shape), grid.zero_point)
    weights.check()
    if bias is not None and (bias.dtype != ir.DataType.FLOAT or bias.shape != ir.Shape([len(elements)])):
        raise Left("the bias is not known to have one float32 number for each output channel")
    geometry = geometry_of(node, weights)
    if is_tiny_convolution(node, weights.codes):
        raise Left("the convolution is too small: quantization and a custom operator cost more than integers save")
    edit = context.edit("QuantizedConv", node)
    activation = context.shared(FloatActivations).of_tensor(a, edit)
    # The channel scales come first: the product of two scales may be too small for float32.
    tail = Tail(node, node.outputs[0], activation.scale, grid.scale, ScaleOrder.COLUMN_FIRST, bias)
    if bias is None:
        tail.take_bias(weights.channels, facts)
    replace_convolution(tail, activation.codes, activation.zero_point, weights, geometry, context, edit)
    if a.name is not None:
        edit.metadata[ACTIVATION] = a.name
    return edit
