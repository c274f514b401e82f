"""Operators read and write float16 without Casts, where no bit changes: not beside nodes that ONNX Runtime computes in
float32."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from float16_models import CHAINS, rows
from helpers import Array, assert_same, make_session, stock_session, with_arrays, with_one_nan
from onnx import helper, numpy_helper, parser

from ort_dynq.rewriter import Report, rewrite
from ort_dynq.rewriter.analysis.standard import FLOAT16_MOVES
from ort_dynq.rewriter.float16.casts import saved_by_onnxruntime
from ort_dynq.rewriter.float16.operands import RULE
from ort_dynq.verification import verify

CODES = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) s = Div(m, limit) d = Div(x, s) r = Round(d)"
CODES += " c = Clip(r, low, limit) q = Cast<to = 3>(c)"
WIDE = "w = Cast<to = 1>(x) a = Abs(w) m = ReduceMax<keepdims = 1>(a, one) s = Div(m, wide_limit) d = Div(w, s)"
WIDE += " r = Round(d) c = Clip(r, wide_low, wide_limit) q = Cast<to = 3>(c) g = Cast<to = 1>(q) f = Mul(g, s)"


def model_of(body: str, output: str = "float16[N, K] y", *, opset: int = 18) -> bytes:
    constants: dict[str, Array] = {
        "limit": np.float16(127),
        "low": np.float16(-128),
        "half": np.float16(0.5),
        "third": np.float16(0.3),
        "levels": np.float16(255),
        "eps": np.float16(1e-3),
        "wide_limit": np.float32(127),
        "wide_low": np.float32(-128),
        "one": np.array([-1]),
        "shape": np.array([-1, 257]),
        "first": np.array([0, 2]),
        "codes": np.random.default_rng(2).integers(-127, 128, (257, 24), np.int8),
        "steps": np.float16(np.random.default_rng(3).uniform(0.01, 0.02, 24)),
        "bias": np.float16(np.random.default_rng(4).normal(0, 9, 24)),
        "wide_bias": np.float32(np.random.default_rng(4).normal(0, 9, 24)),
    }
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g (float16[N, 257] x) => ({output}) {{ {body} }}'
    )
    with_arrays(model, constants)
    return bytes(model.SerializeToString())


def casts_removed(report: Report) -> int:
    return sum(finding.rule == RULE.name for finding in report.rewritten)


def check(model: bytes, *, exact: bool = True) -> tuple[onnx.GraphProto, int]:
    """Compares with the original, or verifies the products. Returns the graph, and how often the rule applied."""
    result = rewrite(model, exact=exact)
    proto = result.to_proto()
    x = rows()
    if exact:
        expected = stock_session(model).run(None, {"x": x})
        for session in (make_session(proto, "native"), stock_session(proto)):
            for actual, other in zip(session.run(None, {"x": x}), expected, strict=True):
                assert_same(with_one_nan(actual), with_one_nan(other))
    else:
        found = verify(model, proto, inputs={"x": x[14:]})
        assert found.passed, found
        assert found.products
    return proto.graph, casts_removed(result.report)


@pytest.mark.parametrize(
    ("body", "removed", "casts"),
    [
        (CHAINS["quotient"], 1, 0),
        (CHAINS["asymmetric"], 1, 0),
        (f"{WIDE} y = Cast<to = 10>(f)", 1, 0),
        # The source is only moved.
        (f"t = Reshape(x, shape) {WIDE.replace('(x)', '(t)')} y = Cast<to = 10>(f)", 1, 0),
        # The source is computed in float32, and not rounded: the Casts stay.
        (f"t = Mul(x, half) {WIDE.replace('(x)', '(t)')} y = Cast<to = 10>(f)", 0, 2),
        # A copy of a value that is stored does not round; the copy of a result does.
        (f"t = Identity(x) {WIDE.replace('(x)', '(t)')} y = Cast<to = 10>(f)", 1, 0),
        (f"h = Mul(x, third) t = Identity(h) {WIDE.replace('(x)', '(t)')} y = Cast<to = 10>(f)", 0, 2),
        # ONNX Runtime removes Casts to float32 and back, too: nothing rounds this source.
        (
            f"t = Mul(x, third) u = Cast<to = 1>(t) v = Cast<to = 10>(u) {WIDE.replace('(x)', '(v)')}"
            " y = Cast<to = 10>(f)",
            0,
            4,
        ),
        # The result is read by a node that is computed in float32.
        (f"{WIDE} h = Cast<to = 10>(f) y = Mul(h, half)", 0, 2),
        (f"{WIDE} h = Cast<to = 10>(f) t = Reshape(h, shape) y = Transpose<perm = [0, 1]>(t)", 1, 0),
        (f"{WIDE} h = Cast<to = 10>(f) t = Cast<to = 1>(h) e = Exp(t) y = Cast<to = 10>(e)", 1, 2),
        # Something reads float32.
        (f"{WIDE} h = Cast<to = 10>(f) t = Cast<to = 10>(f) y = Add(h, t)", 0, None),
        (f"{WIDE} e = Neg(f) p = Cast<to = 10>(e) h = Cast<to = 10>(f) y = Max(h, p)", 0, None),
    ],
)
def test_chains(body: str, removed: int, casts: int | None) -> None:
    graph, count = check(model_of(body))
    assert count == removed
    if casts is not None:
        assert sum(node.op_type == "Cast" for node in graph.node) == casts


def test_codes() -> None:
    """Only the input may be float16."""
    graph, count = check(model_of(f"{CODES} k = Cast<to = 6>(q) y = Cast<to = 3>(k)", "int8[N, K] y"))
    assert count == 1
    assert [node.op_type for node in graph.node if node.domain] == ["RowProgram"]


def test_several_outputs() -> None:
    """A graph output has one name: two of the same value keep their Casts."""
    body = f"{WIDE} y = Cast<to = 10>(f) z = Cast<to = 10>(f)"
    assert check(model_of(body, "float16[N, K] y, float16[N, K] z"))[1] == 0
    assert check(model_of(body, "float16[N, K] y, float[N, K] f"))[1] == 0


def test_old_opsets_keep_the_cast_of_results() -> None:
    """The function of the operator rounds with CastLike, of opset 15."""
    chain = WIDE.replace("(a, one)", "(a)").replace("keepdims", "axes = [-1], keepdims")
    for opset, removed in ((15, 1), (14, 0)):
        assert check(model_of(f"{chain} y = Cast<to = 10>(f)", opset=opset))[1] == removed


PRODUCT = f"{CODES} e = Cast<to = 10>(q) f = Mul(e, s) k = Cast<to = 10>(codes) v = Mul(k, steps) p = MatMul(f, v)"


@pytest.mark.parametrize(
    ("tail", "removed", "bias"),
    [
        ("y = Identity(p)", 1, np.float32),  # Identity becomes the Cast's neighbour, and may hide another node
        ("y = Reshape(p, shape2)", 2, np.float16),
        ("y = Add(p, bias)", 2, np.float16),
        ("b = Cast<to = 1>(p) c2 = Add(b, wide_bias) y = Cast<to = 10>(c2)", 1, np.float32),
    ],
)
def test_products(tail: str, removed: int, bias: type[np.generic]) -> None:
    """The bias decides the type of the result; it is exact in float16, or absent, or the Cast stays."""
    model = onnx.ModelProto.FromString(model_of(f"{PRODUCT} {tail.replace('shape2', 'first2')}"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 24]), "first2"))
    graph, count = check(model.SerializeToString(), exact=False)
    products = [node for node in graph.node if node.op_type == "QuantizedMatMul"]
    assert len(products) == 1
    types = {tensor.name: helper.tensor_dtype_to_np_dtype(tensor.data_type) for tensor in graph.initializer}
    assert (count, types.get(products[0].input[7], np.dtype(np.float32))) == (removed, np.dtype(bias))


def test_a_bias_that_the_caller_may_give_stays_an_input() -> None:
    """An initializer that is also a graph input is only a default: no constant of its elements replaces it."""
    model = onnx.ModelProto.FromString(
        model_of(f"{PRODUCT} b = Cast<to = 1>(p) c2 = Add(b, exact_bias) y = Cast<to = 10>(c2)", "float16[N, M] y")
    )
    model.graph.initializer.append(numpy_helper.from_array(np.full(24, 0.5, np.float32), "exact_bias"))
    model.graph.input.append(helper.make_tensor_value_info("exact_bias", onnx.TensorProto.FLOAT, [24]))
    proto, x = rewrite(model).to_proto(), rows()[14:]
    (product,) = [node for node in proto.graph.node if node.op_type == "QuantizedMatMul"]
    assert product.input[7] == "exact_bias"
    feeds = {"x": x, "exact_bias": np.full(24, 1000, np.float32)}
    (expected,), (actual,) = (each.run(None, feeds) for each in (stock_session(model), make_session(proto, "native")))
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1)


CONSTANTS = "wide_limit = Constant<value_float = 127.0>() wide_low = Constant<value_float = -128.0>()"
CONSTANTS += " one = Constant<value_ints = [-1]>()"


@pytest.mark.parametrize("operator", sorted(FLOAT16_MOVES))
def test_onnxruntime_moves_float16_as_it_is(operator: str) -> None:
    """It runs these operators without Casts."""
    inputs = {
        "Concat": "(x, x)",
        "Flatten": "(x)",
        "Gather": "(x, first)",
        "Reshape": "(x, shape)",
        "Slice": "(x, one, first)",
        "Split": "(x)",
        "Squeeze": "(z, zero)",
        "Transpose": "(x)",
        "Unsqueeze": "(x, one)",
    }[operator]
    attributes = {"Concat": "<axis = 0>", "Split": "<num_outputs = 1>", "Gather": "<axis = 1>"}.get(operator, "")
    before = "zero = Constant<value_ints = [0]>() z = Unsqueeze(x, zero)" if operator == "Squeeze" else ""
    model = model_of(f"{before} y = {operator}{attributes} {inputs.replace('one, first', 'one, one')}", "float16[] y")
    assert stock_session(model).get_outputs()[0].type == "tensor(float16)"
    assert "Cast" not in ran(model)


def ran(model: bytes) -> Counter[str]:
    """The operators that ONNX Runtime runs with optimizations off."""

    graph = saved_by_onnxruntime(ir.from_proto(onnx.ModelProto.FromString(model)))
    assert graph is not None
    return Counter(node.op_type for node in graph.node)


def test_onnxruntime_computes_float16_in_float32() -> None:
    """The rule must respect its Casts; otherwise the rule would be too careful."""
    assert ran(model_of("h = Mul(x, half) y = Exp(h)"))["Cast"] == 3
