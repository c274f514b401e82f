"""Gelu and x * sigmoid(alpha * x) in many spellings, and functions that differ from them.

The results are compared with those of the original in ONNX Runtime with optimizations off. Both round in float32, so
they may differ by a few units in the last place of x: 1e-6 * max(1, |x|).

More than 450 lines: every spelling is the text of a graph.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import Array, diagonals, nodes_of, stock_session
from onnx import helper
from rewriting import YES, F, parse

from ort_dynq.rewrite_options import RewriteOptions
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.fusion.activations import RULE
from ort_dynq.rewriter.loop import convert
from ort_dynq.rewriter.reasons import Reason
from ort_dynq.rewriter.variants import convert_best

NUMBERS = {
    "half": 0.5,
    "k1": 1.0,
    "k2": 2.0,
    "k3": 3.0,
    "root2": 1.4142135381698608,
    "per_root2": 0.7071067690849304,
    "tanh_scale": 0.7978845834732056,
    "tanh_cube": 0.044714998453855515,
    "quick": 1.7020000219345093,
}


def model_of(
    body: str,
    numbers: dict[str, float] | None = None,
    *,
    opset: int = 18,
    inputs: str = "float[N, K] x",
    outputs: str = "float[] y",
) -> onnx.ModelProto:
    """A model of these nodes; the constants that they read are those of `numbers` or else of NUMBERS."""
    found = parse(body, opset=opset, inputs=inputs, outputs=outputs)
    used = {name for node in nodes_of(found.graph) for name in node.input}
    for name, number in (NUMBERS | (numbers or {})).items():
        if name in used:
            found.graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.FLOAT, [], [number]))
    return found


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the rule."""
    options = RewriteOptions(fuse=True)
    converted, _ = convert_best(ir.from_proto(model), lambda form: convert(form, ((RULE,),), options))
    return ir.to_proto(converted)


def microsoft(model: onnx.ModelProto) -> list[str]:
    """The operators of com.microsoft in a model, each with alpha if it has one."""
    return [
        " ".join([node.op_type, *(f"{each.f:.4g}" for each in node.attribute)])
        for node in nodes_of(model.graph)
        if node.domain == "com.microsoft"
    ]


