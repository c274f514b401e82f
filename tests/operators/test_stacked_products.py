"""QuantizedMatMul of stacked weights agrees with its function, run by ONNX Runtime, and with one product a matrix."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cases.quantized_matmul import matmul_inputs
from functions import run_function
from helpers import (
    Array,
    Shape,
    assert_same,
    handwritten,
    make_session,
    native_only,
    parse,
    with_one_nan,
)

NAMES = ("src", "scale", "zero_point", "weight", "weight_zero_point", "column_scale", "column_sum", "bias")

# The leading dimensions of the activation and of the weights, and of the result.
STACKS: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((3,), (3,), (3,)),
    ((), (3,), (3,)),
    ((1,), (3,), (3,)),
    ((2, 3), (3,), (2, 3)),
    ((2, 1), (3,), (2, 3)),
    ((3,), (2, 1), (2, 3)),
    ((2, 3), (2, 3), (2, 3)),
    ((2, 1), (2, 3), (2, 3)),
    ((2, 3), (1, 3), (2, 3)),
    ((2,), (1,), (2,)),
    ((), (1,), (1,)),
    ((0,), (1,), (0,)),
    ((2, 1), (0,), (2, 0)),
)
FORMS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "8 bits": ({}, {"codes": np.int8}),
    "zero points": ({}, {"zero_points": "all"}),
    "groups": ({"group_size": 16}, {"column_groups": True}),
    "groups of 4 bits": ({"group_size": 32, "bits": 4}, {"zero_points": "all"}),
    "two terms": ({"terms": 2}, {"codes": np.int8}),
}


def inputs_of(
    rng: np.random.Generator, lead: Shape, stack: Shape, matrix: tuple[int, int, int], form: str
) -> tuple[list[Array], dict[str, int]]:
    """The inputs, and the attributes; the sums of columns are absent in half of the cases."""
    (rows, depth, columns), (attributes, given) = matrix, FORMS[form]
    bits, group_size = attributes.get("bits", 8), attributes.get("group_size", 0)
    count = int(np.prod(stack))
    each = [
        matmul_inputs(rng, (rows, depth), columns, bits=bits, group_size=group_size, **given)[0]
        for _ in range(max(count, 1))
    ]
    ((src, scale, zero_point, *_), _) = matmul_inputs(rng, (*lead, rows, depth), columns, **given)
    if attributes.get("terms", 1) == 2:
        src = np.concatenate([src, src[..., ::-1]], -1)
    columns_of = zip(*(inputs[3:] for inputs in each), strict=True)
    constants = [np.array(found)[:count].reshape(*stack, *found[0].shape) for found in columns_of]
    if each[0][4].size == 1:
        constants[1] = each[0][4]
    if rng.random() < 0.5:
        constants[3] = constants[3][..., :0, :]
    order = 2 if group_size else int(rng.integers(3))
    return [src, scale, zero_point, *constants], {
        "bits": 8,
        "group_size": 0,
        "terms": 1,
        "scale_order": order,
    } | attributes


def session(inputs: list[Array], attributes: dict[str, int], backend: str, threads: int = 1) -> ort.InferenceSession:
    return _session(inputs[0].dtype.name, tuple(attributes.items()), backend, threads)


@functools.cache
def _session(codes: str, attributes: tuple[tuple[str, int], ...], backend: str, threads: int) -> ort.InferenceSession:
    """A model of one QuantizedMatMul; all ranks are unknown."""
    types = (codes, "float", codes, "int8", "int8", "float", "int32", "float")
    heads = ", ".join(f"{type_}[] {name}" for type_, name in zip(types, NAMES, strict=True))
    model = parse(heads, "float[] dst", f"dst = {call(dict(attributes))}")
    return make_session(handwritten(model, backend), backend, threads=threads)


def call(attributes: dict[str, int]) -> str:
    text = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return f"ort_dynq.QuantizedMatMul<{text}>({', '.join(NAMES)})"


def run(opened: ort.InferenceSession, inputs: list[Array]) -> Array:
    return np.asarray(opened.run(None, dict(zip(NAMES, inputs, strict=True)))[0])


def one_by_one(inputs: list[Array], opened: ort.InferenceSession, lead: Shape) -> Array:
    """The results of products with one matrix each, [..., M, N] with these leading dimensions."""
    ranks = (2, 2, 2, 4, 2, 2, 2, 1)

    def matrix(array: Array, rank: int, index: Shape) -> Array:
        stack = array.shape[: max(array.ndim - rank, 0)]
        own = index[len(index) - len(stack) :]
        return np.asarray(array[tuple(0 if size == 1 else i for i, size in zip(own, stack, strict=True))])

    return np.array([
        run(opened, [matrix(array, rank, index) for array, rank in zip(inputs, ranks, strict=True)])
        for index in np.ndindex(*lead)
    ])  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@native_only
def test_stacks(backend: str, form: str, product_isa: str) -> None:
    """All ways in which leading dimensions broadcast, for few rows and for many."""
    rng = np.random.default_rng(len(form))
    for i, (lead, stack, result) in enumerate(STACKS):
        rows = (1, 3, 20)[i % 3]
        inputs, attributes = inputs_of(rng, lead, stack, (rows, 64, 21), form)
        opened = session(inputs, attributes, backend)
        actual = with_one_nan(run(opened, inputs))
        assert actual.shape == (*result, rows, 21)
        assert_same(actual, with_one_nan(run_function("QuantizedMatMul", inputs, **attributes)[0]))
        if actual.size:
            assert_same(actual.reshape(-1, rows, 21), with_one_nan(one_by_one(inputs, opened, result)))


def test_both_backends(backend: str) -> None:
    inputs, attributes = inputs_of(np.random.default_rng(0), (2, 1), (3,), (4, 64, 21), "8 bits")
    actual = run(session(inputs, attributes, backend), inputs)
    assert_same(with_one_nan(actual), with_one_nan(run_function("QuantizedMatMul", inputs, **attributes)[0]))


@pytest.mark.parametrize(("lead", "stack", "rows"), [((6,), (6,), 70), ((40,), (40,), 2), ((3, 1), (2,), 100)])
def test_tasks(lead: Shape, stack: Shape, rows: int) -> None:
    """Several threads share matrices, and strips of their columns and rows."""
    inputs, attributes = inputs_of(np.random.default_rng(0), lead, stack, (rows, 256, 320), "8 bits")
    sessions = [session(inputs, attributes, "native", threads) for threads in (1, 3)]
    alone, together = (with_one_nan(run(each, inputs)) for each in sessions)
    assert_same(together, alone)
    expected = with_one_nan(one_by_one(inputs, sessions[0], alone.shape[:-2]))
    assert_same(alone.reshape(-1, rows, 320), expected)


BROADCAST = "expected [..., M, K] with leading dimensions that broadcast, for stacked weights of shape 3"
EACH = "expected 1x21, one element for each group and column, for stacked weights of shape 3"
WRONG = (
    (0, (64,), f"src has shape 64, {BROADCAST}"),
    (0, (2, 4, 64), f"src has shape 2x4x64, {BROADCAST}"),
    (4, (2, 1, 21), f"weight_zero_point has shape 2x1x21, {EACH}"),
    (5, (1, 21), f"column_scale has shape 1x21, {EACH}"),
    (6, (3, 2, 21), f"column_sum has shape 3x2x21, {EACH}"),
    (7, (21,), "bias has shape 21, expected one element for each column, for stacked weights of shape 3"),
)


@pytest.mark.parametrize(("index", "shape", "text"), WRONG)
@native_only
def test_wrong_shapes(backend: str, index: int, shape: Shape, text: str) -> None:
    inputs, attributes = inputs_of(np.random.default_rng(0), (3,), (3,), (4, 64, 21), "8 bits")
    opened = session(inputs, attributes, backend)
    wrong = list(inputs)
    wrong[index] = np.ones(shape, inputs[index].dtype)
    if index == 0:
        wrong[1] = wrong[1][..., :1, :1].reshape(-1)[:1]
        wrong[2] = wrong[2].reshape(-1)[:1]
    with pytest.raises(Exception, match=re.escape(f"QuantizedMatMul: {text}")):
        run(opened, wrong)
    run(opened, inputs)


def test_inferred_shapes() -> None:
    """A session knows the shape of the result, so that it loads nodes that need it."""
    inputs, attributes = inputs_of(np.random.default_rng(0), (2, 1), (3,), (4, 64, 21), "8 bits")
    for lead, shape in (("2, 1", [2, 3, 4, 21]), ("1", [3, 4, 21]), ("B, H", ["B", 3, 4, 21]), ("", [3, 4, 21])):
        heads = [f"int8[{lead}{', ' * bool(lead)}4, 64] src, float[1] scale, int8[1] zero_point"]
        for array, name in zip(inputs[3:], NAMES[3:], strict=True):
            type_ = "float" if array.dtype == np.float32 else array.dtype.name
            heads.append(f"{type_}[{', '.join(map(str, array.shape))}] {name}")
        model = parse(", ".join(heads), "float[] dst", f"dst = {call(attributes)}")
        model.graph.output[0].type.tensor_type.ClearField("shape")
        assert make_session(handwritten(model, "native"), "native").get_outputs()[0].shape == shape
