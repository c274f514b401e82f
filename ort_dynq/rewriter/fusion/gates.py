"""The rule for gates of channels, as squeeze and excitation has them.

x ── GlobalAveragePool ── Conv 1x1 ── Relu ── Conv 1x1 ── Sigmoid ── Mul by x ── y      x ── ChannelGate ── y

The convolutions have one position, so that calls and reorders around them take longer than their products. Other
functions may stand in the place of Relu and Sigmoid, and other elementwise nodes behind the Mul, such as an Add of x.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...errors import DynqError
from ...opsets import OPSET
from ..analysis.constants import constant_scalar
from ..analysis.evaluation import evaluate
from ..analysis.nodes import is_standard, only_use
from ..analysis.shapes import axes_of, does_not_grow
from ..edit import Edit, call
from ..policy.cost import is_large_gate
from ..programs.fused_steps import FusedTranslation, is_activation, is_power
from ..programs.steps import ELEMENTWISE, elements_of, type_of
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from ..weights.channels import Channels

_LEAST_RANK = 3
_MAX_NODES = 24


@dataclass(frozen=True)
class _Product:
    """A convolution of single positions, or a bias that is added to it: its weights, [M, K], and the bias, [M]."""

    result: ir.Value
    weights: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Gate:
    x: ir.Value
    first: _Product
    second: _Product
    program: str
    last: ir.Value


def _match(node: ir.Node, context: Context) -> _Gate | None:
    if not context.options.fuse or (x := _mean_of(node)) is None:
        return None
    if (first := _product(node.outputs[0], context)) is None or is_large_gate(*first.weights.shape):
        return None
    for hidden in _longest_first(first.result, None):
        value = hidden[-1].outputs[0] if hidden else first.result
        if (second := _product(value, context)) is None or len(second.weights) != first.weights.shape[1]:
            continue
        for gate in _longest_first(second.result, x):
            program = _program(x, first, hidden, second, gate, context) if gate else None
            if program is not None:
                return _Gate(x, first, second, program, gate[-1].outputs[0])
    return None


def _mean_of(node: ir.Node) -> ir.Value | None:
    """Returns the tensor whose channels' means a node computes; None if it is another node."""
    x = node.inputs[0] if is_standard(node, "GlobalAveragePool", "ReduceMean") else None
    if x is None or x.shape is None or len(x.shape) < _LEAST_RANK or x.dtype != ir.DataType.FLOAT:
        return None
    if node.op_type == "ReduceMean":
        axes, rank = axes_of(node), len(x.shape)
        if axes is None or node.attributes.get_int("keepdims", 1) != 1:
            return None
        if sorted(axis % rank for axis in axes) != [*range(2, rank)]:
            return None
    return x


def _product(value: ir.Value, context: Context) -> _Product | None:
    """Returns the convolution of single positions that alone reads a value with a number for each channel."""
    use = only_use(value)
    if use is None or use.idx != 0 or not is_standard(use.node, "Conv"):
        return None
    node, facts = use.node, context.facts
    given, w = node.attributes, node.inputs[1]
    if given.get_int("group", 1) != 1 or any(given.get_ints("pads", [])) or not facts.is_constant(w):
        return None
    weights = evaluate(w, facts)
    if weights is None or weights.dtype != np.float32 or weights.ndim < _LEAST_RANK or not weights.size:
        return None
    if any(length != 1 for length in weights.shape[2:]):
        return None
    result, size = node.outputs[0], len(weights)
    bias: npt.NDArray[np.float32] | None = np.zeros(size, np.float32)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = Channels(size).vector(node.inputs[2], np.float32, facts)
    elif (use := only_use(result)) is not None and is_standard(use.node, "Add"):
        added = Channels(size, weights.ndim - 2).vector(use.node.inputs[1 - use.idx], np.float32, facts)
        result, bias = (result, bias) if added is None else (use.node.outputs[0], added)
    return None if bias is None else _Product(result, weights.reshape(weights.shape[:2]), bias)


def _longest_first(start: ir.Value, x: ir.Value | None) -> Iterator[list[ir.Node]]:
    """Yields sets of elementwise nodes that compute one result from a value, numbers and perhaps x, in their order.

    Only the result is read elsewhere.
    """
    values, nodes, found = [start], list[ir.Node](), list[list[ir.Node]]()
    while True:
        inner = values[:-1]
        if not any(each.is_graph_output() or any(use.node not in nodes for use in each.uses()) for each in inner):
            found.append([*nodes])
        readers = dict.fromkeys(use.node for each in values for use in each.uses() if use.node not in nodes)
        known = {*values} if x is None else {*values, x}
        following = next((each for each in readers if _takes(each, known, start)), None)
        if following is None or len(nodes) == _MAX_NODES:
            break
        nodes.append(following)
        values.append(following.outputs[0])
    yield from reversed(found)


def _takes(node: ir.Node, known: Container[ir.Value], start: ir.Value) -> bool:
    """Returns whether a node is elementwise, and reads known values and numbers only."""
    if not (is_standard(node, *ELEMENTWISE) or is_activation(node) or is_power(node)):
        return False
    if type_of(node.outputs[0]) != ir.DataType.FLOAT or node.graph is not start.graph:
        return False
    others = [each for each in elements_of(node) if each not in known]
    return all(constant_scalar(each) is not None and does_not_grow(each, start) for each in others)


def _program(
    x: ir.Value, first: _Product, hidden: list[ir.Node], second: _Product, gate: list[ir.Node], context: Context
) -> str | None:
    """Returns the program of the nodes behind both products; None if one of them is no step, or x is not read."""
    numbers = first.result, second.result
    translation = FusedTranslation({numbers[0]: "x", numbers[1]: "row1", x: "x"}, context)
    if not all(map(translation.add, (*hidden, *gate))):
        return None
    results = {
        "dst": translation.term(gate[-1].outputs[0]),
        "dst_2": translation.term(hidden[-1].outputs[0]) if hidden else "x",
    }
    try:
        for output, term in results.items():
            translation.program.assign(output, term)
    except DynqError:  # it is a number
        return None
    return str(translation.program) if all(map(translation.signs.are_known, results.values())) else None


def _build(match: _Gate, edit: Edit) -> None:
    before = match.last.producer()
    assert before is not None

    def constant(elements: npt.NDArray[np.float32]) -> ir.Value:
        return edit.shared(SharedInitializers).of(elements, edit)

    weights = [constant(each) for product in (match.first, match.second) for each in (product.weights, product.bias)]
    main = call("ChannelGate", [match.x, *weights], program=match.program)
    edit.replace(match.last, edit.insert_main(main, before=before))


RULE = Rule("gate of channels", OPSET, _match, _build, fuses=True)
