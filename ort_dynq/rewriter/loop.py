"""The loop that applies rules to every node of a model, for a rewrite and for a quantization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from ..graphs import graphs, label, new_name, operator_of, subgraphs, with_subgraphs
from ..rewrite_options import RewriteOptions
from .analysis import limits
from .analysis.inference import Facts
from .analysis.nodes import is_standard, program_of
from .analysis.standard import LOOPS
from .copies import without_copies
from .edit import Edit
from .functions import declare_functions
from .metadata import ALTERNATIVES, RULE
from .policy.saturation import cpu_dependence
from .reasons import Reason, Unconverted
from .report import Finding, Report
from .rule import Context, Rule

_FIRST_WITH_OVERRIDABLE_INITIALIZERS = 4  # a version of the model format


def convert(
    model: ir.Model,
    phases: Sequence[Sequence[Rule[Any]]],
    options: RewriteOptions | None = None,
) -> Report:
    """Applies rules to every node of a model, and removes the weights that are no longer used.

    The functions of the operators are not added: functions.py does so when the model is read or written.

    Args:
        model: The model, which is changed.
        phases: The rules. Each phase goes over the whole model before the next one begins.
        options: What may change; None for the defaults.

    Returns:
        The converted nodes, and the unconverted ones with their reasons.
    """
    fixed_inputs = _remove_fixed_inputs(model)
    report, findings = Report(before=op_counts(model)), _Findings()
    initializers = _used_initializers(model)
    with Facts(model) as facts:
        had_copies = without_copies(model)
        readers = {value: len(value.uses()) for value in initializers}
        context = Context(facts, options or RewriteOptions(), facts.shared)
        for phase in phases:
            context.shared.begin_phase()
            for path, graph in with_subgraphs(model.graph, "main"):
                _apply_rules(phase, graph, replace(context, path=path), findings)
            if findings.end_phase():
                context.shared.clear()
        report.findings, report.is_prepared = findings.all(), findings.is_prepared or had_copies
        report.initializers = [str(value.name) for value, count in readers.items() if len(value.uses()) < count]
        _remove_initializers(initializers)
        report.cpu = cpu_dependence(model, facts)
        _name_apart(model)
        if report.rewritten:
            _declare_ranks(model, facts)
        declare_functions(model)
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


class _Findings:
    """The findings of a rewrite, in order.

    Attributes:
        is_prepared: Whether a rule that only prepares nodes has changed one.
    """

    def __init__(self) -> None:
        """Starts without any."""
        self.is_prepared = self._is_prepared_now = False
        self._found: list[tuple[ir.Node, Finding]] = []
        self._made: dict[ir.Node, int] = {}  # new nodes, with the indices of their findings
        self._prepared: dict[ir.Node, Finding] = {}  # nodes that take the place of nodes of the model

    def add(self, node: ir.Node, finding: Finding, main: ir.Node | None) -> None:
        """Adds the finding of a node, which became `main`.

        If an earlier rule made the node, such as a product that gets a program, its finding says what the node is now.
        """
        finding = self._of_model(node, finding)
        index = self._made.get(node)
        if index is None or node.graph is not None:
            index = len(self._found)
            self._found.append((node, finding))
        else:
            origin, first = self._found[index]
            self._found[index] = origin, replace(first, operator=finding.operator, program=finding.program)
        if main is not None:
            self._made[main] = index

    def prepare(self, node: ir.Node, finding: Finding, main: ir.Node | None) -> None:
        """Notes that a rule which only prepares nodes has replaced a node by `main`: findings name the model's node."""
        self.is_prepared = self._is_prepared_now = True
        if main is not None:
            self._prepared[main] = self._of_model(node, finding)

    def end_phase(self) -> bool:
        """Returns whether a rule that only prepares nodes has replaced one in this phase."""
        found, self._is_prepared_now = self._is_prepared_now, False
        return found

    def _of_model(self, node: ir.Node, finding: Finding) -> Finding:
        """Returns a finding of the node of the model that a node replaces."""
        origin = self._prepared.get(node)
        return finding if origin is None else replace(finding, node=origin.node, op_type=origin.op_type)

    def all(self) -> list[Finding]:
        """Returns the findings, without those of unconverted nodes that have become part of another node."""
        return [finding for node, finding in self._found if finding.unconverted is None or node.graph is not None]


