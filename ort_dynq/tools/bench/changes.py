"""What a rewrite or a quantization puts in the place of what: connected nodes of both models, one of each kind.

Both models have the values between which something changed, under the same names. New nodes that hand each other values
which the original lacks, such as codes, belong together. The original's nodes in their place are those that compute the
same results from the same values. Nodes that have equal operators before and after them are drawn as one, with their
number; constants are left out.
"""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import graphs, label
from ...operators import DOMAIN
from ...rewriter.analysis.nodes import is_standard, producer_of
from ...rewriter.analysis.standard import INTEGER_LAYERS, OWN_LAYERS, PRODUCTS
from ...rewriter.grouping import pattern, pattern_key

INPUT, OUTPUT = "input", "output"
_MAX_BOXES = 40


@dataclass(frozen=True)
class Box:
    """Nodes with the same operators before and after them.

    Attributes:
        op_type: The operator, or :data:`INPUT` or :data:`OUTPUT`.
        count: The number of nodes.
        kind: ``ours``, ``products`` or ``others``; empty for an input and an output.
    """

    op_type: str
    count: int
    kind: str = ""


@dataclass(frozen=True)
class Diagram:
    """Connected nodes of a model.

    Attributes:
        boxes: The nodes, in topological order.
        edges: Pairs of indices into `boxes`.
        nodes: The number of nodes.
        omitted: The number of nodes that are left out, since there are too many.
    """

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    nodes: int
    omitted: int = 0


@dataclass(frozen=True)
class Change:
    """One kind of change.

    Attributes:
        count: How often the model has it.
        names: The patterns of the names of the first new node of each; see grouping.py.
        before, after: The nodes of the original, and the new ones.
    """

    count: int
    names: tuple[str, ...]
    before: Diagram
    after: Diagram


def changes(original: ir.Model, new: ir.Model) -> tuple[Change, ...]:
    """Returns one change of each kind, in the order of the model.

    Args:
        original: The model; its nodes have names.
        new: The model that was made from it.
    """
    found: dict[tuple[Diagram, Diagram], list[str]] = {}
    old_graphs = dict(graphs(original))
    for path, graph in graphs(new):
        if path in old_graphs:
            for before, after in _regions(old_graphs[path], graph):
                name = label(next((node for node in after.nodes if node.domain == DOMAIN), after.nodes[0]))
                found.setdefault((before.diagram(), after.diagram()), []).append(name)
    return tuple(Change(len(names), _patterns(names), *pair) for pair, names in found.items())


def _patterns(names: Iterable[str]) -> tuple[str, ...]:
    groups: dict[object, list[str]] = {}
    for name in names:
        groups.setdefault(pattern_key(name), []).append(name)
    return tuple(map(pattern, groups.values()))


@dataclass(frozen=True)
class _ChangedRegion:
    """Connected nodes, and the names of the values that others read."""

    nodes: tuple[ir.Node, ...]
    results: frozenset[str]

    def diagram(self) -> Diagram:
        labels = [(node.op_type, _kind(node)) for node in self.nodes]
        producer = {value: number for number, node in enumerate(self.nodes) for value in node.outputs}
        edges = set[tuple[int, int]]()
        for number, node in enumerate(self.nodes):
            for value in node.inputs:
                if value is None or _is_fixed(value):
                    continue
                if value not in producer:
                    producer[value] = len(labels)
                    labels.append((INPUT, ""))
                edges.add((producer[value], number))
            for value in node.outputs:
                if value.name in self.results:
                    edges.add((number, len(labels)))
                    labels.append((OUTPUT, ""))
        return _merged(labels, edges, len(self.nodes))


def is_product(op_type: str) -> bool:
    """Returns whether an operator, of ONNX Runtime or of ort_dynq, mostly computes products."""
    return op_type in PRODUCTS | INTEGER_LAYERS | OWN_LAYERS | {"MoE"}


def _kind(node: ir.Node) -> str:
    if is_product(node.op_type):
        return "products"
    return "ours" if node.domain == DOMAIN else "others"


