"""Operators that compute float16 in float32: all 2^16 values as their input, compared with stock ONNX Runtime.

DynamicQuantize and DynamicDequantize are in test_formats.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cases import Case
from cases import quantized_conv as convolutions
from cases.quantized_conv import conv_inputs, random_conv
from cases.quantized_matmul import matmul_inputs
from cases.row_program import with_tail
from functions import run_function
from helpers import Array, assert_same, in_turn, pairwise, with_one_nan
from test_functions import check

from ort_dynq.operators import OPERATORS

OPSET = 21
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = EVERY[np.isfinite(EVERY)]
MATMULS = [f"{prefix}QuantizedMatMul{suffix}" for prefix in ("", "Dynamic") for suffix in ("", "Program")]


def compare(isas: Sequence[str], operator: str, inputs: list[Array], **attributes: int | str) -> None:
    """Compares the operator's function in ONNX Runtime with the kernels of the instruction sets."""
    check(operator, OPSET, Case({**attributes}, inputs), isas)


def test_affine_dequantize(isas: Sequence[str]) -> None:
    """Every float16 is a scale."""
    for codes in (np.array([[-128], [-3], [0], [77], [127]], np.int8), np.array([[0], [1], [128], [255]], np.uint8)):
        src = np.repeat(codes, EVERY.size, axis=1)
        compare(isas, "AffineDequantize", [src, EVERY, np.array(1, codes.dtype)])


@pytest.mark.parametrize("to_codes", [False, True])
def test_rows_of_every_scale(isas: Sequence[str], to_codes: bool) -> None:
    """All significands of rows divided by all significands of scales: codes up to 64, and some up to 4096."""
    significands = np.arange(1024, 2048)
    signs = np.where(np.arange(7 * 1024) % 3 == 0, -1, 1)
    rows = np.concatenate([significands / 2.0**k for k in range(1, 8)]) * signs
    for largest, some in ((64, significands), (4096, significands[::7])):
        src = np.minimum(np.abs(rows), some[:, None]) * np.sign(rows)
        src[:, 0] = some  # the scale is this element / largest
        inputs = [src.astype(np.float16), np.array(0, np.int8), *[np.ones(1, np.float32)] * 4]
        for quotient in ("Div(x, s)", "Float16(Div(x, s))"):
            codes = f"Clip(Round({quotient}), {-2.0 * largest}, {2.0 * largest})"
            program = f"s = Float16(Div(ReduceMax(Abs(x)), {largest}.0)); "
            program += f"codes = {codes}" if to_codes else f"dst = Mul({codes}, s)"
            compare(isas, "RowProgram", inputs, program=program, code_type=3)


def test_blocks(isas: Sequence[str]) -> None:
    """All values in order, and shuffled, in blocks of several lengths."""
    shuffled = np.random.default_rng(0).permutation(FINITE)[:61440]
    for src, block in ((shuffled, 5), (shuffled, 16), (shuffled, 32), (EVERY, 32), (EVERY, 64), (shuffled, 128)):
        compare(isas, "TwoTermQuantize", [src.reshape(16, -1)], block_size=block)


def test_long_rows(isas: Sequence[str]) -> None:
    """They are split into parts."""
    rng = np.random.default_rng(0)
    src = rng.normal(0, 3, (2, 300001)).astype(np.float16)
    some = src.copy()
    some[0, 200000], some[1, 0] = np.nan, np.inf
    for each in (src, some):
        compare(isas, "TwoTermQuantize", [each])


def test_dynamic_quantize_linear(isas: Sequence[str]) -> None:
    """Without NaN: ONNX Runtime's minimum treats a NaN by its position."""
    for src in (FINITE, FINITE[np.abs(FINITE) < 2], np.abs(FINITE), FINITE[:0], EVERY[:0x7C01]):
        compare(isas, "DynamicQuantizeLinear", [src])
        compare(isas, "DynamicQuantizeDequantizeLinear", [src])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(1, 64), (7, 19), (200, 64), (2, 97, 20)])
