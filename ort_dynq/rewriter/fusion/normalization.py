"""The rule for normalizations: with the residual before them and the quantization after them, they become one program.

[Add residual], LayerNormalization | RMSNormalization | its nodes, [quantization of each row]    -> RowProgram
"""

from __future__ import annotations

import functools

import onnx_ir as ir

from ...operators.program import SUM
from ...opsets import OPSET
from ..analysis.nodes import input_of, is_standard
from ..analysis.standard import ROW_SUMS
from ..policy.float_fusions import is_left_alone
from ..programs.building import build
from ..programs.fused_steps import FusedRows, FusedTranslation, is_norm
from ..programs.region import Region, region_of
from ..rule import Context, Rule

_MIN_NODES = 5  # of a normalization: Pow, ReduceMean, Add, Pow, Mul


def _match(node: ir.Node, context: Context) -> tuple[Region, FusedRows] | None:
    x = input_of(node, 0)
    if x is None or not (is_norm(node) or is_standard(node, *ROW_SUMS)):
        return None
    rows = FusedRows(x, -1)
    if rows.of_result(node) is None:
        return None

    takes = functools.partial(is_left_alone, facts=context.facts)
    region = region_of(node, rows, context, takes, FusedTranslation)
    if region is None or all(step.operator != SUM for step in region.program.steps):
        return None
    # ONNX Runtime's own LayerNormalization is as fast, but not with a residual.
    has_residual = any(operand.startswith("tensor") for step in region.program.steps for operand in step.operands)
    is_faster = has_residual or "codes" in region.program.outputs or _multiplies_by_root(node, region)
    return (region, rows) if is_faster else None


def _multiplies_by_root(node: ir.Node, region: Region) -> bool:
    """Returns whether nodes of a normalization multiply by an inverse root; ONNX Runtime fuses those that divide."""
    steps = region.program.steps
    has_root = any(step.operator == "Sqrt" for step in steps)
    inverts = any(step.operator == "Reciprocal" or step[:1] + step.operands[:1] == ("Div", "1.0") for step in steps)
    return not is_norm(node) and len(region.nodes) >= _MIN_NODES and has_root and inverts


RULE = Rule("normalization", OPSET, _match, build, fuses=True)
