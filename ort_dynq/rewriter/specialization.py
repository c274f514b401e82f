"""Makes a function smaller, for the attributes that the calls of a model have.

The body of an operator's function computes from its attributes which branches run. Here, what is the same for all calls
becomes a constant, and an If with a known branch becomes that branch. Only integers and booleans are computed, so no
float changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper

Elements = npt.NDArray[Any]

_COMPUTE: dict[str, Callable[..., Any]] = {
    "And": np.logical_and,
    "Concat": lambda *parts: np.concatenate(parts),  # of vectors: the only axis is 0
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
    "Max": np.maximum,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Squeeze": np.squeeze,
    "Unsqueeze": lambda data, axes: np.expand_dims(data, tuple(axes)),
    "Where": np.where,
}
"""What operators compute of integers and booleans."""


def specialized(function: onnx.FunctionProto, calls: Sequence[Mapping[str, int]]) -> onnx.FunctionProto:
    """Returns a function without what no call of a model runs.

    Args:
        function: The function, as the parser reads it. No two of its values have the same name, also in subgraphs.
        calls: For each call, the attributes that the function computes with, all or some.
    """
    body = _Body(calls)
    nodes = body.simplified(function.node, function.output)
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    result.node.extend(_used(nodes, function.output, function.input))
    return result


class _Body:
    """What is known of the values of a function."""

    def __init__(self, calls: Sequence[Mapping[str, int]]) -> None:
        """Knows the attributes of the calls."""
        self._calls = calls
        self._known: dict[str, list[Elements]] = {}  # the elements of values, for each call
        self._names: dict[str, str] = {}  # values that are other values

    def simplified(self, nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
        """Returns simpler nodes, which compute `outputs` under their names."""
        kept, found = set(outputs), list[onnx.NodeProto]()
        for given in nodes:
            node = self._renamed(given)
            if node.op_type == "If" and (condition := self._only(node.input[0])) is not None:
                found += self._replaced(node, _graph(node, "then_branch" if condition else "else_branch"), kept)
            elif node.op_type == "Loop" and self._only(node.input[0]) == 1 and self._only(node.input[1]):
                found += self._run_once(node, kept)
            elif (elements := self._elements(node)) is not None:
                self._known[node.output[0]] = elements
                is_same = all(np.array_equal(elements[0], other) for other in elements)
                found.append(_constant(node.output[0], elements[0]) if is_same else node)
            elif node.op_type == "Identity" and node.output[0] not in kept:
                self._names[node.output[0]] = node.input[0]
            else:
                for attribute in node.attribute:
                    if attribute.type == onnx.AttributeProto.GRAPH:
                        results = [value.name for value in attribute.g.output]
                        inner = _used(self.simplified(attribute.g.node, results), results)
                        del attribute.g.node[:]
                        attribute.g.node.extend(inner)
                found.append(node)
        return found

    def _renamed(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Returns a copy of a node that reads the values that its inputs are."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [self._names.get(name, name) for name in node.input]
        if not copy.domain:
            copy.ClearField("domain")  # the parser sets it to the empty default
        return copy

    def _replaced(
        self, node: onnx.NodeProto, graph: onnx.GraphProto, kept: set[str], first_output: int = 0
    ) -> list[onnx.NodeProto]:
        """Returns the nodes of a node's subgraph; its outputs from `first_output` on are those of the node."""
        found = self.simplified(graph.node, ())
        for output, value in zip(node.output, graph.output[first_output:], strict=True):
            name = self._names.get(value.name, value.name)
            if output in kept:
                found.append(onnx.helper.make_node("Identity", [name], [output]))
            else:
                self._names[output] = name
        return found

    def _run_once(self, loop: onnx.NodeProto, kept: set[str]) -> list[onnx.NodeProto]:
        """Returns the nodes of a Loop that runs once."""
        body = _graph(loop, "body")
        index, goes_on, *carried = [value.name for value in body.input]
        self._names |= dict(zip(carried, loop.input[2:], strict=True))
        first = [_constant(index, np.array(0)), _constant(goes_on, np.array(True))]
        return [*self.simplified(first, ()), *self._replaced(loop, body, kept, first_output=1)]

    def _only(self, value: str) -> Any:
        """Returns the one element of a value, if it is known and the same for all calls; otherwise None."""
        elements = self._known.get(value)
        if elements is None or any(each.size != 1 or each != elements[0] for each in elements):
            return None
        return elements[0].item()

    def _elements(self, node: onnx.NodeProto) -> list[Elements] | None:
        """Returns the elements of a node's output for each call; None if they are not known, or floats."""
        if node.op_type == "Constant":
            attribute = node.attribute[0]
            if attribute.ref_attr_name:
                given = [call.get(attribute.ref_attr_name) for call in self._calls]
                return None if None in given else [np.asarray(each, np.int64) for each in given]
            if attribute.name not in ("value", "value_int", "value_ints"):
                return None
            value = onnx.helper.get_attribute_value(attribute)
            is_tensor = attribute.type == onnx.AttributeProto.TENSOR
            elements = onnx.numpy_helper.to_array(value) if is_tensor else np.asarray(value, np.int64)
            return [elements] * len(self._calls) if elements.dtype.kind in "biu" else None
        if node.op_type == "Cast" and not node.attribute[0].ref_attr_name:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
            known_source = self._known.get(node.input[0]) if dtype.kind in "biu" else None
            return None if known_source is None else [each.astype(dtype) for each in known_source]
        if node.op_type not in _COMPUTE:
            return None
        known = [self._known[name] for name in node.input if name in self._known]
        if node.op_type == "And":  # false if one is, whatever the other is
            known = next(([each, each] for each in known if not any(map(np.any, each))), known)
        if len(known) < len(node.input):
            return None
        return [np.asarray(_COMPUTE[node.op_type](*each)) for each in zip(*known, strict=True)]


def _graph(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    """The subgraph of a node that has this name."""
    found: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == name)
    return found


def _constant(name: str, elements: Elements) -> onnx.NodeProto:
    """A Constant with integers or booleans."""
    return onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(elements))


def _used(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], inputs: Iterable[str] = ()) -> list[onnx.NodeProto]:
    """The nodes that `outputs` depend on, and for each of a function's inputs at least one that reads it.

    Without any, ONNX Runtime does not know the input's types, and refuses some.
    """
    used = set(outputs)

    def needed() -> list[onnx.NodeProto]:
        found = []
        for node in reversed(nodes):
            if not used.isdisjoint(node.output):
                found.append(node)
                used.update(_read(node))
        return found[::-1]

    found = needed()
    unread = set(inputs) - used
    if unread:
        used.update(node.output[0] for node in nodes if not unread.isdisjoint(node.input))
        found = needed()
    return found


def _read(node: onnx.NodeProto) -> Iterable[str]:
    """The names that a node and its subgraphs read."""
    yield from node.input
    for attribute in node.attribute:
        for value in attribute.g.output:
            yield value.name
        for inner in attribute.g.node:
            yield from _read(inner)
