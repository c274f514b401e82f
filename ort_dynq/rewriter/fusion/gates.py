"""The rule for gates of channels, as squeeze and excitation has them.

x ── GlobalAveragePool ── Conv 1x1 ── Relu ── Conv 1x1 ── Sigmoid ── Mul by x ── y      x ── ChannelGate ── y
x ── GlobalAveragePool ── Flatten ── Gemm ── Relu ── Gemm ── Sigmoid ── Reshape ── Mul by x ── y

The products have one position, so that calls and reorders around them take longer than they do. Other functions may
stand in the place of Relu and Sigmoid, and other elementwise nodes behind the Mul, such as an Add of x. Between the
mean and the Mul, the numbers of the channels are [N, C], or [N, C, 1, ..., 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...errors import DynqError
from ...opsets import OPSET
from ..analysis.constants import constant_scalar
from ..analysis.evaluation import evaluate_if_constant
from ..analysis.nodes import input_of, is_standard, only_use
from ..analysis.shapes import axes_of, does_not_grow, unexpanded
from ..analysis.standard import CHANNEL_MEANS, MATMULS, RESHAPES
from ..edit import Edit, call
from ..policy.cost import is_large_gate
from ..programs.fused_steps import FusedTranslation, is_activation, is_power
from ..programs.steps import ELEMENTWISE, elements_of, type_of
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from ..weights.channels import Channels
from ..weights.matrix_product import matrix_product_of

_MIN_RANK = 3
_MAX_NODES = 24


@dataclass(frozen=True)
class _Product:
    """A product of single positions, or a bias that is added to it: its weights, [M, K], and the bias, [M]."""

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
    if (x := _mean_of(node)) is None or x.shape is None:
        return None
    first = _product(node.outputs[0], x.shape[1], context)
    if first is None or is_large_gate(*first.weights.shape):
        return None
    channels = first.weights.shape[1]
    for hidden in _Nodes(first.result, len(first.weights), None).longest_first():
        value = hidden[-1].outputs[0] if hidden else first.result
        if (second := _product(value, len(first.weights), context)) is None or len(second.weights) != channels:
            continue
        for gate in _Nodes(second.result, channels, x).longest_first():
            program = _program(x, first, hidden, second, gate, context) if gate else None
            if program is not None:
                return _Gate(x, first, second, program, gate[-1].outputs[0])
    return None


def _mean_of(node: ir.Node) -> ir.Value | None:
    """Returns the tensor if a node computes the means of its channels; None if it is another node."""
    x = node.inputs[0] if is_standard(node, *CHANNEL_MEANS) else None
    if x is None or x.shape is None or len(x.shape) < _MIN_RANK or x.dtype != ir.DataType.FLOAT:
        return None
    if node.op_type == "ReduceMean":
        axes, rank = axes_of(node), len(x.shape)
        if axes is None or sorted(axis % rank for axis in axes) != [*range(2, rank)]:
            return None
    return x


def _product(value: ir.Value, size: int | ir.SymbolicDim, context: Context) -> _Product | None:
    """Returns the product of single positions that alone reads a value with so many numbers for each sample."""
    use = only_use(value)
    while use is not None and use.idx == 0 and is_standard(use.node, *RESHAPES) and _is_vector(use.node, size):
        use = only_use(use.node.outputs[0])
    if use is None or use.idx != 0:
        return None
    found = _convolution(use.node, context) or _matrix_product(use.node, context)
    if found is None:
        return None
    weights, bias, channels = found
    result = use.node.outputs[0]
    numbers: npt.NDArray[np.float32] | None = np.zeros(len(weights), np.float32)
    if bias is not None:
        numbers = channels.vector(bias, np.float32, context.facts)
    elif (use := only_use(result)) is not None and is_standard(use.node, "Add"):
        added = channels.vector(use.node.inputs[1 - use.idx], np.float32, context.facts)
        result, numbers = (result, numbers) if added is None else (use.node.outputs[0], added)
    return None if numbers is None else _Product(result, weights, numbers)


_Parameters = tuple[npt.NDArray[np.float32], ir.Value | None, Channels]


def _convolution(node: ir.Node, context: Context) -> _Parameters | None:
    """Returns the weights, [M, K], the bias and the channels of a Conv of single positions; None for other nodes."""
    if not is_standard(node, "Conv"):
        return None
    given = node.attributes
    weights = _weights(node.inputs[1], context)
    if given.get_int("group", 1) != 1 or any(given.get_ints("pads", [])) or weights is None:
        return None
    if weights.ndim < _MIN_RANK or any(length != 1 for length in weights.shape[2:]):
        return None
    bias = input_of(node, 2)
    matrix = weights.reshape(weights.shape[:2])
    return matrix, bias, Channels(len(matrix), 0 if bias is not None else weights.ndim - 2)


def _matrix_product(node: ir.Node, context: Context) -> _Parameters | None:
    """Returns the weights, [M, K], what is added and the channels of a Gemm or MatMul of [N, K]; None for others."""
    if not is_standard(node, *MATMULS) or (product := matrix_product_of(node)) is None:
        return None
    weights = _weights(product.b, context)
    if product.has_transposed_a or (product.alpha, product.beta) != (1.0, 1.0) or weights is None or weights.ndim != 2:
        return None
    weights = weights if product.has_transposed_b else np.ascontiguousarray(weights.T)
    is_matrix = product.a.shape is not None and list(product.a.shape)[1:] == [weights.shape[1]]
    return (weights, product.c, Channels(len(weights), rank=2)) if is_matrix else None


def _weights(value: ir.Value | None, context: Context) -> npt.NDArray[np.float32] | None:
    weights = evaluate_if_constant(value, context.facts)
    return weights if weights is not None and weights.dtype == np.float32 and weights.size else None


def _is_vector(node: ir.Node, size: int | ir.SymbolicDim) -> bool:
    """Returns whether a result is known to be [N, size], or [N, size, 1, ..., 1]."""
    shape = node.outputs[0].shape
    lengths = [] if shape is None else list(shape)[1:]
    return isinstance(size, int) and lengths[:1] == [size] and all(length == 1 for length in lengths[1:])


class _Nodes:
    """Nodes that compute one result from a vector, numbers and perhaps x, a tensor with that vector as its channels.

    They are elementwise, or give the vector, of so many numbers for each sample, another rank.
    """

    def __init__(self, start: ir.Value, size: int, x: ir.Value | None) -> None:
        self._start, self._size, self._x = start, size, x
        self._ranks = {each: _rank(each) for each in (start, x) if each is not None}  # of the known values
        self._elements = set[ir.Value]() if x is None else {x}  # those of them that have the shape of x

    def longest_first(self) -> Iterator[list[ir.Node]]:
        """Yields sets of such nodes, in their order. Only the result is read elsewhere."""
        values, nodes, found = [self._start], list[ir.Node](), list[list[ir.Node]]()
        while True:
            inner = values[:-1]
            if not any(each.is_graph_output() or any(use.node not in nodes for use in each.uses()) for each in inner):
                found.append([*nodes])
            readers = dict.fromkeys(use.node for each in values for use in each.uses() if use.node not in nodes)
            following = next(filter(self._takes, readers), None)
            if following is None or len(nodes) == _MAX_NODES:
                break
            nodes.append(following)
            values.append(following.outputs[0])
            given = [each for each in elements_of(following) if each in self._ranks]
            is_reshaped = is_standard(following, *RESHAPES)
            self._ranks[values[-1]] = _rank(values[-1]) if is_reshaped else self._ranks[given[0]]
            if is_standard(following, "Expand") or not self._elements.isdisjoint(given):
                self._elements.add(values[-1])
        yield from reversed(found)

    def _takes(self, node: ir.Node) -> bool:
        """Returns whether a node is such a one, and reads known values and numbers only."""
        if type_of(node.outputs[0]) != ir.DataType.FLOAT or node.graph is not self._start.graph:
            return False
        given, x = elements_of(node), self._x
        if is_standard(node, *RESHAPES):
            return given[0] in self._ranks and given[0] not in self._elements and _is_vector(node, self._size)
        if is_standard(node, "Expand"):
            is_whole = x is not None and unexpanded(node.outputs[0], x) is given[0]
            return is_whole and x is not None and self._ranks.get(given[0]) == _rank(x)
        if not (is_standard(node, *ELEMENTWISE) or is_activation(node) or is_power(node)):
            return False
        tensors, numbers = ([each for each in given if (each in self._ranks) == known] for known in (True, False))
        if len({self._ranks[each] for each in tensors}) != 1:
            return False
        like = self._start if tensors[0].shape is None else tensors[0]
        return all(constant_scalar(each) is not None and does_not_grow(each, like) for each in numbers)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


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
