"""Types and shapes of a model's values, and which values are constant."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import TypeAlias

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS, Graph, graphs, is_too_long, values_of
from ...operators import DOMAIN, OPERATORS
from ...operators.shapes import Call
from .folding import folded_values
from .nodes import attributes_of, input_of, is_standard, producer_of
from .shape_arithmetic import Length, elements_of_shape, factors_of, known_lengths, product_of, solved_lengths
from .shape_inference import ShapeInference
from .shared import Shared
from .standard import ARITHMETIC, EXTREMES, PADDING, REPEATING

_Dim: TypeAlias = "int | ir.SymbolicDim"
Dims: TypeAlias = "list[_Dim]"
_RESIZING = REPEATING | PADDING | {"Reshape"}
_MAX_ROUNDS = 4  # of inference: lengths from which others are computed become known one after the other
_BROADCASTING = ARITHMETIC | EXTREMES | {"Pow", "Where"}


class Facts:
    """Inferred types and shapes, set on the values of a model while this context manager is open.

    On exit every value gets back the type and shape that the model declares, so that a rewrite does not add value_info.
    """

    def __init__(self, model: ir.Model) -> None:
        """Prepares inference.

        Args:
            model: The model. It may be edited while the context manager is open.
        """
        self.model = model
        self.shared = Shared(self)
        self._folded: set[ir.Value] = set()
        self._names: set[str | None] = set()
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._saved: dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]] = {}
        self.contradiction = ""
        """Why nothing may be changed: declared shapes hide an error from ONNX Runtime. Empty if there is none."""

    def __enter__(self) -> Facts:
        try:
            self._find()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _find(self) -> None:
        for _, graph in graphs(self.model):
            _describe_initializers(graph)
            for value in values_of(graph):
                self._names.add(value.name)
                self._saved[value] = (value.type, _kept(value.shape))
                if is_too_long(value.shape):
                    value.shape = None
            self._declare_sources(graph)
        self._infer()
        self._folded = folded_values(self.model)

    def _declare_sources(self, graph: Graph) -> None:
        """Declares the shapes of Identities for what they copy, if nothing is declared: nodes read that in their place.

        Only for what the same graph computes: a branch says nothing of other runs.
        """
        for node in reversed(graph):
            source = node.inputs[0] if is_standard(node, "Identity") else None
            producer = None if source is None or source.is_graph_output() else source.producer()
            if source is not None and producer is not None and producer.graph is graph and source.shape is None:
                self._saved[source] = self._saved[node.outputs[0]]

    @property
    def opset(self) -> int:
        """The version of the standard operators that the model imports; 0 if it imports none."""
        imports = self.model.graph.opset_imports
        return next((imports[domain] for domain in STANDARD_DOMAINS if domain in imports), 0)

    def new_name(self) -> str:
        """Returns a name that no value in any graph of the model has."""
        i = len(self._names)
        while (name := f"ort_dynq_{i}") in self._names:
            i += 1
        self._names.add(name)
        return name

    def note(self, new: ir.Value, dtype: ir.DataType, shape: ir.Shape | None) -> None:
        """Sets the type and shape of a new value, unless it has replaced an old one."""
        if new not in self._saved:
            self._saved[new] = (None, None)
            new.dtype, new.shape = dtype, shape

    def retype(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Gives a value that nothing reads another type than the model declares."""
        self._saved[value] = (None, None)
        value.dtype = dtype

    def adopt(self, new: ir.Value, old: ir.Value) -> None:
        """Gives `new`, which replaces `old`, the type and shape of `old`, both the inferred and the declared ones."""
        new.type, new.shape = old.type, old.shape
        self._replaced[old] = new
        if old in self._folded:
            self._folded.add(new)
        self._saved[new] = self._saved.get(old, (None, None))

    def declare(self, value: ir.Value) -> None:
        """Declares the inferred shape of a value if the model declares none: the lengths that are known."""
        type_, declared = self._saved.get(value, (value.type, None))
        if declared is None and value.shape is not None:
            self._saved[value] = type_, ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape])

    def current(self, value: ir.Value) -> ir.Value:
        """Returns the value that has replaced `value`, or `value`."""
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def __exit__(self, *_: object) -> None:
        for value, (type_, shape) in self._saved.items():
            value.type, value.shape = type_, shape

    def is_constant(self, value: ir.Value | None) -> bool:
        """Returns whether constant folding would compute a value before run time; True for an absent value (None)."""
        return value is None or value in self._folded or producer_of(value, "Constant") is not None  # a new one

    def is_folded(self, node: ir.Node) -> bool:
        """Returns whether ONNX Runtime removes a node before run time. It does not fold DequantizeLinear."""
        return node.op_type != "DequantizeLinear" and not self._folded.isdisjoint(node.outputs)

    def _infer(self) -> None:
        """Infers types and shapes.

        Declared types and shapes of computed values are used only where inference finds nothing that contradicts them.
        ONNX Runtime does not trust them either. A graph output keeps its type, and gets the inferred shape.
        """
        inference = ShapeInference(self.model, data_prop=not _has_long_vector(self.model))
        self._drop_contradicted(inference)
        self._infer_with_lengths(inference)
        found: set[ir.Value] = set()
        while _infer_own_operators(self.model, found):
            inference.run()

    def _infer_with_lengths(self, inference: ShapeInference) -> None:
        """Infers types and shapes; then again, if a length is known that inference did not find."""
        outputs = [value for value in self._saved if value.producer() is not None]
        before = [(value, value.type, _kept(value.shape)) for value in outputs]
        inference.run()
        resized: list[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape]] = []
        solved: dict[_Dim, int] = {}
        for _ in range(_MAX_ROUNDS):
            solved |= (now := solved_lengths(self.model.graph, _names_of_inputs(self.model)))
            new = [] if now else [(value, value.type, shape) for value, shape in _resized(self.model)]
            if not new and not now:
                return
            resized += new
            for value in self.model.graph.inputs:
                value.shape = _with_lengths(value.shape, solved)
            for value, type_, shape in (*before, *resized):
                value.type, value.shape = type_, _with_lengths(shape, solved)
            inference.run()

    def _drop_contradicted(self, inference: ShapeInference) -> None:
        """Drops declared types and shapes that inference contradicts: after a custom operator, it would trust them."""
        declared = [value for value, (_, shape) in self._saved.items() if shape is not None and value.producer()]
        if not declared:
            return
        for value in declared:
            value.shape = None
            if not value.is_graph_output():
                value.type = None
        inference.run()
        contradicted = [value for value in declared if _contradicts(value, *self._saved[value])]
        if contradicted:
            self.contradiction = _error_of(inference)
        for value in contradicted if not self.contradiction else ():
            self._saved[value] = (value.type, value.shape) if value.is_graph_output() else (None, None)
        names = _names_of_inputs(self.model)
        for value, (type_, shape) in self._saved.items():
            value.type, value.shape = type_, _merged(shape, value.shape, names)