def _apply_rules(
    rules: Iterable[Rule[Any]], graph: ir.Graph | ir.Function, context: Context, findings: _Findings
) -> None:
    """Applies the rules to each node of a graph in turn, until one has a finding, and adds the findings.

    Nodes that no program could have because of their neighbors get another try after these have changed.
    """
    usable = [(rule, problem) for rule in rules if not (problem := _problem(rule, context)) or rule.reports_opset]
    by_operator: dict[str, list[tuple[Rule[Any], Unconverted | None]]] = {}
    nodes, tried = list(graph), set[ir.Node]()
    with limits.noted() as passed:
        while nodes:
            left, has_changed = list[ir.Node](), False
            for node in nodes:
                if node.graph is None or not node.outputs:  # a rule has removed it, or it computes nothing
                    continue
                operator = operator_of(node)
                if operator not in by_operator:
                    by_operator[operator] = [each for each in usable if each[0].takes(operator)]
                if not by_operator[operator] or context.facts.is_folded(node):
                    continue
                passed.clear()
                for rule, problem in by_operator[operator]:
                    applied = _apply(rule, node, context, problem)
                    if applied is not None and rule.prepares:
                        findings.prepare(node, *applied)
                    elif applied is not None:
                        why = context.reported[node] = applied[0].unconverted
                        if why is None or node not in tried:
                            findings.add(node, *applied)
                        has_changed = has_changed or why is None
                        if why is not None:
                            _add_limits(why, passed)
                            if why.reason == Reason.PROGRAM_CUT:
                                left.append(node)
                        break
            tried.update(left)
            nodes = left if has_changed else []


def _add_limits(why: Unconverted, passed: Iterable[limits.Limit]) -> None:
    """Adds to a reason that searches have ended: what they did not see could be a better reason, or none."""
    first = next(iter(passed), None)
    if first is not None and why.second is None:
        why.then(Unconverted(Reason.SEARCH_LIMIT, most=first.most, unit=first.unit))


def _apply(
    rule: Rule[Any], node: ir.Node, context: Context, problem: Unconverted | None
) -> tuple[Finding, ir.Node | None] | None:
    """Applies one rule to one node; returns its finding and the node that it became, or None if it does not apply.

    Args:
        rule: The rule.
        node: The node.
        context: What the rule knows.
        problem: Why the rule cannot convert nodes in this place, or None.
    """
    try:
        match = rule.match(node, context)
    except Unconverted as why:
        return _found(rule, node, context, unconverted=problem or why), None
    if match is None:
        return None
    if problem:
        return _found(rule, node, context, unconverted=problem), None
    found = _found(rule, node, context)  # before the node changes
    edit = Edit(node, context.facts, context.shared)
    rule.build(match, edit)
    edit.apply(rule.name)
    program = "" if edit.main is None else program_of(edit.main)
    return replace(found, operator=edit.operator, note=edit.note, program=program), edit.main


def _found(rule: Rule[Any], node: ir.Node, context: Context, unconverted: Unconverted | None = None) -> Finding:
    return Finding(label(node), node.op_type, context.path, rule.name, unconverted=unconverted, fuses=rule.fuses)


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


def _remove_initializers(candidates: list[ir.Value]) -> None:
    """Removes initializers that are no longer used: weights that have become integers."""
    for value in candidates:
        graph = value.graph
        if isinstance(graph, ir.Graph) and not (value.uses() or value.is_graph_input() or value.is_graph_output()):
            assert value.name is not None
            del graph.initializers[value.name]


def _name_apart(model: ir.Model) -> None:
    """Gives a new node another name if a node that stays has its name: ONNX Runtime rejects a graph with both.

    The node that it replaces stays if something else reads one of its outputs, such as a node without a use.
    """
    for _, graph in graphs(model):
        names, new = set[str](), list[ir.Node]()
        for node in graph:
            if node.name and RULE in node.metadata_props:
                new.append(node)
            elif node.name:
                names.add(node.name)
        for node in new:
            assert node.name is not None
            node.name = new_name(node.name, names)


def _declare_ranks(model: ir.Model, facts: Facts) -> None:
    """Declares the shapes of what bodies of loops collect: ONNX Runtime infers none after ort_dynq's operators.

    A Scan needs the ranks of all outputs of its body. A Loop needs them for the results of no iteration.
    """
    for _, graph in graphs(model):
        for node in graph:
            if not is_standard(node, *LOOPS):
                continue
            for _, body in subgraphs(node):
                carried = len(node.inputs) - 1 if node.op_type == "Loop" else 0  # with the condition
                for value in body.outputs[carried:]:
                    facts.declare(value)


def op_counts(model: ir.Model) -> Counter[str]:
    """Counts the nodes of each operator in all graphs, of two branches that compute the same in one.

    The names of operators of other domains include the domain.
    """
    return Counter(  # names that are not UTF-8 are bytes
        operator_of(node) for _, graph in graphs(model) if graph.name not in ALTERNATIVES for node in graph
    )
