"""Chains in the subgraphs of If, Loop and Scan inside model-local functions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from branch_models import CONSTANTS, chain
from helpers import Array, assert_same, make_session, nodes_of, product_of, stock_session, with_one_nan
from rewriting import YES, F, found, rows, tails

from ort_dynq import quantize
from ort_dynq.rewriter import rewrite

WEIGHTS = ", ".join(str(code) for code in np.random.default_rng(0).integers(-127, 128, 33 * 4 - 1))
W = f"float[33, 4] w = {{127, {WEIGHTS}}}"


def if_(
    body: str, *, otherwise: str = "other = Identity(x)", constants: str = CONSTANTS, type_: str = "float[P, Q]"
) -> str:
    """The body of a function: an If with a branch that computes `inner` and has the constants as its initializers."""
    return f"""{YES} y = If(yes) <
        then_branch = t () => ({type_} inner) <{constants}> {{ {body} }},
        else_branch = e () => ({type_} other) <{constants}> {{ {otherwise} }}>"""


IF_IN_SCAN = if_(chain("row", "inner"), otherwise="other = Identity(row)", type_="float[P]")
BODIES = {
    "If": if_(chain("x", "inner")),
    "Loop": f"""count = Constant<value_int = 2>() yes = Constant<value = bool {{1}}>() y = Loop(count, yes, x) <
        body = b (int64 i, bool go, float[9, 33] state) => (bool goes, float[9, 33] next) <{CONSTANTS}>
        {{ goes = Identity(go) {chain("state", "q")} next = Sub(state, q) }}>""",
    "Scan": f"""y = Scan<num_scan_inputs = 1, body = b (float[33] row) => (float[33] out) <{CONSTANTS}>
        {{ {chain("row", "out")} }}>(x)""",
    "If in a Scan": f"""y = Scan<num_scan_inputs = 1, body = b (float[33] row) => (float[P] out)
        {{ {IF_IN_SCAN.replace("y = If", "out = If")} }}>(x)""",
}


def model_of(
    body: str, calls: str = "y = own.f(x)", *, parameters: str = "x", graph: str = "float[9, 33] x", opset: int = 18
) -> onnx.ModelProto:
    """A model that calls own.f; its body imports version `opset` of the standard operators."""
    outputs = ", ".join(f"float[M{i}, N{i}] {part.split(' =')[0]}" for i, part in enumerate(calls.split("; ")))
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 18, "own": 1]> g ({graph}) => ({outputs}) {{ {calls.replace(";", "")} }}
        <domain: "own", opset_import: ["": {opset}]> f ({parameters}) => (y) {{ {body} }}""")
    onnx.checker.check_model(model)
    return model


def check(model: onnx.ModelProto, feeds: dict[str, Array], *, exact: bool = True) -> list[str]:
    """Rewrites a model; the result is valid and, if exact, computes the same with and without the plugin.

    Returns:
        The operators that chains became.
    """
    result = rewrite(model, exact=exact)
    converted = result.to_proto()
    onnx.checker.check_model(converted)
    plain = stock_session(converted).run(None, feeds)
    expected = stock_session(model).run(None, feeds) if exact else plain
    for session_results in (plain, make_session(converted, "native").run(None, feeds)):
        for actual, wanted in zip(session_results, expected, strict=True):
            assert_same(with_one_nan(actual), with_one_nan(wanted))
    return found(result.report)


@pytest.mark.parametrize("name", BODIES)
def test_chain_with_its_constants_in_the_subgraph(name: str) -> None:
    """The function is inlined, and so are its subgraphs."""
    model = model_of(BODIES[name])
    assert check(model, {"x": rows((9, 33))}) == ["RowProgram"]
    converted = rewrite(model).to_proto()
    assert not [each for each in converted.functions if each.domain == "own"]
    assert "RowProgram" in {node.op_type for node in nodes_of(converted.graph)}


INFERRED = "x2 = Neg(x) d = Div(x2, k) r = Round(d) c = Clip(r, low, high) inner = Mul(c, k)"


