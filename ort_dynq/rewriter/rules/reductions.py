"""ReduceMax(Abs(x))               -> ReduceAbsMax(x)
ReduceMin(x) and ReduceMax(x)   -> ReduceMinMax(x); one of them alone over the first dimensions, too

where a quantization's parameters follow from them, and no other rule has made the range part of a whole chain: ranges
over the first dimensions, or over all but one, and chains that are left as they are behind the range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS, label
from ...operators import DOMAIN
from ..edit import Replacement, call, replace
from ..facts.inference import Facts
from ..facts.ort_fusions import FEWEST_ELEMENTS
from ..facts.shapes import axes_of
from ..facts.values import integer, op, same
from ..report import Finding

RULE = "range"
_OLDEST_OPSET = 13
_MOST_NODES = 64
# What leads from a range to a scale and a zero point, and the quotient whose rounding is the quantization itself.
_STEPS = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Div", "Equal", "Expand", "Floor", "Identity", "Max", "Min", "Mul", "Neg"}
    | {"Reciprocal", "Reshape", "Squeeze", "Sub", "Unsqueeze", "Where"}
)
_ENDS = frozenset({"Round", "QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class _Reduction:
    """What a ReduceMin or a ReduceMax is of, and over which dimensions, as ReduceAbsMax's attributes have it."""

    x: ir.Value
    axis: int
    count: int
    kept: int
    keepdims: int

    @property
    def attributes(self) -> dict[str, int]:
        return {"axis": self.axis, "count": self.count, "reduce_others": self.kept, "keepdims": self.keepdims}


def convert(graph: ir.Graph | ir.Function, path: str, facts: Facts) -> list[Finding]:
    """Converts such ranges in one graph; returns what was done and what was left."""
    findings: list[Finding] = []
    if facts.opset < _OLDEST_OPSET:
        return findings
    for node in list(graph):
        if node.graph is None or op(node.outputs[0], "ReduceMin", "ReduceMax") is not node:
            continue
        outcome = _match(node)
        if isinstance(outcome, str):
            findings.append(Finding(label(node), node.op_type, path, RULE, None, outcome))
        elif outcome is not None:
            findings.append(Finding(label(node), node.op_type, path, RULE, outcome.operator))
            replace(node, graph, outcome, RULE, facts)
    return findings


def _match(node: ir.Node) -> Replacement | str | None:
    reduction = _reduction(node)
    if reduction is None or reduction.x.dtype != ir.DataType.FLOAT:
        return None
    abs_ = op(reduction.x, "Abs")
    if node.op_type == "ReduceMax" and abs_ is not None and abs_.inputs[0] is not None and abs_.graph is node.graph:
        if not _quantizes(node.outputs[0]):
            return None
        if len(reduction.x.uses()) != 1 or reduction.x.is_graph_output():
            return "the magnitudes are used elsewhere, too"
        new = call("ReduceAbsMax", [same(abs_.inputs[0])], **reduction.attributes)
        return Replacement("ReduceAbsMax", [new], {node.outputs[0]: new.outputs[0]}, node)
    other = _other_end(node, reduction)
    if other is None and not _is_slow_alone(reduction):
        return None
    ends = [node] if other is None else [node, other]
    if not all(_quantizes(end.outputs[0]) for end in ends):
        return None
    new = call("ReduceMinMax", [reduction.x], **reduction.attributes)
    values = {end.outputs[0]: new.outputs[int(end.op_type == "ReduceMax")] for end in ends}
    return Replacement("ReduceMinMax", [new], values, node)


def _is_slow_alone(reduction: _Reduction) -> bool:
    """Whether one end takes longer than both in one pass, as it does over the first dimensions."""
    shape = reduction.x.shape
    if reduction.kept or reduction.axis not in (0, -len(shape or ())) or reduction.count == len(shape or ()):
        return False
    return shape is None or not shape.is_static() or math.prod(shape.numpy()) >= FEWEST_ELEMENTS


def _other_end(node: ir.Node, reduction: _Reduction) -> ir.Node | None:
    """The ReduceMin that belongs to a ReduceMax, or the other way round. `node` is the first of the two."""
    op_type = "ReduceMin" if node.op_type == "ReduceMax" else "ReduceMax"
    for use in reduction.x.uses():
        other = use.node
        if other.op_type == op_type and other.graph is node.graph and _reduction(other) == reduction:
            return other
    return None


def _reduction(node: ir.Node) -> _Reduction | None:
    """None where the dimensions are not known, or are neither a run nor all but a run."""
    x, axes, keepdims = node.inputs[0], axes_of(node), integer(node, "keepdims", 1)
    if x is None or axes is None or keepdims is None or node.domain not in STANDARD_DOMAINS:
        return None
    if not axes:
        return None if integer(node, "noop_with_empty_axes", 0) != 0 else _Reduction(x, 0, 0, 1, keepdims)
    if x.shape is not None:
        rank = len(x.shape)
        axes = [axis % rank for axis in axes] if rank else axes
        others = [axis for axis in range(rank) if axis not in axes]
        if not _is_run(sorted(axes)) and _is_run(others):
            return _Reduction(x, others[0], len(others), 1, keepdims)
    axes = sorted(axes)
    return _Reduction(x, axes[0], len(axes), 0, keepdims) if _is_run(axes) else None


def _is_run(axes: list[int]) -> bool:
    """Whether sorted axes are neighbours, which of negative and of other ones together is not known."""
    return axes == list(range(axes[0], axes[0] + len(axes))) and (axes[0] < 0) == (axes[-1] < 0)


def _quantizes(value: ir.Value) -> bool:
    """Whether what follows from `value` is a parameter of a quantization."""
    todo, seen = [value], {value}
    while todo and len(seen) <= _MOST_NODES:
        for use in todo.pop().uses():
            node = use.node
            if (node.domain == DOMAIN and use.idx > 0) or (node.domain in STANDARD_DOMAINS and node.op_type in _ENDS):
                return True
            if node.domain in STANDARD_DOMAINS and node.op_type in _STEPS and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                todo.append(node.outputs[0])
    return False
