"""Chains that are almost the recognized ones: they keep their results, and the report says why they are left."""

from __future__ import annotations

import pytest
from rewriting import MODELS, WHOLE_CHAIN, check, found, parse, rows

from ort_dynq.rewriter import rewrite


def test_the_chain_of_the_near_misses_is_converted() -> None:
    assert found(check(parse(WHOLE_CHAIN), {"x": rows((9, 33))})) == ["DynamicRangeFakeQuantize"]


@pytest.mark.parametrize(
    ("old", "new", "operators_", "reason"),
    [
        ("d = Div(x, s)", "d = Div(s, x)", ["AffineDequantize"], None),
        ("d = Div(x, s)", "d = Mul(x, x)", ["AffineDequantize"], None),
        ("rd = Round(d)", "rd = Floor(d)", ["AffineDequantize"], None),
        ("d = Div(x, s)", "x2 = Exp(x) d = Div(x2, s)", ["AffineFakeQuantize"], None),
        ("mn0 = ReduceMin(x, one)", "x2 = Exp(x) mn0 = ReduceMin(x2, one)", ["AffineFakeQuantize"], None),
        ("mn0 = ReduceMin(x, one)", "mn0 = ReduceMin<keepdims = 0>(x)", ["AffineFakeQuantize"], None),
        ("w = Sub(mx, mn)", "w = Sub(mn, mx)", ["AffineFakeQuantize"], None),
        ("n = Neg(mn)", "n = Neg(mx)", ["AffineFakeQuantize"], None),
        ("t = Div(n, s)", "s2 = Mul(s, s) t = Div(n, s2)", ["AffineFakeQuantize"], None),
        ("zc = Clip(rt, zero, c255)", "zc = Clip(rt, zero, c127)", ["AffineFakeQuantize"], None),
        ("z = Cast<to = 2>(zc)", "z = Cast<to = 6>(zc)", ["AffineFakeQuantize"], None),
        ("c = Clip(a, zero, c255)", "c = Clip(a, zero, eps)", ["AffineDequantize"], "not clipped to constant integers"),
        ("c = Clip(a, zero, c255)", "c = Clip(a, low, c255)", ["AffineDequantize"], "without a clip to its range"),
        (
            "c = Clip(a, zero, c255)",
            "c256 = Constant<value_float = 256.0>() c = Clip(a, zero, c256)",
            ["AffineDequantize"],
            "without a clip to its range",
        ),
        ("b = Sub(real, zf)", "b = Sub(zf, real)", ["DynamicRangeQuantize"], None),
        ("y = Mul(b, s)", "y = Mul(b, b)", ["DynamicRangeQuantize"], None),
        ("y = Mul(b, s)", "s2 = Mul(s, s) y = Mul(b, s2)", ["AffineDequantize", "DynamicRangeQuantize"], None),
        ("y = Mul(b, s)", "y = Div(b, s)", ["DynamicRangeQuantize"], None),
    ],
)
def test_near_miss(old: str, new: str, operators_: list[str], reason: str | None) -> None:
    """A near miss becomes another operator or is left. It keeps its results, and the reason names the difference."""
    assert WHOLE_CHAIN.count(old) == 1
    report = check(parse(WHOLE_CHAIN.replace(old, new)), {"x": rows((9, 33))})
    assert found(report) == operators_
    if reason is not None:
        assert any(reason in finding.reason for finding in report.left), [f.reason for f in report.left]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Abs(x) d = Div(x, k) r = Round(d) m = Mul(k, k) y = Mul(r, m)", "not dequantized by the same scale"),
        ("d = Div(x, s) r = Round(d) y = Mul(r, s)", "scale's shape is not known to broadcast"),
        ("h = Cast<to = 10>(x) v = Cast<to = 10>(k) d = Div(h, v) r = Round(d) y = Mul(r, v)", "type of x is float16"),
        (
            "d = Div(x, k) r = Round(d) a = Add(r, s) c = Clip(a, low, high) b = Sub(c, s) y = Mul(b, k)",
            "zero point's shape is not known",
        ),
        ("d = Div(x, k) r = Round(d) c = Clip(r, k, high) y = Mul(c, k)", "not clipped to constant integers"),
        ("d = Div(x, k) c = Clip(d, zero, high) r = Round(c) y = Mul(r, k)", "order of clip and rounding decides"),
        (
            "d = Div(x, k) r = Round(d) a = Add(r, k) c = Clip(a, low, high) y = Cast<to = 3>(c)",
            "zero point is of another type than the codes",
        ),
    ],
)
def test_reason(body: str, reason: str) -> None:
    output = "int8[] y" if "y = Cast<to = 3>" in body else "float16[] y" if "to = 10" in body else "float[] y"
    model = parse(body, inputs="float[N, K] x, float k, float[M, 1] s", outputs=output)
    report = check(model)
    assert found(report) == []
    assert [finding.reason for finding in report.left if reason in finding.reason], [f.reason for f in report.left]


def test_oldest_opset() -> None:
    body = "a = Abs(x) m = ReduceMax<axes = [-1]>(a) s = Div(m, c127) d = Div(x, s) r = Round(d) y = Mul(r, s)"
    assert [finding.reason for finding in rewrite(parse(body, opset=12)).report.left] == [
        "the model is of opset 12, expected 13 or newer"
    ]
    assert found(check(parse(body, opset=13), {"x": rows((9, 33))})) == ["DynamicRangeFakeQuantize"]


def test_operators_with_one_more_consumer() -> None:
    """Scale and codes are outputs of the operator. A value between rounding and codes is not: its chain stays."""
    for value, operators_ in {
        "w": ["DynamicRangeFakeQuantize"],
        "s": ["DynamicRangeFakeQuantize"],
        "z": ["DynamicRangeFakeQuantize"],
        "zf": ["DynamicRangeFakeQuantize"],
        "rd": ["AffineDequantize"],
        "a": ["AffineDequantize"],
        "q": ["AffineDequantize", "DynamicRangeQuantize"],
        "real": ["AffineDequantize", "DynamicRangeQuantize"],
        "b": ["DynamicRangeQuantize"],
    }.items():
        type_ = "uint8" if value in "qz" else "float"
        report = check(parse(WHOLE_CHAIN, outputs=f"float[] y, {type_}[] {value}"), {"x": rows((9, 33))})
        assert found(report) == operators_, value


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("token_float16_glue", "the type of x is float16, expected float32"),
        ("functions", "the bounds of the codes are given by the function's caller"),
    ],
)
def test_reason_why_a_model_is_left(name: str, reason: str) -> None:
    report = rewrite(MODELS / name / "model.onnx").report
    assert [finding.reason for finding in report.left] == [reason]
