"""Finds the integer products of a model B that replace float products of A, and runs both models on A's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ...errors import DynqError
from ...graphs import MICROSOFT, graphs, subgraphs, values_of
from ...inputs import Array
from ...rewriter.analysis.nodes import only_use
from ...rewriter.analysis.standard import PHASE_MOVES, REARRANGING
from ...rewriter.fusion.splitting import is_inexact
from ...rewriter.metadata import ACTIVATION, HAS_OFFSET, PRODUCT, RULE
from ..measuring.sessions import SessionError, open_session, run
from .attention import has_size

if TYPE_CHECKING:
    from ...backends.options import Backend

PREFIX = "ort_dynq.product."
"""The prefix of new names, for values that give their old names to other values."""


class IntegerProduct(NamedTuple):
    """An integer product of B. Its activation and its result are values of A.

    Attributes:
        node: The node of B.
        result: The value of B that it computes; A has it as well.
        offset: The value that its activation has in addition to the scaled codes; None if there is none. B adds its
            product with the weights: Add(product, Mul(offset, sums of the weights)).
    """

    node: ir.Node
    result: ir.Value
    offset: ir.Value | None


class Layers:
    """The integer products of B's main graph.

    Attributes:
        values: The values of A's main graph, by name.
        products: The products.
        enclosing: The nodes of B's main graph that contain products or fusions in subgraphs.
        unreachable: The number of these products and fusions. Their values cannot be graph outputs.
    """

    def __init__(self, a: ir.Model, b: ir.Model) -> None:
        self.values = _values(a.graph)
        self._before_programs = {node.metadata_props.get(PRODUCT) for node in a.graph}
        self.products = [
            IntegerProduct(node, self.result(node), _offset(node))
            for node in b.graph
            if _is_product(node) and not self._is_product_of_a(node)
        ]
        self.enclosing, self.unreachable = _enclosing(b)

    @property
    def results(self) -> list[ir.Value]:
        """The results of the products."""
        return [each.result for each in self.products]

    @property
    def foreign(self) -> list[ir.Value]:
        """The outputs of the enclosing nodes that A also has."""
        return [output for node in self.enclosing for output in node.outputs if output.name in self.values]

    def take(self, operator: str) -> list[ir.Node]:
        """Removes the products of one operator, and returns them."""
        found = [each.node for each in self.products if each.node.op_type == operator]
        self.products = [each for each in self.products if each.node.op_type != operator]
        return found

    def activation(self, node: ir.Node) -> ir.Value | None:
        """Returns the value of A that a product multiplies; None if A does not have it."""
        return self.values.get(node.metadata_props[ACTIVATION])

    def result(self, node: ir.Node) -> ir.Value:
        """Returns the result of a product, as A has it: Reshapes and the like, and a Cast, may precede it."""
        # Add: of an offset of each row. Transpose: of an Einsum. Interleave, Slice: of a transposed convolution.
        value, skipped = node.outputs[0], REARRANGING | PHASE_MOVES | {"Add", "Cast"}
        while value.name not in self.values and (following := _following(value)) is not None:
            if following.op_type not in skipped:
                break
            value = following.outputs[0]
        return value

    def _is_product_of_a(self, node: ir.Node) -> bool:
        """Returns whether a product of A computes the same value: A was rewritten before."""
        if node.outputs[0].name in self._before_programs:
            return True
        value = self.values.get(name_of(self.result(node)))
        producer = None if value is None else value.producer()
        return producer is not None and _is_product(producer)


class Recorder:
    """Runs A and returns some of its values. Computed ones are outputs of the model while its session is opened.

    Args:
        model: A.
        wanted: The values.
        entries: Entries of the session's configuration.

    Raises:
        DynqError: A does not load.
    """

    def __init__(self, model: ir.Model, wanted: Sequence[ir.Value], entries: Mapping[str, str] | None = None) -> None:
        constants = [(name_of(value), value.const_value) for value in wanted if value.producer() is None]
        self._constants = {name: tensor for name, tensor in constants if tensor is not None}
        computed = {name_of(value): value for value in wanted if value.producer() is not None}
        self._names = list(computed)
        count = len(model.graph.outputs)
        model.graph.outputs.extend(value for value in computed.values() if not value.is_graph_output())
        self._session = open_session(model, "A", entries=entries)
        del model.graph.outputs[count:]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the values by name, and the inputs.

        Raises:
            DynqError: A does not run, or a value is not a tensor of a supported type.
        """
        try:
            results = run(self._session, self._names, feeds) if self._names else []  # no names are all outputs
        except SessionError as error:
            raise DynqError(f"A does not run with {len(self._names)} of its values as outputs: {error}") from error
        known = {name: tensor.numpy() for name, tensor in self._constants.items()}
        return known | dict(feeds) | dict(zip(self._names, results, strict=True))


