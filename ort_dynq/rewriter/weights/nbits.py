"""Reads the weights of ONNX Runtime's MatMulNBits, and packs them for QuantizedMatMul.

MatMulNBits stores column after column: B is [N, blocks, block_size * bits / 8], low bits first; the zero points have
the same form, [N, blocks * bits / 8], each column rounded up to a byte; scales are [N, blocks]. Each may also be flat.
Zero points may also be floats, [N, blocks]. Those of QuantizedMatMul are the nearest codes; what they leave is a float
product of the sums of x over blocks:

    x @ ((q - z) * s) = x @ ((q - code) * s) + (sums of x over blocks) @ ((code - z) * s)

Packed weights of external data are computed when the model is written, one after the other: models over 2 GB do not fit
in memory twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.packing import BLOCK_COLUMNS, QUAD, pack_columns, packed_shape
from ...operators.quantized_matmul import GROUP_UNIT
from ...storage import ComputedTensor
from ..analysis.constants import is_float16
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs
from ..reasons import Reason, Unconverted
from .grid import check_sums
from .tied_tables import reads_table, root_of

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
QUANTIZED_LEVEL = 4  # accuracy_level of activations of 8 bits
_BITS = (2, 4, 8)
_WEIGHTS = slice(1, 4)  # the inputs B, scales and zero points
_COLUMNS = 64 * BLOCK_COLUMNS  # packed in one step: its temporary arrays take several times its size


@dataclass(frozen=True)
class NBits:
    """Weights of a product, [K, N], as MatMulNBits stores them.

    Attributes:
        depth, columns, bits, block_size: K, N and the attributes of these names.
        codes: B.
        scales: The scales, float32 or float16.
        zero_points: The zero points, uint8, float32 or float16; None if all are 2 ** (bits - 1).
        root: The initializer that B is a reshaping of, or B.
    """

    depth: int
    columns: int
    bits: int
    block_size: int
    codes: ir.TensorProtocol
    scales: ir.TensorProtocol
    zero_points: ir.TensorProtocol | None
    root: ir.Value

    @property
    def blocks(self) -> int:
        """The number of blocks in a column; the last one may exceed K."""
        return -(-self.depth // self.block_size)

    @property
    def padding(self) -> int:
        """The zeros that an activation needs at the end of each row; a single block needs none."""
        return self.blocks * self.block_size - self.depth if self.blocks > 1 else 0

    @property
    def _packed_shape(self) -> tuple[int, int, int, int]:
        return packed_shape(self.depth + self.padding, self.columns, self.bits)

    def packed(self) -> ir.TensorProtocol:
        """Returns the packed weights. Weights beyond K have the code of the zero point."""
        return computed([self.codes, self.zero_points], self._pack, ir.DataType.INT8, self._packed_shape)

    def column_scale(self) -> ir.TensorProtocol:
        """Returns the scales as QuantizedMatMul takes them, [blocks, N], float16 if that represents all of them."""
        dtype = ir.DataType.FLOAT16 if is_float16(self.scales.numpy()) else ir.DataType.FLOAT
        release(self.scales)

        def compute() -> npt.NDArray[Any]:
            elements = np.array(self._by_block(self.scales.numpy()), dtype.numpy(), order="C")
            release(self.scales)
            return elements

        return computed([self.scales], compute, dtype, (self.blocks, self.columns))

    def weight_zero_point(self) -> ir.TensorProtocol:
        """Returns the zero points as QuantizedMatMul takes them, int8: [blocks, N], or [1] if all are equal."""
        if self.zero_points is None or np.ptp(self._zero_points()) == 0:
            return ir.tensor(stored_codes(self._zero_points()[:1, 0], self.bits))
        return computed(
            [self.zero_points],
            lambda: stored_codes(self._by_block(self._zero_points()), self.bits),
            ir.DataType.INT8,
            (self.blocks, self.columns),
        )

    def column_sums(self) -> ir.TensorProtocol:
        """Returns the sums of the codes minus their zero points of columns of one block, int32, [1, N]."""
        return computed([self.codes, self.zero_points], self._sum, ir.DataType.INT32, (1, self.columns))

    def _sum(self) -> npt.NDArray[np.int32]:
        codes, sums = self.codes.numpy().reshape(self.columns, -1), np.empty((1, self.columns), np.int32)
        for first in range(0, self.columns, _COLUMNS):
            part = slice(first, first + _COLUMNS)
            sums[0, part] = unpacked(codes[part], self.bits)[:, : self.depth].sum(1, dtype=np.int32)
        del codes
        release(self.codes)
        return sums - np.int32(self.depth) * self._zero_points()[:, 0].astype(np.int32)

    def weights_of_sums(self) -> ir.TensorProtocol:
        """Returns the weights of the sums of x over blocks, float32, [blocks, N]: 0 if zero points are codes."""

        def compute() -> npt.NDArray[Any]:
            assert self.zero_points is not None
            reals, scales = (
                each.numpy().reshape(self.columns, self.blocks).astype(np.float64)
                for each in (self.zero_points, self.scales)
            )
            release(self.scales)
            return np.ascontiguousarray(((self._zero_points() - reals) * scales).T.astype(np.float32))

        shape = (self.blocks, self.columns)
        return computed([self.scales, self.zero_points], compute, ir.DataType.FLOAT, shape)

    @property
    def has_real_zero_points(self) -> bool:
        """Whether zero points are floats; they may still be codes."""
        return self.zero_points is not None and self.zero_points.dtype in FLOATS

    @property
    def has_weights_of_sums(self) -> bool:
        """Whether a zero point is no code."""
        if self.zero_points is None or not self.has_real_zero_points:
            return False
        has_others = not np.array_equal(self.zero_points.numpy().reshape(self.columns, -1), self._zero_points())
        release(self.zero_points)
        return has_others

    def _by_block(self, of_columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return of_columns.reshape(self.columns, self.blocks).T

    def _zero_points(self) -> npt.NDArray[np.uint8]:
        """Returns the zero points as codes, [N, blocks]."""
        if self.zero_points is None:
            return np.full((self.columns, self.blocks), 1 << (self.bits - 1), np.uint8)
        if self.zero_points.dtype in FLOATS:
            reals = self.zero_points.numpy().reshape(self.columns, self.blocks)
            nearest = np.clip(np.rint(reals), 0, (1 << self.bits) - 1)
            del reals
            release(self.zero_points)
            return np.asarray(nearest, np.uint8)
        found = unpacked(self.zero_points.numpy().reshape(self.columns, -1), self.bits)[:, : self.blocks].copy()
        release(self.zero_points)
        return found

    def _pack(self) -> npt.NDArray[np.int8]:
        packed = np.empty(self._packed_shape, np.int8)
        codes, zero_points = self.codes.numpy().reshape(self.columns, -1), self._zero_points()
        for first in range(0, self.columns, _COLUMNS):
            part = slice(first, first + _COLUMNS)
            blocks = slice(first // BLOCK_COLUMNS, (first + _COLUMNS) // BLOCK_COLUMNS)
            packed[blocks] = pack_columns(self._columns(codes[part], zero_points[part, -1:]), self.bits)
        del codes
        release(self.codes)
        return packed

    def _columns(self, rows: npt.NDArray[np.uint8], beyond: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Returns some columns as :func:`pack_columns` takes them, with the codes `beyond` in place of those beyond K.

        A single block has zeros there.
        """
        rows = rows[:, : QUAD * self._packed_shape[1]] ^ np.uint8(128 if self.bits == 8 else 0)
        start = self.depth * self.bits // 8  # the first byte with a code beyond K
        codes = unpacked(rows[:, start:], self.bits)
        beyond_depth = codes[:, self.depth - start * 8 // self.bits :]
        beyond_depth[:] = stored_codes(beyond, self.bits).view(np.uint8) if self.padding else 0
        rows[:, start:] = bytes_of(codes, self.bits)
        return rows


def nbits_of(node: ir.Node, facts: Facts) -> NBits:
    """Returns the weights of a MatMulNBits.

    Raises:
        Unconverted: QuantizedMatMul has no such weights, they are not constants, or other nodes also read them.
    """
    _, b, scales, zero_points, g_idx, _ = first_inputs(node, 6)
    depth, columns, bits, block_size = (
        node.attributes.get_int(name, default) for name, default in (("K", 0), ("N", 0), ("bits", 4), ("block_size", 0))
    )
    if node.attributes.get_int("weight_prepacked", 0):
        raise Unconverted(Reason.NBITS_PREPACKED)
    if bits not in _BITS:
        raise Unconverted(Reason.NBITS_WIDTH, bits=bits)
    if block_size <= 0 or block_size % GROUP_UNIT:
        raise Unconverted(Reason.GROUPS_UNIT, group_size=block_size, unit=GROUP_UNIT)
    check_sums(min(block_size, depth), None)
    codes, scale, zero_point = (constant_tensor(value, facts) for value in (b, scales, zero_points))
    if codes is None or scale is None or b is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=1 if codes is None else 2)
    has_real_zero_points = zero_point is not None and zero_point.dtype in FLOATS
    if zero_point is not None and zero_point.dtype != ir.DataType.UINT8 and not has_real_zero_points:
        raise Unconverted(Reason.NBITS_ZERO_POINTS, dtype=zero_point.dtype.name.lower())
    check_scale_type(scale)
    blocks = -(-depth // block_size)
    check_size("weights", codes, columns * blocks * block_size * bits // 8)
    check_size("scales", scale, columns * blocks)
    check_size("zero points", zero_point, columns * (blocks if has_real_zero_points else -(-blocks * bits // 8)))
    if g_idx is not None and not _is_in_order(g_idx, depth, block_size, facts):
        raise Unconverted(Reason.NBITS_ORDER)
    root = check_unshared(b, node, _WEIGHTS, tables=True)
    check_finite(scale)
    if zero_point is not None and has_real_zero_points:
        check_finite(zero_point)
    return NBits(depth, columns, bits, block_size, codes, scale, zero_point, root)


def check_scale_type(scales: ir.TensorProtocol) -> None:
    """Checks the type of scales.

    Raises:
        Unconverted: It is not float32 or float16.
    """
    if scales.dtype not in FLOATS:
        dtype = scales.dtype.name.lower()
        raise Unconverted(Reason.TYPE, what="the scales", dtype=dtype, expected="float32 or float16")


def check_size(what: str, tensor: ir.TensorProtocol | None, size: int) -> None:
    """Checks that a tensor, if there is one, has as many elements as a node's attributes say.

    Raises:
        Unconverted: It has not, or that is no number of elements.
    """
    if tensor is not None and (tensor.size != size or size <= 0):
        raise Unconverted(Reason.NBITS_SHAPE, what=what, size=tensor.size, expected=size)


def check_finite(tensor: ir.TensorProtocol) -> None:
    """Checks that all elements of a tensor are finite, and unmaps it.

    Raises:
        Unconverted: They are not.
    """
    is_finite = np.isfinite(tensor.numpy()).all()
    release(tensor)
    if not is_finite:
        raise Unconverted(Reason.WEIGHTS_NOT_FINITE)


def check_unshared(weights: ir.Value, node: ir.Node, inputs: slice, *, tables: bool = False) -> ir.Value:
    """Returns the value that the weights of a node are a reshaping of, or the weights.

    Args:
        weights: The weights.
        node: The node.
        inputs: All inputs of the node that belong to weights: codes, scales and so on.
        tables: Whether nodes may also gather rows of them, see tied_tables.py.

    Raises:
        Unconverted: Nodes that have other weights or attributes also read them.
    """
    root, readers = _readers(weights)
    may_be_table = tables and root.is_initializer()
    others = [each for each in readers if not _is_same_product(each, node, inputs)]
    if root.is_graph_output() or not all(may_be_table and reads_table(each, node) for each in others):
        raise Unconverted(Reason.NBITS_SHARED)
    return root


def release(tensor: ir.TensorProtocol) -> None:
    """Unmaps the external data of a tensor, so that only one layer at a time takes memory."""
    if isinstance(tensor, ir.ExternalTensor):
        try:
            tensor.release()
        except BufferError:  # the caller of rewrite has a view of them
            return


def computed(
    sources: Sequence[ir.TensorProtocol | None],
    compute: Callable[[], npt.NDArray[Any]],
    dtype: ir.DataType,
    shape: tuple[int, ...],
) -> ir.TensorProtocol:
    """Returns a tensor that is computed from others: when it is read, if one of these is in a file."""
    external = [file for each in sources for file in _files_of(each)]
    return ComputedTensor(compute, dtype, shape, external) if external else ir.tensor(compute())


def _files_of(tensor: ir.TensorProtocol | None) -> Sequence[ir.ExternalTensor]:
    """Returns the external data that a tensor is, or is computed from."""
    if isinstance(tensor, ComputedTensor):
        return tensor.sources
    return [tensor] if isinstance(tensor, ir.ExternalTensor) else []


def unpacked(rows: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Returns the codes in rows of bytes, low bits first, one code in a byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray((rows[:, :, None] >> shifts & np.uint8((1 << bits) - 1)).reshape(len(rows), -1))


def bytes_of(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Returns rows of codes as :func:`unpacked` reads them, each row padded to a byte."""
    per_byte = 8 // bits
    padded = np.pad(codes, [(0, 0), (0, -codes.shape[1] % per_byte)])
    packed = padded[:, 0::per_byte].copy()
    for i in range(1, per_byte):
        packed |= padded[:, i::per_byte] << np.uint8(i * bits)
    return packed


def stored_codes(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.int8]:
    """Returns codes of 8 bits 128 smaller, as QuantizedMatMul stores them; other codes as they are."""
    return np.ascontiguousarray(codes ^ 128 if bits == 8 else codes).view(np.int8)


def constant_tensor(value: ir.Value | None, facts: Facts) -> ir.TensorProtocol | None:
    """Returns a constant, which stays in its file.

    Raises:
        Unconverted: It is computed at run time, or not known.
    """
    if value is None:
        return None
    if not facts.is_constant(value):
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    tensor = _root(value).const_value if _root(value).is_initializer() else None
    if tensor is None and (elements := evaluate(value, facts)) is not None:
        tensor = ir.tensor(elements)
    if tensor is None or (isinstance(tensor, ir.ExternalTensor) and not os.path.exists(tensor.path)):
        raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
    return tensor


def _root(value: ir.Value) -> ir.Value:
    return root_of(value) or value


def _readers(value: ir.Value) -> tuple[ir.Value, list[ir.Node]]:
    """Returns the value that a value is a reshaping of, and all nodes that read it or what lies between the two."""
    root = _root(value)
    chain, readers = {value}, [use.node for use in value.uses()]
    while value is not root:
        node = value.producer()
        assert node is not None
        assert node.inputs[0] is not None
        value = node.inputs[0]
        readers += [use.node for use in value.uses() if use.node is not node]
        chain.add(value)
    return root, readers


def _is_same_product(node: ir.Node, other: ir.Node, inputs: slice) -> bool:
    """Returns whether a node multiplies by the same weights as another, which are some inputs, in the same way."""
    mine, its = ((each.op_identifier(), each.inputs[inputs], _attributes(each)) for each in (node, other))
    return mine == its


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def _is_in_order(g_idx: ir.Value, depth: int, block_size: int, facts: Facts) -> bool:
    """Returns whether g_idx says of each k that it is in the block k // block_size."""
    tensor = constant_tensor(g_idx, facts) if facts.is_constant(g_idx) else None
    groups = np.arange(depth) // block_size
    return tensor is not None and np.array_equal(tensor.numpy().reshape(-1)[:depth], groups)
