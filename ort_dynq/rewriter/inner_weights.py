"""Weights of products in branches and loops that a graph outside holds are dequantized in the main graph.

ONNX Runtime makes MatMulNBits of a product and its DequantizeLinear, and looks for the weights in the graph of the
product alone. So it refuses such a model at its default optimization level: "Missing required scale" or "Missing
required weight" (1.32, TransposeDQWeightsForMatMulNBits). In the main graph, the weights are dequantized before the
branch, with the same bits. Equal ones are dequantized once, so that all graphs share them.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import onnx_ir as ir

from ..graphs import label, new_name, values_of, with_subgraphs
from .analysis.nodes import producer_of
from .analysis.standard import MATMULS
from .policy.dequantized_products import made_by_onnxruntime
from .reasons import Reason
from .weights.dequantized_weights import Dequantizer, elements_of, quantized_weights

NOTE = "weights of branches are dequantized in the main graph: ONNX Runtime does not open the model otherwise"


class _InnerProduct(NamedTuple):
    node: ir.Node
    weights: Dequantizer

    @property
    def chain(self) -> tuple[ir.Node, ...]:
        return self.weights.node, *self.weights.moves

    @property
    def key(self) -> Hashable:
        """What equal weights have in common."""
        attributes = [sorted((name, str(each.value)) for name, each in node.attributes.items()) for node in self.chain]
        codes, *parameters = self.weights.node.inputs
        return codes, *map(elements_of, parameters), str(attributes)


def with_weights_outside(model: ir.Model) -> ir.Model:
    """Returns a copy in which the main graph dequantizes weights of products in subgraphs; the model if it has none."""
    if not _inner(model):
        return model
    model = model.clone()
    names = {value.name for _, graph in with_subgraphs(model.graph) for value in values_of(graph) if value.name}
    node_names = {node.name for node in model.graph if node.name}
    inner, shared = {product.key for product in _inner(model)}, dict[Hashable, ir.Value]()
    for product in list(_products(model)):
        if (key := product.key) not in inner:
            continue
        if key not in shared:
            _move_constants(product.weights.node, model.graph, names)
            shared[key] = _copied(product, model.graph, names, node_names)
        product.node.replace_input_with(1, shared[key])
        for node in reversed(product.chain):
            if node.graph is not None and not node.outputs[0].uses():
                node.graph.remove([node], safe=True)
    return model


def _inner(model: ir.Model) -> list[_InnerProduct]:
    """The products of subgraphs that ONNX Runtime makes MatMulNBits of, with weights of a graph outside."""
    return [
        product
        for product in _products(model)
        if any(_graph_of(value) is not product.node.graph for value in product.weights.node.inputs if value is not None)
    ]


def _products(model: ir.Model) -> Iterator[_InnerProduct]:
    """Yields the products of all graphs that ONNX Runtime makes MatMulNBits of."""
    for _, graph in with_subgraphs(model.graph):
        for node in graph:
            if node.op_type not in MATMULS or len(node.inputs) < 2:
                continue
            weights = quantized_weights(node.inputs[1])
            if weights is None or any(each.graph is not graph for each in (weights.node, *weights.moves)):
                continue
            if not all(value is None or _graph_of(value) is not None for value in weights.node.inputs):
                continue
            if made_by_onnxruntime(node, weights.node, weights.moves, weights.uses, 1) == Reason.MADE_LEVEL_4:
                yield _InnerProduct(node, weights)


def _graph_of(value: ir.Value) -> ir.Graph | ir.Function | None:
    """Returns the graph that has a constant; None if a value is computed, or is an input."""
    constant = producer_of(value, "Constant")
    if constant is not None:
        return constant.graph
    return value.graph if value.is_initializer() and not value.is_graph_input() else None


def _move_constants(node: ir.Node, main: ir.Graph, names: set[str]) -> None:
    """Moves the constants that a node reads to the main graph."""
    for value in dict.fromkeys(node.inputs):
        if value is None or (graph := _graph_of(value)) is main or graph is None:
            continue
        constant = value.producer()
        assert value.name is not None
        if constant is not None:
            graph.remove(constant)
            main.insert_before(main[0], constant)
        else:
            assert isinstance(graph, ir.Graph)
            del graph.initializers[value.name]
            value.const_value = copy_of(value.const_value)  # the name is also one of the tensor
        value.name = new_name(value.name, names)
        if constant is None:
            main.register_initializer(value)


def copy_of(tensor: ir.TensorProtocol | None) -> ir.TensorProtocol:
    """Returns a tensor that may get another name: the given one is in the user's model, too."""
    assert tensor is not None
    return copy.copy(tensor) if isinstance(tensor, ir.ExternalTensor) else ir.Tensor(tensor.numpy(), tensor.dtype)


def _copied(product: _InnerProduct, main: ir.Graph, names: set[str], node_names: set[str]) -> ir.Value:
    """Copies the nodes that dequantize weights to the main graph, behind its Constants; returns the weights."""
    first = next(node for node in main if node.op_type != "Constant")
    inputs, weights = list(product.weights.node.inputs), product.weights.node.outputs[0]
    for node in product.chain:
        old = node.outputs[0]
        made = ir.node(node.op_type, inputs, dict(node.attributes), name=new_name(label(node), node_names))
        weights = made.outputs[0]
        weights.name, weights.type, weights.shape = new_name(old.name or "weights", names), old.type, old.shape
        main.insert_before(first, made)
        inputs = [weights]
    return weights
