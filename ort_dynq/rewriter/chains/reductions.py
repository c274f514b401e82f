"""The rule for ranges that no other rule has made part of a whole chain.

ReduceMax(Abs(x))                                           -> ReduceAbsMax(x)
ReduceMin(x), ReduceMax(x)                                  -> ReduceMinMax(x)
ReduceMin(x) | ReduceMax(x), over the first dimensions      -> ReduceMinMax(x)

The rule applies if the parameters of a quantization are computed from the range: over the first dimensions, over all
dimensions but one, or before an unconverted chain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import onnx_ir as ir

from ...operators import DOMAIN
from ..analysis.limits import VISITED
from ..analysis.nodes import is_standard, producer_of
from ..analysis.shapes import axes_of
from ..analysis.standard import (
    ARITHMETIC,
    BOUNDING,
    CHOOSING,
    DIVIDING,
    LINEAR,
    PASSING,
    RANGES,
    REPEATING,
    RESHAPES,
    SIGNS,
)
from ..edit import Edit, call
from ..policy.cost import has_few_elements
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule

# The operators between a range and a scale, a zero point, or the quotient that is rounded.
_STEPS = SIGNS | ARITHMETIC | DIVIDING | BOUNDING | CHOOSING | PASSING | RESHAPES | REPEATING | {"Equal", "Floor"}
_ENDS = LINEAR | {"Round"}


@dataclass(frozen=True)
class _Reduction:
    """The operand of a ReduceMin or ReduceMax, and the attributes of ReduceAbsMax."""

    x: ir.Value
    axis: int
    count: int
    reduce_others: int
    keepdims: int


class _Range(NamedTuple):
    """A range that ReduceAbsMax or ReduceMinMax computes, and the nodes that it replaces, in their order."""

    operator: str
    reduction: _Reduction
    ends: tuple[ir.Node, ...]


def _match(node: ir.Node, context: Context) -> _Range | None:
    reduction = _reduction(node)
    if reduction is None or reduction.x.dtype != ir.DataType.FLOAT:
        return None
    abs_ = producer_of(reduction.x, "Abs")
    if node.op_type == "ReduceMax" and abs_ is not None and abs_.inputs[0] is not None and abs_.graph is node.graph:
        if not _quantizes(node.outputs[0]):
            return None
        if len(reduction.x.uses()) != 1 or reduction.x.is_graph_output():
            raise Unconverted(Reason.MAGNITUDES_USED_ELSEWHERE)
        # It still reads an Identity or Cast: ONNX Runtime 1.32 fails to remove one that only a Mul by 1 / v reads.
        return _Range("ReduceAbsMax", replace(reduction, x=abs_.inputs[0]), (node,))
    other = _other_end(node, reduction)
    if other is None and not _is_slow_alone(reduction):
        return None
    ends = (node,) if other is None else (node, other)
    return _Range("ReduceMinMax", reduction, ends) if all(_quantizes(end.outputs[0]) for end in ends) else None


def _build(match: _Range, edit: Edit) -> None:
    attributes = dict(vars(match.reduction))
    new = call(match.operator, [attributes.pop("x")], **attributes)
    edit.insert_main(new, before=match.ends[0])
    for end in match.ends:
        edit.replace(end.outputs[0], new.outputs[-1 if end.op_type == "ReduceMax" else 0])


RULE = Rule("range", 13, _match, _build, operators=RANGES)


def _is_slow_alone(reduction: _Reduction) -> bool:
    """Returns whether a single reduction takes longer than both in one pass, as over the first dimensions."""
    rank = len(reduction.x.shape or ())
    if reduction.reduce_others or reduction.axis not in (0, -rank) or reduction.count == rank:
        return False
    return not has_few_elements(reduction.x)


def _other_end(node: ir.Node, reduction: _Reduction) -> ir.Node | None:
    """Returns the ReduceMin that belongs to a ReduceMax, or the reverse; `node` is the first of the two."""
    found = (use.node for use in reduction.x.uses() if use.node.graph is node.graph and is_standard(use.node, *RANGES))
    return next((each for each in found if each.op_type != node.op_type and _reduction(each) == reduction), None)


def _reduction(node: ir.Node) -> _Reduction | None:
    """Returns the reduction; None if its dimensions are not known, or not a run and not all but a run."""
    x, axes = node.inputs[0], axes_of(node)
    keepdims = int(node.attributes.get_int("keepdims", 1) == 1)  # ONNX Runtime takes every other value for 0
    if x is None or axes is None:
        return None
    if not axes:
        return None if node.attributes.get_int("noop_with_empty_axes", 0) != 0 else _Reduction(x, 0, 0, 1, keepdims)
    if x.shape is not None:
        rank = len(x.shape)
        axes = [axis % rank for axis in axes] if rank else axes
        others = [axis for axis in range(rank) if axis not in axes]
        if not _is_run(sorted(axes)) and _is_run(others):
            return _Reduction(x, others[0], len(others), 1, keepdims)
    axes = sorted(axes)
    return _Reduction(x, axes[0], len(axes), 0, keepdims) if _is_run(axes) else None


def _is_run(axes: list[int]) -> bool:
    """Returns whether sorted axes are consecutive. It is not known if some axes are negative and others are not."""
    return axes == list(range(axes[0], axes[0] + len(axes))) and (axes[0] < 0) == (axes[-1] < 0)


def _quantizes(value: ir.Value) -> bool:
    """Returns whether a parameter of a quantization is computed from `value`."""
    todo, seen = [value], {value}
    while todo and not VISITED.is_passed(len(seen)):
        for use in todo.pop().uses():
            if (use.node.domain == DOMAIN and use.idx > 0) or is_standard(use.node, *_ENDS):
                return True
            if is_standard(use.node, *_STEPS) and (result := use.node.outputs[0]) not in seen:
                seen.add(result)
                todo.append(result)
    return False
