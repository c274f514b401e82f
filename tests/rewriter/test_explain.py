"""inspect --values shows the values of the variant that is converted."""

from __future__ import annotations

from old_models import CHAIN
from rewriting import parse

from ort_dynq.rewriter.explain import explain


def test_values_are_shown_in_the_newer_opset() -> None:
    body = CHAIN.replace("y = Mul", "t = Mul") + " u = Unsqueeze<axes = [1]>(t) y = Squeeze<axes = [1]>(u)"
    assert [bool(each.form) for each in explain(parse(body, opset=11), "y") if each.name in "tuy"] == [True] * 3
