"""Rows that are difficult to quantize, and shapes of tensors of rows and blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from helpers import SPECIALS, Array, Shape, tie_dense

INF, MAX = math.inf, float(np.finfo(np.float32).max)


def row_kinds(rng: np.random.Generator, cols: int, step: np.float32, steps: float) -> Iterator[Array]:
    """Difficult rows. The first ones are `steps` steps wide and full of ties."""

    def ties(scale: np.float32, low: float) -> Array:
        row = tie_dense(rng, np.full(cols, scale), np.full(cols, -low), np.uint8)
        row = np.clip(np.where(np.isfinite(row), row, 0), low * scale, (low + steps) * scale).astype(np.float32)
        ends = rng.choice(cols, min(cols, 2), replace=False)
        row[ends] = (low * scale, (low + steps) * scale)[: len(ends)]
        return row

    for low in (-steps / 2, -100.5, -0.5, 0, 3, -steps, -steps - 7):
        yield ties(step, low)
    yield ties(np.float32(0.1), -77)
    yield rng.normal(0, 10, cols).astype(np.float32)
    yield rng.choice(SPECIALS[~np.isnan(SPECIALS)], cols)
    yield np.where(rng.random(cols) < 0.1, np.float32(-np.inf), ties(step, -20))
    yield np.where(rng.random(cols) < 0.5, np.float32(-0.0), np.abs(ties(step, 0)))
    yield np.where(rng.random(cols) < 0.5, np.float32(0), -np.abs(ties(step, 0)))
    yield (rng.integers(-9, 9, cols) * np.float32(1e-45)).astype(np.float32)
    yield (rng.integers(0, 9, cols) * np.float32(1e-40)).astype(np.float32)
    for value in (0.0, -0.0, 0.3, -0.3, 1e-45, MAX, -MAX, INF, -INF):
        yield np.full(cols, value, np.float32)
    for places in ([0], [cols - 1], rng.integers(0, cols, 1), rng.integers(0, min(cols, 12), 3)):
        row = ties(step, -20)
        row[places] = np.nan
        yield row
    for share in (0.2, 0.5, 1):
        row = ties(step, -20)
        row[rng.random(cols) < share] = np.nan
        yield row


def range_rows(rng: np.random.Generator, rows: int, cols: int) -> Array:
    """`rows` rows of all kinds; the zeros of a row have one sign."""
    kinds = list(row_kinds(rng, cols, np.float32(2.0 ** rng.integers(-6, 3)), 255.0))
    chosen = rng.permutation(len(kinds))[np.arange(rows) % len(kinds)]
    result = np.stack([kinds[i] for i in chosen])
    signs = rng.choice([np.float32(0.0), np.float32(-0.0)], (rows, 1))
    return np.asarray(np.where(result == 0, signs, result), np.float32)


# Shapes of src, and the axis at which a row begins.
RANGES: list[tuple[Shape, int]] = [
    ((), 0),
    ((1,), 0),
    ((1,), -1),
    ((257,), 0),
    ((268,), -1),
    ((0, 5), -1),
    ((30, 1), 1),
    ((29, 3), -1),
    ((2, 15, 68), -1),
    ((5, 6, 67), 2),
    ((30, 5, 13), 1),
    ((30, 5, 13), -2),
    ((2, 3, 4, 16), 0),
    ((2, 3, 4, 16), -4),
]


# Shapes of src, and sizes of blocks: many blocks, and one in each row.
BLOCKS: list[tuple[Shape, int]] = [
    ((70, 64), 32),
    ((2, 5, 15), 5),
    ((4, 128), 16),
    ((2, 384), 128),
    ((512,), 256),
    ((9, 21), 3),
    ((2, 3, 32), 32),
    ((33, 64), 64),
    ((20, 4), 1),
    ((0, 64), 32),
    ((3, 0), 32),
]
