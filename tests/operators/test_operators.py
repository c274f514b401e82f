"""DynamicQuantize and DynamicDequantize in a session equal ONNX Runtime's own operators bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import helpers
import numpy as np
import onnx
import pytest
from helpers import (
    INNER,
    LENGTHS,
    SCALES,
    SPECIAL_SCALES,
    Array,
    Shape,
    assert_same,
    dequantize,
    every,
    expected_dequantize,
    expected_quantize,
    handwritten,
    make_session,
    native_only,
    parse,
    quantize,
    random_codes,
    random_scales,
    random_zps,
    spread,
    stock_session,
    tie_dense,
)

ZPS = (None, np.uint8, np.int8, np.int32)
CODES = (np.uint8, np.int8)


def in_thirds(kinds: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Types, each with three thirds of the shapes. One third runs by default: the next types have another one."""
    return every(3, [(*types, (first + part) % 3) for first, types in enumerate(kinds) for part in range(3)])


# DynamicQuantize: every type of zero points with every output type; 0 is the default.
quantize_types = pytest.mark.parametrize(
    ("zps_type", "output_dtype", "part"), in_thirds([*itertools.product(ZPS, (0, 2, 3))])
)
# DynamicDequantize: every type of zero points with every type of codes.
dequantize_types = pytest.mark.parametrize(
    ("zps_type", "src_type", "part"), in_thirds([*itertools.product(ZPS, CODES)])
)


def sample(
    rng: np.random.Generator,
    shape: Shape,
    scales_shape: Shape,
    zps_type: Any,
    codes: Any,
    axis: int = 0,
    block: int = 0,
) -> tuple[Array, Array, Array | None]:
    """src with many ties, scales with special values, and zero points, sometimes one for all."""
    scales = random_scales(rng, scales_shape)
    zps = random_zps(rng, scales_shape if rng.random() < 0.8 else (1,), zps_type)
    whole_zps = np.zeros(shape) if zps is None else spread(zps, shape, axis, block)
    return tie_dense(rng, spread(scales, shape, axis, block), whole_zps, codes), scales, zps


# Granularities

SMALL = (2, 3, 1, 4, 5, 3)
EMPTY: tuple[Shape, ...] = ((0,), (3, 0), (0, 3), (2, 0, 4), (2, 3, 0))
# More than a task (32768 elements), more than the parameters of a block (1024), rows joined with a tail.
LARGE: tuple[Shape, ...] = ((70001,), (3, 11001), (11001, 3), (1100, 33), (33, 1100), (7, 5, 1027), (1101, 7, 5))
TENSORS: tuple[Shape, ...] = (
    *((n,) for n in LENGTHS),
    *(SMALL[:rank] for rank in range(7)),
    *EMPTY,
    *LARGE[:2],
)
CHANNELS: tuple[tuple[Shape, int], ...] = (
    *(((n,), -(i % 2)) for i, n in enumerate(LENGTHS)),
    *(((3, n), axis) for n in LENGTHS for axis in (0, 1)),
    *(((n, inner), 0) for n in (1, 2, 33, 129) for inner in INNER),
    *(((2, n, inner), axis) for n in (1, 5, 37) for inner in INNER for axis in (1, -2)),
    *((SMALL[:rank], axis) for rank in range(1, 7) for axis in range(-rank, rank)),
    *((shape, axis) for shape in EMPTY for axis in range(len(shape))),
    *((shape, axis) for shape in LARGE for axis in range(len(shape))),
)
GROUPS: tuple[tuple[Shape, Shape], ...] = (
    *(((3, 2 * n), scales) for n in LENGTHS for scales in ((3, 2), (1, 2), (3, 2 * n))),
    *(((2 * n, 3), scales) for n in LENGTHS for scales in ((2, 3), (2, 1), (1, 3), (1, 1))),
    *(((4, 6, 2 * inner), (2, 3, 2)) for inner in INNER),
    *(((4, 6, 2 * inner), (2, 1, 2)) for inner in INNER),
    ((), ()),
    ((6,), (3,)),
    ((2, 4, 1, 6, 2, 3), (1, 2, 1, 3, 1, 3)),
    ((0,), (0,)),
    ((0, 4), (0, 2)),
    ((4, 0), (2, 0)),
    ((0, 4), (1, 4)),
    ((300, 256), (300, 2)),
    ((300, 256), (3, 256)),
    ((300, 256), (3, 4)),
)
BLOCKS: tuple[tuple[Shape, int, int], ...] = tuple(  # a third of the sizes for each shape
    (shape, axis, block)
    for i, (shape, axis) in enumerate(
        (
            *(((3, 97), axis) for axis in (1, -1)),
            *(((97, 3), axis) for axis in (0, -2)),
            ((65,), 0),
            ((2, 65, 1), 1),
            *(((2, 65, inner), -2) for inner in INNER),
            ((2, 3, 2, 5, 34), -1),
            ((130, 300), 0),
            ((130, 300), 1),
            *((shape, axis) for shape in EMPTY for axis in range(len(shape))),
        )
    )
    for block in (1, 2, 3, 16, 32, 33, 64, 65, 128)[i % 3 :: 3]
)


