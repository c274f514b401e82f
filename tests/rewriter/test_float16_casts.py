"""Float16 models: the Casts of ONNX Runtime, written into the model, change no bit, and chains become operators.

More than 450 lines: each place of a Cast needs a model of its own, and all share the comparison of types and bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import Array, assert_same, diagonals, make_session, stock_session, with_one_nan
from onnx import numpy_helper, parser

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.float16.casts import has_float16_node, has_node, write_casts
from ort_dynq.rewriter.float16.graph import GraphCasts
from ort_dynq.rewriter.metadata import FLOAT16_CASTS
from ort_dynq.rewriter.normal_form import inlined
from ort_dynq.runtime import version
from ort_dynq.storage import load
from ort_dynq.verification import verify

RANGE = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one)"
CHAINS = {
    "quotient": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit) y = Mul(c, s)",
    "codes": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit) q = Cast<to = 3>(c)"
    " f = Cast<to = 10>(q) y = Mul(f, s)",
    "reshaped codes": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit)"
    " q = Cast<to = 3>(c) f = Cast<to = 10>(q) g = Unsqueeze(f, one) i = Unsqueeze(s, one) j = Mul(g, i)"
    " y = Squeeze(j, one)",
    "clipped": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit)"
    " k = Cast<to = 10>(c) y = Mul(k, s)",
    "scale": f"{RANGE} t = Div(m, limit) u = Max(t, eps) s = Max(u, eps) d = Div(x, s) r = Round(d) "
    "c = Clip(r, low, limit) y = Mul(c, s)",
    "inverse": f"{RANGE} b = Max(m, eps) k = Max(b, eps) s = Div(limit, k) d = Mul(x, s) r = Round(d) "
    "c = Clip(r, low, limit) y = Div(c, s)",
    "estimator": f"{RANGE} b = Max(m, eps) k = Reciprocal(b) s = Mul(k, limit) d = Mul(x, s) r = Round(d)"
    " c = Clip(r, low, limit) e = Sub(c, d) f = Add(d, e) y = Div(f, s)",
    "range": "g = Mul(x, third) a = Abs(g) m = ReduceMax<keepdims = 1>(a, one) b = Max(m, eps) k = Max(b, eps)"
    " s = Div(k, limit) d = Div(g, s) r = Round(d) c = Clip(r, low, limit) y = Mul(c, s)",
    "unclipped": f"{RANGE} b = Max(m, eps) s = Div(b, limit) d = Div(x, s) r = Round(d) y = Mul(r, s)",
    "asymmetric": "l = ReduceMin<keepdims = 1>(x, one) h = ReduceMax<keepdims = 1>(x, one) w = Sub(h, l)"
    " t = Div(w, levels) u = Max(t, eps) s = Max(u, eps) n = Div(l, s) o = Round(n) v = Sub(low, o)"
    " z = Clip(v, low, limit) d = Div(x, s) r = Round(d) p = Add(r, z) c = Clip(p, low, limit) e = Sub(c, z)"
    " y = Mul(e, s)",
}
CODES = "o = Clip(v, low, limit) i = Round(o) q = Cast<to = 3>(i) z = Cast<to = 10>(q)"
SUM = "d = Div(x, s) p = Add(d, z) c = Clip(p, low, limit) r = Round(c) e = Sub(r, z) y = Mul(e, s)"
CHAINS |= {  # compressed-tensors adds the zero point before it rounds
    "sum": "l = ReduceMin<keepdims = 1>(x, one) h = ReduceMax<keepdims = 1>(x, one) w = Sub(h, l)"
    f" s = Div(w, levels) t = Div(l, s) v = Sub(low, t) {CODES} {SUM}",
    "sum of zero": f"{RANGE} s = Div(m, limit) n = Shape(s) v = Expand(zero, n) {CODES} {SUM}",
}
SPECIALS = [0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan]


def model_of(
    body: str, before: str = "float16[N, K] x", outputs: str = "float16[N, K] y", functions: Sequence[str] = ()
) -> bytes:
    constants = {"limit": 127, "low": -128, "eps": 1e-3, "third": 1 / 3, "levels": 255, "zero": 0}
    own = "".join(f'<domain: "own", opset_import: ["" : 18, "own" : 1]> {function}' for function in functions)
    head = '<ir_version: 9, opset_import: ["" : 18, "own" : 1, "com.microsoft" : 1]>'
    model = parser.parse_model(f"{head} g ({before}) => ({outputs}) {{ {body} }} {own}")
    model.graph.initializer.extend(numpy_helper.from_array(np.float16(v), name) for name, v in constants.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "one"))
    return bytes(model.SerializeToString())


def rows(count: int = 64, length: int = 257) -> Array:
    """Rows whose quotients are ties, and neighbors of ties that float16 rounds to ties; rows of special values."""
    rng = np.random.default_rng(0)
    x = (rng.integers(-254, 255, (count, length)) / 2).astype(np.float16)
    x += (rng.random(x.shape) < 0.5) * np.spacing(x) * rng.choice(np.float16([-1, 1]), x.shape)
    x[:, 0] = 127
    x *= np.float16(rng.uniform(0.5, 2, (count, 1)))
    x[:8] = rng.choice(np.float16(SPECIALS[:7]), (8, length))
    x[8:12, 1:] = rng.choice(np.float16(SPECIALS[:9]), (4, length - 1))
    x[12, length // 2] = np.nan
    x[13] = 0
    return x


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    model = model_of(CHAINS[name])
    result = rewrite(model, exact=True)
    assert "RowProgram" in {finding.operator for finding in result.report.rewritten}, result.report
    content = result.to_proto().SerializeToString()
    for x in (rows(), rows(20, 1), np.zeros((0, 5), np.float16)):
        (expected,) = stock_session(model).run(None, {"x": x})
        (actual,) = make_session(content, "native").run(None, {"x": x})
        assert_same(with_one_nan(actual), with_one_nan(expected))
        (without_the_plugin,) = stock_session(content).run(None, {"x": x})
        assert_same(with_one_nan(without_the_plugin), with_one_nan(expected))


@pytest.mark.parametrize(
    "body",
    [
        *CHAINS.values(),
        "d = Div(x, limit) r = Round(d) t = Transpose(r) u = Transpose(t) y = Mul(u, x)",
        "h = Mul(x, third) t = Transpose(h) u = Transpose(t) r = Round(h) v = Add(u, r) y = Softmax(v)",
        "h = Mul(x, third) k = Cast<to = 1>(h) l = Cast<to = 10>(k) r = Round(l) v = Add(l, r) y = Max(v, h)",
        "h = Mul(x, third) i = Cast<to = 6>(h) f = Cast<to = 10>(i) r = Round(f) v = Add(f, r) y = Mul(v, third)",
        "h = Mul(x, third) r = Round(h) c = Clip(r, low) y = Add(c, h)",
        "h = Mul(x, third) r = Round(h) q = Greater(r, h) y = Where(q, r, h)",
        "h = Mul(x, third) r = Round(h) v = Relu(r) y = Mul(v, third)",
        "h = Mul(x, third) r = Round(h) v = Softmax(r) y = Mul(v, third)",
    ],
)
def test_casts_change_no_bit(body: str) -> None:
    model = model_of(body)
    written = load(model)
    assert write_casts(written)
    x = rows()
    (expected,) = stock_session(model).run(None, {"x": x})
    (actual,) = stock_session(ir.to_proto(written)).run(None, {"x": x})
    assert_same(with_one_nan(actual), with_one_nan(expected))


@pytest.mark.parametrize(
    ("chain", "function"),
    [
        ("w = Relu(f) y = Mul(w, third)", ""),
        ("w = ReduceLogSumExp<keepdims = 1>(f, one) y = Mul(w, third)", ""),
        ("w = own.Largest(f, third) y = Mul(w, third)", "Largest (p, q) => (o) { o = Max(q, p) }"),
        ("w = own.Sub(f, x) y = Neg(w)", "Sub (p, q) => (o) { o = Sub(q, p) }"),
        ("v, w = own.Cast(f) y = Neg(w)", "Cast (p) => (u, o) { o = Neg(p) u = Exp(p) }"),
    ],
)
def test_nodes_that_onnxruntime_expands(chain: str, function: str) -> None:
    """It replaces some nodes by others, which it may run in float16 or not: the Casts are right, or the model stays."""
    body = CHAINS["quotient"].replace("y =", "q =") + " f = MatMul(q, weights) "
    head = '<ir_version: 9, opset_import: ["" : 18, "own" : 1]> g (float16[N, 64] x) => (float16[N, M] y)'
    text = f"{head} {{ {body + chain} }}"
    if function:
        text += f' <domain: "own", opset_import: ["" : 18]> {function}'
    model = parser.parse_model(text)
    rng = np.random.default_rng(1)
    constants = {"limit": 127, "low": -128, "third": 1 / 3, "weights": rng.normal(0, 0.1, (64, 64))}
    model.graph.initializer.extend(numpy_helper.from_array(np.float16(v), name) for name, v in constants.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "one"))
    x = rng.normal(0, 3, (40, 64)).astype(np.float16)
    (expected,) = stock_session(model).run(None, {"x": x})
    (actual,) = stock_session(rewrite(model, exact=True).to_proto()).run(None, {"x": x})
    assert_same(actual, expected)
    # Before 1.23, ONNX Runtime rounds other values if a session has the plugin: see docs/numerics.md.
    passed = verify(model, model, inputs={"x": x}).passed
    assert passed or version() < (1, 23)
    # The rewritten model has no function left that ONNX Runtime expands: it may pass where the model itself does not.
    assert verify(model, rewrite(model).model, inputs={"x": x}).passed or not passed


@pytest.mark.parametrize(
    "between",
    [
        "h = com.microsoft.Gelu(f)",
        "h = com.microsoft.BiasGelu(f, bias)",
        "h = com.microsoft.FastGelu(f, bias)",
        "e = com.microsoft.QuickGelu(f) h = Mul(e, third)",
        "h = com.microsoft.SkipLayerNormalization(f, x, gamma, bias)",
        "n, , , e = com.microsoft.SkipLayerNormalization(f, x, gamma, bias) h = Add(n, e)",
        "h = com.microsoft.FusedMatMul<alpha = 0.5>(f, weights)",
    ],
)
def test_operators_of_onnxruntime(between: str) -> None:
    """Chains before and after nodes that its optimizers write."""
    again = re.sub(r"\b([amsdrck])\b", r"\g<1>2", re.sub(r"\bx\b", "h", CHAINS["clipped"]))
    body = f"{CHAINS['clipped'].replace('y =', 'f =')} {between} {again}"
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
        f" g (float16[N, 64] x) => (float16[N, 64] y) {{ {body} }}"
    )
    rng = np.random.default_rng(1)
    constants = {"limit": 127, "low": -128, "third": 1 / 3, "weights": rng.normal(0, 0.1, (64, 64))}
    constants |= {"bias": rng.normal(0, 1, 64), "gamma": rng.normal(1, 0.1, 64)}
    model.graph.initializer.extend(numpy_helper.from_array(np.float16(v), name) for name, v in constants.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "one"))
    result = rewrite(model, exact=True)
    found = [finding.operator for finding in result.report.rewritten]
    assert found.count("RowProgram") == 2, result.report
    x = rng.normal(0, 3, (40, 64)).astype(np.float16)
    x[0] = 0
    (expected,) = stock_session(model).run(None, {"x": x})
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        assert_same(with_one_nan(session.run(None, {"x": x})[0]), with_one_nan(expected))


def test_zeros_of_max_and_min(isa: str) -> None:
    """For zeros of different signs, ONNX Runtime's Max and Min of float32 return another one than in float16."""
    body = "h = Mul(x, third) t = Round(h) u = Max(t, zero) k = Mul(u, third) v = Min(t, zero) w = Mul(v, third)"
    outputs = "float16[N, K] y, float16[N, K] k, float16[N, K] w"
    model = model_of(f"{CHAINS['quotient']} {body}", outputs=outputs)
    result = rewrite(model, exact=True)
    assert result.report.rewritten
    x = np.resize(np.float16([0, -0.0, 0.25, -0.25, 1, -1, 7, -7]), (64, 128))
    same_bits(model, result.to_proto().SerializeToString(), x=x)
    assert verify(model, result.model, inputs={"x": x}).passed


