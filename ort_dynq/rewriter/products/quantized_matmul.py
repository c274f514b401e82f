"""Builds QuantizedMatMul from codes, weights and the epilogue of a product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import ScaleOrder
from ...operators.packing import pack
from ..codes.codes import Codes
from ..edit import Edit, call
from ..metadata import HAS_OFFSET
from ..shared_initializers import SharedInitializers
from ..weights.grid import QuantizedWeights, stacked
from .corrections import Correction
from .einsum import Einsum
from .epilogue import Epilogue


def build_quantized_matmul(
    epilogue: Epilogue,
    codes: Codes,
    grid: QuantizedWeights,
    edit: Edit,
    correction: Correction | None = None,
    einsum: Einsum | None = None,
) -> None:
    """Puts QuantizedMatMul in place of a matrix product and its epilogue.

    Args:
        epilogue: The nodes after the product: scales and bias.
        codes: The codes of the activation.
        grid: The weights. The epilogue has their scales.
        edit: The edit of the product.
        correction: What is subtracted from the sums, if it is not the zero point times the sums of the weights.
        einsum: The Einsum that the product is part of, if it is one.
    """
    main, before = quantized_matmul(epilogue, codes, grid, edit, correction), epilogue.last_node
    result = epilogue.moved(edit.insert_main(main, before=before), edit)
    if codes.offset is not None:
        edit.metadata[HAS_OFFSET] = "1"
        result = edit.insert(ir.node("Add", [result, _of_offset(codes, grid, before, edit)]), before=before)
    if grid.offset is not None:
        edit.metadata[HAS_OFFSET] = "1"
        result = edit.insert(ir.node("Add", [result, _of_zero_points(codes, grid, before, edit)]), before=before)
    edit.replace(epilogue.last, result if einsum is None else einsum.result(result, edit, before))


def quantized_matmul(
    epilogue: Epilogue, codes: Codes, grid: QuantizedWeights, edit: Edit, correction: Correction | None = None
) -> ir.Node:
    """Returns a new QuantizedMatMul, which is not inserted; see :func:`build_quantized_matmul`."""
    shared = edit.shared(SharedInitializers)
    row, column, bias = scales_and_bias(epilogue, codes, edit)
    zero_point = grid.zero_point if grid.zero_point.ndim == 1 else stacked(grid.zero_point, grid.stack)
    weights, zero_points = (shared.of(each, edit) for each in (_packed(grid), zero_point))
    sums = (correction or Correction()).build_sums(stacked(grid.sums, grid.stack), edit, epilogue.last_node)
    return call(
        "QuantizedMatMul",
        [codes.codes, row, codes.zero_point, weights, zero_points, column, sums, bias],
        bits=grid.bits,
        group_size=grid.group_size,
        terms=codes.terms,
        scale_order=int(epilogue.scale_order),
    )


def _packed(grid: QuantizedWeights) -> npt.NDArray[np.int8]:
    """Returns packed weights, [stack..., blocks, units, 16, 4]."""
    if not grid.stack:
        return pack(grid.codes, grid.bits)
    matrices = stacked(grid.codes, grid.stack).reshape(math.prod(grid.stack), len(grid.codes), grid.columns)
    packed = np.stack([pack(matrix, grid.bits) for matrix in matrices])
    return packed.reshape(*grid.stack, *packed.shape[1:])


def _of_offset(codes: Codes, grid: QuantizedWeights, before: ir.Node, edit: Edit) -> ir.Value:
    """Returns the product of an offset of rows, or of their groups, and the weights: offsets times sums of weights."""
    sums = grid.sums_of_weights
    if not codes.has_offset_of_groups:
        sums = sums.sum(0, keepdims=bool(grid.stack))
    sums = stacked(sums, grid.stack)
    inputs = [codes.offset, edit.shared(SharedInitializers).of(sums.astype(np.float32), edit)]
    return edit.insert(ir.node("MatMul" if codes.has_offset_of_groups else "Mul", inputs), before=before)


def _of_zero_points(codes: Codes, grid: QuantizedWeights, before: ir.Node, edit: Edit) -> ir.Value:
    """Returns what zero points of weights that are no codes add: sums of the activation over groups times offsets.

    A product by weights of 1 has these sums, exact but for its scale. The offset of an activation is not in them.
    """
    assert grid.offset is not None
    shared, groups = edit.shared(SharedInitializers), len(grid.offset)
    depth = len(grid.codes)
    row = edit.add_constant(np.float32(1), before=edit.node) if codes.scale is None else codes.scale
    if codes.repeats_scale:
        shape = edit.insert(ir.node("Shape", [codes.zero_point]), before=before)
        row = edit.insert(ir.node("Expand", [row, shape]), before=before)
    sums = np.broadcast_to(np.int32(depth // groups), (groups, groups))
    ones, scales = pack(np.ones((depth, groups), np.int8), 8), np.eye(groups, dtype=np.float32)
    arrays: list[npt.NDArray[Any]] = [ones, np.zeros(1, np.int8), scales, np.ascontiguousarray(sums)]
    arrays.append(np.full(groups, -0.0, np.float32))
    product = call(
        "QuantizedMatMul",
        [codes.codes, row, codes.zero_point, *(shared.of(each, edit) for each in arrays)],
        bits=8,
        group_size=grid.group_size,
        scale_order=int(ScaleOrder.COLUMN_FIRST),
    )
    of_groups = edit.insert(product, before=before)
    return edit.insert(ir.node("MatMul", [of_groups, shared.of(grid.offset, edit)]), before=before)


def scales_and_bias(epilogue: Epilogue, codes: Codes, edit: Edit) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Returns the scale of the rows, the scales of the columns and the bias.

    Args:
        epilogue: The nodes after the product: scales and bias.
        codes: The codes of the activation. If they have no scale, the epilogue may have one.
        edit: The edit of the product.

    Returns:
        float32: one for each row, or for each of its groups, or one for all; [groups or 1, N], or [N] for a
        convolution; [N]. Those of stacked weights begin with the dimensions of the stack.
    """
    scale = epilogue.row if codes.scale is None else codes.scale
    row = edit.add_constant(np.float32(1), before=edit.node) if scale is None else scale
    if epilogue.is_row_moved:
        shape = edit.add_constant(np.array([-1, 1]), before=epilogue.last_node)
        row = edit.insert(ir.node("Reshape", [row, shape]), before=epilogue.last_node)
    if codes.repeats_scale:
        row_shape = edit.insert(ir.node("Shape", [codes.zero_point]), before=epilogue.last_node)
        row = edit.insert(ir.node("Expand", [row, row_shape]), before=epilogue.last_node)
    column, bias = column_and_bias(epilogue, edit)
    return row, edit.shared(SharedInitializers).of(column, edit), bias


def column_and_bias(epilogue: Epilogue, edit: Edit) -> tuple[npt.NDArray[np.float32], ir.Value]:
    """Returns the scales of the columns and the bias, as :func:`scales_and_bias` does."""
    size, stack = epilogue.channels.size, epilogue.channels.stack
    column = np.ones(size, np.float32) if epilogue.column is None else epilogue.column
    column = column.reshape(size) if epilogue.channels.spatial_rank else stacked(column.reshape(-1, size), stack)
    # -0 + x is x for every x; 0 + -0 is not.
    bias = np.full(size, -0.0, np.float32) if epilogue.bias is None else epilogue.bias
    if not isinstance(bias, ir.Value):
        bias = bias.reshape(*stack, epilogue.channels.columns)
    return column, bias if isinstance(bias, ir.Value) else edit.shared(SharedInitializers).of(bias, edit)
