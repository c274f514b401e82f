"""Calls of Interleave."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, Cases, Fit, Fitting

_FORMS = (
    *(((2, 6, 5), (2,)), ((1, 6, 1), (3,)), ((3, 2, 37), (1,)), ((1, 16, 3, 5), (2, 2)), ((2, 6, 4, 9), (3, 2))),
    *(((1, 4, 7, 33), (1, 2)), ((1, 4, 7, 2), (2, 1)), ((1, 8, 2, 3, 4), (2, 2, 2)), ((2, 12, 1, 2, 5), (1, 3, 2))),
    *(((0, 4, 3, 3), (2, 2)), ((1, 4, 0, 3), (2, 2)), ((1, 64, 9, 17), (4, 4)), ((1, 48, 200), (16,))),
    *(((1, 4, 120, 90), (2, 2)), ((5, 24, 11, 13), (2, 3)), ((1, 9, 31), (9,))),
)
"""Shapes and strides."""


def _cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    for shape, strides in (*_FORMS, *_FORMS):
        given = {f"stride_{i}": stride for i, stride in enumerate(strides, 1)}
        for float_type in (np.float32, np.float16):
            yield Case(given, [rng.standard_normal(shape, np.float32).astype(float_type)])


def fitting(n: int) -> Iterator[Fit]:
    for shape, strides in (
        ((1, 4, n, 3), (2, 2)),
        ((2, 6, n), (3,)),
        ((1, 4, 3, n), (2, 2)),
        ((1, 8, 2, 3, n), (2,) * 3),
    ):
        yield [shape], {f"stride_{i}": stride for i, stride in enumerate(strides, 1)}


CASES: Cases = {"Interleave": _cases}
FITTING: Fitting = {"Interleave": fitting}
