"""Integer products with integers that are added to their sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import Array
from product_models import K, N, codes_of, scales_of

F, I32 = np.float32, np.int32
CONSTANTS = {
    "wq": codes_of(),
    "wu": codes_of(0, 255, dtype=np.uint8),
    "ws": scales_of(),
    "sums": codes_of().sum(0, dtype=I32),
    "sums_wu": codes_of(0, 255, dtype=np.uint8).sum(0, dtype=I32),
    "zb": np.asarray(117, I32),
    "zbs": np.arange(100, 100 + N, dtype=I32),
    "k": np.asarray(K, I32),
    "k64": np.asarray(K, np.int64),
    "b": np.linspace(-(2**28), 2**28, N).astype(I32),
    "b1": np.asarray([[-(2**20) - 1]], I32),
    "first": np.array([0]),
    "matrix": np.arange(5 * N, dtype=I32).reshape(5, N),
    "huge": np.asarray(2**40),
}


def data_of(dtype: Any, per: str, seed: int = 0, depth: int = K) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    info, rows = np.iinfo(dtype), (5, 1) if per == "token" else ()
    q = np.where(rng.random((5, depth)) < 0.5, info.max, rng.integers(info.min, info.max + 1, (5, depth)))
    return {
        "q": q.astype(dtype),
        "z": np.asarray(rng.integers(info.min, info.max + 1, rows)).astype(dtype),
        "s": np.asarray(rng.uniform(0.5, 200, rows)).astype(F),
        "br": rng.integers(-(2**29), 2**29, N).astype(I32),
        "br1": np.asarray([7_654_321], I32),
        "z3": np.full((1, 1, 1), 3, dtype),
    }
