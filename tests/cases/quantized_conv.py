"""Calls of QuantizedConv and QuantizedConvProgram, and the result of the standard nodes that QuantizedConv replaces."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnxruntime as ort
from functions import Attributes
from helpers import Array, Shape, parse, stock_session, with_one_nan

from ort_dynq.operators.encodings import AutoPad, QuadAxis
from ort_dynq.operators.packing import pack_conv, packed_conv_shape

from .case import Case, Cases, Fit, Fitting, Given
from .quantized_matmul import matmul_inputs
from .row_program import TAILS, operands, with_tail

NAMES = (
    "src",
    "scale",
    "zero_point",
    "weight",
    "weight_zero_point",
    "channel_scale",
    "channel_sum",
    "bias",
    "geometry",
)
GIVEN = {"group": 1, "auto_pad": 0, "quad_axis": 0, "scale_order": 0, "terms": 1}

Conv = tuple[list[Array], Array, dict[str, int]]  # the inputs, the weights before packing, and attributes


def conv_inputs(
    rng: np.random.Generator,
    shape: Shape,
    outputs: int,
    kernel: Shape,
    *,
    group: int = 1,
    strides: Shape = (),
    dilations: Shape = (),
    pads: Shape = (),
    codes: Any = np.uint8,
    zero_points: str = "none",
    quad_axis: int | None = None,
    terms: int = 1,
    of_samples: tuple[bool, bool] = (False, False),
) -> Conv:
    """Inputs of QuantizedConv, its weights before packing, and the attributes `group`, `quad_axis` and `terms`.

    Codes, weights, scales and biases are as in :func:`matmul_inputs`.

    Args:
        rng: The source of random numbers.
        shape: The shape of src, [N, C, D1, ..., Dr]; with two terms src has 2 * C channels.
        outputs: M.
        kernel, strides, dilations, pads: As in ONNX's Conv; strides and dilations are 1 and pads 0 if empty.
        group: The number of groups of channels.
        codes: The type of src.
        zero_points: Whether weights have "none", "one" for all or zero points for "all" output channels.
        quad_axis: The axis of the quads. None: as the packer chooses.
        terms: The codes of an element.
        of_samples: Whether there is a scale for each sample, and a zero point.
    """
    rank, inner = len(kernel), shape[1] // group * math.prod(kernel)
    src = (shape[0], shape[1] * terms, *shape[2:])
    row = (*src[:1], math.prod(src[1:]))
    (flat, *of_rows), _ = matmul_inputs(rng, row, 1, codes=codes)
    each = (shape[0], *(1,) * (rank + 1))
    scale, zero_point = (
        array.reshape(each) if has_each else np.resize(array, ()) if array.size else np.ones((), array.dtype)
        for array, has_each in zip(of_rows[:2], of_samples, strict=True)
    )
    (_, _, _, _, weight_zp, column_scale, column_sum, bias), matrix = matmul_inputs(
        rng, (1, inner), outputs, zero_points=zero_points
    )
    weights = np.ascontiguousarray(matrix.T).reshape(outputs, shape[1] // group, *kernel)
    packed, axis = pack_conv(weights, None if quad_axis is None else QuadAxis(quad_axis))
    ones = (1,) * rank
    rows = kernel, strides or ones, dilations or ones, *np.reshape(pads or (0,) * (2 * rank), (2, rank))
    inputs = [flat.reshape(src), scale, zero_point, packed, weight_zp.reshape(-1)]
    inputs += [column_scale.reshape(-1), column_sum.reshape(-1), bias, np.array(rows, np.int32)]
    return inputs, weights, {"group": group, "quad_axis": int(axis), "terms": terms}


def output_shape(src: Shape, outputs: int, geometry: Array, auto_pad: int = 0) -> Shape:
    """The shape of the result."""
    kernel, strides, dilations, begin, end = geometry.astype(np.int64)
    lengths = np.array(src[2:])
    room = (lengths + begin + end - dilations * (kernel - 1) - 1) // strides + 1
    return (src[0], outputs, *map(int, -(-lengths // strides) if auto_pad else room))


def random_conv(rng: np.random.Generator, *, is_wide: bool = False) -> Conv:
    """A convolution of any rank, geometry and terms; in half of them every channel is a group of its own.

    Args:
        rng: The source of all choices.
        is_wide: Whether groups have so many channels that their quads fill tiles.
    """
    rank, is_depthwise = int(rng.integers(1, 4)), not is_wide and rng.random() < 0.5
    group = int(rng.integers(1, 9 if is_depthwise else 4))
    if is_wide:
        group_channels, group_outputs = rng.integers(29, 100), rng.choice([5, 16, 32, 48, 50])
    elif is_depthwise:
        group_channels, group_outputs = 1, rng.integers(1, 3)
    else:
        group_channels, group_outputs = rng.integers(1, 10), rng.integers(20)
    most, longest = ((9, 40), (5, 9), (3, 5))[rank - 1]
    kernel = rng.integers(1, most + 1, rank)
    strides, dilations = rng.integers(1, 4, rank), rng.integers(1, 4, rank)
    pads, auto_pad = rng.integers(0, 4, 2 * rank), int(rng.choice([0, 0, 1, 2]))
    given_pads = 0 if auto_pad else pads[:rank] + pads[rank:]
    lengths = np.maximum(dilations * (kernel - 1) + 1 - given_pads, 1) + rng.integers(0, longest, rank)
    terms = int(rng.integers(1, 3))
    inputs, weights, given = conv_inputs(
        rng,
        (int(rng.choice([0, 1, 1, 1, 3])), group * int(group_channels), *map(int, lengths)),
        group * int(group_outputs),
        tuple(map(int, kernel)),
        group=group,
        strides=tuple(map(int, strides)),
        dilations=tuple(map(int, dilations)),
        pads=tuple(map(int, pads)),
        codes=rng.choice([np.uint8, np.int8]),  # type: ignore[arg-type]
        zero_points=str(rng.choice(["none", "one", "all"])),
        quad_axis=0 if is_wide else int(rng.integers(2)),
        terms=terms,
        of_samples=(bool(rng.integers(2)), bool(rng.integers(2))),
    )
    return inputs, weights, given | {"auto_pad": auto_pad, "scale_order": int(rng.integers(3))}


_SCALED = (
    "both = Mul(scale, channel_scale) scaled = Mul(real, both)",
    "rows = Mul(real, scale) scaled = Mul(rows, channel_scale)",
    "columns = Mul(real, channel_scale) scaled = Mul(columns, scale)",
)


@functools.lru_cache(maxsize=500)
def _stock(geometry: str, order: int) -> ort.InferenceSession:
    """ConvInteger has no zero points of channels: the sums under the kernel, times them, are subtracted."""
    return stock_session(
        parse(
            "uint8[] src, uint8 zero_point, uint8[] weight, uint8[] ones, int32[] weight_zero_point, float scale, "
            "float[] channel_scale, float[] bias",
            "float[] dst",
            f"""products = ConvInteger<{geometry}>(src, weight, zero_point)
            sums = ConvInteger<{geometry}>(src, ones, zero_point)
            corrections = Mul(sums, weight_zero_point)
            exact = Sub(products, corrections)
            real = Cast<to = 1>(exact)
            {_SCALED[order]}
            dst = Add(scaled, bias)""",
        )
    )


def stock_conv(case: Conv) -> Array:
    """The result of ConvInteger, Cast, Mul and Add in ONNX Runtime.

    int8 codes and their zero point are stored 128 larger: ConvInteger of ONNX Runtime 1.20.1 takes uint8 only. For
    dilated kernels it computes no pads: such a kernel is replaced by a larger one, with zeros between its weights.
    With auto_pad, strides may exceed the kernel's shape by 2: beyond that, ONNX Runtime crops. The results of two terms
    are added before the bias. If samples have scales or zero points of their own, each is computed alone.
    """
    inputs, weights, given = case
    src, scale, zero_point, _, weight_zp, channel_scale, _, bias, geometry = inputs
    given = GIVEN | given
    scaling = [each if each.size else np.ones((), each.dtype) for each in (scale, zero_point)]  # none without samples
    scale, zero_point = scaling
    if scale.size > 1 or zero_point.size > 1:
        samples = (
            [src[i : i + 1], *(each.reshape(-1)[min(i, each.size - 1), ...] for each in scaling), *inputs[3:]]
            for i in range(len(src))
        )
        return np.concatenate([stock_conv((sample, weights, given)) for sample in samples])
    if given["terms"] == 2:
        no_bias = np.full_like(bias, -0.0)
        with np.errstate(all="ignore"):
            parts = zip(np.split(src, 2, 1), (np.asarray(scale * np.float32(254)), scale), strict=True)
            rest = [zero_point, *inputs[3:7], no_bias, geometry]
            first, second = (stock_conv(([*part, *rest], weights, given | {"terms": 1})) for part in parts)
            return with_one_nan(first + second + bias.reshape(-1, *(1 for _ in geometry[0])))
    kernel, strides, dilations, begin, end = geometry.tolist()
    pads = f"pads = {begin + end}"
    unsigned = (weights.astype(np.int32) + 128).astype(np.uint8)
    ones = np.ones_like(unsigned)
    if given["auto_pad"]:
        pads = f'auto_pad = "{AutoPad(given["auto_pad"]).name}"'
        unsigned, ones = _dilated(unsigned, dilations), _dilated(ones, dilations)
        kernel, dilations = list(unsigned.shape[2:]), [1] * len(kernel)
    text = f"kernel_shape = {kernel}, strides = {strides}, dilations = {dilations}, group = {given['group']}, {pads}"
    offset = 128 if src.dtype == np.int8 else 0
    of_channel = (-1, *(1 for _ in kernel))
    feeds = {
        "src": (src.astype(np.int32) + offset).astype(np.uint8),
        "zero_point": (zero_point.reshape(()).astype(np.int32) + offset).astype(np.uint8),
        "weight": unsigned,
        "ones": ones,
        "weight_zero_point": (weight_zp.astype(np.int32) + 128).reshape(of_channel),
        "scale": scale.reshape(()),
        "channel_scale": channel_scale.reshape(of_channel),
        "bias": bias.reshape(of_channel),
    }
    feeds = {name: np.asarray(array) for name, array in feeds.items()}
    return with_one_nan(np.asarray(_stock(text, given["scale_order"]).run(None, feeds)[0]))


def _dilated(weights: Array, dilations: list[int]) -> Array:
    spans = [dilation * (length - 1) + 1 for dilation, length in zip(dilations, weights.shape[2:], strict=True)]
    result = np.zeros((*weights.shape[:2], *spans), weights.dtype)
    result[(slice(None), slice(None), *(slice(None, None, dilation) for dilation in dilations))] = weights
    return result


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


def fitting(n: int) -> Iterator[tuple[list[Given], Attributes]]:
    """Around n positions, input channels or output channels; kernels with and without pads, strides and dilations."""
    for src, outputs, kernel, group in (
        ((2, 5, n), 3, (3,), 1),
        ((1, n, 3, 5), 2, (1, 1), 1),
        ((1, 3, 2, 3), n, (2, 2), 1),
        ((1, 1 + n % 7, 4, n), 1 + n % 7, (3, 3), 1 + n % 7),
        ((1, 4, 2, 3, 1 + n % 9), 34, (1, 2, 3), 2),
        ((2, 2, 1, 1), 17, (1, 1 + n % 11), 1),
    ):
        rank, one = len(kernel), (1,) * len(kernel)
        strides, dilations = ((1 + n % 2,) * rank, one) if n % 3 else (one, (2,) * rank)
        pads = tuple(dilation * (length - 1) for dilation, length in zip(dilations, kernel, strict=True))
        geometry = np.array([kernel, strides, dilations, pads, [n % 2] * rank], np.int32)
        given = {
            "group": group,
            "quad_axis": n // 2 % 2,
            "auto_pad": n // 5 % 3,
            "scale_order": n % 3,
        }
        weight = packed_conv_shape((outputs, src[1] // group, *kernel), given["quad_axis"])
        zps = (outputs,) if n % 2 else ()
        yield [src, (), (), weight, zps, (outputs,), (outputs,), (outputs,), geometry], given


def with_fitting_tails(n: int, calls: Iterable[tuple[list[Given], Attributes]]) -> Iterator[Fit]:
    """Calls of convolutions with programs over their results; the last inputs are the bias and the geometry."""
    rng = np.random.default_rng(n)
    for i, (inputs, given) in enumerate(calls):
        src, bias, geometry = inputs[0], inputs[-2], np.asarray(inputs[-1])
        assert isinstance(src, tuple)
        assert isinstance(bias, tuple)
        text, shape = TAILS[(n + i) % len(TAILS)], output_shape(src, bias[0], geometry, given["auto_pad"])
        yield [*inputs, *operands(rng, text, shape, 2, 3)], given | {"program": text}


CASES: Cases = {
    "QuantizedConv": conv_cases,
    "QuantizedConvProgram": conv_program_cases,
}
FITTING: Fitting = {"QuantizedConv": fitting, "QuantizedConvProgram": lambda n: with_fitting_tails(n, fitting(n))}
