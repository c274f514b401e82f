"""DynamicQuantize and DynamicDequantize of float16, bfloat16 and codes of 4 bits.

float16 and 4 bits are compared with ONNX Runtime, bfloat16 with NumPy and ml_dtypes. All 2^16 values are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import (
    Array,
    Shape,
    assert_same,
    dynamic_dequantize,
    dynamic_quantize,
    make_session,
    parse,
    spread,
    stock_session,
    tie_dense,
)

import ort_dynq
from ort_dynq import DynqError, kernels
from ort_dynq.backends.options import BACKENDS
from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter.functions import make_function

VERSION = tuple(map(int, ort.__version__.split(".")[:2]))
rounds = pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
ARITHMETIC = "wrapping" if VERSION < (1, 32) else "onnx"  # of float16
casts = pytest.mark.skipif(VERSION < (1, 23), reason="ONNX Runtime before 1.23 has no Cast of 4 bits")

HALVES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CODES: dict[str, Any] = {"uint8": np.uint8, "int8": np.int8, "uint4": ml_dtypes.uint4, "int4": ml_dtypes.int4}
NUMBERS = {"uint8": 2, "int8": 3, "uint4": 21, "int4": 22, "float16": 10, "bfloat16": 16, "int32": 6, "float32": 1}
LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "uint4": (0, 15), "int4": (-8, 7)}
SCALES = (1.0, 0.1, 2.0**-7, 1.7, -0.3, 6e-8, 6e4, 0.0, np.inf, np.nan)


def all_values(dtype: Any) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def with_one_nan(values: Array) -> Array:
    """NaN keeps its sign and no other bits."""
    with np.errstate(invalid="ignore"):  # NumPy on ARM warns of signaling NaN
        floats = values.astype(np.float32)
    return np.where(np.isnan(floats), np.copysign(np.float32(np.nan), floats).astype(values.dtype), values)


@pytest.mark.parametrize("half", HALVES)
def test_every_value_is_read_and_written(isa: str, half: str) -> None:
    """One code of 1, with every value as its scale."""
    scales = all_values(HALVES[half])
    ones = np.ones(scales.size, np.uint8)
    actual = dynamic_dequantize(ones, scales, qtype="per_channel", axis=0)
    assert_same(actual.view(np.uint16), with_one_nan(scales).view(np.uint16))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("codes", CODES)
def test_dequantizing_rounds_once(isa: str, half: str, codes: str) -> None:
    """Every scale by codes: products have ties, overflow, and are subnormal; as rows and as columns.

    Rows of 34 codes of 4 bits are dequantized as they are stored; their last two vectors overlap.
    """
    low, high = LIMITS[codes]
    scales = all_values(HALVES[half])
    some = np.array([low, 0, 3, 5, high - 2, high, 7, *np.resize(np.arange(low, high + 1), 27)], np.int32)
    zp = np.array(1, CODES[codes])
    with np.errstate(all="ignore"):
        product = (some - 1).astype(np.float32) * scales.astype(np.float32)[:, None]
        expected = with_one_nan(product.astype(HALVES[half])).view(np.uint16)
    for columns in (7, 34):
        src = np.tile(some[:columns], (scales.size, 1)).astype(CODES[codes])
        actual = dynamic_dequantize(src, scales, zp, qtype="per_channel", axis=0).view(np.uint16)
        assert_same(actual, expected[:, :columns])
        across = dynamic_dequantize(np.ascontiguousarray(src.T), scales, zp, qtype="per_channel", axis=1)
        assert_same(across.view(np.uint16), expected[:, :columns].T)
    if half == "float16":
        model = parse("float16[N] s", "float16[N, 34] y", "y = DequantizeLinear<axis = 0>(x, s, z)")
        add_constants(model, x=src, z=np.full(scales.size, 1, CODES[codes]))
        stock = stock_session(model).run(None, {"s": scales})[0]
        assert_same(actual, stock.view(np.uint16))


def add_constants(model: onnx.ModelProto, **arrays: Array) -> None:
    for name, array in arrays.items():
        kind = NUMBERS[array.dtype.name]
        values = array.astype(np.int32).reshape(-1).tolist()
        model.graph.initializer.append(onnx.helper.make_tensor(name, kind, array.shape, values))


@rounds
@pytest.mark.parametrize("codes", CODES)
def test_quantizing_every_float16(isas: Sequence[str], codes: str) -> None:
    """The arithmetic is ONNX Runtime's, with infinities and NaN, for ordinary and for extreme scales."""
    src = all_values(np.float16)
    for scale in np.float16(SCALES):
        for zp in (LIMITS[codes][0], 0, 3, LIMITS[codes][1]):
            zero = np.array(zp, CODES[codes])
            model = parse(
                "float16[N] x, float16 s",
                "float[N] y",
                "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, one, zero)",
            )
            add_constants(model, z=zero, zero=np.array(0, CODES[codes]))
            model.graph.initializer.append(onnx.helper.make_tensor("one", 1, (), [1.0]))
            expected = stock_session(model).run(None, {"x": src, "s": np.array(scale)})[0]
            for isa in isas:
                with kernels.use_isa(isa):
                    actual = dynamic_quantize(src, np.array(scale), zero, arithmetic=ARITHMETIC)
                assert_same(actual.astype(np.float32), expected)