def data(seed: int = 0) -> Array:
    """Numbers of all sizes, with those where the functions bend."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.linspace(-12, 12, 480), rng.normal(0, 1, 240), rng.normal(0, 50, 30), [0, -0.0, 1e-30]])
    return np.resize(x, (9, 93)).astype(F)


def assert_close(model: onnx.ModelProto, converted: onnx.ModelProto, feeds: dict[str, Array] | None = None) -> None:
    """Compares the outputs of both models in ONNX Runtime, without optimizations.

    In the original, exp(x) may overflow if x is large.
    """
    feeds = feeds or {"x": data()}
    largest = np.maximum(1, np.abs(feeds["x"]))
    results = [stock_session(each).run(None, feeds) for each in (model, converted)]
    for wanted, actual in zip(*results, strict=True):
        assert actual.dtype == wanted.dtype
        is_finite = np.isfinite(wanted)
        assert is_finite[largest < 88].all()
        assert np.isfinite(actual).all()
        assert (np.abs(actual - wanted) <= 1e-6 * largest)[is_finite].all()


def check(model: onnx.ModelProto, *operators: str, feeds: dict[str, Array] | None = None) -> onnx.ModelProto:
    """Checks which nodes the model has after the rule, and what it computes; returns it."""
    converted = fused(model)
    assert microsoft(converted) == list(operators)
    assert_close(model, converted, feeds)
    return converted


CUBES = {
    "Pow": "cube = Pow(x, k3)",
    "products": "square = Mul(x, x) cube = Mul(x, square)",
    "products from the left": "square = Mul(x, x) cube = Mul(square, x)",
    "Pow with an integer": "three = Constant<value_int = 3>() cube = Pow(x, three)",
}
TANH_ENDS = "t = Tanh(u) t1 = Add(t, k1) h = Mul(x, half) y = Mul(h, t1)"
TANH_ENDS_LAST = "t = Tanh(u) t1 = Add(k1, t) xt = Mul(x, t1) y = Mul(half, xt)"
TANH_ENDS_INSIDE = "t = Tanh(u) t1 = Add(k1, t) h = Mul(half, t1) y = Mul(x, h)"
SPELLINGS = {
    # erf
    "TorchScript": ("Gelu", "d = Div(x, root2) e = Erf(d) e1 = Add(e, k1) m = Mul(x, e1) y = Mul(m, half)"),
    "dynamo": ("Gelu", "h = Mul(x, half) d = Mul(x, per_root2) e = Erf(d) e1 = Add(e, k1) y = Mul(h, e1)"),
    "half of erf": ("Gelu", "d = Mul(per_root2, x) e = Erf(d) e1 = Add(k1, e) h = Mul(half, e1) y = Mul(x, h)"),
    "divided by 2": ("Gelu", "d = Div(x, root2) e = Erf(d) e1 = Add(e, k1) m = Mul(x, e1) y = Div(m, k2)"),
    "computed root": ("Gelu", "r = Sqrt(k2) d = Div(x, r) e = Erf(d) f = Add(e, k1) m = Mul(x, f) y = Mul(m, half)"),
    "without 1": ("Gelu", "h = Mul(x, half) d = Div(x, root2) e = Erf(d) he = Mul(h, e) y = Add(h, he)"),
    "erf of -x": (
        "Gelu",
        "n = Neg(x) d = Div(n, root2) e = Erf(d) s = Sub(k1, e) m = Mul(x, s) y = Mul(m, half)",
    ),
    "copies": (
        "Gelu",
        """i = Identity(x) d = Div(i, root2) e = Erf(d) c = Cast<to = 1>(e) e1 = Add(c, k1) h = Mul(x, half)
        m = Mul(h, e1) y = Identity(m)""",
    ),
    "ones like x": (
        "Gelu",
        """s = Shape(x) ones = Expand(k1, s) d = Div(x, root2) e = Erf(d) e1 = Add(e, ones) m = Mul(x, e1)
        y = Mul(m, half)""",
    ),
    # tanh
    **{
        f"tanh of {name}": ("FastGelu", f"{cube} c = Mul(cube, tanh_cube) a = Add(x, c) u = Mul(a, tanh_scale) {ends}")
        for name, cube in CUBES.items()
        for ends in [TANH_ENDS]
    },
    "tanh, half last": (
        "FastGelu",
        f"{CUBES['Pow']} c = Mul(tanh_cube, cube) a = Add(c, x) u = Mul(tanh_scale, a) {TANH_ENDS_LAST}",
    ),
    "tanh, half inside": (
        "FastGelu",
        f"{CUBES['products']} c = Mul(tanh_cube, cube) a = Add(c, x) u = Mul(tanh_scale, a) {TANH_ENDS_INSIDE}",
    ),
    "tanh of x * (1 + square)": (
        "FastGelu",
        f"""kx = Mul(x, tanh_cube) s = Mul(x, kx) a = Add(s, k1) xs = Mul(x, tanh_scale) u = Mul(xs, a)
        {TANH_ENDS_INSIDE}""",
    ),
    "tanh of (x * scale) * (1 + square)": (
        "FastGelu",
        f"s = Mul(x, x) ks = Mul(s, tanh_cube) a = Add(k1, ks) xa = Mul(x, a) u = Mul(xa, tanh_scale) {TANH_ENDS}",
    ),
    "tanh of a sum of products": (
        "FastGelu",
        f"""xs = Mul(x, tanh_scale) {CUBES["Pow"]} c = Mul(cube, tanh_cube) cs = Mul(c, tanh_scale) u = Add(cs, xs)
        {TANH_ENDS}""",
    ),
    "tanh as a sigmoid": (  # 0.5 * (1 + tanh(u)) is sigmoid(2 * u)
        "FastGelu",
        f"{CUBES['Pow']} c = Mul(cube, tanh_cube) a = Add(x, c) u = Mul(a, tanh_scale) v = Mul(u, k2) s = Sigmoid(v) "
        "y = Mul(x, s)",
    ),
    # sigmoid
    "SiLU": ("QuickGelu 1", "s = Sigmoid(x) y = Mul(x, s)"),
    "SiLU, commuted": ("QuickGelu 1", "s = Sigmoid(x) y = Mul(s, x)"),
    "SiLU by Div": ("QuickGelu 1", "n = Neg(x) e = Exp(n) a = Add(e, k1) y = Div(x, a)"),
    "SiLU by Div, commuted": ("QuickGelu 1", "n = Neg(x) e = Exp(n) a = Add(k1, e) y = Div(x, a)"),
    "SiLU by a quotient": ("QuickGelu 1", "n = Neg(x) e = Exp(n) a = Add(k1, e) s = Div(k1, a) y = Mul(x, s)"),
    "SiLU by Reciprocal": ("QuickGelu 1", "n = Neg(x) e = Exp(n) a = Add(k1, e) s = Reciprocal(a) y = Mul(x, s)"),
    "SiLU by exp(x)": ("QuickGelu 1", "e = Exp(x) a = Add(k1, e) s = Div(e, a) y = Mul(x, s)"),
    "SiLU by Pow": (
        "QuickGelu 1",
        "m = Constant<value_float = -1.0>() n = Mul(x, m) e = Exp(n) a = Add(k1, e) s = Pow(a, m) y = Mul(x, s)",
    ),
    "SiLU by tanh": (
        "QuickGelu 1",
        "h = Mul(x, half) t = Tanh(h) t1 = Add(t, k1) m = Mul(x, t1) y = Mul(m, half)",
    ),
    "SiLU by tanh, without 1": ("QuickGelu 1", "h = Mul(x, half) t = Tanh(h) m = Mul(h, t) y = Add(h, m)"),
    "SiLU by Softplus": ("QuickGelu 1", "n = Neg(x) p = Softplus(n) m = Neg(p) s = Exp(m) y = Mul(x, s)"),
    "SiLU in float64": ("QuickGelu 1", "w = Cast<to = 11>(x) s = Sigmoid(w) m = Mul(w, s) y = Cast<to = 1>(m)"),
    "QuickGelu": ("QuickGelu 1.702", "a = Mul(x, quick) s = Sigmoid(a) y = Mul(x, s)"),
    "QuickGelu by Exp": (
        "QuickGelu 1.702",
        "n = Neg(x) a = Mul(quick, n) e = Exp(a) b = Add(e, k1) y = Div(x, b)",
    ),
    "x * sigmoid(-x)": ("QuickGelu -1", "n = Neg(x) s = Sigmoid(n) y = Mul(x, s)"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    operator, body = SPELLINGS[name]
    converted = check(model_of(body), operator)
    assert len(converted.graph.node) == 1
    assert {each.domain: each.version for each in converted.opset_import} == {"": 18, "com.microsoft": 1}


@pytest.mark.parametrize(
    ("attribute", "operator"),
    [("", "Gelu"), ('<approximate = "none">', "Gelu"), ('<approximate = "tanh">', "FastGelu")],
)
def test_standard_gelu(attribute: str, operator: str) -> None:
    check(model_of(f"y = Gelu{attribute}(x)", opset=20), operator)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 24, reason="no Swish")
def test_swish() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 24]> g (float[N, K] x) => (float[] y, float[] z)
        { y = Swish<alpha = 1.5>(x) z = Swish(x) }"""
    )
    converted = fused(model)
    assert microsoft(converted) == ["QuickGelu 1.5", "QuickGelu 1"]
    x = data()
    for y, alpha in zip(stock_session(converted).run(None, {"x": x}), (1.5, 1), strict=True):
        assert (np.abs(y - x / (1 + np.exp(-alpha * x.astype(np.float64)))) <= 1e-6 * np.maximum(1, np.abs(x))).all()


