"""Writes into a float16 model the Casts with which ONNX Runtime runs it, so that the rules find its chains in float32.

ONNX Runtime has few float16 kernels for CPUs. At every optimization level it casts the inputs of all other nodes to
float32, and their outputs back to float16; between two such nodes it leaves both Casts out. So most of a chain is
computed in float32, and only some values are rounded to float16: those that a node with a float16 kernel reads.

ONNX Runtime itself says which: it saves the graph that it runs. These nodes become float32 nodes here, with Casts where
values are rounded. Nodes that select some of their elements or round them to integers then follow: between rounded
values they give the same in float32. ONNX Runtime may treat the neighbours of these Casts in another way: it says that,
too, and the model stays as it is. Otherwise the results of the model stay the same bit for bit.
"""

from __future__ import annotations

import contextlib
import os
from collections import ChainMap
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS, functions, graphs, proto_nodes, proto_subgraphs, subgraphs, with_subgraphs
from ..runtime import MOST_COPIED, open_session, session_options, temporary_folder
from ..storage import to_proto
from .facts.inference import Facts
from .facts.values import CODE_TYPES, cast_to, constant_array, constant_scalar, producer_of, rounded_to_float16
from .functions import inlined

_PREFIX = "InsertedPrecisionFreeCast_"  # of the names of inserted Casts and their values
_SELECTING = ("Max", "Min", "Clip", "Round", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Identity")
_ENDS = ("Round", "DequantizeLinear")  # of chains that the rules find in float32
_LARGEST_EXACT = 2048.0  # float16 represents all integers up to here
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}


def write_casts(model: ir.Model) -> bool:
    """Writes the Casts into the main graph and its subgraphs, if a Round or DequantizeLinear in them gives float16.

    Results stay the same. If such a node may be in a model-local function, the calls of functions become nodes first,
    as ONNX Runtime makes them: what a function rounds depends on the nodes beside each call.

    Args:
        model: The model, which is changed.

    Returns:
        Whether the model has such a node, and ONNX Runtime runs the model with and without the Casts, and rounds the
        same values to float16. Otherwise it is unchanged.
    """
    if not any(_mentions_float16(graph) for _, graph in graphs(model)):
        return False
    if not _may_round_in_functions(model):
        return _write_casts(model)
    run = saved_by_onnxruntime(model)
    if run is None:
        return False
    without_calls = inlined(model, kept={(node.domain, node.op_type) for node in proto_nodes(run)})
    if without_calls is None or not _write_casts(without_calls, run):
        return _write_casts(model)
    model.graph = without_calls.graph
    model.functions.clear()
    model.functions.update(without_calls.functions)
    return True


def _write_casts(model: ir.Model, original: onnx.GraphProto | None = None) -> bool:
    """Does what :func:`write_casts` says, and leaves functions as they are.

    Args:
        model: The model, which is changed.
        original: The graph that ONNX Runtime runs for the original; None: the model is the original.
    """
    untouched = model.graph
    model.graph = untouched.clone()
    casts = _written(model, original)
    if casts is None:
        model.graph = untouched
        return False
    casts.simplify()
    return True


def _written(model: ir.Model, original: onnx.GraphProto | None) -> _Casts | None:
    """Writes the Casts; returns None if the model does not need them, or if they change a result."""
    all_graphs = [graph for _, graph in with_subgraphs(model.graph)]
    ends = [end for graph in all_graphs for end in _ends(graph)]
    if not ends:
        return None
    with Facts(model):
        types = {value: value.dtype for graph in all_graphs for value in _values(graph)}
    if all(types[end] != ir.DataType.FLOAT16 for end in ends):
        return None
    names = {value.name for value in types if value.name}
    is_saved = any(name.startswith(_PREFIX) for name in names)  # by ONNX Runtime: its Casts are there
    run = None if is_saved else saved_by_onnxruntime(model)
    if run is None:
        return None
    casts = _Casts(model.graph, types, names)
    casts.write(run)
    written = saved_by_onnxruntime(model)
    numbers: dict[object, int] = {}
    expected = _expressions(original or run, numbers)
    return None if written is None or _expressions(written, numbers) != expected else casts


