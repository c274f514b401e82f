"""Turns the nodes that ONNX Runtime runs in float32 into float32 nodes, in one graph. casts.py handles the model."""

from __future__ import annotations

from collections import ChainMap

import onnx
import onnx_ir as ir

from ...graphs import (
    NAME_IN_MODEL,
    RUNTIME_DOMAINS,
    STANDARD_DOMAINS,
    graphs,
    new_name,
    proto_subgraphs,
    subgraphs,
    values_of,
)
from ..analysis.constants import constant_array, constant_scalar
from ..analysis.nodes import cast_to, producer_of, rounded_to_float16
from ..analysis.standard import BOUNDING, EXTREMES, RESHAPES, ROUNDING, SHAPING, SUMS
from ..analysis.types import CODE_TYPES

PREFIX = "InsertedPrecisionFreeCast_"
"""The prefix of the names of Casts that ONNX Runtime inserts, and of their values."""
KEEPING = BOUNDING | SHAPING - {"Flatten"} | {"Round"}
"""Nodes that select elements of their inputs or round them to integers."""
_MAX_EXACT = 2048.0  # float16 represents all integers up to here
_WAS_FLOAT16 = "was float16"  # in the meta of a node that may return a zero of the other sign than in float16


def is_cast(node: ir.Node) -> bool:
    """Returns whether a node is ONNX's Cast."""
    return bool(node.outputs) and producer_of(node.outputs[0], "Cast") is node


def _is_inserted(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and node.name.startswith(PREFIX)


def restore_zeros(model: ir.Model) -> None:
    """Turns Max and Min that no rule has replaced back into float16 nodes: they may return a zero of the other sign.

    Args:
        model: The model with the Casts, which is changed.
    """
    names = {value.name for _, graph in graphs(model) for value in values_of(graph) if value.name}
    for _, graph in graphs(model):
        for node in [node for node in graph if _WAS_FLOAT16 in node.meta]:
            for i, value in enumerate(node.inputs):
                narrow = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT16)})
                narrow.outputs[0].name = new_name(f"{node.outputs[0].name}_input", names)
                graph.insert_before(node, narrow)
                node.replace_input_with(i, narrow.outputs[0])
            result = node.outputs[0]
            wide = ir.node("Cast", [result], {"to": int(ir.DataType.FLOAT)})
            graph.insert_after(node, wide)
            ir.convenience.replace_all_uses_with([result], [wide.outputs[0]])
            wide.replace_input_with(0, result)
            wide.outputs[0].name, result.name = result.name, new_name(f"{result.name}_float16", names)
            wide.outputs[0].type, result.type = result.type, ir.TensorType(ir.DataType.FLOAT16)
            wide.outputs[0].shape = None if result.shape is None else result.shape.copy()