@pytest.mark.parametrize("half", HALVES)
def test_quantizing_every_value_as_onnx_defines_it(isa: str, half: str) -> None:
    src = all_values(HALVES[half])
    for codes, (low, high) in LIMITS.items():
        for scale in np.array(SCALES, HALVES[half]):
            with np.errstate(all="ignore"):
                rounded = np.rint(src.astype(np.float32) / np.float32(scale)).astype(np.float64) + 3
            expected = np.where(np.isnan(rounded), low, np.clip(rounded, low, high)).astype(CODES[codes])
            actual = dynamic_quantize(src, np.array(scale), np.array(3, CODES[codes]))
            assert_same(actual.view(np.uint8), expected.view(np.uint8))


GRANULARITIES: list[tuple[Shape, Shape, dict[str, Any], int]] = [
    ((129,), (), {}, 0),
    ((7, 33), (7,), {"qtype": "per_channel", "axis": 0}, 0),
    ((40, 33), (33,), {"qtype": "per_channel", "axis": 1}, 1),
    ((300, 3), (3,), {"qtype": "per_channel", "axis": 1}, 1),
    ((5, 67), (5, 5), {"qtype": "per_group", "axis": 1, "block_size": 16}, 1),
    ((3, 9000), (), {}, 0),
    ((7, 34), (7,), {"qtype": "per_channel", "axis": 0}, 0),
    ((7, 130), (7,), {"qtype": "per_channel", "axis": 0}, 0),
    ((6, 50), (50,), {"qtype": "per_channel", "axis": 1}, 1),
    ((43, 134), (134,), {"qtype": "per_channel", "axis": 1}, 1),
    ((5, 96), (5, 3), {"qtype": "per_group", "axis": 1, "block_size": 32}, 1),
    ((1, 40), (40,), {"qtype": "per_channel", "axis": 1}, 1),
    ((13, 40), (40,), {"qtype": "per_channel", "axis": 1}, 1),
    ((2, 9000), (2, 563), {"qtype": "per_group", "axis": 1, "block_size": 16}, 1),
]


