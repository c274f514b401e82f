"""Elementwise nodes after integer products: which ones become a program of the product, and which ones stay.

The results equal those of the original in ONNX Runtime with optimizations off, bit for bit, with the plugin and without
it.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from convolution_models import C, F, M, given, images
from helpers import (
    Array,
    assert_same,
    in_turn,
    make_session,
    nodes_of,
    product_of,
    stock_session,
    with_arrays,
    with_one_nan,
)
from onnx import helper, numpy_helper
from rewriting import check, operators, rows, tails

from ort_dynq import verify
from ort_dynq.rewriter import rewrite

# The result of each product is a. It has the shape of r; M is its number of channels.
DYNAMIC = "q, s, z = DynamicQuantizeLinear(x)\n"
SCALED = "f = Cast<to = 1>(i) k = Mul(s, ws) g = Mul(f, k) a = Add(g, b)\n"
CONV = DYNAMIC + "i = ConvInteger(q, w, z, wz)\n" + SCALED
MATMUL = DYNAMIC + "i = MatMulInteger(q, w, z, wz)\n" + SCALED
CONSTANTS = """zero = Constant<value_float = 0.0>() three = Constant<value_float = 3.0>()
    six = Constant<value_float = 6.0>() minus = Constant<value_float = -0.0>()
    slope = Constant<value_float = 0.25>()
