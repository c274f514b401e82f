"""Graphs that exporters do not write, but tools leave behind: dead nodes, unused outputs, names that many have."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import assert_same, make_session, stock_session, with_arrays
from rewriting import rows

from ort_dynq import quantize
from ort_dynq.rewriter import rewrite

RNG = np.random.default_rng(0)

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


STEP = "q, s, z = DynamicQuantizeLinear(x)"
BODIES = {
    "RowProgram": ("3, 8", f"{PEAK} {CODES} o = Mul(c, s)", {}),
    "QuantizedMatMul": (
        "3, 8",
        f"{STEP} i = MatMulInteger(q, w, z) f = Cast<to = 1>(i) v = Mul(s, e) o = Mul(f, v)",
        {"w": RNG.integers(-127, 128, (8, 5)).astype(np.int8)},
    ),
    "QuantizedConv": (
        "1, 2, 5, 5",
        f"{STEP} i = ConvInteger(q, w, z) f = Cast<to = 1>(i) o = Mul(f, s)",
        {"w": RNG.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8)},
    ),
    "QuantizedRecurrence": (
        "6, 2, 64",
        "o, last = LSTM<hidden_size = 64>(x, w, r)",
        {name: RNG.standard_normal((1, 256, 64)).astype(np.float32) for name in "wr"},
    ),
}


@pytest.mark.parametrize("loop", ["Scan", "Loop"])
@pytest.mark.parametrize("name", BODIES)
def test_bodies_with_outputs_that_declare_no_rank(name: str, loop: str) -> None:
    """ONNX Runtime infers the rank of the body's output: not after ort_dynq's operators, and a Scan needs it."""
    shape, body, weights = BODIES[name]
    scan = f"y = Scan<num_scan_inputs = 1, body = b (float[] x) => (float[] o) {{ {body} }}>(xs)"
    repeated = f"""go = Constant<value = bool {{1}}>()
        y = Loop<body = b (int64 step, bool go_on) => (bool goes_on, float[] o)
        {{ goes_on = Identity(go_on) x = Gather(xs, step) {body} }}>(n, go)"""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 17]>
        g (float[N, {shape}] xs, int64 n) => (float[] y) <{CONSTANTS}> {{ {scan if loop == "Scan" else repeated} }}""")
    with_arrays(model, weights)
    given = RNG.standard_normal((4, *map(int, shape.split(",")))).astype(np.float32)
    is_quantization = name == "QuantizedRecurrence"
    result = quantize(model) if is_quantization else rewrite(model)
    assert any(operator.startswith("ort_dynq.") and name in operator for operator in result.report.after), (
        result.report.findings
    )
    rewritten = result.to_proto()
    native = (make_session(rewritten, "native", optimize=optimize) for optimize in (False, True))
    original, *sessions = stock_session(model), stock_session(rewritten), *native
    for count in (4,) if loop == "Scan" else (4, 0):
        feeds = {"xs": given, "n": np.array(count)}
        (expected,) = original.run(None, feeds)
        results = [session.run(None, feeds)[0] for session in sessions]
        assert results[0].shape == expected.shape
        for actual in results:
            assert_same(actual, results[0])
        if not is_quantization:
            assert_same(results[0], expected)