def _ends(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    return [node.outputs[0] for node in graph if node.outputs and producer_of(node.outputs[0], *_ENDS) is node]


def _may_round_in_functions(model: ir.Model) -> bool:
    """Returns whether a Round or DequantizeLinear in a function gives float16 in a call. Calls may differ in types."""
    ends = [end for body in functions(model) for _, graph in with_subgraphs(body) for end in _ends(graph)]
    with Facts(model) if ends else contextlib.nullcontext():
        return any(end.dtype in (ir.DataType.FLOAT16, None) for end in ends)


def _values(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    initializers = graph.initializers.values() if isinstance(graph, ir.Graph) else ()
    return [*graph.inputs, *initializers, *(value for node in graph for value in node.outputs)]


def _mentions_float16(graph: ir.Graph | ir.Function) -> bool:
    """Returns whether an input, an initializer or a Cast of a graph is of float16: other values follow from these."""
    initializers = graph.initializers.values() if isinstance(graph, ir.Graph) else ()
    casts = (_is_cast(node) and cast_to(node) == ir.DataType.FLOAT16 for node in graph)
    return any(value.dtype == ir.DataType.FLOAT16 for value in (*graph.inputs, *initializers)) or any(casts)


def _is_cast(node: ir.Node) -> bool:
    return bool(node.outputs) and producer_of(node.outputs[0], "Cast") is node


def saved_by_onnxruntime(model: ir.Model) -> onnx.GraphProto | None:
    """Returns the main graph that ONNX Runtime runs with optimizations off; it lacks the large initializers.

    None: ONNX Runtime refuses the model.
    """
    small = ir.Model(model.graph.clone(), ir_version=model.ir_version, functions=list(model.functions.values()))
    for name, value in list(small.graph.initializers.items()):
        if value.const_value is None or value.const_value.size <= MOST_COPIED:
            continue
        value.dtype, value.shape = value.const_value.dtype, ir.Shape(value.const_value.shape.numpy())
        del small.graph.initializers[name]
        if value not in small.graph.inputs:
            small.graph.inputs.append(value)
    options = session_options(optimize=False)
    with temporary_folder() as folder:
        path = os.path.join(folder, "model.onnx")
        options.optimized_model_filepath = path
        try:
            open_session(to_proto(small), options)
        except Exception:  # the types are ONNX Runtime's own
            return None
        return onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False)).graph


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
        outer_types, outer_values: The types and the expressions of the values around a subgraph, by name.

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
        return values.get(name) or (number(object()), False)  # ONNX Runtime may remove what only subgraphs read

    depth = len(values.maps)
    for i, value in enumerate(graph.input):  # those of subgraphs have other names after a function was inlined
        values[value.name] = number(("input", value.name if depth == 1 else (depth, i))), is_half(value.name)
    for tensor in graph.initializer:  # so have the constants of functions
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
        keeps = is_standard and node.op_type in _SELECTING and bool(floats) and all(floats)
        for i, name in enumerate(node.output):
            values[name] = number((expression, i)), is_half(name) or (keeps and types.get(name) in _FLOATS)
    return [read(output.name) for output in graph.output]


def _content(elements: npt.NDArray[Any]) -> object:
    is_text = elements.dtype == object
    return str(elements.dtype), elements.shape, tuple(elements.flat) if is_text else elements.tobytes()


