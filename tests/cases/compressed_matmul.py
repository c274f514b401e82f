"""Calls of CompressedMatMul."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from helpers import Array

from .case import Case, Cases, Fit, Fitting
from .compressed_attention import DTYPES, HIGHEST, codes


def compressed_operands(
    rng: np.random.Generator,
    type_: str,
    lead: tuple[int, ...],
    depth: int,
    parts: int,
    size: int,
    *,
    float_types: tuple[str, str] = ("float32", "float32"),
    has_zero_points: bool = True,
) -> list[Array]:
    """Inputs for `parts` of `size` columns. `float_types`: of src and of the scales."""
    scale = rng.uniform(0.5, 1.5, (depth, parts)) / HIGHEST[type_]
    zero_point = codes(rng, type_, (depth, parts)) if has_zero_points else np.zeros((), DTYPES[type_])
    return [
        rng.normal(0, 2, (*lead, depth)).astype(float_types[0]),
        codes(rng, type_, (depth, parts * size)),
        scale.astype(float_types[1]),
        zero_point,
    ]


def product_cases(opset: int) -> Iterator[Case]:
    """Every type; few and many rows; sizes around vectors, panels and blocks of sums; special numbers."""
    rng = np.random.default_rng(opset)
    types = ["int8", "uint8"] if opset < 21 else ["int8", "uint4", "uint8", "int4"]
    sizes = [
        ((), 33, 3, 32),
        ((1,), 256, 2, 128),
        ((2, 3), 257, 5, 7),
        ((40,), 300, 3, 40),
        ((4,), 600, 1, 530),
        ((13,), 31, 9, 66),
        ((101,), 64, 2, 33),
        ((12,), 1, 20, 1),
        ((2, 0), 8, 2, 4),
        ((3,), 0, 1, 5),
        ((5,), 520, 3, 64),
    ]
    for i in range(len(sizes) * 4):
        float_types = ("float16" if opset >= 15 and i % 3 == 2 else "float32", "float16" if i % 5 == 4 else "float32")
        lead, depth, parts, size = sizes[i % len(sizes)]
        type_ = types[i % len(types)]
        inputs = compressed_operands(
            rng, type_, lead, depth, parts, size, float_types=float_types, has_zero_points=i % 5 < 3
        )
        src, scale = inputs[0].reshape(-1), inputs[2].reshape(-1)
        if i % 5 == 3:  # one zero point that is not 0
            inputs[3] = codes(rng, type_, (1, 1))
        if i % 7 == 1 and src.size and depth:
            src[:: depth * 2 + 1] = rng.choice([np.nan, np.inf, 6e4, 1e-44, 0])
        if i % 7 == 3 and scale.size:
            scale[-1] = rng.choice([np.nan, np.inf, 0, -0.25])
        yield Case({}, inputs)


def fitting(n: int) -> Iterator[Fit]:
    for rows, depth, parts, size in ((n, 3, 2, 4), (1, n, 2, 3), (2, 9, n, 2), (3, 5, 2, n), (20, n, 3, 33)):
        for zero_points in ((depth, parts), ()):
            yield [(rows, depth), (depth, parts * size), (depth, parts), zero_points], {}


CASES: Cases = {"CompressedMatMul": product_cases}
FITTING: Fitting = {"CompressedMatMul": fitting}
