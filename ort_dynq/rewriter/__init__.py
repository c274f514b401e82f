"""The graph rewriter: a model enters, its dynamic quantization chains become calls of ort_dynq's operators.

Every call is a call of a model-local function of the operator's name, whose body is the subgraph that it stands for:
the rewritten model runs without the plugin, and fast with it (functions.py).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS, graphs, label
from ..storage import explained, load, save, to_proto
from .edit import replace
from .facts.inference import Facts
from .functions import add_functions
from .report import Finding, Report
from .rules import RULES, reductions
from .rules.float_weights import FloatWeights
from .rules.integer_matmul import OLDEST_OPSET, IntegerProducts

if TYPE_CHECKING:
    from ..runtime import Model

_OLDEST_OPSET = 10  # the first with QuantizeLinear; a model that imports none at all has 0

__all__ = ["EXACT", "Finding", "Report", "Result", "rewrite"]

EXACT = "ort_dynq.exact"
"""A key of a rewritten model's metadata, where something was converted: "1", all results are the original's bit for
bit, or "0"."""


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
        """The model as a ModelProto.

        Raises:
            DynqError: It holds what cannot be written.
        """
        return to_proto(self.model)


def rewrite(model: Model, *, exact: bool = False) -> Result:
    """Turns chains with run-time quantization parameters into ort_dynq's operators.

    The model given is not changed. The rewritten one keeps the names of its inputs and outputs, its metadata and its
    doc strings, and refers to the same external data. It computes the same results bit for bit, but for products of
    quantized activations and quantized weights: those become integer products, as ONNX Runtime's own fusions do, whose
    sums are exact where sums of floats are rounded.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        exact: Whether products stay products of floats, so that every result is the same bit for bit.

    Returns:
        The rewritten model and the report.

    Raises:
        DynqError: The file is missing or is not a valid ONNX model, or its external data lie outside of its folder.
    """
    rewritten = load(model)
    report = Report(before=_op_counts(rewritten))
    initializers = _used_initializers(rewritten)
    with explained(model), Facts(rewritten) as facts:
        function: ir.Function | None = None  # its subgraphs come after it, and all functions after the main graph
        for path, graph in graphs(rewritten):
            function = graph if isinstance(graph, ir.Function) else function
            for node in list(graph):
                if node.graph is not None:  # not yet part of a chain that was replaced
                    _apply(node, graph, function, path, facts, report)
        products, weights = IntegerProducts(facts, exact), FloatWeights(facts, exact)
        for path, graph in graphs(rewritten):
            if _version_of(graph, facts) == facts.opset >= OLDEST_OPSET:
                report.findings += products.convert(graph, path)
        for path, graph in graphs(rewritten):
            report.findings += weights.convert(graph, path)
        for path, graph in graphs(rewritten):
            if _version_of(graph, facts) == facts.opset:
                report.findings += reductions.convert(graph, path, facts)
        _remove_initializers(rewritten, initializers)
        add_functions(rewritten, facts.opset)
    if report.rewritten:
        was_exact = rewritten.metadata_props.get(EXACT, "1") == "1"
        rewritten.metadata_props[EXACT] = "1" if exact and was_exact else "0"
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
        if facts.opset < _OLDEST_OPSET:
            outcome = f"the model is of opset {facts.opset}, expected {_OLDEST_OPSET} or newer"
        elif function is not None and (version := _version_of(function, facts)) != facts.opset:
            outcome = f"its function is of opset {version}, the model of opset {facts.opset}"
        if isinstance(outcome, str):
            report.findings.append(Finding(label(node), node.op_type, path, rule.name, None, outcome))
            return
        report.findings.append(Finding(label(node), node.op_type, path, rule.name, outcome.operator))
        replace(node, graph, outcome, rule.name, facts)
        return


def _version_of(graph: ir.Graph | ir.Function, facts: Facts) -> int:
    """The version of the standard operators that a function imports."""
    return graph.opset_imports.get("", facts.opset) if isinstance(graph, ir.Function) else facts.opset


def _used_initializers(model: ir.Model) -> list[ir.Value]:
    return [value for graph in model.graphs() for value in graph.initializers.values() if value.uses()]


def _remove_initializers(model: ir.Model, candidates: list[ir.Value]) -> None:
    """Takes away what nothing uses any more: weights that have become integers."""
    for value in candidates:
        graph = value.graph
        if isinstance(graph, ir.Graph) and not (value.uses() or value.is_graph_input() or value.is_graph_output()):
            assert value.name is not None
            del graph.initializers[value.name]


def _op_counts(model: ir.Model) -> Counter[str]:
    return Counter(
        node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
        for _, graph in graphs(model)
        for node in graph
    )
