"""Quantizations that become programs: every chain of every model and form, and each decision of the rule.

The outputs of every rewritten model equal the original's bit for bit, in ONNX Runtime without optimizations.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, every, stock_session, with_one_nan
from rewriting import (
    check,
    data_sets,
    load,
    parse,
    programs,
    rows,
)
from test_conformance import EXPECTED

from ort_dynq.operators.program import parse as parse_program
from ort_dynq.rewriter import rewrite

F = np.float32

# Every model

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


@pytest.mark.parametrize("name", every(2, CHAINS))
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


# The steps of a program

SCALE = "a = Abs(h) m = ReduceMax(a, one) s0 = Div(m, c127) s = Clip(s0, eps)"
SCALE_TEXT = "Clip(Div(ReduceMax(Abs({0})), 127.0), 9.999999747378752e-06, 3.4028234663852886e+38)"
CODES = f"{SCALE} d = Div(h, s) r = Round(d) c = Clip(r, low, high)"
SIXTH = 0.1666666716337204
NUMBERS = """c3 = Constant<value_float = 3.0>() c6 = Constant<value_float = 6.0>()
    sixth = Constant<value_float = 0.16666667>()"""


def text_of(h: str, result: str = "Clip(Round(Div({h}, {s})), -128.0, 127.0)", output: str = "codes") -> str:
    """The program of a symmetric quantization of `h`, an expression, as a program writes it."""
    return str(parse_program(f"h = {h}; s = {SCALE_TEXT.format('h')}; {output} = {result.format(h='h', s='s')}"))


def converted(model: onnx.ModelProto, *data: dict[str, Array], exact: bool = True) -> list[str]:
    """Rewrites a model, compares the outputs, and returns its programs."""
    check(model, *data, exact=exact)
    return programs(rewrite(model, exact=exact).to_proto())


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ("h = Relu(x)", "Clip(x, 0.0, inf)"),
        ("h = LeakyRelu<alpha = 0.25>(x)", "LeakyRelu(x, 0.25)"),
        ("h = HardSigmoid<alpha = 0.25, beta = 0.5>(x)", "Clip(Add(Mul(x, 0.25), 0.5), 0.0, 1.0)"),
        ("h = HardSwish(x)", f"Mul(x, Clip(Add(Mul(x, {SIXTH}), 0.5), 0.0, 1.0))"),
        ("t = Add(x, c3) u = Clip(t, zero, c6) v = Mul(x, u) h = Div(v, c6)",
         "Div(Mul(x, Clip(Add(x, 3.0), 0.0, 6.0)), 6.0)"),
        ("t = Add(x, c3) u = Clip(t, zero, c6) v = Mul(u, sixth) h = Mul(v, x)",
         f"Mul(Mul(Clip(Add(x, 3.0), 0.0, 6.0), {SIXTH}), x)"),
        ("h = Clip(x)", "Clip(x, -3.4028234663852886e+38, 3.4028234663852886e+38)"),
        ("h = Max(x, c3, c6)", "Max(Max(x, 3.0), 6.0)"),
        ("g = Less(x, c3) e = Greater(x, zero) b = And(g, e) n = Not(b) h = Where(n, x, c6)",
         "Where(Not(And(Less(x, 3.0), Greater(x, 0.0))), x, 6.0)"),
        ("t = Cast<to = 10>(x) h = Cast<to = 1>(t)", "Float16(x)"),
        ("t = Floor(x) u = Ceil(t) v = Sign(u) w = Abs(v) h = Sqrt(w)", "Sqrt(Abs(Sign(Ceil(Floor(x)))))"),
        ("t = Mul(x, x) h = Reciprocal(t)", "Reciprocal(Mul(x, x))"),
        ("h = Add(x, residual)", "Add(x, tensor1)"),
        ("h = Mul(x, column)", "Mul(x, column1)"),
        ("h = Sub(x, row)", "Sub(x, row1)"),
        ("t = IsNaN(x) h = Where(t, column, x)", "Where(Not(Equal(x, x)), column1, x)"),
    ],
)  # fmt: skip
def test_nodes_before_a_quantization(nodes: str, text: str) -> None:
    model = parse(
        f"{NUMBERS} {nodes} {CODES} y = Cast<to = 3>(c)",
        inputs="float[N, 33] x, float[N, 33] residual, float[33] column, float[N, 1] row",
        outputs="int8[N, 33] y",
    )
    data = {"x": rows((9, 33)), "residual": rows((9, 33), 1), "column": rows((33, 1), 2)[:, 0], "row": rows((9, 1), 3)}
    assert converted(model, data) == [text_of(text)]


@pytest.mark.parametrize(
    ("nodes", "type_", "text"),
    [
        ("y = Mul(c, s)", "float", "Mul(Clip(Round(Div({h}, {s})), -128.0, 127.0), {s})"),
        ("y = Cast<to = 2>(b)", "uint8", "Clip(Add(Round(Div({h}, {s})), 128.0), 0.0, 255.0)"),
        # Integers: those that NaN becomes are bounded, too.
        ("i = Cast<to = 6>(r) j = Add(i, i128) k = Clip(j, i0, i255) y = Cast<to = 2>(k)", "uint8",
         "Clip(Add(Int32(Round(Div({h}, {s}))), 128.0), 0.0, 255.0)"),
        ("i = Cast<to = 6>(c) y = Cast<to = 3>(i)", "int8", "Clip(Round(Div({h}, {s})), -128.0, 127.0)"),
        ("q = Cast<to = 3>(c) i = Cast<to = 6>(q) j = Add(i, i128) y = Cast<to = 2>(j)", "uint8",
         "Add(Int8(Clip(Round(Div({h}, {s})), -128.0, 127.0)), 128.0)"),
        # Without a Clip, the code of an infinity is 0.
        ("y = Cast<to = 3>(r)", "int8", "Where(Less(Abs(Round(Div({h}, {s}))), inf), Round(Div({h}, {s})), 0.0)"),
        ("g = Greater(r, high) t = Where(g, high, r) k = Max(t, low) y = Mul(k, s)", "float",
         "Mul(Max(Clip(Round(Div({h}, {s})), -inf, 127.0), -128.0), {s})"),
        ("f = Mul(c, s) y = Relu(f)", "float", "Clip(Mul(Clip(Round(Div({h}, {s})), -128.0, 127.0), {s}), 0.0, inf)"),
    ],
)  # fmt: skip
def test_nodes_after_a_quantization(nodes: str, type_: str, text: str) -> None:
    integers = " ".join(f"i{n} = Constant<value = int32 {{{n}}}>()" for n in (0, 128, 255))
    half = "c128 = Constant<value_float = 128.0>() t128 = Add(r, c128) b = Clip(t128, zero, c255)"
    model = parse(f"{integers} {half} h = Neg(x) {CODES} {nodes}", outputs=f"{type_}[N, K] y")
    text = text_of("Neg(x)", text, "dst" if type_ == "float" else "codes")
    assert converted(model, {"x": rows((9, 33))}) == [text]


def test_integers_that_float32_does_not_represent_stay() -> None:
    """A sum with a negative number may wrap around where NaN has become an integer; products may be -0."""
    for nodes in ("j = Add(i, minus)", "j = Mul(i, two)", "j = Sub(i, two)", "j = Neg(i)"):
        body = f"""minus = Constant<value = int32 {{-1}}>() two = Constant<value = int32 {{2}}>() h = Identity(x)
            {CODES} i = Cast<to = 6>(c) {nodes} y = Cast<to = 1>(j)"""
        model = parse(body)
        assert all("Int32" not in text for text in converted(model, {"x": rows((9, 33), nan=True)}))


def test_a_chain_without_a_known_shape() -> None:
    model = parse(f"h = Relu(x) {CODES} y = Mul(c, s)", inputs="float[] x")
    text = "Mul(Clip(Round(Div({h}, {s})), -128.0, 127.0), {s})"
    assert converted(model, {"x": rows((2, 3, 33))}) == [text_of("Clip(x, 0.0, inf)", text, "dst")]


# Which nodes a program has


@pytest.mark.parametrize(
    ("nodes", "outputs", "of_program"),
    [
        ("z = Identity(s) y = Mul(c, s)", "float[] y, float[] z", "dst scale"),
        ("y = Cast<to = 3>(c) z = Mul(s, c127) t = Cast<to = 1>(y) g = Mul(t, s)",
         "int8[] y, float[] z, float[] g", "codes dst scale"),
        ("y = Mul(c, s) z = Identity(s0) g = Identity(m)", "float[] y, float[] z, float[] g", "dst scale number"),
        # Another output computes the rest.
        ("y = Mul(c, s) z = Identity(r) g = Identity(d)", "float[] y, float[] z, float[] g", "dst dst_2 scale"),
        ("y = Mul(c, s) z = Identity(s0) g = Identity(m)", "float[] y, float[] z, float[] g, float[] s",
         "dst scale number"),
    ],
)  # fmt: skip
def test_outputs(nodes: str, outputs: str, of_program: str) -> None:
    """A program has what fits its outputs. Other nodes stay, and compute the rest."""
    (text,) = converted(parse(f"h = Neg(x) {CODES} {nodes}", outputs=outputs), {"x": rows((9, 33))})
    assert list(parse_program(text).outputs) == of_program.split()


def test_a_path_around_the_program() -> None:
    """A node that depends on a node outside, which depends on the program, stays."""
    body = f"h = Relu(x) e = Softmax(h) {CODES} f = Mul(c, s) g = Add(f, e) k = Softmax(g) y = Mul(k, f)"
    (text,) = converted(parse(body), {"x": rows((9, 33))})
    assert list(parse_program(text).outputs) == ["dst", "dst_2"]
    assert "Add" not in text


def test_an_input_that_is_computed_late() -> None:
    """One operator stands at one place: nodes whose results are read before its inputs are known stay."""
    body = f"""h = Relu(x) t = Exp(h) u = Mul(t, h) {CODES} f = Mul(c, s) g = Softmax(f) k = Exp(g) z = Exp(u)
        v = Add(f, k) y = Mul(v, z)"""
    converted(parse(body), {"x": rows((9, 33)) * F(1e-3)})


def test_shapes_of_values_inside() -> None:
    """Nodes that compute only shapes and constants of the program are removed with it."""
    body = """h = Relu(x) a = Abs(h) m = ReduceMax<keepdims = 0>(a, one) i = Shape(m) z = Expand(eps, i) t = Max(m, z)
        s0 = Div(t, c127) s = Unsqueeze(s0, one) d = Div(h, s) r = Round(d) y = Mul(r, s)"""
    model = parse(body)
    assert len(converted(model, {"x": rows((9, 33))})) == 1
    kept = {node.op_type for node in rewrite(model, exact=True).to_proto().graph.node}
    assert kept == {"Constant", "RowProgram"}


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


# The model


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
    for optimize in (False, True):
        actual = stock_session(result, optimize=optimize).run(None, inputs)[0]
        assert_same(with_one_nan(actual), with_one_nan(stock_session(model).run(None, inputs)[0]))


def test_reports_name_a_program_once() -> None:
    model = parse(f"h = Relu(x) {CODES.replace('Clip(r, low, high)', 'Clip(r, low, eps)')} y = Mul(c, s)")
    report = rewrite(model, exact=True).report
    assert [(each.node, each.operator) for each in report.findings] == [("r", "RowProgram")]


@pytest.mark.parametrize(
    ("node", "is_step"),
    [
        ("y = Where(g, b, zero)", False),
        ("y = Where(g, zero, b)", True),
        ("w = Where(g, b, zero) y = Add(w, c127)", True),  # the sum does not depend on the sign
    ],
)
def test_a_choice_for_a_row_may_keep_a_negative_zero(node: str, is_step: bool) -> None:
    """ONNX Runtime's Where loses a chosen -0 of its second input, but not if a row has one condition and one third."""
    model = parse(f"h = Identity(x) {CODES} b = Mul(c, s) g = Greater(m, c127) {node}")
    x = rows((18, 64))
    x[7] = -0.0
    (text,) = converted(model, {"x": x})
    assert ("Where(" in text) == is_step