def test_max_and_min_in_a_branch_and_around_it() -> None:
    """The Casts of both have names of their own."""
    body = f"""{CHAINS["quotient"]} h = Mul(x, third) t = Round(h) u = Max(t, zero) k = Mul(u, third) z = If(yes) <
        then_branch = b () => (float16[N, K] p) {{ g = Mul(k, third) o = Round(g) v = Min(o, zero) p = Mul(v, third) }},
        else_branch = e () => (float16[N, K] n) {{ n = Mul(k, third) }}>"""
    model = model_of(body, "float16[N, K] x, bool yes", "float16[N, K] y, float16[N, K] z")
    result = rewrite(model, exact=True)
    assert result.report.rewritten
    for yes in (True, False):
        same_bits(model, result.to_proto().SerializeToString(), x=rows(40, 129), yes=np.array(yes))


def test_long_sums_of_integers() -> None:
    """Every sum is looked at once."""
    sums = " ".join(f"r{i + 1} = Add(r{i}, r{i})" for i in range(64))
    model = model_of(f"{CHAINS['quotient'].replace('y =', 'w =')} r0 = Round(w) {sums} y = Clip(r64, low, limit)")
    assert rewrite(model).report.rewritten


def test_names_of_onnxruntime() -> None:
    """A model that it has saved, or one with values of these names."""
    body = CHAINS["quotient"].replace("d =", "InsertedPrecisionFreeCast_d =")
    model = model_of(body.replace("(d)", "(InsertedPrecisionFreeCast_d)"))
    assert not write_casts(load(model))


