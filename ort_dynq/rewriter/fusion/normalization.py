"""The rules for normalizations and activation functions: they become one program with what is around them.

[Add residual], LayerNormalization | RMSNormalization | its nodes, [quantization of each row]    -> RowProgram
Gelu | FastGelu | QuickGelu | Sigmoid, [Mul by a gate], quantization of each row                 -> RowProgram

After an integer product, an activation function is a part of the product's program already: see programs/tails.py.
"""

from __future__ import annotations

import functools

import onnx_ir as ir

from ...operators.program import SUM
from ...opsets import OPSET
from ..analysis.nodes import input_of, is_standard
from ..analysis.standard import ROW_SUMS
from ..policy.cost import saves_with_function
from ..policy.float_fusions import is_left_alone
from ..programs.building import build
from ..programs.fused_steps import FusedRows, FusedTranslation, is_activation, is_norm
from ..programs.region import Region, region_of
from ..rule import Context, Rule

_MIN_NODES = 5  # of a normalization: Pow, ReduceMean, Add, Pow, Mul


def _around(node: ir.Node, context: Context) -> tuple[Region, FusedRows] | None:
    """Returns the region around a node whose first input has the rows."""
    x = input_of(node, 0)
    if x is None or (rows := FusedRows(x, -1)).of_result(node) is None:
        return None
    takes = functools.partial(is_left_alone, facts=context.facts)
    region = region_of(node, rows, context, takes, FusedTranslation)
    return None if region is None else (region, rows)


def _match(node: ir.Node, context: Context) -> tuple[Region, FusedRows] | None:
    found = _around(node, context) if is_norm(node) or is_standard(node, *ROW_SUMS) else None
    if found is None or all(step.operator != SUM for step in found[0].program.steps):
        return None
    program = found[0].program
    # ONNX Runtime's own LayerNormalization is as fast, but not with a residual.
    has_residual = any(operand.startswith("tensor") for step in program.steps for operand in step.operands)
    return found if has_residual or "codes" in program.outputs or _multiplies_by_root(node, found[0]) else None


def _multiplies_by_root(node: ir.Node, region: Region) -> bool:
    """Returns whether nodes of a normalization multiply by an inverse root; ONNX Runtime fuses those that divide."""
    steps = region.program.steps
    has_root = any(step.operator == "Sqrt" for step in steps)
    inverts = any(step.operator == "Reciprocal" or step[:1] + step.operands[:1] == ("Div", "1.0") for step in steps)
    return not is_norm(node) and len(region.nodes) >= _MIN_NODES and has_root and inverts


def _match_activation(node: ir.Node, context: Context) -> tuple[Region, FusedRows] | None:
    found = _around(node, context) if is_activation(node) else None
    if found is None or "codes" not in found[0].program.outputs:
        return None
    return found if saves_with_function(node, found[0].passes) else None


RULE = Rule("normalization", OPSET, _match, build, fuses=True)
ACTIVATION = Rule("activation and quantization", OPSET, _match_activation, build, fuses=True)
