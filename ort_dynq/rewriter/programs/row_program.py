"""The rule for quantizations that no specialised operator computes: they become RowProgram.

range, scale, zero point, quantize, dequantize, and what stands around them    -> RowProgram

Each node becomes a step that computes the same bits, so that any spelling is converted, also in products whose codes
and scales are the outputs. The rule applies to the rounding of a quotient by a scale that is computed at run time.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...opsets import OPSET
from ..analysis.inference import Facts
from ..analysis.nodes import is_standard, producer_of
from ..analysis.shapes import axes_of, broadcasts, same_shape
from ..analysis.values import Values
from ..edit import Edit, call, constant
from ..policy.cost import has_few_elements, saves_passes
from ..policy.ort_fusions import is_fused_with_neighbors
from ..rule import Context, Rule
from .region import Region, region_of
from .rows import Kind, Rows
from .steps import ELEMENTWISE, MOVES, REDUCTIONS, elements_of

_FARTHEST = 64


def _match(node: ir.Node, context: Context) -> tuple[Region, Rows] | None:
    if not is_standard(node, "Round", "Floor", "Ceil"):
        return None
    facts = context.facts
    before = _before(node, facts)
    quotient = next(filter(None, (_dividend(each, facts) for each in before)), None)
    if quotient is None or has_few_elements(quotient):
        return None
    for axis in _axes(before, Rows(quotient, -1)):
        rows = Rows(quotient, axis)
        if rows.kind(node.outputs[0]) != Kind.VECTOR:
            continue
        region = region_of(
            node,
            rows,
            context.shared(Values),
            lambda each: not facts.is_folded(each) and not is_fused_with_neighbors(each, facts.is_constant),
        )
        if region is not None and saves_passes(region.passes):
            return region, rows
    return None


def _build(match: tuple[Region, Rows], edit: Edit) -> None:
    region, rows = match
    before, rank = region.before, len(rows.x.shape or ())
    nothing = [constant(np.zeros(1, np.float32))] if len(region.operands) < 4 else []
    like = constant(np.zeros((), region.code_type.numpy()))
    edit.insert(like, *nothing, before=before)
    operands = [*region.operands, *(nothing[0].outputs[0] for _ in range(4 - len(region.operands)))]
    main = call(
        "RowProgram",
        [region.src, like.outputs[0], *operands],
        program=str(region.program),
        axis=rows.axis,
        code_type=int(region.code_type),
    )
    edit.insert_main(main, before=before)
    names = ["codes", "zero_point", "dst", "dst_2", "scale", "number"]
    replaced = set[str]()
    for old, output in region.outputs.items():
        new = main.outputs[names.index(output)]
        if rows.kind(old) == Kind.SQUEEZED:
            assert old.shape is not None
            axes = constant(np.arange(len(old.shape) - rank, 0))
            new = edit.insert(axes, ir.node("Squeeze", [new, axes.outputs[0]]), before=before)
        elif output in replaced:
            new = edit.insert(ir.node("Identity", [new]), before=before)
        else:
            replaced.add(output)
        edit.replace(old, new)


RULE = Rule("row program", OPSET, _match, _build)


def _before(node: ir.Node, facts: Facts) -> list[ir.Node]:
    """Returns a node and the nodes before it that can be steps, the nearest ones first."""
    found = [node]
    for each in found:
        for value in elements_of(each):
            producer = value.producer()
            if producer is None or producer in found or len(found) == _FARTHEST or facts.is_folded(producer):
                continue
            if producer.graph is node.graph and is_standard(producer, *ELEMENTWISE, *MOVES, *REDUCTIONS):
                found.append(producer)
    return found


def _dividend(node: ir.Node, facts: Facts) -> ir.Value | None:
    """Returns the tensor that a Div or Mul scales by numbers computed at run time, or None."""
    if not is_standard(node, "Div", "Mul") or None in node.inputs or any(map(facts.is_constant, node.inputs)):
        return None
    a, b = (each for each in node.inputs if each is not None)
    pairs = ((a, b),) if node.op_type == "Div" else ((a, b), (b, a))
    return next((x for x, scale in pairs if broadcasts(scale, x) and not same_shape(scale, x)), None)


def _axes(before: list[ir.Node], rows: Rows) -> list[int]:
    """Returns the first of the dimensions that may form a row: those of the reductions before the quantization."""
    found = [
        rows.axis_of(node)
        for node in before
        if producer_of(node.outputs[0], *REDUCTIONS) is not None and axes_of(node) is not None
    ]
    return list(dict.fromkeys([*(axis for axis in found if axis is not None), -1]))
