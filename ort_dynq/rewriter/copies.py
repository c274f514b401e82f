"""Removes nodes that only copy, before any rule is applied: rules then find the node that computes a value."""

from __future__ import annotations

import onnx_ir as ir

from ..graphs import with_subgraphs
from .analysis.nodes import copied


def without_copies(model: ir.Model) -> bool:
    """Lets nodes read what an Identity or a Cast from float32 to float32 copies, as ONNX Runtime does.

    A copy stays if it is an output of a graph; nodes read its source nevertheless. An Identity of a computed float16
    value stays, too: it rounds.

    Args:
        model: The model, which is changed. Its types are known.

    Returns:
        Whether it had a copy.
    """
    found = False
    for _, graph in with_subgraphs(model.graph):
        for node in list(graph):
            source = copied(node)
            if source is None:
                continue
            found, copy = True, node.outputs[0]
            for use in list(copy.uses()):
                use.node.replace_input_with(use.idx, source)
            if not copy.is_graph_output():
                graph.remove([node], safe=True)
    return found
