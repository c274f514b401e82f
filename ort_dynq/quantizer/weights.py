"""The codes and scales of float weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..operators.word_matmul import MAX_WEIGHT_WORD
from ..rewriter.analysis.evaluation import evaluate
from ..rewriter.analysis.inference import Facts
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.weights.grid import WORD_BITS, QuantizedWeights, grid_of

_BLOCK_COLUMNS, _BLOCK_ROWS = 512, 128  # of one step: its temporary arrays take several times its size
_THREADS = 4  # more of them would need more temporary arrays
_MAX_CODE = np.float32(127)
MAX_WORD = np.float32(MAX_WEIGHT_WORD)
_LOWEST_CODE_OF_4_BITS, _MAX_CODE_OF_4_BITS = np.float32(-8), np.float32(7)
_ZERO_OF_4_BITS = 8
_MAX_GROWTH = 4  # a model that stores packed codes of 4 or 2 bits may become one of 8 bits
_CLIPS = (1.0, 0.94, 0.88, 0.82, 0.76, 0.7)
"""The shares of a group's largest magnitude at which the search clips; smaller ones and more of them gain little."""


def check_constant(weights: ir.Value, facts: Facts) -> None:
    """Checks that weights are constant.

    Raises:
        Unconverted: They are computed at run time, or a caller of the model may override them.
    """
    if weights.is_initializer() and weights.is_graph_input():
        raise Unconverted(Reason.WEIGHTS_OVERRIDABLE)
    if not facts.is_constant(weights):
        raise Unconverted(Reason.TWO_ACTIVATIONS)


def floats_of(weights: ir.Value, facts: Facts) -> npt.NDArray[np.float32]:
    """Returns constant float32 weights, which ONNX Runtime computes if they are not an initializer.

    Raises:
        Unconverted: They are not known, or of another type.
    """
    elements = evaluate(weights, facts)
    if elements is None:
        raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
    if elements.dtype != np.float32:
        raise Unconverted(Reason.WEIGHTS_TYPE, dtype=elements.dtype)
    if not elements.size:
        raise Unconverted(Reason.WEIGHTS_EMPTY)
    return elements


def check_stored(weights: ir.Value, elements: npt.NDArray[np.float32]) -> None:
    """Checks that the model stores constant weights, or what is not much smaller: its file would grow.

    The bases of spectrograms are such weights, zeros into which ScatterElements writes a few numbers.

    Raises:
        Unconverted: Their codes have more than :data:`_MAX_GROWTH` times the bytes of what they are computed from.
    """
    stored = sum(tensor.nbytes for tensor in _sources(weights))
    if elements.size > _MAX_GROWTH * stored:
        raise Unconverted(Reason.WEIGHTS_COMPUTED, stored=stored, size=elements.size)


def release(weights: ir.Value) -> None:
    """Unmaps the external data that weights are computed from, so that only one layer at a time takes memory."""
    for tensor in _sources(weights):
        if isinstance(tensor, ir.ExternalTensor):
            with contextlib.suppress(BufferError):  # the caller of quantize has a view of them
                tensor.release()


def _sources(value: ir.Value) -> Iterator[ir.TensorProtocol]:
    """Yields the tensors that a constant is computed from."""
    todo: list[ir.Value | None] = [value]
    visited: set[ir.Value] = set()
    while todo:
        each = todo.pop()
        if each is None or each in visited:
            continue
        visited.add(each)
        if (tensor := ir.convenience.get_const_tensor(each)) is not None:
            yield tensor
        elif (node := each.producer()) is not None:
            todo += node.inputs


def grid_of_columns(weights: npt.NDArray[np.float32], max_code: np.float32 = _MAX_CODE) -> QuantizedWeights:
    """Returns weights as codes with one scale for each column: int8, or words of int16 if `max_code` is that of words.

    scale[n] = max(abs(weights[:, n])) / max_code, or 1 if that is 0
    code[k, n] = clip(round(weights[k, n] / scale[n]), -max_code, max_code), ties to even

    Every step is float32, so the codes are the same in every run and on every CPU.

    Args:
        weights: float32, [K, N].
        max_code: 127 or :data:`MAX_WORD`.

    Raises:
        Unconverted: The weights have NaN or an infinity.
    """
    depth, columns = weights.shape
    has_words = max_code > _MAX_CODE
    codes = np.empty((depth, columns), np.int16 if has_words else np.int8)
    scale = np.empty((1, columns), np.float32)
    for block in _blocks(columns):
        part = weights[:, block]
        scales = _largest(np.maximum(part.max(0), -part.min(0))) / max_code
        scales[scales == 0] = 1
        scale[0, block] = scales
        quotients = part / scales
        # The quotient exceeds the largest code if the scale is a denormal number: its rounding is coarse.
        codes[:, block] = np.clip(np.rint(quotients, out=quotients), -max_code, max_code, out=quotients)
    return QuantizedWeights(codes, np.zeros(1, np.int8), scale, WORD_BITS if has_words else 8)


