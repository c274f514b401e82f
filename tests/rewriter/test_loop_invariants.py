"""Values that loops carry unchanged: bodies read them from the graph around, and weights among them are constants."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from helpers import Array, assert_same, make_session, nodes_of, stock_session, with_arrays
from rewriting import F

from ort_dynq import quantize
from ort_dynq.rewriter import Result, rewrite
from ort_dynq.rewriter.loop_invariants import without_carried_invariants
from ort_dynq.rewriter.policy import cost
from ort_dynq.storage import to_proto

SIZE = 128  # ONNX Runtime adds longer sums in another order if the weights are constants
CODES = np.random.default_rng(0).integers(-127, 128, (SIZE, SIZE))
CODES[0] = 127
CONSTANTS = {"w": (CODES / 1024).astype(F), "one": np.array([-1]), "c127": F(127), "low": F(-128), "high": F(127)}
STEPS: dict[Callable[[onnx.ModelProto], Result], str] = {
    rewrite: """a = Abs(s) m = ReduceMax(a, one) d = Div(m, c127) q = Div(s, d) r = Round(q) c = Clip(r, low, high)
        f = Mul(c, d) p = MatMul(f, {}) next = Add(p, s)""",
    quantize: "p = MatMul(s, {}) next = Tanh(p)",
}
STATE, MATRIX = f"float[m, {SIZE}]", f"float[{SIZE}, {SIZE}]"

# Loops with bodies that read the weights from the graph around them. @w stands for a step with the weights w.
LOOP = f"""y = Loop(n, yes, x) <body = b (int64 i, bool go, {STATE} s) => (bool goes, {STATE} next)
    {{ goes = Identity(go) @w }}>"""
SCAN = f"""y, each = Scan<num_scan_inputs = 1, body = b ({STATE} s, {STATE} z) => ({STATE} t, {STATE} same)
    {{ @w t = Add(next, z) same = Identity(t) }}>(x, zs)"""

# The same loops, which carry the weights.
CARRYING_LOOP = f"""y, unused = Loop(n, yes, x, w) <body = b (int64 i, bool go, {STATE} s, {MATRIX} v)
    => (bool goes, {STATE} next, {MATRIX} same) {{ goes = Identity(go) same = Identity(v) @v }}>"""
FORMS = {
    "Loop": (CARRYING_LOOP, LOOP),
    "weights before the state": (
        f"""unused, y = Loop(n, yes, w, x) <body = b (int64 i, bool go, {MATRIX} v, {STATE} s)
            => (bool goes, {MATRIX} same, {STATE} next)
            {{ goes = Identity(go) copy = Identity(v) same = Identity(copy) @v }}>""",
        LOOP,
    ),
    "Loop in a Loop": (
        f"""y, unused = Loop(two, yes, x, w) <body = o (int64 j, bool on, {STATE} t, {MATRIX} u)
            => (bool ons, {STATE} after, {MATRIX} kept)
            {{ ons = Identity(on) {CARRYING_LOOP.replace("y, unused", "after, kept").replace("x, w", "t, u")} }}>""",
        f"""y = Loop(two, yes, x) <body = o (int64 j, bool on, {STATE} t) => (bool ons, {STATE} after)
            {{ ons = Identity(on) {LOOP.replace("y = Loop", "after = Loop").replace("x)", "t)")} }}>""",
    ),
    "Scan": (
        f"""unused, y, each = Scan<num_scan_inputs = 1, body = b ({MATRIX} v, {STATE} s, {STATE} z)
            => ({MATRIX} v2, {STATE} t, {STATE} same)
            {{ v2 = Identity(v) @v t = Add(next, z) same = Identity(t) }}>(w, x, zs)""",
        SCAN,
    ),
    "Loop in an If": (
        f"""y = If(yes) <then_branch = t () => ({STATE} u) {{ {CARRYING_LOOP.replace("y, unused", "u, unused")} }},
            else_branch = e () => ({STATE} k) {{ k = Identity(x) }}>""",
        f"""y = If(yes) <then_branch = t () => ({STATE} u) {{ {LOOP.replace("y = Loop", "u = Loop")} }},
            else_branch = e () => ({STATE} k) {{ k = Identity(x) }}>""",
    ),
}


def model_of(body: str, step: str = STEPS[rewrite], outputs: str = f"{STATE} y") -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g ({STATE} x, float[k, m, {SIZE}] zs, int64 n, bool yes) => ({outputs}) {{
            two = Constant<value_int = 2>() {re.sub(r"@(.)", lambda found: step.format(found[1]), body)} }}""")
    with_arrays(model, CONSTANTS)
    onnx.checker.check_model(model)
    return model


