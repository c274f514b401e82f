"""Float weights that are a grid of integers: the grid is found, and other weights are rejected."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Array, assert_same, diagonals, in_turn

from ort_dynq.rewriter.reasons import Reason, Unconverted
from ort_dynq.rewriter.weights.grid import QuantizedWeights, grid_of

F = np.float32


def columns(codes: Array, scale: Array | float) -> Array:
    return np.asarray(np.asarray(codes).astype(F) * F(scale))


def in_groups(values: Array, group_size: int) -> Array:
    """Repeats one value for each group and column, [groups, N], for each weight."""
    return np.repeat(values, group_size, 0)


def dequantized(grid: QuantizedWeights) -> Array:
    """Computes the weights, and checks the shapes and the range of the grid."""
    depth, count = grid.codes.shape
    size = grid.group_size or depth
    zero_point = np.broadcast_to(grid.zero_point, (depth // size, count)).astype(np.int32)
    numbers = grid.codes.astype(np.int32) - in_groups(zero_point, size)
    assert_same(grid.sums, numbers.reshape(-1, size, count).sum(1).astype(np.int32))
    if grid.bits == 4:
        assert grid.codes.min() >= 0
        assert grid.codes.max() <= 15
        assert grid.zero_point.min() >= 0  # the operator's function needs it
    return columns(numbers, in_groups(np.broadcast_to(grid.scale, (depth // size, count)), size))


@pytest.mark.parametrize(
    ("low", "scale"), in_turn([-127, -128, -1, -7, 0, -255], [0.01, 1.0, 2.0**-20, 1 / 3, 1e-38, 3e35, 1.4e-45])
)
def test_a_grid_is_recovered(low: int, scale: float) -> None:
    rng = np.random.default_rng(0)
    high = min(127, low + 255) if low < 0 else 255
    codes = rng.integers(low, high + 1, (200, 40))
    scales = F(scale) * F(1) if scale < 1e-40 else (rng.uniform(1, 2, 40) * scale).astype(F)
    weights = columns(codes, scales)
    weights[:, 5] = 0
    grid = grid_of(weights)
    assert grid is not None
    assert (grid.bits, grid.group_size) == (8, 0)
    assert_same(dequantized(grid) + F(0), weights + F(0))  # -0 is 0


# The lowest and the highest code, whether there are zero points, and the bits.
CODES = [
    (-8, 7, False, 4),
    (-7, 7, False, 4),
    (0, 15, False, 4),
    (0, 15, True, 4),
    (-1, 1, False, 4),
    (-127, 127, False, 8),
    (-128, 127, False, 8),
    (0, 255, True, 8),
    (-8, 8, False, 8),
    (5, 20, False, 8),
]


@pytest.mark.parametrize(("size", "kind"), diagonals(1, [16, 32, 64, 128, 256], CODES))
def test_groups_are_recovered(size: int, kind: tuple[int, int, bool, int]) -> None:
    low, high, zero_points, bits = kind
    rng = np.random.default_rng(0)
    groups, count = 3, 20
    codes = rng.integers(low, high + 1, (size * groups, count))
    codes[::16], codes[1::16] = low, high
    if zero_points:
        codes -= in_groups(rng.integers(low, high + 1, (groups, count)), size)
    scales = rng.uniform(0.001, 0.02, (groups, count)).astype(F)
    weights = columns(codes, in_groups(scales, size))
    weights[size : 2 * size, 7] = 0
    grid = grid_of(weights)
    assert grid is not None
    assert (grid.bits, grid.group_size) == (bits, size)
    assert_same(dequantized(grid) + F(0), weights + F(0))
    halves = grid.split(16)
    assert_same(dequantized(halves) + F(0), weights + F(0))
    changed = weights.copy()
    changed[size + 3, count - 1] = np.nextafter(changed[size + 3, count - 1], F(1))
    assert grid_of(changed) is None


def test_columns_that_are_split_into_groups_keep_one_scale() -> None:
    rng = np.random.default_rng(0)
    weights = columns(rng.integers(0, 256, (96, 20)) - rng.integers(1, 255, 20), rng.uniform(1, 2, 20).astype(F))
    grid = grid_of(weights)
    assert grid is not None
    split = grid.split(32)
    assert (split.scale.shape, split.zero_point.shape, split.sums.shape) == ((1, 20), (3, 20), (3, 20))
    assert_same(dequantized(split), weights)


@pytest.mark.parametrize("column", [0, 39])
def test_weights_that_are_almost_a_grid_are_rejected(column: int) -> None:
    weights = columns(np.random.default_rng(0).integers(-127, 128, (200, 40)), 0.01)
    for change in (np.nextafter(weights[7, column], F(1)), F(np.nan), F(np.inf), weights[7, column] + F(0.005)):
        changed = weights.copy()
        changed[7, column] = change
        assert grid_of(changed) is None
    assert grid_of(weights) is not None
    assert grid_of(columns(np.random.default_rng(0).integers(-128, 129, (300, 3)), 0.01)) is None  # 257 codes
    assert grid_of(weights.astype(np.float64)) is None
    assert grid_of(weights[0]) is None
    assert grid_of(weights[:0]) is None


def test_a_sample_rejects_arbitrary_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching all of these weights takes seconds."""
    monkeypatch.setattr("ort_dynq.rewriter.weights.grid._blocks", None)  # searches all columns
    rng = np.random.default_rng(0)
    for dtype, spread in ((np.float16, 1), (F, 1), (np.float16, 0.02)):
        weights = rng.normal(0, spread, (4096, 1024)).astype(dtype).astype(F)
        for may_be_rounded in (False, True):
            assert grid_of(weights, may_be_rounded=may_be_rounded) is None


