"""The dequantizer: turns the products of a quantized model back into float products.

It is the rewriter's loop with other rules, which recognize the same nodes. The weights of the new model are those that
DequantizeLinear computes of the codes, bit for bit: (code - zero point) * scale in float32. Activations are floats, so
results have less noise than those of the quantized model, and are not equal to them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DynqError
from ..graphs import graphs, named
from ..operators import DOMAIN
from ..rewriter import Result
from ..rewriter.loop import convert, op_counts
from ..rewriter.metadata import is_ours
from ..rewriter.normal_form import inlined, with_distinct_names
from ..rewriter.rule import Rule
from ..storage import check_data, explained, load, refusal_of_original
from ..structure import structure_of
from . import activations, dynamic_products, embedding, experts, left, linear_operators, nbits, recurrent, weights
from .stored import FORMS

if TYPE_CHECKING:
    from ..storage import Model

__all__ = ["FORMS", "dequantize"]

_LOG = logging.getLogger(__name__)


def dequantize(model: Model, *, weights_form: str = FORMS[0]) -> Result:
    """Turns a quantized model into a float model, or into one with only its weights quantized.

    Products of quantize_dynamic, operators that take codes with their scales (QLinearMatMul, QLinearConv, QAttention
    and others, also those of ONNX Runtime's optimizations), MatMulNBits, QMoE, GatherBlockQuantized,
    DynamicQuantizeLSTM, QuantizeLinear and DequantizeLinear with constant scales or with scales of run time, and fake
    quantizations become float operators of ONNX, or of com.microsoft if ONNX has none: Attention,
    EmbedLayerNormalization, MoE. The given model is not changed. The new one keeps the names of inputs and outputs.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        weights_form: "float" for weights in float32, or "qdq" for their codes behind DequantizeLinear, as accelerators
            take them. Both have the same numbers.

    Returns:
        The new model, and the report: the nodes that became floats, and the others with the reason.

    Raises:
        DynqError: The file is missing or is not a valid ONNX model, ONNX Runtime refuses it, it has operators of
            ort_dynq, or it is not quantized.
    """
    if weights_form not in FORMS:
        raise DynqError(f"weights_form is {weights_form!r}, expected one of {', '.join(FORMS)}")
    loaded = load(model)
    check_data(loaded)
    if any(node.domain == DOMAIN for _, graph in graphs(loaded) for node in graph):
        raise DynqError("the model has operators of ort_dynq; give the model that was rewritten, or the float model")
    with explained(model):
        refusal = refusal_of_original(structure_of(loaded), model)
        if refusal:
            raise DynqError(refusal)
        form = named(with_distinct_names(inlined(loaded)))
        before = op_counts(form)
        phases: Sequence[Sequence[Rule[Any]]] = (
            tuple(rule(weights_form) for rule in (dynamic_products.rule, nbits.rule, recurrent.rule)),
            tuple(rule(weights_form) for rule in (linear_operators.rule, experts.rule, embedding.rule)),
            (activations.FAKE,),
            (activations.PAIRS,),
            *(((weights.RULE,),) if weights_form == "float" else ()),
            (left.RULE,),
        )
        report = functools.partial(convert, phases=phases)(form)
    for _, graph in graphs(form):
        for node in graph:  # it is a float model like any other
            for key in [key for key in node.metadata_props if is_ours(key)]:
                del node.metadata_props[key]
    report.before, report.after, report.is_dequantization = before, op_counts(form), True
    if not report.rewritten and not report.unconverted:
        raise DynqError("the model has no quantized products, weights or activations: it is a float model already")
    report.log(_LOG)
    return Result(form, report)
