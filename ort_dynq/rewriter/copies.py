"""Removes nodes that only copy, before any rule is applied: rules then find the node that computes a value."""

from __future__ import annotations

import onnx_ir as ir

from ..graphs import MICROSOFT, with_subgraphs
from .analysis.nodes import copied, producer_of

_PACKING = ("Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN")


def without_copies(model: ir.Model) -> bool:
    """Lets nodes read what an Identity or a Cast from float32 to float32 copies, as ONNX Runtime does.

    A copy stays if it is an output of a graph; nodes read its source nevertheless. An Identity of a computed float16
    value stays, too: it rounds. So does the copy of a constant for the products that read it, and for all nodes of
    com.microsoft: without optimizations, ONNX Runtime packs weights that are constants, and its kernel for packed
    weights adds in another order.

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
            copy = node.outputs[0]
            is_constant = source.is_initializer() or producer_of(source, "Constant") is not None
            for use in list(copy.uses()):
                is_packing = use.node.domain == MICROSOFT or use.node.op_type in _PACKING
                if not (is_constant and is_packing):
                    use.node.replace_input_with(use.idx, source)
                    found = True
            if not copy.uses() and not copy.is_graph_output():
                graph.remove([node], safe=True)
                found = True
    return found