def test_models_without_float16_chains_stay() -> None:
    chains = ("Round", "DequantizeLinear")
    assert not has_node(load(model_of(f"{RANGE} y = Div(x, m)")), chains)
    assert not has_float16_node(load(model_of("f = Cast<to = 1>(x) r = Round(f) y = Cast<to = 10>(r)")), chains)
    body = "h = Cast<to = 10>(x) b = Cast<to = 1>(h) d = Div(b, b) r = Round(d) y = Mul(r, d)"
    wide = model_of(body, "float[N] x", "float[N] y")
    assert not has_float16_node(load(wide), chains)


def test_a_round_without_a_chain_leaves_the_model() -> None:
    model = model_of("d = Mul(x, third) r = Round(d) y = Add(r, x)")
    result = rewrite(model)
    assert not result.report.rewritten
    assert result.to_proto() == ir.to_proto(load(model))


@pytest.mark.parametrize(("chain", "is_function"), [("quotient", False), ("quotient", True), ("estimator", False)])
def test_products(chain: str, is_function: bool) -> None:
    """The product becomes one of integers; verification computes the original's in float64, with the same Casts."""
    rng = np.random.default_rng(1)
    body = f"{CHAINS[chain].replace('y =', 'dx =')} kw = Cast<to = 10>(w) v = Mul(kw, t) y = MatMul(dx, v)"
    constants = {"limit": 127, "low": -128, "eps": 1e-3, "one": np.array([-1])}
    constants |= {"w": rng.integers(-127, 128, (64, 48), np.int8), "t": rng.uniform(0.01, 0.02, 48).astype(np.float16)}
    arguments, own = ", ".join(["x", *constants]), ""
    if is_function:
        own = f'<domain: "own", opset_import: ["" : 18]> f ({arguments}) => (y) {{ {body} }}'
        body = f"y = own.f({arguments})"
    head = '<ir_version: 9, opset_import: ["" : 18, "own" : 1]>'
    model = parser.parse_model(f"{head} g (float16[N, 64] x) => (float16[N, 48] y) {{ {body} }} {own}")
    for name, value in constants.items():
        array = value if isinstance(value, np.ndarray) else np.float16(value)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    result = rewrite(model)
    assert sorted(f.operator or "" for f in result.report.rewritten) == [
        "QuantizedMatMul",
        "QuantizedMatMul of float16",
        "RowProgram",
        "RowProgram of float16",
    ]
    assert result.model.metadata_props[FLOAT16_CASTS] == "1"
    x = rows(20, 64)[14:]
    found = verify(model, result.to_proto(), inputs={"x": x})
    assert found.passed
    assert len(found.products) == 1


