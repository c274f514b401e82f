"""Walks over a model's graphs: the main graph, the subgraphs of control flow and the bodies of functions."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from .operators import DOMAIN

STANDARD_DOMAINS = ("", "ai.onnx")


def functions(model: ir.Model) -> list[ir.Function]:
    """The model's own functions; those of ort_dynq's operators, which are not its own, left out."""
    return [function for function in model.functions.values() if function.domain != DOMAIN]


def graphs(model: ir.Model) -> Iterator[tuple[str, ir.Graph | ir.Function]]:
    """Every graph of the model with its path: the main graph, subgraphs of control flow, functions' bodies."""

    def within(path: str, graph: ir.Graph | ir.Function) -> Iterator[tuple[str, ir.Graph | ir.Function]]:
        yield path, graph
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    yield from within(f"{path}/{label(node)}.{attribute.name}", attribute.as_graph())
                elif attribute.type == ir.AttributeType.GRAPHS:
                    for i, graph_ in enumerate(attribute.as_graphs()):
                        yield from within(f"{path}/{label(node)}.{attribute.name}[{i}]", graph_)

    yield from within("main", model.graph)
    for function in functions(model):
        yield from within(f"function {function.name}", function)


def label(node: ir.Node) -> str:
    """A node's name, or its first output's where it has none."""
    return node.name or next((output.name for output in node.outputs if output.name), None) or node.op_type
