"""Rows with NaN: ReduceMax and ReduceMin of ONNX Runtime on x86-64 reduce the first eight elements from a multiple of
16 bytes in lanes, in which a NaN hides other numbers. The operators give its result, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from functions import run_function
from helpers import IS_ARM, Array, assert_same

from ort_dynq import kernels

pytestmark = pytest.mark.skipif(IS_ARM, reason="onnxruntime has other vectors on ARM")

HEAD = 11
"""A NaN behind so many elements is ignored."""


def rows_with_nan(rng: np.random.Generator, rows: int, cols: int, kind: Any) -> Array:
    """Rows with one NaN at each place near the begin, with several, and with NaN at any place."""
    src = rng.normal(0, 1, (rows, cols)).astype(kind)
    signs = rng.choice(kind([np.nan, -np.nan]), rows)
    src[np.arange(rows), np.arange(rows) % (HEAD + 2) % cols] = signs
    for row in src[1::3]:
        row[rng.integers(0, min(cols, HEAD + 5), rng.integers(1, 6))] = np.nan
    for row in src[2::7]:
        row[rng.random(cols) < rng.choice([0.1, 0.6, 1])] = np.nan
    return src


def tensors(kind: Any, step: int = 1) -> Iterator[Array]:
    """Rows of 1 to 70 elements, which begin at any offset."""
    rng = np.random.default_rng(3)
    for cols in range(1, 71, step):
        yield rows_with_nan(rng, int(rng.integers(1, 60)), cols, kind)
    yield rows_with_nan(rng, 60, 7, kind).reshape(3, 20, 7)
    yield rows_with_nan(rng, 40, 300, kind)
    yield rows_with_nan(rng, 6, 1030, kind)


def assert_equal_on(isas: Sequence[str], operator: str, inputs: list[Array], **attributes: Any) -> None:
    expected = run_function(operator, inputs, **attributes)
    for isa in isas:
        with kernels.use_isa(isa):
            actual = kernels.run(operator, inputs, **attributes)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)


def assert_program_equal_on(isas: Sequence[str], program: str, src: Array, **attributes: int) -> None:
    operands = [np.zeros(1, np.float32)] * 4
    assert_equal_on(
        isas, "RowProgram", [src, np.zeros((), np.int8), *operands], program=program, code_type=3, **attributes
    )


RANGES = (
    "r = ReduceMax(Abs(x)); scale = r; codes = Mul(x, Div(127.0, r))",
    "scale = ReduceMin(x); number = ReduceMax(x)",
    "y = Mul(x, -2.0); scale = ReduceMax(y); number = ReduceMin(Abs(y)); dst = Equal(y, ReduceMax(x))",
)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("program", RANGES)
def test_programs(isas: Sequence[str], kind: Any, program: str) -> None:
    for src in tensors(kind):
        assert_program_equal_on(isas, program, src)


@pytest.mark.parametrize("program", RANGES)
def test_programs_of_blocks_and_of_whole_tensors(isas: Sequence[str], program: str) -> None:
    rng = np.random.default_rng(4)
    for block in (1, 3, 5, 13, 16, 33, 64):
        src = rows_with_nan(rng, 36, block, np.float32).reshape(9, 4 * block)
        assert_program_equal_on(isas, program, src, block_size=block)
    for axis in (0, 1):
        for shape in ((2, 3, 4), (5, 3, 17), (1, 31, 2)):
            src = rows_with_nan(rng, shape[0], shape[1] * shape[2], np.float32).reshape(shape)
            assert_program_equal_on(isas, program, src, axis=axis)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_rows_that_are_split_among_threads(isas: Sequence[str], kind: Any) -> None:
    rng = np.random.default_rng(5)
    for cols in (200001, 200004):
        for _ in range(3):
            src = rows_with_nan(rng, 2, cols, kind)
            assert_program_equal_on(isas, RANGES[rng.integers(3)], src)
            assert_equal_on(isas, "ReduceAbsMax", [src])
            assert_equal_on(isas, "ReduceMinMax", [src])


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("operator", ["ReduceAbsMax", "ReduceMinMax"])
def test_reductions(isas: Sequence[str], kind: Any, operator: str) -> None:
    """Over the last dimensions, over all of them, over all but the first one, and over all but the middle one."""
    for src in tensors(kind, step=7):
        assert_equal_on(isas, operator, [src])
        assert_equal_on(isas, operator, [src], axis=0, count=src.ndim, keepdims=0)
        assert_equal_on(isas, operator, [src[np.newaxis]], axis=1, reduce_others=1)
    rng = np.random.default_rng(6)
    for shape in ((1, 9, 5), (1, 30, 17), (3, 7, 33), (5, 4, 64)):
        src = rows_with_nan(rng, shape[0] * shape[1], shape[2], kind).reshape(shape)
        assert_equal_on(isas, operator, [src], axis=1, reduce_others=1)


@pytest.mark.parametrize("operator", ["ReduceAbsMax", "ReduceMinMax"])
def test_all_but_a_run_of_one_element(isas: Sequence[str], operator: str) -> None:
    """All elements are reduced, but ONNX Runtime has no lanes here unless the run comes first."""
    rng = np.random.default_rng(7)
    for shape in ((5, 1, 9), (3, 1, 40), (45, 1), (1, 45)):
        sources = rows_with_nan(rng, 40, 45 if 40 not in shape else 120, np.float32)
        for axis, count in (*((axis, 0) for axis in range(len(shape) + 1)), (shape.index(1), 1)):
            for src in sources:  # all in one session
                assert_equal_on(isas, operator, [src.reshape(shape)], axis=axis, count=count, reduce_others=1)
