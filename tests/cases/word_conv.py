"""Calls of WordConv and WordConvProgram."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from functions import Attributes
from helpers import Array, Shape

from ort_dynq.operators.word_matmul import MAX_WEIGHT_WORD

from .case import Case, Cases, Fitting, Given
from .quantized_conv import fitting as fitting_convolutions
from .quantized_conv import random_conv, with_fitting_tails
from .row_program import TAILS, with_tail


def word_conv_inputs(
    rng: np.random.Generator, src: Shape, weights: Shape, geometry: Array | None = None
) -> list[Array]:
    """Inputs of WordConv; some words of the weights are as large as they may be.

    Args:
        rng: The source of random numbers.
        src: [N, C, D1, ..., Dr].
        weights: [M, C / group, k1, ..., kr].
        geometry: None: strides and dilations of 1, without pads.
    """
    words = rng.integers(-MAX_WEIGHT_WORD, MAX_WEIGHT_WORD + 1, weights).astype(np.int16)
    words.reshape(-1)[:: rng.integers(2, 9)] = rng.choice([-MAX_WEIGHT_WORD, MAX_WEIGHT_WORD])
    scale = (rng.uniform(0.5, 1.5, weights[:1]) / MAX_WEIGHT_WORD).astype(np.float32)
    bias = rng.normal(0, 1, weights[:1]).astype(np.float32)
    if geometry is None:
        geometry = np.int32([weights[2:], *[(1,) * (len(weights) - 2)] * 2, *[(0,) * (len(weights) - 2)] * 2])
    return [rng.normal(0, 2, src).astype(np.float32), words, scale, bias, geometry]


def random_word_conv(rng: np.random.Generator) -> Case:
    """A convolution of any rank and geometry."""
    inputs, weights, given = random_conv(rng)
    src, geometry = inputs[0], inputs[8]
    shape = src.shape[0], weights.shape[1] * given["group"], *src.shape[2:]
    attributes: dict[str, str | int] = {name: given[name] for name in ("group", "auto_pad")}
    return Case(attributes, word_conv_inputs(rng, shape, weights.shape, geometry))


# Shapes of src and of weights, strides, pads and groups: around panels, blocks of sums, tiles and pieces of channels.
SIZES: list[tuple[Shape, Shape, int, int, int]] = [
    ((1, 3, 40), (5, 3, 3), 1, 1, 1),
    ((2, 8, 12, 11), (33, 8, 3, 3), 1, 1, 1),
    ((1, 29, 9, 9), (7, 29, 3, 3), 2, 1, 1),
    ((3, 256, 5, 3), (13, 256, 1, 1), 1, 0, 1),
    ((1, 257, 1, 33), (8, 257, 1, 1), 1, 0, 1),
    ((1, 70, 6, 7), (40, 35, 3, 3), 1, 1, 2),
    ((1, 12, 10, 10), (12, 1, 3, 3), 1, 1, 12),
    ((1, 4, 5, 6, 7), (6, 2, 2, 3, 3), 1, 1, 2),
    ((2, 16, 1), (100, 16, 1), 1, 0, 1),
]


def sized(rng: np.random.Generator, index: int) -> Case:
    """The call of these sizes."""
    src, weights, stride, pad, group = SIZES[index]
    rank = len(src) - 2
    geometry = np.int32([weights[2:], (stride,) * rank, (1,) * rank, (pad,) * rank, (pad,) * rank])
    return Case({"group": group}, word_conv_inputs(rng, src, weights, geometry))


def word_conv_cases(opset: int) -> Iterator[Case]:
    """Sizes, geometries at random, and special numbers: in src, in the scales and in the bias."""
    rng = np.random.default_rng(opset)
    special = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-44, -0.0], np.float32)
    cases = [*(sized(rng, i % len(SIZES)) for i in range(2 * len(SIZES))), *(random_word_conv(rng) for _ in range(20))]
    for i, case in enumerate(cases):
        for j, which in enumerate((0, 2, 3)):
            array = case.inputs[which]
            if i % 4 == j and array.size:
                array.reshape(-1)[:: array.size // 3 + 1] = rng.choice(special)
        if i % 5 == 4:
            case.inputs[0] *= np.float32(2**-130)
        if opset >= 14 or case.inputs[0].size * case.inputs[3].size:
            yield case
    for shape in ((0, 3, 4), (2, 3, 0)):
        if opset >= 14:
            yield Case({}, word_conv_inputs(rng, shape, (4, 3, 2), np.int32([[2], [1], [1], [1], [1]])))


def word_conv_program_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    programs = itertools.cycle(TAILS)
    for case in word_conv_cases(opset):
        yield with_tail(rng, "WordConv", case, next(programs))


def fitting(n: int) -> Iterator[tuple[list[Given], Attributes]]:
    """Those of QuantizedConv, but for their scales and codes."""
    for (src, *_, bias, geometry), given in fitting_convolutions(n):
        assert isinstance(src, tuple)
        assert isinstance(bias, tuple)
        kernel = tuple(map(int, np.asarray(geometry)[0]))
        weight = (*bias, src[1] // int(given["group"]), *kernel)
        yield [src, weight, bias, bias, geometry], {name: given[name] for name in ("group", "auto_pad")}


CASES: Cases = {"WordConv": word_conv_cases, "WordConvProgram": word_conv_program_cases}
FITTING: Fitting = {"WordConv": fitting, "WordConvProgram": lambda n: with_fitting_tails(n, fitting(n))}
