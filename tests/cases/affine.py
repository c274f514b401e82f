"""Calls of AffineDequantize."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from helpers import SPECIAL_SCALES, Array, Shape, random_codes, random_scales

from .case import Case, Cases, Fit, Fitting

# Shapes of src, scale and zero point; scales of fewer dimensions than src broadcast as in NumPy.
BROADCASTS: list[tuple[Shape, Shape, Shape]] = [
    ((), (), ()),
    ((1,), (), (1,)),
    ((5,), (1,), ()),
    ((0, 3), (3,), (3,)),
    ((2, 3, 67), (1, 1, 1), (1, 1, 1)),
    ((2, 3, 67), (2, 3, 1), (2, 3, 1)),
    ((2, 3, 67), (3, 1), (1,)),
    ((2, 3, 67), (67,), (67,)),
    ((2, 3, 67), (2, 1, 67), ()),
    ((2, 3, 4, 5), (3, 1, 5), (3, 1, 5)),
    ((40, 3), (40, 3), (40, 3)),
]


def affine_parameters(rng: np.random.Generator, scale: Shape, zp: Shape, zp_type: Any, ends: Shape) -> list[Array]:
    """Scales, half of the time with a special one, and zero points within the range of codes."""
    scales = np.asarray(random_scales(rng, scale, special=0))
    zps = np.asarray(rng.integers(ends[0], ends[1] + 1, zp)).astype(zp_type)
    if scales.size and rng.random() < 0.5:
        scales.flat[rng.integers(scales.size)] = rng.choice(SPECIAL_SCALES)
    return [scales, zps]


def affine_dequantize_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    for (shape, scale, zp), dtype in itertools.product(BROADCASTS, (np.uint8, np.int8)):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        for _ in range(3):
            yield Case({}, [random_codes(rng, shape, dtype), *affine_parameters(rng, scale, zp, dtype, (low, high))])
        every = np.arange(low, high + 1).astype(dtype)
        yield Case({}, [np.tile(every, (256, 1)), np.array(0.1, np.float32), every[:1]])
        yield Case({}, [np.tile(every, (256, 1)), random_scales(rng, (256, 1)), every[:, None]])


def fitting(n: int) -> Iterator[Fit]:
    for src, scales in (((n,), ()), ((n,), (n,)), ((3, n), (n,)), ((3, n), (3, 1)), ((n, 3), (n, 1))):
        for zps in (scales, (1,)):
            yield [src, scales, zps], {}


CASES: Cases = {
    "AffineDequantize": affine_dequantize_cases,
}
FITTING: Fitting = {"AffineDequantize": fitting}