def test_products(isas: Sequence[str], bits: int, shape: tuple[int, ...]) -> None:
    """Rounded once, with a bias of float16, in pieces of rows and columns; some results overflow or are subnormal."""
    rng = np.random.default_rng(bits)
    for columns in (1, 20, 130):
        for group_size in (0, 16) if shape[-1] % 16 == 0 else (0,):
            inputs, _ = matmul_inputs(rng, shape, columns, bits=bits, group_size=group_size)
            for factor in np.float32([1, 1e-6, 1e-3]):
                with np.errstate(all="ignore"):
                    half = [*inputs[:5], inputs[5] * factor, inputs[6], (inputs[7] * factor).astype(np.float16)]
                compare(isas, "QuantizedMatMul", half, bits=bits, group_size=group_size, scale_order=2)
                src = rng.permutation(np.resize(FINITE, shape).ravel()).reshape(shape)
                floats = [src, *half[3:]]
                compare(isas, "DynamicQuantizedMatMul", floats, bits=bits, group_size=group_size, scale_order=2)


@pytest.mark.parametrize("operator", MATMULS)
def test_every_value_as_the_scale_of_a_column(operator: str, isas: Sequence[str]) -> None:
    """In products of one row and of many; of 8 bits, and of 4 bits in groups."""
    rng = np.random.default_rng(0)
    for rows, (bits, group_size) in in_turn((1, 2, 20), ((8, 0), (4, 16), (8, 32))):
        inputs, _ = matmul_inputs(rng, (rows, 32), 8200, bits=bits, group_size=group_size, column_groups=bits == 4)
        for start in range(0, EVERY.size, inputs[5].size):
            inputs[5] = np.resize(EVERY[start:], inputs[5].shape)
            case = Case({"bits": bits, "group_size": group_size, "scale_order": 2}, inputs)
            if operator.startswith("Dynamic"):
                case.inputs = [rng.normal(0, 3, (rows, 32)).astype(np.float32), *inputs[3:]]
            if operator.endswith("Program"):
                case = with_tail(rng, operator.removesuffix("Program"), case, "dst = Mul(x, 3)")
            check(operator, OPSET, case, isas)


def test_every_value_as_a_bias(isas: Sequence[str]) -> None:
    """Biases of products that are 0, and biases that move the result to a tie or beyond float16."""
    rng = np.random.default_rng(0)
    inputs, _ = matmul_inputs(rng, (3, 4), EVERY.size)
    scale = np.array([[0], [2.0**-12], [3]], np.float32)
    compare(isas, "QuantizedMatMul", [inputs[0], scale, *inputs[2:7], EVERY], scale_order=2)
    inputs, _, given = conv_inputs(rng, (1, 1, 1, 5), EVERY.size, (1, 3))
    for one in scale.ravel():
        scaled = [inputs[0], np.array(one), *inputs[2:7], EVERY, inputs[8]]
        compare(isas, "QuantizedConv", scaled, **given, scale_order=2)


def compare_conv(isas: Sequence[str], case: convolutions.Case) -> None:
    """Compares a convolution with biases of float16; its results are subnormal, ordinary, and overflow."""
    inputs, _, given = case
    for factor in np.float32([1e-7, 1, 300]):
        with np.errstate(all="ignore"):
            bias = (inputs[7] * factor).astype(np.float16) + np.float16(0)  # zeros of Relu have any sign
            scale = inputs[5] * factor
        compare(isas, "QuantizedConv", [*inputs[:5], scale, inputs[6], bias, inputs[8]], **given)


@pytest.mark.parametrize("is_wide", [False, True])
def test_convolutions(isas: Sequence[str], is_wide: bool) -> None:
    rng = np.random.default_rng(is_wide)
    for _ in range(4 if is_wide else 25):
        compare_conv(isas, random_conv(rng, is_wide=is_wide))


@pytest.mark.parametrize(("kernel", "strides", "group"), pairwise([(1, 1), (3, 3)], [(1, 1), (2, 1)], [1, 16]))
def test_large_convolutions(isas: Sequence[str], kernel: tuple[int, int], strides: tuple[int, int], group: int) -> None:
    """Outputs of several tiles and tasks: positions are adjacent in the output, or only in rows."""
    for shape in ((2, 16, 60, 70), (50, 16, 3, 4)):  # few positions: samples share vectors
        for terms in (1, 2):
            given: dict[str, Any] = {"terms": terms, "of_samples": (terms == 2,) * 2}
            rng = np.random.default_rng(terms)
            compare_conv(isas, conv_inputs(rng, shape, 32, kernel, strides=strides, group=group, **given))