@pytest.mark.parametrize(("most", "spelling"), in_turn([1, 7, 127], ["estimator", "division", "inverse", "difference"]))
def test_a_grid_with_other_roundings_is_recovered(spelling: str, most: int) -> None:
    """w + (code * scale - w), code / (1 / scale) and (code + 1) * scale - scale are a grid, except for roundings.

    No scale may round to a largest weight of 127 / (127 / range + epsilon), as LLM-QAT writes it.
    """
    w = np.random.default_rng(0).normal(size=(256, 40)).astype(F)
    scale = np.abs(w).mean(0) if most == 1 else np.abs(w).max(0) / F(most)
    codes = np.clip(np.rint(w / scale), -most, most).astype(F)
    match spelling:
        case "estimator":
            weights = w + (codes * scale - w)
        case "division":
            weights = codes / (F(1) / scale)
        case "inverse":
            weights = codes / (F(most) / (scale * F(most)) + F(1e-6))
        case _:
            weights = (codes + F(1)) * scale - scale
    is_exact = (spelling == "estimator") == (most > 1)  # w is near the code, or the code is 1
    assert (grid_of(weights) is not None) == is_exact
    grid = grid_of(weights, may_be_rounded=True)
    assert grid is not None
    np.testing.assert_array_equal(grid.codes - grid.zero_point.astype(F), codes)
    np.testing.assert_allclose(dequantized(grid), weights, rtol=2.0**-21)
    changed = weights.copy()
    changed[9, 20] = scale[20] * F(1 + 2.0**-19)
    assert grid_of(changed, may_be_rounded=True) is None


def dorefa(shape: tuple[int, ...], steps: int) -> tuple[Array, Array]:
    """Weights as DoReFa writes them, 2 * code / steps - 1, and the numbers of their grid."""
    w = np.tanh(np.random.default_rng(0).normal(size=shape).astype(F))
    codes = np.rint((w / np.abs(w).max() * F(0.5) + F(0.5)) * F(steps))
    numbers = (2 * codes - steps) // (2 - steps % 2)
    return codes / F(steps) * F(2) - F(1), numbers


@pytest.mark.parametrize("steps", [3, 7, 15, 63, 127, 254])
def test_roundings_relative_to_the_largest_weight(steps: int) -> None:
    """Of small weights they are as large as of the largest one. A weight that is left out, or is moved, is none."""
    weights, numbers = dorefa((96, 40), steps)
    assert grid_of(weights) is None
    grid = grid_of(weights, may_be_rounded=True)
    assert grid is not None
    assert grid.is_near == (steps > 7)
    np.testing.assert_array_equal(grid.codes - grid.zero_point.astype(F), numbers)
    np.testing.assert_allclose(dequantized(grid), weights, rtol=0, atol=2.0**-23)
    smallest = np.unravel_index(np.abs(weights).argmin(), weights.shape)
    changed = weights.copy()
    changed[smallest] += F(2.0**-22)
    assert grid_of(changed, may_be_rounded=True) is None
    left_out = weights.copy()
    left_out[numbers == numbers[smallest]] = 2.0**-25
    assert grid_of(left_out, may_be_rounded=True) is None


