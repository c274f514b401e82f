"""Walks over a model's graphs: the main graph, the bodies of functions and the subgraphs of control flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx
import onnx_ir as ir

from .operators import DOMAIN

STANDARD_DOMAINS = ("", "ai.onnx")
MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
"""The domain of convolutions and pools that ONNX Runtime's optimizer writes for this CPU, in a layout of their own."""
TENSORRT = "trt"
"""The domain of operators that ModelOpt writes, and only TensorRT has."""
NAME_IN_MODEL = "name in the model"
"""In the meta of a value that has another name while rules are applied; see :func:`name_in_model`."""
RUNTIME_DOMAINS = (*STANDARD_DOMAINS, MICROSOFT)
"""The domains of the operators that ONNX Runtime itself has."""
_OF_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
Graph: TypeAlias = "ir.Graph | ir.Function"
ProtoGraph: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"


def functions(model: ir.Model) -> list[ir.Function]:
    """Returns the model-local functions, except the functions of ort_dynq's operators."""
    return [function for function in model.functions.values() if function.domain != DOMAIN]


def bodies(model: ir.Model) -> Iterator[tuple[str, ir.Graph | ir.Function]]:
    """Yields the main graph and each of :func:`functions`, with its path: ``main`` or ``function <name>``."""
    yield "main", model.graph
    for function in functions(model):
        yield f"function {function.name}", function


def graphs(model: ir.Model) -> Iterator[tuple[str, ir.Graph | ir.Function]]:
    """Yields every graph of the model with its path: each of :func:`bodies`, followed by its subgraphs."""
    for path, body in bodies(model):
        yield from with_subgraphs(body, path)


def with_subgraphs(graph: ir.Graph | ir.Function, path: str = "") -> Iterator[tuple[str, ir.Graph | ir.Function]]:
    """Yields a graph and all subgraphs inside it, at any depth, each with its path below `path`."""
    yield path, graph
    for node in graph:
        for name, subgraph in subgraphs(node):
            yield from with_subgraphs(subgraph, f"{path}/{label(node)}.{name}")


def subgraphs(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """Returns the subgraphs that are attributes of a node: ``then_branch``, or ``name[i]`` for a list of graphs."""
    found: list[tuple[str, ir.Graph]] = []  # most nodes have none: a generator for each would take most of the time
    for attribute in node.attributes.data.values():  # `data`: the values of the dictionary itself are slow
        if attribute.type not in _OF_GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append((attribute.name, attribute.as_graph()))
        else:
            found += [(f"{attribute.name}[{i}]", graph) for i, graph in enumerate(attribute.as_graphs())]
    return found


def proto_subgraphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yields the subgraphs of a node of a ModelProto, each with the name of its attribute."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            yield attribute.name, graph


def proto_graphs(model: onnx.ModelProto) -> Iterator[ProtoGraph]:
    """Yields every graph of a ModelProto, in the order of :func:`graphs`."""
    for body in (model.graph, *model.functions):
        yield from proto_with_subgraphs(body)


def proto_with_subgraphs(graph: ProtoGraph) -> Iterator[ProtoGraph]:
    """Yields a graph and all subgraphs inside it, in the order of :func:`with_subgraphs`."""
    yield graph
    for node in graph.node:
        for _, subgraph in proto_subgraphs(node):
            yield from proto_with_subgraphs(subgraph)


def operator_of(node: ir.Node) -> str:
    """Returns the type of a node's operator, behind the domain if it is not a standard one: ``com.microsoft.QMoE``."""
    return node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"


def label(node: ir.Node) -> str:
    """Returns the name of a node, the name of its first named output, or its operator type."""
    return node.name or next(filter(None, map(name_in_model, node.outputs)), None) or node.op_type


def name_in_model(value: ir.Value) -> str:
    """Returns the name that a value has in the model of the user; empty if it has none."""
    return str(value.meta.get(NAME_IN_MODEL, value.name or ""))


def named(model: ir.Model) -> ir.Model:
    """Gives every node without a name its :func:`label`: tools such as ONNX Runtime's profiler know nodes by name.

    If another node of the graph has this name, a number follows: ONNX Runtime rejects a graph with one name twice.
    """
    for _, graph in graphs(model):
        names = {node.name for node in graph if node.name}
        for node in graph:
            node.name = node.name or new_name(label(node), names)
    return model


def new_name(name: str, names: set[str]) -> str:
    """Returns a name that is not among `names`, followed by a number if necessary, and adds it to them."""
    new, number = name, 0
    while new in names:
        number += 1
        new = f"{name}_{number}"
    names.add(new)
    return new


def is_too_long(shape: ir.Shape | None) -> bool:
    """Returns whether a declared shape would keep inference busy: onnx 1.17 to 1.20, also in ONNX Runtime, count down.

    For `auto_pad`, they subtract strides from a length one by one. Lengths that they infer may still be long.
    """
    return shape is not None and any(isinstance(dim, int) and dim > 1 << 31 for dim in shape)


def values_of(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    """Returns the inputs and the initializers of a graph, and the outputs of its nodes."""
    initializers = graph.initializers.values() if isinstance(graph, ir.Graph) else ()
    return [*graph.inputs, *initializers, *(value for node in graph for value in node.outputs)]


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yields what a node reads, in its subgraphs, too."""
    yield from (each for each in node.inputs if each is not None)
    for _, graph in subgraphs(node):
        for inner in graph:
            yield from values_read(inner)
        yield from graph.outputs
