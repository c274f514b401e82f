"""Selects the nodes that become one program: the largest set around a quantization that one operator can compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import subgraphs
from ...operators.program import OPERANDS, Program
from ..analysis.types import CODE_TYPES
from ..analysis.values import Values
from .rows import Kind, Rows
from .steps import STEPS_OF_CODES, Translation, elements_of

_MOST_NODES = 128
_SLOTS = {"codes": ("codes",), "zero_point": ("zero_point",), "dst": ("dst", "dst_2"), "scale": ("scale", "number")}
_OPERANDS = {Kind.VECTOR: "tensor", Kind.NUMBER: "row", Kind.PART: "row", Kind.COLUMN: "column"}


@dataclass(frozen=True)
class Region:
    """Nodes, and the operator that computes the same.

    Attributes:
        nodes: The nodes, in order.
        program: The program.
        src: The tensor that it reads.
        operands: Its other inputs.
        outputs: The values of the model that other nodes read, and the output of the operator for each.
        code_type: The type of the codes.
        before: The node before which the operator is inserted.
        passes: The number of nodes that read or write a whole tensor.
    """

    nodes: tuple[ir.Node, ...]
    program: Program
    src: ir.Value
    operands: tuple[ir.Value, ...]
    outputs: dict[ir.Value, str]
    code_type: ir.DataType
    before: ir.Node
    passes: int


class _Problem(Exception):
    """A set of nodes is no region. If one of `alternatives` is cut off, it may be."""

    def __init__(self, alternatives: Iterable[Iterable[ir.Node | None]]) -> None:
        self.alternatives = [[node for node in each if node is not None] for each in alternatives]


def region_of(anchor: ir.Node, rows: Rows, values: Values, takes: Callable[[ir.Node], bool]) -> Region | None:
    """Returns the region around a node; None if there is none.

    Args:
        anchor: A node that it must have.
        rows: The rows of the tensor that the node computes.
        values: The bounds of the model's values.
        takes: Whether it may have a node whose output is of a known kind.
    """
    assert anchor.graph is not None
    order = {node: i for i, node in enumerate(anchor.graph)}
    nodes = _grown(anchor, order, lambda node: rows.of_result(node) is not None and takes(node))
    while anchor in nodes:
        found = _attempt(sorted(nodes, key=order.__getitem__), rows, values, order)
        if isinstance(found, Region):
            return found
        nodes = _cut(nodes, anchor, found.alternatives, rows)
    return None


def _attempt(nodes: list[ir.Node], rows: Rows, values: Values, order: dict[ir.Node, int]) -> Region | _Problem:
    try:
        return _Draft(nodes, rows, values, order).region()
    except _Problem as problem:
        return problem


def _grown(anchor: ir.Node, order: dict[ir.Node, int], takes: Callable[[ir.Node], bool]) -> set[ir.Node]:
    """Returns the nodes that are connected with a node by nodes that can be taken, the nearest ones."""
    nodes, todo, seen = {anchor}, [anchor], {anchor}
    for node in todo:
        for other in _neighbors(node):
            if other not in seen and other in order and len(nodes) < _MOST_NODES:
                seen.add(other)
                if takes(other):
                    nodes.add(other)
                    todo.append(other)
    return nodes


def _neighbors(node: ir.Node) -> Iterator[ir.Node]:
    """Yields the nodes whose elements a node reads, and those that read its own."""
    for value in elements_of(node):
        if (producer := value.producer()) is not None:
            yield producer
    for output in node.outputs:
        yield from (use.node for use in output.uses())


def _cut(nodes: set[ir.Node], anchor: ir.Node, alternatives: list[list[ir.Node]], rows: Rows) -> set[ir.Node]:
    """Returns the best part of a set without the nodes of one alternative, and without those before or after them."""
    best: set[ir.Node] = set()
    for removed in alternatives:
        for is_after in (False, True):
            left = nodes - _closure(removed, nodes, is_after)
            part = _grown(anchor, dict.fromkeys(left, 0), left.__contains__) if anchor in left else set()
            if _weight(part, rows) > _weight(best, rows):
                best = part
    return best


def _weight(nodes: set[ir.Node], rows: Rows) -> tuple[int, int]:
    return sum(is_pass(node, rows) for node in nodes), len(nodes)


def is_pass(node: ir.Node, rows: Rows) -> bool:
    """Returns whether a node reads or writes a whole tensor, and ONNX Runtime does not remove it."""
    return node.op_type != "Identity" and Kind.VECTOR in map(rows.kind, (node.outputs[0], *elements_of(node)))


def _closure(start: list[ir.Node], nodes: set[ir.Node], is_after: bool) -> set[ir.Node]:
    """Returns nodes and those of a set that they depend on, or that depend on them."""
    found, todo = set(start), list(start)
    for node in todo:
        if is_after:
            others = [use.node for output in node.outputs for use in output.uses()]
        else:
            others = [each.producer() for each in node.inputs if each is not None]
        for other in others:
            if other in nodes and other not in found:
                found.add(other)
                todo.append(other)
    return found


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yields what a node reads, in its subgraphs, too."""
    yield from (each for each in node.inputs if each is not None)
    for _, graph in subgraphs(node):
        for inner in graph:
            yield from _reads(inner)
        yield from graph.outputs