@pytest.mark.parametrize("rows_of_v", [9, 4])
def test_shapes_in_a_branch_of_each_call(rows_of_v: int) -> None:
    """The type and shape of x2 are not declared; without its shape, k is not known to broadcast to it."""
    graph = f"float[9, 33] x, float[{rows_of_v}, 33] v, float[33] k"
    model = model_of(if_(INFERRED), "y = own.f(x, k); z = own.f(v, k)", parameters="x, k", graph=graph)
    feeds = {"x": rows((9, 33)), "v": rows((rows_of_v, 33)), "k": np.full(33, 0.5, F)}
    assert check(model, feeds) == ["RowProgram"] * 2


@pytest.mark.parametrize("exact", [True, False])
def test_product_in_a_branch(exact: bool) -> None:
    body = chain("x", "dx") + " inner = MatMul(dx, w)"
    model = model_of(if_(body, otherwise="other = MatMul(x, w)", constants=f"{CONSTANTS}, {W}"))
    expected = ["RowProgram"] if exact else ["QuantizedMatMul", "RowProgram"]
    feeds = {"x": np.where(np.isfinite(x := rows((9, 33))), x, F(1))}
    assert check(model, feeds, exact=exact) == expected
    graph = rewrite(model, exact=exact).to_proto().graph
    (branch,) = (a.g for node in graph.node for a in node.attribute if a.name == "then_branch")
    assert ("w" in {tensor.name for tensor in branch.initializer}) == exact


def test_branch_of_a_function_of_another_opset() -> None:
    """It cannot be inlined. (ONNX Runtime does not run such a model.)"""
    body = if_(chain("x", "inner").replace("ReduceMax(a, one)", "ReduceMax<axes = [-1]>(a)"))
    model = model_of(body, opset=17)
    report = rewrite(model).report
    assert not report.rewritten
    assert "its functions cannot be inlined: Opset mismatch when inlining function 'own::f'" in report.summary


def test_weights_that_two_branches_share() -> None:
    """Folded weights go where both branches find them."""
    branch = """q{0} = QuantizeLinear<axis = 1>(x, s) d{0} = DequantizeLinear<axis = 1>(q{0}, s)
        {1} = MatMul(d{0}, w)"""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]> g (float[4, 6] x, float[6] s, bool yes) => (float[4, 2] y)
        <int8[6, 2] codes = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, float[3, 2] ws = {{1, 2, 3, 0.3, 0.2, 0.1}}>
        {{
            w = DequantizeLinear<axis = 0, block_size = 2>(codes, ws)
            y = If(yes) <then_branch = t () => (float[4, 2] u) {{ {branch.format("t", "u")} }},
                         else_branch = e () => (float[4, 2] v) {{ {branch.format("e", "v")} }}>
        }}""")
    onnx.checker.check_model(model)
    for yes in (True, False):
        feeds = {"x": rows((9, 6))[:4], "s": np.full(6, 0.1, F), "yes": np.array(yes)}
        assert check(model, feeds, exact=False) == ["Constant", "DynamicFakeQuantize", "DynamicFakeQuantize"]
        assert check(model, feeds) == ["DynamicDequantize", "DynamicFakeQuantize", "DynamicFakeQuantize"]


def nested(count: int, *, callers_first: bool) -> onnx.ModelProto:
    """A model with functions f0 to f<count - 1> that each call the next one; the last one has a chain."""
    last = chain("x", "y").replace("s = Div(m, c127)", "s0 = Div(m, c127) s = Mul(s0, gain)")
    texts = [f"f{i} (x, gain) => (y) {{ n = Neg(x) y = own.f{i + 1}(n, gain) }}" for i in range(count - 1)]
    constants = "one = Constant<value_ints = [-1]>()" + "".join(
        f" {name} = Constant<value_float = {number}>()" for name, number in (("c127", 127.0), ("low", -128.0))
    )
    texts.append(f"f{count - 1} (x, gain) => (y) {{ {constants} high = Identity(c127) {last} }}")
    imports = '<domain: "own", opset_import: ["": 18, "own": 1]>'
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[N, 33] x, float[1] gain) => (float[N, M] y)
        {{ y = own.f0(x, gain) }} {" ".join(f"{imports} {text}" for text in texts[:: 1 if callers_first else -1])}""")
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("callers_first", [True, False])
def test_functions_that_call_functions(callers_first: bool) -> None:
    """The shape of gain is known from the only call of f0, wherever it stands in the model."""
    feeds = {"x": rows((9, 33)), "gain": np.array([1.5], F)}
    assert check(nested(3, callers_first=callers_first), feeds) == ["RowProgram"]


