"""Reads the weights of ONNX Runtime's QMoE, and packs them for QuantizedExperts.

QMoE stores the columns of each expert one after the other: the codes are [experts, N, K * bits / 8], low bits first,
scales [experts, N, blocks], and zero points have the same form, with each column rounded up to a byte. Without blocks,
scales are [experts, N], and zero points [experts, N * bits / 8]. QuantizedExperts has no codes of 2 bits: they get 4.

Packed weights of external data are computed when the model is written, one after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.packing import QUAD, pack_columns, packed_shape
from ..analysis.constants import is_float16
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs
from ..reasons import Reason, Unconverted
from .grid import check_sums
from .nbits import (
    bytes_of,
    check_finite,
    check_scale_type,
    check_size,
    check_unshared,
    computed,
    constant_tensor,
    release,
    stored_codes,
    unpacked,
)

_WEIGHTS = slice(2, 14)  # the inputs of QMoE that belong to weights


@dataclass(frozen=True)
class ExpertPart:
    """Columns of the weights of a product, of all experts.

    Attributes:
        codes: The codes.
        scales: The scales, float32 or float16.
        zero_points: The zero points; None if all are 2 ** (bits - 1).
        bias: The bias, [experts, N]; None if there is none.
        root: The initializer that the input of the codes is a reshaping of, or this input.
        source: The inputs that the tensors are from. They stay alive with the part, unlike computed tensors.
    """

    codes: ir.TensorProtocol
    scales: ir.TensorProtocol
    zero_points: ir.TensorProtocol | None
    bias: ir.TensorProtocol | None
    root: ir.Value
    source: tuple[ir.Value | None, ...]

    @property
    def columns(self) -> int:
        """The number of columns of an expert."""
        return int(self.codes.shape.numpy()[1])


@dataclass(frozen=True)
class ExpertWeights:
    """The weights of a product of all experts.

    Attributes:
        parts: The columns: those of several inputs of QMoE follow each other.
        experts, depth, bits: The number of experts, K, and the bits of a code.
        block_size: The size of a block; 0 if each column is one.
        interleaved: Whether the columns are g0, l0, g1, l1, ...: packed weights have all g, then all l.
    """

    parts: tuple[ExpertPart, ...]
    experts: int
    depth: int
    bits: int
    block_size: int
    interleaved: bool

    @property
    def source(self) -> tuple[Hashable, ...]:
        """What the tensors are computed from: equal sources give equal tensors."""
        return self.interleaved, *(part.source for part in self.parts)

    @property
    def columns(self) -> int:
        """The number of columns of an expert."""
        return sum(part.columns for part in self.parts)

    @property
    def blocks(self) -> int:
        """The number of blocks of a column."""
        return self.depth // self.block_size if self.block_size else 1

    @property
    def stored_bits(self) -> int:
        """The bits of a code of QuantizedExperts."""
        return max(4, self.bits)

    def packed(self) -> ir.TensorProtocol:
        """Returns the packed weights: a stack of those of QuantizedMatMul."""
        shape = self.experts, *packed_shape(self.depth, self.columns, self.stored_bits)
        return computed([part.codes for part in self.parts], self._pack, ir.DataType.INT8, shape)

    def column_scale(self) -> ir.TensorProtocol:
        """Returns the scales, [experts, blocks, N], float16 if that represents all of them."""
        is_narrow = all(is_float16(part.scales.numpy()) for part in self.parts)
        dtype = ir.DataType.FLOAT16 if is_narrow else ir.DataType.FLOAT

        def compute() -> npt.NDArray[Any]:
            scales = [part.scales.numpy().astype(dtype.numpy()).reshape(self._of_part(part)) for part in self.parts]
            return self._by_block(scales)

        tensors = [part.scales for part in self.parts]
        for tensor in tensors:
            release(tensor)
        return computed(tensors, compute, dtype, (self.experts, self.blocks, self.columns))

    def weight_zero_point(self) -> ir.TensorProtocol:
        """Returns the zero points, int8: [experts, blocks, N], or [1] if all are equal."""
        zero_points = [self._zero_points(part) for part in self.parts]
        first = zero_points[0].reshape(-1)[:1]
        if all((each == first).all() for each in zero_points):
            return ir.tensor(stored_codes(first, self.bits))
        return ir.tensor(self._by_block([stored_codes(each, self.bits) for each in zero_points]))

    def bias(self) -> ir.TensorProtocol:
        """Returns the bias, float32, [experts, N]; -0.0 where there is none."""
        absent = np.float32(-0.0)
        biases = [
            np.full((self.experts, part.columns, 1), absent)
            if part.bias is None
            else part.bias.numpy().astype(np.float32).reshape(self.experts, part.columns, 1)
            for part in self.parts
        ]
        return ir.tensor(self._by_block(biases)[:, 0])

    def _of_part(self, part: ExpertPart) -> tuple[int, int, int]:
        return self.experts, part.columns, self.blocks

    def _by_block(self, parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Returns [experts, blocks, N] of parts that are [experts, N of the part, blocks]."""
        return np.ascontiguousarray(self._in_order(np.concatenate(parts, 1)).transpose(0, 2, 1))

    def _in_order(self, of_columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Puts the columns, which are axis 1, into their order."""
        if not self.interleaved:
            return of_columns
        return np.concatenate([of_columns[:, 0::2], of_columns[:, 1::2]], 1)

    def _zero_points(self, part: ExpertPart) -> npt.NDArray[np.uint8]:
        """Returns the zero points as codes, [experts, N, blocks]."""
        if part.zero_points is None:
            return np.full(self._of_part(part), 1 << (self.bits - 1), np.uint8)
        rows, count = (self.experts * part.columns, self.blocks) if self.block_size else (self.experts, part.columns)
        return unpacked(part.zero_points.numpy().reshape(rows, -1), self.bits)[:, :count].reshape(self._of_part(part))

    def _pack(self) -> npt.NDArray[np.int8]:
        shape = packed_shape(self.depth, self.columns, self.stored_bits)
        packed = np.empty((self.experts, *shape), np.int8)
        flip = np.uint8(128 if self.bits == 8 else 0)
        for expert in range(self.experts):
            rows = [part.codes.numpy()[expert] for part in self.parts]
            columns = self._in_order(np.concatenate(rows)[None])[0] ^ flip
            if self.bits < self.stored_bits:
                columns = bytes_of(unpacked(columns, self.bits), self.stored_bits)
            padding = QUAD * shape[1] - columns.shape[1]
            packed[expert] = pack_columns(np.pad(columns, ((0, 0), (0, padding))), self.stored_bits)
        for part in self.parts:
            release(part.codes)
        return packed


def weights_of(
    node: ir.Node, inputs: tuple[tuple[int, int, int, int], ...], depth: int, facts: Facts, *, interleaved: bool
) -> ExpertWeights:
    """Returns the weights of a product of a QMoE.

    Args:
        node: The QMoE.
        inputs: The indices of the codes, scales, biases and zero points; several are columns after each other.
        depth: K.
        facts: What is known of the model.
        interleaved: As in :class:`ExpertWeights`.

    Raises:
        Unconverted: QuantizedExperts has no such weights, they are not constants, nodes with other weights also read
            them, or products have different numbers of experts.
    """
    bits, block_size = (node.attributes.get_int(name, default) for name, default in _NUMBERS)
    blocks = depth // block_size if block_size else 1
    check_sums(block_size or depth, None)
    values = first_inputs(node, 15)
    parts: list[ExpertPart] = []
    for indices in inputs:
        codes, scales, bias, zero_points = (constant_tensor(values[index], facts) for index in indices)
        if codes is None or scales is None:
            raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=indices[codes is not None])
        check_scale_type(scales)
        if len(codes.shape) != 3:
            raise Unconverted(Reason.NBITS_SHAPE, what="weights", size=codes.size, expected="3 dimensions")
        experts, columns, _ = codes.shape.numpy()
        per_row = columns * -(-blocks * bits // 8) if block_size else -(-columns * bits // 8)
        check_size("weights", codes, experts * columns * depth * bits // 8)
        check_size("scales", scales, experts * columns * blocks)
        check_size("zero points", zero_points, experts * per_row)
        check_size("biases", bias, experts * columns)
        weight = values[indices[0]]
        assert weight is not None
        root = check_unshared(weight, node, _WEIGHTS)
        check_finite(scales)
        source = tuple(values[index] for index in indices)
        parts.append(ExpertPart(codes, scales, zero_points, bias, root, source))
        check_experts(parts)
    experts = int(parts[0].codes.shape.numpy()[0])
    return ExpertWeights(tuple(parts), experts, depth, bits, block_size, interleaved)


def check_experts(parts: Sequence[ExpertPart]) -> None:
    """Checks that some parts have the same experts, and do not share codes with different scales.

    Raises:
        Unconverted: They do not, or they do.
    """
    counts = [int(part.codes.shape.numpy()[0]) for part in parts]
    if len(set(counts)) > 1:
        raise Unconverted(Reason.EXPERTS_COUNTS, counts=", ".join(map(str, counts)))
    sources = {part.root: part.source for part in parts}
    if any(sources[part.root] != part.source for part in parts):
        raise Unconverted(Reason.EXPERTS_SHARED)


_NUMBERS = (("expert_weight_bits", 4), ("block_size", 0))
