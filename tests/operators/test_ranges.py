"""The range of rows with NaN, with zeros of both signs, and of no elements: where ONNX Runtime's vector code decides.

A NaN counts only if it is the first element of a row (DynamicQuantizeLinear: the first and the last one); an extreme
that is a zero has the sign of the row's first zero.
So the function of an operator gets rows of the same range in which neither can be mistaken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from functions import run_function
from helpers import IS_ARM, SPECIALS, Array, Shape, assert_same, with_one_nan

from ort_dynq import kernels

SHAPES: tuple[Shape, ...] = ((5,), (3, 40), (2, 3, 33), (40, 32), (4, 257), (2, 1000))


def random_rows(rng: np.random.Generator, shape: Shape) -> Array:
    """Ties with special values anywhere, with NaN anywhere, or only zeros of both signs."""
    rows = rng.integers(-255, 256, shape) * np.float32(0.5) * rng.choice(np.float32([1, 1 / 16, 0.1, 1e-30]))
    share = rng.choice([0.1, 0.6])
    match rng.integers(3):
        case 0:
            rows = np.where(rng.random(shape) < share, rng.choice(SPECIALS, shape), rows)
        case 1:
            rows = np.where(rng.random(shape) < share, np.float32(np.nan), rows)
        case 2:
            rows = rng.choice(np.float32([0, -0.0]), shape)
    return np.asarray(rows, np.float32)


def plain(rows: Array) -> Array:
    """Rows of the same range: all NaN if the first element is, otherwise without NaN; zeros have one sign."""
    first = rows[:, :1]
    rows = np.where(np.isnan(rows), first, rows)
    zero = np.take_along_axis(rows, np.argmax(rows == 0, axis=1, keepdims=True), axis=1)
    return np.where(np.isnan(first), first, np.where(rows == 0, zero, rows))


def assert_equal_but_for_nan(actual: Array, expected: Array) -> None:
    assert_same(with_one_nan(actual), with_one_nan(expected))


@pytest.mark.parametrize("operator", ["DynamicQuantizeLinear", "DynamicQuantizeDequantizeLinear"])
def test_ranges_per_tensor(isas: Sequence[str], operator: str) -> None:
    """If the first and the last element are NaN, the scale is NaN, the zero point 255, and every code 0. Any other NaN
    has code 0."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        src = random_rows(rng, SHAPES[rng.integers(len(SHAPES))])
        numbers = src.reshape(1, -1)
        if np.isnan(src.flat[0]) and not np.isnan(src.flat[-1]):
            numbers = np.where(np.isnan(numbers), np.float32(0), numbers)
        codes, scale, zero_point = run_function("DynamicQuantizeLinear", [plain(numbers).reshape(src.shape)])
        if np.isnan(numbers.flat[0]):
            codes, scale, zero_point = np.zeros_like(codes), np.array(np.nan, np.float32), np.array(255, np.uint8)
        codes = np.where(np.isnan(src), np.uint8(0), codes)
        with np.errstate(all="ignore"):
            floats = (codes.astype(np.float32) - zero_point.astype(np.float32)) * scale
        expected = [codes, scale, zero_point] if operator == "DynamicQuantizeLinear" else [floats]
        for isa in isas:
            with kernels.use_isa(isa):
                for one, other in zip(kernels.run(operator, [src]), expected, strict=True):
                    assert_equal_but_for_nan(one, other)


@pytest.mark.skipif(IS_ARM, reason="ranges of onnxruntime keep NaN on ARM")
def test_ranges_per_tensor_beside_a_nan_are_those_of_onnxruntime() -> None:
    src = np.random.default_rng(2).normal(0, 1, (9, 64)).astype(np.float32)
    for nan in (np.s_[0, 0], np.s_[:], np.s_[2, 3]):
        given = src.copy()
        given[nan] = np.nan
        for one, other in zip(
            kernels.run("DynamicQuantizeLinear", [given]), run_function("DynamicQuantizeLinear", [given]), strict=True
        ):
            assert_equal_but_for_nan(one, other)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("rows", "cols"), [*((rows, cols) for rows in (1, 9, 100) for cols in (32, 33, 100, 768)), (1, 200001), (2, 200001)]
)
def test_reductions(isas: Sequence[str], kind: Any, rows: int, cols: int) -> None:
    """Along rows, and along columns. One or two long rows are split into parts; here most of them begin with NaN."""
    rng = np.random.default_rng(cols)
    src = rng.choice(kind([0.0, -0.0, 6e-8, 2]), (rows, cols)) * rng.choice(kind([1, -1]), (rows, 1))
    src[::2, 0] = rng.choice(kind([3, -3, np.inf]), src[::2, 0].shape)  # zeros come later
    src[::3, 5 : 6 + cols * 3 // 4 * (cols > 1000)] = np.nan
    src[1::4, 0] = rng.choice(kind([np.nan, -np.nan]), src[1::4, 0].shape)
    wide = src.astype(np.float32)
    first_zeros = wide[np.arange(rows), np.argmax(wide == 0, axis=1)]
    assert (first_zeros == 0).all()
    low, high = np.fmin.reduce(wide, axis=1), np.fmax.reduce(wide, axis=1)
    low, high = np.where(low == 0, first_zeros, low), np.where(high == 0, first_zeros, high)
    magnitude = np.fmax.reduce(np.abs(wide), axis=1)
    expected = [np.where(np.isnan(wide[:, 0]), np.float32(np.nan), each) for each in (low, high, magnitude)]
    for isa in isas:
        for array, axis in ((src, 1), (np.ascontiguousarray(src.T), 0)):
            for given in ({"axis": axis}, {"axis": 1 - axis, "reduce_others": 1}):
                with kernels.use_isa(isa):
                    actual = [
                        *kernels.run("ReduceMinMax", [array], keepdims=0, **given),
                        *kernels.run("ReduceAbsMax", [array], keepdims=0, **given),
                    ]
                for one, other in zip(actual, expected, strict=True):
                    assert_equal_but_for_nan(one, other)