def _kept(shape: ir.Shape | None) -> ir.Shape | None:
    """Returns a shape that stays as it is: a copy, unless it cannot be changed."""
    return shape if shape is None or shape.frozen else shape.copy()


def _merged(declared: ir.Shape | None, inferred: ir.Shape | None, names: Container[_Dim]) -> ir.Shape | None:
    """Returns a declared shape, with the inferred lengths, and the inferred dimensions that have one of these names.

    Inference makes up other names of dimensions. Declared names may be made up, too, if a tool wrote them.
    """
    if declared is None or is_too_long(declared):
        return None
    shape: ir.Shape = declared.copy()
    if inferred is not None and len(inferred) == len(shape) and not is_too_long(inferred):
        for i, dim in enumerate(inferred):
            if not isinstance(shape[i], int) and (isinstance(dim, int) or dim in names):
                shape[i] = dim
    return shape


def _error_of(inference: ShapeInference) -> str:
    """Returns the first node with wrong shapes, as a reason, or an empty text."""
    found = re.search(r"op_type:(\w+)(?:, node name: (.*?))?\): \[ShapeInferenceError\] (.*)", inference.error())
    if found is None:
        return ""
    node = f"{found[1]} {found[2]}" if found[2] else found[1]
    return f"declared shapes hide an error of the model from ONNX Runtime: {node}: {found[3]}"


def _names_of_inputs(model: ir.Model) -> set[_Dim]:
    """Returns the names of the dimensions of the model's inputs."""
    dims = (dim for value in model.graph.inputs for dim in value.shape or ())
    return {dim for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value is not None}