class _Draft:
    """A set of nodes that may be a region. Its methods raise _Problem if it is none."""

    def __init__(self, nodes: list[ir.Node], rows: Rows, values: Values, order: dict[ir.Node, int]) -> None:
        self._nodes, self._rows, self._values, self._order = nodes, rows, values, order
        self._inside = {node.outputs[0] for node in nodes}
        self._readers: dict[ir.Value, list[ir.Node]] = {}
        for node in nodes:
            for value in elements_of(node):
                self._readers.setdefault(value, []).append(node)

    def region(self) -> Region:
        """Returns the region."""
        before = self._place()
        names, src, operands = self._inputs()
        translation = Translation(names, self._values)
        if (failed := next((node for node in self._nodes if not translation.add(node)), None)) is not None:
            raise _Problem([[failed]])
        outputs, code_type = self._outputs(translation)
        passes = sum(is_pass(node, self._rows) for node in self._nodes)
        return Region(tuple(self._nodes), translation.program, src, operands, outputs, code_type, before, passes)

    def _place(self) -> ir.Node:
        """Returns the node before which one operator can take the place of all nodes.

        Everything that they read is computed before it, and nothing that is computed before it reads them.
        """
        first, last = self._order[self._nodes[0]], self._order[self._nodes[-1]]
        nodes, dependent = set(self._nodes), set[ir.Value]()
        entries, exits = list[ir.Node](), set[ir.Node]()
        start: ir.Node | None = None
        for node, i in self._order.items():
            if not first <= i <= last:
                continue
            read = {*_reads(node)}
            if node in nodes:
                if read & dependent:
                    entries.append(node)
            elif read & dependent or read & self._inside:
                dependent.update(node.outputs)
                exits.update(producer for each in read & self._inside if (producer := each.producer()))
        if entries:
            raise _Problem([node] for node in (*entries, *exits))
        place = 1 + max((self._order.get(each, -1) for each in self._producers()), default=-1)
        for node, i in self._order.items():
            if i < place and node not in nodes and {*_reads(node)} & (self._inside | dependent):
                raise _Problem([each.producer()] for each in {*_reads(node)} & self._inside)
            if i == place:
                start = node
        assert start is not None
        return start

    def _producers(self) -> Iterator[ir.Node]:
        """Yields the nodes that compute what the region reads."""
        for value in self._readers:
            if value not in self._inside and (producer := value.producer()) is not None:
                yield producer

    def _inputs(self) -> tuple[dict[ir.Value, str], ir.Value, tuple[ir.Value, ...]]:
        """Returns the names of the inputs, src and the operands."""
        names: dict[ir.Value, str] = {}
        given = [each for each in self._readers if each not in self._inside and self._rows.kind(each) != Kind.LITERAL]
        for value in given:
            if self._rows.kind(value) not in _OPERANDS or value.dtype != ir.DataType.FLOAT:
                raise _Problem([self._readers[value]])
        vectors = [each for each in given if self._rows.kind(each) == Kind.VECTOR]
        if not vectors:
            raise _Problem([self._nodes])
        src = self._rows.x if self._rows.x in vectors else vectors[0]
        operands = tuple(each for each in given if each is not src)
        if len(operands) > OPERANDS:
            raise _Problem(self._readers[each] for each in operands)
        for i, value in enumerate(operands, 1):
            kind = self._rows.kind(value)
            assert kind is not None
            names[value] = f"{_OPERANDS[kind]}{i}"
        return {src: "x", **names}, src, operands

    def _outputs(self, translation: Translation) -> tuple[dict[ir.Value, str], ir.DataType]:
        """Assigns the outputs; returns the output for each value that other nodes read, and the type of the codes."""
        nodes, program = set(self._nodes), translation.program
        found: dict[str, dict[str, list[ir.Value]]] = {slot: {} for slot in _SLOTS}
        code_type: ir.DataType | None = None
        for node in self._nodes:
            value = node.outputs[0]
            if not value.is_graph_output() and all(use.node in nodes for use in value.uses()):
                continue
            kind, term = self._rows.kind(value), translation.terms[value]
            is_vector, is_code = kind == Kind.VECTOR, value.dtype in CODE_TYPES
            if is_code:
                code_type = code_type or value.dtype
                step = program.step(term)
                if step is not None and code_type is not None and step.operator == STEPS_OF_CODES[code_type]:
                    term = step.operands[0]  # the output is rounded, too
            is_number = kind == Kind.NUMBER or (kind == Kind.SQUEEZED and value.shape is not None)
            is_of_type = value.dtype == (code_type if is_code else ir.DataType.FLOAT)
            if (
                not (is_vector or is_number)
                or not is_of_type
                or program.is_vector(term) != is_vector
                or not program.step(term)
            ):
                raise _Problem([[node]])
            slot = ("codes" if is_vector else "zero_point") if is_code else ("dst" if is_vector else "scale")
            found[slot].setdefault(term, []).append(value)
        outputs: dict[ir.Value, str] = {}
        for slot, terms in found.items():
            if len(terms) > len(_SLOTS[slot]):
                raise _Problem([each.producer() for each in olds] for olds in terms.values())
            for output, (term, olds) in zip(_SLOTS[slot], terms.items(), strict=False):
                program.assign(output, term)
                outputs.update(dict.fromkeys(olds, output))
        return outputs, code_type or ir.DataType.INT8