def scales_of_blocks(shape: Shape, axis: int, block: int) -> Shape:
    at = axis % len(shape)
    return (*shape[:at], -(-shape[at] // block), *shape[at + 1 :])


@native_only
@quantize_types
def test_quantize_per_tensor(isa: str, backend: str, zps_type: Any, output_dtype: int, part: int) -> None:
    rng = np.random.default_rng(0)
    given = {"output_dtype": output_dtype} if output_dtype else {}
    for shape in TENSORS[part::3]:
        for scale in (*SCALES, *SPECIAL_SCALES) if shape == (129,) else rng.choice(SCALES, 2):
            scales = np.full(() if rng.random() < 0.5 else (1,), scale)
            zps = random_zps(rng, () if rng.random() < 0.5 else (1,), zps_type)
            codes = helpers.code_type(zps, output_dtype)
            if shape == () and codes != helpers.code_type(zps):
                continue  # test_scalar_of_another_type
            whole_zps = np.zeros(shape) if zps is None else spread(zps, shape)
            src = tie_dense(rng, spread(scales, shape), whole_zps, codes)
            assert_same(quantize(backend, src, scales, zps, **given), expected_quantize(src, scales, zps, codes), src)


@native_only
@dequantize_types
def test_dequantize_per_tensor(isa: str, backend: str, zps_type: Any, src_type: Any, part: int) -> None:
    rng = np.random.default_rng(1)
    for shape in TENSORS[part::3]:
        for scale in (*SCALES, *SPECIAL_SCALES) if shape == (129,) else rng.choice(SCALES, 2):
            scales = np.full(() if rng.random() < 0.5 else (1,), scale)
            zps = random_zps(rng, () if rng.random() < 0.5 else (1,), zps_type)
            src = random_codes(rng, shape, src_type)
            assert_same(dequantize(backend, src, scales, zps), expected_dequantize(src, scales, zps), src)


@native_only
@quantize_types
def test_quantize_per_channel(isa: str, backend: str, zps_type: Any, output_dtype: int, part: int) -> None:
    rng = np.random.default_rng(2)
    codes = helpers.code_type(random_zps(rng, (), zps_type), output_dtype)
    given: dict[str, Any] = {"output_dtype": output_dtype} if output_dtype else {}
    for shape, axis in CHANNELS[part::3]:
        src, scales, zps = sample(rng, shape, (shape[axis],), zps_type, codes, axis)
        actual = quantize(backend, src, scales, zps, qtype="per_channel", axis=axis, **given)
        assert_same(actual, expected_quantize(src, scales, zps, codes, axis=axis), src)


@native_only
@dequantize_types
def test_dequantize_per_channel(isa: str, backend: str, zps_type: Any, src_type: Any, part: int) -> None:
    rng = np.random.default_rng(3)
    for shape, axis in CHANNELS[part::3]:
        _, scales, zps = sample(rng, shape, (shape[axis],), zps_type, src_type, axis)
        src = random_codes(rng, shape, src_type)
        actual = dequantize(backend, src, scales, zps, qtype="per_channel", axis=axis)
        assert_same(actual, expected_dequantize(src, scales, zps, axis=axis), src)


@native_only
@quantize_types
def test_quantize_per_group(isa: str, backend: str, zps_type: Any, output_dtype: int, part: int) -> None:
    rng = np.random.default_rng(4)
    codes = helpers.code_type(random_zps(rng, (), zps_type), output_dtype)
    given: dict[str, Any] = {"output_dtype": output_dtype} if output_dtype else {}
    for shape, groups in GROUPS[part::3]:
        if shape == () and codes != helpers.code_type(random_zps(rng, (), zps_type)):
            continue  # test_scalar_of_another_type
        src, scales, zps = sample(rng, shape, groups, zps_type, codes)
        actual = quantize(backend, src, scales, zps, qtype="per_group", **given)
        assert_same(actual, expected_quantize(src, scales, zps, codes, groups=True), src)


@native_only
@dequantize_types
def test_dequantize_per_group(isa: str, backend: str, zps_type: Any, src_type: Any, part: int) -> None:
    rng = np.random.default_rng(5)
    for shape, groups in GROUPS[part::3]:
        _, scales, zps = sample(rng, shape, groups, zps_type, src_type)
        src = random_codes(rng, shape, src_type)
        actual = dequantize(backend, src, scales, zps, qtype="per_group")
        assert_same(actual, expected_dequantize(src, scales, zps, groups=True), src)


@native_only
@quantize_types
def test_quantize_blocks(isa: str, backend: str, zps_type: Any, output_dtype: int, part: int) -> None:
    rng = np.random.default_rng(6)
    codes = helpers.code_type(random_zps(rng, (), zps_type), output_dtype)
    given: dict[str, Any] = {"output_dtype": output_dtype} if output_dtype else {}
    for shape, axis, block in BLOCKS[part::3]:
        src, scales, zps = sample(rng, shape, scales_of_blocks(shape, axis, block), zps_type, codes, axis, block)
        actual = quantize(backend, src, scales, zps, qtype="per_group", axis=axis, block_size=block, **given)
        assert_same(actual, expected_quantize(src, scales, zps, codes, axis=axis, block=block), src)


@native_only
@dequantize_types
def test_dequantize_blocks(isa: str, backend: str, zps_type: Any, src_type: Any, part: int) -> None:
    rng = np.random.default_rng(7)
    for shape, axis, block in BLOCKS[part::3]:
        groups = scales_of_blocks(shape, axis, block)
        _, scales, zps = sample(rng, shape, groups, zps_type, src_type, axis, block)
        src = random_codes(rng, shape, src_type)
        actual = dequantize(backend, src, scales, zps, qtype="per_group", axis=axis, block_size=block)
        assert_same(actual, expected_dequantize(src, scales, zps, axis=axis, block=block), src)


@pytest.mark.parametrize("codes", CODES)
def test_auto_depends_on_the_shape_of_scales_as_in_onnx(isa: str, backend: str, codes: Any) -> None:
    """One session for each operator runs all: one element with any axis, one for each channel, blocks."""
    rng = np.random.default_rng(8)
    for shape, scales_shape, axis, block in (
        ((4, 33), (), 7, 0),
        ((4, 33), (1,), 7, 0),
        ((4, 33), (33,), -1, 0),
        ((4, 33), (4,), 0, 0),
        ((4, 1), (1,), 1, 0),
        ((), (), 1, 0),
        ((4, 33), (4, 3), 1, 11),
        ((4, 33), (2, 33), -2, 3),
    ):
        per_tensor = axis == 7 or shape == ()
        at = 0 if per_tensor else axis
        src, scales, zps = sample(rng, shape, scales_shape, codes, codes, at, block)
        given: dict[str, Any] = {"qtype": "auto", "axis": axis, "block_size": block}
        assert_same(
            quantize(backend, src, scales, zps, **given),
            expected_quantize(src, scales, zps, codes, axis=at, block=block),
            src,
        )
        src = random_codes(rng, shape, codes)
        assert_same(
            dequantize(backend, src, scales, zps, **given),
            expected_dequantize(src, scales, zps, axis=at, block=block),
            src,
        )


@native_only
@pytest.mark.parametrize("shape", [*LARGE, (513, 1024)], ids=str)
def test_threads_change_nothing(isa: str, backend: str, shape: Shape) -> None:
    rng = np.random.default_rng(9)
    for axis in range(len(shape)):
        src, scales, zps = sample(rng, shape, (shape[axis],), np.int8, np.int8, axis)
        assert zps is not None
        given: dict[str, Any] = {"qtype": "per_channel", "axis": axis, "threads": 3}
        codes = quantize(backend, src, scales, zps, **given)
        assert_same(codes, expected_quantize(src, scales, zps, np.int8, axis=axis), src)
        floats = dequantize(backend, codes, scales, zps, **given)
        assert_same(floats, expected_dequantize(codes, scales, zps, axis=axis), codes)


# Soundness of the tests


def test_the_data_detects_wrong_rounding() -> None:
    """At least a tenth of the data are exact ties, and each common mistake changes codes."""
    rng = np.random.default_rng(0)
    for scale, zps in ((0.25, 3), (0.1, 3), (0.0037, -7)):
        scales = np.full(4096, scale, np.float32)
        src = tie_dense(rng, scales, np.full(4096, zps), np.int8)
        quotients = src[np.abs(src) < 1e6] / scales[0]
        assert np.mean(np.abs(quotients - np.trunc(quotients)) == 0.5) > 0.1
        assert np.isin(helpers.SPECIALS[1:], src).all()
        assert np.isnan(src).any()
        right = helpers.numpy_quantize(src, scales, np.full(4096, zps), np.int8)

        def codes(values: Array) -> Array:
            with np.errstate(all="ignore"):
                return np.where(np.isnan(values), -128, np.clip(values, -128, 127)).astype(np.int8)

        with np.errstate(all="ignore"):
            mistakes = {
                "half away from zero": np.trunc(src / scales + np.copysign(np.float32(0.5), src)) + np.float32(zps),
                "half up": np.floor(src / scales + np.float32(0.5)) + np.float32(zps),
                "zero point first": np.rint(src / scales + np.float32(zps)),
                "truncation": np.trunc(src / scales) + np.float32(zps),
                "reciprocal": np.rint(src * (np.float32(1) / scales)) + np.float32(zps),
                "double": np.rint(src.astype(np.float64) / scales) + zps,
            }
        for mistake, values in mistakes.items():
            exact = scale == 0.25 and mistake in ("reciprocal", "double")  # powers of two forgive these
            assert exact or np.any(codes(values) != right), mistake


def test_numpy_agrees_with_onnxruntime() -> None:
    """The NumPy comparison for cases that ONNX Runtime does not support is right on the supported cases."""
    rng = np.random.default_rng(10)
    for codes, (shape, axis) in itertools.product(CODES, CHANNELS):
        src, scales, zps = sample(rng, shape, (shape[axis],), codes, codes, axis)
        assert zps is not None
        whole = spread(scales, shape, axis), spread(zps, shape, axis)
        quantized = expected_quantize(src, scales, zps, codes, axis=axis)
        assert_same(helpers.numpy_quantize(src, *whole, codes), quantized, src)
        assert_same(
            helpers.numpy_dequantize(quantized, *whole),
            expected_dequantize(quantized, scales, zps, axis=axis),
            quantized,
        )


# Types and shapes of outputs


def output_of(model: onnx.ModelProto, backend: str) -> tuple[str, list[Any]]:
    """The type and shape that the session infers for the first output, which the model does not declare."""
    model.graph.output[0].ClearField("type")
    output = make_session(handwritten(model, backend), backend).get_outputs()[0]
    return output.type, output.shape


@pytest.mark.parametrize(
    ("op", "src", "zps", "attributes", "type_"),
    [
        ("DynamicQuantize", "float", None, "", "tensor(uint8)"),
        ("DynamicQuantize", "float", None, "<output_dtype = 2>", "tensor(uint8)"),
        ("DynamicQuantize", "float", None, "<output_dtype = 3>", "tensor(int8)"),
        *(
            ("DynamicQuantize", "float", zps, attributes, type_ or default)
            for zps, default in (("uint8", "tensor(uint8)"), ("int8", "tensor(int8)"), ("int32", "tensor(uint8)"))
            for attributes, type_ in (
                ("", ""),
                ("<output_dtype = 0>", ""),
                ("<output_dtype = 2>", "tensor(uint8)"),
                ("<output_dtype = 3>", "tensor(int8)"),
            )
        ),
        *(
            ("DynamicDequantize", src, zps, "", "tensor(float)")
            for src in ("uint8", "int8")
            for zps in (None, "uint8", "int8", "int32")
        ),
    ],
)
def test_output_is_inferred(backend: str, op: str, src: str, zps: str | None, attributes: str, type_: str) -> None:
    """The type is inferred by both backends; the shape only by the native one."""
    for shape, expected in (("[2, 3]", [2, 3]), ("[batch, 3, length]", ["batch", 3, "length"]), ("[0]", [0])):
        more, names = (f", {zps} zps", ", zps") if zps else ("", "")
        body = f"dst = ort_dynq.{op}{attributes}(src, scales{names})"
        model = parse(f"{src}{shape} src, float scales{more}", "float dst", body)
        assert output_of(model, backend) == (type_, expected if backend == "native" else [])


def test_unknown_rank_loads_and_runs(backend: str) -> None:
    """If the rank of src is unknown, no output shape is inferred, so that consumers of any rank load."""
    body = """codes = ort_dynq.DynamicQuantize(src, scales)
              floats = ort_dynq.DynamicDequantize(codes, scales)
              dst = Transpose<perm = [1, 0]>(floats)"""
    model = parse("float[] src, float[] scales", "float[] dst", body)
    for optimize in (False, True):
        session = make_session(handwritten(model, backend), backend, optimize=optimize)
        dst = session.run(None, {"src": np.float32([[1, 2, 3]]), "scales": np.float32([1])})[0]
        assert_same(dst, np.float32([[1], [2], [3]]))


def test_dimensions_without_names_load_and_run(backend: str) -> None:
    """An unknown dimension without a name must not become -1 for consumers."""
    body = """codes = ort_dynq.DynamicQuantize(src, scales)
              floats = ort_dynq.DynamicDequantize(codes, scales)
              dst = MatMul(floats, weights)"""
    model = parse("float[n, k] src, float[] scales, float[3, 2] weights", "float[n, m] dst", body)
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.Clear()
    feeds = {"src": np.float32([[1, 2, 3]]), "scales": np.float32([1]), "weights": np.ones((3, 2), np.float32)}
    for optimize in (False, True):
        session = make_session(handwritten(model, backend), backend, optimize=optimize)
        assert_same(session.run(None, feeds)[0], np.float32([[6, 6]]))


@pytest.mark.parametrize("shape", ["", "[]"], ids=["scalar", "unknown rank"])
@pytest.mark.parametrize(("zps", "output_dtype"), [("", 3), (", uint8 zps", 3), (", int8 zps", 2), (", int32 zps", 3)])
def test_scalar_of_another_type(backend: str, shape: str, zps: str, output_dtype: int) -> None:
    """output_dtype is not the type of zps."""
    output = {2: "uint8", 3: "int8"}[output_dtype]
    names = "(src, scales, zps)" if zps else "(src, scales)"
    body = f"dst = ort_dynq.DynamicQuantize<output_dtype = {output_dtype}>{names}"
    model = parse(f"float{shape} src, float[] scales{zps}", f"{output}{shape} dst", body)
    session = make_session(handwritten(model, backend), backend)
    feeds = {"src": np.array(3, np.float32), "scales": np.array(1, np.float32)}
    if zps:
        feeds["zps"] = np.array(0, zps.split()[1])
    assert_same(session.run(None, feeds)[0], np.array(3, output))


@native_only
def test_inferred_shape_reaches_consumers(backend: str) -> None:
    """The symbolic dimensions reach a consumer: its output shape depends on the operator's."""
    body = """codes = ort_dynq.DynamicQuantize(src, scales)
              floats = ort_dynq.DynamicDequantize(codes, scales)
              dst = Transpose<perm = [1, 0]>(floats)"""
    model = parse("float[batch, 5] src, float scales", "float dst", body)
    assert output_of(model, backend) == ("tensor(float)", [5, "batch"])


def test_operators_are_unknown_without_the_plugin() -> None:
    """Otherwise these tests could run other operators of the same names."""
    with pytest.raises(Exception, match="ort_dynq"):
        stock_session(
            parse("float[] src, float[] scales", "uint8[] dst", "dst = ort_dynq.DynamicQuantize(src, scales)")
        )


def test_operators_run_inside_control_flow(isa: str, backend: str) -> None:
    body = """dst = If<
        then_branch = yes () => (uint8[] a) { a = ort_dynq.DynamicQuantize(src, scales) },
        else_branch = no () => (uint8[] b) { b = ort_dynq.DynamicQuantize<arithmetic = "onednn">(src, scales) }
    >(flag)"""
    model = parse("bool flag, float[] src, float[] scales", "uint8[] dst", body)
    session = make_session(handwritten(model, backend), backend)
    scales = np.float32([0.1])
    src = tie_dense(np.random.default_rng(0), np.full(4096, scales[0]), np.zeros(4096), np.uint8)
    then, other = (
        session.run(None, {"flag": np.array(flag), "src": src, "scales": scales})[0] for flag in (True, False)
    )
    assert_same(then, expected_quantize(src, scales, None, np.uint8), src)
    assert np.any(then != other)