def test_old_opset() -> None:
    check(model_of(SPELLINGS["TorchScript"][1], opset=11), "Gelu")


def test_digits_of_constants() -> None:
    numbers = {"tanh_scale": 0.797885, "tanh_cube": 0.044715, "per_root2": 0.707107}
    for name in ("dynamo", "tanh of Pow"):
        check(model_of(SPELLINGS[name][1], numbers), SPELLINGS[name][0])


def test_constants_of_one_element() -> None:
    one = "k = Constant<value = float[1] {0.7071067690849304}>()"
    body = f"{one} d = Mul(x, k) e = Erf(d) e1 = Add(e, k1) h = Mul(x, half) y = Mul(h, e1)"
    check(model_of(body), "Gelu")
    assert microsoft(fused(model_of(body, inputs="float[] x"))) == []  # k may give a number x a dimension
    assert microsoft(fused(model_of(body.replace("float[1]", "float[1, 1, 1]")))) == []


def test_many_factors() -> None:
    """Constants are no candidates for x, of which there are few."""
    numbers = {f"c{i}": 2.0 if i % 2 else 0.5 for i in range(8)}
    product = " ".join(f"f{i} = Mul({f'f{i - 1}' if i else 'x'}, {name})" for i, name in enumerate(numbers))
    check(model_of(f"{product} s = Sigmoid(f7) y = Mul(x, s)", numbers), "QuickGelu 1")


