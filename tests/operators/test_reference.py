"""The NumPy reference gives the kernels' results and errors, and replaces a library that cannot be loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convolutions import random_conv
from helpers import (
    SPECIALS,
    Array,
    Shape,
    assert_same,
    make_session,
    matmul_inputs,
    random_codes,
    random_scales,
    random_zps,
    spread,
    tie_dense,
)
from rewriting import data_sets, rewritten

from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS, reference

Case = tuple[list[Array], dict[str, Any]]
SHAPES: tuple[Shape, ...] = ((), (5,), (3, 40), (2, 3, 33), (0, 4), (4, 257))
TYPES = {1: np.float32, 2: np.uint8, 3: np.int8}
ENDS = {1: (-128, 127), 2: (0, 255), 3: (-128, 127)}
LARGEST = np.finfo(np.float32).max


def any_of(rng: np.random.Generator, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def granularity(rng: np.random.Generator) -> tuple[Shape, Shape, dict[str, Any]]:
    """The shapes of src and scales, and the attributes that go with them."""
    shape = any_of(rng, *SHAPES)
    axis = int(rng.integers(-len(shape), len(shape))) if shape else 0
    kind = any_of(rng, "per_tensor", "per_channel", "per_group", "blocks", "auto") if shape else "per_tensor"
    if kind == "per_tensor":
        return shape, any_of(rng, (), (1,)), {"qtype": kind, "axis": axis}
    if kind in ("per_channel", "auto"):
        return shape, (shape[axis],), {"qtype": kind, "axis": axis}
    if kind == "per_group":
        return shape, tuple(any_of(rng, 1, length) if length else length for length in shape), {"qtype": kind}
    block = int(any_of(rng, 1, 3, 16, 300))
    counts = list(shape)
    counts[axis] = -(-shape[axis] // block)
    return shape, tuple(counts), {"qtype": "per_group", "axis": axis, "block_size": block}


def quantize_case(rng: np.random.Generator) -> Case:
    shape, scales_shape, given = granularity(rng)
    scales = random_scales(rng, scales_shape)
    zps = random_zps(rng, scales_shape if rng.random() < 0.8 else (1,), any_of(rng, np.uint8, np.int8, np.int32))
    given |= {"output_dtype": any_of(rng, 0, 2, 3), "arithmetic": any_of(rng, "onnx", "onednn", "wrapping")}
    axis, block = given.get("axis", 0), given.get("block_size", 0)
    assert zps is not None
    whole = spread(scales, shape, axis, block), spread(zps, shape, axis, block)
    inputs = [tie_dense(rng, *whole, any_of(rng, np.uint8, np.int8)), scales, zps]
    return inputs[: any_of(rng, 2, 3, 3)], given


def fake_quantize_case(rng: np.random.Generator) -> Case:
    shape, scales_shape, given = granularity(rng)
    scales = random_scales(rng, scales_shape)
    codes = any_of(rng, np.uint8, np.int8)
    zps = random_codes(rng, scales_shape if rng.random() < 0.8 else (1,), codes)
    axis, block = given.get("axis", 0), given.get("block_size", 0)
    src = tie_dense(rng, spread(scales, shape, axis, block), spread(zps, shape, axis, block), codes)
    return [src, scales, zps], given


def dequantize_case(rng: np.random.Generator) -> Case:
    shape, scales_shape, given = granularity(rng)
    zps = random_zps(rng, scales_shape if rng.random() < 0.8 else (1,), any_of(rng, np.uint8, np.int8, np.int32))
    src = random_codes(rng, shape, any_of(rng, np.uint8, np.int8))
    assert zps is not None
    return [src, random_scales(rng, scales_shape), zps][: any_of(rng, 2, 3, 3)], given


def arithmetic(rng: np.random.Generator, code_type: int, to_codes: bool) -> dict[str, Any]:
    """The attributes of the arithmetic from floats to codes."""
    stored = {"output_dtype": int(rng.integers(2, 4))} if to_codes else {}
    low, high = ENDS[code_type]
    if rng.random() < 0.5:
        low, high = sorted(int(end) for end in rng.integers(low, high + 1, 2))
    return {
        "scaling": int(rng.integers(3)),
        "rounding_order": int(rng.integers(5)),
        "code_type": code_type,
        "quant_min": low,
        "quant_max": high,
        "clip": int(rng.integers(2)),
        "nan_code": 2 if code_type == 1 else int(rng.integers(2)),
        **stored,
    }


def broadcast_scale(rng: np.random.Generator) -> tuple[Shape, Array]:
    shape = any_of(rng, *SHAPES)
    scale = tuple(any_of(rng, 1, length) for length in shape[int(rng.integers(len(shape) + 1)) :])
    return shape, random_scales(rng, scale)


def affine_case(rng: np.random.Generator, to_codes: bool) -> Case:
    shape, scale = broadcast_scale(rng)
    code_type = any_of(rng, 2, 3) if to_codes else any_of(rng, 1, 2, 3)
    given = arithmetic(rng, code_type, to_codes)
    zp_type = TYPES[given["output_dtype"]] if to_codes else any_of(rng, np.float32, np.uint8, np.int8, np.int32)
    zp_shape = scale.shape if rng.random() < 0.7 else (1,)
    if zp_type is np.float32:
        zp = rng.choice(np.float32([0, -0.0, 1, -3, 7.5, 128, np.nan, 1e9]), zp_shape).astype(np.float32)
    else:
        drawn = random_zps(rng, zp_shape, zp_type)
        assert drawn is not None
        zp = drawn
    with np.errstate(all="ignore"):
        steps = np.float32(1) / scale if given["scaling"] == 2 else scale
    ties = np.zeros(shape) if zp_type is np.float32 else np.broadcast_to(zp.reshape(()) if zp.size == 1 else zp, shape)
    if to_codes:
        ties = ties.astype(np.float32) - 128 * (code_type - given["output_dtype"])
    src = tie_dense(rng, np.broadcast_to(steps, shape), ties, TYPES[code_type] if code_type != 1 else np.int8)
    return [src, scale, np.asarray(zp)], given


def affine_dequantize_case(rng: np.random.Generator) -> Case:
    shape, scale = broadcast_scale(rng)
    codes = any_of(rng, np.uint8, np.int8)
    zp = random_codes(rng, scale.shape if rng.random() < 0.7 else (1,), codes)
    return [random_codes(rng, shape, codes), scale, zp], {}


def range_case(rng: np.random.Generator, to_codes: bool) -> Case:
    shape = any_of(rng, *SHAPES)
    axes = [axis for axis in range(-len(shape), len(shape)) if 0 not in shape[axis:]]
    code_type = any_of(rng, 2, 3) if to_codes else any_of(rng, 1, 2, 3)
    kind = int(rng.integers(4))
    given = arithmetic(rng, code_type, to_codes) | {
        "axis": any_of(rng, *axes) if shape else 0,
        "range_kind": kind,
        "inverse_scale": int(rng.integers(3)) if kind == 0 else 0,
        "added_epsilon": int(rng.integers(3)),
        "zero_point_rule": int(rng.integers(5)) if kind in (1, 2) else 0,
        "zero_point_before_epsilon": int(rng.integers(2)),
        "float16_range": int(rng.integers(2)),
        "float16_scale": int(rng.integers(2)),
        "zero_point_type": code_type if to_codes else any_of(rng, 1, 2, 3),
    }
    epsilons = 0, 1e-5, 1e-8, 1.1920929e-07
    constants = np.float32(
        [
            *((-128, 127) if kind == 3 else (-LARGEST, LARGEST)),
            *(any_of(rng, *epsilons), LARGEST),
            *(any_of(rng, 1, 127, 127.5, 255), any_of(rng, 1, 0.5, 127)),
            *(any_of(rng, *epsilons), LARGEST),
            any_of(rng, 0, 1),
        ]
    )
    src = (rng.integers(-255, 256, shape) * np.float32(0.5) * any_of(rng, 1, 1 / 16, 0.1, 1e-30)).astype(np.float32)
    data = any_of(rng, "ties", "specials", "zeros", "NaN")
    if data == "zeros":
        src = rng.choice(np.float32([0, -0.0]), shape)
    elif data != "ties":
        src = np.where(rng.random(shape) < 0.1, rng.choice(SPECIALS[: None if data == "specials" else 1], shape), src)
    like = [np.zeros((), TYPES[given["output_dtype"]])] if to_codes else []
    return [np.asarray(src, np.float32), constants, *like], given


def matmul_case(rng: np.random.Generator) -> Case:
    bits, size = int(any_of(rng, 8, 4)), int(any_of(rng, 0, 16, 32))
    groups = int(rng.integers(1, 4))
    lead = any_of(rng, (), (1,), (5,), (2, 3), (0,))
    shape = (*lead, groups * size if size else int(rng.integers(0, 40)))
    shared = int(rng.integers(len(lead) + 1))
    last = any_of(rng, 1, groups) if size else 1
    scale = any_of(rng, (), (*lead[:shared], *(1 for _ in lead[shared:]), last))
    inputs, _ = matmul_inputs(
        rng,
        shape,
        int(rng.integers(0, 40)),
        bits=bits,
        group_size=size,
        codes=any_of(rng, np.uint8, np.int8),
        zero_points=any_of(rng, "none", "one", "all"),
        column_groups=bool(rng.integers(2)),
        scale=scale,
    )
    return inputs, {"bits": bits, "group_size": size, "scale_order": 2 if size else int(rng.integers(3))}


def conv_case(rng: np.random.Generator) -> Case:
    inputs, _, given = random_conv(rng)
    return inputs, given


def reduction_case(rng: np.random.Generator) -> Case:
    shape = any_of(rng, *SHAPES, (5, 40, 3), (300, 2))
    axis = int(rng.integers(-len(shape), len(shape) + 1))
    count = int(rng.integers(len(shape) - axis % (len(shape) or 1) + 1)) if axis < len(shape) else 0
    data = any_of(rng, rng.normal(0, 9, shape), rng.choice(SPECIALS, shape), rng.choice([0.0, -0.0, -1.0, 2.0], shape))
    return [np.asarray(data, np.float32)], {
        "axis": axis,
        "count": count,
        "reduce_others": int(rng.integers(2)),
        "keepdims": int(rng.integers(2)),
    }


def linear_case(rng: np.random.Generator) -> Case:
    return range_case(rng, to_codes=False)[0][:1], {}


PRODUCTS = ("QuantizedMatMul", "QuantizedConv")
CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "DynamicQuantize": quantize_case,
    "DynamicDequantize": dequantize_case,
    "DynamicFakeQuantize": fake_quantize_case,
    "AffineQuantize": lambda rng: affine_case(rng, to_codes=True),
    "AffineFakeQuantize": lambda rng: affine_case(rng, to_codes=False),
    "AffineDequantize": affine_dequantize_case,
    "DynamicRangeQuantize": lambda rng: range_case(rng, to_codes=True),
    "DynamicRangeFakeQuantize": lambda rng: range_case(rng, to_codes=False),
    "QuantizedMatMul": matmul_case,
    "QuantizedConv": conv_case,
    "ReduceAbsMax": reduction_case,
    "ReduceMinMax": reduction_case,
    "DynamicQuantizeLinear": linear_case,
    "DynamicQuantizeDequantizeLinear": linear_case,
}


def has_unused_zero_point(given: dict[str, Any]) -> bool:
    """Whether a zero point is computed that the codes do not use."""
    return given.get("rounding_order") in (2, 3) and given.get("zero_point_rule", 0) != 0


def check_bits(operator: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        inputs, given = CASES[operator](rng)
        if not wanted(given):
            continue
        expected = kernels.run(operator, inputs, **given)
        actual = reference.run(operator, inputs, **given)
        for result, bits in zip(actual, expected, strict=True):
            assert_same(result, bits)


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name not in PRODUCTS])
def test_same_bits(isa: str, operator: str) -> None:
    """Random attributes, on data with ties, NaN, infinities, both zeros and denormals."""
    check_bits(operator, lambda given: not has_unused_zero_point(given))


@pytest.mark.parametrize("operator", PRODUCTS)
def test_same_bits_of_products(product_isa: str, operator: str) -> None:
    check_bits(operator, lambda _: True)


@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (0, 0)], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_ranges_of_empty_rows(shape: Shape, axis: int, kind: int) -> None:
    constants = np.float32([-LARGEST, LARGEST, 1e-5, LARGEST, 127, 1, 0, LARGEST, 0])
    inputs = [np.ones(shape, np.float32), constants]
    given = {"axis": axis, "range_kind": kind}
    for result, expected in zip(
        kernels.run("DynamicRangeFakeQuantize", inputs, **given),
        reference.run("DynamicRangeFakeQuantize", inputs, **given),
        strict=True,
    ):
        assert_same(result, expected)


def test_same_bits_with_unused_zero_points(isa: str) -> None:
    check_bits("DynamicRangeQuantize", has_unused_zero_point)


MISTAKES: tuple[tuple[str, dict[str, Any], dict[int, Any]], ...] = (
    *(
        (operator, mistake, {})
        for operator in ("DynamicQuantize", "DynamicDequantize")
        for mistake in (
            {"qtype": "rows"},
            {"block_size": -1},
            {"qtype": "per_channel"},
            {"qtype": "per_channel", "axis": 2},
            {"qtype": "per_group"},
        )
    ),
    ("DynamicQuantize", {"output_dtype": 7}, {}),
    ("DynamicQuantize", {"arithmetic": "mlas"}, {}),
    ("DynamicQuantize", {}, {1: np.ones((1, 1), np.float32)}),
    ("DynamicQuantize", {}, {2: np.zeros(3, np.uint8)}),
    ("DynamicQuantize", {"qtype": "per_group"}, {1: np.ones((2, 3), np.float32)}),
    ("DynamicQuantize", {"qtype": "per_group", "block_size": 3}, {1: np.ones((2, 3), np.float32)}),
    ("DynamicQuantize", {"qtype": "per_group", "block_size": 3, "axis": -3}, {1: np.ones((2, 3), np.float32)}),
    *(
        (operator, mistake, {})
        for operator in ("AffineQuantize", "AffineFakeQuantize", "DynamicRangeQuantize", "DynamicRangeFakeQuantize")
        for mistake in (
            {"scaling": 3},
            {"rounding_order": -1},
            {"code_type": 4},
            {"nan_code": 3},
            {"nan_code": 2},
            {"clip": 2},
            {"quant_min": 5, "quant_max": 4},
            {"quant_max": 128},
        )
    ),
    ("AffineQuantize", {"code_type": 2, "quant_min": 0, "output_dtype": 2}, {}),
    *(
        (operator, {"output_dtype": output_dtype}, {})
        for operator in ("AffineQuantize", "DynamicRangeQuantize")
        for output_dtype in (1, 2, 4)
    ),
    ("AffineQuantize", {}, {1: np.ones(3, np.float32)}),
    ("AffineQuantize", {}, {2: np.zeros(4, np.int8)}),
    ("AffineDequantize", {}, {1: np.ones((1, 1, 1), np.float32)}),
    *(
        (operator, mistake, {})
        for operator in ("DynamicRangeQuantize", "DynamicRangeFakeQuantize")
        for mistake in (
            {"axis": 2},
            {"axis": -3},
            {"range_kind": 4},
            {"inverse_scale": 3},
            {"added_epsilon": 3},
            {"inverse_scale": 1, "range_kind": 1},
            {"zero_point_rule": 5},
            {"zero_point_rule": 1},
            {"zero_point_before_epsilon": 2},
            {"float16_range": 2},
            {"float16_scale": -1},
            {"zero_point_type": 6},
        )
    ),
    *(
        (operator, mistake, {})
        for operator in ("ReduceAbsMax", "ReduceMinMax")
        for mistake in ({"axis": 3}, {"axis": -3}, {"count": -1}, {"count": 2}, {"reduce_others": 2}, {"keepdims": -1})
    ),
    ("DynamicRangeQuantize", {}, {1: np.ones(8, np.float32)}),
    ("DynamicRangeQuantize", {"code_type": 2, "quant_min": 0, "output_dtype": 2}, {}),
)


WRONG_MATMULS: tuple[tuple[dict[str, int], dict[int, Shape]], ...] = (
    *(({"bits": bits}, {}) for bits in (0, 5, 16)),
    *(({"group_size": size, "scale_order": 2}, {}) for size in (-16, 8, 17, 48, 64)),
    ({"group_size": 16}, {}),
    ({"scale_order": 3}, {}),
    *(({}, {0: shape}) for shape in ((), (33,), (2, 3, 28), (2, 3, 0))),
    *(({}, {1: shape}) for shape in ((2,), (0,), (2, 3, 2), (2, 3), (1, 3, 1), (1, 1, 1, 1))),
    *(({}, {2: shape}) for shape in ((2,), (0,), (2, 3), (2, 1, 1))),
    *(({}, {3: shape}) for shape in ((32, 4), (1, 4, 16, 4), (1, 8, 16, 4, 1), (2, 8, 16, 4))),
    *(({}, {i: shape}) for i in (4, 5, 6) for shape in ((4,), (2, 4), (1, 5), (0,), (1, 4, 1))),
    *(({}, {7: shape}) for shape in ((), (5,), (1, 4), (0,))),
)


@pytest.mark.parametrize(("given", "wrong"), WRONG_MATMULS, ids=str)
def test_same_errors_of_products(given: dict[str, int], wrong: dict[int, Shape]) -> None:
    inputs, _ = matmul_inputs(np.random.default_rng(0), (2, 3, 32), 4)
    for index, shape in wrong.items():
        inputs[index] = np.ones(shape, inputs[index].dtype)
    texts = []
    for run in (kernels.run, reference.run):
        with pytest.raises(DynqError) as caught:
            run("QuantizedMatMul", inputs, **given)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("operator", "mistake", "inputs"), MISTAKES)
def test_same_errors(operator: str, mistake: dict[str, Any], inputs: dict[int, Array]) -> None:
    src = np.ones((2, 4), np.int8 if operator.endswith("Dequantize") else np.float32)
    second = np.ones(9 if "Range" in operator else 1, np.float32)
    third = [] if operator == "DynamicRangeFakeQuantize" else [np.zeros(1, np.int8)]
    arrays = [inputs.get(i, array) for i, array in enumerate([src, second, *third])][: len(OPERATORS[operator].inputs)]
    given = {attribute.name: attribute.default for attribute in OPERATORS[operator].attributes}
    if "code_type" in given:
        given |= {"code_type": 3, "nan_code": 0}
    texts = []
    for run in (kernels.run, reference.run):
        with pytest.raises(DynqError) as caught:
            run(operator, arrays, **given | mistake)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


HIDDEN = """
import sys, warnings
import numpy as np, onnxruntime as ort
from ort_dynq import DynqError, library, register

