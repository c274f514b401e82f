"""The graph rewriter: a model enters, its dynamic quantization chains become calls of ort_dynq's operators.

Every call is a call of a model-local function of the operator's name, whose body is the subgraph that it stands for:
the rewritten model runs without the plugin, and fast with it (functions.py).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from ..operators import DOMAIN, VERSION
from . import weights
from .analysis import STANDARD_DOMAINS, Facts, graphs, label
from .functions import add_function
from .replacement import replace
from .report import Finding, Report
from .rules import RULES
from .storage import load, save

__all__ = ["Finding", "Report", "Result", "rewrite"]


@dataclass
class Result:
    """A rewritten model and the report of what was done."""

    model: ir.Model
    report: Report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model, in one step: the file is there whole or not at all.

        External data that the model refers to is copied beside it, unless it is there already.

        Raises:
            DynqError: The file cannot be written.
        """
        save(self.model, Path(path))

    def to_proto(self) -> onnx.ModelProto:
        """The model as a ModelProto."""
        return ir.to_proto(self.model)


def rewrite(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> Result:
    """Turns chains with run-time quantization parameters into ort_dynq's operators.

    The model given is not changed. The rewritten one keeps the names of its inputs and outputs, its metadata and its
    doc strings, refers to the same external data, and computes the same results bit for bit.

    Args:
        model: A path, a ModelProto or an onnx_ir Model.

    Returns:
        The rewritten model and the report.

    Raises:
        DynqError: The file is missing or is not an ONNX model.
    """
    rewritten = load(model)
    report = Report(before=_op_counts(rewritten))
    with Facts(rewritten) as facts:
        function = None  # a function's subgraphs come after it, and all functions after the main graph
        for path, graph in graphs(rewritten):
            function = graph if isinstance(graph, ir.Function) else function
            for node in list(graph):
                if node.graph is not None:  # not yet part of a chain that was replaced
                    _apply(node, graph, function, path, facts, report)
        for path, graph in graphs(rewritten):
            for finding in weights.convert(graph, path, facts):
                report.findings.append(finding)
                add_function(rewritten, "DynamicDequantize", facts.opset)
    report.after = _op_counts(rewritten)
    return Result(rewritten, report)


def _apply(
    node: ir.Node,
    graph: ir.Graph | ir.Function,
    function: ir.Function | None,
    path: str,
    facts: Facts,
    report: Report,
) -> None:
    for rule in RULES:
        outcome = rule.match(node, facts)
        if outcome is None:
            continue
        if function is not None and function.opset_imports.get("", facts.opset) != facts.opset:
            outcome = f"its function is of opset {function.opset_imports['']}, the model of opset {facts.opset}"
        if isinstance(outcome, str):
            report.findings.append(Finding(label(node), node.op_type, path, rule.name, None, outcome))
            return
        report.findings.append(Finding(label(node), node.op_type, path, rule.name, outcome.operator))
        replace(node, graph, outcome, rule.name, facts)
        add_function(facts.model, outcome.operator, facts.opset)
        if function is not None:
            function.opset_imports.setdefault(DOMAIN, VERSION)
        return


def _op_counts(model: ir.Model) -> Counter[str]:
    return Counter(
        node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
        for _, graph in graphs(model)
        for node in graph
    )
