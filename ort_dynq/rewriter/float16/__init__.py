"""Float16 models. The entry of a rewrite is :func:`convert_in_float32`.

ONNX Runtime computes most nodes of a float16 model in float32. casts.py writes ONNX Runtime's Casts into the model, so
that the rules find float32 chains. Models without float16 chains stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

import onnx_ir as ir

from ..analysis.standard import ROUNDING
from ..metadata import FLOAT16_CASTS
from ..report import Report
from .casts import has_float16_node, has_node, mentions_float16, widen, write_casts
from .graph import restore_zeros

_ENDS = ROUNDING | {"DequantizeLinear"}  # of chains; they or the products after them may be of float16


def convert_in_float32(
    model: ir.Model,
    convert: Callable[[ir.Model], Report],
    rules: Container[str],
    layers: Collection[str] = (),
    others: Collection[str] = (),
) -> tuple[ir.Model, Report]:
    """Converts a model; if that helps, a copy of it with the Casts of ONNX Runtime in it.

    Args:
        model: The model, which is changed.
        convert: Applies the rules to a model, which it changes.
        rules: The names of the rules that need the Casts.
        layers: For a quantization: the operators that it quantizes. Those of float16 compute in float32 in the copy.
        others: Other operators that compute in float32 in the copy, so that they join their neighbors in a program.

    Returns:
        The converted model and the report. It is the copy if one of `rules` converted a node of it and, in a rewrite
        of a model whose chains are of float32, if more nodes are converted than without Casts. If no layer of the copy
        is quantized, its reasons are reported: without Casts, the only reason is the type.
    """
    copy = _with_casts(model, layers, others)
    if copy is None:
        return model, convert(model)
    of_copy = convert(copy)
    found, plain = _count(of_copy, rules), 0
    if found and not layers and not has_float16_node(model, _ENDS):
        plain = _count(convert(model.clone()), rules)
    if found > plain:
        restore_zeros(copy)
        copy.metadata_props[FLOAT16_CASTS] = "1"
        return copy, of_copy
    report = convert(model)
    if layers:
        reasons = {(each.graph, each.node): each for each in of_copy.unconverted}
        report.findings = [
            each if each.operator else reasons.get((each.graph, each.node), each) for each in report.findings
        ]
    return model, report


def _with_casts(model: ir.Model, layers: Collection[str], others: Collection[str]) -> ir.Model | None:
    """Returns a copy with the Casts; None if it has no node that may need them, or if they cannot be written."""
    if not mentions_float16(model) or not (has_float16_node(model, layers) if layers else has_node(model, _ENDS)):
        return None
    copy = model.clone()
    has_casts = write_casts(copy)
    if layers:
        widen(copy, (*layers, *others))
    return copy if has_casts or layers else None


def _count(report: Report, rules: Container[str]) -> int:
    return sum(finding.rule in rules for finding in report.rewritten)


def write_casts_as_converted(original: ir.Model, converted: ir.Model) -> None:
    """Writes the Casts of a converted model into its original, so that the values of both models correspond."""
    if converted.metadata_props.get(FLOAT16_CASTS) == "1" and write_casts(original):
        restore_zeros(original)
