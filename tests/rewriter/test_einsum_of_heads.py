"""Einsums of integers by heads become products."""

from __future__ import annotations

import numpy as np
import pytest
from product_models import model_of
from rewriting import check, products

F = np.float32


@pytest.mark.parametrize(
    ("equation", "shape", "weights"),
    [
        ("btk,khd->bthd", "[B, 7, 32]", (32, 4, 8)),
        ("bthd,hdn->btn", "[B, 7, 4, 8]", (4, 8, 18)),
        ("bthd,ndh->btn", "[B, 7, 4, 8]", (18, 8, 4)),
        ("bthd,hdnm->btnm", "[B, 7, 4, 8]", (4, 8, 3, 6)),
        ("...k,khd->...hd", "[B, 7, 32]", (32, 4, 8)),
        ("...hd,hdn->...n", "[B, 7, 4, 8]", (4, 8, 18)),
    ],
)
def test_einsum_of_heads(equation: str, shape: str, weights: tuple[int, ...]) -> None:
    """One scale for each token; its heads are several dimensions, as in Keras."""
    letters = equation.replace("...", "bt")
    heads = len(letters.split(",")[0]) - 2
    axes = np.arange(2, 2 + heads)
    columns = len(letters.split("->")[1]) - 2
    body = (
        "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a, axes)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n t = Div(x, s)\n"
        f"r = Round(t)\n c = Clip(r, low, high)\n q = Cast<to = 3>(c)\n i = Cast<to = 6>(q)\n"
        f'e = Einsum<equation = "{equation}">(i, w)\n f = Cast<to = 1>(e)\n s0 = Reshape(s, rank)\n y = Mul(f, s0)'
    )
    codes = np.random.default_rng(3).integers(-127, 128, weights).astype(np.int32)
    constants = {"w": codes, "axes": axes, "rank": np.array([0, 0, *[1] * columns])}
    model = model_of(body, constants, inputs=f"float{shape} x")
    x = np.random.default_rng(4).normal(0, 1, [int(n) for n in shape.replace("B", "2").strip("[]").split(",")])
    for exact in (False, True):
        report = check(model, {"x": x.astype(F)}, exact=exact)
        assert [name for name in products(report) if name.startswith("QuantizedMatMul")], report
        named = [(each.op_type, each.node) for each in report.rewritten if "MatMul" in (each.operator or "")]
        assert named == [("Einsum", "e")]  # the node of the model
