"""The function of each operator in a rewritten model, run by stock ONNX Runtime, equals the kernels.

Every value of every attribute is tested in every opset. Each opset tests a part of the combinations of values. By
default, these are the oldest opset and the newest one; the others with --exhaustive.

More than 450 lines: a section of cases for each family of operators, and one test that runs all cases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from compressed import compressed_cases
from convolutions import conv_inputs, random_conv
from experts import PROGRAMS, expert_inputs
from functions import Attributes, attributes_text, complete, make_model, programs_of, run_function
from helpers import (
    IS_ARM,
    SPECIAL_SCALES,
    SPECIALS,
    Array,
    Shape,
    assert_same,
    explained,
    matmul_inputs,
    random_codes,
    random_scales,
    spread,
    stock_session,
    tie_dense,
    with_one_nan,
)
from programs import CHAINS, FINITE, REDUCTIONS, STEPS, TAILS, any_numbers, finite_numbers, operands, quantized_rows
from recurrence import CELLS, recurrence_inputs
from recurrence import attributes_of as recurrence_attributes

from ort_dynq import DynqError, kernels
from ort_dynq.documentation import body_text
from ort_dynq.operators import OPERATORS
from ort_dynq.operators.program import ARITIES, parse
from ort_dynq.rewriter.functions import make_function

OPSETS = (13, 17, 18, 20, 21, 25)  # the bodies change at 14, 15, 18, 21 and 23
opsets = pytest.mark.parametrize(
    "opset", [pytest.param(each, marks=[pytest.mark.exhaustive] * (each not in (13, 25))) for each in OPSETS]
)
PARTS = 8
"""One of so many parts of the cases of an operator and an opset is tested by default; each opset has another part."""
CODES: dict[int, Any] = {1: np.float32, 2: np.uint8, 3: np.int8}
INF, MAX = math.inf, float(np.finfo(np.float32).max)


@dataclass
class Case:
    """One call of an operator. Absent attributes have their defaults."""

    attributes: Attributes
    inputs: list[Array]


def check(operator: str, opset: int, case: Case, isas: Sequence[str], is_special: bool = True) -> list[Array]:
    """Compares the function with the kernels of the instruction sets, and returns its outputs."""
    spec, given = OPERATORS[operator], complete(operator, case.attributes)
    expected = run_function(operator, case.inputs, opset, is_special, **given)
    for isa in isas:
        with kernels.use_isa(isa):
            actual = kernels.run(operator, case.inputs, **given)
        for value, one, other in zip(spec.outputs, actual, expected, strict=True):
            src = case.inputs[0] if value.name == "dst" else None
            shapes = [array.shape for array in case.inputs]
            with explained(f"{operator} {given} opset {opset} on {isa}, {shapes}, {value.name}"):
                assert_same(with_one_nan(one), with_one_nan(other), src)
    return expected


def in_float16(operator: str, case: Case) -> Case | None:
    """The same case with one input of float16 without -0.0, or None if no input may be.

    Tiny numbers become zeros: the sign of a minimum that is one depends on ONNX Runtime's vector code.
    """
    if operator == "QuantizedConvProgram" and not str(case.attributes["program"]).startswith("dst = Clip(x, "):
        return None
    types = tuple(str(array.dtype) for array in case.inputs)
    known = {signature.inputs for signature in OPERATORS[operator].signatures}
    for i, array in enumerate(case.inputs):
        if array.dtype == np.float32 and (*types[:i], "float16", *types[i + 1 :]) in known:
            with np.errstate(over="ignore"):
                half = np.asarray(array.astype(np.float16) + np.float16(0))
            return Case(case.attributes, [*case.inputs[:i], half, *case.inputs[i + 1 :]])
    return None


# DynamicQuantize, DynamicDequantize and DynamicFakeQuantize


def dynamic_cases(quantizes: bool, to_codes: bool = True) -> Callable[[int], Iterator[Case]]:
    """The operators that the rewriter makes from QuantizeLinear and DequantizeLinear.

    Without the arithmetic onednn, and without zero points of another type than the codes: no standard operator has
    them.
    """

    def cases(opset: int) -> Iterator[Case]:
        rng = np.random.default_rng(opset)
        granularities: list[tuple[Shape, Shape, Shape, Attributes, int]] = [
            ((), (), (), {}, 0),
            ((7,), (), (), {"qtype": "auto"}, 0),
            ((3, 0), (), (), {"qtype": "auto"}, 0),
            ((3, 67), (), (), {"qtype": "auto", "axis": -1}, 0),
            ((3, 67), (1,), (1,), {"qtype": "per_tensor"}, 0),
            ((3, 67), (67,), (67,), {"qtype": "auto", "axis": -1}, -1),
            ((3, 67), (67,), (), {"qtype": "per_channel", "axis": 1}, 1),
            ((3, 67), (3,), (3,), {"qtype": "per_channel", "axis": 0}, 0),
            ((2, 5, 33), (5,), (5,), {"qtype": "auto", "axis": 1}, 1),
            ((2, 5, 33), (2,), (1,), {"qtype": "auto", "axis": -3}, -3),
            ((130, 3), (3,), (3,), {"qtype": "per_channel", "axis": -1}, -1),
        ]
        if not quantizes:
            for shape, block in BLOCKS[: len(BLOCKS) - 2 * (opset < 14)]:
                scales_shape = (*shape[:-1], shape[-1] // block)
                attributes = {"qtype": "per_group", "axis": -1, "block_size": block}
                granularities += [(shape, scales_shape, each, attributes, -1) for each in (scales_shape, (1,))]
        if opset >= 21:  # blocks
            for block in (1, 16, 33):
                last = (2, 5, -(-67 // block))
                first = (2, -(-5 // block), 67)
                for qtype in ("auto", "per_group"):
                    attributes = {"qtype": qtype, "axis": -1, "block_size": block}
                    granularities += [((2, 5, 67), last, last, attributes, -1), ((2, 5, 67), last, (), attributes, -1)]
                    granularities.append(((2, 5, 67), first, first, attributes | {"axis": 1}, 1))
        for shape, scales_shape, zps_shape, attributes, axis in granularities:
            for number in (2, 3):
                dtype, block = CODES[number], int(attributes.get("block_size", 0))
                wraps = quantizes and block > 0 and axis != -1  # ONNX Runtime does: helpers.expected_quantize
                scales = random_scales(rng, scales_shape, special=0 if wraps else 0.3)
                zps = random_codes(rng, zps_shape, dtype)
                if not quantizes:
                    yield Case(attributes, [random_codes(rng, shape, dtype), scales, zps])
                    continue
                each = spread(scales, shape, axis, block)
                src = tie_dense(rng, each, spread(zps, shape, axis, block), dtype)
                if wraps:
                    with np.errstate(all="ignore"):
                        src = np.where(np.abs(src / each) < 2.0**30, src, np.float32(0))
                yield Case(attributes, [src, scales, zps])
                if opset >= 21 and to_codes:
                    yield Case(attributes | {"output_dtype": number}, [src, scales, zps])

    return cases


# AffineDequantize


def share(attributes: list[Attributes], opset: int) -> Iterator[Attributes]:
    """A random part of all combinations for this opset; it has every value of every attribute."""
    order = np.random.default_rng(12).permutation(len(attributes))
    mine = [attributes[i] for i in order[OPSETS.index(opset) :: len(OPSETS)]]
    for name in attributes[0]:
        assert {item[name] for item in mine} == {item[name] for item in attributes}, f"{name}: widen the share"
    yield from mine


# Shapes of src, scale and zero point; scales of fewer dimensions than src broadcast as in NumPy.
BROADCASTS: list[tuple[Shape, Shape, Shape]] = [
    ((), (), ()),
    ((1,), (), (1,)),
    ((5,), (1,), ()),
    ((0, 3), (3,), (3,)),
    ((2, 3, 67), (1, 1, 1), (1, 1, 1)),
    ((2, 3, 67), (2, 3, 1), (2, 3, 1)),
    ((2, 3, 67), (3, 1), (1,)),
    ((2, 3, 67), (67,), (67,)),
    ((2, 3, 67), (2, 1, 67), ()),
    ((2, 3, 4, 5), (3, 1, 5), (3, 1, 5)),
    ((40, 3), (40, 3), (40, 3)),
]


def affine_parameters(rng: np.random.Generator, scale: Shape, zp: Shape, zp_type: Any, ends: Shape) -> list[Array]:
    """Scales, half of the time with a special one, and zero points within the range of codes."""
    scales = np.asarray(random_scales(rng, scale, special=0))
    zps = np.asarray(rng.integers(ends[0], ends[1] + 1, zp)).astype(zp_type)
    if scales.size and rng.random() < 0.5:
        scales.flat[rng.integers(scales.size)] = rng.choice(SPECIAL_SCALES)
    return [scales, zps]


def affine_dequantize_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    for (shape, scale, zp), dtype in itertools.product(BROADCASTS, (np.uint8, np.int8)):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        for _ in range(3):
            yield Case({}, [random_codes(rng, shape, dtype), *affine_parameters(rng, scale, zp, dtype, (low, high))])
        every = np.arange(low, high + 1).astype(dtype)
        yield Case({}, [np.tile(every, (256, 1)), np.array(0.1, np.float32), every[:1]])
        yield Case({}, [np.tile(every, (256, 1)), random_scales(rng, (256, 1)), every[:, None]])


# Rows of RowProgram and DynamicQuantizeLinear


def row_kinds(rng: np.random.Generator, cols: int, step: np.float32, steps: float) -> Iterator[Array]:
    """Difficult rows. The first ones are `steps` steps wide and full of ties."""

    def ties(scale: np.float32, low: float) -> Array:
        row = tie_dense(rng, np.full(cols, scale), np.full(cols, -low), np.uint8)
        row = np.clip(np.where(np.isfinite(row), row, 0), low * scale, (low + steps) * scale).astype(np.float32)
        ends = rng.choice(cols, min(cols, 2), replace=False)
        row[ends] = (low * scale, (low + steps) * scale)[: len(ends)]
        return row

    for low in (-steps / 2, -100.5, -0.5, 0, 3, -steps, -steps - 7):
        yield ties(step, low)
    yield ties(np.float32(0.1), -77)
    yield rng.normal(0, 10, cols).astype(np.float32)
    yield rng.choice(SPECIALS[~np.isnan(SPECIALS)], cols)
    yield np.where(rng.random(cols) < 0.1, np.float32(-np.inf), ties(step, -20))
    yield np.where(rng.random(cols) < 0.5, np.float32(-0.0), np.abs(ties(step, 0)))
    yield np.where(rng.random(cols) < 0.5, np.float32(0), -np.abs(ties(step, 0)))
    yield (rng.integers(-9, 9, cols) * np.float32(1e-45)).astype(np.float32)
    yield (rng.integers(0, 9, cols) * np.float32(1e-40)).astype(np.float32)
    for value in (0.0, -0.0, 0.3, -0.3, 1e-45, MAX, -MAX, INF, -INF):
        yield np.full(cols, value, np.float32)
    # ONNX Runtime's ReduceMax: if the row begins at a multiple of 16 bytes, a NaN in the first element makes the result
    # NaN. A NaN in the fourth vector or later is ignored. A NaN in between, or in the first element of a row that is
    # not aligned, hides the other elements of its lane, up to one eighth of the row: no result is defined there.
    if cols % 4 == 0:
        row = ties(step, -20)
        row[0] = np.nan
        yield row
        row = np.where(rng.random(cols) < 0.5, np.float32(np.nan), row)
        row[: min(cols, 12)] = ties(step, -20)[:12]
        row[0] = np.nan
        yield row
    if cols > 12:
        for share in (0.2, 1):
            row = ties(step, -20)
            row[12:][rng.random(cols - 12) < share] = np.nan
            yield row
        row = ties(step, -20)
        row[rng.integers(12, cols)] = np.nan
        yield row


def range_rows(rng: np.random.Generator, rows: int, cols: int) -> Array:
    """`rows` rows of all kinds; the zeros of a row have one sign."""
    kinds = list(row_kinds(rng, cols, np.float32(2.0 ** rng.integers(-6, 3)), 255.0))
    chosen = rng.permutation(len(kinds))[np.arange(rows) % len(kinds)]
    result = np.stack([kinds[i] for i in chosen])
    signs = rng.choice([np.float32(0.0), np.float32(-0.0)], (rows, 1))
    return np.asarray(np.where(result == 0, signs, result), np.float32)


# Shapes of src, and the axis at which a row begins.
RANGES: list[tuple[Shape, int]] = [
    ((), 0),
    ((1,), 0),
    ((1,), -1),
    ((257,), 0),
    ((268,), -1),
    ((0, 5), -1),
    ((30, 1), 1),
    ((29, 3), -1),
    ((2, 15, 68), -1),
    ((5, 6, 67), 2),
    ((30, 5, 13), 1),
    ((30, 5, 13), -2),
    ((2, 3, 4, 16), 0),
    ((2, 3, 4, 16), -4),
]


# Shapes of src, and sizes of blocks: many blocks, and one in each row.
BLOCKS: list[tuple[Shape, int]] = [
    ((70, 64), 32),
    ((2, 5, 15), 5),
    ((4, 128), 16),
    ((2, 384), 128),
    ((512,), 256),
    ((9, 21), 3),
    ((2, 3, 32), 32),
    ((33, 64), 64),
    ((20, 4), 1),
    ((0, 64), 32),
    ((3, 0), 32),
]


# TwoTermQuantize


def two_term_row(rng: np.random.Generator, cols: int) -> Array:
    """A row dense in ties of codes and of remainders, with special values; or a row whose scale under- or overflows."""
    exponent = int(rng.choice([0, -5, 9, -100, -130, -149, 119]))
    step = np.float32(2.0**exponent)
    quarters = rng.integers(-508, 509, cols).astype(np.float32) / np.float32(4)  # the remainder of n + 1/4 is 63.5
    quarters[rng.integers(cols)] = 127  # so that src * (127 / abs_max) is exact
    row = quarters * step
    row = np.where(rng.random(cols) < 0.3, np.nextafter(row, row * rng.choice(np.float32([0, 2]), cols)), row)
    match rng.integers(6):
        case 0:
            row = np.where(rng.random(cols) < 0.3, rng.choice(SPECIALS, cols), row)
        case 1:
            row = np.where(rng.random(cols) < rng.choice([0.1, 0.9, 1]), np.float32(np.nan), row)
        case 2:
            row = rng.normal(0, 10, cols)
        case 3:
            row = row * 0
    return np.asarray(row, np.float32)


def two_term_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    layouts = [(shape, {"axis": axis}) for shape, axis in RANGES if len(shape) > 0]
    layouts += [(shape, {"block_size": block}) for shape, block in BLOCKS]
    layouts += [((4, 4096), {"block_size": 32}), ((3, 1000), {"axis": -1}), ((2, 150000), {"axis": -1})]
    for shape, given in [each for each in layouts if opset >= 14 or 0 not in each[0]]:
        cols = given.get("block_size") or math.prod(shape[given["axis"] % len(shape) :])
        for _ in range(2 if cols > 1000 else 4):
            rows = [two_term_row(rng, cols) for _ in range(math.prod(shape) // cols)]
            with np.errstate(over="ignore"):
                yield Case(
                    {**given}, [np.concatenate([*rows, np.zeros(0, np.float32)]).astype(np.float32).reshape(shape)]
                )
    if opset >= 14:
        yield Case({}, [np.zeros((3, 0), np.float32)])


# QuantizedMatMul

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


# QuantizedConv


def conv_cases(opset: int) -> Iterator[Case]:
    """Every value of every attribute with every other one, and a few geometries at random."""
    rng = np.random.default_rng(opset)
    for i, (order, auto_pad, codes) in enumerate(itertools.product(range(3), range(3), (np.uint8, np.int8))):
        for zero_points, kernel in itertools.product(("none", "one", "all"), ((3,), (3, 2), (2, 1, 3))):
            rank, terms = len(kernel), 1 + (i + len(zero_points)) % 2
            inputs, _, given = conv_inputs(
                rng,
                (2, 6, *(5, 7, 4)[:rank]),
                12,
                kernel,
                strides=(1, 2, 1)[:rank],
                dilations=(2, 1, 1)[:rank],
                pads=(2, 0, 1, 1, 3, 0)[: 2 * rank],
                group=(1, 2, 6)[(i + i // 3 + i // 9) % 3],
                codes=codes,
                zero_points=zero_points,
                quad_axis=i // 2 % 2,
                terms=terms,
                of_samples=(i % 3 > 0, i % 5 > 1),
            )
            yield Case(given | {"scale_order": order, "auto_pad": auto_pad}, inputs)
    for _ in range(20):
        inputs, _, given = random_conv(rng)
        if opset >= 14 or inputs[0].size * inputs[7].size:
            yield Case(given, inputs)


# QuantizedAttention


def attention_cases(opset: int) -> Iterator[Case]:
    """Lengths and sizes of heads around those of vectors and tiles; masks of every shape; rows without keys."""
    rng = np.random.default_rng(opset)
    sizes = [
        (1, 5, 7, 2, 8, 8),
        (2, 16, 16, 3, 32, 32),
        (1, 33, 50, 4, 5, 7),
        (2, 3, 129, 1, 64, 17),
        (1, 1, 65, 2, 20, 48),
    ]
    for i, (b, s, t, h, d, e) in enumerate(sizes):
        whole = (b, h, s, t)
        for k in range(6):
            tensors = [
                any_numbers(rng, (b, length, h * size)) if k == 5 else finite_numbers(rng, (b, length, h * size))
                for length, size in ((s, d), (t, d), (t, e))
            ]
            tensors[0][:, s // 2] = 0
            shape = tuple(1 if (i + k + axis) % 3 == 0 else length for axis, length in enumerate(whole))
            shape = [(1, 1, 1, 1), (b, 1, 1, t), whole, (1, 1, s, t), shape, shape][k]
            bias = np.asarray(rng.normal(0, 2, shape)).astype(np.float32) * np.float32(k > 0)
            if k in (1, 2, 5):
                bias[rng.random(shape) < 0.3] = -np.inf
            if k == 3:
                bias[..., -1, :] = -np.inf
            scale = np.full([(), (1,), (1, 1)][(i + k) % 3], [d**-0.5, 1.0, -0.25][k % 3], np.float32)
            yield Case({"num_heads": h}, [*tensors, bias, scale])


# CompressedAttention


def compressed_attention_cases(opset: int) -> Iterator[Case]:
    yield from (Case(attributes, inputs) for attributes, inputs in compressed_cases(opset))


# QuantizedExperts


def experts_cases(opset: int) -> Iterator[Case]:
    """Every way to store weights; few and many tokens for each expert; experts without tokens."""
    rng = np.random.default_rng(opset)
    shapes: list[Shape] = [(7, 64), (2, 3, 64), (64,), (1, 64), (40, 64), (0, 64)]
    which = itertools.product((4, 8), (0, 16, 32), (1, 2), ("none", "all"))
    for i, (bits, group_size, terms, zero_points) in enumerate(which):
        program = PROGRAMS[(i + opset) % len(PROGRAMS)]
        inputs = expert_inputs(
            rng,
            shapes[i % (len(shapes) - (opset < 14))],
            5 + i % 4,
            (32, 64, 96)[(i + i // 3) % 3] if group_size else 35,
            bits=bits,
            group_size=group_size,
            program=program,
            zero_points=zero_points,
            float_type=np.float16 if i % 5 == 2 and opset >= 15 else np.float32,
            scale_type=(np.float32, np.float16)[(i + i // 6) % 2],
            has_router_weight=i % 3 == 0,
        )
        given: Attributes = {"bits": bits, "group_size": group_size, "terms": terms, "program": program}
        yield Case(given | {"k": 1 + i % 4, "normalize": i // 2 % 2}, inputs)


# QuantizedRecurrence


def recurrence_cases(opset: int) -> Iterator[Case]:
    """Every cell in every direction; sizes around those of vectors, quads and blocks; sequences of every length."""
    rng = np.random.default_rng(opset)
    sizes = [(1, 1, 16), (5, 3, 17), (4, 30, 7), (3, 2, 40), (3, 20, 5), (6, 5, 1), (2, 13, 33), (9, 1, 4)]
    for i, cell in enumerate(CELLS.values()):
        for direction in range(3):
            steps, batch, size = sizes[(2 * i + direction) % len(sizes)]
            inputs = recurrence_inputs(rng, steps, batch, 1 + (direction == 2), size, cell)
            shape = (1 + (direction == 2), batch, size)
            if (i + direction) % 3:  # with -0
                inputs[5] = np.where(rng.random(shape) < 0.2, np.float32(-0.0), rng.standard_normal(shape, np.float32))
                inputs[6] = rng.standard_normal((1, batch, 1), np.float32)
                inputs[7] = rng.integers(-1, steps + 2, batch).astype(np.int32)
            if (i + direction) % 4 == 3:
                inputs[0] *= np.float32(30)
                inputs[0].reshape(-1)[:: 7 * size + 1] = rng.choice([np.nan, np.inf, -np.inf, 1e30])
            if (i + direction) % 5 == 4:
                inputs[0] *= np.float32(0)
                inputs[4] = np.full_like(inputs[4], -0.0)
                inputs[5] = (rng.integers(-200, 200, shape) * np.float32(1e-45)).astype(np.float32)
            yield Case(recurrence_attributes(cell, size, direction), inputs)


# RowProgram, QuantizedMatMulProgram and QuantizedConvProgram

CASTS_4_BITS = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 23)
LIKE: dict[int, Any] = {2: np.uint8, 3: np.int8, 21: ml_dtypes.uint4, 22: ml_dtypes.int4}


def program_cases(opset: int) -> Iterator[Case]:
    """Every step, with operands of all forms, and quantizations. test_random_programs.py has random programs."""
    rng = np.random.default_rng(opset)
    assert {step.operator for text in (*STEPS.values(), *CHAINS) for step in parse(text).steps} == {*ARITIES}
    types = [2, 3, 21, 22] if opset >= 21 and CASTS_4_BITS else [2, 3]
    for i, text in enumerate((*STEPS.values(), *CHAINS, *FINITE)):
        code_type, axis = types[i % len(types)], (-1, -1, 0, 1, 2, -2)[rng.integers(6)]
        for shape in (shape for shape, its_axis in RANGES if its_axis == axis):
            first, cols = axis % max(1, len(shape)), math.prod(shape[axis % max(1, len(shape)) :])
            if text in CHAINS:
                src = range_rows(rng, max(1, math.prod(shape[:first])), cols)
                src = src[: math.prod(shape[:first])].reshape(shape)
            elif text in FINITE:
                src = finite_numbers(rng, shape)
            else:
                src = any_numbers(rng, shape, has_negative_zeros="Max(" not in text and "Min(" not in text)
            inputs = [src, np.zeros((), LIKE[code_type])]
            inputs += operands(rng, text, shape, first, is_finite=text in FINITE)
            yield Case({"program": text, "axis": axis, "code_type": code_type}, inputs)
    for i, text in enumerate((*CHAINS, STEPS["Add"], STEPS["Where"])):
        shape, block = BLOCKS[i % (len(BLOCKS) - (opset < 14))]
        code_type, blocked = types[i % len(types)], (*shape[:-1], shape[-1] // block, block)
        src = quantized_rows(rng, (math.prod(blocked[:-1]), block), is_finite=True).reshape(shape)
        inputs = [src, np.zeros((), LIKE[code_type]), *operands(rng, text, blocked, len(shape), is_finite=True)]
        yield Case({"program": text, "block_size": block, "code_type": code_type}, inputs)


def with_tail(rng: np.random.Generator, operator: str, case: Case, program: str) -> Case:
    """A product with a program after it."""
    shape = kernels.run(operator, case.inputs, **case.attributes)[0].shape
    more = operands(rng, program, shape, 2 if operator == "QuantizedConv" else len(shape) - 1, 3)
    return Case(case.attributes | {"program": program}, [*case.inputs, *more])


# Rows, columns and depth: so few that a task has all, and so many that rows and columns are cut.
TASKS = [(1, 300, 64), (12, 65, 64), (13, 64, 128), (33, 100, 64), (160, 200, 256), (70, 17, 4096)]


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


# Shapes of src, output channels and kernels of convolutions that are cut into tiles, and their groups.
CUT: list[tuple[Shape, int, Shape, int]] = [
    ((1, 3, 3000), 20, (3,), 1),
    ((300, 6, 4), 20, (3,), 1),  # samples share vectors
    ((100, 24, 4), 20, (3,), 1),  # or a product of rows
    ((40, 8, 2, 3), 36, (2, 2), 2),
    ((2, 8, 60, 70), 17, (3, 3), 1),
    ((1, 16, 50, 50), 16, (3, 3), 16),
    ((1, 4, 9, 20, 30), 6, (2, 2, 2), 2),
    ((1, 64, 48, 48), 64, (1, 1), 1),
    ((2, 64, 10, 10), 40, (3, 3), 1),
    ((1, 256, 6, 6), 260, (1, 1), 1),
]


def conv_program_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    programs = itertools.cycle(TAILS)
    for case in itertools.islice(conv_cases(opset), opset % 2, None, 2):
        yield with_tail(rng, "QuantizedConv", case, next(programs))
    for shape, outputs, kernel, group in CUT:
        for terms, quad_axis, strides in ((1, 0, ()), (1, 1, (2,) * len(kernel)), (2, 0, ())):
            pads = (1,) * (2 * len(kernel))
            given: dict[str, Any] = {"group": group, "strides": strides, "pads": pads, "quad_axis": quad_axis}
            given |= {"terms": terms, "of_samples": (terms == 2, quad_axis == 1)}
            inputs, _, attributes = conv_inputs(rng, shape, outputs, kernel, **given)
            yield with_tail(rng, "QuantizedConv", Case(attributes, inputs), next(programs))


# ReduceAbsMax, ReduceMinMax, DynamicQuantizeLinear and DynamicQuantizeDequantizeLinear

REDUCED: list[Shape] = [(), (67,), (29, 3), (5, 33), (300, 2), (3, 5, 7), (4, 60, 33), (2, 3, 4, 16)]


def reduction_cases(opset: int) -> Iterator[Case]:
    """Every run of dimensions, reduced or kept, in tensors of outer x rows x cols and rows x cols x inner."""
    rng = np.random.default_rng(opset)
    for shape in [*REDUCED, (2, 0, 3)] if opset >= 14 else REDUCED:
        for axis, kept in itertools.product(range(len(shape) + 1), range(2)):
            for count in range(len(shape) - axis + 1):
                data = np.asarray(rng.normal(0, 10, shape)).astype(np.float32)
                few = rng.random(shape) < 0.2
                before, after = math.prod(shape[:axis]), math.prod(shape[axis + count :])
                in_order = before == 1 if kept == 0 else after == 1
                if in_order and len(shape) > 1:  # column by column; ONNX Runtime reduces one row after the other
                    data = np.where(few, rng.choice(SPECIALS, shape), data)
                    data = data if rng.random() < 0.5 else np.abs(data)
                else:
                    data = np.where(few, rng.choice(SPECIALS[~np.isnan(SPECIALS) & (SPECIALS != 0)], shape), data)
                from_end = axis - len(shape) if rng.random() < 0.5 and axis < len(shape) else axis
                given: Attributes = {
                    "axis": from_end,
                    "count": count,
                    "reduce_others": kept,
                    "keepdims": int(rng.integers(2)),
                }
                yield Case(given, [np.asarray(data, np.float32)])


def linear_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    for cols in (0, 1, 3, 67, 300):
        for row in row_kinds(rng, cols, np.float32(0.25), 255) if cols else [np.zeros(0, np.float32)]:
            if not np.isnan(row).any():
                yield Case({}, [np.asarray(row, np.float32)])
    for most in (2, 100, 130, 1000):  # ranges that are too small to be divided by 255
        yield Case({}, [(rng.integers(-most, most, (3, 33)) * np.float32(1e-45)).astype(np.float32)])
        yield Case({}, [(rng.integers(0, most, (3, 33)) * np.float32(1e-45)).astype(np.float32)])
    yield Case({}, [rng.normal(0, 3, (300, 1000)).astype(np.float32)])


CASES: dict[str, Callable[[int], Iterator[Case]]] = {
    "DynamicQuantize": dynamic_cases(quantizes=True),
    "DynamicDequantize": dynamic_cases(quantizes=False),
    "DynamicFakeQuantize": dynamic_cases(quantizes=True, to_codes=False),
    "AffineDequantize": affine_dequantize_cases,
    "TwoTermQuantize": two_term_cases,
    "QuantizedMatMul": matmul_cases,
    "QuantizedConv": conv_cases,
    "QuantizedAttention": attention_cases,
    "CompressedAttention": compressed_attention_cases,
    "QuantizedExperts": experts_cases,
    "QuantizedRecurrence": recurrence_cases,
    "ReduceAbsMax": reduction_cases,
    "ReduceMinMax": reduction_cases,
    "DynamicQuantizeLinear": linear_cases,
    "DynamicQuantizeDequantizeLinear": linear_cases,
    "RowProgram": program_cases,
    "QuantizedMatMulProgram": matmul_program_cases,
    "QuantizedConvProgram": conv_program_cases,
}


def is_other_on_arm(operator: str, given: Attributes) -> bool:
    """Whether ONNX Runtime on ARM gives other results for the data of a case: see docs/numerics.md."""
    program = str(given.get("program", ""))  # Clip of -0.0, Reciprocal, and ranges of rows
    return any(f"{step}(" in program for step in ("Clip", "Reciprocal", *REDUCTIONS))


@opsets
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("is_default", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_function_equals_kernels(isas: Sequence[str], operator: str, opset: int, is_default: bool) -> None:
    distinct, turn, programs = 0, OPSETS.index(opset), set[str]()
    cases = []
    for i, case in enumerate(CASES[operator](opset)):
        program = str(case.attributes.get("program", ""))
        # Every second program of RowProgram, and with it every step: an odd and an even opset have all of them.
        is_step = operator == "RowProgram" and program not in programs and len(programs) % 2 == turn % 2
        programs.add(program)
        if ((i + turn) % PARTS == 0 or is_step) == is_default:
            cases.append(case)
    for i, case in enumerate(cases):
        if IS_ARM and is_other_on_arm(operator, complete(operator, case.attributes)):
            continue
        outputs = check(operator, opset, case, isas, is_special=i % 8 > 0)
        distinct += len(np.unique(outputs[0])) > 4
        if i % 3 == 0 and opset >= 15 and (half := in_float16(operator, case)) is not None:
            check(operator, opset, half, isas)
    assert distinct > 10 // PARTS  # not all of the data saturates


@pytest.mark.parametrize("opset", OPSETS)
def test_printed_body_is_the_function(opset: int) -> None:
    """It parses, and gives the nodes of which the rewriter writes those that a model runs."""
    for operator in OPERATORS:
        assert onnx.parser.parse_function(body_text(operator, opset)) == make_function(operator, opset), operator


def test_printed_body_of_an_unknown_operator() -> None:
    with pytest.raises(DynqError, match="there is no operator 'Quantize', expected one of DynamicQuantize, "):
        body_text("Quantize")


@opsets
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_model_needs_its_function(operator: str, opset: int) -> None:
    """The model is valid, and ONNX Runtime rejects it without its function: so the function runs."""
    case = next(iter(CASES[operator](opset)))
    types = [str(array.dtype) for array in case.inputs]
    programs = programs_of(operator, case.attributes)
    model = make_model(operator, opset, types, attributes_text(operator, case.attributes), programs)
    results = run_function(operator, case.inputs, opset, **case.attributes)
    values, arrays = [*model.graph.input, *model.graph.output], [*case.inputs, *results]
    for value, array in zip(values, arrays, strict=True):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, array.shape))
    onnx.checker.check_model(model, full_check=True)
    del model.functions[:]
    with pytest.raises(Exception, match=operator):
        stock_session(model)
