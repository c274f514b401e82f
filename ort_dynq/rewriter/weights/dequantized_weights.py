"""Reads constant weights behind DequantizeLinear as weights of MatMulNBits.

DequantizeLinear may have one scale, one for each channel, or one for each block along any axis; Transpose, Reshape,
Cast and the like may follow. The index of each weight's scale goes through the same nodes as the weight: then it shows
which blocks along K share a scale (scale_indices.py). The codes are read when the weights are packed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.quantized_matmul import GROUP_UNIT
from ..analysis.inference import Facts
from ..analysis.nodes import input_of, is_standard, only_use, producer_of
from ..analysis.standard import PASSING, REARRANGING, RESHAPES
from ..analysis.types import CODE_TYPES
from ..reasons import Reason, Unconverted
from .grid import check_sums
from .matrix_product import MatrixProduct, matrix_product_of
from .nbits import FLOATS, NBits, bytes_of, check_scale_type, computed, constant_tensor, release
from .scale_indices import ScaleIndices

_Elements = TypeVar("_Elements", npt.NDArray[Any], ScaleIndices)

_MOVES = REARRANGING | PASSING
_BITS = {"INT8": 8, "UINT8": 8, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2}
# Blocks of 128 with 256 codes have the noise of level 4's blocks of 32, which it takes for channels with one scale.
_SPLITS = (128, 64, 32, 16)
_COLUMNS = 1024  # packed in one step: its temporary arrays take several times its size


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
        return ir.DataType.FLOAT16 in self._types

    @property
    def other_type(self) -> ir.DataType | None:
        """A type of a value after it that is not float32 or float16; None if there is none."""
        return next((dtype for dtype in self._types if dtype not in FLOATS), None)

    @property
    def _types(self) -> list[ir.DataType]:
        """The types of its output and of those of Casts after it."""
        scale = input_of(self.node, 1)
        of_scale = ir.DataType.UNDEFINED if scale is None or scale.dtype is None else scale.dtype
        of_output = ir.DataType(self.node.attributes.get_int("output_dtype", 0)) or of_scale
        casts = (node for node in self.moves if node.op_type == "Cast")
        return [of_output, *(ir.DataType(node.attributes.get_int("to", 0)) for node in casts)]


def dequantizer_of(value: ir.Value, facts: Facts) -> Dequantizer | None:
    """Returns the DequantizeLinear of constants that computes a value; None if there is none."""
    return quantized_weights(value) if facts.is_constant(value) else None


def is_dequantized(value: ir.Value | None) -> bool:
    """Whether DequantizeLinear computes a value, and nodes after it only move or cast its elements."""
    return quantized_weights(value) is not None


def quantized_weights(value: ir.Value | None) -> Dequantizer | None:
    """Returns the DequantizeLinear that computes a value, and the nodes after it that move or cast its elements."""
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
    check_scale_type(scale)
    _check_parameters(dequantizer.node, codes, scale, zero_point)
    if not codes.size:
        raise Unconverted(Reason.WEIGHTS_NO_MATRIX)
    if _is_read_by_others(root, dequantizer, product):
        raise Unconverted(Reason.DEQUANTIZED_SHARED)
    shape, is_transposed = codes.shape.numpy(), product.has_transposed_b
    indices = _as_matrix(_scale_indices(dequantizer.node, shape, scale.shape.numpy()), dequantizer.moves, is_transposed)
    depth, columns = indices.shape
    size, blocks = _blocks_of(indices, split=split)
    signed = 1 << bits - 1 if codes.dtype.name.startswith("INT") else 0
    zeros = np.zeros(scale.size) if zero_point is None else zero_point.numpy()
    zero_points = (zeros.reshape(-1).astype(np.int16) + signed).astype(np.uint8)[blocks]
    scales = scale.numpy().reshape(-1)[blocks]
    if product.alpha != 1:
        with np.errstate(all="ignore"):
            scales = scales.astype(np.float32) * np.float32(product.alpha)
    if not np.isfinite(scales).all():
        raise Unconverted(Reason.WEIGHTS_NOT_FINITE)
    if dequantizer.is_rounded:
        largest = np.maximum(zero_points, np.uint8((1 << bits) - 1) - zero_points)  # of |q - z| for any codes q
        if (np.abs(scales.astype(np.float32)) * largest > np.finfo(np.float16).max).any():
            raise Unconverted(Reason.DEQUANTIZED_OVERFLOW)
    size = -(-size // GROUP_UNIT) * GROUP_UNIT
    rows = columns, blocks.shape[1] * size  # each column, as long as its blocks

    def compute() -> npt.NDArray[np.uint8]:
        by_column = _as_matrix(codes.numpy().reshape(shape), dequantizer.moves, is_transposed).transpose()
        packed = np.empty((columns, rows[1] * bits // 8), np.uint8)
        for first in range(0, columns, _COLUMNS):
            part = by_column[first : first + _COLUMNS].astype(np.uint8)
            part = np.pad(part, [(0, 0), (0, rows[1] - depth)])
            packed[first : first + _COLUMNS] = bytes_of((part ^ np.uint8(signed)) & np.uint8((1 << bits) - 1), bits)
        del by_column
        release(codes)
        return packed

    stored = computed([codes], compute, ir.DataType.UINT8, (columns, rows[1] * bits // 8))
    is_default = bool((zero_points == 1 << bits - 1).all())
    packed_zeros = None if is_default else ir.tensor(bytes_of(zero_points, bits))
    weights = NBits(depth, columns, bits, size, stored, ir.tensor(np.ascontiguousarray(scales)), packed_zeros, root)
    return weights, (*source_of(dequantizer), is_transposed, split)


def source_of(dequantizer: Dequantizer) -> tuple[Hashable, ...]:
    """Returns what equal weights have in common: branches may have nodes and scales of their own."""
    parameters = map(elements_of, dequantizer.node.inputs[1:])
    return dequantizer.node.inputs[0], *parameters, _text(dequantizer.node), *map(_text, dequantizer.moves)


def elements_of(value: ir.Value | None) -> Hashable:
    """Returns what equal scales or zero points have in common: branches may have copies of them."""
    tensor = None if value is None else value.const_value
    return value if tensor is None else (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())


def _text(node: ir.Node) -> str:
    """Returns what a node does, without what it reads."""
    return f"{node.op_type}{sorted((name, str(each.value)) for name, each in node.attributes.items())}"


def _check_parameters(
    node: ir.Node, codes: ir.TensorProtocol, scale: ir.TensorProtocol, zero_point: ir.TensorProtocol | None
) -> None:
    """Checks that a DequantizeLinear has parameters of the shapes and types that ONNX asks for.

    Raises:
        Unconverted: It has others.
    """
    shape, of_scale = (tuple(each.shape.numpy()) for each in (codes, scale))
    axis, size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    if size < 0:
        raise Unconverted(Reason.DEQUANTIZED_INVALID, what=f"block_size is {size}")
    if size or of_scale not in ((), (1,)):
        if not -len(shape) <= axis < len(shape):
            raise Unconverted(Reason.DEQUANTIZED_INVALID, what=f"axis is {axis}, and the rank is {len(shape)}")
        axis %= len(shape)
        in_blocks = tuple(-(-length // size) if i == axis else length for i, length in enumerate(shape)) if size else ()
        expected = in_blocks if size else shape[axis : axis + 1]
        if of_scale != expected:
            what = f"the scales have shape {[*of_scale]}, expected {[*expected]}"
            raise Unconverted(Reason.DEQUANTIZED_INVALID, what=what)
    if zero_point is None:
        return
    of_zeros = tuple(zero_point.shape.numpy())
    if of_zeros != of_scale and not (of_zeros in ((), (1,)) and of_scale in ((), (1,))):
        what = f"the zero points have shape {[*of_zeros]}, and the scales {[*of_scale]}"
        raise Unconverted(Reason.DEQUANTIZED_INVALID, what=what)
    if zero_point.dtype != codes.dtype:
        what = f"the zero points are {zero_point.dtype.name.lower()}, and the codes {codes.dtype.name.lower()}"
        raise Unconverted(Reason.DEQUANTIZED_INVALID, what=what)


def _scale_indices(node: ir.Node, shape: Sequence[int], of_scale: Sequence[int]) -> ScaleIndices:
    """Returns the index of each weight's scale, in the shape of the codes."""
    axis, size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    return ScaleIndices.of(shape, of_scale, axis % max(1, len(shape)), size)