def test_unknown_shape() -> None:
    check(model_of(SPELLINGS["dynamo"][1], inputs="float[] x"), "Gelu")


def test_not_without_fuse() -> None:
    model = model_of(SPELLINGS["SiLU"][1])
    assert microsoft(rewrite(model).to_proto()) == []
    assert microsoft(rewrite(model, fuse=True).to_proto()) == ["QuickGelu 1"]


# Around an activation function

AROUND = {
    "gate": ("QuickGelu 1", "s = Sigmoid(x) g = Mul(x, s) y = Mul(g, up)", ["Mul"]),
    "gate, commuted": ("QuickGelu 1", "s = Sigmoid(x) g = Mul(s, x) y = Mul(up, g)", ["Mul"]),
    "gate by Exp": ("QuickGelu 1", "n = Neg(x) e = Exp(n) a = Add(e, k1) g = Div(x, a) y = Mul(g, up)", ["Mul"]),
    "gate by Gelu": ("Gelu", SPELLINGS["dynamo"][1].replace("y =", "g =") + " y = Mul(g, up)", ["Mul"]),
    "bias": ("QuickGelu 1", "z = Add(x, up) s = Sigmoid(z) y = Mul(z, s)", ["Add"]),
    "residual": ("QuickGelu 1", "s = Sigmoid(x) g = Mul(x, s) y = Add(x, g)", ["Add"]),
    "scaled": ("QuickGelu 1", "s = Sigmoid(x) g = Mul(x, s) b = Mul(g, k3) y = Add(b, up)", ["Mul", "Add"]),
    "tanh before": (
        "QuickGelu 1",
        "t = Tanh(x) z = Mul(t, x) s = Sigmoid(z) g = Mul(z, s) y = Add(g, up)",
        ["Tanh", "Mul", "Add"],
    ),
}


@pytest.mark.parametrize("name", AROUND)
def test_other_nodes_stay(name: str) -> None:
    operator, body, others = AROUND[name]
    feeds = {"x": data()} | ({"up": np.cos(data(1))} if "up" in body else {})
    converted = check(model_of(body, inputs=", ".join(f"float[N, K] {each}" for each in feeds)), operator, feeds=feeds)
    assert [node.op_type for node in converted.graph.node if node.domain == ""] == others


def test_several_in_a_row() -> None:
    first = "s = Sigmoid(x) g = Mul(x, s) "
    second = re.sub(r"\bx\b", "g", SPELLINGS["dynamo"][1]).replace("y =", "f =")
    third = re.sub(r"\bx\b", "f", "kf = Mul(x, quick) sf = Sigmoid(kf) y = Mul(x, sf)")
    model = model_of(first + second + third)
    converted = fused(model)
    assert microsoft(converted) == ["QuickGelu 1", "Gelu", "QuickGelu 1.702"]
    assert len(converted.graph.node) == 3
    assert_close(model, converted)


