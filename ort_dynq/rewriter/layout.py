"""Moves Transposes out of networks of convolutions that have the channels of images last.

Conv, Transpose [0, 2, 3, 1], Add bias, Relu, Transpose [0, 3, 1, 2], Conv    -> Conv, Add bias, Relu, Conv

TensorFlow and Keras keep images as [batch, height, width, channels], and ONNX convolutions read
[batch, channels, height, width]. So exporters put Transposes around each convolution. ONNX Runtime moves them through
nodes that it knows, but not through operators of a plugin; and rules do not find the nodes that belong to a product
behind a Transpose. So this runs before all rules.

A region is a set of connected nodes that read the results of Transposes, and nothing else that has their layout: nodes
that compute the same elements in any layout. It is moved in front of these Transposes if fewer remain, or if as many
remain and the nodes can join the convolution before them. No bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import with_subgraphs
from ..operators import DOMAIN
from . import metadata
from .analysis.constants import constant_array
from .analysis.evaluation import evaluate
from .analysis.inference import Facts
from .analysis.limits import CHAIN
from .analysis.nodes import input_of, is_standard
from .analysis.standard import CONVOLUTIONS, IMAGE_OPERATORS, JOINING, OWN_CONVOLUTIONS, PADDING, SIGMOIDS
from .programs.steps import ELEMENTWISE, elements_of

RULE = "transposes of images"
"""The name in the metadata of new nodes."""

_CONVOLUTIONS = CONVOLUTIONS | {"ConvInteger"}
# ONNX Runtime computes other functions, such as Softplus and Elu, in another way for the last elements of a tensor.
_FUNCTIONS = SIGMOIDS | {"Exp", "Gelu", "Softsign"}
_ANY_LAYOUT = (*ELEMENTWISE, *_FUNCTIONS)
_PASSED = (*_ANY_LAYOUT, *JOINING, *PADDING, *IMAGE_OPERATORS, "Transpose")  # on the way back to a convolution


def is_convolution(node: ir.Node) -> bool:
    """Returns whether a node is a convolution, also one of ort_dynq."""
    if node.domain == DOMAIN:
        return node.op_type.removesuffix("Program") in OWN_CONVOLUTIONS
    return is_standard(node, *_CONVOLUTIONS)


def without_transposes(model: ir.Model) -> ir.Model | None:
    """Returns a copy of a model with fewer Transposes around its convolutions; None if there are none to remove.

    The copy has the same values under the same names, if they have the same layout. Its metadata say that it is one.
    """
    if not any(_perms(graph) for _, graph in with_subgraphs(model.graph)):
        return None
    copy, is_moved = model.clone(), False
    with Facts(copy) as facts:
        for _, graph in with_subgraphs(copy.graph):
            if isinstance(graph, ir.Graph) and not facts.contradiction:
                for perm in _perms(graph):
                    is_moved |= _Layout(graph, perm, facts).move()
    if not is_moved:
        return None
    copy.metadata_props[metadata.LAYOUT] = "1"
    return copy


def with_layout_of(original: ir.Model, converted: ir.Model) -> ir.Model:
    """Returns an original with the layout of its converted model, so that the values of both models correspond."""
    is_moved = converted.metadata_props.get(metadata.LAYOUT) == "1"
    return (without_transposes(original) if is_moved else None) or original


def _perms(graph: ir.Graph | ir.Function) -> list[tuple[int, ...]]:
    """Returns the permutations of the Transposes of images after convolutions."""
    found = ((_perm(node), node) for node in graph if is_standard(node, "Transpose"))
    return list(dict.fromkeys(perm for perm, node in found if perm and _is_of_convolution(node)))


def _perm(node: ir.Node | None) -> tuple[int, ...] | None:
    """Returns the permutation of a Transpose; None for another node, and if it is not written out."""
    if node is None or not is_standard(node, "Transpose") or "perm" not in node.attributes:
        return None
    return tuple(node.attributes.get_ints("perm"))


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.argsort(perm).tolist())


def _is_of_convolution(transpose: ir.Node) -> bool:
    """Returns whether a Transpose reads the result of a convolution; other nodes of images may lie between."""
    todo, seen = [transpose.inputs[0]], 0
    while todo and not CHAIN.is_passed(seen):
        value, seen = todo.pop(0), seen + 1
        node = None if value is None else value.producer()
        if node is None:
            continue
        if is_convolution(node):
            return True
        if is_standard(node, *_PASSED):
            todo += elements_of(node) if node.op_type in _ANY_LAYOUT else node.inputs[:1]
    return False


@dataclass
class _TurnedRegion:
    """Connected nodes, and the values among them that have the layout behind the Transposes.

    Attributes:
        nodes: The nodes, in order.
        values: What they compute, and what they read.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    values: dict[ir.Value, None] = field(default_factory=dict)


