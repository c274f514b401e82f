"""AccumulatorDequantize in a session equals, bit for bit, the standard nodes that it replaces."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from helpers import (
    SPECIAL_SCALES,
    SPECIALS,
    Array,
    Shape,
    accumulator_inputs,
    assert_same,
    handwritten,
    make_session,
    parse,
    stock_session,
    with_one_nan,
)

NAMES = ("src", "scale", "zero_point", "column_scale", "column_sum", "bias")
CODES = (np.uint8, np.int8)
SCALED = (
    "both = Mul(scale, column_scale) scaled = Mul(real, both)",
    "rows = Mul(real, scale) scaled = Mul(rows, column_scale)",
    "columns = Mul(real, column_scale) scaled = Mul(columns, scale)",
)
orders = pytest.mark.parametrize("order", range(3))


@functools.cache
def session(backend: str, order: int, codes: str, threads: int) -> ort.InferenceSession:
    """A model of one AccumulatorDequantize, or of the standard nodes; all ranks are unknown."""
    body = f"dst = ort_dynq.AccumulatorDequantize<scale_order = {order}>({', '.join(NAMES)})"
    if backend == "stock":
        body = f"""zp = Cast<to = 6>(zero_point)
                   correction = Mul(zp, column_sum)
                   exact = Sub(src, correction)
                   real = Cast<to = 1>(exact)
                   {SCALED[order]}
                   dst = Add(scaled, bias)"""
    types = ("int32", "float", codes, "float", "int32", "float")
    heads = ", ".join(f"{type_}[] {name}" for type_, name in zip(types, NAMES, strict=True))
    model = parse(heads, "float[] dst", body)
    if backend == "stock":
        return stock_session(model, threads=threads)
    return make_session(handwritten(model, backend), backend, threads=threads)


def run(backend: str, order: int, inputs: list[Array], threads: int = 1) -> Array:
    feeds = dict(zip(NAMES, inputs, strict=True))
    result: Array = session(backend, order, inputs[2].dtype.name, threads).run(None, feeds)[0]
    return with_one_nan(result)


def check(backend: str, order: int, inputs: list[Array], threads: int = 1) -> Array:
    expected = run("stock", order, inputs)
    assert_same(run(backend, order, inputs, threads), expected, inputs[0])
    return expected


@orders
@pytest.mark.parametrize("codes", CODES)
def test_row_and_column_counts_around_the_vector_length(isa: str, backend: str, order: int, codes: Any) -> None:
    """Any number of columns and rows; the kernels process several rows at a time."""
    rng = np.random.default_rng(order)
    distinct = 0
    for columns, rows in itertools.product(range(1, 71), (1, 2, 3, 6, 9)):
        inputs = accumulator_inputs(rng, (rows, columns), (rows, 1), (rows, 1), codes)
        distinct += len(np.unique(check(backend, order, inputs)))
    assert distinct > 20_000


# Shapes of src and scale: one scale for several rows, for each row, or for all.
SCALES: tuple[tuple[Shape, Shape], ...] = (
    ((33,), ()),
    ((33,), (1,)),
    ((7, 33), ()),
    ((7, 33), (1,)),
    ((7, 33), (1, 1)),
    ((7, 33), (7, 1)),
    ((1, 33), (1, 1)),
    ((4, 3, 33), ()),
    ((4, 3, 33), (1, 1)),
    ((4, 3, 33), (1, 1, 1)),
    ((4, 3, 33), (4, 1, 1)),
    ((4, 3, 33), (4, 3, 1)),
    ((1, 3, 33), (1, 3, 1)),
    ((4, 1, 33), (4, 1, 1)),
    ((2, 3, 4, 33), (2, 1, 1, 1)),
    ((2, 3, 4, 33), (2, 3, 1, 1)),
    ((2, 3, 4, 33), (2, 3, 4, 1)),
    ((2, 1, 4, 33), (2, 1, 1, 1)),
    ((2, 1, 4, 33), (2, 1, 4, 1)),
    ((1, 1, 4, 1), (1, 1, 4, 1)),
    ((0,), ()),
    ((0, 5), ()),
    ((0, 5), (0, 1)),
    ((5, 0), (5, 1)),
    ((2, 0, 5), (2, 1, 1)),
    ((2, 0, 5), (2, 0, 1)),
    ((0, 2, 5), (0, 1, 1)),
    ((2, 3, 0), (2, 3, 1)),
)


@orders
@pytest.mark.parametrize(("shape", "scale"), SCALES, ids=str)
def test_rows_share_a_scale(isa: str, backend: str, order: int, shape: Shape, scale: Shape) -> None:
    rng = np.random.default_rng(3)
    for codes, zero_point in itertools.product(CODES, {scale, (), (1,)}):
        check(backend, order, accumulator_inputs(rng, shape, scale, zero_point, codes))


@orders
def test_special_scales_and_biases(isa: str, backend: str, order: int) -> None:
    """Every special row scale with every special column scale, and every special bias."""
    numbers = np.concatenate([SPECIAL_SCALES, np.float32([1, -0.1, 2.0**-100, 2.0**100])])
    biases = np.concatenate([SPECIALS, np.float32([-7.5])])
    column_scale, bias = (each.ravel() for each in np.meshgrid(numbers, biases))
    columns, rows = (column_scale.size,), (numbers.size, 1)
    for src in (0, 1, -1, 3_000_001, -(2**31)):
        inputs = [np.full(rows[:1] + columns, src, np.int32), numbers.reshape(rows), np.zeros(rows, np.uint8)]
        dst = check(backend, order, [*inputs, column_scale, np.zeros(columns, np.int32), bias])
        assert len(np.unique(dst)) >= 20


def test_a_bias_of_minus_zero_changes_nothing(isa: str, backend: str) -> None:
    inputs = [np.int32([[0, 0, 5]]), np.float32([[1]]), np.uint8([[0]]), np.float32([1, -1, 1]), np.int32([0, 0, 0])]
    assert_same(run(backend, 0, [*inputs, np.float32([-0.0] * 3)]), np.float32([[0.0, -0.0, 5]]))
    assert_same(run(backend, 0, [*inputs, np.float32([0.0] * 3)]), np.float32([[0.0, 0.0, 5]]))


@orders
def test_int32_wraps(isa: str, backend: str, order: int) -> None:
    """As in ONNX Runtime: the product, the difference or both wrap. If both wrap, the result can be right again."""
    src = np.int32([[-(2**31), 2**31 - 1, 0, 2**31 - 1, 2**31 - 1, 5]])
    column_sum = np.int32([1, -1, 2**24, -(2**31), 2**31 - 1, 2**30])
    ones, zeros = np.ones(6, np.float32), np.zeros(6, np.float32)
    inputs = [src, np.ones((), np.float32), np.array(255, np.uint8), ones, column_sum, zeros]
    exact = src.astype(np.int64) - 255 * column_sum.astype(np.int64)
    assert (np.abs(exact) > 2**31).all()
    assert_same(check(backend, order, inputs), ((exact + 2**31) % 2**32 - 2**31).astype(np.float32))


LARGE: tuple[tuple[Shape, Shape], ...] = (
    ((300, 3072), (300, 1)),
    ((2, 100_000), (2, 1)),
    ((3, 32_769), (3, 1)),
    ((5000, 3), (5000, 1)),
    ((70_000, 1), (70_000, 1)),
    ((100, 90, 33), (100, 1, 1)),
    ((33_001, 2), ()),
)


@orders
@pytest.mark.parametrize(("shape", "scale"), LARGE, ids=str)
def test_tasks_and_threads_change_nothing(isa: str, backend: str, order: int, shape: Shape, scale: Shape) -> None:
    rng = np.random.default_rng(4)
    inputs = accumulator_inputs(rng, shape, scale, scale, CODES[order % 2])
    for threads in (1, 2):
        assert len(np.unique(check(backend, order, inputs, threads))) > 1000


def test_orders_differ() -> None:
    """If they were equal, no test could detect a wrong order."""
    inputs = accumulator_inputs(np.random.default_rng(0), (9, 70), (9, 1), (9, 1), np.uint8)
    results = [run("stock", order, inputs) for order in range(3)]
    for one, other in itertools.combinations(results, 2):
        assert np.mean(one != other) > 0.02


def good(shape: Shape = (2, 3, 4)) -> list[Array]:
    columns = shape[-1:]
    return [
        np.full(shape, 3, np.int32),
        np.ones((*shape[:-1], 1), np.float32),
        np.zeros((*shape[:-1], 1), np.uint8),
        np.ones(columns, np.float32),
        np.zeros(columns, np.int32),
        np.zeros(columns, np.float32),
    ]


SCALE = "scale has shape {}, src 2x3x4: expected src's leading dimensions, then ones, or one element"
WRONG: tuple[tuple[int, Shape, str], ...] = (
    (0, (), "src is a scalar, expected rank 1 or more"),
    *((1, shape, SCALE.format("x".join(map(str, shape)))) for shape in ((2,), (3, 1), (1, 3, 1), (2, 3, 4), (2, 2, 1))),
    *((1, shape, SCALE.format("x".join(map(str, shape)))) for shape in ((1, 1, 4), (0, 1, 1), (0,), (1, 1, 1, 1))),
    *(
        (2, shape, f"zero_point has shape {'x'.join(map(str, shape))}, expected that of scale, 2x3x1, or one element")
        for shape in ((2,), (2, 1, 1), (2, 3), (0,))
    ),
    *(
        (i, shape, f"{NAMES[i]} has shape {text}, expected 4, one element for each column of src")
        for i in (3, 4, 5)
        for shape, text in (((), "scalar"), ((1,), "1"), ((3,), "3"), ((1, 4), "1x4"), ((0,), "0"))
    ),
)


@pytest.mark.parametrize(("index", "shape", "text"), WRONG, ids=str)
def test_wrong_shapes(backend: str, index: int, shape: Shape, text: str) -> None:
    """The message names the input and the expected shape; afterwards the session runs on valid inputs."""
    inputs = good()
    inputs[index] = np.ones(shape, inputs[index].dtype)
    with pytest.raises(Exception, match=re.escape(f"AccumulatorDequantize: {text}")):
        run(backend, 0, inputs)
    assert_same(run(backend, 0, good()), np.full((2, 3, 4), 3, np.float32))


@pytest.mark.parametrize("order", [-1, 3])
def test_wrong_order(backend: str, order: int) -> None:
    expected = "0 (scales first), 1 (row first) or 2 (column first)"
    text = re.escape(f"AccumulatorDequantize: scale_order is {order}, expected {expected}")
    with pytest.raises(Exception, match=text):
        run(backend, order, good())
