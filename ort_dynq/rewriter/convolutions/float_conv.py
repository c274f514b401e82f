"""The rule for float convolutions of an activation that is quantized at run time by constant weights.

fake quantization | dequantization, Conv, [Mul by the activation's scale], [Add bias]
    -> quantization, QuantizedConv
fake quantization | dequantization, ConvTranspose, [Mul by the activation's scale], [Add bias]
    -> quantization, QuantizedConv, [Reshape, Transpose, Reshape for each axis], [Slice]

The activation must have one scale for all elements, or one for each sample, and the weights must be an 8-bit grid in
every output channel (products/grid.py). The integer sums are exact where a sum of floats is rounded, so the last bits
differ: the rule does not apply if results must be exact. The weights of a Conv may be a grid that was rounded to
float16. The activation may be rounded to float16 after it is dequantized.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.evaluation import evaluate
from ..chains.quantize_linear import check_fused
from ..edit import Edit
from ..products.activation import Activation, activation_of
from ..products.affine import AffineForms
from ..products.codes import ActivationCodes
from ..products.epilogue import Epilogue
from ..products.grid import QuantizedWeights
from ..products.provenance import note_activation, note_roundings
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .convolution import Geometry, Weights, geometry_of_floats, grid_of_channels, unpadded, weights_of
from .quantized_conv import build_quantized_conv
from .transposed import Phases, axes_of, build_phases, by_output_channel, phases_of


@dataclass(frozen=True)
class _FloatConv:
    activation: Activation
    grid: QuantizedWeights  # the weights as a matrix, [C / group * k1 * ... * kr, M]
    weights: Weights
    geometry: Geometry | Phases
    epilogue: Epilogue


def _match(node: ir.Node, context: Context) -> _FloatConv | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("Conv", "ConvTranspose"):
        return None
    a, w, bias = [*node.inputs, None, None, None][:3]
    forms = context.shared(AffineForms)
    if a is None or w is None:
        return None
    more_pads: list[int] = []
    if node.op_type == "Conv":
        a, more_pads = unpadded(a, 0 if w.shape is None else len(w.shape) - 2)
    form = forms.of(a)
    if form is None:
        return None
    check_fused(node, context)
    if context.exact:
        raise Unconverted(Reason.EXACT)
    if not all(param.is_of_samples(a.shape) for param in form.params):
        raise Unconverted(Reason.ACTIVATION_OF_SAMPLES)
    weights, grid = _weights(w, node, context)
    activation = activation_of(form, forms.values, is_image=True)
    if not all(param.is_of_samples(a.shape) for param in activation.form.params):  # marks may be of rows of codes
        raise Unconverted(Reason.ACTIVATION_OF_SAMPLES)
    epilogue = Epilogue(node, weights.channels, node.outputs[0], column=grid.scale, bias=bias)
    if bias is None and not activation.has_offset:
        if not activation.is_scaled:  # a scale may follow
            epilogue = epilogue.past_scales(a, context.facts)
        epilogue = epilogue.past_bias(context.facts)
    if node.op_type == "Conv":
        has_scales = not all(param.is_one for param in form.params)
        geometry = geometry_of_floats(node, bias, weights, more_pads, has_scales_of_samples=has_scales)
        return _FloatConv(activation, grid, weights, geometry, epilogue)
    if activation.has_offset:
        raise Unconverted(Reason.CONV_TRANSPOSE_OFFSET)
    return _FloatConv(
        activation, grid, weights, phases_of(a, weights, axes_of(node, weights), epilogue, context.facts), epilogue
    )


def _build(match: _FloatConv, edit: Edit) -> None:
    codes = edit.shared(ActivationCodes).of(match.activation, edit)
    if isinstance(match.geometry, Phases):
        build_phases(match.geometry, codes, edit)
    else:
        build_quantized_conv(match.epilogue, codes, match.weights, match.geometry, edit)
    note_activation(edit, match.activation.value)
    note_roundings(edit, match.activation, match.grid)


RULE = Rule("float convolution", 13, _match, _build)


def _weights(w: ir.Value, node: ir.Node, context: Context) -> tuple[Weights, QuantizedWeights]:
    """Returns float weights as codes, and as the grid of M columns that they are.

    Raises:
        Unconverted: They are not constant, not known, or not a grid.
    """
    if not context.facts.is_constant(w):
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    elements = evaluate(w, context.facts)
    if elements is None:
        raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
    is_conv = node.op_type == "Conv"
    elements = elements if is_conv else by_output_channel(elements, node)
    grid = grid_of_channels(elements, may_be_rounded=is_conv)
    if grid is None:
        raise Unconverted(Reason.WEIGHTS_NOT_A_GRID_OF_CHANNELS)
    return weights_of(grid, elements.shape), grid
