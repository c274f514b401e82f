"""What bounds the codes of a quotient by a range, and what moves nothing: each spelling with a near miss beside it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import with_arrays
from rewriting import F, check_products, parse, products, rows

from ort_dynq.rewriter import rewrite

WEIGHTS = (np.arange(64 * 32).reshape(64, 32) * 37 % 255 - 127).astype(F)
CODES = " b = Max(r, eps) s = Div(b, c127) q = Div(x, s) e = Round(q) v = Mul(e, s) y = MatMul(v, w)"  # not clipped
SYMMETRIC = "a = Abs(x) m = ReduceMax(a, one) "
CLIPPED = SYMMETRIC + "r = Max(m, eps) s = Div(r, c127) q = Div(x, s) e = Round(q) c = Clip(e, low, high) "


def model_of(nodes: str) -> onnx.ModelProto:
    model = parse(nodes, inputs="float[N, 64] x, float[N, 64] other")
    arrays = {"w": WEIGHTS, "columns": np.array([0]), "minus5": F(-5), "five": F(5), "nothing": F(0), "c255": F(255)}
    arrays |= {"eight": np.array([8, 1]), "wide": np.array([1, 64]), "whole": np.array([2, 4, 64])}
    return with_arrays(model, arrays)


def check(nodes: str) -> None:
    x = np.nan_to_num(rows((8, 64)), posinf=1, neginf=-1)
    model = model_of(nodes)
    assert "QuantizedMatMul" in products(rewrite(model).report)
    check_products(model, {"x": x, "other": x[::-1].copy()})


@pytest.mark.parametrize(
    "nodes",
    [
        "n = Neg(x) a = Max(x, n) r = ReduceMax(a, one)",
        "n = Neg(x) l = ReduceMax(n, one) h = ReduceMax(x, one) r = Max(h, l)",
        "a = Abs(x) m = ReduceMax<keepdims = 0>(a, one) r = ReduceMax<keepdims = 0>(m)",
        "l = ReduceMin(x, one) k = Clip(l, , nothing) n = Neg(k) h = ReduceMax(x, one) r = Max(h, n)",
        "l = ReduceMin(x, one) h = ReduceMax(x, one) ln = Min(l, nothing) hp = Relu(h) r = Sub(hp, ln)",
    ],
)
def test_ranges(nodes: str) -> None:
    check(nodes + CODES)


@pytest.mark.parametrize(
    "nodes",
    [
        "l = ReduceMin(x, one) k = Clip(l, minus5) n = Neg(k) h = ReduceMax(x, one) r = Max(h, n)",
        "l = ReduceMin(x, one) h = ReduceMax(x, one) k = Clip(h, , five) a = Abs(k) n = Neg(l) r = Max(a, n)",
        "n = Neg(x) a = Max(x, other) r = ReduceMax(a, one)",
        "a = Abs(x) m = ReduceMin(a, one) r = ReduceMax(m, one)",
        "l = ReduceMin(x, one) h = ReduceMax(x, one) r = Sub(h, l)",
        "n = Neg(x) l = ReduceMax(n, one) h = ReduceMax(other, one) r = Max(h, l)",
    ],
)
def test_numbers_that_are_smaller_than_x(nodes: str) -> None:
    assert "QuantizedMatMul" not in products(rewrite(model_of(nodes + CODES)).report)


@pytest.mark.parametrize(
    "nodes",
    [
        "f = Mul(c, s) t = Transpose(f) v = Transpose<perm = [1, 0]>(t)",
        "f = Mul(c, s) t = Transpose(f) k = Transpose<perm = [1, 0]>(t) d = Sub(k, x) v = Add(x, d)",
    ],
)
def test_moves_that_restore(nodes: str) -> None:
    check(f"{CLIPPED} {nodes} y = MatMul(v, w)")


def test_a_length_that_follows_from_a_constant_shape() -> None:
    """Reshapes to 8 rows fail for other lengths, so that the repeated scale is that of the rows."""
    check(f"{CLIPPED} f = Reshape(s, eight) g = Tile(f, wide) v = Mul(c, g) y = MatMul(v, w)")


@pytest.mark.parametrize("wide", [5, 6, 7])
def test_undefined_integers_are_multiplied_by_0(wide: int) -> None:
    """Without an epsilon, rows of zeros become any integers; the zero point shows it: its own quotient is NaN."""
    check(
        "l = ReduceMin(x, one) h = ReduceMax(x, one) ln = Min(l, nothing) hp = Max(h, nothing) r = Sub(hp, ln)"
        " s = Div(r, c255) zq = Div(ln, s) zn = Neg(zq) zr = Round(zn) z = Clip(zr, nothing, c255) q = Div(x, s)"
        f" e = Round(q) p = Add(e, z) c = Clip(p, nothing, c255) i = Cast<to = {wide}>(c) j = Cast<to = 1>(i)"
        " d = Sub(j, z) v = Mul(d, s) y = MatMul(v, w)"
    )
