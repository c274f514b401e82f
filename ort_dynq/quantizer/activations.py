"""Which codes the float activation of a product gets, as the options say."""

from __future__ import annotations

import onnx_ir as ir

from ..rewriter.codes.codes import Codes
from ..rewriter.codes.float_activations import FloatActivations
from ..rewriter.edit import Edit
from .options import Options


def codes_of(value: ir.Value, edit: Edit, options: Options) -> Codes:
    """Returns the codes of a matrix, float32 [..., K]; new nodes are inserted before the product of the edit."""
    activations = edit.shared(FloatActivations)
    if options.has_two_terms(edit.node):
        return activations.of_two_terms(value, edit)
    if options.activations == "tensor":
        return activations.of_tensor(value, edit)
    return activations.of_rows(value, edit, symmetric=options.symmetric)


def codes_of_images(value: ir.Value, edit: Edit, options: Options) -> Codes:
    """Returns the codes of the activation of a convolution, float32, with a scale for each sample."""
    activations = edit.shared(FloatActivations)
    if options.has_two_terms(edit.node):
        return activations.of_two_terms(value, edit, axis=1)
    if options.activations == "tensor":
        return activations.of_tensor(value, edit)
    return activations.of_rows(value, edit, axis=1)


def note_on(codes: Codes, options: Options) -> str:
    """Returns the remark for the report if codes have two terms that the options do not ask for; else an empty text."""
    has_chosen = codes.terms == 2 and options.activations != "two-term"
    return "two terms, for the signal-to-noise ratio of the outputs" if has_chosen else ""


def note_on_8_bits(codes: Codes | None, options: Options) -> str:
    """Returns the remark on a layer with weights of 8 bits where `weights` asks for other ones.

    Args:
        codes: The activation; None for floats.
        options: The options.
    """
    notes = "int8" if options.weights != "int8" else "", "" if codes is None else note_on(codes, options)
    return "; ".join(filter(None, notes))


def note_on_words(options: Options) -> str:
    """Returns the remark for the report if a layer has words that the options do not ask for; else an empty text."""
    return "" if options.weights == "int12" else "words, for the signal-to-noise ratio of the outputs"