def test_long_network() -> None:
    """Elementwise nodes without an end do not exhaust the stack, and hide no activation function."""
    lines, x = [], "x"
    for i in range(400):
        lines.append(f"s{i} = Sigmoid({x}) w{i} = Mul(up, s{i}) a{i} = Add(w{i}, {x}) b{i} = Mul(a{i}, k3)")
        x = f"b{i}"
    model = model_of("\n".join([*lines, f"s = Sigmoid({x}) y = Mul(s, {x})"]), inputs="float[N, K] x, float[N, K] up")
    assert microsoft(fused(model)) == ["QuickGelu 1"]


def test_output_is_used_many_times() -> None:
    converted = check(
        model_of("s = Sigmoid(x) y = Mul(x, s) n = Neg(y) a = Abs(y)", outputs="float[] y, float[] n, float[] a"),
        "QuickGelu 1",
    )
    assert [node.op_type for node in converted.graph.node] == ["QuickGelu", "Neg", "Abs"]


def test_subgraph() -> None:
    """x is a value of the graph around the nodes."""
    body = (
        YES
        + """ y = If(yes) <
        then_branch = t () => (float[N, K] inner) { s = Sigmoid(x) inner = Mul(x, s) },
        else_branch = e () => (float[N, K] other) { other = Identity(x) }>"""
    )
    check(model_of(body), "QuickGelu 1")


def test_nodes_in_two_graphs_stay() -> None:
    body = (
        YES
        + """ s = Sigmoid(x) y = If(yes) <
        then_branch = t () => (float[N, K] inner) { inner = Mul(x, s) },
        else_branch = e () => (float[N, K] other) { other = Identity(x) }>"""
    )
    assert microsoft(fused(model_of(body))) == []


# Near misses

