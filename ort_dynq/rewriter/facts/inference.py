"""What the rules need to know of a model: types and shapes, and which values are computed at run time."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ...graphs import STANDARD_DOMAINS, functions, graphs
from ...operators import DOMAIN

# Standard operators whose result is not a function of their inputs.
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


class Facts:
    """Types and shapes are put on the values themselves while it is open, and taken back when it closes.

    A model is saved with the value_info that it came with: what inference finds is ours, not the user's.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._calls: dict[ir.OperatorIdentifier, list[ir.Node]] = defaultdict(list)
        self._constants: set[ir.Value] = set()
        self._names: set[str | None] = set()
        self._saved: dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]] = {}

    def __enter__(self) -> Facts:
        for _, graph in graphs(self.model):
            for value in _values(graph):
                self._names.add(value.name)
                self._saved[value] = (value.type, value.shape.copy() if value.shape is not None else None)
            for node in graph:
                if (identifier := node.op_identifier()) in self.model.functions:
                    self._calls[identifier].append(node)
        self._infer()
        self._find_constants()
        return self

    @property
    def opset(self) -> int:
        """The version of the standard operators that the model imports."""
        imports = self.model.graph.opset_imports
        return next((imports[domain] for domain in STANDARD_DOMAINS if domain in imports), 0)

    def new_name(self) -> str:
        """A name for a value, which no graph of the model has."""
        i = len(self._names)
        while (name := f"ort_dynq_{i}") in self._names:
            i += 1
        self._names.add(name)
        return name

    def note(self, new: ir.Value, dtype: ir.DataType, shape: ir.Shape | None) -> None:
        """What is known of a new value, unless it has taken the place of an old one."""
        if new not in self._saved:
            self._saved[new] = (None, None)
            new.dtype, new.shape = dtype, shape

    def adopt(self, new: ir.Value, old: ir.Value) -> None:
        """`new` has taken the place of `old`: what was found of the one holds for the other, and no longer."""
        new.type, new.shape = old.type, old.shape
        self._saved[new] = self._saved.get(old, (None, None))

    def __exit__(self, *_: object) -> None:
        for value, (type_, shape) in self._saved.items():
            value.type, value.shape = type_, shape

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether constant folding would fix the value; an absent one (None) counts as constant.

        An initializer that is also a graph input can be overridden at run time and is not constant. A function's
        parameter is constant if every call passes a constant.
        """
        return value is None or value in self._constants

    def _find_constants(self) -> None:
        for _, graph in graphs(self.model):
            if isinstance(graph, ir.Graph):
                self._constants.update(v for v in graph.initializers.values() if not v.is_graph_input())
        size = -1
        while size != len(self._constants):  # again only where a function calls one that stands before it
            size = len(self._constants)
            for _, graph in graphs(self.model):
                if isinstance(graph, ir.Function) and (calls := self._calls[graph.identifier()]):
                    for i, parameter in enumerate(graph.inputs):
                        if all(self.is_constant(_argument(call, i)) for call in calls):
                            self._constants.add(parameter)
                for node in graph:
                    if _is_foldable(node) and all(map(self.is_constant, node.inputs)):
                        self._constants.update(node.outputs)

    def _infer(self) -> None:
        """Shapes and types of the graphs, then of the functions' bodies as they are called.

        What the model says of the values between its inputs and its outputs is taken where inference does not find
        otherwise: ONNX Runtime does not believe it either.
        """
        logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
        was_disabled, logger.disabled = logger.disabled, True  # what cannot be inferred is unknown, no more
        initializers = [(graph.initializers, list(graph.initializers)) for graph in self.model.graphs()]
        infer = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=not _has_long_vector(self.model))
        try:
            said = {value: (value.type, value.shape) for value in self._saved if _is_hearsay(value)}
            for value in said:
                value.type = value.shape = None
            if said:
                infer(self.model)
            for value, (type_, shape) in said.items():
                if _contradicts(value, type_, shape):
                    self._saved[value] = (None, None)  # of a custom operator's output it would be believed
                else:
                    value.type, value.shape = type_, shape
            infer(self.model)
            found: set[ir.Value] = set()
            while _infer_own_operators(self.model, found):
                infer(self.model)
        finally:
            logger.disabled = was_disabled
            for values, order in initializers:  # the pass moves large ones behind the others
                for name in order:
                    values.add(values.pop(name))
        todo = functions(self.model)
        for _ in range(len(todo)):  # a function may call another
            for function in todo:
                _infer_function(function, self._calls[function.identifier()])


def _infer_own_operators(model: ir.Model, found: set[ir.Value]) -> bool:
    """Puts on outputs, in a model that was rewritten before, what their functions' bodies hide; whether on any new."""
    before = len(found)
    for _, graph in graphs(model):
        for node in graph:
            src = node.inputs[0] if node.inputs else None
            if node.domain != DOMAIN or src is None or src.shape is None:
                continue
            for i, output in enumerate(node.outputs):
                if output.shape is None:
                    output.shape = ir.Shape(_shape_of_own(node, i, list(src.shape)))
                    found.add(output)
    return len(found) > before


