"""Calls of QuantizedMatMul and DynamicQuantizedMatMul, and of both with programs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from functions import Attributes
from helpers import SPECIALS, Array, Shape, random_codes, random_scales

from ort_dynq.operators.packing import pack, packed_shape

from .case import Case, Cases, Fitting
from .row_program import TAILS, with_fitting_tails, with_tail
from .rows import row_kinds


def matmul_inputs(
    rng: np.random.Generator,
    shape: Shape,
    columns: int,
    *,
    bits: int = 8,
    group_size: int = 0,
    codes: Any = np.uint8,
    zero_points: str = "none",
    column_groups: bool = True,
    scale: Shape | None = None,
) -> tuple[list[Array], Array]:
    """Inputs of QuantizedMatMul, and its weights before packing.

    Codes and weights are extreme in half of the elements: sums of u8 x s8 products in int16 would saturate. Half of the
    tensors have no special scales, which could hide wrong bits.

    Args:
        rng: The source of random numbers.
        shape: The shape of src, [..., K].
        columns: N.
        bits, group_size: The attributes.
        codes: The type of src.
        zero_points: Whether weights have "none" (8 bits: 0; 4: 8; 2: 2), "one" for all or zero points for
            "all" groups and columns.
        column_groups: Whether column_scale varies with the group.
        scale: The shape of scale and zero_point. None: one for each row.
    """
    depth, (low, high) = shape[-1], (-128, 127) if bits == 8 else (0, 2**bits - 1)
    groups = depth // group_size if group_size else 1

    def extreme(size: Shape, least: int, most: int, dtype: Any) -> Array:
        ends, any_code = rng.choice([least, most], size), rng.integers(least, most + 1, size)
        return np.asarray(np.where(rng.random(size) < 0.5, ends, any_code)).astype(dtype)

    src = extreme(shape, np.iinfo(codes).min, np.iinfo(codes).max, codes)
    weights = extreme((depth, columns), low, high, np.int8)
    weight_zp = np.array(0 if bits == 8 else 2 ** (bits - 1), np.int8)
    if zero_points != "none":
        weight_zp = extreme((1, 1) if zero_points == "one" else (groups, columns), low, high, np.int8)
    each = np.broadcast_to(weight_zp, (groups, columns)).astype(np.int64)
    sums = weights.astype(np.int64).reshape(groups, depth // groups, columns).sum(1) - each * (depth // groups)
    special = rng.choice([0, 0.2])
    scale = (*shape[:-1], 1) if scale is None else scale
    row_scale, column_scale = (
        random_scales(rng, shape_, special) for shape_ in (scale, (groups if column_groups else 1, columns))
    )
    bias = np.where(rng.random(columns) < 0.3, np.float32(-0.0), rng.normal(0, 100, columns).astype(np.float32))
    bias = np.where(rng.random(columns) < special, rng.choice(SPECIALS, columns), bias).astype(np.float32)
    zero_point = random_codes(rng, scale, codes)
    packed = pack(weights, bits)
    return [src, row_scale, zero_point, packed, weight_zp, column_scale, sums.astype(np.int32), bias], weights


MATMULS: list[tuple[Shape, Shape | None]] = [
    ((5,), None),
    ((7, 67), None),
    ((7, 67), ()),
    ((1, 1), (1, 1)),
    ((2, 3, 64), (2, 1, 1)),
    ((2, 3, 64), None),
    ((2, 1, 3, 19), (2, 1, 1, 1)),
]
GROUPED: list[tuple[Shape, Shape | None]] = [((64,), (4,)), ((7, 64), None), ((7, 64), (7, 4)), ((2, 3, 64), (2, 1, 4))]


def matmul_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    shapes = [*MATMULS, ((0, 3), None), ((3, 0), None)] if opset >= 14 else MATMULS
    for bits, codes, zero_points in itertools.product((8, 4, 2), (np.uint8, np.int8), ("none", "one", "all")):
        for i, (shape, scale) in enumerate(shapes):
            inputs, _ = matmul_inputs(
                rng, shape, 3 + 17 * (i % 3), bits=bits, codes=codes, zero_points=zero_points, scale=scale
            )
            yield Case({"bits": bits, "scale_order": i % 3}, inputs)
        for i, (shape, scale) in enumerate(GROUPED):
            inputs, _ = matmul_inputs(
                rng,
                shape,
                35,
                bits=bits,
                group_size=16,
                codes=codes,
                zero_points=zero_points,
                column_groups=(i + bits // 4) % 3 > 0,
                scale=scale,
            )
            if bits < 8:  # only the low 4 bits of their zero points count
                inputs[4] = np.asarray(inputs[4] + 16 * rng.integers(-8, 8, inputs[4].shape), np.int8)
            yield Case({"bits": bits, "group_size": 16, "scale_order": 2}, inputs)
    yield from variants_of_matmul(rng)


# Rows, columns and K: one row to more than a tile has, as kernels for few rows, for many and on tiles have them.
VARIED = [(1, 300, 64), (2, 33, 256), (3, 16, 64), (5, 64, 128), (6, 17, 64), (17, 70, 128), (40, 48, 512)]


def variants_of_matmul(rng: np.random.Generator) -> Iterator[Case]:
    """Two terms; sums of columns that are computed; float16 scales of columns: each with every other one."""
    which = itertools.product((1, 2), (False, True), (False, True))
    for i, (terms, computes_sums, is_half) in enumerate(itertools.islice(which, 1, None)):
        for j, (rows, columns, depth) in enumerate(VARIED):
            bits, group_size = ((4, 32), (8, 32), (2, 32), (8, 0), (2, 16), (8, 64), (4, 64), (4, 0))[(i + j) % 8]
            groups = depth // group_size if group_size else 1
            inputs, _ = matmul_inputs(
                rng,
                (rows, depth),
                columns,
                bits=bits,
                group_size=group_size,
                codes=(np.uint8, np.int8)[(i + j) % 2],
                zero_points=("none", "one", "all")[(i + 2 * j) % 3],
                column_groups=(i + j) % 3 > 0,
                scale=None if (i + j) % 4 == 0 else (rows, groups),
            )
            if terms == 2:
                inputs[0] = np.concatenate([inputs[0], rng.permuted(inputs[0], axis=1)], 1)
            if computes_sums:
                inputs[6] = np.zeros((0, columns), np.int32)
            if is_half:
                with np.errstate(over="ignore"):
                    inputs[5] = inputs[5].astype(np.float16)
            yield Case({"bits": bits, "group_size": group_size, "scale_order": 2, "terms": terms}, inputs)


# Rows, columns and depth: so few that a task has all, and so many that rows and columns are cut.
TASKS = [(1, 300, 64), (12, 65, 64), (13, 64, 128), (33, 100, 64), (160, 200, 256), (70, 17, 4096)]


def dynamic_cases(opset: int) -> Iterator[Case]:
    """The calls with one term, with floats for their codes: dense in ties, with zeros and infinities, and denormals."""
    rng = np.random.default_rng(opset)
    for i, case in enumerate(matmul_cases(opset)):
        given, src = {**case.attributes}, case.inputs[0]
        if given.pop("terms", 1) == 1 and src.size:
            kinds = [row for row in row_kinds(rng, src.size, np.float32(0.25), 255) if not np.isnan(row).any()]
            floats = kinds[i % len(kinds)].astype(np.float32).reshape(src.shape)
            yield Case(given, [floats, *case.inputs[3:]])


def matmul_program_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    programs = itertools.cycle(TAILS)
    for case in itertools.islice(matmul_cases(opset), opset % 3, None, 3):
        yield with_tail(rng, "QuantizedMatMul", case, next(programs))
    for (rows, columns, depth), (bits, group_size) in itertools.product(TASKS, ((8, 0), (8, 32), (4, 0), (4, 32))):
        given = {"bits": bits, "group_size": group_size}
        inputs, _ = matmul_inputs(rng, (rows, depth), columns, **given)
        case = Case(given | {"scale_order": 2}, inputs)
        yield with_tail(rng, "QuantizedMatMul", case, next(programs))


def dynamic_program_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    programs = itertools.cycle(TAILS)
    for case in itertools.islice(dynamic_cases(opset), opset % 3, None, 3):
        yield with_tail(rng, "DynamicQuantizedMatMul", case, next(programs))


def fitting(n: int) -> Iterator[tuple[list[Shape], Attributes]]:
    """n rows, n columns, a depth of n, and groups; zero points of the weights for none, for all and for each column."""
    for bits in (8, 4, 2):
        for lead, depth, columns in (((n,), 5, 3), ((2, 3), 9, n), ((2,), n, 17), ((), n, 2), ((17,), 1 + n % 68, 35)):
            for rows, zps in (((*lead, 1), (1, columns)), ((), ())):
                shapes: list[Shape] = [(*lead, depth), rows, rows, packed_shape(depth, columns, bits), zps]
                yield [*shapes, (1, columns), (1, columns), (columns,)], {"bits": bits, "scale_order": n % 3}
        groups, size = 1 + n % 3, 16 * (1 + n % 2)
        for row_groups, column_groups in itertools.product((1, groups), repeat=2):
            rows, depth = (3, row_groups), groups * size
            shapes = [(3, depth), rows, rows, packed_shape(depth, n, bits), (groups, n)]
            given = {"bits": bits, "group_size": size, "scale_order": 2}
            yield [*shapes, (column_groups, n), (groups, n), (n,)], given


def fitting_floats(n: int) -> Iterator[tuple[list[Shape], Attributes]]:
    for shapes, given in fitting(n):
        if shapes[1] == ():
            yield [shapes[0], *shapes[3:]], given


CASES: Cases = {
    "QuantizedMatMul": matmul_cases,
    "QuantizedMatMulProgram": matmul_program_cases,
    "DynamicQuantizedMatMul": dynamic_cases,
    "DynamicQuantizedMatMulProgram": dynamic_program_cases,
}
FITTING: Fitting = {
    "QuantizedMatMul": fitting,
    "QuantizedMatMulProgram": lambda n: with_fitting_tails(n, fitting(n)),
    "DynamicQuantizedMatMul": fitting_floats,
    "DynamicQuantizedMatMulProgram": lambda n: with_fitting_tails(n, fitting_floats(n)),
}
