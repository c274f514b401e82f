"""Scales that a model repeats to the full width before it uses them, and numbers that it writes where a mask holds."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Array
from rewriting import check, check_products, products, rows
from test_products import F, K, N, codes_of, model_of, scales_of

from ort_dynq.rewriter import rewrite

DATA = {"x": rows((2, 9, K), seed=4)}
FINITE = {"x": DATA["x"][:, [0, 1, 2, 3, 4, 6, 7]]}
BLOCKED = {"x": rows((2, 9, 64), seed=5)}
WEIGHTS: dict[str, Array] = {
    "w": (codes_of() * scales_of()).astype(F),
    "wide_w": np.tile((codes_of()[np.arange(64) % K] * scales_of()).astype(F), 16),
    "one": np.array([-1]),
    "first": np.array([0]),
    "unit": F(1),
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
BLOCKS = (
    "x4 = Reshape(x, cut)\n a = Abs(x4)\n m = ReduceMax<keepdims = 1>(a, one)\n s1 = Div(m, c127)\n"
    "mask = Equal(m, zero)\n s2 = Where(mask, unit, s1)\n"
)
FORMS = {
    "Tile": MATRIX + "full = Tile(s1, times)\n" + SHAPED + USED,
    "Where of the rows": MATRIX
    + "t = Tile(s1, times)\n mask2 = Unsqueeze(mask, ones)\n full = Where(mask2, unit, t)\n"
    + SHAPED
    + USED,
    "ScatterND with an expanded mask": MATRIX + SCATTER + SHAPED + USED,
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


@pytest.mark.parametrize("form", FORMS)
def test_repeated_scale(form: str) -> None:
    """It is used as it is: exact results do not change, and the product is one of integers."""
    is_static = "expanded mask" in form  # names of its dimensions do not pass through a Reshape to -1
    model = model_of(FORMS[form], WEIGHTS, inputs=f"float[2, 9, {K}] x" if is_static else "")
    assert not products(check(model, DATA, exact=True))
    check_products(model, DATA if is_static else FINITE)
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    left = {node.op_type for node in result.to_proto().graph.node}
    assert not {"Expand", "Tile", "ScatterND", "NonZero", "MatMul"} & left


@pytest.mark.parametrize("zero", [False, True])
def test_scale_of_blocks_that_is_repeated(zero: bool) -> None:
    """Rows are cut into blocks where the scale is used, and joined again."""
    scale = BLOCKS + "t = Tile(s2, times_blocks)\n s = Reshape(t, joined)\n"
    code = "c0 = Add(r, unit)\n c1 = Clip(c0, low, high)\n c = Sub(c1, unit)" if zero else "c = Clip(r, low, high)"
    body = scale + USED.replace("c = Clip(r, low, high)", code).replace("w)", "wide_w)")
    model = model_of(body, WEIGHTS, inputs="float[B, M, 64] x")
    check(model, BLOCKED, exact=True)
    check_products(model, {"x": BLOCKED["x"][:, [0, 1, 2, 3, 4, 6, 7]]})
    assert products(rewrite(model).report) == ["QuantizedMatMul"]


NEAR_MISSES = {
    "a scale of columns": (FORMS["Tile"], "full = Tile(s1, times)", "t = Tile(s1, times)\n full = Mul(t, offset)"),
    "a number of each element": (
        FORMS["ScatterND with an expanded mask"],
        "u2 = Expand(unit, nk)",
        "u2 = Expand(offset, nk)",
    ),
    "a Reshape that cuts rows": (
        "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a, one)\n s1 = Div(m, c127)\n t = Tile(s1, times_rows)\n"
        "turned = Transpose<perm = [0, 2, 1]>(t)\n" + SHAPED.replace("full", "turned") + USED,
        "",
        "",
    ),
    "a sum": (FORMS["ScatterND with an expanded mask"], "ScatterND(", 'ScatterND<reduction = "add">('),
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_near_misses(miss: str) -> None:
    """What is not one number for each row stays, with the same results."""
    body, old, new = NEAR_MISSES[miss]
    assert old in body
    model = model_of(body.replace(old, new) if old else body, WEIGHTS)
    report = check(model, DATA, exact=False)
    assert not products(report)
    assert any("row" in str(each.unconverted) for each in report.unconverted)
    if "ScatterND" in body:
        assert any(
            "ScatterND full changes its shape or elements" in str(each.unconverted) for each in report.unconverted
        )


def test_mask_along_columns_stays() -> None:
    """TorchScript's exporter broadcasts a mask of rows along the columns: the model means other elements."""
    body = FORMS["Where of the rows"].replace("mask2 = Unsqueeze(mask, ones)\n ", "").replace("mask2", "mask")
    model = model_of(body, WEIGHTS, inputs=f"float[1, {K}, {K}] x")
    assert N != K
    assert not products(check(model, {"x": rows((1, K, K), seed=4)}, exact=False))