class Disturbed:
    """Runs A with errors added to its values, wherever A uses them.

    Args:
        model: A; it is changed.
        types: Computed values of the main graph, and their floating-point types.
        entries: Entries of the session's configuration.

    Raises:
        DynqError: A does not load with the errors.
    """

    def __init__(
        self,
        model: ir.Model,
        types: Mapping[ir.Value, np.dtype[Any]],
        entries: Mapping[str, str] | None = None,
    ) -> None:
        self._outputs = list(map(name_of, model.graph.outputs))
        self._errors = {}
        for i, (value, dtype) in enumerate(types.items()):
            name, producer = name_of(value), value.producer()
            assert producer is not None
            kind = ir.TensorType(ir.DataType.from_numpy(dtype))
            error = ir.Value(name=f"{PREFIX}{i}.error", type=kind)
            add = ir.node("Add", [value, error])
            ir.convenience.replace_all_uses_with([value], [add.outputs[0]], replace_graph_outputs=True)
            add.replace_input_with(0, value)
            add.outputs[0].name, value.name, add.outputs[0].type = name, f"{PREFIX}{i}", kind
            model.graph.insert_after(producer, [add])
            model.graph.inputs.append(error)
            self._errors[name] = name_of(error), dtype
        self._session = open_session(model, "A with errors added to its values", entries=entries)

    def run(self, feeds: Mapping[str, Array], errors: Mapping[str, Array]) -> list[Array]:
        """Returns A's outputs.

        Args:
            feeds: Values of all inputs of A.
            errors: Errors by the name of the value. The error of other values is 0, which changes no bits.

        Raises:
            DynqError: A does not run with the errors, or an output is not a tensor of a supported type.
        """
        given = {error: errors.get(name, np.zeros((), dtype)) for name, (error, dtype) in self._errors.items()}
        try:
            return run(self._session, self._outputs, {**feeds, **given}, any_type=True)
        except SessionError as error:
            raise DynqError(f"A does not run with errors added to {len(given)} of its values: {error}") from error


class Override:
    """Runs B. Nodes that use a product's result or a foreign value use A's value, which becomes an input.

    Args:
        model: B; it is changed.
        results: The products' results.
        foreign: Other values of B to replace by A's.
        known: A's values on one set of inputs, by name. Their types and ranks hold for all sets.
        backend: How B gets the operators.
        observed: Further computed values of B to return.
        entries: Entries of the session's configuration.

    Raises:
        SessionError: B does not load.
    """

    def __init__(
        self,
        model: ir.Model,
        results: Sequence[ir.Value],
        foreign: Sequence[ir.Value],
        known: Mapping[str, Array],
        backend: Backend,
        observed: Sequence[ir.Value] = (),
        entries: Mapping[str, str] | None = None,
    ) -> None:
        replaced = [value for value in (*results, *foreign) if value.name in known]
        outputs = [output for output in model.graph.outputs if output not in {*results, *foreign, *observed}]
        model.graph.outputs[:] = []
        self._given = []
        for i, old in enumerate(replaced):
            array = known[name_of(old)]
            new = ir.Value(
                name=old.name,
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                shape=ir.Shape([None] * array.ndim),
            )
            old.name = f"{PREFIX}{i}"
            if old.uses():
                ir.convenience.replace_all_uses_with([old], [new])
                model.graph.inputs.append(new)
                self._given.append(name_of(new))
        model.graph.outputs.extend([*results, *observed, *outputs])
        self._names = [name_of(output) for output in model.graph.outputs]
        # Without outputs there is nothing to run: every output of the model comes from a node that contains products.
        self._session = open_session(model, "B", backend=backend, entries=entries) if self._names else None

    def run(self, feeds: Mapping[str, Array], known: Mapping[str, Array]) -> list[Array]:
        """Returns the products' results, then the observed values, then the other outputs of B, without foreign values.

        Args:
            feeds: Values of all inputs of the model.
            known: A's values for these inputs.

        Raises:
            SessionError: B does not run.
        """
        given = {name: known[name] for name in self._given}
        return run(self._session, self._names, {**feeds, **given}, any_type=True) if self._session else []


def is_fusion(node: ir.Node, a: Mapping[str, ir.Value]) -> bool:
    """Returns whether a node of B computes floats with other last bits than A's nodes.

    Args:
        node: The node.
        a: A's values by name.
    """
    if is_inexact(node):
        return True
    producers = [a[name_of(output)].producer() for output in node.outputs if name_of(output) in a]
    if node.domain != MICROSOFT and not has_size(node):
        return False
    # MultiHeadAttention computes the bits of a QAttention after the products of its query, key and value.
    return any(each is not None and each.op_type not in (node.op_type, "QAttention") for each in producers) or (
        not producers and RULE in node.metadata_props
    )


def _offset(node: ir.Node) -> ir.Value | None:
    use = only_use(node.outputs[0]) if HAS_OFFSET in node.metadata_props else None
    other = use.node.inputs[1 - use.idx] if use is not None and use.node.op_type == "Add" else None
    product = None if other is None else other.producer()
    return product.inputs[0] if product is not None and product.op_type == "Mul" else None


def _following(value: ir.Value) -> ir.Node | None:
    """Returns the only node that uses a value, besides its Shape."""
    uses = [use for use in value.uses() if use.node.op_type != "Shape"]
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def name_of(value: ir.Value) -> str:
    """Returns the name of a value; an empty text if it has none."""
    return value.name or ""


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    return {name_of(value): value for value in values_of(graph) if value.name}


def _is_product(node: ir.Node) -> bool:
    return ACTIVATION in node.metadata_props and not has_size(node)


def _enclosing(model: ir.Model) -> tuple[list[ir.Node], int]:
    """Returns the nodes of the main graph that contain products or fusions, and their number outside the main graph."""

    def is_compared(node: ir.Node) -> bool:
        return _is_product(node) or is_fusion(node, {})

    def contains(node: ir.Node) -> bool:
        return any(is_compared(each) or contains(each) for _, graph in subgraphs(node) for each in graph)

    count = sum(is_compared(node) for _, graph in graphs(model) if graph is not model.graph for node in graph)
    return [node for node in model.graph if contains(node)], count
