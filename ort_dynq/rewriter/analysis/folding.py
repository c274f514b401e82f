"""Which values constant folding computes before run time."""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import RUNTIME_DOMAINS, functions, with_subgraphs
from .nodes import integer

# Operators whose result does not depend on their inputs alone.
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


class FoldedValues:
    """The constants of a model.

    An initializer is a constant, unless it is also a graph input, which can be overridden at run time. A parameter of a
    model-local function is a constant if the call passes a constant: ONNX Runtime inlines every call before it folds.

    Attributes:
        in_every_call: The values that are constant in every call of their function.
        in_a_call: The values that are constant in at least one call.
    """

    def __init__(self, model: ir.Model) -> None:
        """Finds the constants; the model has its inferred shapes."""
        self.in_every_call: set[ir.Value] = set()
        self.in_a_call: set[ir.Value] = set()
        self._functions = {function.identifier(): function for function in functions(model)}
        # By body and by the indices of the parameters that are constant.
        self._found: dict[ir.Graph | ir.Function, dict[frozenset[int], set[ir.Value]]] = {}
        self._in(model.graph, frozenset())
        for function in self._functions.values():
            if function not in self._found:  # nothing calls it
                self._in(function, frozenset())
        for found in self._found.values():
            self.in_every_call |= set.intersection(*found.values())
            self.in_a_call |= set.union(*found.values())

    def _in(self, body: ir.Graph | ir.Function, parameters: frozenset[int]) -> set[ir.Value]:
        """Returns the constants of a body and its subgraphs; `parameters` are the indices of constant parameters."""
        found = self._found.setdefault(body, {})
        if parameters in found:
            return found[parameters]
        constants = found[parameters] = {body.inputs[i] for i in parameters}
        for _, graph in with_subgraphs(body):
            if isinstance(graph, ir.Graph):
                constants.update(value for value in graph.initializers.values() if not value.is_graph_input())
            for node in graph:
                constants.update(self._outputs(node, constants))
        return constants

    def _outputs(self, node: ir.Node, constants: set[ir.Value]) -> list[ir.Value]:
        """Returns the outputs of a node that are constant."""
        if (function := self._functions.get(node.op_identifier())) is not None:
            passed = [*node.inputs, *[None] * len(function.inputs)][: len(function.inputs)]
            parameters = frozenset(i for i, value in enumerate(passed) if value is None or value in constants)
            inner = self._in(function, parameters)
            pairs = zip(node.outputs, function.outputs, strict=False)
            return [output for output, result in pairs if result in inner]
        is_folded = _is_static_shape(node) or all(value is None or value in constants for value in node.inputs)
        return list(node.outputs) if is_folded and _is_foldable(node) else []


def _is_foldable(node: ir.Node) -> bool:
    if node.domain not in RUNTIME_DOMAINS or node.op_type in _RANDOM:
        return False
    return all(a.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def _is_static_shape(node: ir.Node) -> bool:
    """Returns whether a node is a Shape whose result is known before run time."""
    if node.op_type != "Shape" or not node.inputs or node.inputs[0] is None or node.inputs[0].shape is None:
        return False
    dims = list(node.inputs[0].shape)
    start, end = integer(node, "start", 0), integer(node, "end", len(dims))
    return start is not None and end is not None and all(isinstance(dim, int) for dim in dims[start:end])
