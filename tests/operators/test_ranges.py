"""The range of tensors and columns with NaN, and of zeros of both signs: where ONNX Runtime's vector code decides.

A NaN counts only if it is the first element of a column; an extreme that is a zero has the sign of the first zero.
test_reduced_nan.py has rows with NaN.
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


def assert_equal_but_for_nan(actual: Array, expected: Array) -> None:
    assert_same(with_one_nan(actual), with_one_nan(expected))


@pytest.mark.skipif(IS_ARM, reason="onnxruntime has other vectors on ARM")
@pytest.mark.parametrize("operator", ["DynamicQuantizeLinear", "DynamicQuantizeDequantizeLinear"])
def test_ranges_per_tensor(isas: Sequence[str], operator: str) -> None:
    """A NaN takes the place of the numbers of its lane, and the next number that of the NaN. Tensors are short: of long
    ones, onnxruntime's threads find the ranges of parts."""
    rng = np.random.default_rng(1)
    for i in range(150):
        src = random_rows(rng, SHAPES[rng.integers(len(SHAPES))])
        if i % 3 == 0:
            src.flat[rng.integers(0, src.size, 3)] = np.nan
            src.flat[-rng.integers(1, min(src.size, 40))] = np.nan
        if i % 2:
            with np.errstate(over="ignore"):
                src = src.astype(np.float16)
        expected = run_function(operator, [src])
        for isa in isas:
            with kernels.use_isa(isa):
                for one, other in zip(kernels.run(operator, [src]), expected, strict=True):
                    assert_equal_but_for_nan(one, other)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("rows", "cols"), [*((rows, cols) for rows in (1, 9, 100) for cols in (32, 33, 100, 768)), (1, 200001), (2, 200001)]
)
def test_reductions(isas: Sequence[str], kind: Any, rows: int, cols: int) -> None:
    """Along rows, and along columns, of which most begin with NaN. One or two long rows are split into parts.
    test_reduced_nan.py has rows with NaN among their first elements."""
    rng = np.random.default_rng(cols)
    src = rng.choice(kind([0.0, -0.0, 6e-8, 2]), (rows, cols)) * rng.choice(kind([1, -1]), (rows, 1))
    src[::2, 0] = rng.choice(kind([3, -3, np.inf]), src[::2, 0].shape)  # zeros come later
    src[::3, 16 : 17 + cols * 3 // 4 * (cols > 1000)] = np.nan
    with_nan = src.copy()
    with_nan[1::4, 0] = rng.choice(kind([np.nan, -np.nan]), src[1::4, 0].shape)
    for array, axis in ((src, 1), (np.ascontiguousarray(with_nan.T), 0)):
        expected = _first_zeros_and_nan(np.asarray(array if axis == 1 else array.T, np.float32))
        for isa in isas:
            for given in ({"axis": axis}, {"axis": 1 - axis, "reduce_others": 1}):
                with kernels.use_isa(isa):
                    actual = [
                        *kernels.run("ReduceMinMax", [array], keepdims=0, **given),
                        *kernels.run("ReduceAbsMax", [array], keepdims=0, **given),
                    ]
                for one, other in zip(actual, expected, strict=True):
                    assert_equal_but_for_nan(one, other)


def _first_zeros_and_nan(rows: Array) -> list[Array]:
    """The smallest and the largest number of each row, and the largest magnitude; NaN if the first element is."""
    zeros = rows[np.arange(len(rows)), np.argmax(rows == 0, axis=1)]
    assert (zeros == 0).all()
    low, high = np.fmin.reduce(rows, axis=1), np.fmax.reduce(rows, axis=1)
    low, high = np.where(low == 0, zeros, low), np.where(high == 0, zeros, high)
    magnitude = np.fmax.reduce(np.abs(rows), axis=1)
    return [np.where(np.isnan(rows[:, 0]), np.float32(np.nan), each) for each in (low, high, magnitude)]