def feeds(iterations: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    x, zs = rng.standard_normal((5, SIZE), F), rng.standard_normal((iterations, 5, SIZE), F)
    return {"x": x, "zs": zs, "n": np.array(iterations), "yes": np.array(True)}


@pytest.mark.parametrize(("name", "convert"), [("Loop", rewrite), *((name, quantize) for name in FORMS)])
def test_weights_become_integers(
    name: str, convert: Callable[[onnx.ModelProto], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is, bit for bit, that of the loop with a body that reads the weights from the graph around it."""
    monkeypatch.setattr(cost, "_MIN_WEIGHTS", SIZE * SIZE)
    carrying, reading = (model_of(form, STEPS[convert]) for form in FORMS[name])
    model = convert(carrying).to_proto()
    onnx.checker.check_model(model, full_check=True)
    assert "w" not in {tensor.name for tensor in model.graph.initializer}
    assert any(node.op_type.startswith("QuantizedMatMul") for node in nodes_of(model.graph))
    sessions = make_session(model, "native"), stock_session(model)
    expected = make_session(convert(reading).to_proto(), "native")
    for iterations in (3, 1 if name == "Scan" else 0):  # ONNX Runtime has no Scan of nothing
        (wanted,) = expected.run(["y"], feeds(iterations))
        for session in sessions:
            assert_same(session.run(["y"], feeds(iterations))[0], wanted)


OTHERS = {
    "results of the graph": (CARRYING_LOOP, f"{STATE} y, {MATRIX} unused", 1),
    "nothing else": (
        f"""v = Identity(w) y = Loop(n, yes, v) <body = b (int64 i, bool go, {MATRIX} s) => (bool go2, {MATRIX} s2)
            {{ go2 = Identity(go) s2 = Identity(s) }}>""",
        f"{MATRIX} y",
        0,
    ),
    "each iteration's copy": (
        f"""y, each = Loop(n, yes, w) <body = b (int64 i, bool go, {MATRIX} s) => (bool g, {MATRIX} s2, {MATRIX} s3)
            {{ g = Identity(go) s2 = Identity(s) s3 = Identity(s) }}>""",
        f"{MATRIX} y, float[k, {SIZE}, {SIZE}] each",
        0,
    ),
    "two that change places": (
        f"""y, z = Loop(n, yes, w, u) <body = b (int64 i, bool go, {MATRIX} s, {MATRIX} t)
            => (bool g, {MATRIX} s2, {MATRIX} t2) {{ g = Identity(go) s2 = Identity(t) t2 = Identity(s) }}>""",
        f"{MATRIX} y, {MATRIX} z",
        2,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_results_stay(name: str) -> None:
    """Also of loops that carry nothing else, and of states that only seem to stay the same."""
    body, outputs, states = OTHERS[name]
    before = model_of("u = Neg(w) " + body, outputs=outputs)
    after = to_proto(without_carried_invariants(ir.from_proto(before)))
    onnx.checker.check_model(after, full_check=True)
    loops = [node for node in nodes_of(after.graph) if node.op_type == "Loop"]
    assert sum(len(node.input) - 2 for node in loops) == states
    for iterations in (3, 0):
        results = [stock_session(model).run(None, feeds(iterations)) for model in (before, after)]
        for actual, wanted in zip(*results, strict=True):
            assert_same(actual, wanted)


def test_models_without_them_stay() -> None:
    model = ir.from_proto(model_of(LOOP))
    assert without_carried_invariants(model) is model
