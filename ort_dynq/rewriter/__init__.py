"""The graph rewriter: turns the dynamic quantization chains of a model into calls of ort_dynq's operators.

A rewritten model contains a model-local function for each operator, whose body computes the same with standard
operators (functions.py). So the model also runs without the plugin, but slowly.

rules.py lists the rules. They stand by subject in chains/, products/, convolutions/ and float16/. They ask analysis/
what is known of the model, and policy/ what ONNX Runtime does better. The loop (loop.py) applies the rules, checks
opsets and writes the report.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ..storage import explained, load, save, to_proto
from .chains import decomposed
from .convolutions import float_conv
from .float16.casts import write_casts
from .float16.graph import restore_zeros
from .loop import convert, op_counts
from .metadata import EXACT, FLOAT16_CASTS
from .products import float_matmul
from .report import Finding, Report
from .rules import PHASES

if TYPE_CHECKING:
    from ..storage import Model

# Without a conversion by one of these rules, the Casts of float16_casts.py serve nothing.
_NEED_CASTS = (decomposed.QUANTIZE.name, float_matmul.RULE.name, float_conv.RULE.name)

__all__ = ["EXACT", "Finding", "Report", "Result", "rewrite"]


@dataclass
class Result:
    """A new model, and the report of what was converted in it."""

    model: ir.Model
    report: Report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model in one step: the file is complete, or it is not there.

        External data that the model refers to are copied beside it, unless they are there already.

        Raises:
            DynqError: The file cannot be written.
        """
        save(self.model, Path(path))

    def to_proto(self) -> onnx.ModelProto:
        """Returns the model as a ModelProto.

        Raises:
            DynqError: The model cannot be serialized.
        """
        return to_proto(self.model)


def rewrite(model: Model, *, exact: bool = False) -> Result:
    """Turns chains with run-time quantization parameters into ort_dynq's operators.

    The given model is not changed. The rewritten model keeps the names of its inputs and outputs, its metadata and its
    doc strings, and refers to the same external data. Its results are the same bit for bit, with one exception: float
    products of quantized activations and quantized weights become integer products, as in ONNX Runtime's own fusions.
    Their sums are exact, where sums of floats are rounded.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        exact: Whether float products stay float products, so that every result is the same bit for bit.

    Returns:
        The rewritten model and the report.

    Raises:
        DynqError: The file is missing or is not a valid ONNX model, or its external data lie outside of its folder.
    """
    rewritten = load(model)
    before = op_counts(rewritten)
    with explained(model):
        has_casts = write_casts(rewritten)
        report = convert(rewritten, PHASES, exact=exact)
        if has_casts and not any(finding.rule in _NEED_CASTS for finding in report.rewritten):
            rewritten = load(model)  # without the Casts
            report = convert(rewritten, PHASES, exact=exact)
            has_casts = False
        if has_casts:
            restore_zeros(rewritten)
        report.before = before
    if report.rewritten:
        was_exact = rewritten.metadata_props.get(EXACT, "1") == "1"
        if has_casts:
            rewritten.metadata_props[FLOAT16_CASTS] = "1"
        rewritten.metadata_props[EXACT] = "1" if exact and was_exact else "0"
    return Result(rewritten, report)
