"""Calls of TwoTermQuantize."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from helpers import SPECIALS, Array

from .case import Case, Cases, Fitting, one_input
from .rows import BLOCKS, RANGES


def two_term_row(rng: np.random.Generator, cols: int) -> Array:
    """A row dense in ties of codes and of remainders, with special values; or with a scale that under- or overflows."""
    exponent = int(rng.choice([0, -5, 9, -100, -130, -149, 119]))
    step = np.float32(2.0**exponent)
    quarters = rng.integers(-508, 509, cols).astype(np.float32) / np.float32(4)  # the remainder of n + 1/4 is 63.5
    quarters[rng.integers(cols)] = 127  # so that src * (127 / abs_max) is exact
    row = quarters * step
    row = np.where(rng.random(cols) < 0.3, np.nextafter(row, row * rng.choice(np.float32([0, 2]), cols)), row)
    match rng.integers(6):
        case 0:
            row = np.where(rng.random(cols) < 0.3, rng.choice(SPECIALS, cols), row)
        case 1:
            row = np.where(rng.random(cols) < rng.choice([0.1, 0.9, 1]), np.float32(np.nan), row)
        case 2:
            row = rng.normal(0, 10, cols)
        case 3:
            row = row * 0
    return np.asarray(row, np.float32)


def two_term_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    layouts = [(shape, {"axis": axis}) for shape, axis in RANGES if len(shape) > 0]
    layouts += [(shape, {"block_size": block}) for shape, block in BLOCKS]
    layouts += [((4, 4096), {"block_size": 32}), ((3, 1000), {"axis": -1}), ((2, 150000), {"axis": -1})]
    for shape, given in [each for each in layouts if opset >= 14 or 0 not in each[0]]:
        cols = given.get("block_size") or math.prod(shape[given["axis"] % len(shape) :])
        for _ in range(2 if cols > 1000 else 4):
            rows = [two_term_row(rng, cols) for _ in range(math.prod(shape) // cols)]
            with np.errstate(over="ignore"):
                yield Case(
                    {**given}, [np.concatenate([*rows, np.zeros(0, np.float32)]).astype(np.float32).reshape(shape)]
                )
    if opset >= 14:
        yield Case({}, [np.zeros((3, 0), np.float32)])


CASES: Cases = {
    "TwoTermQuantize": two_term_cases,
}
FITTING: Fitting = {"TwoTermQuantize": one_input}
