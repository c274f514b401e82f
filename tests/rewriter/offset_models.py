"""Codes of x - min, and checks of their products."""

from __future__ import annotations

import numpy as np
from helpers import Array
from product_models import F, K, codes_of, scales_of
from rewriting import rows

WEIGHTS: dict[str, Array] = {"w": (codes_of() * scales_of()).astype(F), "one": np.array([-1]), "half": F(0.5)}


def data() -> Array:
    """Returns rows of all kinds, also of tiny ranges: model and product are NaN where the range is 0 or infinite."""
    x = rows((3, 9, K), seed=4)
    x[2, :4] = np.random.default_rng(5).integers(-20, 20, (4, K)) * 1e-45
    x[2, 4] = 3
    x[2, 5, 1:] = x[2, 5, 0]
    x[2, 6] = np.where(np.arange(K) % 2, 1e-45, 0)
    return x
