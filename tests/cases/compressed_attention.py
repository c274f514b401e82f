"""Calls of CompressedAttention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from helpers import Array

from .case import Case, Cases, Fit, Fitting

DTYPES: dict[str, Any] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint4": ml_dtypes.uint4,
    "int4": ml_dtypes.int4,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
LOWEST = {"uint8": 0, "int8": -128, "uint4": 0, "int4": -8}
HIGHEST = {"uint8": 255, "int8": 127, "uint4": 15, "int4": 7}


def codes(rng: np.random.Generator, type_: str, shape: tuple[int, ...]) -> Array:
    """Random codes, the extreme ones among them; or floats."""
    if "float" in type_:
        return rng.standard_normal(shape).astype(DTYPES[type_])
    drawn = rng.integers(LOWEST[type_] - 2, HIGHEST[type_] + 3, shape)
    return np.clip(drawn, LOWEST[type_], HIGHEST[type_]).astype(np.int16).astype(DTYPES[type_])


def compressed_inputs(
    rng: np.random.Generator,
    types: tuple[str, str],
    sizes: tuple[int, int, int, int, int, int, int],
    groups: tuple[int, int] = (1, 1),
    *,
    float_type: str = "float32",
    token_groups: int | None = None,
    is_transposed: bool = False,
    broadcasts: tuple[int, ...] = (),
    has_zero_points: bool = True,
    has_offsets: tuple[bool, bool] = (False, False),
) -> list[Array]:
    """Inputs for types of key and value, and for sizes B, H, K, S, T, D and E.

    Args:
        rng: The source of numbers.
        types: The types of key and value.
        sizes: B, H, K, S, T, D and E.
        groups: Of key and of value.
        float_type: Of the query, the scales and the result.
        token_groups: Of key and of value; each token is one by default.
        is_transposed: Whether the keys are.
        broadcasts: The dimensions of scales and zero points that are 1.
        has_zero_points: Otherwise one 0.
        has_offsets: Whether key and value have offsets; otherwise one 0.
    """
    b, h, k, s, t, d, e = sizes
    operands: list[Array] = []
    offsets: list[Array] = []
    for type_, size, count, has_offset in zip(types, (d, e), groups, has_offsets, strict=True):
        is_float = "float" in type_
        whole = (b, k, t if token_groups is None else token_groups, count)
        parameters = tuple(1 if i in broadcasts or is_float else length for i, length in enumerate(whole))
        operand = codes(rng, type_, (b, k, t, size))
        scale = (rng.uniform(0.5, 1.5, parameters) / (1 if is_float else HIGHEST[type_])).astype(DTYPES[float_type])
        zero_point = codes(rng, type_, parameters if has_zero_points else (1, 1, 1, 1))
        if not has_zero_points:
            zero_point = np.zeros((1, 1, 1, 1), DTYPES[type_])
        operands += [operand, scale, zero_point]
        offset = rng.normal(0, 0.5, parameters) if has_offset and not is_float else np.zeros((1, 1, 1, 1))
        offsets.append(offset.astype(DTYPES[float_type]))
    if is_transposed:
        operands[:3] = [np.ascontiguousarray(each.swapaxes(2, 3)) for each in operands[:3]]
        offsets[0] = np.ascontiguousarray(offsets[0].swapaxes(2, 3))
    query = rng.normal(0, 2, (b, h, s, d)).astype(DTYPES[float_type])
    return [query, *operands, np.zeros((1, 1, 1, 1), np.float32), np.float32([d**-0.5]), *offsets]


def compressed_cases(opset: int) -> Iterator[Case]:
    """Every pair of types; sizes of 0 and around vectors, tiles and sums; masks of every kind; special numbers."""
    rng = np.random.default_rng(opset)
    operand_types = ["int8", "float", "uint8"] if opset < 21 else ["int8", "float", "uint4", "uint8", "int4"]
    all_sizes = [
        ((1, 2, 2, 1, 33, 32, 32), (1, 1)),
        ((2, 4, 2, 3, 17, 6, 20), (3, 2)),
        ((1, 3, 3, 7, 40, 33, 9), (11, 3)),
        ((1, 2, 1, 1, 1, 64, 40), (2, 5)),
        ((1, 1, 1, 2, 300, 20, 17), (4, 1)),
        ((2, 6, 1, 1, 70, 5, 3), (1, 1)),
        ((1, 1, 1, 1, 21, 520, 1), (2, 1)),
        ((1, 1, 1, 50, 39, 16, 8), (1, 4)),
        ((1, 1, 1, 1, 1550, 4, 6), (1, 2)),  # parts of the keys
        ((1, 2, 1, 19, 270, 9, 34), (3, 2)),
        ((1, 1, 1, 37, 66, 261, 5), (1, 1)),
    ]
    pairs = [(a, b) for a in operand_types for b in operand_types if (a, b) != ("float", "float")]
    for i in range(len(all_sizes) * 4):  # coprime to the numbers of choices below
        float_type = "float32" if opset < 15 or i % 13 < 9 else ["float16", "bfloat16"][i % 2]
        key, value = (float_type if each == "float" else each for each in pairs[i * 5 % len(pairs)])
        sizes, groups = all_sizes[i % len(all_sizes)]
        b, h, _, s, t, d, e = sizes
        is_transposed = i // 2 % 2 == 1
        scales_query = i % 3 == 1 and "float" not in key
        scales_result = i % 5 in (1, 4) and "float" not in value
        length = next((each for each in (3, 2, 5, 11, 1) if t % each == 0), 1)
        inputs = compressed_inputs(
            rng,
            (key, value),
            sizes,
            (d if scales_query and i % 2 else groups[0], e if scales_result and i % 2 else groups[1]),
            float_type=float_type,
            token_groups=t // length if i % 9 < 4 else None,
            is_transposed=is_transposed,
            broadcasts=[(), (0, 1), (2,), (), (3,)][i % 5],
            has_zero_points=i % 4 != 3,
            has_offsets=(i % 8 in (2, 3, 5), i % 8 in (1, 3, 6)),
        )
        kind = i % 7
        shape = [(1, 1, 1, 1), (b, 1, 1, t), (b, h, s, t), (1, 1, s, t), (1, h, 1, 1), (1, 1, s, 1), (b, 1, s, t)][kind]
        bias = np.asarray(rng.normal(0, 2, shape)).astype(np.float32) * np.float32(kind > 0)
        if kind in (1, 2, 6):
            bias[rng.random(shape) < 0.4] = -np.inf if kind != 2 else np.finfo(np.float32).min
        if kind == 5:  # finite masks of all keys
            bias[rng.random(shape) < 0.5] = np.finfo(np.float32).min
        if kind in (1, 6):  # the first and the last keys: kernels leave them out
            bias[..., : t // 3] = bias[..., t - t // 4 :] = -np.inf
        if kind == 3:  # causal: the last keys of all but the last query
            bias[...] = np.where(np.tri(s, t, t - s, dtype=bool), np.float32(0), np.float32(-np.inf))
        inputs[7] = bias
        query = inputs[0].reshape(-1)
        if i % 3 == 0:  # ties of words: 32512 steps
            query[...] = np.round(query * query.dtype.type(8)) / query.dtype.type(16)
            inputs[0][..., 0] = 32512 / 16
        if i % 6 == 1:
            query[:: d * 2 + 1] = rng.choice([np.nan, np.inf, 6e4, 1e-44, 0])
        if i % 6 == 4:
            inputs[2].reshape(-1)[-1] = rng.choice([np.nan, np.inf, 0])
        if i % 6 == 5:
            inputs[5].reshape(-1)[-1] = rng.choice([np.nan, np.inf, -0.25, 1e-30])
        if i % 12 == 3 and float_type == "float32":  # scores that overflow, of hidden keys too
            inputs[2].reshape(-1)[0] = 1e38
        inputs[8] = np.full([(), (1,), (1, 1)][i % 3], [d**-0.5, 3.0, -0.25][i % 3], np.float32)
        if i % 16 == 13:
            inputs[9 + i // 16 % 2].reshape(-1)[-1] = rng.choice([np.nan, np.inf, 1e-30])
        flags = {"transposed_key": is_transposed, "scale_query": scales_query, "scale_result": scales_result}
        flags |= {"float_key": "float" in key, "float_value": "float" in value}
        yield Case({name: int(flag) for name, flag in flags.items()}, inputs)
    for rows in (2, 40):  # parts of the keys have several token groups with scales of channels
        is_transposed = rows == 2
        sizes = (1, 1, 1, rows, 1600, 9, 5)
        inputs = compressed_inputs(
            rng,
            ("int8", "uint8"),
            sizes,
            (9, 5),
            token_groups=5,
            is_transposed=is_transposed,
            has_offsets=(True, is_transposed),
        )
        inputs[7] = np.where(np.arange(1600) < 70, np.float32(-np.inf), np.float32(0)).reshape(1, 1, 1, -1)
        yield Case({"transposed_key": int(is_transposed), "scale_query": 1, "scale_result": 1}, inputs)
    for rows, t, d, groups in ((1, 97, 8, 1), (2, 41, 6, 3), (1, 75, 7, 1), (34, 45, 6, 2), (1, 67, 15, 5)):
        if opset >= 21:  # codes of 4 bits in rows that begin within a byte
            inputs = compressed_inputs(
                rng, ("int4", "uint4"), (1, 2, 2, rows, t, d, 12), (groups, 2), is_transposed=True
            )
            yield Case({"transposed_key": 1}, inputs)
    for i, shape in enumerate(((2, 1, 5, 33), (1, 4, 40, 1), (1, 1, 0, 33))):  # rows that only the bias has
        float_type = "float16" if opset >= 15 and i == 1 else "float32"
        sizes, groups = (2, 4, 2, 1, 33, 8, 6), (8, 6) if i else (2, 3)
        inputs = compressed_inputs(
            rng, ("uint8", "int8"), sizes, groups, float_type=float_type, has_offsets=(True, True)
        )
        inputs[7] = np.where(rng.random(shape) < 0.2, -np.inf, rng.normal(0, 2, shape)).astype(np.float32)
        yield Case({"scale_query": min(i, 1), "scale_result": min(i, 1)}, inputs)
    for sizes in ((1, 2, 1, 3, 0, 4, 6), (1, 2, 1, 0, 5, 4, 6), (0, 2, 1, 3, 5, 4, 6), (1, 2, 1, 3, 5, 4, 0)):
        for per_channel in (0, 1):
            groups = (4, max(sizes[6], 1)) if per_channel else (1, 1)
            inputs = compressed_inputs(rng, ("int8", "int8"), sizes, groups, has_offsets=(True, True))
            yield Case({"scale_query": per_channel, "scale_result": per_channel}, inputs)


def fitting(n: int) -> Iterator[Fit]:
    """n rows of query, n keys, n elements of a head; scales of groups, of keys, of blocks of them and of all."""
    for i, (s, t, d, e) in enumerate(((n, 3, 4, 2), (2, n, 6, 6), (3, 17, 2 * n, 2), (1, 3, 4, 2 * n))):
        for transposed, groups, length, of_channels in ((0, 1, t, 0), (1, 2, t, 0), (0, 2, 1, 1), (1, 1, 1, 0)):
            parameters = [(1, 2, length, groups), (1, 2, groups, length)]
            key, value = ((1, 2, d, t) if transposed else (1, 2, t, d)), (1, 2, t, e)
            shapes = [(1, 4, s, d), key, *[parameters[transposed]] * 2, value, *[parameters[0]] * 2]
            bias = [(1, 1, 1, 1), (1, 4, s, t), (1, 1, 1, t)][i % 3]
            given = {"transposed_key": transposed, "scale_query": of_channels, "scale_result": of_channels}
            yield [*shapes, bias, (), parameters[transposed], parameters[0]], given


CASES: Cases = {"CompressedAttention": compressed_cases}
FITTING: Fitting = {"CompressedAttention": fitting}
