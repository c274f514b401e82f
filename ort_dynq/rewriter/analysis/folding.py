"""Which values constant folding computes before run time."""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import RUNTIME_DOMAINS, with_subgraphs
from .standard import RANDOM

# Operators with results that do not depend on their inputs alone.
_RANDOM = RANDOM | {"Dropout"}  # in training


def folded_values(model: ir.Model) -> set[ir.Value]:
    """Returns the constants of a model, which has its inferred shapes.

    An initializer is a constant, unless it is also a graph input, which can be overridden at run time.
    """
    constants: set[ir.Value] = set()
    for _, graph in with_subgraphs(model.graph):
        if isinstance(graph, ir.Graph):
            constants.update(value for value in graph.initializers.values() if not value.is_graph_input())
        for node in graph:
            is_folded = static_shape(node) is not None or all(
                value is None or value in constants for value in node.inputs
            )
            if is_folded and _is_foldable(node):
                constants.update(node.outputs)
    return constants


def _is_foldable(node: ir.Node) -> bool:
    if node.domain not in RUNTIME_DOMAINS or node.op_type in _RANDOM:
        return False
    return all(a.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def static_shape(node: ir.Node) -> list[int] | None:
    """Returns the result of a Shape if it is known before run time; else, and of other nodes, None."""
    if node.op_type != "Shape" or not node.inputs or node.inputs[0] is None or node.inputs[0].shape is None:
        return None
    dims = list(node.inputs[0].shape)
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(dims))
    lengths = [dim for dim in dims[start:end] if isinstance(dim, int)]
    return lengths if len(lengths) == len(dims[start:end]) else None
