"""QuantizedMatMul in a session equals, bit for bit, the standard nodes that it replaces, on weights before packing."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cases.quantized_matmul import matmul_inputs
from helpers import (
    SPECIAL_SCALES,
    SPECIALS,
    Array,
    Shape,
    assert_same,
    handwritten,
    make_session,
    native_only,
    pairwise,
    parse,
    stock_session,
    with_one_nan,
)

from ort_dynq import DynqError, kernels
from ort_dynq.operators.packing import pack, pack_columns, packed_shape, unpack

NAMES = ("src", "scale", "zero_point", "weight", "weight_zero_point", "column_scale", "column_sum", "bias")
CODES = (np.uint8, np.int8)
SCALED = (
    "both = Mul(row_scale, column_scale) scaled = Mul(total, both)",
    "rows = Mul(total, row_scale) scaled = Mul(rows, column_scale)",
    "columns = Mul(total, column_scale) scaled = Mul(columns, row_scale)",
)
GIVEN = {"bits": 8, "group_size": 0, "scale_order": 0}
orders = pytest.mark.parametrize("order", range(3))


@functools.cache
def session(backend: str, codes: str, threads: int, attributes: tuple[tuple[str, int], ...]) -> ort.InferenceSession:
    """A model of one QuantizedMatMul; all ranks are unknown."""
    given = ", ".join(f"{name} = {value}" for name, value in attributes)
    types = (codes, "float", codes, "int8", "int8", "float", "int32", "float")
    heads = ", ".join(f"{type_}[] {name}" for type_, name in zip(types, NAMES, strict=True))
    model = parse(heads, "float[] dst", f"dst = ort_dynq.QuantizedMatMul<{given}>({', '.join(NAMES)})")
    return make_session(handwritten(model, backend), backend, threads=threads)


def run(backend: str, inputs: list[Array], given: dict[str, int], threads: int = 1) -> Array:
    opened = session(backend, inputs[0].dtype.name, threads, tuple((GIVEN | given).items()))
    result: Array = opened.run(None, dict(zip(NAMES, inputs, strict=True)))[0]
    return with_one_nan(result)


@functools.cache
def stock(groups: int, order: int, column_varies: bool, row_varies: bool) -> ort.InferenceSession:
    """The sums of each group in int32, then the floats in the documented order: [groups, rows, G] x [groups, G, N]."""
    body = "exact = MatMul(codes, weights) real = Cast<to = 1>(exact) "
    in_groups = column_varies or row_varies
    body += "terms0 = Mul(real, column_scale) " if in_groups else "terms0 = Identity(real) "
    body += "terms = Mul(terms0, row_scale) " if row_varies else "terms = Identity(terms0) "
    body += "none = Constant<value_float = -0.0>() "
    total = "none"
    for group in range(groups):
        body += f"i{group} = Constant<value_int = {group}>() term{group} = Gather<axis = 0>(terms, i{group}) "
        body += f"total{group} = Add({total}, term{group}) "
        total = f"total{group}"
    body += f"total = Identity({total}) "
    if in_groups:
        body += "scaled = Identity(total) " if row_varies else "scaled = Mul(total, row_scale) "
    else:
        body += SCALED[order]
    types = "int32[] codes, int32[] weights, float[] row_scale, float[] column_scale, float[] bias"
    return stock_session(parse(types, "float[] dst", f"{body} dst = Add(scaled, bias)"))


def expected(inputs: list[Array], weights: Array, given: dict[str, int]) -> Array:
    """The result of standard nodes in ONNX Runtime."""
    src, scale, zero_point, _, weight_zp, column_scale, _, bias = inputs
    given = GIVEN | given
    lead, depth, columns = src.shape[:-1], src.shape[-1], bias.size
    groups = depth // given["group_size"] if given["group_size"] else 1
    rows = int(np.prod(lead))

    def of_rows(array: Array) -> Array:  # [1 or groups, rows, 1]
        last = array.shape[-1] if array.size > 1 else 1
        return np.ascontiguousarray(np.broadcast_to(array, (*lead, last)).reshape(rows, last).T[:, :, None])

    row_scale = of_rows(scale)
    codes = src.reshape(rows, groups, depth // groups).transpose(1, 0, 2).astype(np.int32)
    each = np.broadcast_to(weight_zp, (groups, columns)).reshape(groups, 1, columns).astype(np.int32)
    feeds = {
        "codes": codes - of_rows(zero_point).astype(np.int32),
        "weights": weights.reshape(groups, depth // groups, columns).astype(np.int32) - each,
        "row_scale": row_scale,
        "column_scale": column_scale[:, None, :],
        "bias": bias,
    }
    vary = len(column_scale) > 1, len(row_scale) > 1
    result = stock(groups, given["scale_order"], *vary).run(None, feeds)[0]
    return with_one_nan(np.asarray(result).reshape(*lead, columns))


def check(backend: str, case: tuple[list[Array], Array], threads: int = 1, **given: int) -> Array:
    right = expected(*case, given)
    assert_same(run(backend, case[0], given, threads), right)
    return right


ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 31, 32, 33, 50)
DEPTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 128, 130)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("codes", CODES)
def test_any_number_of_rows_columns_and_products(product_isa: str, bits: int, codes: Any) -> None:
    """Every number of columns up to five blocks, with numbers of rows and depths in turn."""
    rng = np.random.default_rng(bits)
    distinct = 0
    for columns in range(1, 81):
        for i in range(2):
            turn = columns // len(ROWS)  # other depths for each number of rows
            rows, depth = ROWS[(columns + 8 * i) % len(ROWS)], DEPTHS[(5 * columns + i + turn) % len(DEPTHS)]
            case = matmul_inputs(rng, (rows, depth), columns, bits=bits, codes=codes)
            distinct += len(np.unique(check("native", case, bits=bits, scale_order=(columns + i) % 3)))
    assert distinct > 15_000


@pytest.mark.parametrize("zero_points", ["none", "one", "all"])
@pytest.mark.parametrize("bits", [8, 4])
def test_weight_zero_points(product_isa: str, bits: int, zero_points: str) -> None:
    rng = np.random.default_rng(1)
    for rows, depth, columns, codes in itertools.product((1, 4, 7, 35), (1, 60, 67), (5, 64, 75), CODES):
        case = matmul_inputs(rng, (rows, depth), columns, bits=bits, codes=codes, zero_points=zero_points)
        check("native", case, bits=bits, scale_order=depth % 3)


@pytest.mark.parametrize("zero_points", ["one", "all"])
def test_only_4_bits_of_zero_points_of_4_bit_weights_count(product_isa: str, zero_points: str) -> None:
    rng = np.random.default_rng(2)
    given = GIVEN | {"bits": 4, "group_size": 32, "scale_order": 2}
    inputs, weights = matmul_inputs(rng, (3, 64), 37, bits=4, group_size=32, zero_points=zero_points)
    right = expected(inputs, weights, given)
    inputs[4] = np.asarray(inputs[4] + 16 * rng.integers(-8, 8, inputs[4].shape), np.int8)
    assert_same(run("native", inputs, given), right)


@pytest.mark.parametrize("size", [16, 32, 64, 128, 48])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_groups(product_isa: str, bits: int, size: int) -> None:
    """Scales of columns, of rows or of both vary with the group."""
    rng = np.random.default_rng(size)
    zero_points = itertools.cycle(("none", "one", "all"))
    for rows, groups, columns in pairwise((1, 2, 6, 19), (1, 2, 5), (3, 32, 75)):
        for column_groups, row_groups in itertools.product((True, False), repeat=2):
            case = matmul_inputs(
                rng,
                (rows, groups * size),
                columns,
                bits=bits,
                group_size=size,
                codes=CODES[rows % 2],
                zero_points=next(zero_points),
                column_groups=column_groups,
                scale=(rows, groups) if row_groups else None,
            )
            check("native", case, bits=bits, group_size=size, scale_order=2)


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
    ((1, 1, 4, 1), (1, 1, 4, 1)),
    ((0,), ()),
    ((3, 0), (3, 1)),
    ((0, 5), ()),
    ((0, 5), (0, 1)),
    ((2, 0, 5), (2, 1, 1)),
    ((2, 0, 5), (2, 0, 1)),
)


@native_only
@pytest.mark.parametrize(("shape", "scale"), SCALES, ids=str)
def test_rows_share_a_scale(backend: str, shape: Shape, scale: Shape) -> None:
    rng = np.random.default_rng(3)
    for codes, columns, order in itertools.product(CODES, (0, 1, 40), range(3)):
        check(backend, matmul_inputs(rng, shape, columns, codes=codes, scale=scale), scale_order=order)
        inputs, weights = matmul_inputs(rng, shape, columns, codes=codes, scale=scale)
        inputs[2] = inputs[2].ravel()[:1] if inputs[2].size else np.zeros(1, codes)  # one zero point for all rows
        check(backend, (inputs, weights), scale_order=order)


@pytest.mark.parametrize(
    ("shape", "scale"), [((64,), (4,)), ((3, 64), (3, 4)), ((2, 3, 64), (2, 3, 4)), ((2, 3, 64), (2, 1, 4))], ids=str
)
def test_rows_share_scales_of_groups(backend: str, shape: Shape, scale: Shape) -> None:
    rng = np.random.default_rng(5)
    for codes, bits in itertools.product(CODES, (8, 4)):
        case = matmul_inputs(rng, shape, 20, bits=bits, group_size=16, codes=codes, scale=scale)
        check(backend, case, bits=bits, group_size=16, scale_order=2)


@orders
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_special_scales_and_biases(product_isa: str, bits: int, order: int) -> None:
    """Every special row scale with every special column scale, and every special bias."""
    rng = np.random.default_rng(order)
    numbers = np.concatenate([SPECIAL_SCALES, np.float32([1, -0.1, 2.0**-100, 2.0**100])])
    biases = np.concatenate([SPECIALS, np.float32([-7.5])])
    column_scale, bias = (each.ravel() for each in np.meshgrid(numbers, biases))
    for depth, group_size in ((64, 0), (64, 32)):
        if group_size and order != 2:
            continue
        inputs, weights = matmul_inputs(rng, (numbers.size, depth), bias.size, bits=bits, group_size=group_size)
        inputs[1], inputs[7] = numbers[:, None], bias
        inputs[5] = np.broadcast_to(column_scale, inputs[5].shape).copy()
        dst = check("native", (inputs, weights), bits=bits, group_size=group_size, scale_order=order)
        assert len(np.unique(dst)) >= 100


def test_a_bias_of_minus_zero_changes_nothing(product_isa: str) -> None:
    for bias, first in ((-0.0, -0.0), (0.0, 0.0)):
        case = matmul_inputs(np.random.default_rng(0), (1, 4), 2)
        case[0][:3] = [np.zeros((1, 4), np.uint8), np.float32([[-1]]), np.uint8([[0]])]
        case[0][5], case[0][7] = np.ones((1, 2), np.float32), np.full(2, bias, np.float32)
        assert_same(check("native", case), np.float32([[first, first]]))


def test_the_longest_sums(product_isa: str) -> None:
    """Sums just below 2^31: all codes and weights are extreme. One more product is an error."""
    for longest, zero_point, weight in ((65_793, 0, -128), (33_025, 127, -128)):
        for depth in (longest, longest + 1):
            inputs, _ = matmul_inputs(np.random.default_rng(0), (2, 4), 3)
            inputs[0] = np.full((2, depth), 255, np.uint8)
            inputs[2] = np.zeros((2, 1), np.uint8)
            weights = np.full((depth, 3), weight, np.int8)
            inputs[3], inputs[4] = pack(weights), np.full((1, 3) if zero_point else (), zero_point, np.int8)
            inputs[6] = np.full((1, 3), (weight - zero_point) * depth, np.int32)
            if depth > longest:
                with pytest.raises(Exception, match=f"sums of {depth} products may overflow int32.*{longest}"):
                    run("native", inputs, {})
            else:
                check("native", (inputs, weights))


LARGE = ((128, 768, 384), (1, 4096, 1024), (300, 70, 1000), (5, 2048, 515), (1000, 16, 16))


@pytest.mark.parametrize(("rows", "depth", "columns"), LARGE)
def test_tasks_and_threads_change_nothing(product_isa: str, rows: int, depth: int, columns: int) -> None:
    rng = np.random.default_rng(4)
    for bits, size in ((8, 0), (8, 16), (4, 0), (4, 16), (2, 16)):
        if depth % 16 and size:
            continue
        case = matmul_inputs(rng, (rows, depth), columns, bits=bits, group_size=size, zero_points="all")
        for threads in (1, 2, 3):
            check("native", case, threads, bits=bits, group_size=size, scale_order=2)


def test_orders_differ() -> None:
    """If they were equal, no test could detect a wrong order."""
    case = matmul_inputs(np.random.default_rng(8), (9, 70), 70)
    results = [expected(*case, {"scale_order": order}) for order in range(3)]
    for one, other in itertools.combinations(results, 2):
        assert np.mean(one != other) > 0.02


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_weights_of_the_padding_count_for_nothing(product_isa: str, bits: int) -> None:
    """Those that pack() writes are 0; a model may have others. Sums of columns are computed, too."""
    rng = np.random.default_rng(bits)
    for depth, columns, rows in itertools.product(range(1, 20), (3, 16, 40), (1, 2, 3, 20)):
        inputs, weights = matmul_inputs(rng, (rows, depth), columns, bits=bits, zero_points="all")
        inputs[6] = (inputs[6], np.zeros((0, columns), np.int32))[depth % 2]
        right = run("native", inputs, {"bits": bits})
        longer = np.full((inputs[3].shape[1] * 32 // bits, columns), -128 if bits == 8 else 2**bits - 1, np.int8)
        longer[:depth] = weights
        inputs[3] = pack(longer, bits)
        assert_same(run("native", inputs, {"bits": bits}), right)


def test_packing() -> None:
    """Element [k, n] is where the documentation says; padding is 0."""
    rng = np.random.default_rng(0)
    for depth, columns in itertools.product((0, 1, 4, 5, 8, 19), (0, 1, 16, 37)):
        for bits in (8, 4, 2):
            codes = rng.integers(*((-128, 128) if bits == 8 else (0, 2**bits)), (depth, columns))
            packed = pack(codes.astype(np.int8), bits)
            assert packed.shape == packed_shape(depth, columns, bits)
            assert_same(unpack(packed, depth, columns, bits), codes.astype(np.int8))
            padded = np.pad(codes.T, [(0, 0), (0, -depth % (32 // bits))]).astype(np.int8).view(np.uint8)
            parts = [padded[:, i :: 8 // bits] << bits * i for i in range(8 // bits)]
            in_bytes = np.bitwise_or.reduce(parts).astype(np.uint8)
            assert_same(pack_columns(in_bytes, bits), packed)
            total = 0
            for k, n in itertools.product(range(depth), range(columns)):
                byte = int(packed[n // 16, k // (32 // bits), n % 16, k % 4])
                shift = {8: (0,), 4: (0, 4), 2: (0, 4, 2, 6)}[bits][k // 4 % (8 // bits)]
                code = byte if bits == 8 else byte >> shift & (2**bits - 1)
                assert code == codes[k, n]
                total += code != 0
            assert np.count_nonzero(packed) <= total


WRONG: tuple[tuple[int, Shape, str], ...] = (
    (0, (), "src is a scalar, expected rank 1 or more"),
    *(
        (
            1,
            shape,
            f"scale has shape {'x'.join(map(str, shape))}, src 2x3x32: expected src's leading dimensions, then 1 or "
            "the number of groups, 2; or one element",
        )
        for shape in ((2,), (3, 1), (2, 3), (1, 3, 1), (2, 3, 3), (2, 3, 32), (2, 2, 1), (0, 1, 1), (0,), (1, 1, 1, 1))
    ),
    *(
        (2, shape, f"zero_point has shape {'x'.join(map(str, shape))}, expected that of scale, 2x3x1, or one element")
        for shape in ((2,), (2, 1, 1), (2, 3), (2, 3, 2), (0,))
    ),
    *(
        (3, shape, f"weight has shape {'x'.join(map(str, shape))}, expected 1x8x16x4, packed for 8 bits")
        for shape in ((32, 4), (1, 8, 64), (1, 4, 16, 4), (2, 8, 16, 4), (1, 8, 16, 8), (1, 8, 4, 16), (1, 8, 16, 4, 1))
    ),
    *(
        (i, shape, f"{NAMES[i]} has shape {'x'.join(map(str, shape))}, expected 2x4, one element for each group and ")
        for i in (4, 5, 6)
        for shape in ((4,), (2, 1), (2, 5), (3, 4), (2, 4, 1), (0,), (8,))
    ),
    (5, (), "column_scale has shape scalar, expected 2x4"),
    (6, (1, 4), "column_sum has shape 1x4, expected 2x4"),
    (7, (), "bias has shape scalar, expected one element for each column"),
    (7, (1, 4), "bias has shape 1x4, expected one element for each column"),
    (7, (5,), "column_sum has shape 2x4, expected 2x5, one element for each group and column"),
    (7, (0,), "weight has shape 1x8x16x4, expected 0x8x16x4, packed for 8 bits"),
)


@pytest.mark.parametrize(("index", "shape", "text"), WRONG, ids=str)
def test_wrong_shapes(backend: str, index: int, shape: Shape, text: str) -> None:
    """The message names the input and the expected shape; afterwards the session runs on valid inputs."""
    given = {"group_size": 16, "scale_order": 2}
    good, weights = matmul_inputs(np.random.default_rng(0), (2, 3, 32), 4, group_size=16)
    inputs = list(good)
    inputs[index] = np.ones(shape, inputs[index].dtype)
    with pytest.raises(Exception, match=re.escape(f"QuantizedMatMul: {text}")):
        run(backend, inputs, given)
    check(backend, (good, weights), **given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *(({"bits": bits}, f"bits is {bits}, expected 8, 4 or 2") for bits in (0, 5, 16)),
        ({"scale_order": 3}, "scale_order is 3, expected 0 (scales first), 1 (row first) or 2 (column first)"),
        *(
            ({"group_size": size, "scale_order": 2}, f"group_size is {size}, expected 0 or a multiple of 16")
            for size in (-16, 8, 17)
        ),
        ({"group_size": 16}, "scale_order is 0 (scales first) for groups, expected 2 (column first)"),
        ({"group_size": 16, "scale_order": 1}, "scale_order is 1 (row first) for groups, expected 2 (column first)"),
        *(
            (
                {"group_size": size, "scale_order": 2},
                f"group_size is {size}, expected a divisor of K, 32",
            )
            for size in (48, 64)
        ),
    ],
    ids=str,
)
def test_wrong_attributes(backend: str, given: dict[str, int], text: str) -> None:
    inputs, _ = matmul_inputs(np.random.default_rng(0), (2, 32), 4)
    with pytest.raises(Exception, match=re.escape(f"QuantizedMatMul: {text}")):
        run(backend, inputs, given)


@pytest.mark.parametrize(
    ("index", "shape", "text"),
    [
        *(
            (0, shape, f"weight has shape 1x8x16x4, expected 1x{units}x16x4, packed for 8 bits")
            for shape, units in (((33,), 9), ((2, 3, 28), 7), ((2, 3, 0), 0))
        ),
        (
            1,
            (2, 3, 2),
            "scale has shape 2x3x2, src 2x3x32: expected src's leading dimensions, then 1 or the number of ",
        ),
        (5, (2, 4), "column_scale has shape 2x4, expected 1x4, one element for each group and column"),
    ],
    ids=str,
)
def test_wrong_shapes_without_groups(index: int, shape: Shape, text: str) -> None:
    inputs, _ = matmul_inputs(np.random.default_rng(0), (2, 3, 32), 4)
    inputs[index] = np.ones(shape, inputs[index].dtype)
    with pytest.raises(DynqError, match=re.escape(f"QuantizedMatMul: {text}")):
        kernels.run("QuantizedMatMul", inputs)


@pytest.mark.parametrize("rows", [2**50, 2**60])
def test_an_output_larger_than_memory(backend: str, rows: int) -> None:
    inputs, _ = matmul_inputs(np.random.default_rng(0), (1, 0), 4)
    inputs[0], inputs[1], inputs[2] = np.zeros((rows, 0), np.uint8), np.float32(1), np.uint8(0)
    inputs = [np.asarray(array) for array in inputs]
    with pytest.raises(DynqError, match="no memory for output 0"):
        kernels.run("QuantizedMatMul", inputs)
    with pytest.raises(Exception, match=r"(?i)memory|overflow|alloc"):
        run(backend, inputs, {})


@native_only
def test_groups_of_no_elements(backend: str) -> None:
    inputs, _ = matmul_inputs(np.random.default_rng(0), (2, 0), 4)
    with pytest.raises(Exception, match="group_size is 16, expected a divisor of K, 0"):
        run(backend, inputs, {"group_size": 16, "scale_order": 2})
