"""Selects the nodes that become one program: the largest set around a quantization that one operator can compute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...graphs import name_in_model, values_read
from ...operators.program import MAX_STEPS, OPERANDS, Program
from ..analysis.nodes import is_standard
from ..analysis.standard import ROW_SUMS
from ..analysis.types import CODE_TYPES
from ..reasons import Reason, Unconverted
from ..rule import Context
from .rows import Kind, Rows
from .steps import ROUNDINGS, Translation, elements_of, type_of

_MAX_ALTERNATIVES = 8  # that are tried one by one
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
        cut: Why the program could not have the first node that was cut off; None if all could stay.
    """

    nodes: tuple[ir.Node, ...]
    program: Program
    src: ir.Value
    operands: tuple[ir.Value, ...]
    outputs: dict[ir.Value, str]
    code_type: ir.DataType
    before: ir.Node
    passes: int
    cut: Unconverted | None = None


class _Problem(Exception):
    """A set of nodes is not a region. If one of `alternatives` is cut off, it may be; `reason` is that of the first.

    `entries` read what other nodes compute of the region.
    """

    def __init__(
        self,
        alternatives: Iterable[Iterable[ir.Node | None]],
        reason: Reason = Reason.PROGRAM_CUT,
        entries: Iterable[ir.Node] = (),
        **details: object,
    ) -> None:
        self.alternatives = [[node for node in each if node is not None] for each in alternatives]
        self.entries = list(entries)
        self._reason, self._details = reason, details

    @property
    def reason(self) -> Unconverted:
        return _reason(self._reason, self.alternatives[0][0], **self._details)


def _reason(reason: Reason, node: ir.Node, **details: object) -> Unconverted:
    return Unconverted(reason, operator=node.op_type, name=name_in_model(node.outputs[0]), **details)


def region_of(
    anchor: ir.Node,
    rows: Rows,
    context: Context,
    takes: Callable[[ir.Node], bool],
    translates: type[Translation] = Translation,
) -> Region | None:
    """Returns the region around a node; None if there is none.

    Args:
        anchor: A node that it must have.
        rows: The rows of the tensor that the node computes.
        context: What is known of the model.
        takes: Whether it may have a node with an output of a known kind.
        translates: What makes steps of its nodes.
    """
    assert anchor.graph is not None
    sequence = list(anchor.graph)
    order = {node: i for i, node in enumerate(sequence)}
    nodes, left = _grown(anchor, lambda node: node in order and rows.of_result(node) is not None and takes(node))
    first = None if left is None else _reason(Reason.PROGRAM_TOO_LONG, left, most=MAX_STEPS)
    while anchor in nodes:
        draft = _Draft(sorted(nodes, key=order.__getitem__), rows, translates, context, sequence, order)
        found = _attempt(draft)
        if isinstance(found, Region):
            return replace(found, cut=first)
        first = first or found.reason
        nodes = _before_entries(nodes, anchor, found.entries) or _cut(nodes, anchor, found.alternatives, rows)
    return None


def _before_entries(nodes: list[ir.Node], anchor: ir.Node, entries: list[ir.Node]) -> list[ir.Node]:
    """Returns the set around the sum of a normalization without entries on which it does not depend, if there are any.

    They and what depends on them belong to another region: the residual behind the layer, and the next normalization.
    """
    members = set(nodes)
    if not is_standard(anchor, *ROW_SUMS):
        return []
    others = [node for node in entries if anchor not in _closure([node], members, True)]
    return _grown(anchor, (members - _closure(others, members, True)).__contains__)[0] if others else []


def _attempt(draft: _Draft) -> Region | _Problem:
    try:
        return draft.region()
    except _Problem as problem:
        return problem


def _grown(anchor: ir.Node, takes: Callable[[ir.Node], bool]) -> tuple[list[ir.Node], ir.Node | None]:
    """Returns the nodes that are connected with a node by nodes that can be taken, the nearest ones first.

    Returns:
        As many of them as a program has steps, and the first that is left.
    """
    nodes, seen = [anchor], {anchor}
    for node in nodes:
        for other in _neighbors(node):
            if other not in seen:
                seen.add(other)
                if takes(other):
                    if len(nodes) == MAX_STEPS:
                        return nodes, other
                    nodes.append(other)
    return nodes, None


