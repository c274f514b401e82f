"""Chains that differ a little from recognized ones: they keep their results, and the report says why they stay.

Some of them become programs. Without the rule for programs, these stay for the same reasons.
"""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import MODELS, WHOLE_CHAIN, check, found, parse, programs, rows, without_programs

from ort_dynq.rewriter import rewrite

PROGRAM = ["RowProgram"]


def test_the_chain_of_the_near_misses_is_converted() -> None:
    assert found(check(parse(WHOLE_CHAIN), {"x": rows((9, 33))})) == ["DynamicRangeFakeQuantize"]


@pytest.mark.parametrize(
    ("old", "new", "operators_", "reason"),
    [
        ("d = Div(x, s)", "d = Div(s, x)", ["AffineDequantize"], None),
        ("d = Div(x, s)", "d = Mul(x, x)", ["AffineDequantize"], None),
        ("rd = Round(d)", "rd = Floor(d)", ["AffineDequantize", *PROGRAM], None),
        ("d = Div(x, s)", "x2 = Exp(x) d = Div(x2, s)", ["AffineFakeQuantize"], None),
        ("mn0 = ReduceMin(x, one)", "x2 = Exp(x) mn0 = ReduceMin(x2, one)", ["AffineFakeQuantize"], None),
        ("mn0 = ReduceMin(x, one)", "mn0 = ReduceMin<keepdims = 0>(x)", ["AffineFakeQuantize"], None),
        ("w = Sub(mx, mn)", "w = Sub(mn, mx)", ["AffineFakeQuantize"], None),
        ("n = Neg(mn)", "n = Neg(mx)", ["AffineFakeQuantize"], None),
        ("t = Div(n, s)", "s2 = Mul(s, s) t = Div(n, s2)", ["AffineFakeQuantize"], None),
        ("zc = Clip(rt, zero, c255)", "zc = Clip(rt, zero, c127)", ["AffineFakeQuantize"], None),
        ("z = Cast<to = 2>(zc)", "z = Cast<to = 6>(zc)", ["AffineFakeQuantize"], None),
        (
            "c = Clip(a, zero, c255)",
            "c = Clip(a, zero, eps)",
            ["AffineDequantize", *PROGRAM],
            "not clipped to constant integers",
        ),
        (
            "c = Clip(a, zero, c255)",
            "c = Clip(a, low, c255)",
            ["AffineDequantize", *PROGRAM],
            "without a clip to its range",
        ),
        (
            "c = Clip(a, zero, c255)",
            "c256 = Constant<value_float = 256.0>() c = Clip(a, zero, c256)",
            ["AffineDequantize", *PROGRAM],
            "without a clip to its range",
        ),
        ("b = Sub(real, zf)", "b = Sub(zf, real)", ["DynamicRangeQuantize"], None),
        ("y = Mul(b, s)", "y = Mul(b, b)", ["DynamicRangeQuantize"], None),
        ("y = Mul(b, s)", "s2 = Mul(s, s) y = Mul(b, s2)", ["AffineDequantize", "DynamicRangeQuantize"], None),
        ("y = Mul(b, s)", "y = Div(b, s)", ["DynamicRangeQuantize"], None),
    ],
)
def test_near_miss(old: str, new: str, operators_: list[str], reason: str | None) -> None:
    """A near miss becomes another operator or stays. It keeps its results, and the reason names the difference."""
    assert WHOLE_CHAIN.count(old) == 1
    model, data = parse(WHOLE_CHAIN.replace(old, new)), {"x": rows((9, 33))}
    assert found(check(model, data)) == operators_
    with without_programs():
        report = check(model, data)
    assert found(report) == [each for each in operators_ if each not in PROGRAM]
    if reason is not None:
        assert any(reason in finding.reason for finding in report.unconverted), [f.reason for f in report.unconverted]


UNCLIPPED_CHAIN = """a = Abs(x) m0 = ReduceMax(a, one) m = Clip(m0, eps) s = Div(m, c127) d = Div(x, s) r = Round(d)
    y = Cast<to = 3>(r)"""
