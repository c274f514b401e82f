"""Float products of quantized activations: which become integer products, their results, and which stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import diagonals, make_session, stock_session
from onnx import TensorProto
from product_models import (
    _ROUNDINGS,
    ACTIVATIONS,
    DATA,
    INTEGER_WEIGHTS,
    WEIGHTS,
    F,
    K,
    N,
    asymmetric,
    check_products,
    codes_of,
    model_of,
    scales_of,
    symmetric,
)
from rewriting import check, found, products, rows

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason


@pytest.mark.parametrize(("activation", "weights"), diagonals(1, ACTIVATIONS, WEIGHTS))
def test_products_of_floats(activation: str, weights: str) -> None:
    text, arrays = WEIGHTS[weights]
    model = model_of(ACTIVATIONS[activation] + text + "y = MatMul(dx, w)", arrays)
    report = check_products(model, DATA)
    assert "QuantizedMatMul" in products(report)
    assert not report.unconverted


@pytest.mark.parametrize(
    ("body", "tail"),
    [
        (symmetric() + "dx = Sub(c, s)\n", "y = MatMul(dx, w)"),
        (symmetric() + "dx = Sub(c, s)\n", "p = MatMul(dx, w)\n y = Mul(p, c127)"),
        (asymmetric() + "dx = Sub(c, z)\n", "y = MatMul(dx, w)"),
        (asymmetric() + "v = Sub(c, z)\n s1 = ReduceMax<keepdims = 0>(s)\n dx = Mul(v, s1)\n", "y = MatMul(dx, w)"),
    ],
    ids=["no scale, a float", "a scale after the product", "no scale, a code", "one scale"],
)
def test_one_scale_and_a_zero_point_for_each_row(body: str, tail: str) -> None:
    """QuantizedMatMul takes as many scales as zero points. The model's float sums of K products round to 1e-6."""
    weights = {"w": codes_of().astype(F) * scales_of()}
    if "Mul(p" not in tail:
        report = check_products(
            model_of(body + tail, weights), DATA, groups=2
        )  # a float zero point is added at the end
        assert "QuantizedMatMul" in products(report)
        return
    model = model_of(body + tail, weights)
    converted = rewrite(model).to_proto()
    assert "QuantizedMatMul" in {node.op_type for node in converted.graph.node}
    expected = stock_session(model).run(None, DATA)[0]
    for session in (make_session(converted, "native"), stock_session(converted)):
        np.testing.assert_allclose(session.run(None, DATA)[0], expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("chain", [symmetric, asymmetric])
def test_every_opset(opset: int, chain: Any) -> None:
    v = "" if chain is symmetric else "v = Sub(c, z)\n "
    body = f"{chain(opset)} {v}dx = Mul({'v' if v else 'c'}, s)\n y = MatMul(dx, w)"
    assert "QuantizedMatMul" in products(check_products(model_of(body, WEIGHTS["folded"][1], opset=opset), DATA))


@pytest.mark.parametrize(
    ("body", "tail"),
    [
        ("q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n p = MatMul(f, w)\n", "y = Mul(p, s)"),
        (
            "q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n p = MatMul(f, w)\n",
            "k = Mul(s, p)\n l = Mul(k, ws)\n y = Add(l, b)",
        ),
        (
            "q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n p = MatMul(f, w)\n",
            "k = Mul(p, ws)\n l = Mul(k, s)\n y = Add(l, b)",
        ),
        ("q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n p = MatMul(f, w)\n", "k = Add(p, b)\n y = Mul(k, s)"),
        ("q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n p = MatMul(f, w)\n", "k = Mul(s, ws)\n y = Div(p, k)"),
        (
            "q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n",
            "f2 = Reshape(f, rows)\n k = Gemm(f2, w, b)\n y = Mul(k, c127)",
        ),
    ],
)
def test_a_scale_after_the_product(body: str, tail: str) -> None:
    """The float product of the codes is exact here: K is small."""
    weights = {"w": codes_of().astype(F), "ws": scales_of(), "b": np.linspace(-3, 3, N).astype(F)}
    model = model_of(symmetric() + body + tail, weights)
    result = rewrite(model)
    assert "QuantizedMatMul" in products(result.report)
    expected = stock_session(model).run(None, DATA)[0]
    largest = np.abs(expected).max(axis=-1, keepdims=True) + 3  # of a row, and its biases
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        ours = session.run(None, DATA)[0]
        assert (np.abs(ours - expected) <= 2 * _ROUNDINGS * 2.0**-24 * largest).all()
    check(model, DATA, exact=True)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("zero_points", ["", ", zq", ", zq, wz"])
def test_integer_convolutions(zero_points: str, exact: bool) -> None:
    """ConvInteger pads with the zero point."""
    weights = {"w": codes_of()[:12, :9].reshape(4, 3, 3, 3), "zq": np.int8(-3), "wz": np.int8(2)}
    body = (
        f"{symmetric()} q = Cast<to = 3>(c)\n i = ConvInteger<pads = [1, 1, 0, 2], strides = [2, 1]>(q, w{zero_points})"
    )
    model = model_of(f"{body}\n y = Cast<to = 1>(i)", weights, inputs="float[1, 3, H, W] x")
    report = check(model, {"x": rows((1, 3, 9, K), seed=4)}, exact=exact)
    assert found(report) == ["ConvInteger", "RowProgram"]
    (product,) = (n for n in rewrite(model, exact=exact).to_proto().graph.node if n.op_type == "ConvInteger")
    assert len(product.input) == 4  # uint8 weights, since uint8 codes times int8 weights may saturate


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtypes", ["s8 s8", "s8 u8", "u8 s8"])
def test_products_of_two_activations(dtypes: str, exact: bool) -> None:
    """Weights that are computed at run time cannot be packed. No product becomes one that may saturate."""
    a, b = ("int8" if dtype == "s8" else "uint8" for dtype in dtypes.split())
    body = "i = MatMulInteger(q, w, zq)\n f = Cast<to = 1>(i)\n y = Mul(f, s)"
    model = model_of(
        body, {"zq": np.zeros((), a)}, inputs=f"{a}[2, 7, {K}] q, {b}[2, {K}, 5] w, float s", outputs="float[] y"
    )
    rng = np.random.default_rng(0)
    info = {each: np.iinfo(each) for each in (a, b)}
    q = rng.integers(info[a].min, info[a].max + 1, (2, 7, K)).astype(a)
    w = rng.integers(info[b].min, info[b].max + 1, (2, K, 5)).astype(b)
    report = check(model, {"q": q, "w": w, "s": np.array(0.5, F)}, exact=exact)
    assert found(report) == ["MatMulInteger"]
    assert not report.cpu.saturating
    converted = rewrite(model, exact=exact).to_proto()
    types = {info.name: info.type.tensor_type.elem_type for info in converted.graph.input}
    casts = {n.output[0]: n.attribute[0].i for n in converted.graph.node if n.op_type == "Cast"}
    (product,) = (node for node in converted.graph.node if node.op_type == "MatMulInteger")
    both = {(types | casts)[name] for name in product.input[:2]}
    assert both == {TensorProto.UINT8}


UNCONVERTED = {
    "not an 8-bit grid": ("y = MatMul(dx, w)", {"w": np.random.default_rng(0).normal(size=(K, N)).astype(F)}),
    "transA": (
        "d2 = Reshape(dx, rows)\n d3 = Transpose<perm = [1, 0]>(d2)\n y = Gemm<transA = 1>(d3, w)",
        WEIGHTS["folded"][1],
    ),
    "not a product by a matrix of weights": (
        'y = Einsum<equation = "abk,kn->bn">(dx, w)',
        WEIGHTS["folded"][1],
    ),
    "computed at run time": ("w2 = Mul(w, gain)\n y = MatMul(dx, w2)", WEIGHTS["folded"][1]),
    "bias is not one": (
        "d2 = Reshape(dx, rows)\n y = Gemm(d2, w, b)",
        WEIGHTS["folded"][1] | {"b": np.ones((12, 1), F)},
    ),
    "after Reshape d2: the scale": (
        "d2 = Reshape(dx, flat)\n y = MatMul(d2, v)",
        {"v": WEIGHTS["folded"][1]["w"][:11], "flat": np.array([-1, 11])},
    ),
    "expected a multiple of 16": (
        "d2 = Reshape(dx, flat)\n y = MatMul(d2, v)",
        {"v": np.concatenate([WEIGHTS["folded"][1]["w"]] * 2), "flat": np.array([-1, 2 * K])},
    ),
}


@pytest.mark.parametrize("reason", UNCONVERTED)
def test_chains_that_stay(reason: str) -> None:
    body, arrays = UNCONVERTED[reason]
    model = model_of(symmetric() + "dx = Mul(c, s)\n" + body, arrays, inputs=f"float[2, 6, {K}] x, float gain")
    report = check(model, {"x": DATA["x"][:, :6]} | {"gain": np.array(1.5, F)}, exact=False)
    assert found(report) == ["RowProgram"]
    assert [reason in finding.reason for finding in report.unconverted] == [True]


def test_fused_nodes_stay_if_they_are_kept() -> None:
    body = "q, s, z = DynamicQuantizeLinear(x)\n i = MatMulInteger(q, wq, z)\n f = Cast<to = 1>(i)\n"
    model = model_of(body + "k = Mul(s, ws)\n y = Mul(f, k)", INTEGER_WEIGHTS)
    assert not rewrite(model, keep_fused=True).report.rewritten


def test_static_quantization_stays() -> None:
    body = "q = QuantizeLinear(x, eps, zq)\n i = MatMulInteger(q, wq, zq)\n f = Cast<to = 1>(i)\n y = Mul(f, ws)"
    assert [finding.reason for finding in rewrite(model_of(body, INTEGER_WEIGHTS)).report.findings] == [
        Reason.STATIC.value
    ]


def test_rows_without_an_epsilon() -> None:
    """0 / 0 gives a row of NaN if the codes stay floats, and a row of zeros if they are integers."""
    x = rows((1, 9, K), seed=4)
    for kind, dx in (
        ("floats", "dx = Mul(c, s)"),
        ("integers", "q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n dx = Mul(f, s)"),
    ):
        model = model_of(symmetric(epsilon=False) + f"{dx}\n y = MatMul(dx, w)", WEIGHTS["folded"][1])
        converted = rewrite(model).to_proto()
        expected = stock_session(model).run(None, {"x": x})[0]
        assert np.isnan(expected[0, 4]).all() == (kind == "floats")
        for session in (make_session(converted, "native"), stock_session(converted)):
            ours = session.run(None, {"x": x})[0]
            np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected))


