"""Quantizations that become programs: every chain of every model and form, and each decision of the rule.

The outputs of every rewritten model equal the original's bit for bit, in ONNX Runtime without optimizations.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Array, assert_same, every, stock_session, with_one_nan
from program_models import CODES, SCALE, F, converted, text_of
from recorded_models import EXPECTED
from rewriting import check, data_sets, load, parse, programs, rows

from ort_dynq.rewriter import rewrite

NO_CHAINS = ("ort_nbits", "ort_dynamic_lstm", "ort_tied_embedding")
"""Models without quantization chains: integer products of floats get one."""
CHAINS = [name for name, operators in EXPECTED.items() if "ort_dynq.RowProgram" in operators and name not in NO_CHAINS]
CAST_AT_ONCE = {"integer_token_einsum"}
"""Models that cast floats to int32 at once: ONNX does not define what becomes of NaN."""


def hard(inputs: dict[str, Array]) -> dict[str, Array]:
    """The same inputs with ties, zeros, infinities and NaN in all floats."""
    with np.errstate(over="ignore"):
        return {
            name: rows(array.shape, i, nan=True).astype(array.dtype)
            if array.dtype.kind == "f" and array.ndim
            else array
            for i, (name, array) in enumerate(inputs.items())
        }


@pytest.mark.parametrize("name", every(4, CHAINS))
def test_every_chain_as_a_program(name: str) -> None:
    """The function bodies compute the original's bits, also where products of the codes follow."""
    model, exact = load(name), rewrite(load(name), exact=True).to_proto()
    assert programs(exact)
    original, converted = stock_session(model), stock_session(exact)
    for inputs, _ in data_sets(name):
        for given in (inputs, hard(inputs)):
            if name in CAST_AT_ONCE:
                given = {key: np.nan_to_num(array, posinf=1, neginf=-1) for key, array in given.items()}
            for actual, expected in zip(converted.run(None, given), original.run(None, given), strict=True):
                assert_same(with_one_nan(actual), with_one_nan(expected))


def test_a_chain_without_a_known_shape() -> None:
    model = parse(f"h = Relu(x) {CODES} y = Mul(c, s)", inputs="float[] x")
    text = "Mul(Clip(Round(Div({h}, {s})), -128.0, 127.0), {s})"
    assert converted(model, {"x": rows((2, 3, 33))}) == [text_of("Clip(x, 0.0, inf)", text, "dst")]


def test_zeros_of_either_sign() -> None:
    """Of two zeros, ONNX Runtime's Max gives either: the node stays if a result has its sign."""
    for after, is_step in (
        ("y = Mul(k, s)", False),
        ("y = Cast<to = 2>(k)", True),
        ("t = Add(k, c127) y = Mul(t, s)", True),
    ):
        model = parse(
            f"h = Neg(x) {CODES} k = Max(c, zero) {after}", outputs="uint8[] y" if "to = 2" in after else "float[] y"
        )
        (text,) = converted(model, {"x": rows((9, 33))})
        assert ("Max(Clip" in text) == is_step


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ("p = Conv(image, filter) q = Relu(p) h = Reshape(q, like)", "Relu"),
        ("p = MatMul(x, w) h = Add(p, bias)", "Add"),
        ("t = Div(x, root) e = Erf(t) p = Add(e, plus) u = Mul(x, p) h = Mul(u, half)", "Mul"),
        ("e = Sigmoid(x) h = Mul(x, e)", "Mul"),
        ("n = ReduceMean<axes = [-1]>(x) t = Sub(x, n) u = Mul(t, t) v = ReduceMean<axes = [-1]>(u) e = Add(v, eps)"
         " p = Sqrt(e) q = Div(t, p) g = Mul(q, bias) h = Add(g, bias)", "Add"),
    ],
)  # fmt: skip
def test_nodes_that_onnxruntime_fuses_stay(before: str, kept: str) -> None:
    """Biases, activation functions and normalizations before a quantization."""
    constants = """root = Constant<value_float = 1.4142135>() plus = Constant<value_float = 1.0>()
        half = Constant<value_float = 0.5>() like = Constant<value_ints = [16, 48]>()
        dims = Constant<value_ints = [48]>() bias = ConstantOfShape<value = float[1] {0.5}>(dims)"""
    body = f"{constants} {before} {CODES} y = Mul(c, s)".replace("ReduceMax(a, one)", "ReduceMax<axes = [-1]>(a)")
    inputs = "float[16, 48] x, float[48, 48] w, float[1, 3, 16, 16] image, float[3, 3, 1, 1] filter"
    result = rewrite(parse(body, opset=17, inputs=inputs), exact=True).to_proto()
    assert programs(result) == [text_of("x", "Mul(Clip(Round(Div({h}, {s})), -128.0, 127.0), {s})", "dst")]
    assert kept in {node.op_type for node in result.graph.node}