def _with_lengths(shape: ir.Shape | None, lengths: Mapping[_Dim, int]) -> ir.Shape | None:
    """Returns a copy of a shape, with these lengths of its dimensions that have names."""
    return None if shape is None else ir.Shape([lengths.get(dim, dim) for dim in shape])


def _resized(model: ir.Model) -> list[tuple[ir.Value, ir.Shape]]:
    """Returns the shapes after nodes that change lengths, where they are known, and inference does not find them.

    [b, t, 64] becomes [b, t, 2, 32], and a vector of one number for each image [n, 1, 1, 1]. Inference makes up a name
    for a dimension that it does not know, and further names where the result is broadcast. Only names of the inputs'
    dimensions count: others are made up again by each inference.
    """
    found, names = [], _names_of_inputs(model)
    for _, graph in graphs(model):
        same: dict[_Dim, _Dim] = {}  # the length of a dimension with a name that is made up
        for node in graph:
            if node.domain not in STANDARD_DOMAINS or not node.inputs:
                continue
            data, output = node.inputs[0], node.outputs[0]
            if node.op_type in _BROADCASTING:
                _note_broadcast(node, names, same)
            if node.op_type not in _RESIZING or data is None or data.shape is None or output.shape is None:
                continue
            if all(_is_named(dim, names) for dim in output.shape):
                continue
            shape = output.shape.copy()
            for i, length in enumerate(_lengths_of(node, [same.get(dim, dim) for dim in data.shape], shape)):
                if length is not None and length != shape[i] and _is_named(length, names):
                    _note(same, shape[i], length)
                    shape[i] = length
            if node.op_type == "Reshape":
                place, missing = _missing(data.shape, shape, names, same)
                if missing is not None and missing != shape[place]:
                    _note(same, shape[place], missing)
                    shape[place] = missing
            if shape != output.shape:
                found.append((output, shape))
    return found


def _lengths_of(node: ir.Node, data: Dims, shape: ir.Shape) -> list[_Dim | None]:
    """Returns the dimensions after a node that changes lengths, as far as they follow from its other inputs."""
    if node.op_type == "Slice":
        return _sliced(node, data)
    if node.op_type == "Pad":
        rank, pads = len(data), known_lengths(input_of(node, 1))
        if pads is None or len(pads) != 2 * rank or any(node.inputs[3:]):
            return []
        added = [None if a is None or b is None else a + b for a, b in zip(pads[:rank], pads[rank:], strict=True)]
        pairs = zip(data, added, strict=True)
        return [dim if n == 0 else dim + n if isinstance(dim, int) and n is not None else None for dim, n in pairs]
    given = elements_of_shape(input_of(node, 1))
    if given is None or len(given) > len(shape) or (node.op_type != "Expand" and len(given) != len(shape)):
        return []
    if node.op_type == "Reshape":
        return [None if isinstance(each, int) and each < 1 else each for each in given]
    before: list[_Dim] = [*([1] * (len(shape) - len(data))), *data]
    lengths: list[Length] = [*([1] * (len(shape) - len(given))), *given]
    found: list[_Dim | None] = []
    for dim, length in zip(before, lengths, strict=True) if len(before) == len(shape) else ():
        if length == 1:
            found.append(dim)
        else:
            is_repeated = isinstance(dim, int) and (node.op_type == "Tile" or dim == 1)
            found.append(product_of([dim, length]) if is_repeated else None)
    return found


def _sliced(node: ir.Node, data: Dims) -> list[_Dim | None]:
    """Returns the dimensions after a Slice along known axes; None for those with an unknown start, end or step."""
    given = [*node.inputs[1:], *[None] * 4][:4]
    starts, ends, axes, steps = (known_lengths(each) for each in given)
    if axes is None:
        return []
    unknown: list[int | None] = [None] * len(axes)
    steps = [1] * len(axes) if given[3] is None else steps or unknown
    found: list[_Dim | None] = [*data]
    for start, end, axis, step in zip(starts or unknown, ends or unknown, axes, steps, strict=False):
        if axis is None or not -len(data) <= axis < len(data):
            return []
        dim = data[axis]
        is_known = isinstance(dim, int) and start is not None and end is not None and step == 1
        found[axis] = len(range(dim)[start:end]) if is_known and isinstance(dim, int) else None
    return found


