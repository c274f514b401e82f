"""Float16 models. The entry of a rewrite is :func:`convert_in_float32`.

ONNX Runtime computes most nodes of a float16 model in float32. casts.py writes ONNX Runtime's Casts into the model, so
that the rules find float32 chains. Models without float16 chains stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import onnx_ir as ir

from ..metadata import FLOAT16_CASTS
from ..report import Report
from .casts import has_float16_node, has_node, mentions_float16, widen, write_casts
from .graph import restore_zeros

_ENDS = ("Round", "Floor", "Ceil", "DequantizeLinear")  # of chains; they or the products after them may be of float16


def convert_in_float32(
    model: ir.Model, convert: Callable[[ir.Model], Report], rules: Container[str]
) -> tuple[ir.Model, Report] | None:
    """Converts a copy of a float16 model with the Casts of ONNX Runtime in it.

    Args:
        model: The model, which stays as it is.
        convert: Applies the rules to a model, which it changes.
        rules: The names of the rules that need the Casts.

    Returns:
        The new model and the report. None if the model has no chains, or if the Casts have no use: none of `rules`
        converted a node, or its chains are of float32, and as many nodes are converted without Casts.
    """
    if not mentions_float16(model) or not has_node(model, _ENDS) or not write_casts(copy := model.clone()):
        return None
    report = convert(copy)
    found, plain = _count(report, rules), 0
    if found and not has_float16_node(model, _ENDS):
        plain = _count(convert(model.clone()), rules)
    return _finished(copy, report) if found > plain else None


def quantize_in_float32(
    model: ir.Model, convert: Callable[[ir.Model], Report], rules: Container[str], layers: Container[str]
) -> tuple[ir.Model, Report] | None:
    """Quantizes a copy of a float16 model whose layers compute in float32.

    Args:
        model: The model, which stays as it is.
        convert: Applies the rules to a model, which it changes.
        rules: The names of the rules of layers.
        layers: The operators that they quantize.

    Returns:
        The new model and the report. None if the model has no layer of float16, or if `rules` converted none.
    """
    if not mentions_float16(model) or not has_float16_node(model, layers):
        return None
    copy = model.clone()
    write_casts(copy)
    widen(copy, layers)
    report = convert(copy)
    return _finished(copy, report) if _count(report, rules) else None


def _finished(copy: ir.Model, report: Report) -> tuple[ir.Model, Report]:
    restore_zeros(copy)
    copy.metadata_props[FLOAT16_CASTS] = "1"
    return copy, report


def _count(report: Report, rules: Container[str]) -> int:
    return sum(finding.rule in rules for finding in report.rewritten)


def write_casts_as_converted(original: ir.Model, converted: ir.Model) -> None:
    """Writes the Casts of a converted model into its original, so that the values of both models correspond."""
    if converted.metadata_props.get(FLOAT16_CASTS) == "1" and write_casts(original):
        restore_zeros(original)
