"""Reads constant weights behind DequantizeLinear as weights of MatMulNBits.

DequantizeLinear may have one scale, one for each channel, or one for each block along any axis; Transpose, Reshape,
Cast and the like may follow. The index of each weight's scale goes through the same nodes as the weight: then it shows
which blocks along K share a scale. The codes are read when the weights are packed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.quantized_matmul import GROUP_UNIT
from ..analysis.inference import Facts
from ..analysis.nodes import producer_of
from ..analysis.shapes import RESHAPES
from ..reasons import Reason, Unconverted
from .matrix_product import MatrixProduct, matrix_product_of
from .nbits import FLOATS, NBits, computed, constant_tensor, release
from .tail import check_sums

_MOVES = ("Transpose", "Cast", "Identity", *RESHAPES)
_BITS = {"INT8": 8, "UINT8": 8, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2}
_PRODUCTS = ("MatMul", "Gemm", "Einsum")
# Blocks of 128 with 256 codes have the noise of level 4's blocks of 32, which it takes for channels with one scale.
_SPLITS = (128, 64, 32, 16)


@dataclass(frozen=True)
class Dequantizer:
    """A DequantizeLinear of constants, and the nodes between it and a product.

    Attributes:
        node: The DequantizeLinear.
        moves: The nodes, in order.
    """

    node: ir.Node
    moves: tuple[ir.Node, ...]

    @property
    def uses(self) -> int:
        """The number of uses of its output, and of what the nodes after it make of that, also as graph outputs."""
        values = [node.outputs[0] for node in (self.node, *self.moves)]
        return sum(len(value.uses()) + value.is_graph_output() for value in values)

    @property
    def is_rounded(self) -> bool:
        """Whether a value after it is a float16."""
        return any(node.outputs[0].dtype == ir.DataType.FLOAT16 for node in (self.node, *self.moves))


def dequantizer_of(value: ir.Value, facts: Facts) -> Dequantizer | None:
    """Returns the DequantizeLinear of constants that computes a value; None if there is none."""
    return _dequantizer_of(value) if facts.is_constant(value) else None


def is_dequantized(value: ir.Value | None) -> bool:
    """Whether DequantizeLinear computes a value, and nodes after it only move or cast its elements."""
    return _dequantizer_of(value) is not None


def _dequantizer_of(value: ir.Value | None) -> Dequantizer | None:
    moves: list[ir.Node] = []
    while (node := producer_of(value, *_MOVES)) is not None:
        moves.insert(0, node)
        value = node.inputs[0]
    node = producer_of(value, "DequantizeLinear")
    return None if node is None else Dequantizer(node, tuple(moves))


def dequantized_weights_of(
    product: MatrixProduct, dequantizer: Dequantizer, facts: Facts, *, split: bool
) -> tuple[NBits, tuple[Hashable, ...]]:
    """Returns alpha times the weights of a product, and what equal weights have in common.

    Args:
        product: The product.
        dequantizer: The DequantizeLinear of its second factor.
        facts: What is known of the model.
        split: Whether channels with one scale are split into blocks, for an activation of 8 bits in blocks.

    Raises:
        Unconverted: QuantizedMatMul has no such weights, they are not known, or other nodes also read them.
    """
    codes, scale, zero_point = (constant_tensor(value, facts) for value in [*dequantizer.node.inputs, None][:3])
    root = dequantizer.node.inputs[0]
    if root is None or codes is None or scale is None:
        raise Unconverted(Reason.NO_INPUT, operator="DequantizeLinear", index=0 if codes is None else 1)
    bits = _BITS.get(codes.dtype.name, 0)
    if not bits:
        raise Unconverted(Reason.DEQUANTIZED_CODES, dtype=codes.dtype.name.lower())
    if scale.dtype not in FLOATS:
        raise Unconverted(Reason.TYPE, what="the scales", dtype=scale.dtype.name.lower(), expected="float32 or float16")
    if _is_read_by_others(root, dequantizer, product):
        raise Unconverted(Reason.DEQUANTIZED_SHARED)
    shape, is_transposed = codes.shape.numpy(), product.has_transposed_b
    of_weights = _as_matrix(_scale_indices(dequantizer.node, shape, scale.numpy()), dequantizer.moves, is_transposed)
    depth, columns = of_weights.shape
    changes = np.flatnonzero((of_weights[1:] != of_weights[:-1]).any(1)) + 1
    size = int(np.gcd.reduce(changes)) if changes.size else depth
    if changes.size and size % GROUP_UNIT:
        raise Unconverted(Reason.DEQUANTIZED_SCALES)
    blocks = of_weights[::size].T  # of each column, the indices of the scales
    check_sums(size, None)
    if split and not changes.size and depth > _SPLITS[0]:
        size = next((each for each in _SPLITS if depth % each == 0), _SPLITS[0])
        blocks = np.repeat(blocks, -(-depth // size), 1)
    signed = 1 << bits - 1 if codes.dtype.name.startswith("INT") else 0
    zeros = np.zeros(scale.size) if zero_point is None else zero_point.numpy()
    zero_points = (zeros.reshape(-1).astype(np.int16) + signed).astype(np.uint8)[blocks]
    scales = scale.numpy().reshape(-1)[blocks]
    if product.alpha != 1:
        with np.errstate(all="ignore"):
            scales = scales.astype(np.float32) * np.float32(product.alpha)
    if not np.isfinite(scales).all():
        raise Unconverted(Reason.WEIGHTS_NOT_FINITE)
    size = -(-size // GROUP_UNIT) * GROUP_UNIT
    rows = columns, blocks.shape[1] * size  # each column, as long as its blocks

    def compute() -> npt.NDArray[np.uint8]:
        by_column = _as_matrix(codes.numpy().reshape(shape), dequantizer.moves, is_transposed).T
        padded = np.zeros(rows, np.uint8)
        padded[:, :depth] = by_column.astype(np.uint8)
        release(codes)
        return _packed((padded ^ np.uint8(signed)) & np.uint8((1 << bits) - 1), bits)

    stored = computed([codes], compute, ir.DataType.UINT8, (columns, rows[1] * bits // 8))
    is_default = bool((zero_points == 1 << bits - 1).all())
    packed_zeros = None if is_default else ir.tensor(_packed(zero_points, bits))
    weights = NBits(depth, columns, bits, size, stored, ir.tensor(np.ascontiguousarray(scales)), packed_zeros, root)
    return weights, (product.b, is_transposed, product.alpha, split)


def _scale_indices(node: ir.Node, shape: Sequence[int], scale: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Returns the index of each weight's scale, in the shape of the codes."""
    indices = np.arange(scale.size, dtype=np.int32)
    if scale.size == 1:
        return np.broadcast_to(indices.reshape([1] * len(shape)), shape)
    axis = node.attributes.get_int("axis", 1) % len(shape)
    if size := node.attributes.get_int("block_size", 0):
        return indices.reshape(scale.shape).repeat(size, axis).take(range(shape[axis]), axis)
    return np.broadcast_to(indices.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def _as_matrix(elements: npt.NDArray[Any], moves: Sequence[ir.Node], is_transposed: bool) -> npt.NDArray[Any]:
    """Returns the elements as the product multiplies them, [K, N].

    Raises:
        Unconverted: They are no matrix, or a shape is not known.
    """
    for node in moves:
        if node.op_type == "Transpose":
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
            elements = elements.transpose(perm)
        elif node.op_type in RESHAPES:
            shape = node.outputs[0].shape
            if shape is None or not shape.is_static():
                raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
            elements = elements.reshape(shape.numpy())
    if elements.ndim != 2 or not elements.size:
        raise Unconverted(Reason.WEIGHTS_NO_MATRIX)
    return elements.T if is_transposed else elements


def _packed(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Returns rows of codes, low bits first, each row padded to a byte."""
    per_byte = 8 // bits
    padded = np.pad(codes, [(0, 0), (0, -codes.shape[1] % per_byte)])
    packed = padded[:, 0::per_byte].copy()
    for i in range(1, per_byte):
        packed |= padded[:, i::per_byte] << np.uint8(i * bits)
    return packed


def _is_read_by_others(root: ir.Value, dequantizer: Dequantizer, product: MatrixProduct) -> bool:
    """Returns whether nodes that are no products of these weights also read the codes, or what is made of them."""
    chain = [root, dequantizer.node.outputs[0], *(node.outputs[0] for node in dequantizer.moves)]
    own = {dequantizer.node, *dequantizer.moves}
    readers = [use for value in chain for use in value.uses() if use.node not in own]
    if any(value.is_graph_output() for value in chain):
        return True
    return any(use.idx != 1 or not _multiplies(use.node, product.b) for use in readers)


def _multiplies(node: ir.Node, weights: ir.Value) -> bool:
    """Returns whether a node is a product of a matrix of weights."""
    try:
        product = matrix_product_of(node)
    except Unconverted:
        return False
    return product is not None and product.b is weights