@pytest.mark.parametrize("codes", ["uint4", "int4"])
@pytest.mark.parametrize(("shape", "scales_shape", "given", "axis"), GRANULARITIES)
def test_codes_of_4_bits(
    isa: str, codes: str, shape: Shape, scales_shape: Shape, given: dict[str, Any], axis: int
) -> None:
    """Rounding ties of every row; of an odd number of elements in a row, rows share bytes."""
    rng = np.random.default_rng(len(shape) + axis)
    low, high = LIMITS[codes]
    scales = np.asarray(2.0 ** rng.integers(-5, 3, scales_shape) * rng.choice([1, 1.1], scales_shape), np.float32)
    zps = np.asarray(rng.integers(low, high + 1, scales_shape)).astype(np.int32)
    block = given.get("block_size", 0)
    whole = spread(scales, shape, axis, block), spread(zps, shape, axis, block)
    src = tie_dense(rng, *whole, np.int8)
    with np.errstate(all="ignore"):
        src = np.where(np.abs(src / whole[0]) < 2.0**30, src, np.float32(0))  # otherwise ONNX Runtime wraps
    attributes = f"<axis = {axis}, block_size = {block}>" if scales_shape else ""
    model = parse(
        "float x, float s".replace(" x", f"[{', '.join('abc'[: len(shape)])}] x").replace(
            " s", f"[{', '.join('def'[: len(scales_shape)])}] s" if scales_shape else " s"
        ),
        "float[] y, float[] d",
        f"""q = QuantizeLinear{attributes}(x, s, z)
            y = DequantizeLinear(q, one, zero)
            d = DequantizeLinear{attributes}(q, s, z)""",
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    add_constants(model, z=zps.astype(CODES[codes]), zero=np.array(0, CODES[codes]))
    model.graph.initializer.append(onnx.helper.make_tensor("one", 1, (), [1.0]))
    expected, floats = stock_session(model).run(None, {"x": src, "s": scales})
    actual = dynamic_quantize(src, scales, zps.astype(CODES[codes]), **given)
    assert_same(actual.astype(np.float32), expected, src)
    assert_same(dynamic_dequantize(actual, scales, zps.astype(CODES[codes]), **given), floats)


ZERO_POINTS = (-(2**31), -16385, -16384, -300, -9, 0, 15, 300, 16384, 16385, 2**31 - 1)


@pytest.mark.parametrize("codes", ["uint4", "int4"])
@pytest.mark.parametrize("axis", [0, 1])
def test_codes_of_4_bits_with_other_parameters(isa: str, codes: str, axis: int) -> None:
    """Zero points beyond the codes, and scales without safe reciprocals; compared with NumPy.

    Quotients are near those of the lowest and the highest code: these codes are clipped. One scale that is not safe
    takes its block to other kernels.
    """
    rng = np.random.default_rng(axis)
    low, high = LIMITS[codes]
    for unsafe in (1.0, 1e-40, 3e38, 0.0, np.inf, np.nan, -1.0):
        for zp in ZERO_POINTS:
            scales = np.float32(rng.uniform(0.1, 3, 40))
            scales[3] = unsafe
            zps = np.full(40, zp, np.int32)
            zps[5] = 1
            steps = rng.choice([0, 0.5, -0.5, 1, -1], (40, 40)) + rng.choice([low, high, 0], (40, 40))
            with np.errstate(all="ignore"):
                src = ((steps - zps[:, None]) * scales[:, None]).astype(np.float32)
                src = np.nextafter(src, rng.choice([-np.inf, np.inf, 0], src.shape).astype(np.float32))
                src[:, :3] = np.inf, -np.inf, np.nan
                exact = np.rint(src / scales[:, None]).astype(np.float64) + zps[:, None]
            codes_ = np.where(np.isnan(exact), low, np.clip(exact, low, high)).astype(CODES[codes])
            expected = codes_ if axis == 0 else codes_.T
            given = {"qtype": "per_channel", "axis": axis, "output_dtype": NUMBERS[codes]}
            actual = dynamic_quantize(np.ascontiguousarray(src if axis == 0 else src.T), scales, zps, **given)
            assert_same(actual.view(np.uint8), expected.view(np.uint8))


@casts
@pytest.mark.parametrize("name", ["DynamicQuantize", "DynamicDequantize"])
def test_every_signature_loads_and_runs(name: str) -> None:
    """All signatures in one model; Casts make the inputs of types that NumPy has not."""
    operator = OPERATORS[name]
    rng = np.random.default_rng(0)
    src, zp = np.round(rng.normal(4, 2, (7, 33)), 1).astype(np.float32), np.array(3, np.int32)
    feeds = {"x": src, "s": np.float32([0.5]), "z": zp}
    lines, outputs, expected = [], [], []
    for i, signature in enumerate(operator.signatures):
        types = (*signature.inputs, *signature.outputs)
        given = f"<output_dtype = {NUMBERS[types[3]]}>" if name == "DynamicQuantize" else ""
        for value, type_ in zip("xsz", types, strict=False):
            lines.append(f"{value}{i} = Cast<to = {NUMBERS[type_]}>({value})")
        lines += [f"d{i} = ort_dynq.{name}{given}(x{i}, s{i}, z{i})", f"y{i} = Cast<to = 1>(d{i})"]
        outputs.append(f"float[a, b] y{i}")
        arrays = [
            np.asarray(array).astype(CODES.get(type_, HALVES.get(type_, type_)))
            for array, type_ in zip((src, feeds["s"], zp), types, strict=False)
        ]
        if types[0] in CODES:
            arrays[0] = np.trunc(src).astype(np.int32).astype(CODES[types[0]])
        attributes = {"output_dtype": NUMBERS[types[3]]} if name == "DynamicQuantize" else {}
        result = kernels.run(name, arrays, **attributes)[0]
        assert result.dtype.name == types[3]
        expected.append(result.astype(np.float32))
    if name == "DynamicDequantize":
        feeds["x"] = np.clip(np.trunc(src), 0, 7).astype(np.float32)
        expected = []
        for signature in operator.signatures:
            arrays = [feeds["x"].astype(CODES[signature.inputs[0]]), np.float32([0.5]), zp]
            expected.append((arrays[0].astype(np.float32) - 3) * np.float32(0.5))
    model = parse("float[a, b] x, float[1] s, int32 z", ", ".join(outputs), "\n".join(lines))
    for result, right in zip(make_session(model, "native").run(None, feeds), expected, strict=True):
        assert_same(result, right)


@rounds
@pytest.mark.parametrize("codes", CODES)
def test_function_bodies(codes: str) -> None:
    """The nodes that the rewriter writes for float16, run by stock ONNX Runtime."""
    rng = np.random.default_rng(0)
    for scales_shape, given in (((), ""), ((33,), 'qtype = "per_channel", axis = 1, ')):
        src = rng.normal(0, 3, (7, 33)).astype(np.float16)
        scales = np.asarray(rng.uniform(0.1, 0.5, scales_shape)).astype(np.float16)
        dims = "[c]" if scales_shape else ""
        attributes = given + ("" if given else 'qtype = "per_tensor", axis = 1, ') + "block_size = 0"
        model = parse(
            f"float16[a, b] x, float16{dims} s",
            "float16[a, b] y",
            f"""q = ort_dynq.DynamicQuantize<{attributes}, output_dtype = 0, arithmetic = "{ARITHMETIC}">(x, s, z)
                y = ort_dynq.DynamicDequantize<{attributes}>(q, s, z)""",
        )
        add_constants(model, z=np.array(LIMITS[codes][1] - 3, CODES[codes]))
        for name in ("DynamicQuantize", "DynamicDequantize"):
            model.functions.append(make_function(name, 21))
        feeds = {"x": src, "s": scales}
        expected = stock_session(model).run(None, feeds)[0]
        assert_same(make_session(model, "native").run(None, feeds)[0], expected)


@pytest.mark.parametrize(
    ("operator", "inputs", "output"),
    [
        ("DynamicQuantize", "float16[N] x, float16 s, int8 z", "int8"),
        ("DynamicQuantize", "bfloat16[N] x, bfloat16 s, uint8 z", "uint8"),
        ("DynamicQuantize", "float[N] x, float s, int4 z", "int4"),
        ("DynamicDequantize", "uint4[N] x, float s, uint4 z", "float"),
        ("DynamicDequantize", "int8[N] x, bfloat16 s, int8 z", "bfloat16"),
    ],
)
def test_extensions_supports_none_of_them(operator: str, inputs: str, output: str) -> None:
    model = parse(inputs, f"{output}[N] y", f"y = ort_dynq.{operator}(x, s, z)")
    with pytest.raises(DynqError, match=r"^y: onnxruntime-extensions does not support .* has no function ort_dynq"):
        ort_dynq.ready_for_extensions(model)
    with pytest.raises(DynqError, match="does not support float16, bfloat16, int4 and uint4"):
        make_session(model, "extensions")


@rounds
def test_extensions_runs_functions_instead() -> None:
    """A session of a model with float16 has the results of stock ONNX Runtime, with either backend."""
    body = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    model = parse("float16[a, 40] x, float16 s, int8 z", "float16[a, 40] y", body)
    x = np.random.default_rng(0).normal(0, 3, (50, 40)).astype(np.float16)
    feeds = {"x": x, "s": np.array(0.1, np.float16), "z": np.array(3, np.int8)}
    (expected,) = stock_session(model).run(None, feeds)
    for backend in BACKENDS:
        session = ort_dynq.InferenceSession(model, backend=backend)
        assert_same(session.run(None, feeds)[0], expected)
