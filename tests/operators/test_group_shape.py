"""Groups along any dimensions: the attribute group_shape of DynamicQuantize, DynamicDequantize and DynamicFakeQuantize.

float32 and float16 are compared with ONNX Runtime, which gets a scale for each element; bfloat16 with ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    IS_ARM,
    Array,
    Shape,
    assert_same,
    dynamic_dequantize,
    dynamic_quantize,
    make_session,
    parse,
    random_scales,
    stock_session,
    tie_dense,
)
from test_formats import ARITHMETIC, CODES, HALVES, LIMITS, NUMBERS, VERSION, with_one_nan

import ort_dynq
from ort_dynq import DynqError, kernels

# The last three are of an odd number of elements, of rows of one group, and of groups of one element.
GROUPS: list[tuple[Shape, Shape]] = [
    ((3, 16, 96), (1, 8, 32)),
    ((4, 16, 6), (2, 4, 3)),
    ((6, 5, 130), (3, 1, 65)),
    ((2, 3, 4, 40), (2, 1, 4, 5)),
    ((12, 640), (4, 1)),
    ((9, 7, 5), (3, 7, 1)),
    ((5, 33), (5, 33)),
    ((3, 4, 5), (1, 1, 1)),
]
FLOATS: dict[str, Any] = {"float32": np.float32, **HALVES}


def whole(parameters: Array, group_shape: Shape) -> Array:
    """The parameter of each element."""
    for i, size in enumerate(group_shape):
        parameters = np.repeat(parameters, size, i)
    return parameters


def stock(op: str, src: Array, scales: Array, zps: Array) -> Array:
    """QuantizeLinear or DequantizeLinear with one scale for each element, as float32 or as the type of scales."""
    kind = {"float32": "float", "float16": "float16"}[scales.dtype.name]
    feeds, quantizes = {"s": scales.reshape(-1)}, op == "QuantizeLinear"
    last = "y = DequantizeLinear(q, one, zero)" if quantizes else ""
    model = parse(
        f"{kind}[N] s" + (f", {kind}[N] x" if quantizes else ""),
        f"{'float' if quantizes else kind}[N] y",
        f"{'q' if quantizes else 'y'} = {op}<axis = 0>(x, s, z)\n{last}",
    )
    constants = {"z": zps} if quantizes else {"z": zps, "x": src}
    if quantizes:
        feeds["x"] = src.reshape(-1)
        constants["zero"] = np.zeros((), zps.dtype)
        model.graph.initializer.append(onnx.helper.make_tensor("one", 1, (), [1.0]))
    for name, array in constants.items():
        dims = array.shape if array.ndim == 0 else (array.size,)
        values = array.astype(np.int32).reshape(-1).tolist()
        model.graph.initializer.append(onnx.helper.make_tensor(name, NUMBERS[array.dtype.name], dims, values))
    return np.asarray(stock_session(model).run(None, feeds)[0]).reshape(src.shape)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("kind", FLOATS)
def test_groups_along_several_dimensions(isas: Sequence[str], kind: str, codes: str) -> None:
    if kind == "float16" and VERSION < (1, 30):
        pytest.skip("ONNX Runtime before 1.30 truncates quotients of float16")
    rng = np.random.default_rng(0)
    dtype, low, high = FLOATS[kind], *LIMITS[codes]
    for shape, group_shape in GROUPS:
        counts = tuple(length // size for length, size in zip(shape, group_shape, strict=True))
        zps = rng.integers(low, high + 1, counts).astype(np.int32)
        with np.errstate(all="ignore"):
            scales = random_scales(rng, counts).astype(dtype)
            if IS_ARM and codes.endswith("4"):  # where ONNX Runtime makes the zero point of NaN
                scales = np.where(np.isfinite(scales) & (scales != 0), scales, dtype(1))
            each, zp = whole(scales, group_shape), whole(zps, group_shape)
            src = tie_dense(rng, each.astype(np.float32), zp, np.int8).astype(dtype)
            if kind == "float32" and codes.endswith("4"):  # ONNX Runtime wraps around, in 1.20 everywhere
                src = np.where(np.abs(src / each) < 2.0**30, src, np.float32(0))
        short = zps.astype(CODES[codes])
        given: dict[str, Any] = {"qtype": "per_group", "group_shape": group_shape}
        arithmetic = ARITHMETIC if kind == "float16" else "onnx"
        if kind == "bfloat16":
            with np.errstate(all="ignore"):
                rounded = np.rint(src.astype(np.float32) / each.astype(np.float32)).astype(np.float64) + zp
            expected = np.where(np.isnan(rounded), low, np.clip(rounded, low, high)).astype(np.float32)
        else:
            expected = stock("QuantizeLinear", src, each, zp.astype(CODES[codes]))
        packed = expected.astype(CODES[codes])
        if kind == "bfloat16":
            with np.errstate(all="ignore"):
                exact = (expected - zp).astype(np.float32) * each.astype(np.float32)
                floats = with_one_nan(exact.astype(dtype))
        else:
            floats = stock("DequantizeLinear", packed, each, zp.astype(CODES[codes]))
        for isa in isas:
            with kernels.use_isa(isa):
                actual = dynamic_quantize(src, scales, short, arithmetic=arithmetic, **given)
                back = dynamic_dequantize(packed, scales, short, **given)
            assert_same(actual.astype(np.float32), expected)
            assert_same(back.astype(np.float32), floats.astype(np.float32))


def test_block_size_is_a_group_shape(isa: str) -> None:
    """With one entry above 1. Without either, the shape of the scales gives the groups."""
    rng = np.random.default_rng(0)
    for axis, group_shape in ((2, (1, 1, 16)), (0, (2, 1, 1)), (1, (1, 3, 1))):
        shape = (4, 9, 64)
        counts = tuple(length // size for length, size in zip(shape, group_shape, strict=True))
        scales, zps = random_scales(rng, counts), rng.integers(0, 256, counts).astype(np.uint8)
        src = tie_dense(rng, whole(scales, group_shape), whole(zps, group_shape), np.uint8)
        expected = stock("QuantizeLinear", src, whole(scales, group_shape), whole(zps, group_shape))
        for given in ({"group_shape": group_shape}, {"axis": axis, "block_size": group_shape[axis]}, {}):
            actual = dynamic_quantize(src, scales, zps, qtype="per_group", **given)
            assert_same(actual.astype(np.float32), expected)
        assert_same(dynamic_quantize(src, scales, zps, qtype="auto", group_shape=group_shape), actual)


def test_sessions(backend: str) -> None:
    """The attribute is a list of integers in a model."""
    shape, group_shape, counts = (4, 16, 64), (2, 16, 32), (2, 1, 2)
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(0, 3, shape).astype(np.float32),
        "s": rng.uniform(0.01, 0.1, counts).astype(np.float32),
        "z": rng.integers(0, 256, counts).astype(np.uint8),
    }
    each = whole(feeds["s"], group_shape), whole(feeds["z"], group_shape)
    codes = stock("QuantizeLinear", feeds["x"], *each)
    floats = stock("DequantizeLinear", codes.astype(np.uint8), *each)
    groups = "group_shape = [2, 16, 32]"
    for given in (f'<qtype = "per_group", {groups}>', f'<qtype = "auto", {groups}>', '<qtype = "per_group">'):
        model = parse(
            "float[a, 16, 64] x, float[b, 1, 2] s, uint8[b, 1, 2] z",
            "uint8[a, 16, 64] q, float[a, 16, 64] d, float[a, 16, 64] f",
            f"""q = ort_dynq.DynamicQuantize{given}(x, s, z)
                d = ort_dynq.DynamicDequantize{given}(q, s, z)
                f = ort_dynq.DynamicFakeQuantize{given}(x, s, z)""",
        )
        if backend == "extensions":
            model = ort_dynq.ready_for_extensions(model).to_proto()
        q, d, f = make_session(model, backend).run(None, feeds)
        assert_same(q.astype(np.float32), codes)
        assert_same(d, floats)
        assert_same(f, floats)


@pytest.mark.parametrize(
    ("attributes", "scales", "message"),
    [
        ({"group_shape": [2]}, (2, 2), "src has shape 4x6, expected multiples of group_shape, 2"),
        ({"group_shape": [2, 4]}, (2, 2), "src has shape 4x6, expected multiples of group_shape, 2x4"),
        ({"group_shape": [2, 3, 1]}, (2, 2), "src has shape 4x6, expected multiples of group_shape, 2x3x1"),
        (
            {"group_shape": [2, 3]},
            (4, 2),
            "scales has shape 4x2, expected 2 along dimension 0 for groups of 2x3 of src of shape 4x6",
        ),
        ({"group_shape": [2, 3]}, (2,), "scales has shape 2, expected the rank of src, 2, for per_group"),
        ({"group_shape": [2, 0]}, (2, 2), "group_shape is 2x0, expected sizes of 1 or more"),
        ({"group_shape": [1] * 17}, (2, 2), "group_shape has 17 sizes, expected at most 16"),
        (
            {"group_shape": [2, 3], "qtype": "per_channel"},
            (2, 2),
            "group_shape is 2x3 and qtype 'per_channel', expected qtype per_group or auto",
        ),
        ({"group_shape": [2, 3], "block_size": 3}, (2, 2), "group_shape is 2x3 and block_size 3, expected one of them"),
        ({"group_shape": [2, 2**63]}, (2, 2), "group_shape is 9223372036854775808, expected an integer of 64 bits"),
    ],
)
def test_errors(attributes: dict[str, Any], scales: Shape, message: str) -> None:
    given: dict[str, Any] = {"qtype": "per_group", **attributes}
    arrays = [np.ones((4, 6), np.float32), np.ones(scales, np.float32)]
    with pytest.raises(DynqError) as raised:
        kernels.run("DynamicQuantize", arrays, **given)
    assert str(raised.value) == (message if "64 bits" in message else f"DynamicQuantize: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 4", "the attribute group_shape cannot be read"),
        (": ints = []", "the attribute group_shape cannot be read: expected one integer or more"),
        ("= [0]", "group_shape is 0, expected sizes"),
    ],
)
def test_errors_in_a_session(text: str, message: str) -> None:
    model = parse(
        "float[N] x, float[M] s", "uint8[N] y", f'y = ort_dynq.DynamicQuantize<qtype="auto", group_shape{text}>(x, s)'
    )
    with pytest.raises(Exception, match=message):
        make_session(model, "native")
