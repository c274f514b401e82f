"""Writes into a float16 model the Casts with which ONNX Runtime runs it, so that the rules find its chains in float32.

ONNX Runtime has few float16 kernels for CPUs. At every optimization level it casts the inputs of all other nodes to
float32, and their outputs back to float16; between two such nodes it leaves both Casts out. So most of a chain is
computed in float32, and only inputs of nodes with a float16 kernel are rounded to float16.

The graph that ONNX Runtime saves shows the nodes that it runs in float32. Here they become float32 nodes, with Casts
where values are rounded. Then nodes that select elements or round them to integers become float32 nodes, too, if they
read rounded values: their results are the same. We ask ONNX Runtime again. If it now rounds other values, the model
stays unchanged. Otherwise the results of the model stay the same bit for bit.

The rewriter does not rewrite the saved graph itself: there, ONNX Runtime has expanded operators without a float16
kernel. Softmax becomes five nodes and Gelu six, as this version of ONNX Runtime needs it.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Container
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir

from ...files import temporary_folder, unwritable
from ...graphs import STANDARD_DOMAINS, graphs, proto_subgraphs, values_of, with_subgraphs
from ...runtime import MAX_COPIED, can_open, open_session, session_options
from ...storage import load, to_proto
from ..analysis.constants import constant_array
from ..analysis.inference import Facts
from ..analysis.nodes import cast_to
from .graph import KEEPING, PREFIX, GraphCasts, is_cast

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
_CODES = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}


def write_casts(model: ir.Model) -> bool:
    """Writes the Casts into the main graph and its subgraphs. Results stay the same.

    Args:
        model: The model, which is changed.

    Returns:
        Whether ONNX Runtime runs the model with and without the Casts, and rounds the same values to float16. Otherwise
        it is unchanged.
    """
    untouched = model.graph
    model.graph = untouched.clone()
    casts = _written(model)
    if casts is None:
        model.graph = untouched
        return False
    casts.simplify()
    return True


def _written(model: ir.Model) -> GraphCasts | None:
    """Writes the Casts; returns None if they change a result."""
    all_graphs = [graph for _, graph in with_subgraphs(model.graph)]
    with Facts(model):
        types = {value: value.dtype for graph in all_graphs for value in values_of(graph)}
    names = {value.name for value in types if value.name}
    is_saved = any(name.startswith(PREFIX) for name in names)  # ONNX Runtime wrote the model, with its Casts
    run = None if is_saved else saved_by_onnxruntime(model)
    if run is None:
        return None
    casts = GraphCasts(model.graph, types, names)
    casts.write(run)
    written = saved_by_onnxruntime(model)
    numbers: dict[object, int] = {}
    expected = _expressions(run, numbers)
    return None if written is None or _expressions(written, numbers) != expected else casts


def widen(model: ir.Model, operators: Container[str]) -> None:
    """Lets nodes of some operators that give float16 compute in float32, with Casts around them.

    Where ONNX Runtime has no float16 kernel, :func:`write_casts` has done so already, with fewer Casts.
    """
    with Facts(model) as facts:
        nodes = [
            node
            for _, graph in with_subgraphs(model.graph)
            for node in graph
            if node.op_type in operators and node.domain in STANDARD_DOMAINS
            if node.outputs[0].dtype == ir.DataType.FLOAT16
        ]
        for node in nodes:
            graph, result = node.graph, node.outputs[0]
            assert graph is not None
            for i, value in enumerate(node.inputs):
                if value is not None and value.dtype == ir.DataType.FLOAT16:
                    cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)})
                    _describe(cast.outputs[0], facts.new_name(), ir.DataType.FLOAT, value.shape)
                    graph.insert_before(node, cast)
                    node.replace_input_with(i, cast.outputs[0])
            cast = ir.node("Cast", [result], {"to": int(ir.DataType.FLOAT16)})
            graph.insert_after(node, cast)
            ir.convenience.replace_all_uses_with([result], [cast.outputs[0]], replace_graph_outputs=True)
            cast.replace_input_with(0, result)
            assert result.name is not None
            _describe(cast.outputs[0], result.name, ir.DataType.FLOAT16, result.shape)
            _describe(result, facts.new_name(), ir.DataType.FLOAT, result.shape)


def _describe(value: ir.Value, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> None:
    value.name, value.type, value.shape = name, ir.TensorType(dtype), None if shape is None else shape.copy()


def has_node(model: ir.Model, operators: Container[str]) -> bool:
    """Returns whether the main graph or one of its subgraphs has a node of one of some operators."""
    return any(node.op_type in operators for _, graph in with_subgraphs(model.graph) for node in graph)


def has_float16_node(model: ir.Model, operators: Container[str]) -> bool:
    """Returns whether a node of one of some operators gives float16."""
    with Facts(model):
        nodes = (node for _, graph in with_subgraphs(model.graph) for node in graph if node.op_type in operators)
        return any(node.outputs[0].dtype == ir.DataType.FLOAT16 for node in nodes)


def mentions_float16(model: ir.Model) -> bool:
    """Returns whether a model may have values of float16."""
    return any(_mentions_float16(graph) for _, graph in graphs(model))


def _mentions_float16(graph: ir.Graph | ir.Function) -> bool:
    """Returns whether an input, an initializer or a Cast of a graph is float16: other float16 values need one."""
    initializers = graph.initializers.values() if isinstance(graph, ir.Graph) else ()
    casts = (is_cast(node) and cast_to(node) == ir.DataType.FLOAT16 for node in graph)
    return any(value.dtype == ir.DataType.FLOAT16 for value in (*graph.inputs, *initializers)) or any(casts)


def saved_by_onnxruntime(model: ir.Model) -> onnx.GraphProto | None:
    """Returns the main graph that ONNX Runtime runs with optimizations off; it lacks the large initializers.

    None: ONNX Runtime refuses the model.

    Raises:
        DynqError: The temporary folder, in which ONNX Runtime writes the graph, cannot be written.
    """
    small = ir.Model(model.graph.clone(), ir_version=model.ir_version, functions=list(model.functions.values()))
    for name, value in list(small.graph.initializers.items()):
        if value.const_value is None or value.const_value.size <= MAX_COPIED:
            continue
        value.dtype, value.shape = value.const_value.dtype, ir.Shape(value.const_value.shape.numpy())
        del small.graph.initializers[name]
        if value not in small.graph.inputs:
            small.graph.inputs.append(value)
    proto = to_proto(small)
    options = session_options(optimize=False)
    with temporary_folder() as folder:
        path = os.path.join(folder, "model.onnx")
        options.optimized_model_filepath = path
        try:
            open_session(proto, options)
            written = onnx.load(path, load_external_data=False)
        except Exception as error:  # the types are ONNX Runtime's own
            if can_open(proto):
                raise unwritable(folder, error) from error
            return None
        saved = load(written)
        with Facts(saved):  # ONNX knows no types of com.microsoft, and no types after them
            return to_proto(saved).graph


def _expressions(
    graph: onnx.GraphProto,
    numbers: dict[object, int],
    outer_types: ChainMap[str, int] | None = None,
    outer_values: ChainMap[str, tuple[int, bool]] | None = None,
) -> list[tuple[int, bool]]:
    """Describes what a graph computes, without its Casts between floats.

    Args:
        graph: The graph as ONNX Runtime runs it.
        numbers: The numbers of all expressions so far, which this function adds to.
        outer_types, outer_values: The types and the expressions of the outer graphs' values, by name.

    Returns:
        The expressions of the outputs. An expression is an operator with the expressions of its inputs and of its
        subgraphs, and says of each whether it is rounded to float16.
    """
    types: ChainMap[str, int] = ChainMap({}) if outer_types is None else outer_types.new_child()
    values: ChainMap[str, tuple[int, bool]] = ChainMap({}) if outer_values is None else outer_values.new_child()
    typed = (*graph.input, *graph.value_info, *graph.output)
    types |= {value.name: value.type.tensor_type.elem_type for value in typed}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}

    def number(expression: object) -> int:
        return numbers.setdefault(expression, len(numbers))

    def is_half(name: str) -> bool:
        return types.get(name) == onnx.TensorProto.FLOAT16

    def read(name: str) -> tuple[int, bool]:
        return values.get(name) or (number(object()), False)  # ONNX Runtime may remove values that only subgraphs read

    depth = len(values.maps)
    for i, value in enumerate(graph.input):  # inlining a function renames the inputs of subgraphs
        values[value.name] = number(("input", value.name if depth == 1 else (depth, i))), is_half(value.name)
    for tensor in graph.initializer:  # inlining also renames constants
        values[tensor.name] = number(_content(ir.serde.deserialize_tensor(tensor).numpy())), is_half(tensor.name)
    for node in graph.node:
        is_standard = node.domain in STANDARD_DOMAINS
        if is_standard and node.op_type == "Cast" and {types.get(node.input[0]), types.get(node.output[0])} <= _FLOATS:
            source, is_rounded = read(node.input[0])
            values[node.output[0]] = source, is_rounded or is_half(node.output[0])
            continue
        is_constant = is_standard and node.op_type == "Constant"  # ONNX Runtime leaves some in subgraphs
        if is_constant and (elements := constant_array(ir.serde.deserialize_node(node).outputs[0])) is not None:
            values[node.output[0]] = number(_content(elements)), is_half(node.output[0])
            continue
        inputs = tuple(read(name) if name else None for name in node.input)
        inner = tuple(
            tuple(_expressions(subgraph, numbers, types, values))
            for _, subgraph in sorted(proto_subgraphs(node), key=lambda named: named[0])
        )
        expression = number((node.domain, node.op_type, inputs, inner))
        floats = [read(name)[1] for name in node.input if types.get(name) in _FLOATS]
        keeps = is_standard and node.op_type in KEEPING and bool(floats) and all(floats)
        keeps |= is_standard and node.op_type == "Cast" and types.get(node.input[0]) in _CODES  # float16 has all codes
        for i, name in enumerate(node.output):
            values[name] = number((expression, i)), is_half(name) or (keeps and types.get(name) in _FLOATS)
    return [read(output.name) for output in graph.output]


def _content(elements: npt.NDArray[Any]) -> object:
    is_text = elements.dtype == object
    return str(elements.dtype), elements.shape, tuple(elements.flat) if is_text else elements.tobytes()
