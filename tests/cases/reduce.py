"""Calls of ReduceAbsMax and ReduceMinMax."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from functions import Attributes
from helpers import SPECIALS, Shape

from .case import Case, Cases, Fit, Fitting

REDUCED: list[Shape] = [(), (67,), (29, 3), (5, 33), (300, 2), (3, 5, 7), (4, 60, 33), (2, 3, 4, 16)]


def reduction_cases(opset: int) -> Iterator[Case]:
    """Every run of dimensions, reduced or kept, in tensors of outer x rows x cols and rows x cols x inner."""
    rng = np.random.default_rng(opset)
    for shape in [*REDUCED, (2, 0, 3)] if opset >= 14 else REDUCED:
        for axis, kept in itertools.product(range(len(shape) + 1), range(2)):
            for count in range(len(shape) - axis + 1):
                data = np.asarray(rng.normal(0, 10, shape)).astype(np.float32)
                few = rng.random(shape) < 0.2
                before, after = math.prod(shape[:axis]), math.prod(shape[axis + count :])
                in_order = before == 1 if kept == 0 else after == 1
                if in_order and len(shape) > 1:  # column by column; ONNX Runtime reduces one row after the other
                    data = np.where(few, rng.choice(SPECIALS, shape), data)
                    data = data if rng.random() < 0.5 else np.abs(data)
                else:
                    data = np.where(few, rng.choice(SPECIALS[~np.isnan(SPECIALS) & (SPECIALS != 0)], shape), data)
                from_end = axis - len(shape) if rng.random() < 0.5 and axis < len(shape) else axis
                given: Attributes = {
                    "axis": from_end,
                    "count": count,
                    "reduce_others": kept,
                    "keepdims": int(rng.integers(2)),
                }
                yield Case(given, [np.asarray(data, np.float32)])


def fitting(n: int) -> Iterator[Fit]:
    for src, axis, count in (((n,), 0, 1), ((3, n), 1, 1), ((3, n), 0, 1), ((n, 3), 0, 1), ((2, n, 3), 1, 1)):
        for kept in (0, 1):
            yield [src], {"axis": axis, "count": count, "reduce_others": kept}


CASES: Cases = {
    "ReduceAbsMax": reduction_cases,
    "ReduceMinMax": reduction_cases,
}
FITTING: Fitting = {"ReduceAbsMax": fitting, "ReduceMinMax": fitting}
