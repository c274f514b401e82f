"""Float weights as a grid of integers: one scale for each output channel, or for each of its groups, times codes.

Exporters fold DequantizeLinear(codes) or Cast(codes) * scale into float weights. Each column of such weights, or each
group of adjacent elements of a column, is float32(code * scale) for integer codes and one float32 scale. The search
finds the scale and compares every weight bit for bit. Other arithmetic, such as w + (code * scale - w) or code / scale,
rounds differently: then every weight is compared except for a few units in the last place. Weights of float16 may be
float16(code * scale) (rounded_scales.py). 2 * code / n - 1, as DoReFa writes weights, rounds relative to 1, not to the
weight: such weights have one scale, and are compared relative to the largest weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.quantized_matmul import MAX_SUM_LENGTH, MAX_SYMMETRIC_SUM_LENGTH
from ..analysis.constants import is_float16
from ..analysis.inference import Facts
from ..reasons import Reason, Unconverted
from .rounded_scales import float16_scales

_N = TypeVar("_N", bound=np.generic)
_T = TypeVar("_T")
_GROUP_SIZES = (256, 128, 64, 32, 16)
_PROBED_COLUMNS = 16  # a sample of the columns rejects most weights that are not a grid
_PROBED_ROWS = 64
WORD_BITS = 12
_FEW_ROWS = 4  # they reject most candidates for a scale
_MAX_ROUNDING = 2.0**-13
_MIN_ROUNDED_ROWS = 8  # fewer numbers of float16, or nearly, are multiples of some scale by chance
MAX_ROUNDING_OF_ALL = 2.0**-23  # of 2 * code / n - 1, relative to the largest weight
_MAX_DISTANCE = 2.0**-21  # of a weight to the grid, relative: w + (c - w) has an error of 2**-24 * (|c - w| + |c|)
_BLOCK = 1 << 22  # elements per step: the temporary arrays take many times their size
# Candidates for the code of the largest magnitude: 1 of ternary weights, 127, which is the most frequent one and prime,
# then the others from small to large, since a multiple of the true code would make multiples of all codes.
_MAX_CODES = (1, 127, *range(2, 127), *range(128, 256))


@dataclass(frozen=True)
class QuantizedWeights:
    """weights[k, n] == float32((codes[k, n] - zero_point[g, n]) * scale[g, n]), where g is the group of k.

    Or the weights are that except for roundings. If `is_rounded`, they are that product rounded to float16, or relative
    to the largest weight. With zero points that are no codes, the weights are that product plus `offset[g, n]`.

    Attributes:
        codes: int8, [K, N]; 0 to 15 if `bits` is 4; int16 if it is 12.
        zero_point: int8, [groups, N], or [1] if all are equal.
        scale: float32, [groups, N], or [1, N].
        bits: 8 or 4; or 12, of words, which have no zero points.
        group_size: The number of adjacent k that share a scale; 0 if all do.
        is_rounded: Whether the weights have roundings that verification has to know.
        is_near: Whether these are relative to the largest weight, at most MAX_ROUNDING_OF_ALL of it.
        stack: The leading dimensions of stacked matrices; empty for one matrix. The N columns are those of the first
            matrix, then those of the second one, and so on.
        offset: float32, [groups, N], what zero points that are no codes leave; None for 0 (float_zero_points.py).
    """

    codes: npt.NDArray[Any]
    zero_point: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]
    bits: int = 8
    group_size: int = 0
    is_rounded: bool = False
    is_near: bool = False
    stack: tuple[int, ...] = ()
    offset: npt.NDArray[np.float32] | None = None

    @property
    def columns(self) -> int:
        """The number of columns of one matrix."""
        size: int = self.codes.shape[1]
        return size // math.prod(self.stack)

    @property
    def sums(self) -> npt.NDArray[np.int32]:
        """The sums of the codes minus their zero points, [groups, N]."""
        depth, columns = self.codes.shape
        size = self.group_size or depth
        groups = depth // size if size else 1  # K may be 0
        sums = self.codes.reshape(groups, size, columns).sum(1, dtype=np.int32)
        return np.asarray(sums - np.int32(size) * self.zero_point.astype(np.int32))

    @property
    def sums_of_weights(self) -> npt.NDArray[np.float64]:
        """The sums of the weights, [groups, N]."""
        sums = np.asarray(self.sums * self.scale.astype(np.float64), np.float64)
        if self.offset is not None:
            sums += (self.group_size or len(self.codes)) * self.offset.astype(np.float64)
        return sums

    @property
    def has_int32_sums(self) -> bool:
        """Whether the sums of codes times weights are integers that int32 holds."""
        largest = float(self.scale.max()) * 255 * 255 * len(self.codes)
        return largest < 2**31 and bool((self.scale == np.rint(self.scale)).all())

    def split(self, group_size: int) -> QuantizedWeights:
        """Returns the same grid in smaller groups; a scale for each column stays one."""
        factor = (self.group_size or len(self.codes)) // group_size
        scale = np.repeat(self.scale, factor, 0) if self.group_size else self.scale
        zero_point = self.zero_point if self.zero_point.ndim == 1 else np.repeat(self.zero_point, factor, 0)
        offset = None if self.offset is None else np.repeat(self.offset, factor, 0)
        return replace(self, scale=scale, zero_point=zero_point, group_size=group_size, offset=offset)


class SharedGrids:
    """The results of searches for weights that several products of one model multiply: a search takes time."""

    def __init__(self, facts: Facts) -> None:
        self._grids: dict[tuple[ir.Value, Hashable], Any] = {}

    def of(self, weights: ir.Value, layout: Hashable, search: Callable[[], _T]) -> _T:
        """Returns the result of a search for weights, as a layout gives the matrix: whether it is their transpose.

        Raises:
            Unconverted: The search raised it.
        """
        if (weights, layout) in self._grids:
            known: _T = self._grids[weights, layout]
            return known
        found = search()
        if len(weights.uses()) > 1:
            self._grids[weights, layout] = found
        return found


def stacked(numbers: npt.NDArray[_N], stack: Sequence[int]) -> npt.NDArray[_N]:
    """Returns rows of numbers for the columns of all matrices, [rows, N], as [stack..., rows, columns of a matrix]."""
    if not stack:
        return numbers
    by_matrix = numbers.reshape(len(numbers), *stack, numbers.shape[1] // math.prod(stack))
    return np.ascontiguousarray(np.moveaxis(by_matrix, 0, -2))


def columns_of_stack(weights: npt.NDArray[_N]) -> tuple[npt.NDArray[_N], tuple[int, ...]]:
    """Returns stacked matrices, [..., K, N], as one matrix of all their columns, and their leading dimensions."""
    *stack, depth, columns = weights.shape
    if not stack:
        return weights, ()
    matrices = math.prod(stack)
    by_row = weights.reshape(matrices, depth, columns).transpose(1, 0, 2)
    return by_row.reshape(depth, matrices * columns), tuple(stack)


def grid_of(weights: npt.NDArray[Any], *, may_be_rounded: bool = False) -> QuantizedWeights | None:
    """Returns the grid of float32 weights of shape [K, N]; None if they are not one.

    One scale for each column is tried first, then groups, large ones first.

    Args:
        weights: The weights.
        may_be_rounded: Whether weights may be a grid except for roundings of float32, or one that was rounded to
            float16.

    Raises:
        Unconverted: Weights that may be rounded are a grid of more than 8 bits with one scale.
    """
    if weights.ndim != 2 or weights.dtype != np.float32 or not weights.size:
        return None
    depth = len(weights)
    for is_exact in (True, False) if may_be_rounded and depth >= _MIN_ROUNDED_ROWS else (True,):
        search = _EXACT if is_exact else _ROUNDED if is_float16(weights) else _NEAR
        for group_size in sizes_of_groups(depth):
            found = _numbers(weights, group_size or depth, search)
            if found is not None:
                grid = _grid(*found, group_size)
                return None if grid is None else replace(grid, is_rounded=search is _ROUNDED)
    return _grid_of_all(weights) if may_be_rounded and depth >= _MIN_ROUNDED_ROWS else None


def sizes_of_groups(depth: int) -> tuple[int, ...]:
    """Returns the sizes of groups that weights of K rows may have; 0, the first one, stands for all rows."""
    return (0, *(size for size in _GROUP_SIZES if size < depth and depth % size == 0))


def _grid_of_all(weights: npt.NDArray[np.float32]) -> QuantizedWeights | None:
    """Returns the grid of weights with one scale and roundings relative to the largest weight; None if they are none.

    Raises:
        Unconverted: They are a grid of more than 8 bits.
    """
    found = _numbers(weights.reshape(-1, 1), weights.size, _OF_ALL)
    if found is None:
        return None
    numbers, scale = found
    grid = _grid(numbers.reshape(weights.shape), np.repeat(scale, weights.shape[1], 1), 0)
    if grid is None:
        raise Unconverted(Reason.WEIGHTS_STEPS)
    return replace(grid, is_rounded=True, is_near=True)


def grid_of_integers(weights: npt.NDArray[Any]) -> QuantizedWeights | None:
    """Returns the grid of integer weights, [K, N], with scales of 1; None if they are not 8-bit codes of one."""
    if weights.ndim != 2 or weights.dtype.kind not in "iu" or not weights.size:
        return None
    if max(-int(weights.min()), int(weights.max())) > 255:
        return None
    return _grid(weights.astype(np.int16), np.ones((1, weights.shape[1]), np.float32), 0)


def _numbers(
    weights: npt.NDArray[np.float32], size: int, search: _ScaleSearch
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]] | None:
    """Returns the multiples of the scales that the weights are, [K, N], and the scales, [K / size, N]."""
    depth, columns = weights.shape
    probe = in_groups(weights[:, :: -(-columns // _PROBED_COLUMNS)], size)
    if not (np.isfinite(probe).all() and all(map(search.has_scale, probe.T[:_PROBED_COLUMNS]))):
        return None
    numbers, scales = np.empty((depth, columns), np.int16), np.empty((depth // size, columns), np.float32)
    for block in _blocks(weights):
        grouped = in_groups(weights[:, block], size)
        found = search.scales(grouped) if np.isfinite(grouped).all() else None
        if found is None:
            return None
        scales[:, block] = found.reshape(depth // size, -1)
        rounded = np.rint(grouped / found).reshape(size, depth // size, -1)
        numbers[:, block] = rounded.transpose(1, 0, 2).reshape(depth, -1)
    return numbers, scales


def _grid(numbers: npt.NDArray[np.int16], scale: npt.NDArray[np.float32], group_size: int) -> QuantizedWeights | None:
    """Returns the grid of integers and their scales; None if a zero point does not bring them into 8 bits."""
    groups, columns = scale.shape
    grouped = numbers.reshape(groups, -1, columns)
    low, high = grouped.min(1), grouped.max(1)
    # One group stays 8-bit: with 4 bits, products of 128 rows and more take up to a tenth longer on VNNI.
    bits, zero_point = 4, np.where((low < -8) | (high > 7), np.maximum(-low, 0), 8)
    if not group_size or (high + zero_point > 15).any() or (zero_point > 127).any():
        bits, zero_point = 8, np.where((low < -128) | (high > 127), -128 - np.minimum(low, 0), 0)
        if (high + zero_point > 127).any():
            return None
    codes = grouped + zero_point[:, None].astype(np.int16)
    if (zero_point == zero_point[0, 0]).all():
        zero_point = zero_point[0, :1]
    return QuantizedWeights(
        codes.reshape(numbers.shape).astype(np.int8), zero_point.astype(np.int8), scale, bits, group_size
    )


def in_groups(weights: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
    """Returns the groups as columns, [size, K / size * N]; all groups of one place in K are adjacent."""
    depth, columns = weights.shape
    return weights.reshape(depth // size, size, columns).transpose(1, 0, 2).reshape(size, -1)


def _blocks(matrix: npt.NDArray[Any]) -> Iterator[slice]:
    """Yields slices of columns of at most _BLOCK elements, or of one column."""
    rows, columns = matrix.shape
    step = max(1, _BLOCK // rows)
    return (slice(i, i + step) for i in range(0, columns, step))


_Comparison = Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32]], npt.NDArray[np.bool_]]
_Filter = Callable[[npt.NDArray[np.float32], Any, npt.NDArray[np.float32]], npt.NDArray[np.bool_]]


class _ScaleSearch(NamedTuple):
    """How scales are found.

    Attributes:
        has_scale: Returns whether some scale fits one column of finite weights; it may be one of a sample only.
        scales: Returns one scale for each column of finite weights, [rows, columns]; None if a column has none.
    """

    has_scale: Callable[[npt.NDArray[np.float32]], bool]
    scales: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32] | None]


def _has_scale(column: npt.NDArray[np.float32], is_grid: _Comparison, fits: _Filter) -> bool:
    """Returns whether some scale fits a sample of one column: all candidates at once."""
    largest = np.abs(column).max()
    sample = column[:: max(1, len(column) // _PROBED_ROWS), None]
    codes = np.array(_MAX_CODES, np.float32)
    return largest == 0 or any(
        (fits(scale, codes, largest) & is_grid(sample, scale)).any() for scale in _candidates(largest, codes)
    )


def _scales(weights: npt.NDArray[np.float32], is_grid: _Comparison, fits: _Filter) -> npt.NDArray[np.float32] | None:
    """Returns one scale for each column; None if a column has none."""
    largest = np.abs(weights).max(0)
    scales = np.ones_like(largest)
    todo = np.flatnonzero(largest)
    few, sample = (weights[:: max(1, len(weights) // rows)] for rows in (_FEW_ROWS, _PROBED_ROWS))
    ratios = np.abs(few[:, todo]) / largest[todo]
    for code in map(np.float32, _MAX_CODES):
        near = _near_integers(ratios, code)
        if not near.size:
            continue
        is_done = np.zeros(todo.size, np.bool_)
        for which in range(3):
            near = near[~is_done[near]]
            columns = todo[near]
            scale = _candidates(largest[columns], code)[which]
            found = np.flatnonzero(fits(scale, code, largest[columns]))
            for rows in (sample, weights):
                found = found[is_grid(rows[:, columns[found]], scale[found])]
            scales[columns[found]] = scale[found]
            is_done[near[found]] = True
        if is_done.any():
            todo, ratios = todo[~is_done], ratios[:, ~is_done]
        if not todo.size:
            return np.asarray(scales)
    return None


def _near_integers(ratios: npt.NDArray[np.float32], code: np.float32) -> npt.NDArray[np.intp]:
    """Returns the columns of the ratios that are integers when multiplied by `code`, except for rounding.

    code = weight / largest weight * code of the largest weight. Both weights, the quotient and the product are rounded:
    the error is at most 255 * 4 * 2**-24.
    """
    found = np.arange(ratios.shape[1])
    for row in ratios:
        products = (row if len(found) == len(row) else row[found]) * code
        found = found[np.abs(products - np.rint(products)) < _MAX_ROUNDING]
    return found


def _candidates(largest: Any, code: Any) -> list[npt.NDArray[np.float32]]:
    """Returns the scales that may round to the largest magnitude, times the code: the quotient and its neighbors."""
    quotient = np.asarray(largest / code)
    return [quotient, *(np.nextafter(quotient, np.float32(limit)) for limit in (0, np.inf))]


def _fits(scale: npt.NDArray[np.float32], code: Any, largest: Any) -> npt.NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        return np.asarray((scale > 0) & (code * scale == largest))


def _is_positive(scale: npt.NDArray[np.float32], code: Any, largest: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Returns which scales are positive: no scale has to round to a largest weight such as 127 / inverse scale."""
    return scale > 0