"""
MAX_FINITE = "3.4028234663852886e+38"


def model(inputs: str, body: str, constants: dict[str, Array]) -> onnx.ModelProto:
    """A model of these inputs and nodes; its output is y. `constants` may have more than it reads."""
    head = f'<ir_version: 8, opset_import: ["": 18]> g ({inputs}) => (float[] y)'
    return with_arrays(onnx.parser.parse_model(f"{head} {{ {body} }}"), constants)


HEADS = f"float[N, {C}, 9, 8] x, float[N, {M}, 9, 8] r, float[N, 1, 1, 1] u, float[] v, float t"


def conv(text: str, constants: str = CONSTANTS) -> onnx.ModelProto:
    """A pointwise convolution, and these nodes from a to y. r has the shape of a; u has one number for each image."""
    return model(HEADS, f"{constants}{CONV}{text}", given("uint8", (1, 1)) | EXTRA)


EXTRA = {
    "p": np.linspace(-1, 2, M).astype(F).reshape(M, 1, 1),
    "p2": np.linspace(2, 3, M).astype(F).reshape(1, M, 1, 1),
    "p3": np.linspace(-2, 2, M).astype(F).reshape(M, 1, 1),
    "p4": np.full((M, 1, 1), 0.7, F),
    "d": np.linspace(-2, 2, M).reshape(M, 1, 1),
}


def feeds(x: Array) -> dict[str, Array]:
    """The inputs."""
    count, _, height, width = x.shape
    return {
        "x": x,
        "r": rows((count * M * height, width)).reshape(count, M, height, width),
        "u": np.linspace(-1, 1, count).astype(F).reshape(count, 1, 1, 1),
        "v": np.linspace(-1, 1, width).astype(F),
        "t": np.array(-0.75, F),
    }


def special_images() -> list[Array]:
    """Images with sums that are large, NaN, infinite, denormal and zero."""
    large = rows((2 * C * 9, 8)).reshape(2, C, 9, 8)
    data = [large, np.full((1, C, 9, 8), np.nan, F), np.where(large == large.max(), np.inf, large)]
    data += [(large * F(1e-40)).astype(F), np.zeros((1, C, 9, 8), F), np.zeros((0, C, 9, 8), F)]
    return [np.asarray(x, F) for x in data]


TAILS = {
    "y = Relu(a)": "dst = Clip(x, 0.0, inf)",
    "y = Clip(a, zero, six)": "dst = Clip(x, 0.0, 6.0)",
    "y = Clip(a, minus, six)": "dst = Clip(x, -0.0, 6.0)",
    "y = Clip(a, zero)": f"dst = Clip(x, 0.0, {MAX_FINITE})",  # as ONNX Runtime does without a bound
    "y = Clip(a)": f"dst = Clip(x, -{MAX_FINITE}, {MAX_FINITE})",
    "h = Relu(a) y = Relu(h)": "dst = Clip(Clip(x, 0.0, inf), 0.0, inf)",
    "h = Relu(a) y = Add(h, a)": "dst = Add(Clip(x, 0.0, inf), x)",
    "y = LeakyRelu<alpha = 0.125>(a)": "dst = LeakyRelu(x, 0.125)",
    "y = LeakyRelu(a)": "dst = LeakyRelu(x, 0.009999999776482582)",
    "h = Add(a, three) c = Clip(h, zero, six) m = Mul(a, c) y = Div(m, six)": (
        "dst = Div(Mul(x, Clip(Add(x, 3.0), 0.0, 6.0)), 6.0)"
    ),
    "h = Less(a, zero) m = Mul(a, slope) y = Where(h, m, a)": "dst = Where(Less(x, 0.0), Mul(x, 0.25), x)",
    "y = Max(a, three)": "dst = Max(x, 3.0)",
    "y = Div(three, a)": "dst = Div(3.0, x)",
    "h = Neg(a) c = Abs(h) d2 = Sqrt(c) y = Round(d2)": "dst = Round(Sqrt(Abs(Neg(x))))",
    "y = Mul(a, p)": "dst = Mul(x, row1)",
    "h = Mul(a, p) y = Add(p2, h)": "dst = Add(row2, Mul(x, row1))",
    "y = Add(a, r)": "dst = Add(x, tensor1)",
    "h = Add(r, a) y = Relu(h)": "dst = Clip(Add(tensor1, x), 0.0, inf)",
    "h = Mul(a, r) y = Sub(h, r)": "dst = Sub(Mul(x, tensor1), tensor1)",
    "y = Add(a, t)": "dst = Add(x, row1)",
    "h = Mul(a, p) g2 = Add(h, r) y = Sub(g2, t)": "dst = Sub(Add(Mul(x, row1), tensor2), row3)",
    "y = Mul(a, p4)": "dst = Mul(x, 0.699999988079071)",  # the same number in each channel
    "e = Exp(r) y = Add(a, e)": "dst = Add(x, tensor1)",
    "e = Exp(p) y = Mul(a, e)": "dst = Mul(x, row1)",
}
"""Nodes from a to y, and the program that all of them become."""


@pytest.mark.parametrize("text", TAILS)
def test_tails(text: str) -> None:
    one = conv(text)
    check(one, *(feeds(x) for x in special_images()), exact=True)
    for exact in (False, True):
        result = rewrite(one, exact=exact).to_proto()
        assert tails(result) == [TAILS[text]]
        assert [node.output[0] for node in result.graph.node if product_of(node.op_type)] == ["y"]


PARTS = {
    "y = Sigmoid(a)": [],
    "h = Sigmoid(a) y = Mul(a, h)": [],
    "h = Relu(a) y = Sigmoid(h)": ["dst = Clip(x, 0.0, inf)"],
    "h = Relu(a) e = Sigmoid(h) y = Add(h, e)": ["dst = Clip(x, 0.0, inf)"],
    "h = Relu(a) e = Exp(h) g2 = Neg(a) y = Add(g2, e)": [],  # two results are read
    "h = Mul(a, p) g2 = Add(h, p2) e = Sub(g2, p3) y = Mul(e, r)": ["dst = Sub(Add(Mul(x, row1), row2), row3)"],
    "h = ReduceMean<keepdims = 1>(a) y = Sub(a, h)": [],  # the operand depends on the product
    "e = Exp(a) h = Add(a, e) y = Relu(h)": [],
    "y = Add(a, u)": [],  # numbers of images are no numbers of channels
    "y = Add(a, v)": [],  # of unknown shape
    "h = Flatten(a) y = Relu(h)": [],
    "h = Cast<to = 11>(a) e = Mul(h, d) y = Cast<to = 1>(e)": [],  # float64
    "y = Max(a, zero)": [],  # of two zeros, ONNX Runtime may return either
    "h = Max(a, zero) y = Add(h, three)": [],
    "i8 = Cast<to = 3>(a) y = Cast<to = 1>(i8)": [],  # it may wrap around
}
"""Nodes from a to y, and the programs that some of them become."""


@pytest.mark.parametrize("text", PARTS)
def test_other_nodes_stay(text: str) -> None:
    one = conv(text)
    x = images(2, C, 9, 8)["x"]
    check(one, *(feeds(x) for x in (x, x * F(100), np.zeros_like(x))))
    assert tails(rewrite(one).to_proto()) == PARTS[text]


def test_a_result_that_is_an_output_stays() -> None:
    one = conv("y = Relu(a)")
    one.graph.output.append(helper.make_empty_tensor_value_info("a"))
    check(one, *(feeds(x) for x in special_images()))
    assert tails(rewrite(one).to_proto()) == []


@pytest.mark.parametrize("after", ["Neg", "Exp"])
def test_the_program_ends_at_an_output(after: str) -> None:
    """Not before it, although the next node is a step, too."""
    one = conv(f"h = Relu(a) y = {after}(h)")
    one.graph.output.append(helper.make_empty_tensor_value_info("h"))
    check(one, *(feeds(x) for x in special_images()))
    assert tails(rewrite(one).to_proto()) == ["dst = Clip(x, 0.0, inf)"]


def test_a_result_that_a_subgraph_reads_stays() -> None:
    text = """h = Relu(a) t2 = Constant<value_float = 2.0>() c = Less(t, t2)
        y = If(c) <then_branch = one () => (float[] o) { o = Sub(h, a) },
                   else_branch = two () => (float[] o2) { o2 = Identity(h) }>"""
    one = conv(text)
    check(one, *(feeds(x) for x in special_images()))
    assert tails(rewrite(one).to_proto()) == []


# Matrix products


QUANTIZED = """last = Constant<value_ints = [-1]>() c127 = Constant<value_float = 127.0>()
    low = Constant<value_float = -127.0>() m0 = Abs(x) m1 = ReduceMax(m0, last) s = Div(m1, c127)
    d0 = Div(x, s) rd = Round(d0) c0 = Clip(rd, low, c127) q = Cast<to = 3>(c0)
