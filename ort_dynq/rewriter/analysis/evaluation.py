"""Evaluates constant subgraphs with ONNX Runtime."""

from __future__ import annotations

import graphlib
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ...runtime import MAX_COPIED, open_session, session_options
from .constants import constant_array
from .folding import static_shape
from .inference import Facts

_FEW = 1 << 20  # elements with which threads take longer to start than they gain


def evaluate(value: ir.Value | None, facts: Facts) -> npt.NDArray[Any] | None:
    """Computes a constant with ONNX Runtime, without optimizations: constant folding gives the same bits.

    Args:
        value: A constant; see Facts.is_constant().
        facts: What is known of its model.

    Returns:
        Its elements; None if ONNX Runtime cannot compute it.
    """
    if value is None:
        return None
    if value.is_initializer() and value.const_value is not None:
        return value.const_value.numpy()
    if (elements := constant_array(value)) is not None:
        return elements
    if value.producer() is None:
        return None
    nodes: dict[ir.Node, set[ir.Node]] = {}  # each with the nodes that it depends on
    constants: dict[str, npt.NDArray[Any]] = {}
    todo = [value]
    while todo:
        at = todo.pop()
        producer = at.producer()
        if producer is None:
            constant = evaluate(at, facts)
            if constant is None or at.name is None:
                return None
            constants[at.name] = constant
        elif (lengths := static_shape(producer)) is not None and at.name is not None:
            constants[at.name] = np.array(lengths, np.int64)
        elif producer not in nodes:
            sources = [source for source in producer.inputs if source is not None]
            nodes[producer] = {
                node for source in sources if (node := source.producer()) is not None and static_shape(node) is None
            }
            todo += sources
    try:
        return _run(list(graphlib.TopologicalSorter(nodes).static_order()), constants, value, facts.model)
    except Exception:  # a type that ONNX Runtime or onnx-ir lacks
        return None


def evaluate_if_constant(value: ir.Value | None, facts: Facts) -> npt.NDArray[Any] | None:
    """Computes a value as :func:`evaluate` does; None if it is absent or no constant."""
    return evaluate(value, facts) if facts.is_constant(value) else None


def _run(
    nodes: list[ir.Node], constants: dict[str, npt.NDArray[Any]], value: ir.Value, model: ir.Model
) -> npt.NDArray[Any]:
    """Computes `value` from constants by nodes."""
    assert value.name is not None
    graph = onnx.GraphProto(name="constant", node=list(map(ir.serde.serialize_node, nodes)))
    graph.output.append(onnx.ValueInfoProto(name=value.name))
    inputs = {}
    for name, elements in constants.items():
        if elements.size > MAX_COPIED and elements.dtype.isbuiltin == 1:
            inputs[name] = elements
            type_ = onnx.helper.np_dtype_to_tensor_dtype(elements.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, type_, elements.shape))
        else:  # onnx.numpy_helper before 1.18 does not take the 4-bit types of ml_dtypes
            graph.initializer.append(ir.serde.serialize_tensor(ir.tensor(elements, name=name)))
    proto = onnx.ModelProto(ir_version=10, graph=graph)
    proto.opset_import.extend(onnx.helper.make_opsetid(*each) for each in model.graph.opset_imports.items())
    is_small = sum(elements.size for elements in constants.values()) <= _FEW
    options = session_options(threads=int(is_small), optimize=False)
    options.enable_cpu_mem_arena = False  # it keeps the memory of all intermediate values
    result = open_session(proto, options).run(None, inputs)[0]
    return np.asarray(result)
