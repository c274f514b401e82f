"""ONNX's shape inference, several times for one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ...graphs import STANDARD_DOMAINS, Graph, ProtoGraph, graphs, proto_graphs, proto_with_subgraphs, with_subgraphs
from ...operators import DOMAIN
from .constants import constant_array
from .limits import LENGTHS
from .microsoft import add_stand_ins

_LARGE: Final = 1000
"""Inference does not read the elements of larger initializers. In bytes."""


_Type: TypeAlias = "tuple[ir.TypeProtocol | None, ir.Shape | None]"


class ShapeInference:
    """Infers the types and shapes of a model's values as often as they change. Its nodes must not change meanwhile.

    onnx-ir's pass for this makes a ModelProto of the model and a model of the result, each time and with all functions.
    That is most of the time of a rewrite. Here the ModelProto stays, and only types and shapes pass between the two.
    The ModelProto has what inference needs besides: initializers as inputs, and other nodes (microsoft.py).
    """

    def __init__(self, model: ir.Model, *, data_prop: bool) -> None:
        """Prepares inference.

        Args:
            model: The model. The elements of its large initializers are not read.
            data_prop: Whether to follow the elements of small integer tensors, which are often shapes.
        """
        self._data_prop = data_prop
        self._read: dict[bytes, _Type] = {}
        self._graphs = [graph for _, graph in with_subgraphs(model.graph) if isinstance(graph, ir.Graph)]
        self._inputs = [list(graph.inputs) for graph in self._graphs]
        self._inputs[0] += [value for value in model.graph.initializers.values() if not value.is_graph_input()]
        try:
            self._proto: onnx.ModelProto | None = _copied(model)
        except Exception:  # onnx-ir raises errors of many types; without a ModelProto, nothing is inferred
            self._proto = None

    def run(self) -> None:
        """Sets the types and shapes that inference finds; nothing if it fails."""
        if self._proto is None:
            return
        try:
            self._describe(self._proto)
            inferred = onnx.shape_inference.infer_shapes(self._proto, data_prop=self._data_prop)
        except Exception:  # neither does onnx promise a type
            return
        for graph, inputs, proto in zip(self._graphs, self._inputs, proto_with_subgraphs(inferred.graph), strict=True):
            if isinstance(proto, onnx.GraphProto):
                _adopt(graph, inputs, proto, self._read)

    def error(self) -> str:
        """Returns the text of the first error that inference finds; empty if there is none."""
        if self._proto is None:
            return ""
        try:
            self._describe(self._proto)
            onnx.shape_inference.infer_shapes(self._proto, strict_mode=True, data_prop=self._data_prop)
        except Exception as error:
            return str(error)
        return ""

    def _describe(self, proto: onnx.ModelProto) -> None:
        for graph, inputs, copy in zip(self._graphs, self._inputs, proto_with_subgraphs(proto.graph), strict=True):
            if isinstance(copy, onnx.GraphProto):
                _describe(graph, inputs, copy)


def _copied(model: ir.Model) -> onnx.ModelProto:
    """Returns a copy of a model with stand-ins, without inputs, outputs, types and elements of large initializers."""
    graph = model.graph
    small = [
        value
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes <= _LARGE
    ]
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.graph.name = graph.name or ""
    for value in small:
        assert value.const_value is not None
        value.const_value.name = value.name
        ir.serde.serialize_tensor_into(proto.graph.initializer.add(), value.const_value)
    for node in graph:
        ir.serde.serialize_node_into(proto.graph.node.add(), node)
    for domain, version in graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in sorted(model.functions.values(), key=lambda each: each.domain == DOMAIN):  # `graphs` has the others
        ir.serde.serialize_function_into(proto.functions.add(), function)
    copies = [(original, copy) for (_, original), copy in zip(graphs(model), proto_graphs(proto), strict=False)]
    for original, copy in copies:
        _add_constants_from_outside(original, copy)
    given = {value.name for value in model.graph.inputs}
    for _, copy in copies:
        _fold_integers(copy, given)
        _read_sources(copy)
    add_stand_ins(proto, model, copies)
    return proto


def _read_sources(graph: ProtoGraph) -> None:
    """Lets the nodes of a graph read what an Identity copies: data_prop does not follow it. The Identities stay."""
    sources: dict[str, str] = {}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = sources.get(name, name)
        if node.op_type == "Identity" and node.domain in STANDARD_DOMAINS and node.input:
            sources[node.output[0]] = node.input[0]


_INTEGER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Mod": np.mod,
    "Equal": np.equal,
    "Where": np.where,
    "Neg": np.negative,
    "Identity": np.asarray,
    "Reshape": lambda integers, shape: integers.reshape(shape),
    "Gather": lambda integers, indices: integers[indices] if integers.ndim == 1 else None,
}


def _fold_integers(graph: ProtoGraph, given: Container[str | None]) -> None:
    """Makes Constants of the integers that nodes compute from constants: data_prop does not follow all operators.

    torch computes the axis of an Unflatten as Mod(-1 + rank, rank), and the shape of an Expand as
    Where(shape == -1 * ones, ones, shape), where ones are a ConstantOfShape.

    Args:
        graph: The graph.
        given: The names of the model's inputs. Their initializers are only defaults.
    """
    known: dict[str, npt.NDArray[np.int64]] = {}
    for tensor in graph.initializer if isinstance(graph, onnx.GraphProto) else ():
        is_small = tensor.data_type == onnx.TensorProto.INT64 and math.prod(tensor.dims) <= LENGTHS.most
        if is_small and tensor.name not in given:
            known[tensor.name] = numpy_helper.to_array(tensor)
    for node in graph.node:
        if node.domain not in STANDARD_DOMAINS:
            continue
        if node.op_type == "Constant" and node.attribute and node.attribute[0].t.data_type == onnx.TensorProto.INT64:
            elements = numpy_helper.to_array(node.attribute[0].t)
        elif all(name in known for name in node.input) and (function := _integer_function(node)) is not None:
            try:
                with np.errstate(all="raise"):
                    elements = function(*(known[name] for name in node.input))
            except (ArithmeticError, LookupError, ValueError):  # a wrong model
                continue
            if elements is None or np.size(elements) > LENGTHS.most:
                continue
            constant = helper.make_node(
                "Constant", [], node.output, value=numpy_helper.from_array(np.asarray(elements))
            )
            node.CopyFrom(constant)
        else:
            continue
        if np.size(elements) <= LENGTHS.most:
            known[node.output[0]] = elements


def _integer_function(node: onnx.NodeProto) -> Callable[..., Any] | None:
    """Returns what computes the result of a node from integers; None if it is not known."""
    if node.op_type != "ConstantOfShape" or not node.attribute:
        return None if node.attribute else _INTEGER_FUNCTIONS.get(node.op_type)
    if node.attribute[0].t.data_type != onnx.TensorProto.INT64:
        return None
    number = numpy_helper.to_array(node.attribute[0].t)
    return lambda shape: np.full(shape, number.item()) if math.prod(shape.tolist()) <= LENGTHS.most else None


def _add_constants_from_outside(graph: Graph, copy: ProtoGraph) -> None:
    """Gives a subgraph the small constants that it reads from graphs around it: inference does not look there."""
    if not isinstance(graph, ir.Graph) or not isinstance(copy, onnx.GraphProto):
        return
    outer = {value for node in graph for value in node.inputs if value is not None and value.graph is not graph}
    for value in outer:
        elements = None if value.name is None or value.name in graph.initializers else constant_array(value)
        if elements is not None:
            copy.initializer.append(numpy_helper.from_array(elements, value.name))


def _describe(graph: ir.Graph, inputs: list[ir.Value], proto: onnx.GraphProto) -> None:
    """Writes the types and shapes of a graph's values."""
    for values, infos in ((inputs, proto.input), (graph.outputs, proto.output)):
        del infos[:]
        for value in values:
            _write(infos.add(), value)
    del proto.value_info[:]
    described = set(inputs)
    for value in (*graph.initializers.values(), *(output for node in graph for output in node.outputs)):
        is_described = value in described if value.producer() is None else value.is_graph_output()
        if value.name and not is_described and (value.type is not None or value.shape is not None):
            _write(proto.value_info.add(), value)