def test_nodes_beside_quantized_operators_stay() -> None:
    """ONNX Runtime fuses DequantizeLinear, Add and QuantizeLinear; the sum is not a part of the program before it."""
    body = f"""h = Relu(x) {SCALE} d = Div(h, s) r = Round(d) f = Mul(r, s) k = ReduceMax<keepdims = 0>(f)
        n = Cast<to = 2>(zero) q = QuantizeLinear(f, k, n) v = DequantizeLinear(q, k, n) g = Add(v, v)
        p = QuantizeLinear(g, k, n) y = DequantizeLinear(p, k, n)"""
    assert all("Add" not in text for text in converted(parse(body), {"x": rows((9, 33))}))


def test_small_gains() -> None:
    """A program of two steps saves one pass, which is too little."""
    inputs = "float[64, 64] x, float[64, 1] s"
    for after, count in (("y = Exp(e)", 0), ("f = Mul(r, s) y = Add(e, f)", 1)):
        nodes = f"d = Div(x, s) r = Round(d) e = Exp(r) {after}"
        assert len(programs(rewrite(parse(nodes, inputs=inputs)).to_proto())) == count


def test_a_model_that_is_rewritten_twice() -> None:
    """The function gets a branch for each program that the nodes have now; a text that occurs twice has one."""
    body = f"""h = Relu(x) {CODES} f = Mul(c, s) e = Exp(f)
        a2 = Abs(e) m2 = ReduceMax(a2, one) s2 = Div(m2, c127) d2 = Div(e, s2) r2 = Round(d2) y = Mul(r2, s2)"""
    model = parse(body)
    once = rewrite(model, exact=True)
    twice = rewrite(once.to_proto(), exact=True)
    assert twice.report.rewritten == []
    assert programs(once.to_proto()) == programs(twice.to_proto())
    assert len(programs(once.to_proto())) == 2
    inputs = {"x": rows((9, 33)) * F(0.01)}
    expected, actual = (stock_session(each).run(None, inputs)[0] for each in (model, twice.to_proto()))
    assert_same(with_one_nan(actual), with_one_nan(expected))


def test_many_programs() -> None:
    """Ifs are nested to a depth that grows with the logarithm of their number."""
    parts = [
        f"n{i} = Constant<value_float = {i}.5>() u{i} = Add(x, n{i}) d{i} = Div(u{i}, s) r{i} = Round(d{i})"
        f" e{i} = Exp(r{i})"
        for i in range(17)
    ]
    sums = "t0 = Identity(e0) " + " ".join(f"t{i} = Add(t{i - 1}, e{i})" for i in range(1, 17))
    model = parse(f"h = Identity(x) {SCALE} {' '.join(parts)} {sums} y = Identity(t16)")
    result = rewrite(model, exact=True).to_proto()
    assert len(set(programs(result))) >= 16
    inputs = {"x": rows((9, 33)) * F(0.01)}
    expected = with_one_nan(stock_session(model).run(None, inputs)[0])
    for optimize in (False, True):
        actual = stock_session(result, optimize=optimize).run(None, inputs)[0]
        assert_same(with_one_nan(actual), expected)


def test_reports_name_a_program_once() -> None:
    model = parse(f"h = Relu(x) {CODES.replace('Clip(r, low, high)', 'Clip(r, low, eps)')} y = Mul(c, s)")
    report = rewrite(model, exact=True).report
    assert [(each.node, each.operator) for each in report.findings] == [("r", "RowProgram")]


def test_one_number_for_the_tensor_and_one_for_each_row() -> None:
    """Their product is not one number, although the program's rows are the whole tensor."""
    body = """a = Abs(x) m = ReduceMax<keepdims = 0>(a) s = Clip(m, eps) t = Mul(v, s)
        d = Div(x, t) r = Round(d) y = Mul(r, t)"""
    check(parse(body, inputs="float[N, K] x, float[N, 1] v"), {"x": rows((18, 33)), "v": np.full((18, 1), 2, F)})
