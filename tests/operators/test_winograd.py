"""Convolutions by Winograd's algorithm equal those by the direct form of the portable kernels, bit for bit.

The direct form is compared with ONNX Runtime in test_quantized_conv.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from bench import convnets
from cases.quantized_conv import GIVEN, Conv, conv_inputs, stock_conv
from helpers import Array, assert_same, handwritten, make_session, parse, with_one_nan
from onnx import numpy_helper

import ort_dynq
from ort_dynq import kernels
from ort_dynq.operators.encodings import QuadAxis
from ort_dynq.operators.packing import pack_conv
from ort_dynq.storage import to_proto

CODES = (np.uint8, np.int8)
ZERO_POINTS = ("none", "one", "all")
# Input channels for which every weight fits (WinogradKernelSize::has_limit), with kernels of 3x3 and of 11 in a row.
SAFE_INPUTS, SAFE_ROW_INPUTS = (2**18 - 1) // 128 // 9, (2**21 - 1) // 128 // 11


# The instruction sets that have the algorithm; avx512 has the kernels of avx2.
ISAS = [name for name in ("avx2", "portable") if name in kernels.supported_isas()]


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.exhaustive] * (name != ISAS[0])) for name in ISAS])
def winograd_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set in use during the test."""
    request.node.user_properties.append(("isa", request.param))
    with kernels.use_isa(request.param):
        yield request.param


def check(isa: str, inputs: list[Array], given: dict[str, Any], operator: str = "QuantizedConv") -> Array:
    def run() -> Array:
        return with_one_nan(kernels.run(operator, inputs, **(GIVEN | given))[0])

    with kernels.use_isa("portable"), kernels.use_algorithm("winograd", "never"):
        right = run()
    with kernels.use_isa(isa), kernels.use_algorithm("winograd", "always"):
        assert_same(run(), right)
    return right


def conv(
    rng: np.random.Generator, shape: tuple[int, ...], outputs: int, kernel: tuple[int, ...] = (3, 3), **given: Any
) -> Conv:
    kernel = (1,) * (len(shape) - 2 - len(kernel)) + kernel
    return conv_inputs(rng, shape, outputs, kernel, quad_axis=QuadAxis.CHANNELS, **given)