@pytest.mark.parametrize(("low", "high"), [(0.0, np.inf), (0.0, 6.0), (-2.0, 2048.0)])
def test_a_clip_after_a_convolution(isas: Sequence[str], low: float, high: float) -> None:
    """The bounds are float16, so that results are the same whether they are clipped before or after rounding."""
    rng = np.random.default_rng(0)
    program = f"dst = Clip(x, {low}, {high})"
    for shape, kernel, bias in (
        ((1, 1, 1, 5), (1, 3), EVERY),
        ((1, 2, 60, 70), (3, 3), np.float16([0, -70, np.inf, np.nan, 2047.5])),
    ):
        inputs, _, given = conv_inputs(rng, shape, bias.size, kernel)
        halves = [*inputs[:7], bias, inputs[8]]
        with_program = [*halves, *[np.ones(1, np.float32)] * 3]
        compare(isas, "QuantizedConvProgram", with_program, **given, program=program)
        expected = run_function("QuantizedConv", halves, OPSET, **given)[0]
        with np.errstate(invalid="ignore"):
            clipped = np.where(expected < low, np.float16(low), expected)
            clipped = np.where(clipped > high, np.float16(high), clipped)
        actual = run_function(
            "QuantizedConvProgram", [*halves, *[np.ones(1, np.float32)] * 3], OPSET, **given, program=program
        )[0]
        assert_same(with_one_nan(actual), with_one_nan(clipped))


def numbers_of_every_float16(rows: int) -> Array:
    """Every float16 but NaN, and so few zeros that no row has both."""
    values = EVERY[~np.isnan(EVERY) & (EVERY != 0)]
    return np.resize(np.random.default_rng(0).permutation(values), (rows, values.size // rows))


@pytest.mark.parametrize("rows", [256, 16, 3])
def test_programs(isas: Sequence[str], rows: int) -> None:
    """dst and dst_2 are rounded once; x is exact."""
    src = numbers_of_every_float16(rows)
    unused = [np.ones(1, np.float32)] * 4
    for program in (
        "dst = x; dst_2 = Neg(x); codes = x",
        "dst = Mul(x, 1.0004885); dst_2 = Mul(x, 1e-05); number = ReduceMax(x); scale = ReduceMin(x)",
        "r = ReduceMax(Abs(Clip(x, -100.0, 100.0))); s = Div(r, 127.0); codes = Div(x, s); dst = Div(x, s); scale = s",
    ):
        compare(isas, "RowProgram", [src, np.zeros((), np.uint8), *unused], program=program)


@pytest.mark.parametrize("shape", [(256, 256), (4096, 16), (16, 4096), (64, 4, 256)])
def test_reductions(isas: Sequence[str], shape: tuple[int, ...]) -> None:
    """Without -0: the sign of an extreme that is a zero depends on ONNX Runtime's vector code."""
    values = np.random.default_rng(0).permutation(EVERY[~np.isnan(EVERY)] + np.float16(0))
    src = np.resize(values, shape)
    for axis in range(len(shape)):
        for given in ({"axis": axis}, {"axis": axis, "reduce_others": 1}, {"axis": axis, "keepdims": 0}):
            compare(isas, "ReduceAbsMax", [src], **given)
            compare(isas, "ReduceMinMax", [src], **given)


def test_every_operator_that_takes_float16_is_tested() -> None:
    """A new operator that takes float16 needs a test above; the cases of some are in tests/cases."""
    found = {
        name
        for name, operator in OPERATORS.items()
        if any(signature.inputs.count("float16") == 1 for signature in operator.signatures)
    }
    assert found - {"DynamicQuantize", "DynamicDequantize", "CompressedMatMul", "GatherDequantize", "Interleave"} == {
        *("AffineDequantize", "TwoTermQuantize"),
        *(*MATMULS, "QuantizedConv", "QuantizedConvProgram", "RowProgram"),
        *("DynamicQuantizeLinear", "DynamicQuantizeDequantizeLinear"),
        *("ReduceAbsMax", "ReduceMinMax"),
    }
