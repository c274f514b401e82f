"""Calls of QuantizedRecurrence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from helpers import Shape
from recurrence import CELLS, attributes_of, recurrence_inputs

from ort_dynq.operators.packing import packed_shape

from .case import Case, Cases, Fit, Fitting


def recurrence_cases(opset: int) -> Iterator[Case]:
    """Every cell in every direction; sizes around those of vectors, quads and blocks; sequences of every length."""
    rng = np.random.default_rng(opset)
    sizes = [(1, 1, 16), (5, 3, 17), (4, 30, 7), (3, 2, 40), (3, 20, 5), (6, 5, 1), (2, 13, 33), (9, 1, 4)]
    for i, cell in enumerate(CELLS.values()):
        for direction in range(3):
            steps, batch, size = sizes[(2 * i + direction) % len(sizes)]
            inputs = recurrence_inputs(rng, steps, batch, 1 + (direction == 2), size, cell)
            shape = (1 + (direction == 2), batch, size)
            if (i + direction) % 3:  # with -0
                inputs[5] = np.where(rng.random(shape) < 0.2, np.float32(-0.0), rng.standard_normal(shape, np.float32))
                inputs[6] = rng.standard_normal((1, batch, 1), np.float32)
                inputs[7] = rng.integers(-1, steps + 2, batch).astype(np.int32)
            if (i + direction) % 4 == 3:
                inputs[0] *= np.float32(30)
                inputs[0].reshape(-1)[:: 7 * size + 1] = rng.choice([np.nan, np.inf, -np.inf, 1e30])
            if (i + direction) % 5 == 4:
                inputs[0] *= np.float32(0)
                inputs[4] = np.full_like(inputs[4], -0.0)
                inputs[5] = (rng.integers(-200, 200, shape) * np.float32(1e-45)).astype(np.float32)
            yield Case(attributes_of(cell, size, direction), inputs)


def fitting(n: int) -> Iterator[Fit]:
    """n steps, n sequences, n elements of a state; every cell in every direction."""
    for i, cell in enumerate(CELLS.values()):
        direction = (i + n) % 3
        steps, batch, size = [(n, 2, 5), (2, n, 3), (3, 2, n)][i % 3]
        lead, columns = 1 + (direction == 2), cell.gates * size
        shapes: list[Shape] = [
            (steps, batch, lead * columns),
            (lead, *packed_shape(size, columns)),
            *[(lead, columns)] * 3,
            (lead, batch, size),
            (1, batch, 1),
            (batch,) if i % 2 else (1,),
            (lead, cell.columns * size),
        ]
        yield shapes, attributes_of(cell, size, direction)


CASES: Cases = {
    "QuantizedRecurrence": recurrence_cases,
}
FITTING: Fitting = {"QuantizedRecurrence": fitting}
