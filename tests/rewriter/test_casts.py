"""Float16 models: the Casts of ONNX Runtime, written into the model, change no bit, and chains become operators."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from float16_models import CHAINS, PLACES, RANGE, model_of, rows, same_bits
from helpers import assert_same, diagonals, make_session, stock_session, with_arrays, with_one_nan
from onnx import numpy_helper, parser

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.float16.casts import has_float16_node, has_node, write_casts
from ort_dynq.rewriter.float16.graph import GraphCasts
from ort_dynq.rewriter.metadata import FLOAT16_CASTS
from ort_dynq.rewriter.normal_form import inlined
from ort_dynq.runtime import version
from ort_dynq.storage import load
from ort_dynq.verification import verify


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    model = model_of(CHAINS[name])
    result = rewrite(model, exact=True)
    assert "RowProgram" in {finding.operator for finding in result.report.rewritten}, result.report
    content = result.to_proto().SerializeToString()
    original, *sessions = stock_session(model), make_session(content, "native"), stock_session(content)
    for x in (rows(), rows(20, 1), np.zeros((0, 5), np.float16)):
        (expected,) = original.run(None, {"x": x})
        for session in sessions:
            assert_same(with_one_nan(session.run(None, {"x": x})[0]), with_one_nan(expected))


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
    # Before 1.23, ONNX Runtime rounds other values if a session has the plugin: see docs/how-results-are-proved.md.
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
    with_arrays(model, {**constants, "w": weights})
    result = rewrite(model, exact=True)
    assert "RowProgram" in {finding.operator for finding in result.report.rewritten}
    x = {"x": rows(40, 64)[14:34]}
    (expected,) = stock_session(model).run(None, x)
    assert_same(make_session(result.to_proto(), "native").run(None, x)[0], expected)


"""The nodes from `scaled` to `result`, and the functions that they call."""


def in_place(place: str, name: str) -> bytes:
    """The chain between two Muls of float32. Its first and last value are rounded in a subgraph, not in a function."""
    body, *functions = PLACES[place](name)
    before, body = "float16[N, K] x, bool yes", f"scaled = Mul(x, third) {body} y = Mul(result, third)"
    return model_of(body, before, functions=functions)


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
