"""Which nodes become one program."""

from __future__ import annotations

import pytest
from program_models import CODES, converted, text_of
from rewriting import parse, rows

from ort_dynq.operators.program import parse as parse_program

SIXTH = 0.1666666716337204
NUMBERS = """c3 = Constant<value_float = 3.0>() c6 = Constant<value_float = 6.0>()
    sixth = Constant<value_float = 0.16666667>()"""


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


def test_a_path_around_the_program() -> None:
    """A node that depends on a node outside, which depends on the program, stays."""
    body = f"h = Relu(x) e = Softmax(h) {CODES} f = Mul(c, s) g = Add(f, e) k = Softmax(g) y = Mul(k, f)"
    (text,) = converted(parse(body), {"x": rows((9, 33))})
    assert list(parse_program(text).outputs) == ["dst", "dst_2"]
    assert "Add" not in text


def test_more_reductions_than_a_pass_has() -> None:
    """The library refuses to open a program with five reductions of one pass."""
    body = "h = Mul(x, high) a = Abs(x) n1 = ReduceMax(a, one) n2 = ReduceMin(a, one) n3 = ReduceMax(x, one)"
    body += " n4 = ReduceMin(x, one) n5 = ReduceMax(h, one) m1 = Max(n1, n2) m2 = Max(m1, n3) m3 = Max(m2, n4)"
    body += " m = Max(m3, n5) k = Max(m, eps) s = Div(k, high) d = Div(x, s) r = Round(d) y = Clip(r, low, high)"
    assert any("ReduceM" in each for each in converted(parse(body), {"x": rows((18, 33))}))
