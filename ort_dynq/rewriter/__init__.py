"""The graph rewriter: turns the dynamic quantization chains of a model into calls of ort_dynq's operators.

A rewritten model contains a model-local function for each operator, whose body computes the same with standard
operators (functions.py). So the model also runs without the plugin, but slowly.

facts/ reads the model, rules/ decides what to change, builders/ has what several rules build, and edit.py changes the
model. The loop in this file applies the rules, checks opsets and writes the report.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS, bodies, graphs, label, with_subgraphs
from ..storage import explained, load, save, to_proto
from .facts.inference import Facts
from .functions import add_functions
from .metadata import EXACT
from .report import Finding, Left, Report
from .rule import Context, Rule
from .rules import PHASES

if TYPE_CHECKING:
    from ..runtime import Model

__all__ = ["EXACT", "Finding", "Report", "Result", "rewrite"]

_FIRST_WITH_OVERRIDABLE_INITIALIZERS = 4  # a version of the model format
_FOLDED_IN_A_CALL = "one call of its function passes constants, which ONNX Runtime folds; inline the function"


@dataclass
class Result:
    """A rewritten model and the report of its rewrite."""

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
    fixed_inputs = _remove_fixed_inputs(rewritten)
    report = Report(before=_op_counts(rewritten))
    initializers = _used_initializers(rewritten)
    with explained(model), Facts(rewritten) as facts:
        context = Context(facts, exact)
        for phase in PHASES:
            for path, body in bodies(rewritten):
                function = body if isinstance(body, ir.Function) else None
                for path_, graph in with_subgraphs(body, path):
                    context = replace(context, path=path_, function=function)
                    report.findings += _apply_rules(phase, graph, context)
        _remove_initializers(rewritten, initializers)
        add_functions(rewritten, facts.opset)
    if report.rewritten:
        was_exact = rewritten.metadata_props.get(EXACT, "1") == "1"
        rewritten.metadata_props[EXACT] = "1" if exact and was_exact else "0"
    elif fixed_inputs:
        rewritten.graph.inputs[:] = fixed_inputs
    report.after = _op_counts(rewritten)
    return Result(rewritten, report)


def _remove_fixed_inputs(model: ir.Model) -> list[ir.Value]:
    """Removes the inputs that have an initializer from a model of a format that cannot override initializers.

    ONNX Runtime takes them for constants. In the newer format of a rewritten model, they would not be.

    Returns:
        All inputs as they were; none if nothing was removed.
    """
    inputs = list(model.graph.inputs)
    kept = [value for value in inputs if not value.is_initializer()]
    if model.ir_version >= _FIRST_WITH_OVERRIDABLE_INITIALIZERS or len(kept) == len(inputs):
        return []
    model.graph.inputs[:] = kept
    return inputs


def _apply_rules(rules: Iterable[Rule], graph: ir.Graph | ir.Function, context: Context) -> list[Finding]:
    """Applies the first rule that concerns a node, to each node of a graph in turn."""
    findings = []
    for node in list(graph):
        if node.graph is None:  # a rule has removed it
            continue
        for rule in rules:
            finding = _apply(rule, node, context)
            if finding is not None:
                findings.append(finding)
                context.reported[node] = finding.reason
                break
    return findings


def _apply(rule: Rule, node: ir.Node, context: Context) -> Finding | None:
    """Applies one rule to one node; returns what it did, or None if the rule does not concern the node."""
    problem = _opset_problem(rule, context) or context.facts.contradiction
    if problem and not rule.reports_opset:
        return None
    if context.facts.is_folded(node, in_every_call=False):
        if context.facts.is_folded(node):
            return None
        problem = problem or _FOLDED_IN_A_CALL
        context = replace(context, _shared={})  # the edit is not applied
    found = Finding(label(node), node.op_type, context.path, rule.name, None)
    try:
        edit = rule.apply(node, context)
    except Left as left:
        return replace(found, reason=problem or str(left))
    if edit is None:
        return None
    if problem:
        return replace(found, reason=problem)
    edit.apply(rule.name)
    return replace(found, operator=edit.operator)


def _opset_problem(rule: Rule, context: Context) -> str:
    """Returns why a rule cannot convert nodes in this place, or an empty text."""
    opset = context.facts.opset
    if opset < rule.oldest_opset:
        return f"the model is of opset {opset}, expected {rule.oldest_opset} or newer"
    if context.opset != opset:  # one function for each operator serves the whole model
        return f"its function is of opset {context.opset}, the model of opset {opset}"
    return ""


def _used_initializers(model: ir.Model) -> list[ir.Value]:
    return [
        value
        for _, graph in graphs(model)
        if isinstance(graph, ir.Graph)
        for value in graph.initializers.values()
        if value.uses()
    ]


def _remove_initializers(model: ir.Model, candidates: list[ir.Value]) -> None:
    """Removes those initializers that are no longer used: weights that have become integers."""
    for value in candidates:
        graph = value.graph
        if isinstance(graph, ir.Graph) and not (value.uses() or value.is_graph_input() or value.is_graph_output()):
            assert value.name is not None
            del graph.initializers[value.name]


def _op_counts(model: ir.Model) -> Counter[str]:
    return Counter(  # names that are not UTF-8 are bytes
        f"{node.op_type}" if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
        for _, graph in graphs(model)
        for node in graph
    )
