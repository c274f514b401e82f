"""ONNX's shape inference, several times for one model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import onnx
import onnx_ir as ir

from ...graphs import proto_subgraphs, with_subgraphs

_LARGE: Final = 1000
"""Inference does not read the elements of larger initializers. In bytes."""


class ShapeInference:
    """Infers the types and shapes of a model's values as often as they change. Its nodes must not change meanwhile.

    onnx-ir's pass for this makes a ModelProto of the model and a model of the result, each time and with all functions.
    That is most of the time of a rewrite. Here the ModelProto stays, and only types and shapes pass between the two.
    """

    def __init__(self, model: ir.Model, *, data_prop: bool) -> None:
        """Prepares inference.

        Args:
            model: The model. The elements of its large initializers are not read.
            data_prop: Whether to follow the elements of small integer tensors, which are often shapes.
        """
        self._data_prop = data_prop
        self._graphs = [graph for _, graph in with_subgraphs(model.graph) if isinstance(graph, ir.Graph)]
        with _initializers_as_inputs(model.graph):
            self._inputs = [list(graph.inputs) for graph in self._graphs]
            try:
                self._proto: onnx.ModelProto | None = ir.serde.serialize_model(model)
            except Exception:  # onnx-ir raises errors of many types; without a ModelProto, nothing is inferred
                self._proto = None

    def run(self) -> None:
        """Sets the types and shapes that inference finds; nothing if it fails."""
        if self._proto is None:
            return
        try:
            for graph, inputs, proto in zip(self._graphs, self._inputs, _proto_graphs(self._proto.graph), strict=True):
                _describe(graph, inputs, proto)
            inferred = onnx.shape_inference.infer_shapes(self._proto, data_prop=self._data_prop)
        except Exception:  # neither does onnx promise a type
            return
        for graph, inputs, proto in zip(self._graphs, self._inputs, _proto_graphs(inferred.graph), strict=True):
            _adopt(graph, inputs, proto)


@contextmanager
def _initializers_as_inputs(graph: ir.Graph) -> Iterator[None]:
    """Makes initializers inputs, and takes away the large ones, while it is open."""
    initializers, inputs = list(graph.initializers.values()), list(graph.inputs)
    graph.inputs.extend(value for value in initializers if value not in set(inputs))
    for value in initializers:
        if value.name is not None and (value.const_value is None or value.const_value.nbytes > _LARGE):
            graph.initializers.pop(value.name)
    try:
        yield
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value in initializers:
            graph.initializers.add(value)


def _proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yields a graph and its subgraphs, in the order of :func:`with_subgraphs`."""
    yield graph
    for node in graph.node:
        for _, subgraph in proto_subgraphs(node):
            yield from _proto_graphs(subgraph)


def _describe(graph: ir.Graph, inputs: list[ir.Value], proto: onnx.GraphProto) -> None:
    """Writes the types and shapes of a graph's values."""
    for values, infos in ((inputs, proto.input), (graph.outputs, proto.output)):
        del infos[:]
        for value in values:
            ir.serde.serialize_value_into(infos.add(), value)
    del proto.value_info[:]
    described = set(inputs)
    for value in (*graph.initializers.values(), *(output for node in graph for output in node.outputs)):
        is_described = value in described if value.producer() is None else value.is_graph_output()
        if value.name and not is_described and (value.type is not None or value.shape is not None):
            ir.serde.serialize_value_into(proto.value_info.add(), value)


def _adopt(graph: ir.Graph, inputs: list[ir.Value], proto: onnx.GraphProto) -> None:
    """Sets the types and shapes that inference has written."""
    values = (*inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs))
    named = {value.name: value for value in reversed(values) if value.name}
    for info in (*proto.input, *proto.value_info, *proto.output):
        value = named.get(info.name)
        if value is None:
            continue
        shape, type_ = (
            ir.serde.deserialize_type_proto_for_shape(info.type),
            ir.serde.deserialize_type_proto_for_type(info.type),
        )
        if shape is not None and shape != value.shape:
            value.shape = shape
        if type_ is not None and type_.dtype != value.dtype:
            value.dtype = type_.dtype
