"""The rule for convolutions with constant float weights.

activation, Conv, [Add bias], [BatchNormalization | Mul | Add | ...]    -> quantization, QuantizedConv
                                                                       -> WordConv

ONNX Runtime folds a BatchNormalization into a Conv of floats. Here it goes into the scales and the bias, as do the
constants of each channel that it multiplies and adds when an exporter writes it as several nodes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..opsets import OPSET
from ..rewriter.analysis.inference import Facts
from ..rewriter.analysis.nodes import first_inputs, is_standard
from ..rewriter.analysis.standard import ARITHMETIC
from ..rewriter.codes.float_activations import check_activation
from ..rewriter.convolutions.convolution import (
    Geometry,
    Weights,
    check_rank,
    geometry_of_floats,
    grid_of_channels,
    weights_of,
)
from ..rewriter.convolutions.word_conv import insert_conv
from ..rewriter.edit import Edit
from ..rewriter.policy.cost import has_few_products, has_short_sums, has_short_sums_for_two_terms
from ..rewriter.products.epilogue import Epilogue, NextNode
from ..rewriter.products.provenance import note_activation
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.weights.channels import Channels
from .activations import codes_of_images, note_on_8_bits, note_on_words
from .options import Options
from .weights import check_constant, check_stored, floats_of, grid_of_columns, release, words_of


@dataclass(frozen=True)
class _FloatConvLayer:
    activation: ir.Value
    weights: Weights
    geometry: Geometry
    epilogue: Epilogue
    options: Options


def _match(node: ir.Node, context: Context, options: Options) -> _FloatConvLayer | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type != "Conv":
        return None
    if (operands := operands_of(node, context, options)) is None:
        return None
    (a, w, bias), facts = operands, context.facts
    elements = floats_of(w, facts)
    check_stored(w, elements)
    weights, scale = weights_of_floats(elements, node, options)
    release(w)
    has_scales = weights.are_words or options.has_two_terms(node) or options.activations != "tensor"
    geometry = geometry_of_floats(node, bias, weights, has_scales_of_samples=has_scales)
    if has_few_products(weights.codes.shape, geometry.table[1].tolist(), geometry.group):
        raise Unconverted(Reason.CONV_FEW_PRODUCTS)
    epilogue = Epilogue(node, weights.channels, node.outputs[0], column=scale, bias=bias)
    epilogue = epilogue if bias is not None else epilogue.past_bias(facts)
    return _FloatConvLayer(a, weights, geometry, past_factors(epilogue, facts), options)


def _build(match: _FloatConvLayer, edit: Edit) -> None:
    note_activation(edit, match.activation)
    codes = None if match.weights.are_words else codes_of_images(match.activation, edit, match.options)
    result = insert_conv(match.epilogue, match.activation, codes, match.weights, match.geometry, edit)
    edit.replace(match.epilogue.last, result)
    edit.note = note_on_words(match.options) if codes is None else note_on_8_bits(codes, match.options)


def rule(options: Options) -> Rule[_FloatConvLayer]:
    """Returns the rule with these options."""
    match = functools.partial(_match, options=options)
    return Rule("quantized convolution", OPSET, match, _build, reports_opset=True)


def operands_of(node: ir.Node, context: Context, options: Options) -> tuple[ir.Value, ir.Value, ir.Value | None] | None:
    """Returns the activation, the constant weights and the bias of a convolution; None if an input is missing.

    Raises:
        Unconverted: The layer is excluded, its weights are not constant, or its activation is not of floats.
    """
    a, w, bias = first_inputs(node, 3)
    if a is None or w is None:
        return None
    options.check(node)
    check_constant(w, context.facts)
    check_activation(a)
    return a, w, bias


def weights_of_floats(
    elements: npt.NDArray[np.float32], node: ir.Node, options: Options
) -> tuple[Weights, npt.NDArray[np.float32]]:
    """Returns float weights as codes or words, and their scales, [1, M]. Results of a dequantization keep its codes.

    Args:
        elements: [M, C / group, k1, ..., kr].
        node: The convolution, or transposed convolution.
        options: The options.

    Raises:
        Unconverted: They cannot become codes, or it does not pay.
    """
    check_rank(elements.ndim)
    if has_short_sums(elements.shape, node.attributes.get_int("group", 1)):
        raise Unconverted(Reason.CONV_SINGLE_CHANNELS)
    depth = math.prod(elements.shape[1:])
    columns = elements.reshape(len(elements), -1).T
    if options.has_words(node):
        grid = words_of(columns)
        return weights_of(grid, elements.shape), grid.scale
    if options.has_two_terms(node) and has_short_sums_for_two_terms(depth):
        raise Unconverted(Reason.CONV_TOO_SHORT_FOR_TWO_TERMS, depth=depth)
    grid = grid_of_channels(elements) or grid_of_columns(columns)
    return weights_of(grid, elements.shape), grid.scale


def past_factors(epilogue: Epilogue, facts: Facts) -> Epilogue:
    """Returns the epilogue up to the end of the nodes that multiply channels by constants, or add constants to them.

    They are Add, Sub, Mul, Div and BatchNormalization. Their numbers go into the scales and the bias.
    """
    while (longer := _past_factor(epilogue, facts)) is not None:
        epilogue = longer
    return epilogue


def _past_factor(epilogue: Epilogue, facts: Facts) -> Epilogue | None:
    step = epilogue.next_step()
    bias = np.zeros(1, np.float32) if epilogue.bias is None else epilogue.constant_bias(facts)
    if step is None or bias is None or epilogue.column is None:
        return None
    found = _factor_and_shift(step, epilogue.channels, facts)
    if found is None:
        return None
    factor, shift = found
    with np.errstate(all="ignore"):
        column, numbers = (epilogue.column * factor).astype(np.float32), (bias * factor + shift).astype(np.float32)
    if not np.isfinite(column).all() or not np.isfinite(numbers).all():
        return None
    return epilogue.past(step, column=column, bias=np.broadcast_to(numbers, epilogue.channels.size))


_Numbers = npt.NDArray[np.float64]


def _factor_and_shift(step: NextNode, channels: Channels, facts: Facts) -> tuple[_Numbers, _Numbers] | None:
    """Returns the factor and the shift, [M] or [1], of a step that computes x * factor + shift; else None."""
    one, zero = np.ones(1), np.zeros(1)
    if is_standard(step.node, "BatchNormalization"):
        vector = Channels(channels.size).vector  # the parameters are [M]
        parameters = [vector(value, np.float32, facts) for value in step.node.inputs[1:5]]
        is_inference = step.node.attributes.get_int("training_mode", 0) == 0 and len(step.node.outputs) == 1
        known = [each.astype(np.float64) for each in parameters if each is not None]
        if step.idx != 0 or not is_inference or len(known) != 4:
            return None
        gain, shift, mean, variance = known
        with np.errstate(all="ignore"):
            factor = gain / np.sqrt(variance + step.node.attributes.get_float("epsilon", 1e-5))
            return factor, shift - mean * factor
    if not is_standard(step.node, *ARITHMETIC):
        return None
    numbers = channels.vector(step.operand, np.float32, facts)
    if numbers is None:
        return None
    other = numbers.astype(np.float64)
    with np.errstate(all="ignore"):
        match step.node.op_type, step.idx:
            case "Add", _:
                return one, other
            case "Sub", 0:
                return one, -other
            case "Sub", _:
                return -one, other
            case "Mul", _:
                return other, zero
            case "Div", 0:
                return one / other, zero
    return None