def _is_grid(weights: npt.NDArray[np.float32], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray((np.rint(weights / scale) * scale == weights).all(0))


def _is_nearly_grid(weights: npt.NDArray[np.float32], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        distance = np.abs(np.rint(weights / scale) * scale - weights)
        return np.asarray((distance <= _MAX_DISTANCE * np.abs(weights)).all(0))


def _is_near_with_largest(weights: npt.NDArray[np.float32], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.rint(weights / scale)
        is_near = np.abs(codes * scale - weights) <= MAX_ROUNDING_OF_ALL * np.abs(weights).max(0)
        return np.asarray((is_near & ((codes != 0) | (weights == 0))).all(0))  # small weights are not left out


def _fitted_scales(
    weights: npt.NDArray[np.float32], is_grid: _Comparison = _is_nearly_grid
) -> npt.NDArray[np.float32] | None:
    """Returns the scales with the least squares of distances; None if a column is not nearly a grid."""
    scales = _scales(weights, is_grid, _is_positive)
    if scales is None:
        return None
    codes = np.rint(weights / scales).astype(np.float64)
    squares = (codes * codes).sum(0)
    fitted = np.divide((codes * weights).sum(0), squares, out=scales.astype(np.float64), where=squares > 0)
    return np.asarray(fitted, np.float32)


_EXACT = _ScaleSearch(
    functools.partial(_has_scale, is_grid=_is_grid, fits=_fits),
    functools.partial(_scales, is_grid=_is_grid, fits=_fits),
)
_NEAR = _ScaleSearch(functools.partial(_has_scale, is_grid=_is_nearly_grid, fits=_is_positive), _fitted_scales)
_OF_ALL = _ScaleSearch(
    functools.partial(_has_scale, is_grid=_is_near_with_largest, fits=_is_positive),
    functools.partial(_fitted_scales, is_grid=_is_near_with_largest),
)
_ROUNDED = _ScaleSearch(
    lambda column: float16_scales(column[:, None], _MAX_CODES) is not None,
    lambda weights: float16_scales(weights, _MAX_CODES),
)


def check_length(grid: QuantizedWeights) -> None:
    """Checks that int32 holds the sums of products with these weights.

    Raises:
        Unconverted: It may not.
    """
    check_sums(grid.group_size or len(grid.codes), grid.zero_point if grid.bits == 8 else None)


def check_sums(length: int, zero_point: npt.NDArray[np.int8] | None) -> None:
    """Checks that int32 holds sums of so many products.

    Args:
        length: The number of products.
        zero_point: The zero points of 8-bit weights, int8; None for 4-bit weights.

    Raises:
        Unconverted: It may not.
    """
    is_symmetric = zero_point is not None and zero_point.size == 1 and not zero_point.any()
    if length > (MAX_SYMMETRIC_SUM_LENGTH if is_symmetric else MAX_SUM_LENGTH):
        raise Unconverted(Reason.SUMS_OVERFLOW, length=length)
