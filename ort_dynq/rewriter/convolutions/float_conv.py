"""The rule for float convolutions of an activation that is quantized at run time by constant weights.

fake quantization | dequantization, Conv, [Mul by the activation's scale], [Add bias]
    -> quantization, QuantizedConv

The activation must have one scale for all elements, and the weights must be an 8-bit grid in every output channel
(products/grid.py). The integer sums are exact where a sum of floats is rounded, so the last bits differ: the rule does
not apply if results must be exact. The weights may be a grid that was rounded to float16. The activation may be rounded
to float16 after it is dequantized. ConvTranspose stays float.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.evaluation import evaluate
from ..edit import Edit
from ..products.activation import Activation, activation_of
from ..products.affine import AffineForms
from ..products.codes import ActivationCodes
from ..products.grid import Grid
from ..products.provenance import note_activation, note_roundings
from ..products.tail import Tail
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .convolution import Geometry, Weights, geometry_of_floats, grid_of_channels, unpadded, weights_of
from .quantized_conv import build_quantized_conv


@dataclass(frozen=True)
class _Match:
    activation: Activation
    grid: Grid  # the weights as a matrix, [C / group * k1 * ... * kr, M]
    weights: Weights
    geometry: Geometry
    tail: Tail


def _match(node: ir.Node, context: Context) -> _Match | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("Conv", "ConvTranspose"):
        return None
    a, w, bias = [*node.inputs, None, None, None][:3]
    forms = context.shared(AffineForms)
    if a is None or w is None:
        return None
    a, more_pads = unpadded(a, 0 if w.shape is None else len(w.shape) - 2)
    form = forms.of(a)
    if form is None:
        return None
    if node.op_type == "ConvTranspose":
        raise Unconverted(Reason.CONV_TRANSPOSE)
    if context.exact:
        raise Unconverted(Reason.EXACT)
    if not all(param.is_one for param in form.params):
        raise Unconverted(Reason.ACTIVATION_ONE_SCALE)
    weights, grid = _weights(w, context)
    geometry = geometry_of_floats(node, bias, weights, more_pads)
    activation = activation_of(form, forms.values)
    tail = Tail(node, weights.channels, node.outputs[0], column=grid.scale, bias=bias)
    if activation.has_offset:
        return _Match(activation, grid, weights, geometry, tail)
    if not activation.is_scaled and bias is None:  # a scale may follow
        tail = tail.past_scales(a, context.facts)
    return _Match(activation, grid, weights, geometry, tail if bias is not None else tail.past_bias(context.facts))


def _build(match: _Match, edit: Edit) -> None:
    codes = edit.shared(ActivationCodes).of(match.activation, edit)
    build_quantized_conv(match.tail, codes, match.weights, match.geometry, edit)
    note_activation(edit, match.activation.value)
    note_roundings(edit, match.activation, match.grid)


RULE = Rule("float convolution", 13, _match, _build)


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
