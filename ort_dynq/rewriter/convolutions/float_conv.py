"""The rule for float convolutions of an activation that is quantized at run time by constant weights.

fake quantization | dequantization, Conv, [Mul by the activation's scale], [Add bias]
    -> quantization, QuantizedConv
fake quantization | dequantization, ConvTranspose, [Mul by the activation's scale], [Add bias]
    -> quantization, QuantizedConv, [Reshape, Transpose, Reshape for each axis], [Slice]

The activation must have one scale for all elements, or one for each sample, and the weights must be an 8-bit grid in
every output channel (products/grid.py). Channels of a Concat may have scales of their own: then the convolutions of its
inputs are added. The integer sums are exact where a sum of floats is rounded, so the last bits
differ: the rule does not apply if results must be exact. The weights of a Conv may be a grid that was rounded to
float16. The activation may be rounded to float16 after it is dequantized.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..analysis.evaluation import evaluate
from ..analysis.nodes import first_inputs, producer_of
from ..analysis.standard import CONVOLUTIONS
from ..codes.activation import Activation, activation_of
from ..codes.affine import AffineForms
from ..codes.affine_form import Affine
from ..codes.codes import ActivationCodes
from ..edit import Edit
from ..policy.ort_fusions import check_fused
from ..products.epilogue import Epilogue
from ..products.provenance import note_activation, note_roundings
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.grid import QuantizedWeights
from .convolution import Geometry, Weights, geometry_of_floats, grid_of_channels, unpadded, weights_of
from .quantized_conv import insert_quantized_conv
from .transposed import Phases, axes_of, build_phases, by_output_channel, phases_of


@dataclass(frozen=True)
class _FloatConv:
    """A convolution, or the part of one that reads some of its input channels."""

    activation: Activation
    grid: QuantizedWeights  # the weights as a matrix, [C / group * k1 * ... * kr, M]
    weights: Weights
    geometry: Geometry | Phases
    epilogue: Epilogue


@dataclass(frozen=True)
class _FloatConvParts:
    """The parts of a convolution, and the activation that it multiplies. The results of the parts are added."""

    parts: tuple[_FloatConv, ...]
    value: ir.Value


def _match(node: ir.Node, context: Context) -> _FloatConvParts | None:
    a, w, bias = first_inputs(node, 3)
    forms = context.shared(AffineForms)
    if a is None or w is None:
        return None
    more_pads: list[int] = []
    if node.op_type == "Conv":
        a, more_pads = unpadded(a, 0 if w.shape is None else len(w.shape) - 2)
    form = forms.of(a)
    parts = [] if form is not None and _is_of_samples(form, a) else _parts_of_channels(a, node, forms)
    if form is None and not parts:
        return None
    check_fused(node, context)
    if context.options.exact:
        raise Unconverted(Reason.EXACT)
    if parts:
        return _FloatConvParts(tuple(_of_parts(parts, w, bias, more_pads, node, context)), a)
    if form is None or not _is_of_samples(form, a):
        is_depthwise = node.op_type == "Conv" and w.shape is not None and w.shape[1] == 1
        raise Unconverted(Reason.CONV_SINGLE_CHANNELS if is_depthwise else Reason.ACTIVATION_OF_SAMPLES)
    weights, grid = _weights(w, node, context)
    activation = activation_of(form, forms.values, is_image=True)
    if not _is_of_samples(activation.form, a):  # marks may be of rows of codes
        raise Unconverted(Reason.ACTIVATION_OF_SAMPLES)
    epilogue = Epilogue(node, weights.channels, node.outputs[0], column=grid.scale, bias=bias)
    if bias is None and not activation.has_offset:
        if not activation.is_scaled:  # a scale may follow
            epilogue = epilogue.past_scales(a, context.facts)
        epilogue = epilogue.past_bias(context.facts)
    geometry: Geometry | Phases
    if node.op_type == "Conv":
        has_scales = not all(param.is_one for param in form.params)
        geometry = geometry_of_floats(node, bias, weights, more_pads, has_scales_of_samples=has_scales)
    elif activation.has_offset:
        raise Unconverted(Reason.CONV_TRANSPOSE_OFFSET)
    else:
        geometry = phases_of(a, weights, axes_of(node, weights), epilogue, context.facts)
    return _FloatConvParts((_FloatConv(activation, grid, weights, geometry, epilogue),), a)


def _is_of_samples(form: Affine, a: ir.Value) -> bool:
    return all(param.is_of_samples(a.shape) for param in form.params)


def _parts_of_channels(a: ir.Value, node: ir.Node, forms: AffineForms) -> list[Affine]:
    """Returns the forms of the inputs of a Concat of channels, each with numbers of its own; none if it is no such one.

    Skip connections are quantized so: each of the tensors that they join has its scale.
    """
    concat = producer_of(a, "Concat") if node.op_type == "Conv" else None
    if concat is None or concat.attributes.get_int("axis", 0) != 1 or node.attributes.get_int("group", 1) != 1:
        return []
    found = [form for each in concat.inputs if each is not None and (form := forms.of(each)) is not None]
    is_known = len(found) == len(concat.inputs) and all(
        form.scale is not None
        and not form.is_rounded
        and form.value.shape is not None
        and isinstance(form.value.shape[1], int)
        and _is_of_samples(form, form.value)
        for form in found
    )
    return found if is_known else []


def _of_parts(
    parts: list[Affine], w: ir.Value, bias: ir.Value | None, more_pads: list[int], node: ir.Node, context: Context
) -> Iterator[_FloatConv]:
    """Yields the convolutions of the parts of an activation; the first one has the bias."""
    weights, grid = _weights(w, node, context)
    if grid.is_rounded:
        raise Unconverted(Reason.ACTIVATION_OF_SAMPLES)
    values, first = context.shared(AffineForms).values, 0
    for form in parts:
        channels = form.value.shape[1] if form.value.shape is not None else None
        assert isinstance(channels, int)
        activation = activation_of(form, values, is_image=True)
        if not _is_of_samples(activation.form, form.value):
            raise Unconverted(Reason.ACTIVATION_OF_SAMPLES)
        of_part = Weights(np.ascontiguousarray(weights.codes[:, first : first + channels]), weights.zero_point)
        own_bias = None if first else bias
        has_scales = not all(param.is_one for param in form.params)
        geometry = geometry_of_floats(node, own_bias, of_part, more_pads, has_scales_of_samples=has_scales)
        epilogue = Epilogue(node, of_part.channels, node.outputs[0], column=grid.scale, bias=own_bias)
        yield _FloatConv(activation, grid, of_part, geometry, epilogue)
        first += channels


def _build(match: _FloatConvParts, edit: Edit) -> None:
    codes_of, results = edit.shared(ActivationCodes), list[ir.Value]()
    for part in match.parts:
        codes = codes_of.of(part.activation, edit)
        if isinstance(part.geometry, Phases):
            build_phases(part.geometry, codes, edit)
        else:
            results.append(insert_quantized_conv(part.epilogue, codes, part.weights, part.geometry, edit))
        note_roundings(edit, part.activation, part.grid)
    note_activation(edit, match.value)
    if results:
        add = functools.partial(_add, edit=edit)
        edit.replace(match.parts[0].epilogue.last, functools.reduce(add, results))


def _add(a: ir.Value, b: ir.Value, edit: Edit) -> ir.Value:
    return edit.insert(ir.node("Add", [a, b]), before=edit.node)


RULE = Rule("float convolution", 13, _match, _build, operators=CONVOLUTIONS)


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
