"""Rows and units of every length around the task size: how work is split must not change results."""

from __future__ import annotations

import numpy as np
import pytest
from cases.quantized_experts import expert_inputs
from functions import run_function
from helpers import assert_same, make_session, parse, with_one_nan

from ort_dynq import kernels
from ort_dynq.operators import OPERATORS
from ort_dynq.operators.encodings import CodeType

TASK = 32768  # kTaskElements in ops/core/parallel.h
UNUSED = [np.ones(1, np.float32)] * 4  # operands of a program


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("cols", [9363, 10000, TASK - 1, TASK, TASK + 1, 2 * TASK, 2 * TASK + 1, 5 * TASK + 3])
def test_few_units(rows: int, cols: int) -> None:
    """Includes units that are each shorter than a task and together longer than two tasks."""
    x = np.random.default_rng(rows * cols).standard_normal((rows, cols)).astype(np.float32)
    low, high = kernels.run("ReduceMinMax", [x])
    assert_same(low, x.min(axis=1, keepdims=True))
    assert_same(high, x.max(axis=1, keepdims=True))
    (largest,) = kernels.run("ReduceAbsMax", [x])
    assert_same(largest, np.abs(x).max(axis=1, keepdims=True))
    (largest,) = kernels.run("ReduceAbsMax", [x.reshape(rows, -1, 1).repeat(2, axis=2)], axis=1)
    assert_same(largest, np.abs(x).max(axis=1).reshape(rows, 1, 1).repeat(2, axis=2))
    text = "a = Abs(x); r = ReduceMax(a); codes = Mul(Div(a, r), 100.0); dst = Sub(x, ReduceMin(x)); number = r"
    codes, _, dst, _, _, number = kernels.run("RowProgram", [x, np.zeros((), np.uint8), *UNUSED], program=text)
    assert_same(number, np.abs(x).max(axis=1, keepdims=True))
    assert_same(codes, np.rint(np.abs(x) / number * np.float32(100)).astype(np.uint8))
    assert_same(dst, x - x.min(axis=1, keepdims=True))


def test_nan_at_the_start_of_a_part(isa: str) -> None:
    """A long row is split into parts. A NaN at the start of a part must not be taken for a finite element."""
    x = np.random.default_rng(1).standard_normal((1, 200_000)).astype(np.float32)
    for start in (slice(64, None, 64), [33280]):
        src = x.copy()
        src[0, start] = np.nan
        largest = np.nanmax(np.abs(src))
        text = "r = ReduceMax(Abs(x)); s = Div(r, 127.0); codes = Div(x, s); scale = s; zero_point = ReduceMin(Neg(x))"
        result = kernels.run("RowProgram", [src, np.int8(0), *UNUSED], program=text, code_type=CodeType.INT8)
        assert_same(result[0], np.where(np.isnan(src), 0, np.rint(src / result[4])).astype(np.int8))
        assert_same(result[1], np.rint([[np.nanmin(-src)]]).astype(np.int8))
        assert_same(result[4], np.float32([[largest / np.float32(127)]]))


@pytest.mark.parametrize("attributes", [{"bits": 4, "group_size": 32}, {"bits": 8, "terms": 2}], ids=str)
def test_experts_of_one_task(attributes: dict[str, int]) -> None:
    """Products of several experts, of one task each, run together: they have 2^21 products or more."""
    program, given = "dst = Clip(x, 0.0, inf)", {"k": 2, **attributes}
    kinds = {name: value for name, value in attributes.items() if name != "terms"}
    inputs = expert_inputs(np.random.default_rng(0), (24, 256), 11, 256, program=program, **kinds)
    expected = with_one_nan(run_function("QuantizedExperts", inputs, program=program, **given)[0])
    names = [value.name for value in OPERATORS["QuantizedExperts"].inputs]
    types = {np.dtype(np.float32): "float", np.dtype(np.int8): "int8"}
    heads = ", ".join(f"{types[array.dtype]}[] {name}" for array, name in zip(inputs, names, strict=True))
    text = ", ".join([f'program = "{program}"', *(f"{name} = {value}" for name, value in given.items())])
    model = parse(heads, "float[] dst", f"dst = ort_dynq.QuantizedExperts<{text}>({', '.join(names)})")
    for threads in (1, 2, 3):
        opened = make_session(model, "native", threads=threads)
        (actual,) = opened.run(None, dict(zip(names, inputs, strict=True)))
        assert_same(with_one_nan(np.asarray(actual)), expected)