def test_one_number_for_the_tensor_and_one_for_each_row() -> None:
    """Their product is not one number, although the program's rows are the whole tensor."""
    body = """a = Abs(x) m = ReduceMax<keepdims = 0>(a) s = Clip(m, eps) t = Mul(v, s)
        d = Div(x, t) r = Round(d) y = Mul(r, t)"""
    check(parse(body, inputs="float[N, K] x, float[N, 1] v"), {"x": rows((18, 33)), "v": np.full((18, 1), 2, F)})


def test_a_clip_beyond_the_type_of_the_codes() -> None:
    """An infinity becomes the bound, 128, which wraps around as int8."""
    body = f"bound = Constant<value_float = 128.0>() {SCALE.replace('(h)', '(x)')} d = Div(x, s) r = Round(d) "
    x = rows((5, 9))
    x[:2, 1] = np.inf, -np.inf
    check(parse(f"{body} c = Clip(r, low, bound) y = Cast<to = 3>(c)", outputs="int8[] y"), {"x": x})


def test_more_reductions_than_a_pass_has() -> None:
    """The library refuses to open a program with five reductions of one pass."""
    body = "h = Mul(x, high) a = Abs(x) n1 = ReduceMax(a, one) n2 = ReduceMin(a, one) n3 = ReduceMax(x, one)"
    body += " n4 = ReduceMin(x, one) n5 = ReduceMax(h, one) m1 = Max(n1, n2) m2 = Max(m1, n3) m3 = Max(m2, n4)"
    body += " m = Max(m3, n5) k = Max(m, eps) s = Div(k, high) d = Div(x, s) r = Round(d) y = Clip(r, low, high)"
    assert any("ReduceM" in each for each in converted(parse(body), {"x": rows((18, 33))}))
