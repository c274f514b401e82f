"""Values that a Loop or a Scan carries unchanged: its body then reads them from the graph around it.

Exporters carry weights through loops as states. If the body returns a state as it is, the state has its initial value
in every iteration, and after the last one. The body then reads the initial value itself, which may be a constant.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ..graphs import subgraphs
from ..opsets import opset_of
from .analysis.nodes import copied, is_standard

_FIRST_SCAN_WITHOUT_BATCHES = 9


def without_carried_invariants(model: ir.Model) -> ir.Model:
    """Returns a copy of a model in which no loop carries a value unchanged; the model itself if none does."""
    opset = opset_of(model)
    if not any(_invariants(node, opset) for node in model.graph.all_nodes()):
        return model
    copy = model.clone()
    _capture(copy.graph, opset)
    common.NameFixPass()(copy)  # a body may have a value with the name of one around it
    return copy


def _capture(graph: ir.Graph, opset: int) -> None:
    """Lets the bodies of a graph's loops read what they carry unchanged; inner loops first."""
    for node in list(graph):
        for _, body in subgraphs(node):
            _capture(body, opset)
        if invariants := _invariants(node, opset):
            _remove_states(node, invariants)


def _invariants(node: ir.Node, opset: int) -> list[int]:
    """Returns the states of a loop that its body returns as they are; nothing for other nodes."""
    if "body" not in node.attributes or not (
        is_standard(node, "Loop") or (is_standard(node, "Scan") and opset >= _FIRST_SCAN_WITHOUT_BATCHES)
    ):
        return []
    body, before = node.attributes["body"].as_graph(), _inputs_before_states(node)
    count = len(node.inputs) - before - node.attributes.get_int("num_scan_inputs", 0)
    found = []
    for i in range(count):
        initial, state, result = node.inputs[before + i], body.inputs[before + i], body.outputs[before // 2 + i]
        if initial is not None and _uncopied(result) in (state, initial):
            found.append(i)
    return found


def _uncopied(value: ir.Value) -> ir.Value:
    """Returns the value that a value is a copy of, or a copy of a copy."""
    while (node := value.producer()) is not None and (source := copied(node)) is not None:
        value = source
    return value


def _inputs_before_states(node: ir.Node) -> int:
    """Returns how many inputs of a loop, and of its body, precede the states; half of them precede the body's results.

    A Loop has a trip count and a condition, and its body returns the next condition.
    """
    return 2 if node.op_type == "Loop" else 0


def _remove_states(node: ir.Node, states: list[int]) -> None:
    """Removes states of a loop, which keep their initial values."""
    graph, body, before = node.graph, node.attributes["body"].as_graph(), _inputs_before_states(node)
    assert graph is not None
    for i in reversed(states):
        initial, state, result = node.inputs[before + i], body.inputs[before + i], body.outputs[before // 2 + i]
        assert initial is not None
        body.inputs.pop(before + i)  # `del` would not tell the value
        body.outputs.pop(before // 2 + i)
        _remove_copies(result)
        _replace(state, initial, body, body[0] if len(body) else None)
        if i < len(node.outputs):
            _replace(node.outputs[i], initial, graph, node)
    kept = [output for i, output in enumerate(node.outputs) if i not in states]
    inputs = [value for i, value in enumerate(node.inputs) if i - before not in states]
    if not kept:
        graph.remove([node], safe=True)
        return
    attributes = list(node.attributes.values())
    graph.insert_before(node, new := ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(kept)))
    new.name, new.doc_string = node.name, node.doc_string
    new.metadata_props.update(node.metadata_props)
    for old, output in zip(kept, new.outputs, strict=True):
        output.name, output.type, output.shape, output.doc_string = old.name, old.type, old.shape, old.doc_string
        ir.convenience.replace_all_uses_with([old], [output], replace_graph_outputs=True)
    graph.remove([node], safe=True)


def _replace(old: ir.Value, new: ir.Value, graph: ir.Graph | ir.Function, anchor: ir.Node | None) -> None:
    """Replaces a value of a graph by one from outside, or by a copy of it if the graph returns the value."""
    if old.is_graph_output():
        copy = ir.node("Identity", [new])
        copy.outputs[0].name, copy.outputs[0].type, copy.outputs[0].shape = old.name, old.type, old.shape
        if anchor is None:
            graph.append(copy)
        else:
            graph.insert_before(anchor, copy)
        new = copy.outputs[0]
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)


def _remove_copies(result: ir.Value) -> None:
    """Removes the Identity nodes that only computed the result of a body which it no longer has."""
    while (node := result.producer()) is not None and not (result.uses() or result.is_graph_output()):
        source = copied(node)
        if source is None or node.graph is None:
            return
        node.graph.remove([node], safe=True)
        result = source
