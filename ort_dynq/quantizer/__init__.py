"""The quantizer: turns the matrix products and convolutions of a float model into products of integers.

It is the rewriter's loop with other rules. Each file of this package is one rule or a part that rules share: the result
has the same operators and functions as a rewritten model.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DynqError
from ..graphs import named
from ..inputs import Given
from ..measuring.data import load_data
from ..measuring.sessions import open_session
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
from .options import FUSED_IN_FLOAT32, LAYERS, Forms, Options, checked, is_layer
from .quantized_models import CHAINS, check_is_float

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..measuring.data import Source
    from ..rewriter.edit import Edit
    from ..storage import Model

__all__ = ["NoWeightsError", "checked", "quantize", "quantize_layers"]

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


def quantize(
    model: Model,
    *,
    weights: str = "int8",
    group: int | None = None,
    activations: str = "token",
    symmetric: bool = False,
    exclude: Iterable[str] = (),
    from_dynamic: bool = False,
    from_static: bool = False,
    min_snr: float | None = None,
    data: Source | None = None,
    fuse: bool = True,
    attention: str = "int8",
    embeddings: str = "int8",
    require_plugin: bool = False,
) -> Result:
    """Turns matrix products and convolutions with constant float weights into products of integers.

    Weights become integers now, activations at run time. No calibration data are needed. The given model is not
    changed. The new model keeps the names of inputs and outputs, and refers to the same external data.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        weights: "int8" with one scale for each output channel, or "int4" with one for each group.
        group: The number of adjacent 4-bit weights that share a scale, 32, 64 or 128; None for 32.
        activations: "token" for one scale for each row of a matrix, "tensor" for one for all, or "two-term" for two
            codes for each element, the second for what the first leaves: the activations are nearly as exact as
            floats. The products of attention have no such form and stay in float then. The activation of a convolution
            has one scale for each sample where a matrix has one for each row.
        symmetric: Whether activations per token have no zero point. Those of convolutions always have one.
        exclude: Patterns, as :mod:`fnmatch` has them, of the names of layers that stay in float. A layer has the name
            of its node, or of its output if the node has none.
        from_dynamic: Whether the model is one that onnxruntime's quantize_dynamic made: its integer products keep their
            weights, and get activations as given here. Not with `min_snr`.
        from_static: Whether the model has QuantizeLinear and DequantizeLinear with constant scales, as onnxruntime's
            quantize_static writes it: its products and convolutions keep their weights, and get activations as given
            here, within the bounds of the constant scales. Not with `min_snr`.
        min_snr: Gives the activations of the layers that harm the outputs most two terms, or keeps these layers in
            float, until each output has this signal-to-noise ratio on `data`, in decibels; see quantizer/selection.py.
        data: The data for `min_snr`, and on which the outputs of a model are compared that is converted from an opset
            before 13: the path of an NPZ file or of a folder with input_0.pb, test_data_set_0 or NPZ
            files; arrays by the name of the input; or a list of these. None for generated data, which show little.
        fuse: Whether normalizations, activation functions and attention are fused, with each other and with the
            quantization after them: see docs/rules.md.
        attention: "int8" for products of integers in fused attention, which is float with `min_snr` and with
            activations of two terms; "float" for ONNX Runtime's operator.
        embeddings: "int8" for rows of 8 bits with one scale for each row, in large tables of embeddings; "keep" for
            floats.
        require_plugin: Whether the new model has no functions with which it runs without the plugin: see
            :func:`ort_dynq.rewrite`.

    Returns:
        The new model, and the report: the layers that were quantized, and the others with the reason.

    Raises:
        DynqError: The file is missing or is not a valid ONNX model; ONNX Runtime refuses it; it is quantized already,
            is of an old opset that cannot be converted, or has no float weights; an option is wrong; a pattern matches
            no layer; the data do not fit the model, or the outputs do not reach `min_snr`.
    """
    given = weights, group, activations, symmetric, exclude
    options = checked(
        *given,
        from_dynamic=from_dynamic,
        from_static=from_static,
        min_snr=min_snr,
        fuse=fuse,
        attention=attention,
        embeddings=embeddings,
    )
    if min_snr is None:
        sets = () if data is None else load_data(data, open_session(model, "A").get_inputs()).sets
        result = quantize_layers(model, options, [*map(Given, sets)])
        return result.require_plugin() if require_plugin else result
    from ..accuracy import Reference
    from .selection import select

    reference = Reference(model, data)

    def with_forms(forms: Forms) -> Result:
        return quantize_layers(model, dataclasses.replace(options, forms=forms), reference.given)

    result = select(reference, with_forms, min_snr).result
    return result.require_plugin() if require_plugin else result


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
        first = FIRST_OF_QUANTIZATIONS if options.attention == "int8" else FIRST_WITH_FLOAT_ATTENTION
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
