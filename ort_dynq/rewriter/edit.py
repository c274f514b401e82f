"""What a rule puts in the place of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..operators import DOMAIN, OPERATORS
from .facts.inference import Facts


@dataclass
class Spare:
    """An old value that a new one can stand for, where the model uses it outside the chain.

    Attributes:
        old: The value.
        new: The new one; its last `squeezed` dimensions, of 1, are taken away, and it is cast to old's type.
    """

    old: ir.Value
    new: ir.Value
    squeezed: int = 0


@dataclass
class Replacement:
    """New nodes, and the values that take the place of old ones.

    Attributes:
        operator: The operator of ort_dynq that the chain became.
        nodes: The new nodes, in order.
        values: Old values and the new ones in their place, all of the nodes' outputs.
        before: The node before which the new nodes go: their inputs are there, and no user of the new values.
        spares: What else the new nodes compute.
    """

    operator: str
    nodes: list[ir.Node]
    values: dict[ir.Value, ir.Value]
    before: ir.Node
    spares: list[Spare] = field(default_factory=list)


def constant(elements: npt.NDArray[Any]) -> ir.Node:
    """A Constant node: functions' bodies have no initializers."""
    return ir.node("Constant", [], {"value": ir.tensor(elements)})


def stored(elements: npt.NDArray[Any], node: ir.Node, rule: str, facts: Facts) -> ir.Value:
    """Weights, for `node` to use: an initializer of its graph, or a Constant where there are no initializers."""
    tensor = ir.tensor(np.asarray(elements, order="C"))
    assert node.graph is not None
    # A function's nodes lie in a graph as well, but what that graph has of initializers is not written.
    if not isinstance(node.graph, ir.Graph) or any(each.graph is node.graph for each in facts.model.functions.values()):
        added = ir.node("Constant", [], {"value": tensor})
        describe(added, node, rule, facts)
        node.graph.insert_before(node, added)
        return added.outputs[0]
    value = ir.Value(
        name=facts.new_name(), type=ir.TensorType(tensor.dtype), shape=ir.Shape(elements.shape), const_value=tensor
    )
    node.graph.register_initializer(value)
    return value


def call(operator: str, inputs: list[ir.Value], **attributes: str | int) -> ir.Node:
    """A call of one of ort_dynq's operators, all of its attributes written out."""
    spec = OPERATORS[operator]
    given = {attribute.name: attributes.get(attribute.name, attribute.default) for attribute in spec.attributes}
    return ir.node(operator, inputs, given, domain=DOMAIN, num_outputs=len(spec.outputs))


def replace(node: ir.Node, graph: ir.Graph | ir.Function, replacement: Replacement, rule: str, facts: Facts) -> None:
    """Puts a replacement into the graph for the chain that `rule` found at `node`."""
    main = replacement.nodes[-1]
    main.name, main.doc_string = node.name, node.doc_string
    for added in replacement.nodes:
        describe(added, node, rule, facts)
    graph.insert_before(replacement.before, replacement.nodes)
    for old, new in replacement.values.items():
        take_over(old, new, facts)
    remove_unused([old.producer() for old in replacement.values])
    last = main
    for spare in replacement.spares:
        if not (spare.old.uses() or spare.old.is_graph_output()) or (producer := spare.old.producer()) is None:
            continue
        new = spare.new
        facts.note(new, _dtype_of(spare, main), None if spare.squeezed else spare.old.shape)
        extras = _fitting(spare, main)
        if not extras and new.is_graph_output() and spare.old.is_graph_output():  # one output has one name
            extras = [ir.node("Identity", [new])]
        for extra in extras:
            describe(extra, node, rule, facts)
            graph.insert_after(last, [extra])
            last, new = extra, extra.outputs[0]
        if new.is_graph_output() and not spare.old.is_graph_output():
            ir.convenience.replace_all_uses_with([spare.old], [new])
        else:
            take_over(spare.old, new, facts)
        remove_unused([producer])


def _fitting(spare: Spare, main: ir.Node) -> list[ir.Node]:
    """The nodes that give a spare value the shape and type of the old one."""
    nodes: list[ir.Node] = []
    value = spare.new
    if spare.squeezed:
        axes = constant(np.arange(-spare.squeezed, 0))
        nodes += [axes, ir.node("Squeeze", [value, axes.outputs[0]])]
        value = nodes[-1].outputs[0]
    if spare.old.dtype is not None and spare.old.dtype != _dtype_of(spare, main):
        nodes.append(ir.node("Cast", [value], {"to": int(spare.old.dtype)}))
    return nodes


def _dtype_of(spare: Spare, main: ir.Node) -> ir.DataType:
    is_float = spare.new is main.outputs[1] or main.op_type == "DynamicRangeFakeQuantize"
    return ir.DataType.FLOAT if is_float else ir.DataType(main.attributes.get_int("code_type", 0))


def describe(added: ir.Node, node: ir.Node, rule: str, facts: Facts) -> None:
    """Says in a new node's metadata which rule put it there, and keeps what the old node's said.

    Its outputs get names that no other graph of the model has, since a subgraph's names must not be those of the graph
    around it.
    """
    for output in added.outputs:
        output.name = facts.new_name()
    if added.op_type == "Constant" and not added.domain:
        tensor = added.attributes["value"].as_tensor()
        facts.note(added.outputs[0], tensor.dtype, ir.Shape(tensor.shape.numpy()))
    added.metadata_props.update(node.metadata_props)
    added.metadata_props["ort_dynq.rule"] = rule


def take_over(old: ir.Value, new: ir.Value, facts: Facts) -> None:
    facts.adopt(new, old)
    new.name, new.doc_string = old.name, old.doc_string
    new.metadata_props.update(old.metadata_props)
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)


def remove_unused(nodes: Sequence[ir.Node | None]) -> None:
    """Takes away nodes that nothing uses any more, and what only they used."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node is None or node.graph is None:
            continue
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        sources = [value.producer() for value in node.inputs if value is not None]
        node.graph.remove([node], safe=True)
        todo += sources
