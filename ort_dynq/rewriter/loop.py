"""The loop that applies rules to every node of a model, for a rewrite and for a quantization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS, graphs, label, with_subgraphs
from .analysis.inference import Facts
from .edit import Edit, Shared
from .functions import add_functions
from .products.affine import AffineForms
from .reasons import Reason, Unconverted
from .report import Finding, Report
from .rule import Context, Rule

_FIRST_WITH_OVERRIDABLE_INITIALIZERS = 4  # a version of the model format


def convert(model: ir.Model, phases: Sequence[Sequence[Rule[Any]]], *, exact: bool = False) -> Report:
    """Applies rules to every node of a model, removes the weights that are no longer used, and adds the functions.

    Args:
        model: The model, which is changed.
        phases: The rules. Each phase goes over the whole model before the next one begins.
        exact: Whether every result must stay the same bit for bit.

    Returns:
        The converted nodes, and the unconverted ones with their reasons.
    """
    fixed_inputs = _remove_fixed_inputs(model)
    report = Report(before=op_counts(model))
    initializers = _used_initializers(model)
    with Facts(model) as facts:
        context = Context(facts, exact, Shared(facts))
        for phase in phases:
            context.shared.forget(AffineForms)  # they may name values that another phase has replaced
            for path, graph in with_subgraphs(model.graph, "main"):
                report.findings += _apply_rules(phase, graph, replace(context, path=path))
        report.findings = [
            each for each in report.findings if each.operator or (each.node, each.graph) not in context.replaced
        ]
        _remove_initializers(model, initializers)
        add_functions(model, facts.opset)
    if fixed_inputs and not report.rewritten:
        model.graph.inputs[:] = fixed_inputs
    report.after = op_counts(model)
    return report


def _remove_fixed_inputs(model: ir.Model) -> list[ir.Value]:
    """Removes the inputs that have an initializer from a model of a format that cannot override initializers.

    ONNX Runtime treats them as constants. In the newer format of a rewritten model, they would not be constant.

    Returns:
        All inputs before the removal; empty if nothing was removed.
    """
    inputs = list(model.graph.inputs)
    kept = [value for value in inputs if not value.is_initializer()]
    if model.ir_version >= _FIRST_WITH_OVERRIDABLE_INITIALIZERS or len(kept) == len(inputs):
        return []
    model.graph.inputs[:] = kept
    return inputs


def _apply_rules(rules: Iterable[Rule[Any]], graph: ir.Graph | ir.Function, context: Context) -> list[Finding]:
    """Applies the rules to each node of a graph in turn, until one returns a finding."""
    findings = []
    for node in list(graph):
        if node.graph is None or not node.outputs:  # a rule has removed it, or it computes nothing
            continue
        for rule in rules:
            finding = _apply(rule, node, context)
            if finding is not None:
                findings.append(finding)
                context.reported[node] = finding.unconverted
                break
    return findings


def _apply(rule: Rule[Any], node: ir.Node, context: Context) -> Finding | None:
    """Applies one rule to one node; returns its finding, or None if the rule does not apply."""
    problem = _problem(rule, context)
    if problem and not rule.reports_opset:
        return None
    if context.facts.is_folded(node):
        return None
    found = Finding(label(node), node.op_type, context.path, rule.name)
    try:
        match = rule.match(node, context)
    except Unconverted as why:
        return replace(found, unconverted=problem or why)
    if match is None:
        return None
    if problem:
        return replace(found, unconverted=problem)
    edit = Edit(node, context.facts, context.shared)
    rule.build(match, edit)
    context.replaced.update((label(each), context.path) for each in edit.replaced)
    edit.apply(rule.name)
    return replace(found, operator=edit.operator, note=edit.note)


def _problem(rule: Rule[Any], context: Context) -> Unconverted | None:
    """Returns why a rule cannot convert nodes in this place, or None."""
    opset = context.facts.opset
    if opset < rule.oldest_opset:
        return Unconverted(Reason.OPSET_TOO_OLD, opset=opset, oldest=rule.oldest_opset)
    if context.facts.contradiction:
        return Unconverted(Reason.CONTRADICTION, text=context.facts.contradiction)
    return None


def _used_initializers(model: ir.Model) -> list[ir.Value]:
    return [
        value
        for _, graph in graphs(model)
        if isinstance(graph, ir.Graph)
        for value in graph.initializers.values()
        if value.uses()
    ]


def _remove_initializers(model: ir.Model, candidates: list[ir.Value]) -> None:
    """Removes initializers that are no longer used: weights that have become integers."""
    for value in candidates:
        graph = value.graph
        if isinstance(graph, ir.Graph) and not (value.uses() or value.is_graph_input() or value.is_graph_output()):
            assert value.name is not None
            del graph.initializers[value.name]


def op_counts(model: ir.Model) -> Counter[str]:
    """Counts the nodes of each operator in all graphs; the names of operators of other domains include the domain."""
    return Counter(  # names that are not UTF-8 are bytes
        f"{node.op_type}" if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
        for _, graph in graphs(model)
        for node in graph
    )