@pytest.mark.parametrize(("rows_", "is_left"), [(6, True), (7, False)])
def test_tiny_products_of_rows_stay_floats(rows_: int, is_left: bool) -> None:
    """Scales of rank 1 have to be reshaped. 7 * 33 * 18 products are more than 4096."""
    body = "m = ReduceMax<keepdims = 0>(x, last)\n m0 = Max(m, eps)\n s = Div(m0, c255)\n"
    body += "q = QuantizeLinear<axis = 0>(x, s)\n dx = DequantizeLinear<axis = 0>(q, s)\n y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["folded"][1], inputs=f"float[{rows_}, {K}] x")
    x = np.abs(rows((rows_, K), seed=3))
    report = check_products(model, {"x": np.where(np.isfinite(x), x, F(1))})
    assert ("QuantizedMatMul" in products(report)) != is_left
    assert any("too small" in finding.reason for finding in report.unconverted) == is_left


@pytest.mark.parametrize(
    "order", ["s = Div(m, c127)\n q = Div(x, s)", "s = Div(m, c127)\n i = Reciprocal(s)\n q = Mul(x, i)"]
)
@pytest.mark.parametrize("rows_of", ["last", "everything"])
def test_rows_of_zeros_without_an_epsilon_stay_nan(order: str, rows_of: str) -> None:
    """Their codes are NaN, which the model's own nodes give to the product; integer codes cannot be NaN."""
    axes = ", last" if rows_of == "last" else ""
    body = f"a = Abs(x)\n m = ReduceMax(a{axes})\n {order}\n r = Round(q)\n c = Clip(r, low, high)\n"
    model = model_of(
        body + "n = Neg(c)\n t = Neg(s)\n dx = Mul(n, t)\n y = MatMul(dx, w)",
        {"w": codes_of().astype(F)},
        inputs=f"float[1, 3, {K}] x",
    )
    converted = rewrite(model).to_proto()
    assert "QuantizedMatMul" in {node.op_type for node in converted.graph.node}
    x = np.linspace(-2, 3, 3 * K, dtype=F).reshape(1, 3, K)
    original, *sessions = stock_session(model), make_session(converted, "native"), stock_session(converted)
    for zeros in ([1], [0, 1, 2]):
        x[:, zeros] = 0
        expected = original.run(None, {"x": x})[0]
        for session in sessions:
            np.testing.assert_array_equal(np.isnan(session.run(None, {"x": x})[0]), np.isnan(expected))
        assert np.isnan(expected).any() == (rows_of == "last" or len(zeros) == 3)
