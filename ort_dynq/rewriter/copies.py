"""Removes nodes that only copy, before any rule is applied: rules then find the node that computes a value."""

from __future__ import annotations

import onnx_ir as ir

from ..graphs import MICROSOFT, with_subgraphs
from .analysis.limits import CHAIN
from .analysis.nodes import copied, is_inverse_transpose, is_standard, producer_of
from .analysis.shapes import same_shape
from .analysis.standard import FLOAT_PRODUCTS, RECURRENT, RESHAPES

_PACKING = FLOAT_PRODUCTS - {"Einsum"} | RECURRENT
_MOVES = RESHAPES | {"Transpose"}


def without_copies(model: ir.Model) -> bool:
    """Lets nodes read what an Identity or a Cast from float32 to float32 copies, as ONNX Runtime does.

    Transposes that together move nothing copy, too, and so do Reshapes that together keep the shape.

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
            if source is None and (restored := _restored(node)) is not None:
                source = None if producer_of(restored, "MatMul") is not None else restored  # heads, for a fusion
            if source is None:
                continue
            copy = node.outputs[0]
            is_constant = source.is_initializer() or producer_of(source, "Constant") is not None
            for use in list(copy.uses()):
                is_packing = use.node.domain == MICROSOFT or use.node.op_type in _PACKING
                if not (is_constant and is_packing):
                    use.node.replace_input_with(use.idx, source)
                    found = True
            unused: ir.Node | None = node
            while unused is not None and not any(each.uses() or each.is_graph_output() for each in unused.outputs):
                before = None if unused is node and copied(node) else producer_of(unused.inputs[0], *_MOVES)
                if unused.graph is not None:
                    unused.graph.remove([unused], safe=True)
                unused, found = before, True
    return found


def _restored(node: ir.Node) -> ir.Value | None:
    """Returns the value that a Transpose or a Reshape restores, which others before it have moved; or None.

    Between these, ONNX Runtime rounds a computed float16 value, which may not be rounded without them.
    """
    if not is_standard(node, "Transpose", *RESHAPES) or node.inputs[0] is None:
        return None
    result, source = node.outputs[0], node.inputs[0]
    if result.dtype in (None, ir.DataType.FLOAT16) or source.is_initializer():
        return None
    if node.op_type == "Transpose":
        first = producer_of(source, "Transpose")
        return first.inputs[0] if first is not None and is_inverse_transpose(first, node) else None
    for _ in CHAIN.steps():
        reshape = producer_of(source, *RESHAPES)
        if reshape is None or reshape.inputs[0] is None:
            return None
        source = reshape.inputs[0]
        if same_shape(source, result):
            return source
    return None
