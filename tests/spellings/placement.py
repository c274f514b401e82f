"""Where nodes stand: the main graph, a branch of an If, a local function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .graph import Graph, Shape


def element_type(dtype: Any) -> int:
    """Returns the ONNX type of a NumPy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def reads(node: onnx.NodeProto) -> list[str]:
    """Returns the names that a node reads, also in its subgraphs."""
    inner = [
        name
        for attribute in node.attribute
        if attribute.HasField("g")
        for each in attribute.g.node
        for name in reads(each)
    ]
    return [*node.input, *inner]


def used(nodes: list[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """Returns the nodes that outputs depend on."""
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            found.append(node)
    return found[::-1]


def in_branch(g: Graph, nodes: list[onnx.NodeProto], outputs: list[str], shapes: Mapping[str, Shape]) -> onnx.NodeProto:
    """Returns an If with the nodes in one branch; the other one gives zeros."""
    element = element_type(g.dtype)
    inner = [helper.make_tensor_value_info(name, element, [None] * len(shapes[name])) for name in outputs]
    zeros = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.zeros(shapes[name], g.dtype)))
        for name in outputs
    ]
    branches = {
        "then_branch": helper.make_graph(nodes, "then", [], inner),
        "else_branch": helper.make_graph(zeros, "else", [], inner),
    }
    # Names must differ from those of the outer graph.
    for branch, graph in branches.items():
        for node in graph.node:
            node.input[:] = [f"{branch}_{name}" if name in outputs else name for name in node.input]
            node.output[:] = [f"{branch}_{name}" if name in outputs else name for name in node.output]
        for value in graph.output:
            value.name = f"{branch}_{value.name}"
    return helper.make_node("If", ["flag"], outputs, **branches)


def as_function(
    g: Graph, nodes: list[onnx.NodeProto], span: list[onnx.NodeProto], outputs: list[str], with_attribute: bool
) -> tuple[list[onnx.NodeProto], onnx.FunctionProto]:
    """Moves nodes into a local function that is called once; returns the remaining nodes and the function."""
    inside = {id(node) for node in span}
    made = dict.fromkeys(name for node in span for name in node.output)  # in order: the results are those of a seed
    read = list(dict.fromkeys(name for node in span for name in node.input if name and name not in made))
    outer = {name for node in nodes if id(node) not in inside for name in node.input} | set(outputs)
    results = [name for name in made if name in outer]
    numbers = [
        name
        for name in read
        if name in g.constants and g.constants[name].ndim == 0 and g.constants[name].dtype == np.float32
    ]
    given = numbers[-1:] if with_attribute else []
    constants = []
    for name in read:
        if name in given:
            node = helper.make_node("Constant", [], [name])
            node.attribute.append(
                onnx.AttributeProto(name="value_float", ref_attr_name="number", type=onnx.AttributeProto.FLOAT)
            )
            constants.append(node)
        elif name in g.constants and g.constants[name].size < 64:
            constants.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(g.constants[name])))
    inner = {node.output[0] for node in constants}
    parameters = [name for name in read if name not in inner]
    imports = [helper.make_opsetid("", g.opset)]
    function = helper.make_function(
        "local", "Layer", parameters, results, [*constants, *span], imports, given and ["number"]
    )
    call = helper.make_node("Layer", parameters, results, domain="local")
    call.attribute.extend(helper.make_attribute("number", float(g.constants[name])) for name in given)
    position = next(i for i, node in enumerate(nodes) if id(node) in inside)
    after = [node for node in nodes[position:] if id(node) not in inside]
    return [*nodes[:position], call, *after], function
