"""Models with scales that are repeated to the full width."""

from __future__ import annotations

import numpy as np
from helpers import Array
from product_models import F, K, codes_of, scales_of
from rewriting import rows

DATA = {"x": rows((2, 9, K), seed=4)}
FINITE = {"x": DATA["x"][:, [0, 1, 2, 3, 4, 6, 7]]}
WEIGHTS: dict[str, Array] = {
    "w": (codes_of() * scales_of()).astype(F),
    "wide_w": np.tile((codes_of()[np.arange(64) % K] * scales_of()).astype(F), 16),
    "one": np.array([-1]),
    "first": np.array([0]),
    "unit": F(1),
    "tenth": F(0.1),
    "units": np.ones(1, F),
    "ones": np.array([1]),
    "times": np.array([1, K]),
    "times_rows": np.array([1, 1, K]),
    "cut": np.array([0, 0, 4, 16]),
    "times_blocks": np.array([1, 1, 1, 16]),
    "joined": np.array([0, 0, 64]),
    "vector": np.array([-1]),
    "offset": np.linspace(1, 2, K).astype(F)[None],
}
MATRIX = (
    "x2 = Reshape(x, rows)\n a = Abs(x2)\n m = ReduceMax<keepdims = 0>(a, ones)\n mask = Equal(m, zero)\n"
    "s0 = Div(m, c127)\n s1 = Unsqueeze(s0, ones)\n"
)
COUNT = (
    "n64 = Cast<to = 7>(mask)\n n = ReduceSum(n64, first)\n k = Shape<start = -1>(t)\n nk = Concat<axis = 0>(n, k)\n"
)
SCATTER = (
    "t = Tile(s1, times)\n mask2 = Unsqueeze(mask, ones)\n shape_t = Shape(t)\n mask3 = Expand(mask2, shape_t)\n"
    "nz = NonZero(mask3)\n at = Transpose<perm = [1, 0]>(nz)\n"
    + COUNT
    + "u2 = Expand(unit, nk)\n u = Reshape(u2, vector)\n"
    "full = ScatterND(t, at, u)\n"
)
SHAPED = "shape = Shape(x)\n s = Reshape(full, shape)\n"
USED = "d = Div(x, s)\n r = Round(d)\n c = Clip(r, low, high)\n dx = Mul(s, c)\n y = MatMul(dx, w)"
FORMS = {
    "Tile": MATRIX + "full = Tile(s1, times)\n" + SHAPED + USED,
    "Where of the rows": MATRIX
    + "t = Tile(s1, times)\n mask2 = Unsqueeze(mask, ones)\n full = Where(mask2, unit, t)\n"
    + SHAPED
    + USED,
    "ScatterND with an expanded mask": MATRIX + SCATTER + SHAPED + USED,
    "ScatterND of a cast number": MATRIX
    + SCATTER.replace("Reshape(u2, vector)", "Reshape(u3, vector)").replace(
        "u = ", "h = Cast<to = 10>(u2)\n u3 = Cast<to = 1>(h)\n u = "
    )
    + SHAPED
    + USED,
    "ScatterND of rows": MATRIX
    + "nz = NonZero(mask)\n at = Transpose<perm = [1, 0]>(nz)\n count = Shape<end = 1>(at)\n u = Expand(units, count)\n"
    "s2 = ScatterND(s0, at, u)\n s3 = Unsqueeze(s2, ones)\n shape2 = Shape(x2)\n full = Expand(s3, shape2)\n"
    + SHAPED
    + USED,
    "Concat": MATRIX.replace("s1 =", "s2 =")
    + f"s1 = Abs(s2)\n full = Concat<axis = 1>({', '.join(['s1'] * K)})\n"
    + SHAPED
    + USED,
    "a range that is expanded first": "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a, one)\n shape = Shape(x)\n"
    "wide = Expand(m, shape)\n s = Div(wide, c127)\n" + USED,
    "an inverse scale": "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a, one)\n m0 = Max(m, eps)\n"
    "wide = Tile(m0, times_rows)\n s = Div(c127, wide)\n"
    "d = Mul(x, s)\n r = Round(d)\n c = Clip(r, low, high)\n dx = Div(c, s)\n y = MatMul(dx, w)",
}
