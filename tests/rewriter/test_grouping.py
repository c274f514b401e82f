"""Grouping of findings: equal layers form one group, other findings do not."""

from __future__ import annotations

import random

import pytest

from ort_dynq.rewriter import Finding
from ort_dynq.rewriter.grouping import grouped, pattern


def finding(node: str, graph: str = "main", operator: str | None = "DynamicRangeQuantize", reason: str = "") -> Finding:
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
        finding("a_2", operator="AffineQuantize"),
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
