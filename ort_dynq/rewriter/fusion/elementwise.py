"""The rule for elementwise nodes that stand between other layers: connected ones become one program.

Add | Mul | HardSwish | Clip | Sigmoid | PRelu | ..., one after the other    -> RowProgram

Each of these nodes reads a tensor from memory and writes one; their program reads and writes it once. Its steps compute
the bits of the nodes, except those of activation functions with an arithmetic of their own.

After an integer product, such nodes are a part of the product's program already: see programs/tails.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import onnx_ir as ir

from ...opsets import OPSET
from ..analysis.nodes import is_standard
from ..policy.cost import saves_as_program
from ..policy.float_fusions import WITHOUT_SIGMOID, is_left_alone, may_begin_fusion, may_end_fusion
from ..programs.building import build
from ..programs.fused_steps import FusedRows, FusedTranslation, is_activation, is_power
from ..programs.region import Region, region_of
from ..programs.steps import ELEMENTWISE, elements_of, type_of
from ..rule import Context, Rule


def _match(node: ir.Node, context: Context) -> tuple[Region, FusedRows] | None:
    if not _takes(node, context):
        return None
    takes = functools.partial(_takes, context=context)
    regions = [(region_of(node, rows, context, takes, FusedTranslation), rows) for rows in _rows_of(node)]
    found = [(region, rows) for region, rows in regions if region is not None and not _has_few_numbers(region.src)]
    best = max(found, key=lambda each: each[0].passes, default=None)
    return best if best is not None and saves_as_program(best[0].src, best[0].nodes, best[0].passes) else None


def _takes(node: ir.Node, context: Context) -> bool:
    """Returns whether a program may have a node: ONNX Runtime neither folds it nor fuses it with others."""
    if not (is_standard(node, *ELEMENTWISE) or is_activation(node) or is_power(node)):
        return False
    if type_of(node.outputs[0]) != ir.DataType.FLOAT:
        return False
    is_fused = may_end_fusion(node, context.facts.is_constant, WITHOUT_SIGMOID) or may_begin_fusion(
        node, WITHOUT_SIGMOID
    )
    return is_left_alone(node, context.facts) and (is_activation(node) or not is_fused)


def _rows_of(node: ir.Node) -> Iterator[FusedRows]:
    """Yields the rows that nodes around this one may have: all elements, those of a channel, or the last dimension.

    The tensor is the first operand: shapes that are not known are followed from there.
    """
    for x in dict.fromkeys(elements_of(node)):
        if type_of(x) != ir.DataType.FLOAT or x.const_value is not None:
            continue
        rank = 0 if x.shape is None else len(x.shape)
        for axis in dict.fromkeys((0, *((2 - rank,) if rank > 2 else ()), *((-1,) if rank > 1 else ()))):
            yield FusedRows(x, axis)


def _has_few_numbers(x: ir.Value) -> bool:
    """Returns whether a tensor has one number for each row or channel."""
    node = x.producer()
    is_reduced = node is not None and node.op_type.startswith("Reduce")  # standard ones, and those of ort_dynq
    return is_reduced or (x.shape is not None and len(x.shape) > 0 and x.shape[-1] == 1)


RULE = Rule("elementwise nodes", OPSET, _match, build, fuses=True)
