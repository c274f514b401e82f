"""Calls of DynamicQuantizeLinear and DynamicQuantizeDequantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, Cases, Fitting, one_input
from .rows import row_kinds


def linear_cases(opset: int) -> Iterator[Case]:
    rng = np.random.default_rng(opset)
    for cols in (0, 1, 3, 67, 300):
        for row in row_kinds(rng, cols, np.float32(0.25), 255) if cols else [np.zeros(0, np.float32)]:
            if not np.isnan(row).any():
                yield Case({}, [np.asarray(row, np.float32)])
    for most in (2, 100, 130, 1000):  # ranges that are too small to be divided by 255
        yield Case({}, [(rng.integers(-most, most, (3, 33)) * np.float32(1e-45)).astype(np.float32)])
        yield Case({}, [(rng.integers(0, most, (3, 33)) * np.float32(1e-45)).astype(np.float32)])
    yield Case({}, [rng.normal(0, 3, (300, 1000)).astype(np.float32)])


CASES: Cases = {
    "DynamicQuantizeLinear": linear_cases,
    "DynamicQuantizeDequantizeLinear": linear_cases,
}
FITTING: Fitting = {"DynamicQuantizeLinear": one_input, "DynamicQuantizeDequantizeLinear": one_input}
