"""The rule for quantizations with scales that are computed at run time: they become RowProgram.

range, scale, zero point, quantize, dequantize, and what stands around them    -> RowProgram

Each node becomes a step that computes the same bits, so that any spelling is converted, also before a product: it reads
the codes and scales, which are outputs. The rule applies to the rounding of a quotient by a scale that is computed at
run time, also by a Cast to int32, and to a QuantizeLinear with such a scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx_ir as ir

from ...graphs import name_in_model
from ...operators import DOMAIN
from ...operators.program import REDUCTIONS
from ...opsets import OPSET
from ..analysis.bounds import all_bounds_of
from ..analysis.inference import Facts
from ..analysis.limits import VISITED
from ..analysis.nodes import cast_to, is_standard, operand, producer_of
from ..analysis.shapes import broadcasts, is_elementwise_of, same_shape
from ..analysis.standard import LINEAR, ROUNDING, SCALING, SHAPING
from ..analysis.types import check_type
from ..analysis.values import Values
from ..policy.cost import saves_passes
from ..policy.float_fusions import may_begin_fusion, may_end_fusion
from ..policy.ort_fusions import fused, is_dynamic, is_fused_with_neighbors
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .building import build
from .region import Region, region_of
from .rows import Kind, Rows, axis_of
from .steps import ELEMENTWISE, elements_of, is_linear


def _match(node: ir.Node, context: Context) -> tuple[Region, Rows] | None:
    if node.op_type == "Cast" and not _truncates(node, context):
        return None
    if node.op_type == "QuantizeLinear" and not _is_step(node, context):
        return None
    before = _before(node, context.facts)
    for rows in _rows_of(before, context.facts):
        if rows.kind(node.outputs[0]) == Kind.VECTOR:
            region = region_of(node, rows, context, _Choice(before, rows, context))
            if region is not None and _saves(node, region):
                return region, rows
            if node.op_type == "Round":
                check_type("x", rows.x, (ir.DataType.FLOAT,))
                if region is not None:  # there is none if nothing reads the codes
                    raise region.cut or Unconverted(Reason.PROGRAM_TOO_SHORT)
            return None
    if node.op_type == "Round":
        _check_quotient(node, context.facts)
    return None


def _truncates(node: ir.Node, context: Context) -> bool:
    """Returns whether a node casts floats that are no integers to int32."""
    source = node.inputs[0] if cast_to(node) == ir.DataType.INT32 else None
    is_float = source is not None and source.dtype == ir.DataType.FLOAT
    return is_float and not context.shared(Values).known(source).is_integer


def _saves(node: ir.Node, region: Region) -> bool:
    """Returns whether a program saves passes: one with the range and a quantization in one node always does."""
    has_range = any(step.operator in REDUCTIONS for step in region.program.steps)
    return has_range if node.op_type == "QuantizeLinear" else saves_passes(region.passes)


RULE = Rule("row program", OPSET, _match, build, reports_opset=True, operators=ROUNDING | {"Cast", "QuantizeLinear"})


def _check_quotient(node: ir.Node, facts: Facts) -> None:
    """Raises Unconverted if a node rounds a quotient by a scale that is computed at run time."""
    value = all_bounds_of(operand(node)).value
    total = producer_of(value, "Add")
    for each in (value, *(total.inputs if total is not None else ())):
        division = producer_of(each, "Div")
        if division is None or None in division.inputs or any(map(facts.is_constant, division.inputs)):
            continue
        x, scale = operand(division), operand(division, 1)
        negated = producer_of(x, "Neg")
        if not same_shape(x, scale) and not is_elementwise_of(scale, x if negated is None else operand(negated)):
            check_type("x", x, (ir.DataType.FLOAT,))
            if broadcasts(scale, x):
                raise Unconverted(Reason.SCALE_OF_OTHER_AXES)
            unknown = scale if scale.shape is None or x.shape is not None else x
            raise Unconverted(Reason.SCALE_BROADCAST_TO_X, name=name_in_model(unknown))


def _is_step(node: ir.Node, context: Context) -> bool:
    """Returns whether a QuantizeLinear or DequantizeLinear may be a step: ONNX Runtime does not fuse it."""
    return is_linear(node) and is_dynamic(node, node.op_type, context.facts) and fused(node, context) is None


class _Choice:
    """Chooses the nodes that a program may have: those that ONNX Runtime neither folds nor fuses with others."""

    def __init__(self, before: list[ir.Node], rows: Rows, context: Context) -> None:
        self._rows, self._values, self._facts = rows, context.shared(Values), context.facts
        self._context = context
        after = [use.node for use in rows.x.uses()]
        for each in after:
            if not VISITED.is_passed(len(after) + 1) and is_standard(each, *ELEMENTWISE, *SHAPING, *REDUCTIONS):
                after += [use.node for use in each.outputs[0].uses() if use.node not in after]
        self._before, self._after = set(before), set(after)

    def __call__(self, node: ir.Node) -> bool:
        """Returns whether a program may have a node."""
        is_constant = self._facts.is_constant
        if self._facts.is_folded(node) or is_fused_with_neighbors(node, is_constant):
            return False
        if is_standard(node, *LINEAR):
            return _is_step(node, self._context)
        if self._rows.kind(node.outputs[0]) != Kind.VECTOR or node.domain == DOMAIN:
            return True
        if node not in self._after:  # fusions take it together with what is before it
            return not self._context.options.fuse and not may_end_fusion(node, is_constant)
        is_quantization = node in self._before or any(self._values.known(each).is_integer for each in elements_of(node))
        return is_quantization or not may_begin_fusion(node)


def _before(node: ir.Node, facts: Facts) -> list[ir.Node]:
    """Returns a node and the nodes before it that can be steps, the nearest ones first."""
    found = [node]
    for each in found:
        for value in elements_of(each):
            producer = value.producer()
            if producer is None or producer in found or VISITED.is_passed(len(found) + 1) or facts.is_folded(producer):
                continue
            if producer.graph is node.graph and is_standard(producer, *ELEMENTWISE, *SHAPING, *REDUCTIONS):
                found.append(producer)
    return found


def _rows_of(before: list[ir.Node], facts: Facts) -> Iterator[Rows]:
    """Yields the rows of each tensor that is scaled by numbers computed at run time, the nearest one first.

    A row has the dimensions of a reduction. Without one, it is the last dimension.
    """
    reductions = [node for node in before if is_standard(node, *REDUCTIONS)]
    axes = dict.fromkeys([*(axis for each in reductions if (axis := axis_of(each)) is not None), -1])
    for node in before:
        factors = node.inputs[:2]
        if not is_standard(node, *SCALING, "QuantizeLinear"):
            continue
        if None in factors or any(map(facts.is_constant, factors)):
            continue
        a, b = (each for each in factors if each is not None)
        for x, scale in ((a, b),) if node.op_type != "Mul" else ((a, b), (b, a)):
            for axis in dict.fromkeys([*axes, *_axis_of_numbers(scale, x)]):
                rows = Rows(x, axis)
                is_squeezed = axis == 0 or node.op_type == "QuantizeLinear"
                kinds = (Kind.COLUMN, *([Kind.SQUEEZED] if is_squeezed else []))
                is_number = rows.is_number(scale) or rows.is_apart(scale)
                if (rows.kind(scale) in kinds or is_number) and rows.of_result(node) == Kind.VECTOR:
                    yield rows


def _axis_of_numbers(scale: ir.Value, x: ir.Value) -> Iterator[int]:
    """Yields the first of the dimensions of x that share a scale, negative, if the shape of the scale shows it."""
    if scale.shape is not None and x.shape is not None and len(scale.shape) == len(x.shape):
        ones = list(itertools.takewhile(lambda dim: dim == 1, reversed(scale.shape)))
        if 0 < len(ones) < len(scale.shape):
            yield -len(ones)