"""


def matmul(text: str, dims: str = "N, R") -> onnx.ModelProto:
    """A product of rows of 16 elements, and these nodes from a to y."""
    scaled = "i = MatMulInteger(q, w) f = Cast<to = 1>(i) g0 = Mul(f, s) g = Mul(g0, ws) a = Add(g, b)\n"
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.integers(-50, 51, (16, M)).astype(np.int8),
        "ws": np.linspace(0.01, 0.02, M).astype(F),
        "b": np.linspace(-3, 3, M).astype(F),
        "p": np.linspace(-1, 2, M).astype(F),
        "p2": np.linspace(2, 3, M).astype(F).reshape(1, M),
    }
    heads = f"float[{dims}, 16] x, float[{dims}, {M}] r, float[7, 1] u, float[] v, float t"
    return model(heads, CONSTANTS + QUANTIZED + scaled + text, constants)


PRODUCT_TAILS = {
    "y = Relu(a)": ["dst = Clip(x, 0.0, inf)"],
    "h = Add(a, three) c = Clip(h, zero, six) m = Mul(a, c) y = Div(m, six)": [
        "dst = Div(Mul(x, Clip(Add(x, 3.0), 0.0, 6.0)), 6.0)"
    ],
    "h = Mul(a, p) y = Add(h, p2)": ["dst = Add(Mul(x, column1), column2)"],
    "h = Add(r, a) y = Relu(h)": ["dst = Clip(Add(tensor1, x), 0.0, inf)"],
    "y = Mul(a, t)": ["dst = Mul(x, row1)"],
    "y = Mul(a, u)": [],  # numbers of some rows
    "y = Mul(a, v)": [],
    "h = Softmax(a) y = Mul(h, p)": [],
    "h = ReduceSum(a) y = Sub(a, h)": [],
}


@pytest.mark.parametrize(("dims", "text"), in_turn(["N, R", "R"], PRODUCT_TAILS))
def test_tails_of_matrix_products(text: str, dims: str) -> None:
    lead = (2, 7) if "," in dims else (7,)
    large = rows((14, 16))[: math.prod(lead)].reshape(*lead, 16)
    others = {"r": rows((14, M), seed=1)[: math.prod(lead)].reshape(*lead, M), "t": np.array(-0.75, F)}
    others |= {"u": np.linspace(-1, 1, 7).astype(F)[:, None], "v": np.ones(1, F)}
    one = matmul(text, dims)
    check(one, *({"x": x} | others for x in (large, (large * F(1e-40)).astype(F), np.zeros_like(large))))
    assert tails(rewrite(one).to_proto()) == PRODUCT_TAILS[text]


# float16


HALVES = {
    "h = Relu(a) c = Cast<to = 10>(h) y = Transpose(c)": ("dst = Clip(x, 0.0, inf)", onnx.TensorProto.FLOAT16),
    "h = Clip(a, zero, six) y = Cast<to = 10>(h)": ("dst = Clip(x, 0.0, 6.0)", onnx.TensorProto.FLOAT16),
    "h = Mul(a, p) y = Cast<to = 10>(h)": ("dst = Mul(x, row1)", onnx.TensorProto.FLOAT),
    "h = LeakyRelu(a) c = Cast<to = 10>(h) y = Transpose(c)": (
        "dst = LeakyRelu(x, 0.009999999776482582)",
        onnx.TensorProto.FLOAT,
    ),
}
"""Nodes from a to y, which is float16; the program, and the type of the bias."""


def half_conv(text: str) -> onnx.ModelProto:
    """As :func:`conv`; the output is float16, which represents the bias."""
    bias = np.arange(M).astype(F).reshape(M, 1, 1) - F(2.5)
    found = model(HEADS, CONSTANTS + CONV + text, given("uint8", (1, 1)) | EXTRA | {"b": bias})
    found.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return found


@pytest.mark.parametrize("text", HALVES)
def test_products_that_round_to_float16(text: str) -> None:
    """Only if the program is one Clip: other programs have a float32 result, which a Cast rounds."""
    one = half_conv(text)
    check(one, *map(feeds, special_images()))
    result = rewrite(one).to_proto()
    program, type_ = HALVES[text]
    assert tails(result) == [program]
    (node,) = [node for node in result.graph.node if product_of(node.op_type)]
    types = {tensor.name: tensor.data_type for tensor in result.graph.initializer}
    assert types[node.input[7]] == type_
    assert sum(each.op_type == "Cast" for each in result.graph.node) == (type_ == onnx.TensorProto.FLOAT)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("Relu(y)", ["dst = Clip(x, 0.0, inf)"]),
        ("Clip(y, low, high)", ["dst = Clip(x, -2.0, 6.0)"]),
        ("Clip(y, low, tenth)", []),
        ("Neg(y)", []),
    ],
)
def test_a_clip_of_a_result_of_float16(text: str, program: list[str]) -> None:
    """A product that is rounded to float16 may clip before that, if the bounds are float16 numbers for sure."""
    rounded = rewrite(half_conv("y = Cast<to = 10>(a)")).to_proto()
    assert operators(rounded) == {"ort_dynq.DynamicQuantizeLinear": 1, "ort_dynq.QuantizedConv": 1}
    constants = {"low": np.float16(-2), "high": np.float16(6), "tenth": np.float16(0.1)}
    rounded.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in text
    )
    rounded.graph.node.extend(onnx.parser.parse_graph(f"g (float16[1] y) => (float16[1] o) {{ o = {text} }}").node)
    rounded.graph.output[0].name = "o"
    result = rewrite(rounded).to_proto()
    assert tails(result) == program
    same_results(rounded, result)


def same_results(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Compares a rewritten model with its function calls in stock ONNX Runtime, and one that was rewritten again."""
    original, *sessions = stock_session(before), stock_session(after), make_session(after, "native")
    for x in special_images():
        expected = original.run(None, feeds(x))
        for session in sessions:
            for actual, wanted in zip(session.run(None, feeds(x)), expected, strict=True):
                assert_same(with_one_nan(actual), with_one_nan(wanted))


