"""Float16 models, behind one door: :func:`convert_in_float32`.

ONNX Runtime computes most nodes of a float16 model in float32. casts.py writes the Casts with which it does so, so that
the rules, which know chains of float32, find them. Models without chains of float16 never come here.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import onnx_ir as ir

from ..metadata import FLOAT16_CASTS
from ..report import Report
from .casts import mentions_float16, write_casts
from .graph import restore_zeros


def convert_in_float32(
    model: ir.Model, convert: Callable[[ir.Model], Report], rules: Container[str]
) -> tuple[ir.Model, Report] | None:
    """Converts a copy of a float16 model with the Casts of ONNX Runtime in it.

    Args:
        model: The model, which stays as it is.
        convert: Applies the rules to a model, which it changes.
        rules: The names of the rules that need the Casts.

    Returns:
        The new model and the report. None if the model has no chains of float16, or none of `rules` converted one: then
        the Casts serve nothing.
    """
    if not mentions_float16(model) or not write_casts(copy := model.clone()):
        return None
    report = convert(copy)
    if not any(finding.rule in rules for finding in report.rewritten):
        return None
    restore_zeros(copy)
    copy.metadata_props[FLOAT16_CASTS] = "1"
    return copy, report


def write_casts_as_converted(original: ir.Model, converted: ir.Model) -> None:
    """Writes into an original the Casts that its converted form has, if it has any: their values then correspond."""
    if converted.metadata_props.get(FLOAT16_CASTS) == "1" and write_casts(original):
        restore_zeros(original)
