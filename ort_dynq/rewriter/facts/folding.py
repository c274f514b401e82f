"""Evaluates constant subgraphs with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir

from ...runtime import open_session, session_options
from .values import constant_array


def evaluate(value: ir.Value | None, opset: int) -> npt.NDArray[Any] | None:
    """Computes a constant with ONNX Runtime, without optimizations.

    Args:
        value: A constant; see Facts.is_constant().
        opset: The version of the standard operators.

    Returns:
        Its elements; None if ONNX Runtime cannot compute it, or if it depends on a parameter of a function.
    """
    if value is None:
        return None
    if value.is_initializer() and value.const_value is not None:
        return value.const_value.numpy()
    if (elements := constant_array(value)) is not None:
        return elements
    nodes: dict[ir.Node, None] = {}
    initializers: dict[str, ir.TensorProtocol] = {}
    todo = [value]
    while todo:
        at = todo.pop()
        producer = at.producer()
        if producer is not None:
            nodes.pop(producer, None)  # a node follows all nodes that use it; the list is reversed below
            nodes[producer] = None
            todo += [source for source in producer.inputs if source is not None]
        elif at.const_value is not None and at.name is not None:
            initializers[at.name] = at.const_value
        else:
            return None  # a function's parameter
    graph = onnx.GraphProto(name="constant", node=[ir.to_proto(node) for node in reversed(nodes)])
    assert value.name is not None
    graph.output.append(onnx.ValueInfoProto(name=value.name))
    model = onnx.ModelProto(ir_version=8, graph=graph, opset_import=[onnx.helper.make_opsetid("", opset)])
    try:
        # onnx.numpy_helper before 1.18 does not take the 4-bit types of ml_dtypes.
        model.graph.initializer.extend(
            ir.to_proto(ir.tensor(tensor.numpy(), name=name)) for name, tensor in initializers.items()
        )
        session = open_session(model, session_options(optimize=False))
        result: npt.NDArray[Any] = session.run(None, {})[0]
    except Exception:  # a type that ONNX Runtime or onnx-ir lacks, or more than 2 GB
        return None
    return result