TANH = SPELLINGS["tanh of Pow"][1]
ERF = SPELLINGS["dynamo"][1]
NEAR_MISSES: dict[str, tuple[str, dict[str, float]]] = {
    "half is 0.51": (ERF, {"half": 0.51}),
    "root is 0.708": (ERF, {"per_root2": 0.708}),
    "root has three digits": (ERF, {"per_root2": 0.707}),
    "one is 1.001": (ERF, {"k1": 1.001}),
    "no one": ("h = Mul(x, half) d = Mul(x, per_root2) e = Erf(d) y = Mul(h, e)", {}),
    "one subtracted": (ERF.replace("Add", "Sub"), {}),
    "erf alone": ("y = Erf(x)", {}),
    "cube of 0.04": (TANH, {"tanh_cube": 0.04}),
    "square": (TANH, {"k3": 2.0}),
    "scale is 0.8": (TANH, {"tanh_scale": 0.8}),
    "sigmoid alone": ("y = Sigmoid(x)", {}),
    "sigmoid of a multiple": ("a = Mul(x, quick) y = Sigmoid(a)", {}),
    "sigmoid times a multiple": ("a = Mul(x, quick) s = Sigmoid(x) y = Mul(a, s)", {}),
    "sigmoid of a sum": ("a = Add(x, half) s = Sigmoid(a) y = Mul(x, s)", {}),
    "sigmoid times a square": ("q = Mul(x, x) s = Sigmoid(x) y = Mul(q, s)", {}),
    "sum with a sigmoid": ("s = Sigmoid(x) y = Add(x, s)", {}),
    "x / sigmoid": ("s = Sigmoid(x) y = Div(x, s)", {}),
    "tanh": ("t = Tanh(x) y = Mul(x, t)", {}),
    "tanh of x": ("t = Tanh(x) t1 = Add(t, k1) h = Mul(x, half) q = Mul(h, quick) y = Mul(q, t1)", {}),
    "mish": ("p = Softplus(x) t = Tanh(p) y = Mul(x, t)", {}),
    "exp alone": ("n = Neg(x) e = Exp(n) y = Mul(x, e)", {}),
    "exp without Neg": ("e = Exp(x) a = Sub(e, k1) y = Div(x, a)", {}),
    "hard": ("y = HardSwish(x)", {}),
    "NaN at 0": ("q = Mul(x, x) n = Neg(x) e = Exp(n) a = Add(e, k1) xa = Mul(x, a) y = Div(q, xa)", {}),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    body, numbers = NEAR_MISSES[name]
    assert microsoft(fused(model_of(body, numbers))) == []


@pytest.mark.parametrize(
    ("name", "numbers", "function"),
    [
        ("TorchScript", {"root2": 1.4140625}, "Gelu"),  # rounded to float16, as the next two
        ("dynamo", {"per_root2": 0.70703125}, "Gelu"),
        ("tanh of Pow", {"tanh_scale": 0.7978515625, "tanh_cube": 0.04470825195}, "FastGelu"),
        ("tanh of Pow", {"tanh_cube": 0.0447}, "FastGelu"),
    ],
)
def test_rounded_constants(name: str, numbers: dict[str, float], function: str) -> None:
    """The nodes stay, and the report says why: the difference is more than verification allows."""
    report = convert(ir.from_proto(model_of(SPELLINGS[name][1], numbers)), ((RULE,),), RewriteOptions(fuse=True))
    assert not report.rewritten
    (finding,) = report.unconverted
    assert finding.unconverted is not None
    assert finding.unconverted.reason == Reason.NEARLY_FUNCTION
    assert re.fullmatch(
        rf"its constants are rounded: it differs from {function} by up to [0-9]e-0[56], .*", finding.reason
    )


@pytest.mark.parametrize("value", ["d", "e", "e1", "h", "m"])
def test_middle_values_used_elsewhere(value: str) -> None:
    body = "d = Div(x, root2) e = Erf(d) e1 = Add(e, k1) h = Mul(x, half) m = Mul(h, e1)"
    assert microsoft(fused(model_of(f"{body} y = Identity(m)"))) == ["Gelu"]
    expected = ["Gelu"] if value == "m" else []
    assert microsoft(fused(model_of(f"{body} y = Identity(m) z = Neg({value})", outputs="float[] y, float[] z"))) == (
        expected
    )
    assert microsoft(fused(model_of(f"{body} y = Identity(m)", outputs=f"float[] y, float[] {value}"))) == expected


def test_middle_value_used_in_a_subgraph() -> None:
    body = (
        YES
        + """ s = Sigmoid(x) y = Mul(x, s) z = If(yes) <
        then_branch = t () => (float[N, K] inner) { inner = Neg(s) },
        else_branch = e () => (float[N, K] other) { other = Identity(x) }>"""
    )
    assert microsoft(fused(model_of(body, outputs="float[] y, float[] z"))) == []


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(x) y = Mul(w, s)",
        "h = Mul(w, half) d = Mul(x, per_root2) e = Erf(d) e1 = Add(e, k1) y = Mul(h, e1)",
        "cube = Pow(w, k3) c = Mul(cube, tanh_cube) a = Add(x, c) u = Mul(a, tanh_scale) " + TANH_ENDS,
    ],
)
def test_two_values(body: str) -> None:
    assert microsoft(fused(model_of(body, inputs="float[N, K] x, float[N, K] w"))) == []
    assert microsoft(fused(model_of(re.sub(r"\bw\b", "x", body)))) != []


@pytest.mark.parametrize("type_", ["float16", "double"])
def test_other_types(type_: str) -> None:
    """Also in the middle: float16 rounds."""
    body = "s = Sigmoid(x) y = Mul(x, s)"
    assert microsoft(fused(model_of(body, inputs=f"{type_}[N, K] x", outputs=f"{type_}[] y"))) == []
    wide = "w = Cast<to = 11>(x) s = Sigmoid(w) y = Mul(w, s)"
    assert microsoft(fused(model_of(wide, outputs="double[] y"))) == []
    narrow = "n = Cast<to = 10>(x) s = Sigmoid(n) m = Mul(n, s) y = Cast<to = 1>(m)"
    assert microsoft(fused(model_of(narrow))) == []


def test_large_constant() -> None:
    """A constant with more dimensions than x: the result has them, too."""
    body = "ones = Constant<value = float[2, 1, 1] {1, 1}>() n = Neg(x) e = Exp(n) a = Add(e, ones) y = Div(x, a)"
    assert microsoft(fused(model_of(body))) == []
    assert microsoft(fused(model_of(body.replace("float[2, 1, 1] {1, 1}", "float[1] {1}")))) == ["QuickGelu 1"]


