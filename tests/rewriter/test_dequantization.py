"""Dequantizations that are written with Cast, Sub and Mul."""

from __future__ import annotations

from rewriting import check, found, parse, rows


def test_late_scale_and_early_zero_point() -> None:
    """compressed-tensors computes the zero point from the scale before its epsilon, and may use it before the scale."""
    body = """mn0 = ReduceMin(x, one) mx0 = ReduceMax(x, one) mn = Min(mn0, zero) mx = Max(mx0, zero) w = Sub(mx, mn)
        s0 = Div(w, c255) t = Div(mn, s0) o = Sub(low, t) c = Clip(o, low, high) z0 = Round(c) z = Cast<to = 3>(z0)
        copied = Cast<to = 6>(z) e = Equal(s0, zero) s = Where(e, eps, s0) d = Div(x, s) zf = Cast<to = 1>(z)
        a = Add(d, zf) q = Clip(a, low, high) r = Round(q) b = Sub(r, zf) y = Mul(b, s)"""
    report = check(parse(body, outputs="float[] y, int32[] copied"), {"x": rows((9, 33))})
    assert found(report) == ["RowProgram"]


def test_zero_point_that_stays_a_float() -> None:
    """It is NaN if scale and range are 0, which an integer zero point cannot be."""
    body = """mn0 = ReduceMin(x, one) mx0 = ReduceMax(x, one) mn = Min(mn0, zero) mx = Max(mx0, zero) w = Sub(mx, mn)
        s = Div(w, c255) t = Div(mn, s) rt = Round(t) o = Sub(low, rt) z = Clip(o, low, high) d = Div(x, s)
        rd = Round(d) a = Add(rd, z) c = Clip(a, low, high) q = Cast<to = 3>(c) real = Cast<to = 1>(q)
        b = Sub(real, z) y = Mul(b, s)"""
    for outputs in ("float[] y, int8[] q", "float[] y, float[] z"):
        assert found(check(parse(body, outputs=outputs), {"x": rows((9, 33))})) == ["RowProgram"]
