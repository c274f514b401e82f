"""Calls of GatherDequantize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from helpers import Array, Shape, random_scales

from ort_dynq.operators.packing import pack, packed_shape

from .case import Case, Cases, Fit, Fitting

_FORMS = (
    *((8, 64, 37, 1), (8, 132, 16, 3), (8, 4, 5, 2), (8, 1300, 50, 5), (4, 64, 33, 2), (4, 96, 16, 3)),
    *((4, 8, 3, 1), (4, 4112, 20, 257), (4, 2048, 64, 128), (2, 64, 40, 4), (2, 16, 1, 1), (2, 1040, 70, 5)),
)
"""Bits, K, N and groups."""
_SHAPES: tuple[Shape, ...] = ((), (1,), (7,), (2, 3), (0, 4), (3, 1, 5), (200,))


def table(rng: np.random.Generator, bits: int, depth: int, columns: int, groups: int, kind: Any) -> list[Array]:
    """The inputs but for the ids: every code, and in half of the tables special scales."""
    low, high = (-128, 127) if bits == 8 else (0, 2**bits - 1)
    codes = rng.integers(low, high + 1, (depth, columns)).astype(np.int8)
    zero_points = rng.integers(low, high + 1, () if rng.random() < 0.3 else (groups, columns)).astype(np.int8)
    with np.errstate(over="ignore"):
        return [pack(codes, bits), zero_points, random_scales(rng, (groups, columns)).astype(kind)]


def _cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    kinds = (np.float32, np.float16) if opset >= 15 else (np.float32,)
    for i, shape in enumerate(_SHAPES * len(kinds) * 2):
        for j, (bits, depth, columns, groups) in enumerate(_FORMS):
            ids = rng.integers(-columns, columns, shape).astype((np.int64, np.int32)[(i + j) % 2])
            kind = kinds[i // len(_SHAPES) % len(kinds)]
            yield Case({"bits": bits}, [np.asarray(ids), *table(rng, bits, depth, columns, groups, kind)])


def fitting(n: int) -> Iterator[Fit]:
    for ids in (np.arange(3), np.array([[n - 1], [-n]])):
        for bits, depth, groups in ((8, 4, 1), (4, 32, 4), (2, 16 * (n // 16 + 1), 2)):
            for zero_points in ((), (groups, n)):
                yield [np.minimum(ids, n - 1), packed_shape(depth, n, bits), zero_points, (groups, n)], {"bits": bits}


CASES: Cases = {"GatherDequantize": _cases}
FITTING: Fitting = {"GatherDequantize": fitting}
