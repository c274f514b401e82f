"""Loads the structure of a model in ONNX Runtime, which checks names, types, shapes and the order of nodes.

A session loads a model, and then it is initialized: it inlines functions, optimizes, creates kernels and packs weights.
Here it only loads, from a model without its large weights. So time and memory depend on the number of nodes alone, and
external data may be missing. What the plugin has is loaded as the functions that the model stores.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi import _pybind_state

from .errors import message, printable
from .graphs import is_too_long, new_name, proto_graphs, values_of, with_subgraphs
from .serialized import reference

_LARGE = 1 << 14  # bytes: smaller tensors may be lengths and axes, from which ONNX Runtime infers shapes
_MAX_VALUE = 1 << 30  # bytes of what stays
_KEPT = (ir.DataType.UNDEFINED, ir.DataType.STRING)
# A session may have them from another library.
_UNKNOWN_OPERATOR = re.compile("is not a registered function/op|No Op registered for")


def structure_of(model: ir.Model) -> bytes:
    """Returns a serialized model. Its large weights refer to external data that do not exist.

    In subgraphs, ONNX Runtime looks for the file: weights stay in memory there, and zeros stand for external data.

    Returns:
        The model. It is empty if small tensors are missing, from which shapes may follow, if lengths are too long for
        inference, or if the weights of subgraphs are too large for one protocol buffer.
    """
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    held: list[tuple[ir.Value, ir.TensorProtocol]] = []
    size = 0
    try:
        for body in bodies:
            for _, graph in with_subgraphs(body):
                if any(is_too_long(value.shape) for value in values_of(graph)):
                    return b""
                for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
                    tensor = value.const_value
                    if tensor is None or tensor.dtype in _KEPT:
                        continue
                    stand_in = _stand_in(tensor, is_inner=graph is not model.graph)
                    size += stand_in.nbytes * (not isinstance(stand_in, ir.ExternalTensor))
                    if stand_in is not tensor:
                        held.append((value, tensor))
                        value.const_value = stand_in
        serialized: bytes = b"" if size > _MAX_VALUE else ir.to_proto(model).SerializeToString()
        return serialized
    except FileNotFoundError:
        return b""
    finally:
        for value, tensor in held:
            value.const_value = tensor


def _stand_in(tensor: ir.TensorProtocol, *, is_inner: bool) -> ir.TensorProtocol:
    """Returns what stands for an initializer.

    Raises:
        FileNotFoundError: It is small, and its external data are missing or cut off.
    """
    is_external = isinstance(tensor, ir.ExternalTensor)
    if tensor.nbytes <= _LARGE:
        try:
            return ir.Tensor(tensor.numpy(), tensor.dtype, name=tensor.name) if is_external else tensor
        except (OSError, ValueError) as error:
            raise FileNotFoundError("its external data are missing or cut off") from error
    if not is_inner:
        return reference(tensor)
    return _zeros_like(tensor) if is_external else tensor


def _zeros_like(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(np.zeros(tensor.shape.numpy(), tensor.dtype.numpy()), tensor.dtype, name=tensor.name)


def refusal_of(structure: bytes, what: str, remedy: str) -> str:
    """Returns why ONNX Runtime does not load a model, naming the node; an empty text if it does.

    Operators that it does not have are no reason.

    Args:
        structure: The model, see :func:`structure_of`.
        what: The model, for the text.
        remedy: What to do, for the text.
    """
    problem = _problem_of(structure) if structure else ""
    if not problem or _UNKNOWN_OPERATOR.search(problem):
        return ""
    problem = _problem_of(_with_names(structure)) or problem
    return f"ONNX Runtime {ort.__version__} refuses {what}: {printable(problem).rstrip('.')}; {remedy}"


def _problem_of(structure: bytes) -> str:
    """Returns why ONNX Runtime does not load a model; an empty text if it does."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # no thread needs to be started
    try:
        _pybind_state.InferenceSession(options, structure, False, False)
    except Exception as error:  # the types are onnxruntime's own
        return message(error)
    return ""


def _with_names(structure: bytes) -> bytes:
    """Gives each node without a name that of its first output, by which ONNX Runtime then names it in errors."""
    model = onnx.load_model_from_string(structure)
    for graph in proto_graphs(model):
        names = {node.name for node in graph.node}
        for node in graph.node:
            node.name = node.name or new_name(next(iter(node.output), "") or node.op_type, names)
    named: bytes = model.SerializeToString()
    return named
