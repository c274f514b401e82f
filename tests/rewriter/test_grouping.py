"""Grouping of findings: equal layers form one group, other findings do not."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers import parse, with_arrays

from ort_dynq.rewriter import Finding, rewrite
from ort_dynq.rewriter.grouping import brief, grouped, pattern, program_pattern


def finding(node: str, graph: str = "main", operator: str | None = "RowProgram", reason: str = "") -> Finding:
    return Finding(node, "Round", graph, "decomposed quantization", operator, reason)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["layer.0/add_1", "layer.1/add_1"], "layer.*/add_1"),
        (["layer.0/add_1", "layer.1/add_2"], "layer.*/add_*"),
        (["matmul", "matmul_1", "matmul_12"], "matmul_*"),
        (["h/0/q_proj/Round", "h/11/q_proj/Round"], "h/*/q_proj/Round"),
        (["round_1"], "round_1"),
        (["7", "12"], "*"),
        (["", ""], ""),
        (["a\n1", "a\n2"], "a\n*"),
    ],
)
def test_pattern_of_names(names: list[str], expected: str) -> None:
    assert pattern(names) == expected


@pytest.mark.parametrize("names", [["q_1", "k_1"], ["a1b", "ab"], ["a_1", "a1"], ["layer.0", "layer.0.0"]])
def test_names_that_differ_in_more_than_numbers_are_not_grouped(names: list[str]) -> None:
    with pytest.raises(ValueError, match="differ in more than numbers"):
        pattern(names)
    assert [group.node for group in grouped(map(finding, names))] == names


def test_equal_layers_form_one_group() -> None:
    findings = [finding(f"layer.{i}/{name}") for i in range(24) for name in ("q", "k")]
    assert [(group.count, group.node) for group in grouped(findings)] == [(24, "layer.*/q"), (24, "layer.*/k")]
    random.Random(0).shuffle(findings)
    assert sorted((group.count, group.node) for group in grouped(findings)) == [(24, "layer.*/k"), (24, "layer.*/q")]


def test_findings_with_different_outcomes_are_not_grouped() -> None:
    findings = [
        finding("a_1"),
        finding("a_2", operator="DynamicQuantize"),
        finding("a_3", operator=None, reason="sums of 4096 products may overflow"),
        finding("a_4", operator=None, reason="sums of 8192 products may overflow"),
        finding("a_5", operator=None, reason="the scale is constant"),
        finding("a_6", graph="main/if_0.then_branch"),
    ]
    groups = grouped(findings)
    assert [(group.count, group.node) for group in groups] == [
        (1, "a_1"),
        (1, "a_2"),
        (2, "a_*"),
        (1, "a_5"),
        (1, "a_6"),
    ]
    assert groups[2].reason == "sums of * products may overflow"
    assert sum(group.count for group in groups) == len(findings)


def test_programs_that_differ_in_literals_form_one_group() -> None:
    """Names such as row1 keep their numbers. A long program is shown as the number of its steps."""
    texts = {
        "conv_1": "dst = Add(Mul(x, 1.02), row1)",
        "conv_2": "dst = Add(Mul(x, -3e-05), row1)",
        "conv_3": "dst = Add(Mul(x, inf), row1)",
        "conv_4": "dst = Add(Mul(x, 1.02), row2)",
        "conv_5": "",
    }
    groups = grouped(Finding(name, "Conv", "main", "rule", "P", program=text) for name, text in texts.items())
    assert [(group.count, group.node, group.program, group.brief_program) for group in groups] == [
        (3, "conv_*", *["dst = Add(Mul(x, *), row1)"] * 2),
        (1, "conv_4", *[texts["conv_4"]] * 2),
        (1, "conv_5", "", ""),
    ]
    long = (
        "r1 = Div(ReduceMax(Abs(x)), 127.0); r2 = Round(Div(x, r1)); codes = Clip(r2, -128.0, 127.0); dst = Mul(r2, r1)"
    )
    assert brief(long) == "7 steps"
    assert program_pattern([long, long.replace("127.0", "7.0")]) == long.replace("127.0", "*")
    with pytest.raises(ValueError, match="differ in more than literals"):
        program_pattern(["dst = Neg(x)", "dst = Abs(x)"])


def test_a_product_and_its_program_are_one_finding() -> None:
    """The finding of the product says what it is at last. A part of a program is not reported as unconverted."""
    model = parse(
        "float[64, 64] x, float[64, 256] other",
        "float[64, 256] y",
        """a = Abs(x) m = ReduceMax(a, last) r = Clip(m, eps) s = Div(r, high) t = Div(x, s) u = Round(t)
           v = Clip(u, low, high) d = Mul(v, s) p = MatMul(d, w) q = Add(p, other) y = Relu(q)""",
    )
    constants = {"last": np.array([-1]), "eps": np.float32(1e-5), "low": np.float32(-127), "high": np.float32(127)}
    weights = np.random.default_rng(0).integers(-127, 128, (64, 256)).astype(np.float32)
    with_arrays(model, {**constants, "w": weights})
    report = rewrite(model).report
    assert [(each.node, each.op_type, each.operator) for each in report.findings] == [
        ("p", "MatMul", "QuantizedMatMulProgram"),
        ("u", "Round", "RowProgram"),
    ]
    assert report.findings[0].program == "dst = Clip(Add(x, tensor1), 0.0, inf)"
    assert report.after["ort_dynq.QuantizedMatMulProgram"] == 1
    assert [each.operator is None for each in rewrite(model, exact=True).report.findings] == [True, False]