def words_of(weights: npt.NDArray[np.float32]) -> QuantizedWeights:
    """Returns weights, [K, N], as words.

    Those that are the result of a dequantization with one scale for each column keep its codes.
    """
    grid = grid_of(weights)
    if grid is None or grid.group_size:
        return grid_of_columns(weights, MAX_WORD)
    words = grid.codes.astype(np.int16) - grid.zero_point.astype(np.int16)
    return QuantizedWeights(words, np.zeros(1, np.int8), grid.scale, WORD_BITS)


def codes_of_rows(table: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """Returns the rows of a table as int8 codes with one scale for each row, of the type of the table.

    scale[n] = max(abs(table[n])) / 127, rounded to float16 if that is the type; or 1 if that is 0
    code[n, k] = clip(round(table[n, k] / scale[n]), -127, 127), ties to even

    Args:
        table: float32 or float16, [N, K].

    Raises:
        Unconverted: The table has NaN or an infinity.
    """
    codes, scales = np.empty(table.shape, np.int8), np.empty((len(table), 1), table.dtype)
    for block in _blocks(len(table)):
        part = table[block].astype(np.float32)
        largest = _largest(np.abs(part).max(1, keepdims=True))
        scale = (largest / _MAX_CODE).astype(table.dtype)
        scale[scale == 0] = 1
        scales[block] = scale
        part /= scale.astype(np.float32)
        # The quotient exceeds 127 if the scale is a denormal number: its rounding is coarse.
        codes[block] = np.clip(np.rint(part, out=part), -_MAX_CODE, _MAX_CODE, out=part)
    return codes, scales


def grid_of_groups(weights: npt.NDArray[np.float32], group_size: int) -> QuantizedWeights:
    """Returns weights as 4-bit codes with one scale for each group of adjacent k of each column.

    The largest magnitude x of a group would have the code -8 with the scale x / -8, which is negative if x is positive:
    the group then uses all 16 codes. For each c of some shares of this scale, the codes are

        code[k] = clip(round(weights[k] / (x / -8) * (1 / c)), -8, 7)

    and the scale with the least squared error for these codes is sum(weights * code) / sum(code ** 2), the linear
    regression. The codes and the scale with the least squared error of all c are taken. Every step is float32, in a
    fixed order, so they are the same in every run.

    Args:
        weights: float32, [K, N].
        group_size: The number of k in a group; it divides K.

    Raises:
        Unconverted: The weights have NaN or an infinity.
    """
    depth, columns = weights.shape
    codes, scale = np.empty((depth, columns), np.int8), np.empty((depth // group_size, columns), np.float32)
    count = max(1, _BLOCK_ROWS // group_size)

    def quantize(block: slice) -> None:
        for first in range(0, len(scale), count):
            groups, rows = slice(first, first + count), slice(first * group_size, (first + count) * group_size)
            part = np.ascontiguousarray(weights[rows, block])
            found, scale[groups, block] = _searched(part.reshape(-1, group_size, part.shape[1]))
            codes[rows, block] = found.reshape(part.shape)

    with ThreadPoolExecutor(_THREADS) as pool:  # NumPy releases the GIL
        list(pool.map(quantize, _blocks(columns)))
    return QuantizedWeights(codes, np.full(1, _ZERO_OF_4_BITS, np.int8), scale, 4, group_size)


def _searched(weights: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Returns codes from 0 to 15 of groups of weights, [groups, size, N], and their scales, [groups, N]."""
    low, high = weights.min(1), weights.max(1)
    unit = _largest(np.where(high > -low, high, low)) / _LOWEST_CODE_OF_4_BITS
    unit[unit == 0] = 1
    numbers = weights / unit[:, None]  # from -8 to 8
    gain, slope, inverse = (np.full(unit.shape, number, np.float32) for number in (-1, 0, 1))
    codes, products = np.empty_like(numbers), np.empty_like(numbers)
    for candidate in map(np.float32, 1 / np.array(_CLIPS)):
        _rounded(numbers, candidate, codes)
        common = np.multiply(numbers, codes, out=products).sum(1)
        norm = np.maximum(np.multiply(codes, codes, out=products).sum(1), 1)
        # The squared error is sum(numbers ** 2) - common ** 2 / norm.
        is_better = common * common / norm > gain
        for best, new in ((gain, common * common / norm), (slope, common / norm), (inverse, candidate)):
            np.copyto(best, new, where=is_better)
    codes = _rounded(numbers, inverse[:, None], codes) - _LOWEST_CODE_OF_4_BITS
    return codes.astype(np.int8), unit * slope


def _rounded(
    numbers: npt.NDArray[np.float32], factor: npt.NDArray[np.float32] | np.float32, codes: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Returns the 4-bit codes of numbers times a factor, from -8 to 7, in the array `codes`."""
    np.rint(np.multiply(numbers, factor, out=codes), out=codes)
    return np.clip(codes, _LOWEST_CODE_OF_4_BITS, _MAX_CODE_OF_4_BITS, out=codes)


def _largest(magnitudes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Returns the magnitudes, if they are finite."""
    if not np.isfinite(magnitudes).all():
        raise Unconverted(Reason.WEIGHTS_NOT_FINITE)
    return magnitudes


def _blocks(columns: int) -> Iterator[slice]:
    """Yields slices of columns, so that temporary arrays are small, and their rows long enough for NumPy."""
    return (slice(i, i + _BLOCK_COLUMNS) for i in range(0, columns, _BLOCK_COLUMNS))
