"""The kernels that run whole passes of quantizing programs: the bits of the steps, and of stock ONNX Runtime.

A further output that a pass stores makes it run step by step: no kernel does. passes_check.cc says which programs run
in kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cases.row_program import quantization, quantized_rows
from helpers import IS_ARM, assert_same, explained, with_one_nan
from test_random_programs import CODES, Case, compare

from ort_dynq import kernels
from ort_dynq.operators.program import OPERANDS, parse

SHAPES = [(5, 8), (1, 768), (3, 33), (70, 64), (9, 129), (2, 1100), (2, 7), (66, 34)]
UNUSED = [np.zeros(1, np.float32)] * OPERANDS


def random_case(seed: int, shape: tuple[int, int] | None = None) -> Case:
    rng = np.random.default_rng(seed)
    text = quantization(rng)
    src = quantized_rows(rng, shape or SHAPES[rng.integers(len(SHAPES))])
    operands = list(UNUSED)
    if "row1" in text:
        largest = np.maximum(np.nan_to_num(np.abs(src)).max(-1, keepdims=True), rng.choice([0, 1e-3]))
        with np.errstate(over="ignore"):
            operands[0] = (largest * rng.choice([0.5, 1, 2])).astype(np.float32)
    with np.errstate(over="ignore"):
        src = src.astype(np.float16) if rng.random() < 0.4 else src
    code_type = int(rng.choice([2, 3, 21, 22]))
    return Case(parse(text), -1, code_type, [src, np.zeros((), CODES[code_type]), *operands])


def check_steps(case: Case, isas: Sequence[str]) -> None:
    """Compares a program with itself, run step by step."""
    text = case.text
    for isa in isas:
        with kernels.use_isa(isa):
            whole = kernels.run("RowProgram", case.inputs, **case.attributes)
            attributes = case.attributes | {"program": f"{text}; dst_2 = x"}
            steps = kernels.run("RowProgram", case.inputs, **attributes)
        for i in (0, 1, 2, 4):
            with explained(f"output {i} on {isa}, code_type {case.code_type}, {text}"):
                one, other = (each[i].astype(np.float32) if i < 2 else each[i] for each in (whole, steps))
                assert_same(with_one_nan(one), with_one_nan(other), case.inputs[0])


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(400, 9000, 400))])
def test_kernels_equal_steps(isas: Sequence[str], first: int) -> None:
    for seed in range(first, first + 400):
        check_steps(random_case(seed), isas)


ENDS = "a = ReduceMin(x); b = ReduceMax(x); "
OFFSET = ENDS + "s = Div(Sub(b, a), 255.0); f = Reciprocal(s); z = Round(Div(Neg(a), s)); "
ABS_MAX = "r = ReduceMax(Abs(x)); "


@pytest.mark.parametrize(("text", "row"), [
    (ENDS + "dst = Mul(Round(Clip(Div(x, b), 0.0, 255.0)), b); number = a", [-0.25, 1]),
    (ENDS + "dst = Mul(Round(Max(Div(x, b), 0.0)), b); number = a", [-0.25, 1]),
    (OFFSET + "dst = Mul(Sub(Round(Clip(Add(Mul(x, f), z), 0.0, 255.0)), z), s)", [-0.25, 254.75]),
    (ABS_MAX + "dst = Mul(Sub(Add(Round(Div(x, r)), -0.0), 0.0), r)", [-0.25, 1]),
    (ABS_MAX + "dst = Mul(Sub(Round(Add(Mul(x, r), 0.0)), -0.0), r)", [-0.25, 1]),
    (ABS_MAX + "s = Div(r, 33000.0); codes = Add(Add(Round(Div(x, s)), row1), -16384.0)", [33000, 0]),
    ("dst = Mul(Sub(Add(Int32(Clip(Div(x, 1.0), -32768.0, 32767.0)), row1), row1), 1.0)", [32768, 0]),
    ("dst = Mul(Sub(Add(Round(Clip(Div(x, 1.0), -32768.0, 32767.0)), row1), row1), 1.0)", [32767.6, 0]),
])  # fmt: skip
def test_signs_of_zero_and_large_offsets(isas: Sequence[str], text: str, row: list[float]) -> None:
    src = np.tile(np.array(row, np.float32), (3, 20))
    operands = [np.full((3, 1), -16384, np.float32) if "row1" in text else UNUSED[0], *UNUSED[1:]]
    check_steps(Case(parse(text), -1, 2, [src, np.zeros((), np.uint8), *operands]), isas)


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_long_rows(isas: Sequence[str], seed: int) -> None:
    check_steps(random_case(seed, (1, 140002)), isas)


def test_kernels_equal_bodies(isas: Sequence[str]) -> None:
    cases = [random_case(seed) for seed in range(50_000, 50_060)]
    if IS_ARM:  # where ONNX Runtime's Reciprocal is not correctly rounded
        cases = [each for each in cases if "Reciprocal" not in str(each.program)]
    compare([each for each in cases if each.code_type < 21 and np.isfinite(each.inputs[0]).all()], 21, isas)