"""Codes without a Clip: their range follows from the scale."""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", None),
        ("m = Clip(m0, eps)", "m = Identity(m0)", None),
        ("Div(m, c127)", "Div(m, c255)", None),  # the codes wrap around, as the Cast does
        ("a = Abs(x)", "a = Abs(k)", "maximum of another value than |x|"),
        ("a = Abs(x)", "x2 = Mul(x, x) a = Abs(x2)", "maximum of another value than |x|"),
        ("a = Abs(x)", "a = Identity(x)", "maximum of another value than |x|"),
        (
            "m0 = ReduceMax(a, one)",
            "first = Constant<value_ints = [0]>() m0 = ReduceMax(a, first)",
            "not over the last",
        ),
        ("s = Div(m, c127)", "s0 = Div(m, c127) s = Identity(k)", "is not computed from the range of x"),
        ("s = Div(m, c127)", "s0 = Div(m, c127) s = Mul(s0, k)", "is not computed from the range of x"),
        ("s = Div(m, c127)", "s = Div(c127, m)", "an inverse scale divides x"),
        ("r = Round(d)", "r0 = Round(d) r = Clip(r0, low, c128)", "without a clip to its range"),
        (
            "r = Round(d)",
            "r0 = Round(d) g = Greater(r0, c128) r = Where(g, c128, r0)",
            "not clipped to constant integers",
        ),
    ],
)
def test_near_miss_without_a_clip(old: str, new: str, reason: str | None) -> None:
    assert UNCLIPPED_CHAIN.count(old) == 1 or not old
    body = "c128 = Constant<value_float = 128.0>()" + UNCLIPPED_CHAIN.replace(old, new, 1)
    model = parse(body, inputs="float[9, 33] x, float[9, 1] k", outputs="int8[] y")
    report = check(model, {"x": rows((9, 33)), "k": rows((9, 1), 1)})
    assert found(report) == (["DynamicRangeQuantize"] if reason is None else [])
    assert reason is None or any(reason in each.reason for each in report.unconverted), [
        each.reason for each in report.unconverted
    ]


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
            assert found(report) == ["DynamicRangeQuantize"]
    scale = (np.abs(x).max(1, keepdims=True) / np.float32(127)).astype(np.float32)
    with np.errstate(all="ignore"):
        quotients = np.rint(x / scale)
    assert np.isinf(quotients).any()
    assert (np.isfinite(quotients) & (np.abs(quotients) > 128)).any()


CLIPS = {
    "g = Greater(r, high) l = Where(g, high, r) h = Less(l, low) c = Where(h, low, l)": True,
    "g = GreaterOrEqual(r, high) l = Where(g, high, r) h = LessOrEqual(l, low) c = Where(h, low, l)": True,
    "g = Less(high, r) l = Where(g, high, r) h = Greater(low, l) c = Where(h, low, l)": True,
    "h = Less(r, low) l = Where(h, low, r) c = Min(high, l)": True,
    "l = Clip(r, low) c = Min(l, high)": True,
    "l = Max(r, low) c = Min(l, high)": True,
    "g = LessOrEqual(r, high) l = Where(g, r, high) c = Max(l, low)": False,  # NaN becomes `high`
    "g = Less(r, high) l = Where(g, high, r) c = Max(l, low)": False,
    "g = Greater(r, high) l = Where(g, c127, r) c = Max(l, low)": True,  # the same number
    "g = Greater(r, high) l = Where(g, c126, r) c = Max(l, low)": False,
    "g = Greater(d, high) l = Where(g, high, r) c = Max(l, low)": False,
    "g = Greater(r, high) l = Where(g, r, high) c = Max(l, low)": False,
    "n = Greater(r, high) g = Not(n) l = Where(g, high, r) c = Max(l, low)": False,
    "l = Max(r, c126) c = Min(l, low)": True,  # always `low`
    "l = Min(r, k) c = Max(l, low)": False,
    "l = Min(r, high) c = Max(l, zero)": False,  # -0 becomes 0
    "g = Less(r, zero) l = Where(g, zero, r) c = Min(l, high)": True,
    "g = LessOrEqual(r, zero) l = Where(g, zero, r) c = Min(l, high)": False,
}
"""Clips of rounded quotients r to c that are written with other operators; whether a chain with them is converted."""


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
    assert found(report) == (["DynamicRangeFakeQuantize"] if CLIPS[text] else [])


GUARDS = {
    "v = Where(p, plus, minus) t = Clip(b, eps) g = Mul(v, t)": True,
    "v = Where(p, plus, minus) t = Clip(m, eps) g = Mul(v, t)": False,  # not the magnitude; it is the same here
    "v = Where(p, minus, plus) t = Clip(b, eps) g = Mul(v, t)": False,
    "v = Where(p, plus, minus) k = Abs(x) n = ReduceMax<keepdims = 0>(k) t = Clip(n, eps) g = Mul(v, t)": False,
    "v = Where(p, plus, plus) t = Clip(b, eps) g = Mul(v, t)": False,
    "t = Abs(b) g = Max(t, eps)": True,
    "t = Add(b, eps) g = Abs(t)": True,
    "t = Add(m, eps) g = Add(t, eps)": False,
    "t = Clip(m, eps) g = Add(t, eps)": False,
    "t = Add(m, eps) g = Clip(t, eps)": False,
    "t = Add(m, eps) g = Min(t, high)": True,
    "e = GreaterOrEqual(m, eps) g = Where(e, m, eps)": False,  # NaN becomes eps
    "t = Sub(m, eps) g = Identity(t)": False,
}
"""Forms that keep a range m away from 0, with p: m >= 0, and b: |m|; whether they are part of the operator."""