class _Layout:
    """The values of a graph behind Transposes of one permutation, and what moves in front of them."""

    def __init__(self, graph: ir.Graph, perm: tuple[int, ...], facts: Facts) -> None:
        self._graph, self._perm, self._facts = graph, perm, facts
        self._back = _inverse(perm)
        self._inside: dict[ir.Node, None] = {}  # the nodes of all regions
        self._made: dict[ir.Value, ir.Value] = {}  # the results of nodes, before the Transpose
        self._elements: dict[ir.Value, npt.NDArray[Any] | None] = {}  # of constants
        self._constants: dict[ir.Value, ir.Value] = {}  # the same, before the Transposes

    def move(self) -> bool:
        """Moves the regions that gain from it; returns whether there is one."""
        for node in self._graph:
            if self._can_move(node):
                self._inside[node] = None
        regions = [region for region in self._regions() if self._gains(region)]
        for region in regions:
            self._move(region)
        if regions:
            self._graph.sort()
        return bool(regions)

    def _can_move(self, node: ir.Node) -> bool:
        """Returns whether a node computes the same in front of the Transposes of all of its operands."""
        if self._facts.is_folded(node) or not is_standard(node, *_ANY_LAYOUT, *JOINING, *PADDING):
            return False
        if node.op_type in _ANY_LAYOUT:
            if {"axis", "broadcast"} & node.attributes.keys():  # of opset 6 and older
                return False
        elif not self._has_axes(node):
            return False
        operands = self._operands(node)
        images = [each for each in operands if self._is_image(each)]
        others = [each for each in operands if each not in images]
        if node.op_type not in _ANY_LAYOUT and others:
            return False
        is_behind = any(self._forward(each) or each.producer() in self._inside for each in images)
        return is_behind and all(map(self._is_known_constant, others))

    @staticmethod
    def _operands(node: ir.Node) -> list[ir.Value]:
        """Returns the inputs that have the layout of the result."""
        if node.op_type in ("Split", *PADDING):
            return [each for each in node.inputs[:1] if each is not None]
        return elements_of(node)

    def _has_axes(self, node: ir.Node) -> bool:
        """Returns whether the axes that a node names are known."""
        if node.op_type in JOINING:
            return True
        given = [constant_array(each) for each in node.inputs[1:] if each is not None]
        axes = input_of(node, 3)
        if any(each is None for each in given[:1]) or (axes is not None and constant_array(axes) is None):
            return False
        return len(node.inputs) > 1  # since opset 10 or 11

    def _is_image(self, value: ir.Value) -> bool:
        """Returns whether a value has a form before the Transposes."""
        is_behind = self._forward(value) is not None or value.producer() in self._inside
        return is_behind or self._transposed(value) is not None

    def _forward(self, value: ir.Value) -> ir.Node | None:
        """Returns the Transpose that computes a value; None if another node computes it."""
        node = value.producer()
        return node if node is not None and node.graph is self._graph and _perm(node) == self._perm else None

    def _transposed(self, value: ir.Value) -> ir.Value | None:
        """Returns the value that the model computes by transposing a value back."""
        return next((node.outputs[0] for node in self._backward(value)), None)

    def _backward(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yields the Transposes of a value back to the layout before."""
        nodes = dict.fromkeys(use.node for use in value.uses())
        return (node for node in nodes if node.graph is self._graph and _perm(node) == self._back)

    def _is_known_constant(self, value: ir.Value) -> bool:
        """Returns whether a value is a constant that broadcasts to an image."""
        if not self._facts.is_constant(value):
            return False
        if value not in self._elements:
            self._elements[value] = evaluate(value, self._facts)
        elements = self._elements[value]
        return elements is not None and elements.ndim <= len(self._perm)

    def _regions(self) -> list[_TurnedRegion]:
        """Returns the nodes that can move, and Transposes that follow one another, as connected regions."""
        starts = [node.outputs[0] for node in self._graph if _perm(node) == self._perm]
        region_of: dict[ir.Value, _TurnedRegion] = {value: _TurnedRegion([], {value: None}) for value in starts}
        for node in self._inside:
            images = [each for each in self._operands(node) if self._is_image(each)]
            joined = _TurnedRegion([], dict.fromkeys([*images, *node.outputs]))
            for region in {id(each): each for value in images if (each := region_of.get(value))}.values():
                joined.nodes += region.nodes
                joined.values |= region.values
            joined.nodes.append(node)
            region_of |= dict.fromkeys(joined.values, joined)
        return list({id(region): region for region in region_of.values()}.values())

    def _gains(self, region: _TurnedRegion) -> bool:
        """Returns whether fewer Transposes remain, or as many and the nodes join the convolution before them."""
        gain, transposes, nodes = 0, [], {*region.nodes}
        for value in region.values:
            before, is_made = self._forward(value), value.producer() in nodes
            if before is not None:
                transposes.append(before)
            if before is not None or is_made:
                is_kept, removed = self._is_kept(value, nodes), len(list(self._backward(value)))
                gain += self._cost(value) * (removed - is_kept if is_made else removed + (not is_kept))
        if not any(map(_is_of_convolution, transposes)):
            return False
        return gain > 0 or (gain == 0 and bool(nodes) and self._joins(region))

    def _is_kept(self, value: ir.Value, nodes: set[ir.Node]) -> bool:
        """Returns whether other nodes than these need a value as it is."""
        back = {*self._backward(value)}
        return value.is_graph_output() or any(use.node not in nodes and use.node not in back for use in value.uses())

    def _cost(self, value: ir.Value) -> int:
        """Returns 0 if a Transpose of a value is known to move no element, else 1."""
        if value.shape is None:
            return 1
        places = [place for dim, place in zip(value.shape, self._perm, strict=False) if dim != 1]
        return int(places != sorted(places))

    def _joins(self, region: _TurnedRegion) -> bool:
        """Returns whether a region has constants of channels only, as the nodes have that join a convolution."""
        others = {each for node in region.nodes for each in self._operands(node) if each not in region.values}
        known = [self._elements.get(each) for each in others]
        is_elementwise = all(node.op_type in _ANY_LAYOUT for node in region.nodes)
        return is_elementwise and all(each is not None and max(each.shape, default=1) == each.size for each in known)

    def _move(self, region: _TurnedRegion) -> None:
        nodes = {*region.nodes}
        for node in region.nodes:
            self._insert(node)
        transposes = [found for value in region.values if (found := self._forward(value)) is not None]
        for value in region.values:
            transpose, made = self._forward(value), self._made.get(value)
            before = made if transpose is None else transpose.inputs[0]
            if before is None:  # a value that has been transposed back before
                continue
            for back in list(self._backward(value)):
                self._replace(back.outputs[0], before, is_renamed=before is made)
                self._graph.remove([back], safe=True)
            if made is not None and self._is_kept(value, nodes):
                self._insert_transpose(value, made)
        for node in (*reversed(region.nodes), *transposes):
            self._remove_if_unused(node)

    def _insert_transpose(self, value: ir.Value, before: ir.Value) -> None:
        """Computes a value behind the Transposes, which other nodes read."""
        producer = value.producer()
        assert producer is not None
        new = ir.node("Transpose", [before], {"perm": self._perm})
        new.metadata_props[metadata.RULE] = RULE
        self._graph.insert_before(producer, [new])
        self._replace(value, new.outputs[0], is_renamed=True)

    def _insert(self, node: ir.Node) -> None:
        """Inserts what a node becomes in front of the Transposes."""
        operands = self._operands(node)
        inputs = [self._before(each) if each in operands else each for each in node.inputs]
        attributes = dict(node.attributes)
        if node.op_type in JOINING:
            axis = self._place(node.attributes.get_int("axis", 0))
            attributes["axis"] = ir.AttrInt64("axis", axis)
        elif node.op_type in PADDING:
            inputs = self._inputs_with_axes(node, inputs)
        new = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            list(attributes.values()),
            num_outputs=len(node.outputs),
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )
        self._graph.insert_before(node, [new])
        for old, made in zip(node.outputs, new.outputs, strict=True):
            made.name = self._facts.new_name()
            shape = None if old.shape is None else ir.Shape([old.shape[i] for i in self._back])
            if old.dtype is not None:
                self._facts.note(made, old.dtype, shape)
            self._made[old] = made

    def _before(self, value: ir.Value) -> ir.Value:
        """Returns an operand of a node, before the Transposes."""
        if value in self._made:
            return self._made[value]
        if (transpose := self._forward(value)) is not None:
            assert transpose.inputs[0] is not None
            return transpose.inputs[0]
        if (transposed := self._transposed(value)) is not None:
            return transposed
        elements = self._elements[value]
        assert elements is not None
        if elements.size == 1:
            return value
        if value not in self._constants:
            wide = elements.reshape((1,) * (len(self._perm) - elements.ndim) + elements.shape)
            self._constants[value] = self._constant(wide.transpose(self._back))
        return self._constants[value]

    def _place(self, axis: int) -> int:
        """Returns the axis before the Transposes of an axis behind them."""
        return self._perm[axis]

    def _inputs_with_axes(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None]:
        """Returns the inputs of a Pad or Slice; those that name axes or have a number for each of them are changed."""
        given = [*inputs, None, None, None, None][: max(4, len(inputs))]
        axes, rank = constant_array(given[3]), len(self._perm)
        if node.op_type == "Slice" or axes is not None:
            starts = constant_array(given[1])
            assert starts is not None
            named = range(starts.size) if axes is None else axes.reshape(-1).tolist()
            given[3] = self._constant(np.array([self._place(axis) for axis in named], np.int64))
        else:
            pads = constant_array(given[1])
            assert pads is not None
            given[1] = self._constant(pads.reshape(2, rank)[:, list(self._back)].reshape(-1))
        while given and given[-1] is None:
            given.pop()
        return given

    def _constant(self, elements: npt.NDArray[np.generic]) -> ir.Value:
        tensor = ir.tensor(np.ascontiguousarray(elements))
        value = ir.Value(
            name=self._facts.new_name(),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self._graph.register_initializer(value)
        return value

    def _replace(self, old: ir.Value, new: ir.Value, *, is_renamed: bool) -> None:
        """Puts a value in place of another one, with its name if it has none of the model's own, or is a result."""
        if old.is_graph_output() and (new.is_graph_output() or new.is_graph_input()):  # they have names of their own
            producer = old.producer()
            assert producer is not None
            copy = ir.node("Identity", [new])
            self._graph.insert_before(producer, [copy])
            new, is_renamed = copy.outputs[0], True
        if (is_renamed or old.is_graph_output()) and not new.is_graph_output():
            self._facts.adopt(new, old)
            new.name, new.doc_string = old.name, old.doc_string
            new.metadata_props.update(old.metadata_props)
            old.name = self._facts.new_name()
        ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)

    def _remove_if_unused(self, node: ir.Node) -> None:
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            return
        sources = [value for value in node.inputs if value is not None]
        self._graph.remove([node], safe=True)
        for value in sources:
            is_end = value.is_graph_input() or value.is_graph_output()
            if value.is_initializer() and value.graph is self._graph and not (value.uses() or is_end):
                del self._graph.initializers[value.name or ""]
