"""Small changes of quantization chains: a bound off by one, another tensor's range, another axis.

A changed chain computes something else, so it must not become the operator of the unchanged one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from helpers import Array
from onnx import helper, numpy_helper

_Body = Any  # a GraphProto or a FunctionProto
_Place = tuple[_Body, onnx.NodeProto]
_OTHERS = ("Neg", "Exp", "Abs", "Reciprocal")
"""What a range may be of instead. None makes NaN: ONNX Runtime's range of a NaN depends on where it is in memory."""


def near_miss(model: onnx.ModelProto, rng: random.Random) -> str:
    """Moves a bound, takes the range of another tensor, or takes it along another axis; returns what was done."""
    return next(filter(None, (change(model, rng) for change in rng.sample(_CHANGES, len(_CHANGES)))), "")


def _bound(model: onnx.ModelProto, rng: random.Random) -> str:
    """Moves a number that one node reads, such as a bound of a Clip, by one or by the least step."""
    found = [
        (body, node, i, number)
        for body, node in _places(model)
        for i, name in enumerate(node.input)
        if (number := _number(model, body, name)) is not None
    ]
    if not found:
        return ""
    body, node, i, number = rng.choice(found)
    steps = [number + 1, number - 1]
    if number.dtype.kind == "f":
        steps += [np.nextafter(number, limit) for limit in (-np.inf, np.inf)]
    moved = np.asarray(rng.choice(steps), number.dtype)
    _read_constant(body, node, i, moved)
    return f"{node.op_type} {node.output[0]}: {moved} in place of {number}"


def _range_of_another(model: onnx.ModelProto, rng: random.Random) -> str:
    """Makes a reduction read another tensor of the same shape."""
    found = [(body, node) for body, node in _places(model) if node.op_type in ("ReduceMax", "ReduceMin")]
    if not found:
        return ""
    body, node = rng.choice(found)
    other = helper.make_node(rng.choice(_OTHERS), [node.input[0]], [f"{node.output[0]}_other"])
    node.input[0] = other.output[0]
    _insert(body, node, other)
    return f"{node.op_type} {node.output[0]}: of {other.op_type}"


def _other_axis(model: onnx.ModelProto, rng: random.Random) -> str:
    """Makes a reduction, a quantization or a dequantization use another axis."""
    found = [place for place in _places(model) if _axes(model, *place) is not None]
    if not found:
        return ""
    body, node = rng.choice(found)
    axes = _axes(model, body, node)
    moved = [each + rng.choice((-1, 1)) for each in axes or ()]
    for attribute in node.attribute:
        if attribute.name == "axes":
            attribute.ints[:] = moved
        elif attribute.name == "axis":
            attribute.i = moved[0]
    if len(node.input) > 1 and node.op_type.startswith("Reduce"):
        _read_constant(body, node, 1, np.array(moved, np.int64))
    return f"{node.op_type} {node.output[0]}: axes {moved} in place of {axes}"


_CHANGES: list[Callable[[onnx.ModelProto, random.Random], str]] = [_bound, _range_of_another, _other_axis]


def _axes(model: onnx.ModelProto, body: _Body, node: onnx.NodeProto) -> list[int] | None:
    if not node.op_type.startswith(("ReduceM", "QuantizeLinear", "DequantizeLinear")):
        return None
    for attribute in node.attribute:
        if attribute.name in ("axes", "axis"):
            return list(attribute.ints) or [attribute.i]
    found = _constant(model, body, node.input[1]) if node.op_type.startswith("R") and len(node.input) > 1 else None
    return None if found is None else [int(each) for each in found.reshape(-1)]


def _number(model: onnx.ModelProto, body: _Body, name: str) -> Array | None:
    """Returns a constant of one element, float or 8-bit."""
    found = _constant(model, body, name)
    return found if found is not None and found.size == 1 and found.dtype in (np.float32, np.uint8, np.int8) else None


def _constant(model: onnx.ModelProto, body: _Body, name: str) -> Array | None:
    for tensor in (*model.graph.initializer, *getattr(body, "initializer", ())):
        if tensor.name == name:
            return numpy_helper.to_array(tensor)
    for node in body.node:
        if node.op_type == "Constant" and name in node.output and not node.attribute[0].ref_attr_name:
            given = helper.get_attribute_value(node.attribute[0])
            if isinstance(given, onnx.TensorProto):
                return numpy_helper.to_array(given)
            if isinstance(given, (int, float, list)):
                kind = np.float32 if node.attribute[0].name.startswith("value_float") else np.int64
                return np.array(given, kind)
    return None


def _read_constant(body: _Body, node: onnx.NodeProto, index: int, elements: Array) -> None:
    name = f"{node.output[0]}_constant_{index}"
    node.input[index] = name
    _insert(body, node, helper.make_node("Constant", [], [name], value=numpy_helper.from_array(elements)))


def _insert(body: _Body, node: onnx.NodeProto, new: onnx.NodeProto) -> None:
    body.node.insert(next(i for i, each in enumerate(body.node) if each is node or each == node), new)


def _places(model: onnx.ModelProto) -> Iterator[_Place]:
    """Yields each node with the graph or function that it is in."""
    todo: list[_Body] = [model.graph, *model.functions]
    while todo:
        body = todo.pop()
        for node in body.node:
            yield body, node
            todo += [each.g for each in node.attribute if each.HasField("g")]
