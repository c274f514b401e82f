"""The quantizer: turns the matrix products and convolutions of a float model into products of integers.

It is the rewriter's loop with other rules. Each file of this package is one rule or a part that rules share: the result
has the same operators and functions as a rewritten model.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DynqError
from ..graphs import named
from ..inputs import Given
from ..opsets import check_versions
from ..rewrite_options import RewriteOptions
from ..rewriter import Result
from ..rewriter.chains import dynamic_quantize_linear
from ..rewriter.float16 import operands as float16_operands
from ..rewriter.inner_weights import NOTE
from ..rewriter.loop import convert
from ..rewriter.metadata import EXACT, OPTIONS, QUANTIZED, note_origin
from ..rewriter.programs import tails
from ..rewriter.reasons import Reason
from ..rewriter.rule import Rule
from ..rewriter.rules import FIRST_OF_QUANTIZATIONS, FIRST_WITH_FLOAT_ATTENTION, LAST_FUSIONS
from ..rewriter.variants import Widening, convert_best
from ..storage import check_data, explained, load, refusal_of_original
from ..structure import structure_of
from . import conv, conv_transpose, embedding, matmul, nbits, other_layers, packed_attention, recurrent
from . import from_dynamic as from_dynamic_rule
from . import from_static as from_static_rule
from .options import FUSED_IN_FLOAT32, LAYERS, Options, checked, is_layer
from .quantized_models import CHAINS, check_is_float

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..rewriter.edit import Edit
    from ..storage import Model

__all__ = ["NoWeightsError", "checked", "quantize_layers"]

_WITHOUT_WEIGHTS = (Reason.TWO_ACTIVATIONS, Reason.ATTENTION_OF_FLOATS)
_LOG = logging.getLogger(__name__)


class NoWeightsError(DynqError):
    """A model has no weights that a quantization would change."""


RULES = (
    matmul.rule,
    conv.rule,
    conv_transpose.rule,
    recurrent.rule,
    nbits.rule,
    from_dynamic_rule.rule,
    other_layers.rule,
)


def _has_weights(node: ir.Node) -> bool:
    """Returns whether a node is a layer that reads an initializer."""
    return is_layer(node) and any(value is not None and value.is_initializer() for value in node.inputs)


def _counter(model: ir.Model, note: Callable[[str], None] | None) -> Callable[[Rule[Any]], Rule[Any]]:
    """Returns a function that makes a rule tell the progress whenever it quantizes a layer."""
    if note is None:
        return lambda rule: rule
    total, built = sum(map(_has_weights, model.graph.all_nodes())), itertools.count(1)

    def counted(rule: Rule[Any]) -> Rule[Any]:
        def build(match: Any, edit: Edit) -> None:
            note(f"layer {next(built)} of {total}")
            rule.build(match, edit)

        return dataclasses.replace(rule, build=build)

    return counted


def quantize_layers(
    model: Model, options: Options, given: Sequence[Given] = (), note: Callable[[str], None] | None = None
) -> Result:
    """Quantizes a model with checked options.

    Args:
        model: The model.
        options: The options.
        given: Inputs on which the outputs of a model are compared that is converted from an older opset.
        note: Is told the progress: how many layers are quantized.
    """
    quantized = load(model)
    check_data(quantized)  # reasons would blame the model
    check_versions(quantized)
    count = _counter(quantized, note)
    rules = [count(rule(options)) for rule in RULES]
    embeddings = count(embedding.rule(options))
    phases: list[Sequence[Rule[Any]]] = [(CHAINS,), rules, (dynamic_quantize_linear.RULE, tails.RULE), (embeddings,)]
    names = {rule.name for rule in (*rules, embeddings)}
    if options.fuse:
        first = FIRST_OF_QUANTIZATIONS if options.has_integer_attention else FIRST_WITH_FLOAT_ATTENTION
        phases = [*first, *phases, *LAST_FUSIONS]
    phases.insert(0, (packed_attention.rule(options),))
    if options.from_static:
        phases.insert(0, (from_static_rule.RULE,))
    phases.append((float16_operands.RULE,))
    with explained(model):
        structure = structure_of(quantized)
        named(quantized)  # so that layers keep their names
        check_is_float(quantized, options)
        options.check_patterns(quantized)
        apply = functools.partial(convert, phases=phases, options=RewriteOptions(fuse=options.fuse))
        fused = FUSED_IN_FLOAT32 if options.fuse else ()
        quantized, report = convert_best(quantized, apply, given, Widening(names, LAYERS, fused))
        if not report.rewritten and (problems := [note for note in report.notes if note != NOTE]):
            raise DynqError("; ".join(problems))
        report.refuse(refusal_of_original(structure, model))
    report.findings = [finding for finding in report.findings if finding.rule in names or finding.fuses]
    report.is_quantization = True
    layers = [finding for finding in report.findings if not finding.fuses]
    if all(each.unconverted and each.unconverted.reason in _WITHOUT_WEIGHTS for each in layers):
        if report.refusal:
            raise DynqError(report.refusal)
        raise NoWeightsError(
            "the model has no weights to quantize: no MatMul, Gemm, Einsum, Conv, LSTM, GRU, RNN, MatMulNBits or "
            "Gather has constant ones"
        )
    if report.rewritten:
        quantized.metadata_props[EXACT] = "0"
        quantized.metadata_props[QUANTIZED] = options.text
        quantized.metadata_props.pop(OPTIONS, None)  # of a rewrite before
        note_origin(quantized, model, report.initializers)
    elif report.is_prepared:
        quantized = load(model)
    report.log(_LOG)
    return Result(quantized, report, lacks_functions=True)