def _neighbors(node: ir.Node) -> Iterator[ir.Node]:
    """Yields the nodes that give a node its elements, and those that read its own."""
    for value in elements_of(node):
        if (producer := value.producer()) is not None:
            yield producer
    for output in node.outputs:
        yield from (use.node for use in output.uses())


def _cut(nodes: list[ir.Node], anchor: ir.Node, alternatives: list[list[ir.Node]], rows: Rows) -> list[ir.Node]:
    """Returns the best part of a set without the nodes of one alternative, and without those before or after them."""
    members, before_anchor = set(nodes), set[ir.Node]()
    passes = {node for node in nodes if is_pass(node, rows)}
    if len(alternatives) > _MAX_ALTERNATIVES:  # the farther half of them at once, each on its side of the anchor
        alternatives.sort(key=lambda each: max(map(nodes.index, each)))
        alternatives = [[node for each in alternatives[len(alternatives) // 2 :] for node in each]]
        before_anchor = _closure([anchor], members, False)

    def worth(part: Collection[ir.Node]) -> tuple[int, int]:
        return len(passes.intersection(part)), len(part)

    best: list[ir.Node] = []
    for removed in alternatives:
        first = [node for node in removed if node in before_anchor]
        last = [node for node in removed if node not in before_anchor]
        sides = (first, last) if first and last else ()
        for before, after in ((removed, []), ([], removed), *([sides] if sides else [])):
            left = members - _closure(before, members, False) - _closure(after, members, True)
            if anchor in left and worth(left) > worth(best):  # what is connected with the anchor is not worth more
                best = max(best, _grown(anchor, left.__contains__)[0], key=worth)
    return best


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
            others = [producer for each in node.inputs if each is not None and (producer := each.producer())]
        for other in others:
            if other in nodes and other not in found:
                found.add(other)
                todo.append(other)
    return found


class _Draft:
    """A set of nodes that may be a region. Its methods raise _Problem if it is none."""

    def __init__(
        self,
        nodes: list[ir.Node],
        rows: Rows,
        translates: type[Translation],
        context: Context,
        sequence: list[ir.Node],
        order: dict[ir.Node, int],
    ) -> None:
        self._nodes, self._rows, self._sequence, self._order = nodes, rows, sequence, order
        self._translates, self._context = translates, context
        self._readers: dict[ir.Value, list[ir.Node]] = {}
        for node in nodes:
            for value in elements_of(node):
                if rows.kind(value) != Kind.LITERAL:
                    self._readers.setdefault(value, []).append(node)
        self._members = set(nodes)
        self._kept = {node.inputs[0] for node in nodes if node.op_type == "RowProgram"}
        self._inside = {output: node for node in nodes for output in node.outputs}
        self._unneeded = self._found_unneeded()

    def region(self) -> Region:
        """Returns the region."""
        before = self._place()
        names, src, operands = self._inputs()
        translation = self._translates(names, self._context)
        if (failed := next((node for node in self._nodes if not translation.add(node)), None)) is not None:
            if translation.is_full:
                raise _Problem([[failed]], Reason.PROGRAM_TOO_LONG, most=MAX_STEPS)
            raise _Problem([[failed], *([each] for each in translation.of_unknown_sign())])
        outputs, code_type = self._outputs(translation)
        passes = sum(is_pass(node, self._rows) for node in self._nodes)
        return Region(tuple(self._nodes), translation.program, src, operands, outputs, code_type, before, passes)

    def _found_unneeded(self) -> set[ir.Node]:
        """Returns the other nodes from which only shapes and constants of the region are computed.

        They are before its last node, or nothing reads them.
        """
        first, last = self._order[self._nodes[0]], self._order[self._nodes[-1]]
        found: set[ir.Node] = set()
        for node in reversed(self._sequence[first : last + 1]):  # readers first
            if node not in self._members and self._feeds_no_elements(node, found):
                found.add(node)
        users = {use.node for output in self._inside for use in output.uses()} - self._members - found
        return found | {node for node in users if self._feeds_no_elements(node, found)}

    def _feeds_no_elements(self, node: ir.Node, unneeded: Collection[ir.Node]) -> bool:
        """Returns whether all uses of a node's outputs are shapes or constants of the region, or unneeded nodes."""
        if any(output.is_graph_output() for output in node.outputs):
            return False
        uses = [(output, use.node) for output in node.outputs for use in output.uses()]
        if any(user in self._members and user in self._readers.get(output, ()) for output, user in uses):
            return False
        return all(user in self._members or user in unneeded for _, user in uses)

    def _place(self) -> ir.Node:
        """Returns the node before which one operator can take the place of all nodes.

        Everything that they read is computed before it, and nothing that is computed before it reads them.
        """
        inputs = [producer for each in self._readers.keys() - self._inside.keys() if (producer := each.producer())]
        place = 1 + max((self._order.get(each, -1) for each in inputs), default=-1)
        first, last = self._order[self._nodes[0]], self._order[self._nodes[-1]]
        dependent: set[ir.Value] = set()
        entries, exits, early = list[ir.Node](), list[ir.Node](), list[ir.Node]()
        span = self._sequence[first : last + 1]
        for i, node in enumerate(span, first):
            if node in self._members:
                if any(each in dependent for each in elements_of(node) if each in self._readers):
                    entries.append(node)
                continue
            read = list(values_read(node))
            if any(each in dependent or each in self._inside for each in read) and node not in self._unneeded:
                dependent.update(node.outputs)
                exits += [self._inside[each] for each in read if each in self._inside]
                if i < place:
                    early += exits
        if problem := [*entries, *exits] if entries else early:
            raise _Problem([[node] for node in dict.fromkeys(problem)], entries=entries)
        return self._sequence[place]

    def _inputs(self) -> tuple[dict[ir.Value, str], ir.Value, tuple[ir.Value, ...]]:
        """Returns the names of the inputs, src and the operands."""
        names: dict[ir.Value, str] = {}
        given = [each for each in self._readers if each not in self._inside]
        for value in given:
            if self._operand(value) is None or type_of(value) != ir.DataType.FLOAT:
                raise _Problem([self._readers[value]])
        vectors = [each for each in given if self._rows.kind(each) == Kind.VECTOR]
        if not vectors:
            raise _Problem([self._nodes])
        src = self._rows.x if self._rows.x in vectors else vectors[0]
        operands = tuple(each for each in given if each is not src)
        if len(operands) > OPERANDS:
            raise _Problem(self._readers[each] for each in operands)
        for i, value in enumerate(operands, 1):
            names[value] = f"{self._operand(value)}{i}"
        return {src: "x", **names}, src, operands

    def _operand(self, value: ir.Value) -> str | None:
        """Returns the name of an operand without its number; None if a value is none."""
        kind = self._rows.kind(value)
        is_one_number = kind == Kind.SQUEEZED and self._rows.axis == 0
        if kind == Kind.PART and value.shape is None:
            return None
        return "row" if is_one_number else None if kind is None else _OPERANDS.get(kind)

    def _outputs(self, translation: Translation) -> tuple[dict[ir.Value, str], ir.DataType]:
        """Assigns the outputs; returns the output for each value that other nodes read, and the type of the codes."""
        program = translation.program
        found: dict[str, dict[str, list[ir.Value]]] = {slot: {} for slot in _SLOTS}
        code_type: ir.DataType | None = None
        for value, node in self._inside.items():
            users = {use.node for use in value.uses()} - self._members
            if not value.is_graph_output() and value not in self._kept and users <= self._unneeded:
                continue
            kind, term, dtype = self._rows.kind(value), translation.terms.get(value), type_of(value)
            if term is None:
                raise _Problem([[node]])
            is_vector, is_code = kind == Kind.VECTOR, dtype in CODE_TYPES
            step = program.step(term)
            if step is not None and dtype is not None and step.operator == ROUNDINGS.get(dtype):
                term = step.operands[0]  # the output is rounded, too
            is_number = kind == Kind.NUMBER or (kind == Kind.SQUEEZED and value.shape is not None)
            code_type = code_type or (dtype if is_code else None)
            is_of_type = dtype == code_type if is_code else dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)
            is_known = is_code or translation.signs.are_known(term)
            is_result = program.is_vector(term) == is_vector and (is_code or program.step(term) is not None)
            if not (is_vector or is_number) or not is_of_type or not is_known or not is_result:
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
        if not outputs:  # an unused chain
            raise _Problem([self._nodes])
        return outputs, code_type or ir.DataType.INT8