@pytest.mark.parametrize("text", GUARDS)
def test_guards_of_a_range(text: str) -> None:
    body = f"""plus = Constant<value_float = 1.0>() minus = Constant<value_float = -1.0>() a = Abs(x)
        m = ReduceMax(a, one) p = GreaterOrEqual(m, zero) b = Abs(m) {text} s = Div(g, c127) d = Div(x, s)
        r = Round(d) c = Clip(r, low, high) y = Mul(c, s)"""
    nan = {"x": rows((18, 33), 3, nan=True)}
    report = check(parse(body), {"x": rows((18, 33))}, {"x": np.zeros((3, 0), np.float32)}, stock_data=(nan,))
    assert found(report) == ["DynamicRangeFakeQuantize" if GUARDS[text] else "AffineFakeQuantize"]


def test_magnitude_of_an_empty_range() -> None:
    """The range of an empty row is -infinity, its magnitude infinity: the scale stays as the model computes it."""
    body = "a = Abs(x) m = ReduceMax(a, one) b = Abs(m) s = Div(b, c127) d = Div(x, s) r = Round(d) y = Mul(r, s)"
    report = check(
        parse(body, outputs="float[] y, float[] s"), {"x": rows((9, 33))}, {"x": np.zeros((3, 0), np.float32)}
    )
    assert found(report) == ["DynamicRangeFakeQuantize"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Abs(x) d = Div(x, k) r = Round(d) m = Mul(k, k) y = Mul(r, m)", "not dequantized by the same scale"),
        ("d = Div(x, s) r = Round(d) y = Mul(r, s)", "scale's shape is not known to broadcast"),
        ("h = Cast<to = 16>(x) v = Cast<to = 16>(k) d = Div(h, v) r = Round(d) y = Mul(r, v)", "type of x is bfloat16"),
        (
            "d = Div(x, k) r = Round(d) a = Add(r, s) c = Clip(a, low, high) b = Sub(c, s) y = Mul(b, k)",
            "zero point's shape is not known",
        ),
        ("d = Div(x, k) r = Round(d) c = Clip(r, k, high) y = Mul(c, k)", "not clipped to constant integers"),
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
    ("body", "program", "reason"),
    [
        (
            "d = Div(x, k) c = Clip(d, zero, high) r = Round(c) y = Mul(r, k)",
            "dst = Mul(Round(Clip(Div(x, row1), 0.0, 127.0)), row1)",
            "order of clip and rounding decides",
        ),
        (
            "d = Div(x, k) r = Round(d) a = Add(r, k) c = Clip(a, low, high) y = Cast<to = 3>(c)",
            "dst = Clip(Add(Round(Div(x, row1)), row1), -128.0, 127.0)",
            "zero point is of another type than the codes",
        ),
    ],
)
def test_reason_of_a_program(body: str, program: str, reason: str) -> None:
    """A program computes these chains. The reason says why no other operator does."""
    output = "int8[] y" if "y = Cast<to = 3>" in body else "float[] y"
    model = parse(body, inputs="float[N, K] x, float k", outputs=output)
    x = rows((9, 33))
    x[0, :3] = -0.3, -0.0, 0.3
    data = [{"x": x, "k": np.array(k, np.float32)} for k in (0.5, 1, 1.7)]
    report = check(model, *data)
    assert found(report) == PROGRAM
    assert programs(rewrite(model, exact=True).to_proto()) == [program]
    with without_programs():
        report = check(model, *data)
    assert found(report) == []
    assert [reason in finding.reason for finding in report.unconverted] == [True]


def test_old_and_new_opsets() -> None:
    body = "a = Abs(x) m = ReduceMax<axes = [-1]>(a) s = Div(m, c127) d = Div(x, s) r = Round(d) y = Mul(r, s)"
    assert found(check(parse(body, opset=12), {"x": rows((9, 33))})) == ["DynamicRangeFakeQuantize"]
    assert found(check(parse(body, opset=13), {"x": rows((9, 33))})) == ["DynamicRangeFakeQuantize"]


def test_operators_with_one_more_consumer() -> None:
    """Scale and codes are outputs of the operator. A value between rounding and codes is one of a program only."""
    for value, operators_ in {
        "w": ["DynamicRangeFakeQuantize"],
        "s": ["DynamicRangeFakeQuantize"],
        "z": ["DynamicRangeFakeQuantize"],
        "zf": ["DynamicRangeFakeQuantize"],
        "rd": ["AffineDequantize", *PROGRAM],
        "a": ["AffineDequantize", *PROGRAM],
        "q": ["AffineDequantize", "DynamicRangeQuantize"],
        "real": ["AffineDequantize", "DynamicRangeQuantize"],
        "b": ["DynamicRangeQuantize"],
    }.items():
        type_ = "uint8" if value in "qz" else "float"
        model, data = parse(WHOLE_CHAIN, outputs=f"float[] y, {type_}[] {value}"), {"x": rows((9, 33))}
        assert found(check(model, data)) == operators_, value
        with without_programs():
            assert found(check(model, data)) == [each for each in operators_ if each not in PROGRAM], value


def test_reason_of_a_program_in_a_model() -> None:
    path = MODELS / "token_float16_glue" / "model.onnx"
    assert found(rewrite(path).report) == [*PROGRAM, "RowProgram of float16"]
    with without_programs():
        report = rewrite(path).report
    assert [finding.reason for finding in report.unconverted] == ["the type of x is float16, expected float32"]