class _Casts:
    """The float32 forms of the float16 values of one graph.

    Attributes:
        _values: The values of the graph by name. After a node has become one of float32, a float16 value is a Cast.
        _wide: The values by the name of the float16 value: what float32 nodes read, rounded to float16 or not.
        _sources: What ONNX Runtime casts to float32, by the name of the float16 value.
        _rounded: The same as _wide for nodes that ONNX Runtime runs in float16: rounded to float16.
    """

    def __init__(
        self, graph: ir.Graph, types: dict[ir.Value, ir.DataType | None], names: set[str], outer: _Casts | None = None
    ) -> None:
        """
        Args:
            graph: The graph.
            types: The types of all values of the model's graphs.
            names: The names of these values, which this class adds to.
            outer: The Casts of the graph around a subgraph, after they were written.
        """
        self._graph, self._all_types, self._names = graph, types, names
        self._values: ChainMap[str, ir.Value] = ChainMap({}) if outer is None else outer._values.new_child()
        self._types: ChainMap[str, ir.DataType | None] = ChainMap({}) if outer is None else outer._types.new_child()
        for value in _values(graph):
            if value.name:
                self._values[value.name], self._types[value.name] = value, types[value]
        self._wide: dict[str, ir.Value] = {}
        self._rounded: dict[str, ir.Value] = {}
        self._sources: dict[str, str] = {}
        self._inner: list[_Casts] = []

    def write(self, run: onnx.GraphProto) -> None:
        """Writes the Casts into the graph, then into its subgraphs: each has its own Casts of values around it.

        Args:
            run: The graph as ONNX Runtime runs it.
        """
        ran = {name.removeprefix(_PREFIX): node for node in run.node for name in node.output if not _is_inserted(node)}
        self._sources = {node.output[0].removeprefix(_PREFIX): node.input[0] for node in run.node if _is_inserted(node)}
        nodes = {node: ran.get(node.outputs[0].name or "") if node.outputs else None for node in self._graph}
        for node, same in nodes.items():
            self._convert(node, same)
        for node in nodes:
            self._convert_selecting(node)
        for node, same in nodes.items():
            found = {} if same is None else dict(proto_subgraphs(same))
            for name, subgraph in subgraphs(node):
                if name in found:
                    self._inner.append(_Casts(subgraph, self._all_types, self._names, self))
                    self._inner[-1].write(found[name])

    def simplify(self) -> None:
        """Removes Casts that change no value, and those that nothing reads any more."""
        for inner in self._inner:
            inner.simplify()
        integers: set[ir.Value] = set()
        for node in self._graph:
            if self._gives_integers(node, integers):
                integers.add(node.outputs[0])
        for node in self._graph:
            self._skip_rounding_of_integers(node, integers)
        for node in reversed(list(self._graph)):
            if _is_cast(node) and not (node.outputs[0].uses() or node.outputs[0].is_graph_output()):
                self._graph.remove([node], safe=True)

    def _convert(self, node: ir.Node, ran: onnx.NodeProto | None) -> None:
        """Gives a node the inputs and outputs with which ONNX Runtime runs it: `ran`, or None if it is not found."""
        if ran is None or (node.op_type, len(node.inputs)) != (ran.op_type, len(ran.input)):
            return
        if node.domain not in STANDARD_DOMAINS or ran.domain not in STANDARD_DOMAINS:
            return
        if "dtype" in node.attributes or any(name and not self._is_known(name) for name in ran.input):
            return
        for i, name in enumerate(ran.input):
            if name.startswith(_PREFIX):
                node.replace_input_with(i, self._float32(name[len(_PREFIX) :]))
            elif name:
                node.replace_input_with(i, self._values[name])
        for output, name in zip(node.outputs, ran.output, strict=False):
            if name.startswith(_PREFIX):
                self._wide[name[len(_PREFIX) :]] = self._widen(output)
        if (
            _is_cast(node)
            and cast_to(node) == ir.DataType.FLOAT
            and self._types.get(ran.input[0]) == ir.DataType.FLOAT16
        ):
            self._share(node, ran.input[0])

    def _is_known(self, name: str) -> bool:
        return name in self._values or name.removeprefix(_PREFIX) in self._values

    def _share(self, cast: ir.Node, name: str) -> None:
        """Makes one of all Casts of a float16 value to float32."""
        output = cast.outputs[0]
        if name not in self._wide:
            self._wide[name] = output
        elif not output.is_graph_output():
            ir.convenience.replace_all_uses_with([output], [self._wide[name]])

    def _float32(self, name: str) -> ir.Value:
        """Returns what float32 nodes read in place of a float16 value."""
        if name not in self._wide:
            source = self._sources.get(name, name)  # of integers, ONNX Runtime removes a Cast to float16
            self._wide[name] = self._cast(self._values.get(source, self._values[name]), ir.DataType.FLOAT)
        return self._wide[name]

    def _widen(self, value: ir.Value) -> ir.Value:
        """Makes a float32 value of a float16 one, and a Cast of it in place of the latter; returns the former."""
        assert value.name is not None
        name = value.name
        narrow = self._cast(value, ir.DataType.FLOAT16)
        # `value` is the input of the Cast, too.
        ir.convenience.replace_all_uses_with([value], [narrow], replace_graph_outputs=True)
        narrow_cast = narrow.producer()
        assert narrow_cast is not None
        narrow_cast.replace_input_with(0, value)
        value.name, narrow.name = narrow.name, name
        narrow.type, narrow.doc_string = ir.TensorType(ir.DataType.FLOAT16), value.doc_string
        value.type, value.doc_string = ir.TensorType(ir.DataType.FLOAT), None
        self._values[name] = narrow
        return value

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Returns the output of a new Cast, which follows the node that computes `value`."""
        cast = ir.node("Cast", [value], {"to": int(dtype)})
        output = cast.outputs[0]
        output.name, output.type = self._new_name(value.name or ""), ir.TensorType(dtype)
        output.shape = None if value.shape is None else value.shape.copy()
        producer = value.producer()
        if producer is not None and producer.graph is self._graph:
            self._graph.insert_after(producer, [cast])
        else:
            self._graph.insert_before(self._graph[0], [cast])
        return output

    def _new_name(self, name: str) -> str:
        new, number = f"{name}_float32", 0
        while new in self._names:
            number += 1
            new = f"{name}_float32_{number}"
        self._names.add(new)
        return new

    def _convert_selecting(self, node: ir.Node) -> None:
        """Makes a float32 node of one that ONNX Runtime runs in float16, if it selects elements or rounds to integers.

        At least one of its inputs, or an input of such a node before it, is rounded to float16.
        """
        to_integers = node.op_type == "Cast" and cast_to(node) in (*CODE_TYPES, ir.DataType.INT32)
        is_last = node.op_type == "Shape" or to_integers
        if node.domain not in STANDARD_DOMAINS or not (node.outputs and (is_last or node.op_type in _SELECTING)):
            return
        if node.op_type == "Clip" and (len(node.inputs) < 3 or None in node.inputs):
            return  # the bounds that it has by default are those of float16
        if node.outputs[0].is_graph_output() and not is_last:
            return
        halves = [i for i, value in enumerate(node.inputs) if value is not None and self._is_half(value)]
        variable = [i for i in halves if constant_array(node.inputs[i]) is None]
        is_filled = node.op_type == "Expand" and bool(halves) and not variable
        if not is_filled and not any(self._rounds(node.inputs[i]) for i in variable):
            return
        for i in halves:
            value = node.inputs[i]
            assert value is not None
            node.replace_input_with(i, self._rounded_float32(value))
        if is_last:
            return
        name = node.outputs[0].name
        assert name is not None
        before = self._wide.get(name)
        wide = self._rounded[name] = self._wide[name] = self._widen(node.outputs[0])
        if before is not None:
            ir.convenience.replace_all_uses_with([before], [wide], replace_graph_outputs=before.is_graph_output())

    def _is_half(self, value: ir.Value) -> bool:
        return self._types.get(value.name or "") == ir.DataType.FLOAT16 and self._values.get(value.name or "") is value

    def _rounds(self, value: ir.Value | None) -> bool:
        """Returns whether a float16 value is a Cast of a float32 one."""
        cast = producer_of(value, "Cast")
        return cast is not None and cast_to(cast) == ir.DataType.FLOAT16

    def _rounded_float32(self, value: ir.Value) -> ir.Value:
        name = value.name
        assert name is not None
        if name not in self._rounded:
            is_computed = self._rounds(value)
            self._rounded[name] = self._cast(value, ir.DataType.FLOAT) if is_computed else self._float32(name)
        return self._rounded[name]

    def _skip_rounding_of_integers(self, clip: ir.Node, integers: set[ir.Value]) -> None:
        """Lets a Clip read integers that are not rounded to float16, if float16 represents all integers within it."""
        if clip.op_type != "Clip" or clip.domain not in STANDARD_DOMAINS or len(clip.inputs) < 3:
            return
        bounds = [constant_scalar(bound) for bound in clip.inputs[1:3]]
        if any(bound is None or not abs(bound) <= _LARGEST_EXACT or not bound.is_integer() for bound in bounds):
            return
        value = rounded_to_float16(clip.inputs[0])
        if value in integers:
            clip.replace_input_with(0, value)

    def _gives_integers(self, node: ir.Node, integers: set[ir.Value]) -> bool:
        """Returns whether the elements of a node's output are integers, infinite or NaN.

        Args:
            node: The node.
            integers: The outputs of the nodes before it for which that is so.
        """

        def is_integer(value: ir.Value | None) -> bool:
            number = constant_scalar(value)
            return value in integers if number is None else number.is_integer()

        if not node.outputs or node.domain not in STANDARD_DOMAINS:
            return False
        if node.op_type == "Cast":
            value = node.inputs[0]
            return value is not None and (self._types.get(value.name or "") in CODE_TYPES or is_integer(value))
        if node.op_type in ("Add", "Sub"):
            return all(map(is_integer, node.inputs))
        return node.op_type in ("Round", "Floor", "Ceil") or (
            node.op_type in ("Neg", "Reshape") and is_integer(node.inputs[0])
        )


def _is_inserted(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and node.name.startswith(_PREFIX)