# Models with several products


def test_each_program_has_a_branch() -> None:
    """Equal programs share one. Every node runs its own program, with the plugin and without it."""
    text = """y1 = Relu(a) y2 = Clip(a2, zero, six) y3 = Relu(a3) y4 = Identity(a4)
        s1 = Add(y1, y2) s2 = Mul(y3, y4) y = Sub(s1, s2)"""
    body = CONV
    for i in (2, 3, 4):
        body += f"i{i} = ConvInteger(q, w, z, wz) f{i} = Cast<to = 1>(i{i}) g{i} = Mul(f{i}, k) a{i} = Add(g{i}, b)\n"
    one = model(HEADS, CONSTANTS + body + text, given("uint8", (1, 1)))
    check(one, *map(feeds, special_images()))
    result = rewrite(one).to_proto()
    found = {
        node.output[0]: next(each.i for each in node.attribute if each.name == "branch")
        for node in result.graph.node
        if node.op_type == "QuantizedConvProgram"
    }
    assert len(found) == 3
    assert len({*found.values()}) == len({*tails(result)})
    assert sorted(found.values())[-1] == len({*found.values()}) - 1
    (function,) = [each for each in result.functions if each.name == "QuantizedConvProgram"]
    assert sum(node.op_type == "If" for node in nodes_of(function)) >= len({*found.values()}) - 1


