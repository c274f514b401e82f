"""The rule for float products of an activation that is quantized at run time and constant weights.

fake quantization | dequantization, MatMul | Gemm, [Mul by the rows' scale], [Add bias]
    -> quantization, QuantizedMatMul

The weights must be an 8-bit grid in every output channel, or in groups of it (products/grid.py). The activation may
have a scale for each group, too. The integer sums are exact where a sum of floats is rounded, so the last bits differ:
the rule does not apply if results must be exact. The weights may be a grid that was rounded to float16, as exporters of
float16 models store them, and the activation may be rounded to float16 after it is dequantized. The product then uses
the codes and scales, without that rounding.
"""

from __future__ import annotations

import functools
import math

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators.encodings import ScaleOrder
from ..analysis.folding import evaluate
from ..analysis.inference import Facts
from ..analysis.values import given_by_caller
from ..edit import Edit
from ..metadata import ACTIVATION
from ..policy.cost import is_tiny_product_of_groups, is_tiny_product_of_rows
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .activations import Activations, dequantizer_of, group_size_of
from .grid import Grid, grid_of
from .roundings import note_roundings, rounded_dequantizer_of, with_float32_scale
from .shared_grids import SharedGrids
from .tail import Channels, Tail, check_length


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("MatMul", "Gemm"):
        return None
    a, b, bias = [*node.inputs, None, None, None][:3]
    rounded = rounded_dequantizer_of(a)
    source = None if a is None else rounded or dequantizer_of(a)
    if a is None or b is None or source is None:
        return None
    if context.exact:
        raise Unconverted(Reason.EXACT)
    facts = context.facts
    grid = _grid(node, b, context)
    depth, columns = grid.codes.shape
    rank = 1 if a.shape is None else len(a.shape)
    channels = Channels(columns, rank=rank)
    if bias is not None and channels.bias(bias, facts) is None:
        raise Unconverted(Reason.BIAS)
    if is_tiny_product_of_rows(source, columns):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_ROWS)
    group_size = group_size_of(a, source, depth)
    common = math.gcd(group_size, grid.group_size)  # a multiple of 16, as both are; 0 stands for one group
    if (group_size or grid.group_size) and is_tiny_product_of_groups(a, columns):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_GROUPS)
    if group_size:
        grid = grid.split(common)
    check_length(grid)
    edit = context.edit("QuantizedMatMul", node)
    activations, count = context.shared(Activations), depth // (group_size or depth)
    activation = activations.of(a, source, count, context, edit)
    if rounded is not None:
        activation = with_float32_scale(activation, facts, edit)
    if group_size > common:
        activation = activations.in_smaller_groups(activation, count, group_size // common, edit)
    # The column scales come first: the product of two scales may be too small for float32.
    tail = Tail(node, node.outputs[0], activation.scale, grid.scale, ScaleOrder.COLUMN_FIRST, bias)
    if activation.scale is None and bias is None:  # the codes are multiplied without their scale, which follows
        if grid.has_int32_sums:
            tail.take_casts(channels)
        tail.take_scales(a, channels, facts)
    if bias is None:
        tail.take_bias(channels, facts)
    tail.replace(activation.codes, activation.zero_point, grid, channels, context, edit)
    if a.name is not None:
        edit.metadata[ACTIVATION] = a.name
    note_roundings(edit, grid, of_activation=rounded is not None)
    return edit


RULE = Rule("float matrix product", 13, _apply)


def _grid(node: ir.Node, b: ir.Value, context: Context) -> Grid:
    """Returns the grid of the weights, [K, N].

    Raises:
        Unconverted: They are not constant, not known or not a grid.
    """
    if not context.facts.is_constant(b):
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    if reason := given_by_caller(node):
        raise reason
    if node.op_type == "Gemm":
        alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
        if node.attributes.get_int("transA", 0) != 0 or alpha != 1 or beta != 1:
            raise Unconverted(Reason.GEMM_ATTRIBUTES)
    is_transposed = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0
    make = functools.partial(_grid_of, b, is_transposed, context.facts)
    grid = context.shared(SharedGrids).of(b, is_transposed, make)
    if grid is None:
        raise Unconverted(Reason.WEIGHTS_NOT_A_GRID)
    return grid


def _grid_of(b: ir.Value, is_transposed: bool, facts: Facts) -> Grid | None:
    """Returns the grid of constant weights, or of their transpose; None if they are not a grid.

    Raises:
        Unconverted: They are not known.
    """
    weights = evaluate(b, facts)
    if weights is None:
        raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
    return grid_of(weights.T if is_transposed else weights, may_be_rounded=True)