def _merged(labels: Sequence[tuple[str, str]], edges: Collection[tuple[int, int]], nodes: int) -> Diagram:
    """Returns the diagram in which nodes with the same operators before and after them are one box."""
    before, after = _neighbours(edges), _neighbours((b, a) for a, b in edges)
    order = _sorted(range(len(labels)), before)
    ids: dict[object, int] = {}

    def colours(order: Iterable[int], neighbours: Mapping[int, Collection[int]]) -> dict[int, int]:
        found: dict[int, int] = {}
        for each in order:
            key = (labels[each], tuple(sorted({found[other] for other in neighbours.get(each, ())})))
            found[each] = ids.setdefault(key, len(ids))
        return found

    above, below = colours(order, before), colours(reversed(order), after)
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in order:
        members[above[each], below[each]].append(each)
    box = {each: number for number, group in enumerate(members.values()) for each in group}
    boxes = [Box(labels[group[0]][0], len(group), labels[group[0]][1]) for group in members.values()]
    joined = {(box[a], box[b]) for a, b in edges}
    omitted = sum(each.count for each in boxes[_MAX_BOXES:] if each.kind)
    shown = sorted(pair for pair in joined if max(pair) < _MAX_BOXES)
    return Diagram(tuple(boxes[:_MAX_BOXES]), tuple(shown), nodes, omitted)


def _neighbours(edges: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Returns what is before each node."""
    found: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        found[b].append(a)
    return found


def _sorted(nodes: Iterable[int], before: Mapping[int, Collection[int]]) -> list[int]:
    """Returns the nodes in topological order: by the longest path to each, so that a box is after all before it."""
    depth: dict[int, int] = {}
    for each in graphlib.TopologicalSorter({each: before.get(each, ()) for each in nodes}).static_order():
        depth[each] = 1 + max((depth[other] for other in before.get(each, ())), default=-1)
    return sorted(depth, key=lambda each: (depth[each], each))


def _regions(
    old: ir.Graph | ir.Function, new: ir.Graph | ir.Function
) -> Iterable[tuple[_ChangedRegion, _ChangedRegion]]:
    """Yields what is different in two graphs: the nodes of both that compute the same from the same values."""
    before = {value.name: value for node in old for value in node.outputs if value.name}
    given = {value.name for value in old.inputs}
    same = {(label(node), node.domain, node.op_type) for node in old}
    others = [node for node in new if (label(node), node.domain, node.op_type) not in same]
    added = [node for node in others if not is_standard(node, "Constant")]
    kept = {label(node) for node in new} - {label(node) for node in added}
    for nodes in _connected(added, {*before, *given}):
        members = {*nodes}
        inside = dict.fromkeys(value for node in nodes for value in node.outputs)  # in order, unlike a set of objects
        reads = {value.name for node in nodes for value in node.inputs if value is not None and value not in inside}
        results = [before[value.name] for value in inside if value.name in before and _is_read(value, members)]
        replaced = _between(results, reads - {value.name for value in results}, kept)
        if replaced:
            names = frozenset(value.name for value in results if value.name)
            yield _ChangedRegion(tuple(replaced), names), _ChangedRegion(tuple(nodes), names)


def _connected(nodes: Sequence[ir.Node], named: Collection[str | None]) -> list[list[ir.Node]]:
    """Returns the groups of nodes that hand each other values without a name in the original."""
    group = {node: [node] for node in nodes}
    for node in nodes:
        for value in node.inputs:
            producer = None if value is None or value.name in named else value.producer()
            if producer in group and group[producer] is not group[node]:
                smaller, larger = sorted((group[producer], group[node]), key=len)
                larger += smaller
                group |= dict.fromkeys(smaller, larger)
    position = {node: number for number, node in enumerate(nodes)}
    found = {id(each): each for each in group.values()}.values()
    return sorted((sorted(each, key=position.__getitem__) for each in found), key=lambda each: position[each[0]])


def _between(results: Iterable[ir.Value], reads: Collection[str | None], kept: Collection[str]) -> list[ir.Node]:
    """Returns the nodes before some values, back to what is read and to nodes that the new model keeps."""
    found: dict[ir.Node, None] = {}
    todo = list(results)
    for value in todo:
        node = value.producer()
        if node is not None and node not in found and not is_standard(node, "Constant") and label(node) not in kept:
            found[node] = None
            todo += [each for each in node.inputs if each is not None and each.name not in reads]
    return list(found)


def _is_read(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    """Returns whether a value is read outside of some nodes."""
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def _is_fixed(value: ir.Value) -> bool:
    return value.const_value is not None or producer_of(value, "Constant") is not None
