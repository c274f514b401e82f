"""Calls of QuantizedRecurrence and WordRecurrence."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from helpers import Shape
from recurrence import CELLS, attributes_of, recurrence_inputs

from ort_dynq.operators.packing import packed_shape, packed_words_shape

from .case import Case, Cases, Fit, Fitting


def recurrence_cases(opset: int, operator: str) -> Iterator[Case]:
    """Every cell in every direction; sizes around those of vectors and blocks; sequences of every length."""
    has_words = operator == "WordRecurrence"
    rng = np.random.default_rng(opset)
    sizes = [(1, 1, 16), (5, 3, 17), (4, 30, 7), (3, 2, 40), (3, 20, 5), (6, 5, 1), (2, 13, 33), (9, 1, 4)]
    if has_words:  # two blocks of words
        sizes[3:5] = [(2, 2, 257), (2, 20, 5)]
    for i, cell in enumerate(CELLS.values()):
        for direction in range(3):
            steps, batch, size = sizes[(2 * i + direction) % len(sizes)]
            inputs = recurrence_inputs(rng, steps, batch, 1 + (direction == 2), size, cell, operator=operator)
            shape = (1 + (direction == 2), batch, size)
            if (i + direction) % 3:  # with -0
                inputs[-4] = np.where(rng.random(shape) < 0.2, np.float32(-0.0), rng.standard_normal(shape, np.float32))
                inputs[-3] = rng.standard_normal((1, batch, 1), np.float32)
                inputs[-2] = rng.integers(-1, steps + 2, batch).astype(np.int32)
            if (i + direction) % 4 == 3:
                inputs[0] *= np.float32(30)
                inputs[0].reshape(-1)[:: 7 * size + 1] = rng.choice([np.nan, np.inf, -np.inf, 1e30])
            if (i + direction) % 5 == 4:
                inputs[0] *= np.float32(0)
                inputs[-5] = np.full_like(inputs[-5], -0.0)
                inputs[-4] = (rng.integers(-200, 200, shape) * np.float32(1e-45)).astype(np.float32)
            yield Case(attributes_of(cell, size, direction), inputs)


def fitting(n: int, operator: str) -> Iterator[Fit]:
    """n steps, n sequences, n elements of a state; every cell in every direction."""
    has_words = operator == "WordRecurrence"
    for i, cell in enumerate(CELLS.values()):
        direction = (i + n) % 3
        steps, batch, size = [(n, 2, 5), (2, n, 3), (3, 2, n)][i % 3]
        lead, columns = 1 + (direction == 2), cell.gates * size
        shapes: list[Shape] = [
            (steps, batch, lead * columns),
            (lead, *(packed_words_shape if has_words else packed_shape)(size, columns)),
            *[(lead, columns)] * (2 if has_words else 3),
            (lead, batch, size),
            (1, batch, 1),
            (batch,) if i % 2 else (1,),
            (lead, cell.columns * size),
        ]
        yield shapes, attributes_of(cell, size, direction)


NAMES = ("QuantizedRecurrence", "WordRecurrence")
CASES: Cases = {name: functools.partial(recurrence_cases, operator=name) for name in NAMES}
FITTING: Fitting = {name: functools.partial(fitting, operator=name) for name in NAMES}
