"""The layout of packed weights: 16 columns by 4 consecutive k are adjacent, for every instruction set.

ops/kernels/kernels.h has the same layout, and the body of QuantizedMatMul undoes it with standard operators.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK_COLUMNS = 16
QUAD = 4


def packed_shape(depth: int, columns: int, bits: int = 8) -> tuple[int, int, int, int]:
    """The shape of packed weights of shape [depth, columns]."""
    return -(-columns // BLOCK_COLUMNS), -(-depth // (QUAD * 8 // bits)), BLOCK_COLUMNS, QUAD


def pack(codes: npt.NDArray[np.int8] | npt.NDArray[np.uint8], bits: int = 8) -> npt.NDArray[np.int8]:
    """Packs weights.

    Args:
        codes: [K, N]. 8 bits: int8. 4 bits: 0 to 15, int8 or uint8.
        bits: 8 or 4.

    Returns:
        int8. 8 bits: [ceil(N / 16), ceil(K / 4), 16, 4]. 4 bits: [ceil(N / 16), ceil(K / 8), 16, 4]; the low half of a
        byte is the code of one of the first four k of eight, the high half that of the k 4 later. Padding is 0.
    """
    depth, columns = codes.shape
    blocks, units, _, _ = packed_shape(depth, columns, bits)
    padded = np.zeros((units * QUAD * 8 // bits, blocks * BLOCK_COLUMNS), np.int8)
    padded[:depth, :columns] = codes
    quads = padded.reshape(len(padded) // QUAD, QUAD, blocks, BLOCK_COLUMNS).transpose(2, 0, 3, 1)
    if bits == 4:
        quads = quads[:, 0::2] | quads[:, 1::2] << 4
    return np.ascontiguousarray(quads)


def unpack(packed: npt.NDArray[np.int8], depth: int, columns: int, bits: int = 8) -> npt.NDArray[np.int8]:
    """Returns the weights that :func:`pack` packed, [depth, columns]."""
    blocks, units = packed.shape[:2]
    quads = packed
    if bits == 4:
        quads = np.stack([packed & 15, packed.view(np.uint8) >> 4], 2, dtype=np.int8, casting="unsafe")
        quads = quads.reshape(blocks, 2 * units, BLOCK_COLUMNS, QUAD)
    return quads.transpose(1, 3, 0, 2).reshape(quads.shape[1] * QUAD, blocks * BLOCK_COLUMNS)[:depth, :columns]