def test_weights_that_a_function_is_given() -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18, "own": 1]> g (float[n, 4] x) => (float[n, 1] y)
        <float[4, 1] w = {{1, 2, 3, 4}}, float[4, 1] v = {{1, 2, 3, 5}}>
        {{ z = own.f(x, w) u = own.f(x, v) y = Add(z, u) }}
        <domain: "own", opset_import: ["": 18]> f (x, w) => (y) {{
            one = Constant<value = int64[1] {{-1}}>() c127 = Constant<value = float {{127}}>()
            low = Constant<value = float {{-128}}>() high = Constant<value = float {{127}}>()
            {chain("x", "dx")} y = MatMul(dx, w) }}"""
    )
    assert found(rewrite(model).report) == ["QuantizedMatMul", "QuantizedMatMulProgram", "RowProgram", "RowProgram"]


def test_products_in_a_function() -> None:
    """Both products read the same packed weights."""
    nodes = "one = Constant<value = int64[1] {-1}>() "
    for name, number in (("c127", 127), ("low", -128), ("high", 127)):
        nodes += f"{name} = Constant<value = float {{{number}}}>() "
    weights = f"w = Constant<value = float[33, 4] {{127, {WEIGHTS}}}>()"
    body = f"{nodes} {weights} {chain('x', 'dx')} p = MatMul(dx, w) n = MatMul(dx, w) rn = Relu(n) y = Sub(p, rn)"
    model = model_of(body)
    feeds = {"x": np.where(np.isfinite(x := rows((9, 33))), x, F(1))}
    expected = ["QuantizedMatMulProgram", "QuantizedMatMulProgram", "RowProgram"]
    assert check(model, feeds, exact=False) == expected
    converted = rewrite(model).to_proto()
    assert tails(converted) == ["dst = Clip(x, 0.0, inf)", "dst = Sub(x, tensor1)"]
    nodes_ = converted.graph.node
    products = [node for node in nodes_ if product_of(node.op_type)]
    assert len(products) == 2
    assert len({tuple(node.input[3:8]) for node in products}) == 1
    assert "w" not in {output for node in nodes_ for output in node.output}


def test_branches_share_packed_weights() -> None:
    """Also with the graph around them."""
    branch = """then_branch = t () => (float[n, 160] u) { a = MatMul(x, w) u = Relu(a) },
        else_branch = e () => (float[n, 160] v) { b = MatMul(x, w) v = Neg(b) }"""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]> g (float[n, 160] x, bool yes) => (float[n, 160] y, float[n, 160] z)
        {{ y = If(yes) <{branch}> z = MatMul(x, w) }}""")
    w = np.random.default_rng(0).standard_normal((160, 160), F)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    converted = quantize(model).to_proto()
    onnx.checker.check_model(converted, full_check=True)
    products = [node for node in nodes_of(converted.graph) if product_of(node.op_type)]
    assert len(products) == 3
    assert len({tuple(node.input[3:8]) for node in products}) == 1
    assert len(converted.SerializeToString()) < w.nbytes
    x = np.random.default_rng(1).standard_normal((5, 160), F)
    for yes, function in ((True, lambda z: np.maximum(z, 0)), (False, np.negative)):
        for session in (make_session(converted, "native"), stock_session(converted)):
            y, z = session.run(None, {"x": x, "yes": np.array(yes)})
            assert_same(y, function(z))
