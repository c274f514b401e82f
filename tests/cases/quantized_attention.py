"""Calls of QuantizedAttention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, Cases
from .row_program import any_numbers, finite_numbers


def attention_cases(opset: int) -> Iterator[Case]:
    """Lengths and sizes of heads around those of vectors and tiles; masks of every shape; rows without keys."""
    rng = np.random.default_rng(opset)
    sizes = [
        (1, 5, 7, 2, 8, 8),
        (2, 16, 16, 3, 32, 32),
        (1, 33, 50, 4, 5, 7),
        (2, 3, 129, 1, 64, 17),
        (1, 1, 65, 2, 20, 48),
    ]
    for i, (b, s, t, h, d, e) in enumerate(sizes):
        whole = (b, h, s, t)
        for k in range(7):
            tensors = [
                any_numbers(rng, (b, length, h * size)) if k == 5 else finite_numbers(rng, (b, length, h * size))
                for length, size in ((s, d), (t, d), (t, e))
            ]
            tensors[0][:, s // 2] = 0
            shape = tuple(1 if (i + k + axis) % 3 == 0 else length for axis, length in enumerate(whole))
            shape = [(1, 1, 1, 1), (b, 1, 1, t), whole, (1, 1, s, t), shape, shape, (1, 1, s, t)][k]
            bias = np.asarray(rng.normal(0, 2, shape)).astype(np.float32) * np.float32(k > 0)
            if k in (1, 2, 5):
                bias[rng.random(shape) < 0.3] = -np.inf
            if k == 3:
                bias[..., -1, :] = -np.inf
            if k == 6:  # finite masks, in some rows of all keys
                bias[rng.random(shape) < 0.5] = rng.choice([np.finfo(np.float32).min, -3e38, -1e9])
                bias[..., -1, :] = np.finfo(np.float32).min
            scale = np.full([(), (1,), (1, 1)][(i + k) % 3], [d**-0.5, 1.0, -0.25][k % 3], np.float32)
            yield Case({"num_heads": h}, [*tensors, bias, scale])


CASES: Cases = {
    "QuantizedAttention": attention_cases,
}