def test_a_reshaped_cast_to_float16_rounds() -> None:
    """ONNX Runtime leaves out a Cast before another one, but not before an Unsqueeze: the MatMul reads float16."""
    body = "f = Cast<to = 1>(x) a = Abs(f) m = ReduceMax<keepdims = 0>(a) s = Div(m, limit) d = Div(f, s)"
    body += " r = Round(d) c = Clip(r, low, limit) h = Mul(c, s) i = Cast<to = 10>(h) u = Unsqueeze(i, first)"
    body += " v = Squeeze(u, first) y = MatMul(v, w)"
    head = '<ir_version: 9, opset_import: ["" : 18]>'
    model = parser.parse_model(f"{head} g (float16[20, 64] x) => (float16[20, 48] y) {{ {body} }}")
    weights = np.random.default_rng(1).normal(0, 1, (64, 48)).astype(np.float16)
    constants = {"limit": np.float32(127), "low": np.float32(-128), "first": np.array([0])}
    for name, array in {**constants, "w": weights}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    result = rewrite(model, exact=True)
    assert "RowProgram" in {finding.operator for finding in result.report.rewritten}
    x = {"x": rows(40, 64)[14:34]}
    (expected,) = stock_session(model).run(None, x)
    assert_same(make_session(result.to_proto(), "native").run(None, x)[0], expected)


