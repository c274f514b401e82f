"""Replaces an If with a constant condition by the nodes of the branch that runs, as ONNX Runtime does.

So does a condition that shapes decide, such as a question for the rank of a tensor.

Exporters write such an If for what they do not decide themselves. ONNX Runtime replaces it when it opens a model, and
fails (1.32) if the branch calls a function that has such an If, too, as the functions of ort_dynq's operators do
without the plugin: ``Graph::InlineIfSubgraph``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import NAME_IN_MODEL, new_name, subgraphs, values_of, values_read, with_subgraphs
from .analysis.constants import constant_array
from .analysis.evaluation import evaluate
from .analysis.inference import Facts
from .analysis.nodes import is_standard
from .analysis.shape_arithmetic import known_condition
from .analysis.standard import SIZES
from .float16.casts import mentions_float16
from .inner_weights import copy_of


def without_known_branches(model: ir.Model, inputs: Mapping[str, npt.NDArray[Any]] | None = None) -> ir.Model:
    """Returns a copy of a model without the Ifs of its graphs that have a constant condition; itself if it has none.

    With inputs of the model, the conditions that they hold count, too. The inputs stay. Values get another name only if
    other graphs have theirs. An If stays if float16 may enter or leave the branch between nodes: with optimizations
    off, ONNX Runtime rounds it there.
    """
    given = {} if inputs is None else inputs
    if not any(_may_be_known(node, given) for node in _ifs(model.graph)):
        return model
    copy = model.clone()
    branches = _known_branches(copy, given)
    for node, branch in branches.items():
        if node.graph is not None:  # it is not in a branch that does not run
            _replace(copy, node, branch)
    return copy if branches else model


def _ifs(graph: ir.Graph) -> Iterator[ir.Node]:
    for _, each in with_subgraphs(graph):
        yield from (node for node in each if is_standard(node, "If"))


def _condition(node: ir.Node, given: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """Returns the condition of an If, if it is a constant or one of these inputs; None for others."""
    value = node.inputs[0]
    if value is not None and value.is_graph_input() and value.producer() is None:
        return given.get(value.name or "")
    return constant_array(value)


def _may_be_known(node: ir.Node, given: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Returns whether a condition depends on constants and shapes alone, or is one of these inputs."""
    if _condition(node, given) is not None:
        return True
    todo, seen = list(node.inputs), set[ir.Value | None]()
    while todo:
        value = todo.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is None:
            if not value.is_initializer() or value.is_graph_input():
                return False
        elif producer.op_type not in SIZES:  # they may be constant, whatever they read
            if any(True for _ in subgraphs(producer)):
                return False
            todo += producer.inputs
    return True


def _known_branches(model: ir.Model, given: Mapping[str, npt.NDArray[Any]]) -> dict[ir.Node, ir.Graph]:
    """Returns the Ifs with a known branch, each with this branch, in the order of the model."""
    nodes = [node for node in _ifs(model.graph) if _may_be_known(node, given)]
    conditions: dict[ir.Node, npt.NDArray[Any] | None] = {node: _condition(node, given) for node in nodes}
    has_float16 = mentions_float16(model)
    if has_float16 or any(each is None for each in conditions.values()):
        with Facts(model) as facts:
            for node in nodes if not facts.contradiction else ():
                if conditions[node] is None and facts.is_constant(node.inputs[0]):
                    conditions[node] = evaluate(node.inputs[0], facts)
                elif conditions[node] is None and (known := known_condition(node.inputs[0])) is not None:
                    conditions[node] = np.array(known)
            if has_float16:
                nodes = list(filter(_is_apart, nodes))
    branches = {}
    for node in nodes:
        condition = conditions[node]
        if condition is not None and condition.size == 1:
            branches[node] = node.attributes["then_branch" if condition.item() else "else_branch"].as_graph()
    return branches


def _is_apart(node: ir.Node) -> bool:
    """Returns whether no value that enters or leaves a branch may be of float16 and not rounded."""
    floats = (None, ir.DataType.FLOAT16)
    inner = {value for _, graph in subgraphs(node) for _, each in with_subgraphs(graph) for value in values_of(each)}
    is_rounded = all(
        value in inner or value.producer() is None or value.dtype not in floats for value in values_read(node)
    )
    return is_rounded and all(not value.uses() or value.dtype not in floats for value in node.outputs)


def _replace(model: ir.Model, node: ir.Node, branch: ir.Graph) -> None:
    """Moves the nodes of a branch to the place of its If."""
    graph, outputs, nodes = node.graph, list(branch.outputs), list(branch)
    assert isinstance(graph, ir.Graph)
    initializers = list(branch.initializers.values())
    branch.remove(nodes)
    branch.initializers.clear()
    for _, unused in subgraphs(node):  # what they read and what they name counts no more
        unused.outputs.clear()
        unused.remove(list(unused))
    node.attributes.clear()
    names = {value.name for _, each in with_subgraphs(model.graph) for value in values_of(each) if value.name}
    node_names = {each.name for each in graph if each.name and each is not node}
    computed = [value for each in nodes for value in each.outputs if value.name]
    for value in [*initializers, *computed]:
        _rename(value, names)
    for value in initializers:
        graph.register_initializer(value)
    for each in nodes:
        each.name = new_name(each.name, node_names) if each.name else None
    graph.insert_before(node, nodes)
    for old, result in zip(node.outputs, outputs, strict=True):
        if result not in computed:  # an initializer
            copy = ir.node("Identity", [result])
            graph.insert_before(node, copy)
            result = copy.outputs[0]
        name, type_, shape = old.name, old.type or result.type, result.shape if old.shape is None else old.shape
        ir.convenience.replace_all_uses_with([old], [result], replace_graph_outputs=True)
        old.name = None
        result.name, result.type, result.shape = name, type_, shape
    graph.remove(node, safe=True)


def _rename(value: ir.Value, names: set[str]) -> None:
    """Gives a value another name if its name is among `names`, and adds it to them."""
    assert value.name is not None
    name = new_name(value.name, names)
    if name != value.name:
        value.meta.setdefault(NAME_IN_MODEL, value.name)
        if value.const_value is not None:
            value.const_value = copy_of(value.const_value)  # the name is also one of the tensor
        value.name = name
