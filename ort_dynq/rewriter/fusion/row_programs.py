"""The rules for nodes of floats that become one program with what is around them.

[Add residual], LayerNormalization | RMSNormalization | its nodes, [quantization of each row]    -> RowProgram
Gelu | FastGelu | QuickGelu | Sigmoid, [Mul by a gate], quantization of each row                 -> RowProgram
Add | Mul | HardSwish | Clip | Sigmoid | PRelu | ..., one after the other                        -> RowProgram

Each node reads a tensor from memory and writes one; their program reads and writes it once. Its steps compute the bits
of the nodes, except those of sums and of activation functions with an arithmetic of their own.

After an integer product, functions and elementwise nodes are a part of the product's program already: see
programs/tails.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import onnx_ir as ir

from ...operators.program import SUM
from ...opsets import OPSET
from ..analysis.nodes import input_of, is_standard
from ..analysis.standard import ROW_SUMS
from ..policy.cost import saves_as_program, saves_with_function
from ..policy.float_fusions import WITHOUT_SIGMOID, is_left_alone, may_begin_fusion, may_end_fusion
from ..programs.building import build
from ..programs.fused_steps import FusedRows, FusedTranslation, is_activation, is_norm, is_power
from ..programs.region import Region, region_of
from ..programs.steps import ELEMENTWISE, elements_of, type_of
from ..rule import Context, Rule

_Found = tuple[Region, FusedRows]
_MIN_NODES = 5  # of a normalization: Pow, ReduceMean, Add, Pow, Mul


def _around(node: ir.Node, rows: FusedRows, takes: Callable[[ir.Node], bool], context: Context) -> _Found | None:
    region = region_of(node, rows, context, takes, FusedTranslation)
    return None if region is None else (region, rows)


def _of_last_dimension(node: ir.Node, context: Context) -> _Found | None:
    """Returns the region around a node that computes rows of its first input."""
    x = input_of(node, 0)
    if x is None or (rows := FusedRows(x, -1)).of_result(node) is None:
        return None
    return _around(node, rows, functools.partial(is_left_alone, facts=context.facts), context)


# Normalizations and functions before a quantization


def _match_norm(node: ir.Node, context: Context) -> _Found | None:
    found = _of_last_dimension(node, context) if is_norm(node) or is_standard(node, *ROW_SUMS) else None
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


def _match_activation(node: ir.Node, context: Context) -> _Found | None:
    found = _of_last_dimension(node, context) if is_activation(node) else None
    if found is None or "codes" not in found[0].program.outputs:
        return None
    return found if saves_with_function(node, found[0].passes) else None


# Elementwise nodes between other layers


def _match_elementwise(node: ir.Node, context: Context) -> _Found | None:
    takes = functools.partial(_takes, context=context)
    regions = [_around(node, rows, takes, context) for rows in _rows_of(node)] if takes(node) else []
    found = [each for each in regions if each is not None and not _has_few_numbers(each[0].src)]
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


NORMALIZATION = Rule("normalization", OPSET, _match_norm, build, fuses=True)
ACTIVATION = Rule("activation and quantization", OPSET, _match_activation, build, fuses=True)
ELEMENTWISE_NODES = Rule("elementwise nodes", OPSET, _match_elementwise, build, fuses=True)
