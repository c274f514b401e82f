"""What each fusion saves: the time of the original's nodes that it replaces, and of the nodes in their place.

The nodes are found by the names of values, which a rewrite and ONNX Runtime keep. In the graph that ONNX Runtime runs,
the nodes of the original lie between the values that the fusion reads and those that it computes. Where that graph has
no such values, or its nodes also read others, no time is attributed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ...graphs import label
from ...operators import DOMAIN
from ...operators.program import FUNCTIONS
from ...rewriter.analysis.nodes import is_standard, program_of
from ...rewriter.analysis.standard import (
    ATTENTION,
    BYTE_PRODUCTS,
    FUSIBLE_PRODUCTS,
    GELUS,
    OWN_ATTENTION,
    OWN_PRODUCTS,
    PASSING,
    REARRANGING,
)
from ...rewriter.grouping import pattern, pattern_key
from ...rewriter.metadata import RULE
from ...rewriter.rules import FUSIONS
from ..measuring.profile import Profile

_OPERATORS = GELUS | ATTENTION | OWN_ATTENTION | {"RotaryEmbedding", "RowProgram"}
_MOVES = REARRANGING | PASSING
_PROGRAMS = frozenset(each for each in OWN_PRODUCTS if each.endswith("Program"))
_MAX_DISTANCE = 64

IN_PRODUCT = "a part of the product's program, which has one time"
NOT_THERE = "ONNX Runtime's optimized graph of the original lacks a value that it computes"
FUSED_WITH_OTHERS = "in ONNX Runtime's optimized graph of the original, its nodes are fused with others"
READS_OTHERS = "it reads values that only the new model has"
CHANGED = "ONNX Runtime fuses the new node with others"


@dataclass(frozen=True)
class FusionTime:
    """The time of the fusions of equal layers, together.

    Attributes:
        node: The pattern of the names of the new nodes; see grouping.py.
        rule: The rule that fused.
        operator: The new operator.
        count: The number of fusions.
        before, after: The numbers of nodes of each operator: those that ONNX Runtime runs for the original, and the new
            ones. Both are empty if nothing is attributed.
        before_ms, after_ms: Their milliseconds per run; None if nothing is attributed.
        ratio: `before_ms` / `after_ms`; None if nothing is attributed, or the new nodes take no time.
        quantizes: Whether the new operator also quantizes, which the nodes of the original do not.
        reason: Why no time is attributed; empty if it is.
    """

    node: str
    rule: str
    operator: str
    count: int
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    before_ms: float | None = None
    after_ms: float | None = None
    ratio: float | None = None
    quantizes: bool = False
    reason: str = ""


class _NotAttributed(Exception):
    """The profile does not show the time of a fusion. The message says why."""


@dataclass(frozen=True)
class _Fusion:
    """One fusion: the new nodes, and the original's nodes in the optimized graph; or why they are not known."""

    main: ir.Node
    new: tuple[ir.Node, ...] = ()
    old: tuple[ir.Node, ...] = ()
    quantizes: bool = False
    reason: str = ""


def has_fusions(model: ir.Model) -> bool:
    """Returns whether a rewritten or quantized model has fusions in its main graph."""
    return any(True for _ in _fused(model))


def fusion_times(
    original: ir.Model, new: ir.Model, optimized: ir.Model, before: Profile, after: Profile
) -> tuple[FusionTime, ...]:
    """Returns the time of all fusions, by groups of equal layers in the order of the model.

    Args:
        original: The model; its nodes have names.
        new: The model that was made from it.
        optimized: The graph that ONNX Runtime runs for the original (measuring/optimized.py).
        before, after: The profiles of the original and of the new model.
    """
    graphs = _Graphs(original, new, optimized)
    times = [{node.name: node.ms for node in profile.nodes} for profile in (before, after)]
    groups: dict[tuple[object, ...], list[_Fusion]] = {}
    for main in _fused(new):
        found = graphs.fusion(main, *times)
        operators = tuple(sorted(_counted(found.old).items()))
        key = (pattern_key(label(main)), _rule(main), main.op_type, found.reason, found.quantizes, operators)
        groups.setdefault(key, []).append(found)
    return tuple(_timed(members, *times) for members in groups.values())


def _timed(members: list[_Fusion], before: Mapping[str, float], after: Mapping[str, float]) -> FusionTime:
    main = members[0].main
    names = pattern([label(each.main) for each in members])
    facts = FusionTime(names, _rule(main), main.op_type, len(members), reason=members[0].reason)
    if facts.reason:
        return facts
    old, new = ({*(node for each in members for node in getattr(each, side))} for side in ("old", "new"))
    new = {node for node in new if label(node) in after}
    before_ms, after_ms = sum(before[label(node)] for node in old), sum(after[label(node)] for node in new)
    return replace(
        facts,
        before=_counted(old),
        after=_counted(new),
        before_ms=before_ms,
        after_ms=after_ms,
        ratio=before_ms / after_ms if after_ms else None,
        quantizes=members[0].quantizes,
    )


def _counted(nodes: Iterable[ir.Node]) -> dict[str, int]:
    return dict(Counter(sorted(node.op_type for node in nodes)))


def _rule(node: ir.Node) -> str:
    return node.metadata_props.get(RULE, "")