def test_more_steps_than_8_bits_are_a_reason() -> None:
    with pytest.raises(Unconverted) as raised:
        grid_of(dorefa((96, 40), 255)[0], may_be_rounded=True)
    assert raised.value.reason == Reason.WEIGHTS_STEPS


# Weights that were rounded to float16


def rounded(codes: Array, scale: Array | float) -> Array:
    """float32 numbers of float16: codes times scales, rounded once."""
    exact = codes.astype(np.float64) * np.asarray(scale, F).astype(np.float64)
    return exact.astype(np.float16).astype(F)


@pytest.mark.parametrize(
    ("scale", "ends"),
    diagonals(
        1, [0.01, 1.0, 1 / 3, 2.0**-9, 100.0, 1e-5], [(-127, 127), (-128, 127), (-1, 1), (-7, 7), (0, 255), (0, 3)]
    ),
)
def test_a_rounded_grid_is_recovered(scale: float, ends: tuple[int, int]) -> None:
    """Ordinary weights, and subnormal ones, for which several scales may be right."""
    low, high = ends
    rng = np.random.default_rng(0)
    for depth in (8, 64, 300):
        codes = rng.integers(low, high + 1, (depth, 40))
        codes[rng.integers(depth)] = high
        weights = rounded(codes, rng.uniform(1, 2, 40).astype(F) * F(scale))
        weights[:, 5] = 0
        grid = grid_of(weights, may_be_rounded=True)
        assert grid is not None
        numbers = grid.codes.astype(np.int32) - grid.zero_point.astype(np.int32)
        assert_same(rounded(numbers, grid.scale) + F(0), weights + F(0))
        assert grid_of(weights) is None or not grid.is_rounded


def test_codes_of_a_rounded_grid() -> None:
    """They are the exporter's if one of them is 127, and the scale is close to its own."""
    rng = np.random.default_rng(1)
    codes, scales = rng.integers(-127, 128, (300, 40)), rng.uniform(0.001, 0.02, 40).astype(F)
    codes[9] = 127
    grid = grid_of(rounded(codes, scales), may_be_rounded=True)
    assert grid is not None
    assert grid.is_rounded
    assert_same(grid.codes, codes.astype(np.int8))
    assert np.abs(grid.scale[0] / scales - 1).max() < 2.0**-12


def test_few_rows_are_no_rounded_grid() -> None:
    """Many are multiples of some scale by chance."""
    weights = rounded(np.random.default_rng(0).integers(-127, 128, (7, 40)), 0.0123)
    assert grid_of(weights, may_be_rounded=True) is None


def test_rounded_groups_are_recovered() -> None:
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(-8, 8, (128, 20)), in_groups(rng.uniform(0.01, 0.1, (4, 20)).astype(F), 32)
    codes[::32] = -8
    grid = grid_of(rounded(codes, scales), may_be_rounded=True)
    assert grid is not None
    assert (grid.bits, grid.group_size, grid.is_rounded) == (4, 32, True)
    numbers = grid.codes.astype(np.int32) - grid.zero_point.astype(np.int32)
    assert_same(rounded(numbers, in_groups(grid.scale, 32)) + F(0), rounded(codes, scales) + F(0))


@pytest.mark.parametrize("column", [0, 39])
def test_weights_that_are_almost_a_rounded_grid_are_rejected(column: int) -> None:
    weights = rounded(np.random.default_rng(0).integers(-127, 128, (200, 40)), 0.01)
    assert grid_of(weights, may_be_rounded=True) is not None
    half = weights[7, column].astype(np.float16)
    two_up = np.nextafter(np.nextafter(half, np.float16(9)), np.float16(9))
    for change in (two_up, np.float16(np.nan), np.float16(np.inf), half + np.float16(0.005)):
        changed = weights.copy()
        changed[7, column] = change
        assert grid_of(changed, may_be_rounded=True) is None
    changed = weights.copy()
    changed[7, column] = np.nextafter(changed[7, column], F(1))  # not a number of float16
    assert grid_of(changed, may_be_rounded=True) is None