def _missing(
    before: ir.Shape, after: ir.Shape, names: Container[_Dim], same: Mapping[_Dim, _Dim]
) -> tuple[int, _Dim | None]:
    """Returns the place of the one dimension after a Reshape that is not known, and its length; None if not known."""
    dims, results = ([same.get(dim, dim) for dim in shape] for shape in (before, after))
    places = [i for i, dim in enumerate(results) if not _is_named(dim, names)]
    if len(places) != 1:
        return 0, None
    whole, rest = factors_of(dims), factors_of(results[: places[0]] + results[places[0] + 1 :])
    if whole is None or rest is None or not rest[0] or whole[0] % rest[0]:
        return 0, None
    for dim in rest[1]:
        if dim not in whole[1]:
            return 0, None
        whole[1].remove(dim)
    if not whole[1]:
        return places[0], whole[0] // rest[0]
    missing = whole[1][0]
    return places[0], missing if len(whole[1]) == 1 and whole[0] == rest[0] and missing in names else None


def _is_named(dim: _Dim, names: Container[_Dim]) -> bool:
    """Returns whether a dimension has a length, one of these names, or one that is a product of them."""
    factors = factors_of([dim])
    return factors is not None and all(name in names for name in factors[1])


def _note(same: dict[_Dim, _Dim], dim: _Dim, length: _Dim) -> None:
    if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
        same[dim] = length


def _note_broadcast(node: ir.Node, names: Container[_Dim], same: dict[_Dim, _Dim]) -> None:
    """Notes what dimensions with names that inference has made up are, if the operands agree on them."""
    operands, output = [each for each in node.inputs if each is not None], node.outputs[0].shape
    shapes = [each.shape for each in operands if each.shape is not None]
    if output is None or len(shapes) < len(operands):
        return
    for i in range(-len(output), 0):
        lengths = {same.get(shape[i], shape[i]) for shape in shapes if len(shape) >= -i} - {1}
        if len(lengths) == 1 and not _is_named(output[i], names):
            (length,) = lengths
            _note(same, output[i], length)


def _infer_own_operators(model: ir.Model, found: set[ir.Value]) -> bool:
    """Sets the shapes of the outputs of ort_dynq's operators, in a model that was rewritten before.

    Returns:
        Whether any shape is new; `found` collects the values.
    """
    before = len(found)
    for _, graph in graphs(model):
        for node in graph:
            operator = OPERATORS.get(node.op_type) if node.domain == DOMAIN else None
            if operator is None:
                continue
            shapes = [None if each is None or each.shape is None else list(each.shape) for each in node.inputs]
            call = Call(shapes, attributes_of(node))
            for output, declared in zip(node.outputs, operator.outputs, strict=False):
                if output.shape is None and (dims := declared.shape(call)) is not None:
                    output.shape = ir.Shape([ir.SymbolicDim(None) if dim is None else dim for dim in dims])
                    found.add(output)
    return len(found) > before


def _describe_initializers(graph: ir.Graph | ir.Function) -> None:
    """Gives initializers the types and shapes of their tensors; other declared types and shapes are ignored."""
    for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input():
            value.dtype, value.shape = tensor.dtype, ir.Shape(tensor.shape.numpy())


def _contradicts(value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> bool:
    """Returns whether the inferred type or shape of `value` differs from a declared one."""
    is_typed = value.dtype not in (None, ir.DataType.UNDEFINED)  # a Cast may be to no type
    if is_typed and type_ is not None and value.type != type_:
        return True
    if value.shape is None or shape is None:
        return False
    if len(value.shape) != len(shape):
        return True
    pairs = zip(value.shape, shape, strict=True)
    return any(isinstance(mine, int) and isinstance(its, int) and mine != its for mine, its in pairs)


def _has_long_vector(model: ir.Model) -> bool:
    """Returns whether a vector is too long for data_prop, which keeps its elements as symbolic dimensions."""
    return any(
        value.shape is not None
        and len(value.shape) == 1
        and value.shape.is_static()
        and value.shape.numpy()[0] > 1 << 16
        for _, graph in graphs(model)
        for value in (*graph.inputs, *(graph.initializers.values() if isinstance(graph, ir.Graph) else ()))
    )