def _fused(model: ir.Model) -> Iterator[ir.Node]:
    """Yields the main nodes of fusions."""
    for node in model.graph:
        is_in_product = node.op_type in _PROGRAMS and any(f"{each}(" in program_of(node) for each in FUNCTIONS)
        if is_in_product or (_rule(node) in FUSIONS and node.op_type in _OPERATORS):
            yield node


class _Graphs:
    """The main graphs of both models, and ONNX Runtime's graph of the original."""

    def __init__(self, original: ir.Model, new: ir.Model, optimized: ir.Model) -> None:
        self._names, self._kept = _names(original), _names(new)
        self._optimized = {output.name: node for node in optimized.graph for output in node.outputs if output.name}
        self._constants = {*optimized.graph.initializers}
        # ONNX Runtime appends the name of a fusion: matmul_1/MatMulAddFusion.
        self._products = {
            label(node).partition("/MatMul")[0]: node
            for node in optimized.graph
            if any(each in node.op_type for each in FUSIBLE_PRODUCTS)
        }

    def fusion(self, main: ir.Node, before: Mapping[str, float], after: Mapping[str, float]) -> _Fusion:
        """Returns a fusion; the profiles must have its nodes, by name."""
        if main.op_type in _PROGRAMS:
            return _Fusion(main, reason=IN_PRODUCT)
        try:
            new, results, products = self._after(main)
            reads = self._reads(new)
            old = self._between(reads, results)
            chain = [node for each in products for node in self._before_product(each, {*reads, *results})]
        except _NotAttributed as why:
            return _Fusion(main, reason=str(why))
        if label(main) not in after:
            return _Fusion(main, reason=CHANGED)
        nodes = dict.fromkeys(node for node in (*old, *chain) if node.op_type != "Constant")
        if not nodes or any(label(node) not in before for node in nodes):
            return _Fusion(main, reason=NOT_THERE)
        return _Fusion(main, tuple(new), tuple(nodes), bool(products) and not chain)

    def _reads(self, nodes: list[ir.Node]) -> set[str]:
        """Returns the names of the original's values from which new nodes compute.

        New nodes before them are added to `nodes`.
        """
        reads = set[str]()
        for node in nodes:
            for value in node.inputs:
                if value is None or value.const_value is not None:
                    continue
                producer = value.producer()
                if value.name in self._names:
                    reads.add(value.name)
                elif producer is None or producer.domain == DOMAIN or len(nodes) > _MAX_DISTANCE:
                    raise _NotAttributed(READS_OTHERS)
                elif producer not in nodes and not is_standard(producer, "Constant"):
                    nodes.append(producer)
        return reads

    def _after(self, main: ir.Node) -> tuple[list[ir.Node], list[str], list[ir.Node]]:
        """Returns the main node and those that convert its outputs, the original's values that they compute by name,
        and the products that read codes.
        """
        nodes, results, products = [main], list[str](), dict[ir.Node, None]()
        todo = list(main.outputs)
        for value in todo:
            if value.name in self._names:
                results.append(value.name)
                continue
            for user in dict.fromkeys(use.node for use in value.uses()):
                if user.domain == DOMAIN and user.op_type.removesuffix("Program") in BYTE_PRODUCTS:
                    products[user] = None
                elif is_standard(user, *_MOVES) and user not in nodes:
                    nodes.append(user)
                    todo += user.outputs
                elif user not in nodes:
                    raise _NotAttributed(READS_OTHERS)
        return nodes, results, list(products)

    def _between(self, reads: set[str], results: list[str]) -> dict[ir.Node, bool]:
        """Returns the nodes of the optimized graph that compute the results from what the new nodes read."""
        found: dict[ir.Node, bool] = {}
        for name in results:
            if name not in self._optimized:
                raise _NotAttributed(NOT_THERE)
            self._visit(self._optimized[name], reads | {*results}, found)
        return found

    def _before_product(self, new: ir.Node, given: set[str]) -> Iterator[ir.Node]:
        """Yields the nodes of the optimized graph between given values and the product that an integer one replaces."""
        product = self._products.get(label(new))
        if product is None:
            raise _NotAttributed(FUSED_WITH_OTHERS)
        for value in product.inputs:
            found: dict[ir.Node, bool] = {}
            if value is not None and self._reaches(value, given, found):
                yield from (node for node, depends in found.items() if depends)

    def _visit(self, node: ir.Node, given: set[str], found: dict[ir.Node, bool]) -> bool:
        """Adds a node, and those before it back to given values; returns whether it depends on these."""
        if node not in found:
            found[node] = False
            if len(found) > _MAX_DISTANCE:
                raise _NotAttributed(FUSED_WITH_OTHERS)
            if node.op_type != "Shape":
                depends = {self._reaches(value, given, found) for value in node.inputs if value is not None}
                found[node] = True in depends
        return found[node]

    def _reaches(self, value: ir.Value, given: set[str], found: dict[ir.Node, bool]) -> bool:
        if value.name in given:
            return True
        if value.name in self._constants or not value.name:
            return False
        node = self._optimized.get(value.name)
        is_kept = value.name in self._kept
        if node is not None and (node.op_type == "Constant" or (is_kept and node.op_type == "Shape")):
            return False
        if node is None or is_kept:
            raise _NotAttributed(FUSED_WITH_OTHERS)
        return self._visit(node, given, found)


def _names(model: ir.Model) -> set[str]:
    """Returns the names of the values that the main graph reads and computes, without constants."""
    values = [*model.graph.inputs, *(output for node in model.graph for output in node.outputs)]
    return {value.name for value in values if value.name}