def _blocks_of(indices: ScaleIndices, *, split: bool) -> tuple[int, npt.NDArray[np.int32]]:
    """Returns the size of the blocks along K that share a scale, and the indices of their scales, [N, blocks].

    Args:
        indices: The indices of the scales of [K, N].
        split: As in :func:`dequantized_weights_of`.

    Raises:
        Unconverted: The blocks are smaller than those of QuantizedMatMul, or int32 may not hold the sums of one.
    """
    depth, _ = indices.shape
    along_k = indices.along(0)
    changes = np.flatnonzero(np.diff(along_k)) + 1
    size = int(np.gcd.reduce(changes)) if changes.size else depth
    if changes.size and size % GROUP_UNIT:
        raise Unconverted(Reason.DEQUANTIZED_SCALES)
    blocks = indices.along(1)[:, None] + along_k[::size]
    check_sums(size, None)
    if split and not changes.size and depth > _SPLITS[0]:
        size = next((each for each in _SPLITS if depth % each == 0), _SPLITS[0])
        blocks = np.repeat(blocks, -(-depth // size), 1)
    return size, blocks


def _as_matrix(elements: _Elements, moves: Sequence[ir.Node], is_transposed: bool) -> _Elements:
    """Returns the elements, or the indices of their scales, as the product multiplies them, [K, N].

    Raises:
        Unconverted: They are no matrix, or a shape is not known.
    """
    for node in moves:
        if node.op_type == "Transpose":
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
            if perm is not None and sorted(perm) != [*range(len(elements.shape))]:
                raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
            elements = elements.transpose(perm)
        elif node.op_type in RESHAPES:
            shape = node.outputs[0].shape
            if shape is None or not shape.is_static() or math.prod(shape.numpy()) != math.prod(elements.shape):
                raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
            elements = elements.reshape(shape.numpy())
    if len(elements.shape) != 2:
        raise Unconverted(Reason.WEIGHTS_NO_MATRIX)
    return elements.transpose() if is_transposed else elements


def _is_read_by_others(root: ir.Value, dequantizer: Dequantizer, product: MatrixProduct) -> bool:
    """Returns whether nodes that are no products of these weights also read the codes, or what is made of them.

    Nodes that gather rows of a table, which are the columns of the weights, do not count: they can gather them from the
    packed weights (tied_embedding.py). Nor do products that dequantize the same codes in another node, as in a branch.
    """
    chain = [root, dequantizer.node.outputs[0], *(node.outputs[0] for node in dequantizer.moves)]
    own = {dequantizer.node, *dequantizer.moves}
    readers = [use for value in chain for use in value.uses() if use.node not in own]
    readers = [use for use in readers if not _is_tied(use.node, root, dequantizer, product)]
    if any(value.is_graph_output() for value in chain):
        return True
    return any(use.idx != 1 or not _multiplies_like(use.node, product) for use in readers)


def _is_tied(node: ir.Node, root: ir.Value, dequantizer: Dequantizer, product: MatrixProduct) -> bool:
    """Returns whether a node gathers rows of the codes that are columns, or is another DequantizeLinear of them."""
    if is_rows_of(node, root):
        return _has_rows_as_columns(dequantizer, product)
    if not is_standard(node, "DequantizeLinear") or _text(node) != _text(dequantizer.node):
        return False
    has_same = list(map(elements_of, node.inputs[1:])) == list(map(elements_of, dequantizer.node.inputs[1:]))
    if node.inputs[0] is not root or not has_same or node.outputs[0].is_graph_output():
        return False
    value, moves = node.outputs[0], list[ir.Node]()
    for move in dequantizer.moves:
        use = only_use(value)
        if use is None or use.idx != 0 or _text(use.node) != _text(move):
            return False
        moves.append(use.node)
        value = use.node.outputs[0]
    uses = [(use.node, use.idx) for use in value.uses()]
    like = MatrixProduct(product.a, value, has_transposed_b=product.has_transposed_b)
    return all(index == 1 and _multiplies_like(user, like) for user, index in uses)


def _has_rows_as_columns(dequantizer: Dequantizer, product: MatrixProduct) -> bool:
    """Returns whether each row of the codes is a column of the weights, without padding."""
    codes = dequantizer.node.inputs[0]
    shape = None if codes is None else codes.shape
    if shape is None or not shape.is_static() or len(shape) != 2 or codes is None or codes.dtype not in CODE_TYPES:
        return False
    moves = [each for each in dequantizer.moves if each.op_type != "Cast"]
    is_turned = [each.op_type for each in moves] == ["Transpose"]
    is_known = is_turned or not moves
    return is_known and is_turned != product.has_transposed_b and shape.numpy()[1] % GROUP_UNIT == 0


def is_rows_of(node: ir.Node, table: ir.Value) -> bool:
    """Returns whether a node gathers rows of a table."""
    return is_standard(node, "Gather") and node.inputs[0] is table and node.attributes.get_int("axis", 0) == 0


def _multiplies_like(node: ir.Node, other: MatrixProduct) -> bool:
    """Returns whether a node multiplies by the same matrix of weights, in the same orientation."""
    try:
        product = matrix_product_of(node)
    except Unconverted:
        return False
    return product is not None and product.b is other.b and product.has_transposed_b == other.has_transposed_b
