"""Graphs that exporters do not write, but tools leave behind: dead nodes, unused outputs, names that many have."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import assert_same, make_session, stock_session
from rewriting import rows

from ort_dynq.rewriter import rewrite

PEAK = "a = Abs(x) p = ReduceMax<axes = [-1]>(a) b = Max(p, e) s = Div(b, h)"
CODES = "q = Div(x, s) r = Round(q) c = Clip(r, l, h)"
CONSTANTS = "float e = {1e-5}, float h = {127}, float l = {-128}"


def named_as_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Gives each node of all bodies the name of its first output."""
    for body in (model.graph, *model.functions):
        for node in body.node:
            node.name = node.output[0]
    return model


GRAPHS = {
    "a dead node": f"g (float[4, 8] x) => (float[4, 1] s) <{CONSTANTS}> {{ {PEAK} {CODES} }}",
    "an unused output of a function": f"""g (float[4, 8] x) => (float[4, 1] y) <{CONSTANTS}>
        {{ y, u = own.f(x, e, h, l) }}
        <domain: "own", opset_import: ["": 17]> f (x, e, h, l) => (s, c) {{ {PEAK} {CODES} }}""",
    "a dead node in a branch": f"""g (float[4, 8] x, bool i) => (float[4, 1] y) <{CONSTANTS}> {{
        y = If(i) <then_branch = t () => (float[4, 1] s) {{ {PEAK} {CODES} }},
                   else_branch = t () => (float[4, 1] s) {{ {PEAK} {CODES} }}> }}""",
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_node_stays_inside_a_converted_chain(graph: str) -> None:
    """The new node has the name of a node that stays, because another one reads its output; both cannot have it."""
    text = f'<ir_version: 10, opset_import: ["": 17, "own": 1]> {GRAPHS[graph]}'
    model = named_as_outputs(onnx.parser.parse_model(text))
    feeds = {"x": rows((4, 8))} | ({"i": np.array(True)} if "If" in text else {})
    result = rewrite(model)
    assert result.report.rewritten
    rewritten = result.to_proto()
    (expected,) = stock_session(model).run(None, feeds)
    assert_same(stock_session(rewritten).run(None, feeds)[0], expected)
    assert_same(make_session(rewritten, "native").run(None, feeds)[0], expected)
