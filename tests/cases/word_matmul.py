"""Calls of WordMatMul and WordMatMulProgram."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from functions import Attributes
from helpers import Array, Shape

from ort_dynq.operators.packing import pack_words, packed_words_shape
from ort_dynq.operators.word_matmul import MAX_WEIGHT_WORD

from .case import Case, Cases, Fitting
from .row_program import TAILS, with_fitting_tails, with_tail


def word_inputs(rng: np.random.Generator, src: Shape, columns: int, stack: Shape = ()) -> tuple[list[Array], Array]:
    """Inputs of WordMatMul, and the words of the weights, [stack..., K, N], some of them as large as they may be."""
    words = rng.integers(-MAX_WEIGHT_WORD, MAX_WEIGHT_WORD + 1, (*stack, src[-1], columns)).astype(np.int16)
    if words.size:
        words.reshape(-1)[:: rng.integers(2, 9)] = rng.choice([-MAX_WEIGHT_WORD, MAX_WEIGHT_WORD])
    matrices = [pack_words(each) for each in words.reshape(-1, *words.shape[-2:])] if words.size else []
    shape = pack_words(np.zeros(words.shape[-2:], np.int16)).shape
    packed = np.array(matrices, np.int16).reshape(*stack, *shape)
    scale = (rng.uniform(0.5, 1.5, (*stack, columns)) / MAX_WEIGHT_WORD).astype(np.float32)
    bias = rng.normal(0, 1, (*stack, columns)).astype(np.float32)
    return [rng.normal(0, 2, src).astype(np.float32), packed, scale, bias], words


# Rows and depths around tiles, blocks of sums and panels; one matrix and stacks of them.
SIZES: list[tuple[Shape, int, Shape]] = [
    ((33,), 3, ()),
    ((1, 256), 64, ()),
    ((2, 3, 257), 35, ()),
    ((40, 300), 40, ()),
    ((4, 600), 530, ()),
    ((13, 31), 66, ()),
    ((101, 64), 33, ()),
    ((12, 1), 1, ()),
    ((2, 0, 8), 8, ()),
    ((3, 0), 5, ()),
    ((5, 1025), 17, ()),
    ((2, 3, 70), 9, (2,)),
    ((3, 7, 260), 40, (2, 1)),
    ((6, 512), 97, (3,)),
]


def word_cases(opset: int) -> Iterator[Case]:
    """Sizes, and special numbers: in src, in the scales and in the bias."""
    rng = np.random.default_rng(opset)
    special = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-44, -0.0], np.float32)
    for i, (src, columns, stack) in enumerate(SIZES * 3):
        inputs, _ = word_inputs(rng, src, columns, stack)
        for j, array in enumerate((inputs[0], inputs[2], inputs[3])):
            if i % 4 == j and array.size:
                array.reshape(-1)[:: array.size // 5 + 1] = rng.choice(special)
        if i % 5 == 4:
            inputs[0] *= np.float32(2**-130)
        yield Case({}, inputs)


def word_program_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    programs = itertools.cycle(TAILS)
    for case in word_cases(opset):
        yield with_tail(rng, "WordMatMul", case, next(programs))


def fitting(n: int) -> Iterator[tuple[list[Shape], Attributes]]:
    for rows, depth, columns in ((n, 3, 5), (2, n, 3), (3, 5, n), (13, n + 256, 33)):
        yield [(rows, depth), packed_words_shape(depth, columns), (columns,), (columns,)], {}
    yield [(2, 3, n), (2, *packed_words_shape(n, 9)), (2, 9), (2, 9)], {}


CASES: Cases = {"WordMatMul": word_cases, "WordMatMulProgram": word_program_cases}
FITTING: Fitting = {"WordMatMul": fitting, "WordMatMulProgram": lambda n: with_fitting_tails(n, fitting(n))}
