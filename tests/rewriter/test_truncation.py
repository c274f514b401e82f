"""Codes that are truncated, or rounded in another way, have a reason."""

from __future__ import annotations

import pytest
from rewriting import check, found, programs, rows
from unconverted_models import TRUNCATED, model_of, report_of

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (f"{TRUNCATED} y = Cast<to = 3>(d)", "the codes are truncated, expected Round"),
        (f"{TRUNCATED} c = Clip(d, low, high) i = Cast<to = 6>(c) y = Cast<to = 3>(i)", "the codes are truncated"),
        ("m = ReduceMax<keepdims = 1>(x, one) s = Div(c127, m) d = Mul(s, x) y = Cast<to = 3>(d)", "are truncated"),
        (f"{TRUNCATED} y = Cast<to = 7>(d)", ""),
        ("d = Div(x, c127) y = Cast<to = 3>(d)", ""),
        ("d = Mul(x, x) y = Cast<to = 3>(d)", ""),
    ],
)
def test_truncated_codes(nodes: str, reason: str) -> None:
    report = report_of(nodes)
    assert [reason in each.reason for each in report.unconverted] == [True] * bool(reason)
    assert not any(each.operator for each in report.findings if each.rule != "range")


def test_codes_of_other_roundings() -> None:
    """They become a program, in which they may wrap around."""
    nodes = f"{TRUNCATED} c = Floor(d) y = Cast<to = 2>(c)"
    model = model_of(nodes, outputs="uint8[] y")
    assert found(check(model, {"x": rows((48, 48))})) == ["RowProgram"]
    assert programs(rewrite(model).to_proto()) == [
        "r1 = Floor(Div(x, Div(ReduceMax(Abs(x)), 127.0))); codes = Sub(r1, Mul(Floor(Div(r1, 256.0)), 256.0))"
    ]
