"""Calls of ChannelGate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from helpers import SPECIALS

from .case import Case, Cases, Fit, Fitting

HARD_SIGMOID = "Clip(Add(Mul(row1, 0.2), 0.5), 0.0, 1.0)"
PROGRAMS = (
    f"dst = Mul(x, {HARD_SIGMOID}); dst_2 = Clip(x, 0.0, inf)",
    "dst = Mul(x, Sigmoid(row1)); dst_2 = Mul(x, Sigmoid(x))",
    f"dst = Add(x, Mul({HARD_SIGMOID}, x)); dst_2 = Div(Mul(x, Clip(Add(x, 3.0), 0.0, 6.0)), 6.0)",
    "dst = Clip(Add(x, row1), 0.0, inf); dst_2 = x",
    "dst = Clip(x, 0.0, 6.0); dst_2 = Abs(x)",
)


_SIZES = (
    *(((1, 16, 7, 7), 4), ((2, 33, 5), 31), ((1, 240, 3, 11), 64), ((3, 5, 2, 3, 4), 1), ((1, 65, 1, 1), 97)),
    *(((2, 1, 40, 50), 33), ((5, 3, 1), 2), ((1, 64, 20, 20), 16), ((2, 130, 8), 6), ((1, 7, 129), 32)),
    *(((40, 128, 2), 96), ((1, 2, 200, 170), 5), ((3, 9, 33), 130)),
)
"""The shapes of images and the numbers between the products, around the sizes of vectors and of partial sums."""


def _cases(opset: int) -> Iterator[Case]:
    """Every program with every size; one, two and three dimensions of an image."""
    rng = np.random.default_rng(opset)
    for i, (shape, hidden) in enumerate([*_SIZES, ((0, 8, 2, 2), 3), ((2, 4, 0, 5), 2), *_SIZES, *_SIZES]):
        channels = shape[1]
        src = rng.standard_normal(shape, np.float32)
        weights = [rng.standard_normal(each, np.float32) for each in ((hidden, channels), (channels, hidden))]
        biases = [rng.standard_normal(rows, np.float32) for rows in (hidden, channels)]
        if i % 3 == 2:  # sums of zeros
            weights[1][0] = -0.0
            biases[0][:1], biases[1][:1] = -0.0, -0.0
        if i % 8 == 7 and shape[0] > 1:  # NaN and infinities reach all channels of one sample
            src[0].reshape(-1)[: len(SPECIALS)] = SPECIALS[: src[0].size]
        inputs = [src, weights[0], biases[0], weights[1], biases[1]]
        yield Case({"program": PROGRAMS[i % len(PROGRAMS)]}, inputs)


def fitting(n: int) -> Iterator[Fit]:
    for i, (channels, hidden, image) in enumerate(((n, 3, (2, 2)), (3, n, (2,)), (2, 5, (1, n, 1)))):
        shapes = (hidden, channels), (hidden,), (channels, hidden), (channels,)
        yield [(2, channels, *image), *shapes], {"program": PROGRAMS[(i + n) % len(PROGRAMS)]}


CASES: Cases = {"ChannelGate": _cases}
FITTING: Fitting = {"ChannelGate": fitting}