def test_sizes_around_tiles(winograd_isa: str) -> None:
    """Every height and width up to three tiles, with pads, types, zero points, orders and terms in turn."""
    rng, distinct = np.random.default_rng(0), 0
    for turn, (height, width) in enumerate(itertools.product(range(1, 8), repeat=2)):
        pads = ((1, 1, 1, 1), (0, 1, 2, 2), (2, 0, 2, 5), (9, 2, 0, 2), (1, 2, 1, 0))[turn % 5]
        shape = (1 + turn % 3 // 2, 3 + 5 * turn % 38, height, width + 2)
        more = {"terms": 1 + turn % 7 // 6, "of_samples": (turn % 5 == 0, turn % 4 == 0)}
        given = {"pads": pads, "codes": CODES[turn // 2 % 2], "zero_points": ZERO_POINTS[turn % 3]} | more
        case = conv(rng, shape, 1 + 7 * turn % 35, **given)
        distinct += len(np.unique(check(winograd_isa, case[0], case[2] | {"scale_order": turn % 4 % 3})))
    assert distinct > 10_000


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 11])
def test_rows(winograd_isa: str, size: int) -> None:
    """Kernels of one row, of one piece or several, in tensors of rank 3 and 4."""
    rng, distinct = np.random.default_rng(5), 0
    for turn, width in enumerate((1, 2, 3, 4, 5, 8, 9, 21, 150)):
        pads = ((size // 2, size // 2), (0, size - 1), (size - 1, 3 * size))[turn % 3]
        given = {"codes": CODES[turn % 2], "zero_points": ZERO_POINTS[turn % 3], "terms": 1 + turn % 4 // 3}
        dilation = 1 if width < 8 else turn % 4 + 1
        reach = tuple(dilation * pad for pad in pads)
        shape = (1 + turn % 3, 2 * (3 + 5 * turn), width)
        case = conv(
            rng, shape, 2 * (1 + 5 * turn), (size,), pads=reach, dilations=(dilation,), group=1 + turn % 2, **given
        )
        distinct += len(np.unique(check(winograd_isa, case[0], case[2] | {"scale_order": turn % 3})))
        case = conv(rng, (1, 18, 1 + turn, width), 17, (1, size), pads=(0, pads[0], 0, pads[1]), **given)
        distinct += len(np.unique(check(winograd_isa, case[0], case[2])))
    assert distinct > 5000


@pytest.mark.parametrize("kernel", [(2, 2), (3, 4), (5, 5), (7, 2), (6, 7)], ids=str)
def test_pieces(winograd_isa: str, kernel: tuple[int, int]) -> None:
    """Kernels of several pieces, with and without weights in all of their rows and columns."""
    rng = np.random.default_rng(6)
    for turn, size in enumerate(((1, 1), (5, 9), (12, 4))):
        dilations = (1 + turn // 2, 1 + turn % 2)
        pads = tuple(d * (k - 1) for d, k in zip(dilations, kernel, strict=True)) * 2
        given = {"group": 1 + turn % 2, "codes": CODES[turn % 2], "zero_points": ZERO_POINTS[turn]}
        case = conv(rng, (2, 36, *size), 34, kernel, pads=pads, dilations=dilations, terms=1 + turn // 2, **given)
        check(winograd_isa, case[0], case[2])


@pytest.mark.parametrize("dilations", [(1, 1), (1, 3), (6, 5), (19, 1)], ids=str)
def test_dilations_groups_and_planes(winograd_isa: str, dilations: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    for turn, (group, outputs) in enumerate(itertools.product((1, 2, 3), (3, 16, 21, 40))):
        for size in ((11, 26), (37, 8)):
            pads = (*dilations, dilations[0] - turn % 2, dilations[1])
            given = {
                "group": group,
                "dilations": dilations,
                "pads": pads,
                "codes": CODES[turn % 2],
                "terms": 1 + turn % 2,
            }
            case = conv(rng, (2, group * 18, *size), group * outputs, zero_points=ZERO_POINTS[turn % 3], **given)
            check(winograd_isa, case[0], case[2])
    deep = {"dilations": (2, *dilations), "pads": (1, *dilations, 0, *dilations)}
    case = conv(rng, (1, 20, 3, 9, 12), 18, zero_points="one", **deep)
    check(winograd_isa, case[0], case[2])


def extreme_case(
    channels: int, kind: str, zero_point: int, kernel: tuple[int, ...] = (3, 3)
) -> tuple[list[Array], dict[str, int]]:
    """Codes and weights at the ends of their ranges."""
    rng = np.random.default_rng(channels)
    pads = tuple(size // 2 for size in kernel) * 2
    inputs, weights, given = conv(rng, (1, channels, 6, 7)[: 2 + len(kernel)], 17, kernel, pads=pads)
    weights, codes = weights.astype(np.int32), inputs[0]
    low = -128 if kind.startswith("low") else -127
    if kind == "random":
        weights, codes = rng.choice([low, 127], weights.shape), rng.choice([0, 255], codes.shape)
    elif kind == "checkered":
        weights[...] = np.where(np.indices(weights.shape).sum(0) % 2, low, 127)
        codes[...] = np.where(np.indices(codes.shape).sum(0) % 2, 255, 0)
    elif kind == "some":  # only one output channel exceeds the limit
        weights[...] = rng.integers(-3, 4, weights.shape)
        weights[-1], codes[...] = low, 255
    else:
        weights[...] = 127 if kind.startswith("high") else low
        codes[...] = 255 if kind.endswith("255") else 0
    inputs[0], inputs[2] = codes.astype(np.uint8), np.array(zero_point, np.uint8)
    inputs[3] = pack_conv(weights.astype(np.int8), QuadAxis.CHANNELS)[0]
    inputs[6] = weights.sum(tuple(range(1, weights.ndim)), dtype=np.int32)
    inputs[1], inputs[5] = np.array(1, np.float32), np.ones_like(inputs[5])  # every difference is seen
    inputs[7] = np.zeros_like(inputs[7])
    return inputs, given


@pytest.mark.parametrize("kind", ["low 0", "low 255", "high 0", "high 255", "random", "checkered", "some"])
def test_sums_at_their_limit(winograd_isa: str, kind: str) -> None:
    """Numbers of input channels around those with sums that fit: without the test of the sum, some are wrong."""
    for channels in (16, SAFE_INPUTS, SAFE_INPUTS + 1, 260, 520):
        for zero_point in (0, 255):
            check(winograd_isa, *extreme_case(channels, kind, zero_point))
    check(winograd_isa, *extreme_case(90, kind, 255, (5, 5)))  # the pieces together exceed it
    for channels in (SAFE_ROW_INPUTS, SAFE_ROW_INPUTS + 1, SAFE_ROW_INPUTS + 130):
        check(winograd_isa, *extreme_case(channels, kind, 255, (11,)))


def test_biases_and_scales(winograd_isa: str) -> None:
    rng = np.random.default_rng(2)
    numbers = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, 3e38, 2.0**-100, 1], np.float32)
    channel_scale, bias = (each.ravel() for each in np.meshgrid(numbers, numbers))
    for order, scale in itertools.product(range(3), [*numbers]):
        inputs, _, given = conv(rng, (2, 16, 5, 6), bias.size, pads=(1, 1, 1, 1), terms=1 + order % 2)
        inputs[1], inputs[5], inputs[7] = np.asarray(scale), channel_scale, bias
        check(winograd_isa, inputs, given | {"scale_order": order})


def test_float16_and_programs(winograd_isa: str) -> None:
    rng = np.random.default_rng(3)
    for terms, (shape, group) in itertools.product(
        (1, 2), (((1, 32, 5, 6), 1), ((3, 32, 30, 40), 1), ((1, 64, 9, 9), 2))
    ):
        inputs, _, given = conv(rng, shape, 40, pads=(1, 1, 1, 1), group=group, terms=terms)
        halves = [*inputs[:7], np.clip(inputs[7], -1e4, 1e4).astype(np.float16), inputs[8]]
        check(winograd_isa, halves, given)
        operands = [rng.standard_normal((shape[0], 40, *shape[2:]), np.float32), *[np.ones(1, np.float32)] * 2]
        program = "y = Mul(x, Sigmoid(x)); dst = Add(y, tensor1)"
        check(winograd_isa, [*inputs, *operands], given | {"program": program}, "QuantizedConvProgram")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_onnxruntime(winograd_isa: str, threads: int) -> None:
    """Several boxes, blocks of channels and samples, in a session; the result is ONNX Runtime's."""
    rng = np.random.default_rng(4)
    heads = ", ".join(
        f"{kind}[] {name}"
        for kind, name in zip(
            ("uint8", "float", "uint8", "int8", "int8", "float", "int32", "float", "int32"), "abcdefghi", strict=True
        )
    )
    for shape, outputs, terms in (((1, 64, 28, 30), 64, 1), ((6, 24, 7, 7), 300, 1), ((2, 40, 61, 13), 48, 2)):
        inputs, weights, given = conv(rng, shape, outputs, pads=(1, 1, 1, 1), zero_points="all", terms=terms)
        given = GIVEN | given
        attributes = ", ".join(f"{name} = {value}" for name, value in given.items())
        model = parse(heads, "float[] y", f"y = ort_dynq.QuantizedConv<{attributes}>({', '.join('abcdefghi')})")
        session = make_session(handwritten(model, "native"), "native", threads=threads)
        with kernels.use_algorithm("winograd", "always"):
            result = session.run(None, dict(zip("abcdefghi", inputs, strict=True)))[0]
        assert_same(with_one_nan(result), stock_conv((inputs, weights, given)))


def network(kind: str) -> onnx.ModelProto:
    if kind != "transposed":
        return convnets.NETWORKS[kind]("float", image=64, width=16)
    weights = np.random.default_rng(7).standard_normal((64, 32, 6, 6), np.float32)
    model = parse("float[1,64,11,13] x", "float[] y", "y = ConvTranspose<strides = [2, 2], pads = [2, 2, 2, 2]>(x, w)")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


@pytest.mark.parametrize("kind", ["resnet", "yolo", "transposed"])
def test_networks_keep_their_bits(winograd_isa: str, kind: str) -> None:
    """Whole networks, and phases of 3x3 of a transposed convolution, by either algorithm and by the rule."""
    model = network(kind)
    result = ort_dynq.quantize(model)
    after = result.report.after
    assert after["ort_dynq.QuantizedConv"] + after["ort_dynq.QuantizedConvProgram"] > 0
    shape = [size.dim_value or 1 for size in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(8).standard_normal(shape, np.float32)}
    for threads in (1, 2):
        session = make_session(to_proto(result.model), "native", threads=threads)
        with kernels.use_isa("portable"), kernels.use_algorithm("winograd", "never"):
            right = session.run(None, feeds)[0]
        with kernels.use_isa(winograd_isa):
            assert_same(session.run(None, feeds)[0], right)
            with kernels.use_algorithm("winograd", "always"):
                assert_same(session.run(None, feeds)[0], right)