class GraphCasts:
    """The float32 forms of the float16 values of one graph.

    Attributes:
        _values: The values of the graph by name. After a node has become a float32 node, a float16 value is a Cast.
        _wide: The values that float32 nodes read, rounded to float16 or not, by the name of the float16 value.
        _sources: The names of the values that ONNX Runtime casts to float32, by the name of the float16 value.
        _rounded: As _wide, for nodes that ONNX Runtime runs in float16: rounded to float16.
    """

    def __init__(
        self,
        graph: ir.Graph,
        types: dict[ir.Value, ir.DataType | None],
        names: set[str],
        outer: GraphCasts | None = None,
    ) -> None:
        """
        Args:
            graph: The graph.
            types: The types of all values of the model's graphs.
            names: The names of these values, which this class adds to.
            outer: The Casts of the outer graph, after they were written; None for the main graph.
        """
        self._graph, self._all_types, self._names = graph, types, names
        self._values: ChainMap[str, ir.Value] = ChainMap({}) if outer is None else outer._values.new_child()
        self._types: ChainMap[str, ir.DataType | None] = ChainMap({}) if outer is None else outer._types.new_child()
        for value in values_of(graph):
            if value.name:
                self._values[value.name], self._types[value.name] = value, types[value]
        self._wide: dict[str, ir.Value] = {}
        self._rounded: dict[str, ir.Value] = {}
        self._sources: dict[str, str] = {}
        self._inner: list[GraphCasts] = []

    def write(self, run: onnx.GraphProto) -> None:
        """Writes the Casts into the graph, then into its subgraphs: each casts values of outer graphs itself.

        Args:
            run: The graph as ONNX Runtime runs it.
        """
        run = self._without_copies(run)
        ran = {name.removeprefix(PREFIX): node for node in run.node for name in node.output if not _is_inserted(node)}
        self._sources = {node.output[0].removeprefix(PREFIX): node.input[0] for node in run.node if _is_inserted(node)}
        nodes = {node: ran.get(node.outputs[0].name or "") if node.outputs else None for node in self._graph}
        for node, same in nodes.items():
            self._convert(node, same)
        for node in nodes:
            self._convert_selecting(node)
        for node, same in nodes.items():
            found = {} if same is None else dict(proto_subgraphs(same))
            for name, subgraph in subgraphs(node):
                if name in found:
                    self._inner.append(GraphCasts(subgraph, self._all_types, self._names, self))
                    self._inner[-1].write(found[name])

    def _without_copies(self, run: onnx.GraphProto) -> onnx.GraphProto:
        """Returns a graph without the copies of DequantizeLinear that ONNX Runtime makes for each use."""
        merged = onnx.GraphProto()
        merged.CopyFrom(run)
        originals: dict[object, str] = {}
        dequantizers = [node for node in run.node if node.op_type == "DequantizeLinear"]
        names: dict[str, str] = {}
        for is_original in (True, False):
            for node in dequantizers:
                if (node.output[0].removeprefix(PREFIX) in self._values) == is_original:
                    key = tuple(node.input), tuple(each.SerializeToString() for each in node.attribute)
                    names[node.output[0]] = originals.setdefault(key, node.output[0])
        for node in merged.node:
            for i, name in enumerate(node.input):
                bare = name.removeprefix(PREFIX)
                node.input[i] = name.removesuffix(bare) + names.get(bare, bare)
        return merged

    def simplify(self) -> None:
        """Removes Casts that change no value, and Casts that nothing reads any more."""
        for inner in self._inner:
            inner.simplify()
        integers: set[ir.Value] = set()
        for node in self._graph:
            if self._gives_integers(node, integers):
                integers.add(node.outputs[0])
        for node in self._graph:
            self._skip_rounding_of_integers(node, integers)
        for node in reversed(list(self._graph)):
            if is_cast(node) and not (node.outputs[0].uses() or node.outputs[0].is_graph_output()):
                self._graph.remove([node], safe=True)

    def _convert(self, node: ir.Node, ran: onnx.NodeProto | None) -> None:
        """Gives a node the inputs and outputs of `ran`, the node that ONNX Runtime runs; None: it is not found."""
        if ran is None or (node.op_type, len(node.inputs)) != (ran.op_type, len(ran.input)):
            return
        if not all(each.domain in RUNTIME_DOMAINS for each in (node, ran)):
            return  # a call of a model-local function, which ONNX Runtime expands
        if "dtype" in node.attributes or any(name and not self._is_known(name) for name in ran.input):
            return
        for i, name in enumerate(ran.input):
            if name.startswith(PREFIX):
                node.replace_input_with(i, self._float32(name[len(PREFIX) :]))
            elif name:
                node.replace_input_with(i, self._values[name])
        for output, name in zip(node.outputs, ran.output, strict=False):
            if name.startswith(PREFIX):
                self._wide[name[len(PREFIX) :]] = self._widen(output)
        if (
            is_cast(node)
            and cast_to(node) == ir.DataType.FLOAT
            and self._types.get(ran.input[0]) == ir.DataType.FLOAT16
        ):
            self._share(node, ran.input[0])

    def _is_known(self, name: str) -> bool:
        return name in self._values or name.removeprefix(PREFIX) in self._values

    def _share(self, cast: ir.Node, name: str) -> None:
        """Merges all Casts of a float16 value to float32."""
        output = cast.outputs[0]
        if name not in self._wide:
            self._wide[name] = output
        elif not output.is_graph_output():
            ir.convenience.replace_all_uses_with([output], [self._wide[name]])

    def _float32(self, name: str) -> ir.Value:
        """Returns the value that float32 nodes read in place of a float16 value."""
        if name not in self._wide:
            source = self._sources.get(name, name)  # ONNX Runtime removes a Cast of integers to float16
            self._wide[name] = self._cast(self._values.get(source, self._values[name]), ir.DataType.FLOAT)
        return self._wide[name]

    def _widen(self, value: ir.Value) -> ir.Value:
        """Turns a float16 value into a float32 value and replaces its uses by a Cast; returns the float32 value."""
        assert value.name is not None
        name = value.name
        narrow = self._cast(value, ir.DataType.FLOAT16)
        # This replaces the input of the Cast, too.
        ir.convenience.replace_all_uses_with([value], [narrow], replace_graph_outputs=True)
        narrow_cast = narrow.producer()
        assert narrow_cast is not None
        narrow_cast.replace_input_with(0, value)
        value.meta.setdefault(NAME_IN_MODEL, name)
        value.name, narrow.name = narrow.name, name
        narrow.type, narrow.doc_string = ir.TensorType(ir.DataType.FLOAT16), value.doc_string
        value.type, value.doc_string = ir.TensorType(ir.DataType.FLOAT), None
        self._values[name] = narrow
        return value

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Returns the output of a new Cast, which follows the node that computes `value`."""
        cast = ir.node("Cast", [value], {"to": int(dtype)})
        output = cast.outputs[0]
        output.name, output.type = new_name(f"{value.name}_float32", self._names), ir.TensorType(dtype)
        output.shape = None if value.shape is None else value.shape.copy()
        producer = value.producer()
        if producer is not None and producer.graph is self._graph:
            self._graph.insert_after(producer, [cast])
        else:
            self._graph.insert_before(self._graph[0], [cast])
        return output

    def _convert_selecting(self, node: ir.Node) -> None:
        """Turns a node that ONNX Runtime runs in float16 into a float32 node, if it selects elements or rounds them.

        At least one of its inputs, or an input of such a node before it, is rounded to float16.
        """
        to_integers = node.op_type == "Cast" and cast_to(node) in (*CODE_TYPES, ir.DataType.INT32)
        is_last = node.op_type == "Shape" or to_integers
        if node.domain not in STANDARD_DOMAINS or not (node.outputs and (is_last or node.op_type in KEEPING)):
            return
        if node.op_type == "Clip" and (len(node.inputs) < 3 or None in node.inputs):
            return  # its default bounds are the limits of float16
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
        if node.op_type in EXTREMES and not any(constant_scalar(value) for value in node.inputs):
            node.meta[_WAS_FLOAT16] = True
        before = self._wide.get(name)
        wide = self._rounded[name] = self._wide[name] = self._widen(node.outputs[0])
        if before is not None:
            ir.convenience.replace_all_uses_with([before], [wide], replace_graph_outputs=before.is_graph_output())

    def _is_half(self, value: ir.Value) -> bool:
        return self._types.get(value.name or "") == ir.DataType.FLOAT16 and self._values.get(value.name or "") is value

    def _rounds(self, value: ir.Value | None) -> bool:
        """Returns whether a float16 value is a Cast of a float32 value."""
        cast = producer_of(value, "Cast")
        return cast is not None and cast_to(cast) == ir.DataType.FLOAT16

    def _rounded_float32(self, value: ir.Value) -> ir.Value:
        name = value.name
        assert name is not None
        if name not in self._rounded:
            is_computed = self._rounds(value)
            self._rounded[name] = self._cast(value, ir.DataType.FLOAT) if is_computed else self._float32(name)
        return self._rounded[name]

    def _skip_rounding_of_integers(self, node: ir.Node, integers: set[ir.Value]) -> None:
        """Skips the rounding of integers before and after a Clip, if float16 represents all integers within it."""
        output = node.outputs[0] if node.outputs else None
        if producer_of(output, "Clip") is node and _has_exact_bounds(node):
            value = rounded_to_float16(node.inputs[0])
            if value in integers:
                node.replace_input_with(0, value)
        value = rounded_to_float16(output)
        clip = producer_of(value, "Clip")
        if output is None or value is None or clip is None or output.is_graph_output():
            return
        if clip.inputs[0] in integers and _has_exact_bounds(clip):
            ir.convenience.replace_all_uses_with([output], [value])

    def _gives_integers(self, node: ir.Node, integers: set[ir.Value]) -> bool:
        """Returns whether the elements of a node's output are integers, infinite or NaN.

        Args:
            node: The node.
            integers: The outputs of earlier nodes that consist of such integers.
        """

        def is_integer(value: ir.Value | None) -> bool:
            number = constant_scalar(value)
            return value in integers if number is None else number.is_integer()

        if not node.outputs or node.domain not in STANDARD_DOMAINS:
            return False
        if node.op_type == "Cast":
            value = node.inputs[0]
            return value is not None and (self._types.get(value.name or "") in CODE_TYPES or is_integer(value))
        if node.op_type in SUMS:
            return all(map(is_integer, node.inputs))
        return node.op_type in ROUNDING or (node.op_type in RESHAPES | {"Neg"} and is_integer(node.inputs[0]))


def _has_exact_bounds(clip: ir.Node) -> bool:
    bounds = [constant_scalar(bound) for bound in clip.inputs[1:]]
    is_exact = [bound is not None and abs(bound) <= _MAX_EXACT and bound.is_integer() for bound in bounds]
    return len(bounds) == 2 and all(is_exact)
