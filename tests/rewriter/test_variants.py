"""Variants of a model: the first one that gains something is taken."""

from __future__ import annotations

from old_models import FAKE, X, linear, of, unchanged
from onnx import helper
from rewriting import check, found, parse

from ort_dynq.rewriter import rewrite


def test_functions_are_inlined_first() -> None:
    model = linear(12, "t = local.twice(x) " + of("t"))
    model.opset_import.add(domain="local", version=1)
    nodes = parse("u = Unsqueeze<axes = [0]>(x) v = Squeeze<axes = [0]>(u) y = Add(v, v)").graph.node
    model.functions.append(helper.make_function("local", "twice", ["x"], ["y"], nodes, [helper.make_opsetid("", 12)]))
    assert found(rewrite(model).report) == FAKE
    check(model, X)


def test_nothing_gained() -> None:
    model = parse("z = Squeeze<axes = [0]>(x) y = Softmax<axis = 0>(z)", opset=11, inputs="float[1, 8] x")
    result = rewrite(model)
    assert not result.report.notes
    assert result.report.after == result.report.before
    assert unchanged(result, model)
