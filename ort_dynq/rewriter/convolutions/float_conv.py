"""The rule for float convolutions of an activation that is quantized at run time by constant weights.

fake quantization | dequantization, Conv, [Mul by the activation's scale], [Add bias]
    -> quantization, QuantizedConv

The activation must have one scale for all elements, and the weights must be an 8-bit grid in every output channel
(products/grid.py). The integer sums are exact where a sum of floats is rounded, so the last bits differ: the rule does
not apply if results must be exact. The weights may be a grid that was rounded to float16. The activation may be rounded
to float16 after it is dequantized. ConvTranspose stays float.
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators.encodings import ScaleOrder
from ..analysis.folding import evaluate
from ..analysis.values import has_one_element
from ..edit import Edit
from ..metadata import ACTIVATION
from ..products.activations import Activations, dequantizer_of, has_one_scale
from ..products.grid import Grid
from ..products.roundings import note_roundings, rounded_dequantizer_of, with_float32_scale
from ..products.tail import Tail
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .convolution import Weights, geometry_of_floats, grid_of_channels, replace_convolution, weights_of


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("Conv", "ConvTranspose"):
        return None
    a, w, bias = [*node.inputs, None, None, None][:3]
    rounded = rounded_dequantizer_of(a)
    source = None if a is None else rounded or dequantizer_of(a)
    if a is None or w is None or source is None:
        return None
    if node.op_type == "ConvTranspose":
        raise Unconverted(Reason.CONV_TRANSPOSE)
    if context.exact:
        raise Unconverted(Reason.EXACT)
    if not has_one_scale(source) or not _has_one_zero_point(source):
        raise Unconverted(Reason.ACTIVATION_ONE_SCALE)
    weights, grid = _weights(w, context)
    facts, channels = context.facts, weights.channels
    geometry = geometry_of_floats(node, bias, weights)
    edit = context.edit("QuantizedConv", node)
    activation = context.shared(Activations).of(a, source, 1, context, edit)
    if rounded is not None:
        activation = with_float32_scale(activation, facts, edit)
    # The channel scales come first: the product of two scales may be too small for float32.
    tail = Tail(node, node.outputs[0], activation.scale, grid.scale, ScaleOrder.COLUMN_FIRST, bias)
    if activation.scale is None and bias is None:  # the codes are multiplied without their scale, which follows
        tail.take_scales(a, channels, facts)
    if bias is None:
        tail.take_bias(channels, facts)
    replace_convolution(tail, activation.codes, activation.zero_point, weights, geometry, context, edit)
    if a.name is not None:
        edit.metadata[ACTIVATION] = a.name
    note_roundings(edit, grid, of_activation=rounded is not None)
    return edit


RULE = Rule("float convolution", 13, _apply)


def _has_one_zero_point(source: ir.Node) -> bool:
    """Returns whether a dequantizer with one scale has one zero point."""
    zero_point = source.inputs[2] if source.op_type in ("AffineFakeQuantize", "AffineDequantize") else None
    return zero_point is None or has_one_element(zero_point)


def _weights(w: ir.Value, context: Context) -> tuple[Weights, Grid]:
    """Returns float weights as codes, and as the grid of M columns that they are.

    Raises:
        Unconverted: They are not constant, not known, or not a grid.
    """
    if not context.facts.is_constant(w):
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    elements = evaluate(w, context.facts)
    if elements is None:
        raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
    grid = grid_of_channels(elements, may_be_rounded=True)
    if grid is None:
        raise Unconverted(Reason.WEIGHTS_NOT_A_GRID_OF_CHANNELS)
    return weights_of(grid, elements.shape), grid
