"""Which values constant folding computes before run time."""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import RUNTIME_DOMAINS, with_subgraphs

# Operators whose result does not depend on their inputs alone.
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


def folded_values(model: ir.Model) -> set[ir.Value]:
    """Returns the constants of a model, which has its inferred shapes.

    An initializer is a constant, unless it is also a graph input, which can be overridden at run time.
    """
    constants: set[ir.Value] = set()
    for _, graph in with_subgraphs(model.graph):
        if isinstance(graph, ir.Graph):
            constants.update(value for value in graph.initializers.values() if not value.is_graph_input())
        for node in graph:
            is_folded = _is_static_shape(node) or all(value is None or value in constants for value in node.inputs)
            if is_folded and _is_foldable(node):
                constants.update(node.outputs)
    return constants


def _is_foldable(node: ir.Node) -> bool:
    if node.domain not in RUNTIME_DOMAINS or node.op_type in _RANDOM:
        return False
    return all(a.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def _is_static_shape(node: ir.Node) -> bool:
    """Returns whether a node is a Shape whose result is known before run time."""
    if node.op_type != "Shape" or not node.inputs or node.inputs[0] is None or node.inputs[0].shape is None:
        return False
    dims = list(node.inputs[0].shape)
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(dims))
    return all(isinstance(dim, int) for dim in dims[start:end])
