"""Inputs of CompressedAttention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from functions import Attributes
from helpers import Array

DTYPES: dict[str, Any] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint4": ml_dtypes.uint4,
    "int4": ml_dtypes.int4,
    "float32": np.float32,
}
LOWEST = {"uint8": 0, "int8": -128, "uint4": 0, "int4": -8}
HIGHEST = {"uint8": 255, "int8": 127, "uint4": 15, "int4": 7}


def codes(rng: np.random.Generator, type_: str, shape: tuple[int, ...]) -> Array:
    """Random codes, the extreme ones among them; floats of float32."""
    if type_ == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    drawn = rng.integers(LOWEST[type_] - 2, HIGHEST[type_] + 3, shape)
    return np.clip(drawn, LOWEST[type_], HIGHEST[type_]).astype(np.int16).astype(DTYPES[type_])


def compressed_inputs(
    rng: np.random.Generator,
    types: tuple[str, str],
    sizes: tuple[int, int, int, int, int, int, int],
    groups: tuple[int, int] = (1, 1),
    *,
    is_transposed: bool = False,
    broadcasts: tuple[int, ...] = (),
    has_zero_points: bool = True,
) -> list[Array]:
    """Inputs for types of key and value, and for sizes B, H, K, S, T, D and E.

    Args:
        rng: The source of numbers.
        types: The types of key and value.
        sizes: B, H, K, S, T, D and E.
        groups: Of key and of value.
        is_transposed: Whether the keys are.
        broadcasts: The dimensions of scales and zero points that are 1.
        has_zero_points: Otherwise one 0.
    """
    b, h, k, s, t, d, e = sizes
    operands: list[Array] = []
    for type_, size, count in ((types[0], d, groups[0]), (types[1], e, groups[1])):
        is_float = type_ == "float32"
        parameters = tuple(
            1 if i in broadcasts or is_float else length for i, length in enumerate((b, k, t, 1 if is_float else count))
        )
        operand = codes(rng, type_, (b, k, t, size))
        scale = (rng.uniform(0.5, 1.5, parameters) / (1 if is_float else HIGHEST[type_])).astype(np.float32)
        zero_point = codes(rng, type_, parameters if has_zero_points else (1, 1, 1, 1))
        if not has_zero_points:
            zero_point = np.zeros((1, 1, 1, 1), DTYPES[type_])
        operands += [operand, scale, zero_point]
    if is_transposed:
        operands[:3] = [np.ascontiguousarray(each.swapaxes(2, 3)) for each in operands[:3]]
    query = rng.normal(0, 2, (b, h, s, d)).astype(np.float32)
    return [query, *operands, np.zeros((1, 1, 1, 1), np.float32), np.float32([d**-0.5])]


def compressed_cases(opset: int) -> Iterator[tuple[Attributes, list[Array]]]:
    """Every pair of types; sizes around those of vectors, tiles and sums; masks of every kind; special numbers."""
    rng = np.random.default_rng(opset)
    operand_types = ["int8", "float32", "uint8"] if opset < 21 else ["int8", "float32", "uint4", "uint8", "int4"]
    all_sizes = [
        ((1, 2, 2, 1, 33, 32, 32), (1, 1)),
        ((2, 4, 2, 3, 17, 6, 20), (3, 2)),
        ((1, 3, 3, 7, 40, 33, 9), (11, 3)),
        ((1, 2, 1, 1, 1, 64, 40), (2, 5)),
        ((1, 1, 1, 2, 300, 20, 17), (4, 1)),
        ((2, 6, 1, 1, 70, 5, 3), (1, 1)),
        ((1, 1, 1, 1, 21, 520, 1), (2, 1)),
        ((1, 1, 1, 50, 19, 16, 8), (1, 4)),
        ((1, 1, 1, 1, 1100, 4, 6), (1, 2)),
    ]
    pairs = [(a, b) for a in operand_types for b in operand_types if (a, b) != ("float32", "float32")]
    for i in range(5 * 6 + 6):  # coprime to the numbers of choices below
        key, value = pairs[i * 5 % len(pairs)]
        sizes, groups = all_sizes[i % len(all_sizes)]
        b, h, _, s, t, *_ = sizes
        is_transposed = i // 2 % 2 == 1
        inputs = compressed_inputs(
            rng,
            (key, value),
            sizes,
            groups,
            is_transposed=is_transposed,
            broadcasts=[(), (0, 1), (2,), (), (3,)][i % 5],
            has_zero_points=i % 4 != 3,
        )
        kind = i % 7
        shape = [(1, 1, 1, 1), (b, 1, 1, t), (b, h, s, t), (1, 1, s, t), (1, h, 1, 1), (1, 1, s, 1), (b, 1, s, t)][kind]
        bias = np.asarray(rng.normal(0, 2, shape)).astype(np.float32) * np.float32(kind > 0)
        if kind in (1, 2, 6):
            bias[rng.random(shape) < 0.4] = -np.inf
        if kind == 3:  # causal: the last keys of all but the last query
            bias[...] = np.where(np.tri(s, t, t - s, dtype=bool), np.float32(0), np.float32(-np.inf))
        inputs[7] = bias
        query = inputs[0].reshape(-1)
        if i % 3 == 0:  # ties of words: 32512 steps
            query[...] = np.round(query * 8) / 16
            inputs[0][..., 0] = 32512 / 16
        if i % 6 == 1:
            query[:: sizes[5] * 2 + 1] = np.float32(rng.choice([np.nan, np.inf, 1e38, 1e-44, 0]))
        if i % 6 == 4:
            inputs[2].reshape(-1)[-1] = rng.choice([np.nan, np.inf, 0])
        if i % 6 == 5:
            inputs[5].reshape(-1)[-1] = rng.choice([np.nan, np.inf, -0.25, 1e-30])
        inputs[8] = np.full([(), (1,), (1, 1)][i % 3], [sizes[5] ** -0.5, 3.0, -0.25][i % 3], np.float32)
        flags = {"float_key": key == "float32", "float_value": value == "float32"}
        yield {"transposed_key": int(is_transposed), **{name: int(flag) for name, flag in flags.items()}}, inputs