CONSTANTS = "one, limit, low, eps, third, levels, zero"


def chain(name: str, x: str, y: str) -> str:
    """A chain from x to y. Shape inference in a subgraph knows no axes that are an initializer outside of it."""
    body = f"axes = Constant<value = int64[1] {{-1}}>() {CHAINS[name]}"
    for old, new in ((r"\bone\b", "axes"), (r"\bx\b", x), (r"\by =", f"{y} =")):
        body = re.sub(old, new, body)
    return body


def branches(name: str, x: str, y: str) -> str:
    """A branch with the chain; the other one reads the same value and has values of the same names."""
    return f"""{y} = If(yes) <then_branch = t () => (float16[N, K] inner) {{ {chain(name, x, "inner")} }},
        else_branch = e () => (float16[N, K] inner) {{ d = Neg({x}) inner = Exp(d) }}>"""


def loop(name: str, x: str, y: str) -> str:
    return f"""count = Constant<value_int = 2>() {y} = Loop(count, , {x}) <
        body = b (int64 step, bool go, float16[N, K] state) => (bool goes, float16[N, K] next)
        {{ goes = Identity(go) {chain(name, "state", "out")} more = Add(out, {x}) next = Sub(state, more) }}>"""


def call(function: str, x: str, y: str) -> str:
    return f"{y} = own.{function}({x}, yes, {CONSTANTS})"


def function(name: str, body: str) -> str:
    return f"{name} (given, yes, {CONSTANTS}) => (made) {{ {body} }}"


PLACES: dict[str, Callable[[str], list[str]]] = {
    "If": lambda name: [branches(name, "scaled", "result")],
    "Loop": lambda name: [loop(name, "scaled", "result")],
    "Scan": lambda name: [
        f"""result = Scan<num_scan_inputs = 1, body = b (float16[K] row) => (float16[K] out)
        {{ {chain(name, "row", "out")} }}>(scaled)"""
    ],
    "function": lambda name: [call("f", "scaled", "result"), function("f", chain(name, "given", "made"))],
    "Loop in a function": lambda name: [  # `state` is a value of the main graph, too
        f"state = Neg(scaled) {call('f', 'state', 'result')}",
        function("f", loop(name, "given", "made")),
    ],
    "If in functions": lambda name: [
        call("f", "scaled", "result"),
        function("f", f"{call('inner_f', 'given', 'half')} {call('inner_f', 'half', 'made')}"),
        function("inner_f", branches(name, "given", "made")),
    ],
    "function in branches": lambda name: [
        f"""result = If(yes) <then_branch = t () => (float16[N, K] inner) {{ {call("f", "scaled", "inner")} }},
        else_branch = e () => (float16[N, K] d) {{ r = Exp(x) {call("f", "r", "d")} }}>""",
        function("f", chain(name, "given", "made")),
    ],
}
"""The nodes from `scaled` to `result`, and the functions that they call."""


def in_place(place: str, name: str) -> bytes:
    """The chain between two Muls of float32. Its first and last value are rounded in a subgraph, not in a function."""
    body, *functions = PLACES[place](name)
    before, body = "float16[N, K] x, bool yes", f"scaled = Mul(x, third) {body} y = Mul(result, third)"
    return model_of(body, before, functions=functions)


