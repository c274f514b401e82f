"""The layout of packed weights: 16 columns by 4 consecutive k are adjacent, for every instruction set.

ops/kernels/products.h and convolutions.h have the same layouts, and the bodies of QuantizedMatMul and QuantizedConv
undo them with standard operators. The weights of a convolution are packed as a matrix of one column for each output
channel; QuadAxis says what its rows are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .encodings import QuadAxis

BLOCK_COLUMNS = 16
QUAD = 4
PANEL_COLUMNS = 32  # of words
PAIR = 2


def packed_shape(depth: int, columns: int, bits: int = 8) -> tuple[int, int, int, int]:
    """The shape of packed weights of shape [depth, columns]."""
    return -(-columns // BLOCK_COLUMNS), -(-depth // (QUAD * 8 // bits)), BLOCK_COLUMNS, QUAD


def is_whole(depth: int, bits: int) -> bool:
    """Returns whether packed weights of so many rows have no padding there."""
    return bits in (8, 4, 2) and depth % (QUAD * 8 // bits) == 0


def pack(codes: npt.NDArray[np.int8] | npt.NDArray[np.uint8], bits: int = 8) -> npt.NDArray[np.int8]:
    """Packs weights.

    Args:
        codes: [K, N]. 8 bits: int8. 4 bits: 0 to 15, int8 or uint8. 2 bits: 0 to 3, likewise.
        bits: 8, 4 or 2.

    Returns:
        int8. 8 bits: [ceil(N / 16), ceil(K / 4), 16, 4]. 4 bits: [ceil(N / 16), ceil(K / 8), 16, 4]; the low half of a
        byte is the code of one of the first four k of eight, the high half that of the k 4 later. 2 bits: [ceil(N /
        16), ceil(K / 16), 16, 4]; a byte is the byte that 4 bits have for one of the first eight k of sixteen, plus 4
        times that for the eight k after them. Padding is 0.
    """
    depth, columns = codes.shape
    blocks, units, _, _ = packed_shape(depth, columns, bits)
    padded = np.zeros((units * QUAD * 8 // bits, blocks * BLOCK_COLUMNS), np.int8)
    padded[:depth, :columns] = codes
    quads = padded.reshape(len(padded) // QUAD, QUAD, blocks, BLOCK_COLUMNS).transpose(2, 0, 3, 1)
    if bits < 8:
        quads = quads[:, 0::2] | quads[:, 1::2] << 4
    if bits == 2:
        quads = quads[:, 0::2] | quads[:, 1::2] << 2
    return np.ascontiguousarray(quads)


def pack_columns(columns: npt.NDArray[np.uint8], bits: int = 8) -> npt.NDArray[np.int8]:
    """Packs weights that are stored column after column, as :func:`pack` does, and some ten times as fast.

    Args:
        columns: uint8, [N, 4 * ceil(K * bits / 32)]: the codes of each column, low bits first, padded with 0.
        bits: 8, 4 or 2.

    Returns:
        As :func:`pack`.
    """
    words = np.ascontiguousarray(columns).view("<u4")
    if bits == 4:  # codes 0 to 7 of a word become 0, 4, 1, 5, 2, 6, 3, 7
        words = words & 0xFF0000FF | words >> 8 & 0xFF00 | (words & 0xFF00) << 8
        words = words & 0xF00FF00F | words >> 4 & 0xF000F0 | (words & 0xF000F0) << 4
    if bits == 2:  # a byte of a word becomes the quad of its k
        places = np.arange(0, 8, 2, dtype=np.uint8)
        quads = [byte >> places & 3 for byte in np.split(columns.reshape(*words.shape, QUAD), QUAD, axis=-1)]
        words = (quads[0] | quads[1] << 4 | quads[2] << 2 | quads[3] << 6).view("<u4")[..., 0]
    count, units = words.shape
    blocks = -(-count // BLOCK_COLUMNS)
    packed = np.zeros((blocks, units, BLOCK_COLUMNS), "<u4")
    whole = count // BLOCK_COLUMNS
    packed[:whole] = words[: whole * BLOCK_COLUMNS].reshape(whole, BLOCK_COLUMNS, units).transpose(0, 2, 1)
    if blocks > whole:
        packed[whole, :, : count % BLOCK_COLUMNS] = words[whole * BLOCK_COLUMNS :].T
    return packed.view(np.int8).reshape(blocks, units, BLOCK_COLUMNS, QUAD)


def unpack(packed: npt.NDArray[np.int8], depth: int, columns: int, bits: int = 8) -> npt.NDArray[np.int8]:
    """Returns the weights that :func:`pack` packed, [depth, columns]."""
    blocks, units = packed.shape[:2]
    quads = packed
    if bits < 8:
        shifts = (0, 4) if bits == 4 else (0, 4, 2, 6)
        parts = [packed.view(np.uint8) >> shift & np.uint8((1 << bits) - 1) for shift in shifts]
        quads = np.stack(parts, 2).view(np.int8).reshape(blocks, len(shifts) * units, BLOCK_COLUMNS, QUAD)
    return quads.transpose(1, 3, 0, 2).reshape(quads.shape[1] * QUAD, blocks * BLOCK_COLUMNS)[:depth, :columns]


def pack_conv(codes: npt.NDArray[np.int8], quad_axis: QuadAxis | None = None) -> tuple[npt.NDArray[np.int8], QuadAxis]:
    """Packs the weights of a convolution.

    Args:
        codes: int8, [M, C / group, k1, ..., kr].
        quad_axis: The axis of the quads. None: the one that needs less padding.

    Returns:
        The packed weights, int8, [ceil(M / 16), K / 4, 16, 4], and the axis of the quads. CHANNELS: the K rows are the
        kernel positions, row-major, then the channels, padded with 0 to a multiple of 4. WIDTH: the channels, the
        kernel axes but the last, then the last one, padded likewise.
    """
    if quad_axis is None:
        quad_axis = min(QuadAxis, key=lambda axis: _conv_depth(codes.shape[1:], axis))
    channels_last = np.moveaxis(codes, 1, -1) if quad_axis == QuadAxis.CHANNELS else codes
    inner = channels_last.shape[-1]
    padded = np.zeros((*channels_last.shape[:-1], _round_up(inner)), np.int8)
    padded[..., :inner] = channels_last
    return pack(padded.reshape(len(codes), math.prod(padded.shape[1:])).T), quad_axis


def unpack_conv(packed: npt.NDArray[np.int8], quad_axis: QuadAxis | int, shape: Sequence[int]) -> npt.NDArray[np.int8]:
    """Returns the weights that :func:`pack_conv` packed, of `shape`: [M, C / group, k1, ..., kr]."""
    count, channels, *kernel = shape
    is_channels = quad_axis == QuadAxis.CHANNELS
    rows = [*kernel, channels] if is_channels else [channels, *kernel]
    matrix = unpack(packed, math.prod(rows[:-1]) * _round_up(rows[-1]), count)
    codes = matrix.T.reshape(count, *rows[:-1], _round_up(rows[-1]))[..., : rows[-1]]
    return np.moveaxis(codes, -1, 1) if is_channels else codes


def packed_conv_shape(shape: Sequence[int], quad_axis: QuadAxis | int) -> tuple[int, int, int, int]:
    """The shape of packed weights of `shape`, [M, C / group, k1, ..., kr]."""
    return packed_shape(_conv_depth(shape[1:], quad_axis), shape[0])


def _conv_depth(shape: Sequence[int], quad_axis: QuadAxis | int) -> int:
    """The rows of the packed matrix for weights of `shape`, [C / group, k1, ..., kr] for each output channel."""
    channels, *kernel = shape
    outer, inner = (kernel, channels) if quad_axis == QuadAxis.CHANNELS else ([channels, *kernel[:-1]], kernel[-1])
    return math.prod(outer) * _round_up(inner)


def _round_up(length: int) -> int:
    return -(-length // QUAD) * QUAD


def packed_words_shape(depth: int, columns: int) -> tuple[int, int, int, int]:
    """The shape of packed words of shape [depth, columns]."""
    return -(-columns // PANEL_COLUMNS), -(-depth // PAIR), PANEL_COLUMNS, PAIR


def pack_words(words: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Packs weights of WordMatMul.

    Args:
        words: int16, [K, N].

    Returns:
        int16, [ceil(N / 32), ceil(K / 2), 32, 2]. Padding is 0.
    """
    depth, columns = words.shape
    panels, pairs, _, _ = packed_words_shape(depth, columns)
    padded = np.zeros((pairs * PAIR, panels * PANEL_COLUMNS), np.int16)
    padded[:depth, :columns] = words
    return np.ascontiguousarray(padded.reshape(pairs, PAIR, panels, PANEL_COLUMNS).transpose(2, 0, 3, 1))
