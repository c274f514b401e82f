"""Chains that differ a little from those of exporters: they keep their results, and become programs or say why not."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import WHOLE_CHAIN, check, found, parse, programs, rows

from ort_dynq.rewriter import rewrite

PROGRAM = ["RowProgram"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("d = Div(x, s)", "d = Div(x, s)"),
        ("d = Div(x, s)", "d = Div(s, x)"),
        ("d = Div(x, s)", "d = Mul(x, x)"),
        ("rd = Round(d)", "rd = Floor(d)"),
        ("d = Div(x, s)", "x2 = Exp(x) d = Div(x2, s)"),
        ("mn0 = ReduceMin(x, one)", "x2 = Exp(x) mn0 = ReduceMin(x2, one)"),
        ("mn0 = ReduceMin(x, one)", "mn0 = ReduceMin<keepdims = 0>(x)"),
        ("w = Sub(mx, mn)", "w = Sub(mn, mx)"),
        ("n = Neg(mn)", "n = Neg(mx)"),
        ("t = Div(n, s)", "s2 = Mul(s, s) t = Div(n, s2)"),
        ("zc = Clip(rt, zero, c255)", "zc = Clip(rt, zero, c127)"),
        ("z = Cast<to = 2>(zc)", "z = Cast<to = 6>(zc)"),
        ("c = Clip(a, zero, c255)", "c = Clip(a, zero, eps)"),
        ("c = Clip(a, zero, c255)", "c = Clip(a, low, c255)"),
        ("c = Clip(a, zero, c255)", "c256 = Constant<value_float = 256.0>() c = Clip(a, zero, c256)"),
        ("b = Sub(real, zf)", "b = Sub(zf, real)"),
        ("y = Mul(b, s)", "y = Mul(b, b)"),
        ("y = Mul(b, s)", "s2 = Mul(s, s) y = Mul(b, s2)"),
        ("y = Mul(b, s)", "y = Div(b, s)"),
    ],
)
def test_near_miss(old: str, new: str) -> None:
    """It keeps its results, and becomes a program if it still rounds a quotient by a scale."""
    assert WHOLE_CHAIN.count(old) == 1
    report = check(parse(WHOLE_CHAIN.replace(old, new)), {"x": rows((9, 33))})
    assert ("RowProgram" in found(report)) == (new not in ("d = Div(s, x)", "d = Mul(x, x)"))


UNCLIPPED_CHAIN = """a = Abs(x) m0 = ReduceMax(a, one) m = Clip(m0, eps) s = Div(m, c127) d = Div(x, s) r = Round(d)
    y = Cast<to = 3>(r)"""
"""Codes without a Clip: their range follows from the scale."""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("m = Clip(m0, eps)", "m = Identity(m0)"),
        ("Div(m, c127)", "Div(m, c255)"),  # the codes wrap around, as the Cast does
        ("a = Abs(x)", "a = Abs(k)"),
        ("a = Abs(x)", "x2 = Mul(x, x) a = Abs(x2)"),
        ("a = Abs(x)", "a = Identity(x)"),
        ("m0 = ReduceMax(a, one)", "first = Constant<value_ints = [0]>() m0 = ReduceMax(a, first)"),  # another range
        ("s = Div(m, c127)", "s0 = Div(m, c127) s = Identity(k)"),
        ("s = Div(m, c127)", "s0 = Div(m, c127) s = Mul(s0, k)"),
        ("s = Div(m, c127)", "s = Div(c127, m)"),
        ("r = Round(d)", "r0 = Round(d) r = Clip(r0, low, c128)"),
        ("r = Round(d)", "r0 = Round(d) g = Greater(r0, c128) r = Where(g, c128, r0)"),
    ],
)
def test_near_miss_without_a_clip(old: str, new: str) -> None:
    """Without a range of x in the program, its codes would take more steps than the nodes."""
    assert UNCLIPPED_CHAIN.count(old) == 1 or not old
    body = "c128 = Constant<value_float = 128.0>()" + UNCLIPPED_CHAIN.replace(old, new, 1)
    model = parse(body, inputs="float[9, 33] x, float[9, 1] k", outputs="int8[] y")
    report = check(model, {"x": rows((9, 33)), "k": rows((9, 1), 1)})
    has_range = not any(text in new for text in ("Abs(k)", "first", "Identity(k)"))
    assert found(report) == PROGRAM * has_range
    assert [each.reason for each in report.unconverted if "would cost more than it saves" not in each.reason] == []
    assert bool(report.unconverted) != has_range


def test_codes_that_wrap_around() -> None:
    """Scales so small that the codes exceed int8: denormals, and 0 where an element is not 0."""
    rng = np.random.default_rng(0)
    steps = rng.integers(-300, 300, (200, 33)) * rng.integers(1, 99, (200, 1)) // rng.choice([1, 100], (200, 1))
    x = (steps * np.float32(1e-45)).astype(np.float32)
    body = UNCLIPPED_CHAIN.replace("m = Clip(m0, eps)", "m = Identity(m0)")
    for scaling in ("d = Div(x, s)", "i = Reciprocal(s) d = Mul(x, i)"):
        for casts in ("y = Cast<to = 3>(r)", "i32 = Cast<to = 6>(r) y = Cast<to = 3>(i32)"):
            chain = body.replace("d = Div(x, s)", scaling).replace("y = Cast<to = 3>(r)", casts)
            report = check(parse(chain, outputs="int8[] y"), {"x": x})
            assert found(report) == PROGRAM
    scale = (np.abs(x).max(1, keepdims=True) / np.float32(127)).astype(np.float32)
    with np.errstate(all="ignore"):
        quotients = np.rint(x / scale)
    assert np.isinf(quotients).any()
    assert (np.isfinite(quotients) & (np.abs(quotients) > 128)).any()


CLIPS = (
    "g = Greater(r, high) l = Where(g, high, r) h = Less(l, low) c = Where(h, low, l)",
    "g = GreaterOrEqual(r, high) l = Where(g, high, r) h = LessOrEqual(l, low) c = Where(h, low, l)",
    "g = Less(high, r) l = Where(g, high, r) h = Greater(low, l) c = Where(h, low, l)",
    "h = Less(r, low) l = Where(h, low, r) c = Min(high, l)",
    "l = Clip(r, low) c = Min(l, high)",
    "l = Max(r, low) c = Min(l, high)",
    "g = LessOrEqual(r, high) l = Where(g, r, high) c = Max(l, low)",  # NaN becomes `high`
    "g = Less(r, high) l = Where(g, high, r) c = Max(l, low)",
    "g = Greater(r, high) l = Where(g, c127, r) c = Max(l, low)",  # the same number
    "g = Greater(r, high) l = Where(g, c126, r) c = Max(l, low)",
    "g = Greater(d, high) l = Where(g, high, r) c = Max(l, low)",
    "g = Greater(r, high) l = Where(g, r, high) c = Max(l, low)",
    "n = Greater(r, high) g = Not(n) l = Where(g, high, r) c = Max(l, low)",
    "l = Max(r, c126) c = Min(l, low)",  # always `low`
    "l = Min(r, k) c = Max(l, low)",
    "l = Min(r, high) c = Max(l, zero)",  # -0 becomes 0
    "g = Less(r, zero) l = Where(g, zero, r) c = Min(l, high)",
    "g = LessOrEqual(r, zero) l = Where(g, zero, r) c = Min(l, high)",
)
"""Clips of rounded quotients r to c, and what is nearly one."""


@pytest.mark.parametrize("text", CLIPS)
def test_clips_of_other_operators(text: str) -> None:
    body = f"""c126 = Constant<value_float = 126.0>() a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127) d = Div(x, s)
        r = Round(d) {text} y = Mul(c, s)"""
    x = rows((18, 33))
    x[0, :3] = -0.1 * np.abs(x[0]).max() / 127
    model = parse(body, inputs="float[18, 33] x, float k")
    report = check(
        model,
        {"x": x, "k": np.array(3, np.float32)},
        stock_data=({"x": rows((18, 33), 3, nan=True), "k": np.array(3, np.float32)},),
    )
    assert found(report) == PROGRAM


GUARDS = (
    "v = Where(p, plus, minus) t = Clip(b, eps) g = Mul(v, t)",
    "v = Where(p, plus, minus) t = Clip(m, eps) g = Mul(v, t)",  # not the magnitude; it is the same here
    "v = Where(p, minus, plus) t = Clip(b, eps) g = Mul(v, t)",
    "v = Where(p, plus, minus) k = Abs(x) n = ReduceMax<keepdims = 0>(k) t = Clip(n, eps) g = Mul(v, t)",
    "v = Where(p, plus, plus) t = Clip(b, eps) g = Mul(v, t)",
    "t = Abs(b) g = Max(t, eps)",
    "t = Add(b, eps) g = Abs(t)",
    "t = Add(m, eps) g = Add(t, eps)",
    "t = Clip(m, eps) g = Add(t, eps)",
    "t = Add(m, eps) g = Clip(t, eps)",
    "t = Add(m, eps) g = Min(t, high)",
    "e = GreaterOrEqual(m, eps) g = Where(e, m, eps)",  # NaN becomes eps
    "t = Sub(m, eps) g = Identity(t)",
)
"""Forms that keep a range m away from 0, with p: m >= 0, and b: |m|."""


@pytest.mark.parametrize("text", GUARDS)
def test_guards_of_a_range(text: str) -> None:
    body = f"""plus = Constant<value_float = 1.0>() minus = Constant<value_float = -1.0>() a = Abs(x)
        m = ReduceMax(a, one) p = GreaterOrEqual(m, zero) b = Abs(m) {text} s = Div(g, c127) d = Div(x, s)
        r = Round(d) c = Clip(r, low, high) y = Mul(c, s)"""
    nan = {"x": rows((18, 33), 3, nan=True)}
    report = check(parse(body), {"x": rows((18, 33))}, {"x": np.zeros((3, 0), np.float32)}, stock_data=(nan,))
    assert found(report) == PROGRAM


def test_magnitude_of_an_empty_range() -> None:
    """The range of an empty row is -infinity, its magnitude infinity: the scale stays as the model computes it."""
    body = "a = Abs(x) m = ReduceMax(a, one) b = Abs(m) s = Div(b, c127) d = Div(x, s) r = Round(d) y = Mul(r, s)"
    report = check(
        parse(body, outputs="float[] y, float[] s"), {"x": rows((9, 33))}, {"x": np.zeros((3, 0), np.float32)}
    )
    assert found(report) == PROGRAM


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("d = Div(x, s) r = Round(d) y = Mul(r, s)", "scale's shape is not known to broadcast"),
        ("h = Cast<to = 16>(x) v = Cast<to = 16>(k) d = Div(h, v) r = Round(d) y = Mul(r, v)", "type of x is bfloat16"),
        ("d = Div(x, k) r = Round(d) a = Add(r, s) y = Mul(a, k)", "would cost more than it saves"),
        ("d = Div(x, k) r = Round(d) c = Clip(r, k, high) y = Mul(c, k)", "no program has a step for Clip c"),
        ("d = Div(x, k) r = Round(d) y = Exp(r)", "would cost more than it saves"),
    ],
)
def test_reason(body: str, reason: str) -> None:
    output = "bfloat16[] y" if "to = 16" in body else "float[] y"
    report = check(parse(body, inputs="float[N, K] x, float k, float[M, 1] s", outputs=output))
    assert found(report) == []
    assert [finding.reason for finding in report.unconverted if reason in finding.reason], [
        f.reason for f in report.unconverted
    ]


@pytest.mark.parametrize(
    ("body", "program"),
    [
        (
            "d = Div(x, k) c = Clip(d, zero, high) r = Round(c) y = Mul(r, k)",
            "dst = Mul(Round(Clip(Div(x, row1), 0.0, 127.0)), row1)",
        ),
        (
            "d = Div(x, k) r = Round(d) a = Add(r, k) c = Clip(a, low, high) y = Cast<to = 3>(c)",
            "dst = Clip(Add(Round(Div(x, row1)), row1), -128.0, 127.0)",
        ),
        ("d = Div(x, k) r = Round(d) m = Mul(k, k) y = Mul(r, m)", "dst = Mul(Round(Div(x, row1)), row2)"),
    ],
)
def test_scales_that_are_inputs(body: str, program: str) -> None:
    output = "int8[] y" if "y = Cast<to = 3>" in body else "float[] y"
    model = parse(body, inputs="float[N, K] x, float k", outputs=output)
    x = rows((9, 33))
    x[0, :3] = -0.3, -0.0, 0.3
    report = check(model, *({"x": x, "k": np.array(k, np.float32)} for k in (0.5, 1, 1.7)))
    assert found(report) == PROGRAM
    assert programs(rewrite(model, exact=True).to_proto()) == [program]


def test_old_and_new_opsets() -> None:
    body = "a = Abs(x) m = ReduceMax<axes = [-1]>(a) s = Div(m, c127) d = Div(x, s) r = Round(d) y = Mul(r, s)"
    assert found(check(parse(body, opset=12), {"x": rows((9, 33))})) == PROGRAM
    assert found(check(parse(body, opset=13), {"x": rows((9, 33))})) == PROGRAM


def test_one_more_consumer() -> None:
    """Any value of a chain can be an output."""
    for value in ("w", "s", "z", "zf", "rd", "a", "q", "real", "b"):
        type_ = "uint8" if value in "qz" else "float"
        model = parse(WHOLE_CHAIN, outputs=f"float[] y, {type_}[] {value}")
        assert found(check(model, {"x": rows((9, 33))})) == PROGRAM, value