def same_bits(model: bytes, rewritten: bytes, **feeds: Array) -> None:
    expected = stock_session(model).run(None, feeds)
    for session in (stock_session(rewritten), make_session(rewritten, "native")):
        for result, wanted in zip(session.run(None, feeds), expected, strict=True):
            assert_same(with_one_nan(result), with_one_nan(wanted))


@pytest.mark.parametrize(("place", "name"), diagonals(1, PLACES, CHAINS))
def test_chains_in_subgraphs_and_functions(place: str, name: str) -> None:
    model = in_place(place, name)
    result = rewrite(model, exact=True)
    assert "RowProgram" in {finding.operator for finding in result.report.rewritten}, result.report
    assert not result.report.unconverted
    assert result.report.rewritten[0].node.startswith("r")
    assert {function.domain for function in result.model.functions.values()} == {"ort_dynq"}
    for yes in (True, False):
        same_bits(model, result.to_proto().SerializeToString(), x=rows(40, 129), yes=np.array(yes))


@pytest.mark.parametrize("place", PLACES)
def test_other_roundings_in_a_subgraph_leave_the_model(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts that do not round: the saved graphs differ only in the nodes of subgraphs."""
    monkeypatch.setattr(GraphCasts, "_rounded_float32", lambda casts, value: casts._float32(value.name))
    model = inlined(load(in_place(place, "quotient")))
    before = ir.to_proto(model)
    assert not write_casts(model)
    assert ir.to_proto(model) == before


@pytest.mark.parametrize(
    "function",
    [
        "f <k: int, axes: ints = [-1]> (given, limit, low) => (made) { a = Abs(given)"
        " one = Constant<value_ints: ints = @axes>() m = ReduceMax<keepdims: int = @k>(a, one) s = Div(m, limit)"
        " d = Div(given, s) r = Round(d) c = Clip(r, low, limit) made = Mul(c, s) }",
        "f <k: int> (given, limit, low) => (d) { one = Constant<value = int64[1] {-1}>()"
        " limit_2 = Abs(given) m = ReduceMax<keepdims = 1>(limit_2, one) s = Div(m, limit) q = Div(given, s)"
        " r = Round(q) c = Clip(r, low, limit) d = Mul(c, s) }",
    ],
)
def test_attributes_and_names_of_functions(function: str) -> None:
    """An inlined function has the names of values in a branch, of initializers and of another call."""
    body = """s = own.f<k = 1>(x, limit, low) r = own.f<k = 1>(s, limit, low) y = If(yes) <
        then_branch = t () => (float16[N, K] made) { d = Exp(s) a = own.f<k = 1>(d, limit, low) made = Add(a, r) },
        else_branch = e () => (float16[N, K] d) { a = Mul(r, s) d = own.f<k = 1>(a, limit, low) }>"""
    model = model_of(body, "float16[N, K] x, bool yes", functions=[function])
    result = rewrite(model, exact=True)
    assert [f.operator for f in result.report.rewritten].count("RowProgram") >= 3  # one may have two quantizations
    for yes in (True, False):
        same_bits(model, result.to_proto().SerializeToString(), x=rows(40, 129), yes=np.array(yes))


def test_functions_of_float32() -> None:
    constants = "limit = Constant<value_float = 127.0>() low = Constant<value_float = -128.0>()"
    wide = f"{constants} {chain('quotient', 'given', 'made')}"
    body = f"{CHAINS['quotient']} w = Cast<to = 1>(x) z = own.f(w)"
    outputs = "float16[N, K] y, float[N, K] z"
    result = rewrite(model_of(body, outputs=outputs, functions=[f"f (given) => (made) {{ {wide} }}"]), exact=True)
    converted = [each.graph for each in result.report.rewritten if each.operator == "RowProgram"]
    assert converted == ["main", "main"]


def test_functions_without_a_chain_stay() -> None:
    model = model_of("y = own.f(x, third)", functions=["f (p, third) => (r) { h = Mul(p, third) r = Round(h) }"])
    assert rewrite(model).to_proto() == ir.to_proto(load(model))


def test_functions_that_onnxruntime_does_not_call() -> None:
    """It has a kernel of the same name."""
    neg = "Neg (p) => (o) { o = Exp(p) }"
    body, *functions = PLACES["function"]("quotient")
    content = model_of(
        f"scaled = Neg(x) {body} y = Neg(result)", "float16[N, K] x, bool yes", functions=[neg, *functions]
    )
    model = onnx.ModelProto.FromString(content)
    model.functions[0].domain = ""
    result = rewrite(model, exact=True)
    assert [each.name for each in result.model.functions.values()] == ["Neg", "RowProgram"]
    for yes in (True, False):
        same_bits(model.SerializeToString(), result.to_proto().SerializeToString(), x=rows(40, 129), yes=np.array(yes))


@pytest.mark.skipif(version() < (1, 23), reason="ONNX Runtime rounds other values if a session has the plugin")
@pytest.mark.parametrize("other", ["z = Transpose(d)", "z0 = QuantizeLinear(d, m, zero8) z = Cast<to = 10>(z0)"])
def test_a_scale_that_only_some_uses_round(other: str) -> None:
    """ONNX Runtime copies DequantizeLinear for each use; beside nodes of float32, it reads the scale unrounded."""
    body = "a = Abs(x) m = ReduceMax<keepdims = 0>(a) s = Div(m, limit) q = QuantizeLinear(x, s, zero8)"
    body += f" d = DequantizeLinear(q, s, zero8) y = Abs(d) {other}"
    model = onnx.load_from_string(model_of(body, "float16[N, 257] x", "float16[] y, float16[] z"))
    model.opset_import[0].version = 21
    model.graph.initializer.append(numpy_helper.from_array(np.int8(0), "zero8"))
    x = np.random.default_rng(0).normal(0, 1, (64, 257)).astype(np.float16)
    same_bits(model.SerializeToString(), rewrite(model, exact=True).to_proto().SerializeToString(), x=x)


def test_values_that_onnxruntime_removes() -> None:
    """ONNX Runtime removes the Cast v, which a branch reads; it opens this model and cannot run it."""
    model = model_of(
        """w = Cast<to = 1>(x) v = Cast<to = 10>(w) y = If(yes) <
        then_branch = t () => (float16[N, K] a) { h = Mul(v, third) a = Round(h) },
        else_branch = e () => (float16[N, K] b) { b = Max(v, x) }>""",
        "float16[N, K] x, bool yes",
    )
    result = rewrite(model)
    assert not result.report.rewritten
    assert result.to_proto() == ir.to_proto(load(model))


@pytest.mark.parametrize("epsilon", [1e-2, 1e-3])
def test_inverse_scales_that_are_infinite_in_float16(epsilon: float) -> None:
    """127 / 1e-3 is infinite in float16: the model's row is NaN if it has a zero, and else it is 0."""
    body = f"{RANGE} wide = Cast<to = 1>(x) e = Cast<to = 1>(m) f = Max(e, bound) i = Div(most, f) s = Cast<to = 10>(i)"
    body += " t = Cast<to = 1>(s) d = Mul(wide, t) r = Round(d) c = Clip(r, least, most) g = Div(c, t)"
    body += " h = Cast<to = 10>(g) y = MatMul(h, w)"
    model = onnx.load_from_string(model_of(body, "float16[N, 32] x", "float16[N, 4] y"))
    numbers = {"bound": epsilon, "least": -128, "most": 127}
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(v), name) for name, v in numbers.items())
    codes = np.random.default_rng(0).integers(-127, 128, (32, 4))
    model.graph.initializer.append(numpy_helper.from_array((codes * 0.01).astype(np.float16), "w"))
    result = rewrite(model)
    assert "QuantizedMatMul" in {each.operator for each in result.report.findings}
    x = rows(20, 32)[14:]
    x[0], x[1], x[2] = 0, 1e-4, np.arange(32) * 1e-5
    (expected,) = stock_session(model).run(None, {"x": x})
    (actual,) = make_session(result.to_proto(), "native").run(None, {"x": x})
    assert np.isnan(expected[[0, 2]]).all() == (epsilon < 2e-3)
    assert np.allclose(actual, expected, rtol=1e-2, atol=1e-2, equal_nan=True)
