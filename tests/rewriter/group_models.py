"""Products with scales of groups."""

from __future__ import annotations

import numpy as np
from helpers import Array
from rewriting import rows

F = np.float32
K, N = 96, 18
DATA = {"x": rows((2, 9, K), seed=4)[:, [0, 1, 2, 3, 4, 6, 7]]}  # finite
SHAPES = {
    f"{name}{size}": np.array(shape)
    for size in (16, 24, 32)
    for name, shape in (("split", [0, 0, K // size, size]), ("flat", [-1, size]))
} | {"joined": np.array([0, 0, K])}


def codes_of(low: int, high: int, size: int = 32) -> Array:
    codes = np.random.default_rng(1).integers(low, high + 1, (K, N))
    codes[::16], codes[1::16] = high, low
    codes[:size, 3] = 0
    return np.asarray(codes)


def scales_of(size: int) -> Array:
    return np.random.default_rng(2).uniform(0.001, 0.02, (K // size, N)).astype(F)


def zero_points_of(low: int = 2, high: int = 13) -> Array:
    return np.random.default_rng(3).integers(low, high + 1, (K // 32, N))


def folded(codes: Array, size: int, zero_points: Array | int = 0) -> dict[str, Array]:
    zeros = np.repeat(np.broadcast_to(zero_points, (K // size, N)), size, 0)
    return {"w": (codes - zeros).astype(F) * np.repeat(scales_of(size), size, 0)}


def by_column(values: Array, size: int) -> Array:
    """Values of [K, N] as exporters store them: [N, K / size, size]."""
    return np.ascontiguousarray(values.T.reshape(N, K // size, size))


# The text that computes w, its constants, its bits and the size of its groups.
WEIGHTS: dict[str, tuple[str, dict[str, Array], int, int]] = {
    "column": ("", {"w": codes_of(-127, 127).astype(F) * scales_of(K)}, 8, 0),
    "column, asymmetric": ("", {"w": (codes_of(0, 255) - np.arange(N) * 14).astype(F) * scales_of(K)}, 8, 0),
    "s4, 32": ("", folded(codes_of(-8, 7), 32), 4, 32),
    "s4, 48 is 16": ("", folded(codes_of(-8, 7, 48), 48), 4, 16),
    "u4, 32": ("", folded(codes_of(0, 15), 32, zero_points_of()), 4, 32),
    "s8, 32": ("", folded(codes_of(-127, 127), 32), 8, 32),
    "u8, 32": ("", folded(codes_of(0, 255), 32, zero_points_of(90, 170)), 8, 32),
    "s4, Cast, Mul": (
        "wf = Cast<to = 1>(wq)\n wm = Mul(wf, ws)\n wr = Reshape(wm, wshape)\n w = Transpose<perm = [1, 0]>(wr)\n",
        {
            "wq": by_column(codes_of(-8, 7), 32).astype(np.int8),
            "ws": scales_of(32).T[:, :, None],
            "wshape": np.array([N, K]),
        },
        4,
        32,
    ),
    "u4, Cast, Sub, Mul": (
        "wf = Cast<to = 1>(wq)\n wg = Cast<to = 1>(wz)\n wd = Sub(wf, wg)\n wm = Mul(wd, ws)\n"
        "wr = Reshape(wm, wshape)\n w = Transpose<perm = [1, 0]>(wr)\n",
        {
            "wq": by_column(codes_of(0, 15), 32).astype(np.int8),
            "ws": scales_of(32).T[:, :, None],
            "wz": zero_points_of().T[:, :, None].astype(np.int8),
            "wshape": np.array([N, K]),
        },
        4,
        32,
    ),
    "s8, DequantizeLinear": (
        "w = DequantizeLinear<axis = 0, block_size = 32>(wq, ws)\n",
        {"wq": codes_of(-127, 127).astype(np.int8), "ws": scales_of(32)},
        8,
        32,
    ),
    "u8, DequantizeLinear, Transpose": (
        "wd = DequantizeLinear<axis = 1, block_size = 32>(wq, ws, wz)\n w = Transpose<perm = [1, 0]>(wd)\n",
        {
            "wq": np.ascontiguousarray(codes_of(0, 255).T).astype(np.uint8),
            "ws": scales_of(32).T,
            "wz": zero_points_of(90, 170).T.astype(np.uint8),
        },
        8,
        32,
    ),
}
