"""The rule for transposed convolutions with constant float weights.

activation, ConvTranspose, [Add bias], [BatchNormalization]
    -> quantization, QuantizedConv, [Interleave], [Slice]
    -> WordConv, [Interleave], [Slice]

../rewriter/convolutions/transposed.py has the nodes after the convolution.
"""

from __future__ import annotations

import functools

import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..opsets import OPSET
from ..rewriter.convolutions.transposed import Phases, axes_of, build_phases, by_output_channel, phases_of
from ..rewriter.edit import Edit
from ..rewriter.policy.cost import has_few_products
from ..rewriter.products.epilogue import Epilogue
from ..rewriter.products.provenance import note_activation
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from .activations import codes_of_images, note_on_8_bits, note_on_words
from .conv import operands_of, past_factors, weights_of_floats
from .options import Options
from .weights import floats_of, release


def _match(node: ir.Node, context: Context, options: Options) -> Phases | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type != "ConvTranspose":
        return None
    if (operands := operands_of(node, context, options)) is None:
        return None
    (a, w, bias), facts = operands, context.facts
    by_channel = by_output_channel(floats_of(w, facts), node)
    release(w)
    weights, scale = weights_of_floats(by_channel, node, options)
    epilogue = Epilogue(node, weights.channels, node.outputs[0], column=scale, bias=bias)
    epilogue = past_factors(epilogue if bias is not None else epilogue.past_bias(facts), facts)
    phases = phases_of(a, weights, axes_of(node, weights), epilogue, facts)
    if has_few_products(phases.weights.codes.shape, phases.geometry.table[1].tolist(), phases.geometry.group, True):
        raise Unconverted(Reason.CONV_FEW_PRODUCTS)
    return phases


def _build(match: Phases, edit: Edit, options: Options) -> None:
    note_activation(edit, match.activation)
    codes = None if match.weights.are_words else codes_of_images(match.activation, edit, options)
    build_phases(match, codes, edit)
    edit.note = note_on_words(options) if codes is None else note_on_8_bits(codes, options)


def rule(options: Options) -> Rule[Phases]:
    """Returns the rule with these options."""
    match, build = functools.partial(_match, options=options), functools.partial(_build, options=options)
    return Rule("quantized transposed convolution", OPSET, match, build, reports_opset=True)
