"""QuantizedConv in a session equals, bit for bit, the standard nodes that it replaces, on weights before packing.

More than 450 lines: all cases share one comparison with these nodes.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cases.quantized_conv import GIVEN, NAMES, Conv, conv_inputs, random_conv, stock_conv
from helpers import (
    SPECIAL_SCALES,
    SPECIALS,
    Array,
    Shape,
    assert_same,
    handwritten,
    make_session,
    native_only,
    parse,
    with_one_nan,
)

from ort_dynq import DynqError, kernels
from ort_dynq.operators.encodings import QuadAxis
from ort_dynq.operators.packing import pack, pack_conv, packed_conv_shape, unpack_conv

CODES = (np.uint8, np.int8)


@functools.cache
def session(backend: str, codes: str, threads: int, attributes: tuple[tuple[str, int], ...]) -> ort.InferenceSession:
    """A model of one QuantizedConv; all ranks are unknown."""
    given = ", ".join(f"{name} = {value}" for name, value in attributes)
    types = (codes, "float", codes, "int8", "int8", "float", "int32", "float", "int32")
    heads = ", ".join(f"{type_}[] {name}" for type_, name in zip(types, NAMES, strict=True))
    model = parse(heads, "float[] dst", f"dst = ort_dynq.QuantizedConv<{given}>({', '.join(NAMES)})")
    return make_session(handwritten(model, backend), backend, threads=threads)


def run(backend: str, inputs: list[Array], given: dict[str, int], threads: int = 1) -> Array:
    opened = session(backend, inputs[0].dtype.name, threads, tuple((GIVEN | given).items()))
    result: Array = opened.run(None, dict(zip(NAMES, inputs, strict=True)))[0]
    return with_one_nan(result)


def check(backend: str, case: Conv, threads: int = 1, **given: int) -> Array:
    inputs, weights, its_own = case
    given = its_own | given
    right = stock_conv((inputs, weights, given))
    assert_same(run(backend, inputs, given, threads), right)
    return right


@functools.cache
def random_cases() -> list[tuple[Conv, Array]]:
    rng = np.random.default_rng(0)
    return [(case, stock_conv(case)) for case in (random_conv(rng, is_wide=i % 8 == 0) for i in range(120))]


def test_any_geometry(product_isa: str) -> None:
    """Ranks, strides, dilations, pads, auto_pad, groups, zero points, terms and both layouts, at random."""
    distinct = 0
    for (inputs, _, given), right in random_cases():
        assert_same(run("native", inputs, given), right)
        distinct += len(np.unique(right))
    assert distinct > 6_000


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5,)], ids=str)
def test_any_number_of_channels(product_isa: str, kernel: Shape) -> None:
    """Every number of output channels up to three blocks, with numbers of input channels and positions in turn."""
    rng = np.random.default_rng(1)
    for outputs in range(1, 49):
        channels = 1 + 7 * outputs % 37
        width = 1 + 5 * outputs % 41 + max(kernel) - 1
        shape = (1 + outputs % 2, channels, *(3,) * (len(kernel) - 1), width)
        given: dict[str, Any] = {"quad_axis": outputs // 2 % 2, "of_samples": (outputs % 4 == 1, outputs % 4 == 3)}
        case = conv_inputs(rng, shape, outputs, kernel, codes=CODES[outputs % 2], **given)
        check("native", case, scale_order=outputs % 3)


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (2, 7), (3,), (3, 3, 3), (1, 1)], ids=str)
def test_depthwise(product_isa: str, kernel: Shape) -> None:
    """One and two output channels for each channel, and every width up to two vectors."""
    rng = np.random.default_rng(2)
    for width in range(1, 36):
        rank, channels = len(kernel), 1 + 11 * width % 35
        case = conv_inputs(
            rng,
            (1 + width % 2, channels, *(4,) * (rank - 1), width),
            channels * (1 + width % 5 // 4),
            kernel,
            group=channels,
            strides=(1 + width % 3 // 2,) * rank,
            dilations=(1 + width % 7 // 6,) * rank if rank < 3 else (),
            pads=tuple(length - 1 for length in kernel) * 2,
            codes=CODES[width // 2 % 2],
            zero_points=("none", "one", "all")[width % 3],
            of_samples=(width % 4 == 0, width % 8 < 6),
        )
        check("native", case, scale_order=width % 3)


@pytest.mark.parametrize("kernel", [(1,), (3,), (3, 3), (2, 1, 2)], ids=str)
def test_many_samples_of_a_few_positions(product_isa: str, kernel: Shape) -> None:
    """Samples that share vectors, up to several tiles of them, on several threads."""
    rng, rank = np.random.default_rng(7), len(kernel)
    for samples, size in itertools.product((2, 3, 18, 17, 400), range(1, 6)):
        zero_points, turn = ("none", "one", "all")[size % 3], samples + size
        case = conv_inputs(
            rng,
            (samples, 6, *kernel[:-1], size + kernel[-1] - 1),
            (6, 12, 36)[samples % 3],
            kernel,
            group=(1, 2, 6)[turn % 3],
            strides=(1,) * (rank - 1) + (1 + turn % 2,),
            pads=(*(0,) * (rank - 1), turn % 4 // 2) * 2,
            codes=CODES[turn % 2],
            zero_points=zero_points,
            quad_axis=turn // 3 % 2,
            terms=2 - samples % 2,
            of_samples=(size == 4, size == 4),
        )
        check("native", case, threads=1 + size % 2, scale_order=turn % 3)


@pytest.mark.parametrize(("channels", "kernel"), [(70, (1,)), (24, (3,)), (3, (24,)), (8, (3, 3))], ids=str)
def test_samples_of_a_few_positions_with_their_own_scales(product_isa: str, channels: int, kernel: Shape) -> None:
    """They share no vectors; long sums become rows of a matrix product, of several samples."""
    rng, rank = np.random.default_rng(10), len(kernel)
    for samples, size, outputs in ((2, 1, 16), (3, 4, 150), (50, 5, 17), (220, 1, 40)):
        case = conv_inputs(
            rng,
            (samples, channels, *(2,) * (rank - 1), size + kernel[-1] - 1),
            outputs,
            kernel,
            strides=(1,) * (rank - 1) + (1 + samples % 2,),
            pads=(*(1,) * (rank - 1), samples // 2 % 2) * 2,
            codes=CODES[size % 2],
            zero_points=("none", "one", "all")[samples % 3],
            quad_axis=int(len(kernel) == 1 and kernel[0] > 3),
            terms=1 + outputs % 2,
            of_samples=(True, size != 4),
        )
        check("native", case, threads=1 + size % 2, scale_order=samples % 3)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "quad_axis"),
    [
        ((1, 510, 301), (1,), 1, 0),  # several tiles of a row
        ((2, 58, 33, 35), (3, 3), 2, 0),  # several tiles of rows
        ((3, 3, 50, 49), (16, 16), 16, 1),
        ((1, 29, 5, 6, 40), (2, 3, 3), 2, 0),
        ((5, 516, 3, 3), (1, 1), 1, 0),  # tiles of several samples
    ],
    ids=str,
)
def test_long_sums_of_many_positions(
    product_isa: str, shape: Shape, kernel: Shape, stride: int, quad_axis: int
) -> None:
    """Sums of 128 quads or more become rows of a matrix product."""
    rng, rank = np.random.default_rng(11), len(kernel)
    for turn, outputs in enumerate((16, 17, 150)):
        case = conv_inputs(
            rng,
            shape,
            outputs,
            kernel,
            strides=(stride,) * rank,
            pads=(turn % 2,) * (2 * rank),
            codes=CODES[turn % 2],
            zero_points=("none", "one", "all")[turn],
            quad_axis=quad_axis,
            terms=1 + outputs % 2,
            of_samples=(turn == 1, turn == 2),
        )
        check("native", case, threads=1 + outputs % 2, scale_order=turn)


@pytest.mark.parametrize("kernel", [(33,), (100,), (2, 32)], ids=str)
def test_wide_kernels_with_strides(product_isa: str, kernel: Shape) -> None:
    rng, rank = np.random.default_rng(8), len(kernel)
    for stride, pad, group, codes in itertools.product((3, 20, 40), (0, 1, 30), (1, 2), CODES):
        case = conv_inputs(
            rng,
            (3, 2, *kernel[:-1], 2 * kernel[-1] + 7),
            18,
            kernel,
            group=group,
            strides=(1,) * (rank - 1) + (stride,),
            pads=(pad % 2,) * (rank - 1) + (pad,) + (0,) * (rank - 1) + (pad // 2,),
            codes=codes,
            zero_points=("none", "one", "all")[stride % 3],
            quad_axis=1,
        )
        check("native", case)


@pytest.mark.parametrize("zero_points", ["none", "one", "all"])
def test_weight_zero_points(product_isa: str, zero_points: str) -> None:
    rng = np.random.default_rng(3)
    for group, channels, quad_axis, codes in itertools.product((1, 2, 6), (6, 18), range(2), CODES):
        given = {"group": group, "codes": codes, "zero_points": zero_points, "quad_axis": quad_axis}
        check("native", conv_inputs(rng, (2, channels, 6, 7), 36, (3, 2), pads=(1, 0, 2, 1), **given))


@pytest.mark.parametrize("zero_point", [0, 255, -128, 127, 77])
def test_padding_has_the_value_of_the_zero_point(product_isa: str, zero_point: int) -> None:
    """Pads that differ, one of them larger than the kernel, and a kernel that is larger than src."""
    rng = np.random.default_rng(4)
    codes = np.int8 if zero_point in (-128, 127) else np.uint8
    for shape, kernel, pads in (
        ((1, 5, 4, 4), (3, 3), (0, 1, 2, 5)),
        ((1, 5, 2, 2), (5, 5), (2, 2, 2, 2)),
        ((2, 3, 0, 4), (2, 2), (1, 0, 2, 0)),
        ((1, 3, 0), (2,), (0, 2)),
    ):
        for group, zero_points in ((1, "none"), (1, "all"), (shape[1], "one")):
            case = conv_inputs(
                rng, shape, 2 * shape[1], kernel, pads=pads, group=group, codes=codes, zero_points=zero_points
            )
            case[0][2] = np.array(zero_point, codes)
            if 0 in shape:  # every element is padding, which adds 0
                bias = case[0][7].reshape(-1, *(1 for _ in kernel))
                case[0][1], case[0][5] = np.array(1, np.float32), np.ones_like(case[0][5])
                result = run("native", case[0], case[2])
                assert result.size > 0
                assert_same(result, with_one_nan(np.broadcast_to(np.float32(0) + bias, result.shape)))
            else:
                check("native", case)


@native_only
@pytest.mark.parametrize("auto_pad", [1, 2])
def test_pads_that_are_computed(backend: str, auto_pad: int) -> None:
    rng = np.random.default_rng(5)
    for length, stride, dilation, kernel in itertools.product(range(1, 9), (1, 2, 3), (1, 2), (1, 2, 3, 4)):
        given: dict[str, Any] = {"strides": (stride, 1), "dilations": (dilation, 1), "pads": (9, 9, 9, 9)}
        case = conv_inputs(rng, (1, 3, length, 5), 2, (kernel, 2), **given)
        assert check(backend, case, auto_pad=auto_pad).shape == (1, 2, -(-length // stride), 5)


@pytest.mark.parametrize("shape", [(2, 6, 9), (2, 6, 5, 7), (2, 6, 4, 3, 5), (0, 6, 5, 5), (1, 6, 1, 1)], ids=str)
def test_both_backends_and_every_order(backend: str, shape: Shape) -> None:
    rng, rank = np.random.default_rng(6), len(shape) - 2
    for codes, group, order in itertools.product(CODES, (1, 3, 6), range(3)):
        case = conv_inputs(rng, shape, 12, (3,) * rank, pads=(1,) * (2 * rank), group=group, codes=codes)
        check(backend, case, scale_order=order)
        case[0][1], case[0][2] = case[0][1].reshape(1), case[0][2].reshape(1)
        check(backend, case, scale_order=order)


@pytest.mark.parametrize("order", range(3))
def test_special_scales_and_biases(product_isa: str, order: int) -> None:
    """Every special scale with every special scale of a channel, and every special bias."""
    rng = np.random.default_rng(order)
    numbers = np.concatenate([SPECIAL_SCALES, np.float32([1, -0.1, 2.0**-100, 2.0**100])])
    channel_scale, bias = (each.ravel() for each in np.meshgrid(numbers, np.append(SPECIALS, np.float32(-7.5))))
    for group in (1, bias.size):
        inputs, weights, given = conv_inputs(rng, (1, bias.size, 2, 9), bias.size, (1, 3), group=group)
        inputs[5], inputs[7] = channel_scale, bias
        distinct = 0
        for scale in numbers:
            inputs[1] = np.asarray(scale)
            distinct += len(np.unique(check("native", (inputs, weights, given), scale_order=order)))
        assert distinct > 1000


def test_a_bias_of_minus_zero_changes_nothing(product_isa: str) -> None:
    for group, bias in itertools.product((1, 2), (-0.0, 0.0)):
        case = conv_inputs(np.random.default_rng(0), (1, 2, 1, 3), 2, (1, 1), group=group)
        case[0][:3] = [np.zeros((1, 2, 1, 3), np.uint8), np.array(-1, np.float32), np.array(0, np.uint8)]
        case[0][5], case[0][7] = np.ones(2, np.float32), np.full(2, bias, np.float32)
        assert_same(check("native", case), np.full((1, 2, 1, 3), bias, np.float32))


def test_a_sample_does_not_depend_on_the_others(product_isa: str) -> None:
    """Each sample has a scale and a zero point, which pads: alone, it has the same result."""
    rng = np.random.default_rng(9)
    for kernel, group, terms in itertools.product(((1, 1), (3, 3)), (1, 12), (1, 2)):
        given: dict[str, Any] = {"pads": (1,) * 4, "group": group, "terms": terms, "of_samples": (True, True)}
        inputs, _, attributes = conv_inputs(rng, (8, 12, 5, 4), 24, kernel, **given)
        together = run("native", inputs, attributes)
        for i, result in enumerate(together):
            alone = [*(each[i : i + 1] for each in inputs[:3]), *inputs[3:]]
            assert_same(run("native", alone, attributes)[0], result)


@pytest.mark.parametrize("channels", [1, 257])
def test_the_longest_sums(product_isa: str, channels: int) -> None:
    """Sums just below 2^31: all codes and weights are extreme. One more product is an error."""
    for longest, zero_point, weight in ((65_793, 0, -128), (33_025, 127, -128)):
        for width in (longest // channels, longest // channels + 1):
            inputs, _, given = conv_inputs(np.random.default_rng(0), (1, channels, 1, width), 3, (1, width))
            weights = np.full((3, channels, 1, width), weight, np.int8)
            inputs[0], inputs[2] = np.full((1, channels, 1, width), 255, np.uint8), np.array(0, np.uint8)
            inputs[3] = pack_conv(weights, QuadAxis(given["quad_axis"]))[0]
            inputs[4] = np.full(3 if zero_point else 1, zero_point, np.int8)
            inputs[6] = np.full(3, (weight - zero_point) * channels * width, np.int32)
            if channels * width > longest:
                text = f"sums of {channels}x1x{width} products may overflow int32, expected at most {longest}"
                with pytest.raises(Exception, match=text):
                    run("native", inputs, given)
            else:
                check("native", (inputs, weights, given))


# src, outputs, kernel, stride and group.
LARGE: tuple[tuple[Shape, int, Shape, int, int], ...] = (
    ((1, 64, 28, 28), 64, (3, 3), 1, 1),
    ((2, 48, 14, 15), 130, (1, 1), 1, 1),
    ((1, 3, 65, 67), 24, (7, 7), 2, 1),
    ((1, 40, 30, 31), 40, (3, 3), 2, 40),
    ((3, 32, 29, 28), 32, (5, 5), 1, 32),
    ((1, 64, 300), 72, (3,), 1, 1),
    ((1, 32, 20, 20), 64, (3, 3), 1, 4),
    ((1, 8, 9, 10, 11), 20, (3, 3, 3), 1, 1),
    ((1, 70, 1, 1), 1000, (1, 1), 1, 1),
    ((1, 12, 27, 41), 20, (1, 1), 1, 1),
)


@pytest.mark.parametrize(("shape", "outputs", "kernel", "stride", "group"), LARGE, ids=str)
def test_tasks_and_threads_change_nothing(
    product_isa: str, shape: Shape, outputs: int, kernel: Shape, stride: int, group: int
) -> None:
    rng, rank = np.random.default_rng(7), len(kernel)
    pads = tuple(length // 2 for length in kernel) * 2
    for terms, codes, zero_points in ((1, np.uint8, "none"), (1, np.int8, "all"), (2, np.int8, "none")):
        given: dict[str, Any] = {"strides": (stride,) * rank, "codes": codes, "zero_points": zero_points}
        given |= {"terms": terms, "of_samples": (terms == 2, zero_points == "all")}
        inputs, weights, attributes = conv_inputs(rng, shape, outputs, kernel, group=group, pads=pads, **given)
        right = stock_conv((inputs, weights, attributes))
        for threads in (1, 2, 3):
            assert_same(run("native", inputs, attributes, threads), right)


@pytest.mark.parametrize("order", range(3))
def test_special_biases_of_two_terms(product_isa: str, order: int) -> None:
    """The bias is added to the sum of the terms; special scales make terms that are zeros, infinite and NaN."""
    rng = np.random.default_rng(order)
    for scale in np.append(SPECIAL_SCALES, np.float32(1)):
        inputs, weights, given = conv_inputs(rng, (2, 3, 5, 6), SPECIALS.size, (3, 3), codes=np.int8, terms=2)
        inputs[1], inputs[7] = np.asarray(scale), SPECIALS
        check("native", (inputs, weights, given), scale_order=order)


def test_orders_differ() -> None:
    """If they were equal, no test could detect a wrong order."""
    inputs, weights, given = conv_inputs(np.random.default_rng(8), (1, 9, 6, 6), 70, (3, 3))
    results = [stock_conv((inputs, weights, given | {"scale_order": order})) for order in range(3)]
    for one, other in itertools.combinations(results, 2):
        assert np.mean(one != other) > 0.02


def test_packing() -> None:
    """Element [m, c, k...] is where the documentation says; padding is 0."""
    rng = np.random.default_rng(0)
    for shape in (
        (1, 1, 3),
        (17, 5, 1),
        (3, 4, 2, 2),
        (16, 2, 3, 7),
        (18, 1, 5, 5),
        (2, 3, 2, 3, 1),
        (0, 2, 3),
        (5, 6, 1),
    ):
        codes = rng.integers(-128, 128, shape).astype(np.int8)
        _, channels, *kernel = shape
        for axis in QuadAxis:
            packed, its_axis = pack_conv(codes, axis)
            assert (its_axis, packed.shape) == (axis, packed_conv_shape(shape, axis))
            assert_same(unpack_conv(packed, axis, shape), codes)
            for m, c, *at in itertools.product(*map(range, shape)):
                position = 0
                for index, length in zip(at, kernel, strict=True):
                    position = position * length + index
                if axis == QuadAxis.CHANNELS:
                    k = position * (-(-channels // 4) * 4) + c
                else:
                    lines = c * math.prod(kernel[:-1]) + position // kernel[-1]
                    k = lines * (-(-kernel[-1] // 4) * 4) + at[-1]
                assert packed[m // 16, k // 4, m % 16, k % 4] == codes[(m, c, *at)]
            assert np.count_nonzero(packed) == np.count_nonzero(codes)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((8, 64, 3, 3), QuadAxis.CHANNELS),
        ((8, 3, 7, 7), QuadAxis.WIDTH),
        ((8, 1, 3, 3), QuadAxis.WIDTH),
        ((8, 1, 1, 1), QuadAxis.CHANNELS),
        ((8, 4, 4), QuadAxis.CHANNELS),
        ((8, 3, 4), QuadAxis.WIDTH),
    ],
)
def test_the_layout_with_less_padding_is_chosen(shape: Shape, axis: QuadAxis) -> None:
    packed, chosen = pack_conv(np.ones(shape, np.int8))
    assert chosen == axis
    assert packed.shape[1] == min(packed_conv_shape(shape, each)[1] for each in QuadAxis)


def test_matrices_are_packed_as_in_products() -> None:
    codes = np.random.default_rng(0).integers(-128, 128, (20, 12, 1, 1)).astype(np.int8)
    assert_same(pack_conv(codes)[0], pack(codes.reshape(20, 12).T))


def geometry(*changes: tuple[int, int, int]) -> Array:
    result = np.array([[3, 2], [1, 1], [1, 1], [1, 0], [1, 0]], np.int32)
    for row, column, value in changes:
        result[row, column] = value
    return result


def text_of(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def check_error(backend: str, inputs: list[Array], given: dict[str, int], text: str) -> None:
    """A session and the kernels alone give the same error."""
    with pytest.raises(Exception, match=re.escape(f"QuantizedConv: {text}")):
        run(backend, inputs, given)
    with pytest.raises(DynqError, match=re.escape(f"QuantizedConv: {text}")):
        kernels.run("QuantizedConv", inputs, **given)


SRC: Shape = (2, 6, 5, 4)
WRONG: tuple[tuple[int, Shape | Array, str], ...] = (
    *(
        (0, shape, f"src has shape {text_of(shape)}, expected rank 3, 4 or 5: images, channels, then space")
        for shape in ((), (6,), (2, 6), (1, 6, 1, 1, 1, 1))
    ),
    (0, (2, 6, 5), "geometry has shape 5x2, expected 5x1: kernel shape, strides, dilations, leading pads and trailing"),
    (0, (2, 0, 5, 4), "src has 0 channels, expected a multiple of group, 2"),
    (0, (2, 5, 5, 4), "src has 5 channels, expected a multiple of group, 2"),
    (0, (2, 10, 5, 4), "weight has shape 1x6x16x4, expected 1x12x16x4, packed for quad_axis 0 (channels)"),
    (
        0,
        (2, 6, 0, 4),
        "the kernel spans 3 elements of dimension 2, expected at most 2, the length of src with its pads",
    ),
    (
        0,
        (2, 6, 5, 1),
        "the kernel spans 2 elements of dimension 3, expected at most 1, the length of src with its pads",
    ),
    *(
        (1, shape, f"scale has shape {text_of(shape)}, expected one element, or 2, one for each sample")
        for shape in ((3,), (0,), (1, 2), (2, 2))
    ),
    *(
        (2, shape, f"zero_point has shape {text_of(shape)}, expected one element, or 2, one for each sample")
        for shape in ((3,), (0,), (1, 2), (2, 2))
    ),
    *(
        (3, shape, f"weight has shape {text_of(shape)}, expected 1x6x16x4, packed for quad_axis 0 (channels)")
        for shape in ((24, 4), (1, 6, 64), (1, 9, 16, 4), (2, 6, 16, 4), (1, 6, 4, 16), (0, 6, 16, 4))
    ),
    *(
        (i, shape, f"{NAMES[i]} has shape {text_of(shape)}, expected 4, one element for each output channel")
        for i in (4, 5, 6)
        for shape in ((2,), (5,), (1, 4), (4, 1), (0,))
    ),
    *((i, (), f"{NAMES[i]} has shape scalar, expected 4, one element for each output channel") for i in (5, 6)),
    *(
        (7, shape, f"bias has shape {text_of(shape)}, expected one element for each output channel")
        for shape in ((), (1, 4))
    ),
    (7, (5,), "bias has 5 elements, expected a multiple of group, 2"),
    (7, (6,), "channel_sum has shape 4, expected 6, one element for each output channel"),
    *(
        (
            8,
            shape,
            f"geometry has shape {text_of(shape)}, expected 5x2: kernel shape, strides, dilations, leading pads ",
        )
        for shape in ((), (10,), (5, 1), (5, 3), (4, 2), (2, 5), (5, 2, 1))
    ),
    (8, geometry((0, 1, 0)), "geometry has the kernel shape 0 for dimension 3, expected 1 or more"),
    (8, geometry((1, 0, 0)), "geometry has the stride 0 for dimension 2, expected 1 or more"),
    (8, geometry((2, 0, -2)), "geometry has the dilation -2 for dimension 2, expected 1 or more"),
    (8, geometry((3, 1, -1)), "geometry has the leading pad -1 for dimension 3, expected 0 or more"),
    (8, geometry((4, 0, -7)), "geometry has the trailing pad -7 for dimension 2, expected 0 or more"),
    (8, geometry((2, 0, 4)), "the kernel spans 9 elements of dimension 2, expected at most 7, the length of src with"),
    (
        8,
        geometry(*((row, column, 2**31 - 1) for row, column in itertools.product((0, 2, 3, 4), range(2)))),
        f"the kernel spans {(2**31 - 2) * (2**31 - 1) + 1} elements of dimension 2, expected at most {2**32 + 3}, ",
    ),
    (
        8,
        geometry(*((row, column, 2**31 - 1) for row, column in itertools.product((0, 3), range(2)))),
        f"sums of 3x{2**31 - 1}x{2**31 - 1} products may overflow int32, expected at most 65793",
    ),
)


@pytest.mark.parametrize(("index", "wrong", "text"), WRONG, ids=lambda value: "" if isinstance(value, str) else None)
def test_wrong_shapes(backend: str, index: int, wrong: Shape | Array, text: str) -> None:
    """The message names the input and the expectation; afterwards the session runs on valid inputs."""
    good, weights, given = conv_inputs(np.random.default_rng(0), SRC, 4, (3, 2), pads=(1, 0, 1, 0), group=2)
    inputs = list(good)
    inputs[index] = wrong if isinstance(wrong, np.ndarray) else np.ones(wrong, good[index].dtype)
    check_error(backend, inputs, given, text)
    check(backend, (good, weights, given))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"group": 0}, "group is 0, expected 1 or more"),
        ({"group": -(2**40)}, f"group is {-(2**40)}, expected 1 or more"),
        ({"group": 4}, "src has 6 channels, expected a multiple of group, 4"),
        ({"group": 3}, "bias has 4 elements, expected a multiple of group, 3"),
        ({"auto_pad": 3}, "auto_pad is 3, expected 0 (explicit), 1 (same upper) or 2 (same lower)"),
        ({"quad_axis": 2}, "quad_axis is 2, expected 0 (channels) or 1 (width)"),
        ({"terms": 3}, "terms is 3, expected 1 or 2"),
        ({"scale_order": 3}, "scale_order is 3, expected 0 (scales first), 1 (row first) or 2 (column first)"),
    ],
    ids=str,
)
def test_wrong_attributes(backend: str, given: dict[str, int], text: str) -> None:
    inputs, _, right = conv_inputs(np.random.default_rng(0), SRC, 4, (3, 2), group=2)
    check_error(backend, inputs, GIVEN | right | given, text)


def test_an_odd_number_of_channels_has_no_two_terms(backend: str) -> None:
    inputs, _, given = conv_inputs(np.random.default_rng(0), (2, 3, 5, 4), 4, (3, 2))
    check_error(
        backend, inputs, given | {"terms": 2}, "src has shape 2x3x5x4, expected an even second dimension: 2 terms"
    )


def test_pads_cannot_make_a_kernel_fit_in_nothing(backend: str) -> None:
    inputs, _, given = conv_inputs(np.random.default_rng(0), (1, 2, 0), 2, (3,))
    text = "the kernel spans 3 elements of dimension 2, expected at most 2, the length of src with its pads"
    for auto_pad in (1, 2):
        check_error(backend, inputs, given | {"auto_pad": auto_pad}, text)


@pytest.mark.parametrize(("pad", "text"), [(2**31 - 1, "expected fewer than 2^63 bytes"), (2**24, "no memory")])
def test_an_output_larger_than_memory(backend: str, pad: int, text: str) -> None:
    inputs, _, given = conv_inputs(np.random.default_rng(0), (1, 1, 1, 1), 4, (1, 1))
    inputs[8] = np.array([[1, 1], [1, 1], [1, 1], [2**31 - 1, pad], [2**31 - 1, pad]], np.int32)
    with pytest.raises(DynqError, match=re.escape(text)):
        kernels.run("QuantizedConv", inputs, **given)
    with pytest.raises(Exception, match=r"(?i)memory|overflow|alloc|2\^63"):
        run(backend, inputs, given)