def _shape_of_own(node: ir.Node, output: int, src: list[int | ir.SymbolicDim]) -> list[int | ir.SymbolicDim]:
    """That of src, or of rows: what the operators' attributes say (operators.py)."""
    rank, axis = len(src), node.attributes.get_int("axis", -1)
    begin = axis + rank if axis < 0 else axis
    if node.op_type in ("ReduceAbsMax", "ReduceMinMax"):
        run, kept = (
            range(begin, begin + node.attributes.get_int("count", 1)),
            node.attributes.get_int("reduce_others", 0),
        )
        lengths = [dim if (i in run) == (kept == 1) else None for i, dim in enumerate(src)]
        ones = node.attributes.get_int("keepdims", 1) == 1
        return [1 if dim is None else dim for dim in lengths if ones or dim is not None]
    return src if output == 0 else [dim if i < begin else 1 for i, dim in enumerate(src)]


def _is_hearsay(value: ir.Value) -> bool:
    """Whether the type and shape of a value are said by the model and follow from others'."""
    return value.producer() is not None and value.shape is not None and not value.is_graph_output()


def _contradicts(value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> bool:
    """Whether what is known of `value` cannot be if it has this type and shape."""
    if value.type is not None and type_ is not None and value.type != type_:
        return True
    if value.shape is None or shape is None:
        return False
    if len(value.shape) != len(shape):
        return True
    pairs = zip(value.shape, shape, strict=True)
    return any(isinstance(mine, int) and isinstance(its, int) and mine != its for mine, its in pairs)


def _has_long_vector(model: ir.Model) -> bool:
    """Whether a vector is so long that onnx must not keep its elements as symbolic dimensions, as data_prop does."""
    return any(
        value.shape is not None
        and len(value.shape) == 1
        and value.shape.is_static()
        and value.shape.numpy()[0] > 1 << 16
        for graph in model.graphs()
        for value in (*graph.inputs, *graph.initializers.values())
    )


def _is_foldable(node: ir.Node) -> bool:
    if node.domain not in STANDARD_DOMAINS or node.op_type in _RANDOM:
        return False
    return all(a.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def _argument(call: ir.Node, position: int) -> ir.Value | None:
    return call.inputs[position] if position < len(call.inputs) else None


def _values(graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    yield from graph.inputs
    if isinstance(graph, ir.Graph):
        yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _infer_function(function: ir.Function, calls: list[ir.Node]) -> None:
    """Puts types and shapes on a function's values where all of its calls agree."""
    for i, parameter in enumerate(function.inputs):
        arguments = [_argument(call, i) for call in calls]
        types = {None if argument is None else argument.type for argument in arguments}
        shapes = [None if argument is None else argument.shape for argument in arguments]
        if len(types) == 1:
            parameter.type = types.pop()
        if shapes and all(shape is not None and shape == shapes[0] for shape in shapes):
            parameter.shape = shapes[0]
    typed = [value for value in function.inputs if value.type is not None]
    if len(typed) != len(function.inputs):
        return
    proto = ir.serde.serialize_function(function)
    graph = onnx.GraphProto(name=function.name, node=proto.node)
    graph.input.extend(ir.serde.serialize_value(value) for value in typed)
    body = onnx.ModelProto(ir_version=10, graph=graph, opset_import=proto.opset_import)
    try:
        inferred = onnx.shape_inference.infer_shapes(body, check_type=False, strict_mode=False, data_prop=True)
    except Exception:  # attribute references and foreign operators may defeat it: then nothing is known
        return
    known = {info.name: info for info in inferred.graph.value_info}
    for node in function:
        for value in node.outputs:
            if value.name in known:
                ir.serde.deserialize_value_info_proto(known[value.name], value)