def _write(info: onnx.ValueInfoProto, value: ir.Value) -> None:
    """Writes the type and shape of a value; onnx-ir takes several times as long, and writes documentation besides."""
    if not isinstance(value.type, ir.TensorType):
        ir.serde.serialize_value_into(info, value)
        return
    info.name = value.name or ""
    tensor = info.type.tensor_type
    tensor.elem_type = value.type.dtype.value
    if value.shape is not None:
        tensor.shape.SetInParent()  # also without any dimension
        for dim in value.shape.dims:
            written = tensor.shape.dim.add()
            if isinstance(dim, int):
                written.dim_value = dim
            elif dim.value is not None:
                written.dim_param = dim.value


def _adopt(graph: ir.Graph, inputs: list[ir.Value], proto: onnx.GraphProto, read: dict[bytes, _Type]) -> None:
    """Sets the types and shapes that inference has written; `read` keeps those that were read: many are the same."""
    values = (*inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs))
    named = {value.name: value for value in reversed(values) if value.name}
    for info in (*proto.input, *proto.value_info, *proto.output):
        value = named.get(info.name)
        if value is None:
            continue
        key = info.type.SerializeToString()
        if key not in read:
            read[key] = _type_of(info.type)
        type_, shape = read[key]
        if shape is not None and shape != value.shape:
            value.shape = shape
        if type_ is not None and type_.dtype != value.dtype:
            value.dtype = type_.dtype


def _type_of(proto: onnx.TypeProto) -> _Type:
    """Returns a type and its shape. Many values share it: onnx-ir does not let a shape that it reads change."""
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    return ir.serde.deserialize_type_proto_for_type(proto), shape