# Random spellings


class Writer:
    """Writes one of the functions with random order, association and operators."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []

    def text(self, result: str) -> str:
        """The nodes; the last one is y."""
        return "\n".join([*self._lines, f"y = Identity({result})"])

    def node(self, operator: str, *operands: str) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = {operator}({', '.join(operands)})")
        return name

    def number(self, value: float) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = Constant<value_float = {float(F(value))!r}>()")
        return name

    def choose(self, *ways: Callable[[], str]) -> str:
        return self._random.choice(ways)()

    def combine(self, operator: str, *operands: str) -> str:
        """A sum or a product, in random order and association."""
        todo = list(operands)
        while len(todo) > 1:
            self._random.shuffle(todo)
            todo.append(self.node(operator, todo.pop(), todo.pop()))
        return todo[0]

    def scaled(self, x: str, number: float) -> str:
        return self.choose(
            lambda: self.combine("Mul", x, self.number(number)),
            lambda: self.node("Div", x, self.number(1 / number)),
            lambda: self.node("Neg", self.combine("Mul", x, self.number(-number))),
        )

    def plus_one(self, x: str) -> str:
        return self.choose(
            lambda: self.combine("Add", x, self.number(1)),
            lambda: self.node("Sub", x, self.number(-1)),
            lambda: self.node("Sub", self.number(1), self.node("Neg", x)),
        )

    def sigmoid(self, x: str) -> str:
        def by_exp() -> str:
            return self.plus_one(self.node("Exp", self.choose(lambda: self.node("Neg", x), lambda: self.scaled(x, -1))))

        return self.choose(
            lambda: self.node("Sigmoid", x),
            lambda: self.node("Reciprocal", by_exp()),
            lambda: self.node("Div", self.number(1), by_exp()),
            lambda: self.scaled(self.plus_one(self.node("Tanh", self.scaled(x, 0.5))), 0.5),
        )

    def cube(self, x: str) -> str:
        return self.choose(lambda: self.combine("Mul", x, x, x), lambda: self.node("Pow", x, self.number(3)))

    def gelu(self) -> str:
        erf = self.plus_one(self.node("Erf", self.scaled("x", 0.5**0.5)))
        return self.choose(
            lambda: self.combine("Mul", "x", erf, self.number(0.5)),
            lambda: self.combine("Mul", self.scaled("x", 0.5), erf),
            lambda: self.scaled(self.combine("Mul", "x", erf), 0.5),
        )

    def tanh_gelu(self) -> str:
        scale, factor = (2 / np.pi) ** 0.5, 0.044715
        inner = self.choose(
            lambda: self.scaled(self.combine("Add", "x", self.scaled(self.cube("x"), factor)), scale),
            lambda: self.combine("Add", self.scaled("x", scale), self.scaled(self.cube("x"), scale * factor)),
            lambda: self.combine("Mul", "x", self.number(scale), self.plus_one(self.square("x", factor))),
        )
        return self.combine("Mul", "x", self.plus_one(self.node("Tanh", inner)), self.number(0.5))

    def square(self, x: str, factor: float) -> str:
        return self.combine("Mul", x, x, self.number(factor))

    def swish(self, alpha: float) -> str:
        return self.combine("Mul", "x", self.sigmoid("x" if alpha == 1 else self.scaled("x", alpha)))


@pytest.mark.parametrize(
    ("seed", "operator"), diagonals(1, range(40), ["Gelu", "FastGelu", "QuickGelu 1", "QuickGelu 1.702"])
)
def test_random_spellings(seed: int, operator: str) -> None:
    writer = Writer(seed)
    name, *alpha = operator.split()
    result = writer.swish(float(alpha[0])) if alpha else writer.gelu() if name == "Gelu" else writer.tanh_gelu()
    converted = check(model_of(writer.text(result)), operator)
    assert len(converted.graph.node) == 1