def hidden():
    raise DynqError("it is hidden")

library.get_library_path = hidden
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for model, data, results in zip(*3 * [iter(sys.argv[1:])]):
        options = register(ort.SessionOptions(), backend="extensions")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        np.savez(results, *session.run(None, dict(np.load(data))))
try:
    register(ort.SessionOptions())
except DynqError as error:
    print("native:", error)
for warning in caught:
    print(warning.category.__name__, warning.filename, warning.message)
"""


def test_numpy_replaces_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Rewritten models give the same results, and one warning says that they run on NumPy."""
    names = "torch_tensor_u8", "torch_token", "torch_token_int8", "torchscript_channel_last"
    arguments: list[str] = []
    for name in names:
        model, data, results = (tmp_path / f"{name}{suffix}" for suffix in (".onnx", ".in.npz", ".out.npz"))
        model.write_bytes(rewritten(name)[1])
        np.savez(data, **next(data_sets(name))[0])  # type: ignore[arg-type]
        arguments += map(str, (model, data, results))
    ran = subprocess.run([sys.executable, "-c", HIDDEN, *arguments], capture_output=True, text=True, check=True)
    native, *warned = ran.stdout.splitlines()
    assert native == "native: it is hidden"
    assert warned == [
        "RuntimeWarning <string> ort_dynq runs on NumPy, which is slower and gives the same results: it is hidden"
    ]
    for name in names:
        expected = make_session(rewritten(name)[1], "native").run(None, next(data_sets(name))[0])
        with np.load(tmp_path / f"{name}.out.npz") as actual:
            for array, bits in zip(actual.values(), expected, strict=True):
                assert_same(array, bits)