def test_a_second_rewrite_changes_nothing() -> None:
    for text in ("y = Relu(a)", "h = Mul(a, p) g2 = Add(h, r) y = Sub(g2, t)"):
        one = conv(text)
        once = rewrite(one)
        twice = rewrite(once.to_proto())
        assert twice.report.rewritten == []
        assert twice.to_proto().SerializeToString(deterministic=True) == once.to_proto().SerializeToString(
            deterministic=True
        )


def test_a_product_that_was_rewritten_earlier_gets_a_program() -> None:
    """Its node was alone, and nodes were added to the rewritten model."""
    one = rewrite(conv("y = Identity(a)")).to_proto()
    assert operators(one) == {"ort_dynq.DynamicQuantizeLinear": 1, "ort_dynq.QuantizedConv": 1}
    one.graph.node.append(helper.make_node("Relu", ["y"], ["y2"]))
    one.graph.output[0].name = "y2"
    result = rewrite(one).to_proto()
    assert tails(result) == ["dst = Clip(x, 0.0, inf)"]
    same_results(one, result)


# Verification


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("y = Relu(a)", "dst = Clip(x, 0.0, inf)"),
        ("y = Clip(a, zero, six)", "dst = Clip(x, 0.0, 6.0)"),
        ("h = Mul(a, p) g2 = Add(h, r) y = Relu(g2)", "dst = Clip(Add(Mul(x, row1), tensor2), 0.0, inf)"),
    ],
)
def test_verification_knows_them(text: str, program: str) -> None:
    """The sums of a float convolution are compared before the program, and then the program's result."""
    body = CONSTANTS + DYNAMIC + f"dx = DequantizeLinear(q, s, z)\n a = Conv<pads = [1, 1, 1, 1]>(dx, w, b)\n {text}"
    constants = {"w": (given("int8")["w"] * F(0.01)).astype(F), "b": given()["b"].reshape(-1)} | EXTRA
    heads = HEADS.replace("9, 8", "48, 40")  # smaller convolutions stay float
    one, inputs = model(heads, body, constants), feeds(images(1, C, 48, 40)["x"])
    result = rewrite(one).to_proto()
    assert tails(result) == [program]
    verified = verify(one, result, inputs=inputs)
    assert verified.passed, verified
    assert len(verified.products) == 1
    wrong = rewrite(model(heads, body, constants | {"b": constants["b"] + F(1)})).to_proto()
    assert not verify(one, wrong, inputs=inputs).passed
    (node,) = [node for node in result.graph.node if product_of(node.op_type)]
    (attribute,) = [each for each in node.attribute if each.name == "program"]
    attribute.s = attribute.s.replace(b"0.0", b"0.5")
    assert not verify(one, result, inputs=inputs).passed
