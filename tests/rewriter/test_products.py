"""Matrix products: which ones become integer products, their results, and which ones stay.

Integer products of the original keep their bits. Float products are compared with float64, on the activations and
weights of the original model: the sum of integers is exact, so the result has four roundings, where the original adds
K rounded products.

More than 450 lines: the tests build their models from the chains and weights at the beginning of the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from bench import transformers
from helpers import Array, assert_same, diagonals, in_turn, make_session, product_of, stock_session, with_one_nan
from onnx import TensorProto, helper, numpy_helper
from rewriting import check, found, nodes_of, products, rows

import ort_dynq
from ort_dynq.rewriter import Report, rewrite
from ort_dynq.rewriter.reasons import Reason

F = np.float32
K, N = 33, 18
_ROUNDINGS = 4  # int32 to float32, the scales' product, the product with it, the bias


def model_of(
    body: str, weights: dict[str, Array], *, opset: int = 18, inputs: str = "", outputs: str = "float[] y"
) -> onnx.ModelProto:
    """A model over x, float32 [B, M, K], with scalar constants like those of rewriting.parse()."""
    constants = {"c127": 127, "c255": 255, "zero": 0, "low": -128, "high": 127, "eps": 1e-5}
    text = "".join(f", float {name} = {{{value}}}" for name, value in constants.items())
    head = f'<ir_version: {10 if opset >= 21 else 8}, opset_import: ["": {opset}]>'
    model = onnx.parser.parse_model(
        f"{head} g ({inputs or f'float[B, M, {K}] x'}) => ({outputs}) "
        f"<int64[1] last = {{-1}}, int64[2] rows = {{-1, {K}}}{text}> {{ {body} }}"
    )
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    used = {name for node in nodes_of(model.graph) for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def codes_of(low: int = -127, high: int = 127, *, seed: int = 1, dtype: type[np.generic] = np.int8) -> Array:
    codes = np.random.default_rng(seed).integers(low, high + 1, (K, N))
    codes[0] = high  # every column has the largest
    codes[:, 3] = 0
    return np.asarray(codes.astype(dtype))


def scales_of(seed: int = 2) -> Array:
    return np.asarray(np.random.default_rng(seed).uniform(0.001, 0.02, N).astype(F))


REDUCED = {13: "Reduce{0}<axes = [-1], keepdims = 1>({1})", 18: "Reduce{0}<keepdims = 1>({1}, last)"}


def reduced(kind: str, value: str, opset: int) -> str:
    return REDUCED[18 if opset >= 18 else 13].format(kind, value)


def symmetric(opset: int = 18, *, epsilon: bool = True) -> str:
    """Computes the scale s and the clipped float codes c of each token of x."""
    largest = "m0 = Identity(m)" if not epsilon else "m0 = Max(m, eps)"
    return f"a = Abs(x)\n m = {reduced('Max', 'a', opset)}\n {largest}\n s = Div(m0, c127)\n" + (
        "t = Div(x, s)\n r = Round(t)\n c = Clip(r, low, high)\n"
    )


def asymmetric(opset: int = 18) -> str:
    """Computes s and c as torchao does, with a zero point z."""
    return (
        f"mn = {reduced('Min', 'x', opset)}\n mx = {reduced('Max', 'x', opset)}\n mn0 = Min(mn, zero)\n"
        "mx0 = Max(mx, zero)\n d = Sub(mx0, mn0)\n e = Div(d, c255)\n s = Max(e, eps)\n g = Div(mn0, s)\n"
        "h = Round(g)\n z0 = Sub(low, h)\n z = Clip(z0, low, high)\n t = Div(x, s)\n r = Round(t)\n u = Add(r, z)\n"
        "c = Clip(u, low, high)\n"
    )


ACTIVATIONS = {
    "symmetric": symmetric() + "dx = Mul(c, s)\n",
    "symmetric through int8": symmetric() + "q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n dx = Mul(f, s)\n",
    "symmetric through CastLike": symmetric() + "q = Cast<to = 3>(c)\n f = CastLike(q, x)\n dx = Mul(f, s)\n",
    "asymmetric": asymmetric() + "v = Sub(c, z)\n dx = Mul(v, s)\n",
    "inverse scale": f"a = Abs(x)\n m = {reduced('Max', 'a', 18)}\n m0 = Max(m, eps)\n r0 = Reciprocal(m0)\n"
    "s = Mul(r0, c127)\n t = Mul(x, s)\n r = Round(t)\n c = Clip(r, low, high)\n dx = Div(c, s)\n",
    "per tensor, QuantizeLinear": "a = Abs(x)\n m = ReduceMax<keepdims = 0>(a)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n"
    "z0 = Mul(m, zero)\n z8 = Cast<to = 3>(z0)\n q = QuantizeLinear(x, s, z8)\n dx = DequantizeLinear(q, s, z8)\n",
    "scale from elsewhere": symmetric().replace("s = Div(m0, c127)", "s0 = Div(m0, c127)\n s = Mul(s0, s0)")
    + "dx = Mul(c, s)\n",
}
WEIGHTS: dict[str, tuple[str, dict[str, Array]]] = {
    "folded": ("", {"w": codes_of().astype(F) * scales_of()}),
    "folded, -128": ("", {"w": codes_of(-128).astype(F) * scales_of()}),
    "ternary": ("", {"w": codes_of(-1, 1).astype(F) * scales_of()}),
    "folded, asymmetric": (
        "",
        {"w": (codes_of(0, 255, dtype=np.int16) - np.arange(N) * 15).astype(F) * scales_of()},
    ),
    "Cast, Mul": ("wf = Cast<to = 1>(wq)\n w = Mul(wf, ws)\n", {"wq": codes_of(), "ws": scales_of()}),
    "Cast, Sub, Mul, Transpose": (
        "wf = Cast<to = 1>(wq)\n wd = Sub(wf, wz)\n we = Mul(wd, ws)\n w = Transpose<perm = [1, 0]>(we)\n",
        {"wq": np.ascontiguousarray(codes_of().T), "ws": scales_of()[:, None], "wz": np.full((N, 1), 3, F)},
    ),
    "DequantizeLinear": (
        "w = DequantizeLinear<axis = 1>(wq, ws, wz)\n",
        {"wq": codes_of(), "ws": scales_of(), "wz": np.zeros(N, np.int8)},
    ),
    "DequantizeLinear per tensor, u8": (
        "w = DequantizeLinear(wq, ws, wz)\n",
        {"wq": codes_of(0, 255, dtype=np.uint8), "ws": F(0.01), "wz": np.uint8(130)},
    ),
    "DequantizeLinear, Transpose": (
        "wd = DequantizeLinear<axis = 0>(wq, ws)\n w = Transpose<perm = [1, 0]>(wd)\n",
        {"wq": np.ascontiguousarray(codes_of().T), "ws": scales_of()},
    ),
}
DATA = {"x": rows((2, 9, K), seed=4)[:, [0, 1, 2, 3, 4, 6, 7]]}  # finite


def check_products(
    model: onnx.ModelProto, x: dict[str, Array], products: Sequence[str] = ("y",), groups: int = 0
) -> Report:
    """Checks that the rewritten model is as close to float64 as the original, and that the exact one equals it.

    The activation that is multiplied is dx, the weights are w. Groups are added as floats: one more rounding for each.
    """
    check(model, x, exact=True)
    result = rewrite(model)
    converted = result.to_proto()
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    initializers = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = [name for name in ("dx", "w", "b") if name not in initializers]
    known = {name for node in model.graph.node for name in node.output}
    names = [name for name in names if name in known]
    exposed.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    *outputs, _ = [*stock_session(exposed).run(None, x), None]
    given = dict(zip([output.name for output in exposed.graph.output], outputs, strict=True)) | initializers
    dx, w = (given[name].astype(np.float64) for name in ("dx", "w"))
    bias = given.get("b", np.zeros(1)).astype(np.float64)
    true = dx @ w + bias
    floor = (_ROUNDINGS + groups) * 2.0**-24 * (np.abs(dx) @ np.abs(w) + np.abs(bias))
    for session in (make_session(converted, "native"), stock_session(converted)):
        for name, ours in zip([output.name for output in model.graph.output], session.run(None, x), strict=True):
            if name not in products:
                assert_same(with_one_nan(ours), with_one_nan(given[name]))
                continue
            shaped = true.reshape(ours.shape)
            assert ours.dtype == F
            bound = np.maximum(floor.reshape(ours.shape), np.abs(given[name] - shaped))
            assert (np.abs(ours - shaped) <= bound).all()
    make_session(converted, "native", optimize=True).run(None, x)
    return result.report


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


GLUE = [
    "p = MatMul(dx, w)\n y = Add(p, b)",
    "p = MatMul(dx, w)\n y = Add(b, p)",
    "dy = Reshape(dx, rows)\n y = MatMul(dy, w)",
    "dy = Reshape(dx, rank4)\n y = MatMul(dy, w)",
    "dz = Shape(dx)\n dy = Reshape(dx, dz)\n y = MatMul(dy, w)",
    "dy = Reshape(dx, rows)\n p = MatMul(dy, w)\n y = Add(p, b)",
    "dy = Reshape(dx, rows)\n y = Gemm(dy, w, b)",
    "dy = Reshape(dx, rows)\n wt = Transpose<perm = [1, 0]>(w)\n y = Gemm<transB = 1>(dy, wt, b)",
    "i = Identity(dx)\n y = MatMul(i, w)",
]


@pytest.mark.parametrize(
    ("activation", "product", "bias"),
    in_turn(["symmetric", "asymmetric", "per tensor, QuantizeLinear"], GLUE, ["vector", "number"]),
)
def test_bias_and_glue(activation: str, product: str, bias: str) -> None:
    b = np.linspace(-3, 3, N).astype(F) if bias == "vector" else F(1.5)
    arrays = {"w": WEIGHTS["folded"][1]["w"], "b": b, "rank4": np.array([2, -1, 1, K])}
    model = model_of(ACTIVATIONS[activation] + product, arrays)
    report = check_products(model, DATA)
    assert "QuantizedMatMul" in products(report)
    operators = {node.op_type for node in rewrite(model).to_proto().graph.node}
    assert not {"MatMul", "Gemm"} & operators
    assert "Add" not in operators or activation == "per tensor, QuantizeLinear"  # int8 to uint8, of the zero point


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


# Integer products keep their bits


INTEGER_TAILS = {
    "row, column": "f = Cast<to = 1>(i)\n g = Mul(f, s)\n y = Mul(g, ws)",
    "column, row, bias": "f = Cast<to = 1>(i)\n g = Mul(ws, f)\n h = Mul(s, g)\n y = Add(b, h)",
    "product of scales": "f = Cast<to = 1>(i)\n k = Mul(s, ws)\n y = Mul(f, k)",
    "product of scales, bias": "f = Cast<to = 1>(i)\n k = Mul(ws, s)\n g = Mul(k, f)\n y = Add(g, b)",
    "none": "y = Cast<to = 1>(i)",
    "row": "f = Cast<to = 1>(i)\n y = Mul(f, s)",
    "column": "f = Cast<to = 1>(i)\n y = Mul(f, ws)",
    "subtracted": "j = Sub(i, sums)\n f = Cast<to = 1>(j)\n g = Mul(f, s)\n h = Mul(g, ws)\n y = Add(h, b)",
    "three factors": "f = Cast<to = 1>(i)\n g = Mul(f, s)\n h = Mul(g, ws)\n y = Mul(h, ws)",
}
PRODUCTS = {
    "plain": "i = MatMulInteger(q, wq)\n",
    "zero point": "i = MatMulInteger(q, wq, zq)\n",
    "zero points": "i = MatMulInteger(q, wq, zq, wz)\n",
    "unsigned weights": "i = MatMulInteger(q, wu, zq, wzu)\n",
}
INTEGER_WEIGHTS = {
    "wq": codes_of(),
    "wu": codes_of(0, 255, dtype=np.uint8),
    "zq": np.int8(-3),
    "wz": codes_of()[2],
    "wzu": np.uint8(128),
    "ws": scales_of(),
    "b": np.linspace(-3, 3, N).astype(F),
    "sums": codes_of().sum(0, dtype=np.int32) * 100,
}


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


@pytest.mark.parametrize(("tail", "product", "exact"), in_turn(INTEGER_TAILS, PRODUCTS, [False, True]))
def test_integer_products(tail: str, product: str, exact: bool) -> None:
    body = symmetric() + "q = Cast<to = 3>(c)\n" + PRODUCTS[product] + INTEGER_TAILS[tail]
    model = model_of(body, INTEGER_WEIGHTS)
    report = check(model, DATA, exact=exact)
    assert "QuantizedMatMul" in products(report)
    assert activations_of(rewrite(model, exact=exact).to_proto()) == {TensorProto.UINT8}


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


def test_weights_of_run_time_zero_points_stay_matmulinteger() -> None:
    body = f"{symmetric()} q = Cast<to = 3>(c)\n i = MatMulInteger(q, wq, zq, wr)\n f = Cast<to = 1>(i)\n y = Mul(f, s)"
    model = model_of(body, INTEGER_WEIGHTS, inputs=f"float[B, M, {K}] x, int8 wr")
    assert found(check(model, DATA | {"wr": np.array(-7, np.int8)})) == ["MatMulInteger", "RowProgram"]


@pytest.mark.parametrize("per", ["token", "tensor"])
def test_run_time_zero_points(per: str) -> None:
    """MatMulInteger takes one zero point for all rows; zero points of rows need a correction by other nodes."""
    chain = asymmetric().replace("<keepdims = 1>(x, last)", "<keepdims = 0>(x)") if per == "tensor" else asymmetric()
    z8 = ", z8" if per == "tensor" else ""
    body = (
        chain + f"q = Cast<to = 3>(c)\n z8 = Cast<to = 3>(z)\n i = MatMulInteger(q, wq{z8})\n"
        "f = Cast<to = 1>(i)\n k = Mul(f, s)\n"
    )
    model = model_of(body + "y = Mul(k, ws)", INTEGER_WEIGHTS)
    assert found(check(model, DATA)) == ["QuantizedMatMul", "RowProgram"]
    assert activations_of(rewrite(model).to_proto()) == {TensorProto.UINT8}


@pytest.mark.parametrize("codes", ["c", "q"])
def test_codes_that_are_unsigned_by_hand(codes: str) -> None:
    """Cast to int32, Add 128, Cast to uint8; the correction follows the product."""
    cast = "q = Cast<to = 3>(c)\n" if codes == "q" else ""
    body = f"{symmetric()} {cast} w32 = Cast<to = 6>({codes})\n w33 = Add(w32, half)\n u = Cast<to = 2>(w33)\n"
    body += "i0 = MatMulInteger(u, wq)\n i = Sub(i0, sums)\n f = Cast<to = 1>(i)\n g = Mul(f, s)\n y = Mul(g, ws)"
    sums = (codes_of().astype(np.int64).sum(0) * 128).astype(np.int32)
    model = model_of(body, INTEGER_WEIGHTS | {"half": np.int32(128), "sums": sums})
    assert found(check(model, DATA)) == ["QuantizedMatMul", "RowProgram"]
    raised = model_of(body, INTEGER_WEIGHTS | {"half": np.int32(127), "sums": sums})
    check(raised, DATA)


@pytest.mark.parametrize("moves", ["Reshape(q, rows)", "Transpose<perm = [1, 0, 2]>(q)", "Identity(q)", "Neg(q)"])
def test_codes_that_are_reshaped_or_transposed(moves: str) -> None:
    body = f"{symmetric()} q = Cast<to = 3>(c)\n q2 = {moves}\n i = MatMulInteger(q2, wq)\n"
    body += "j = Neg(i)\n y = Cast<to = 1>(j)"
    model = model_of(body, INTEGER_WEIGHTS)
    assert "MatMulInteger" in found(check(model, DATA))
    assert activations_of(rewrite(model).to_proto()) == {TensorProto.UINT8}


def test_codes_and_zero_points_from_anywhere() -> None:
    model = model_of(
        "i = MatMulInteger(q, wq, z)\n y = Cast<to = 1>(i)", INTEGER_WEIGHTS, inputs=f"int8[M, {K}] q, int8 z"
    )
    codes = np.random.default_rng(0).integers(-128, 128, (70, K)).astype(np.int8)
    for zero_point in (-128, -3, 0, 127):
        check(model, {"q": codes, "z": np.array(zero_point, np.int8)})
    assert activations_of(rewrite(model).to_proto()) == {TensorProto.UINT8}


def test_outputs_of_the_chain_stay() -> None:
    body = symmetric() + "q = Cast<to = 3>(c)\n" + PRODUCTS["plain"] + INTEGER_TAILS["row, column"] + "\n z = Neg(s)"
    outputs = "float[] y, int8[] q, float[] s, int32[] i, float[] z"
    model = model_of(body, INTEGER_WEIGHTS, outputs=outputs)
    assert "MatMulInteger" in found(check(model, DATA))
    model = model_of(body, INTEGER_WEIGHTS, outputs="float[] y, int8[] q, float[] s, float[] z")
    assert "QuantizedMatMul" in products(check(model, DATA))


def test_products_that_stay_do_not_saturate_on_older_cpus() -> None:
    """Without VNNI, pairs of u8 x s8 products are added in int16; weights up to 64 fit. u8 x u8 does not saturate."""
    body = symmetric() + "q = Cast<to = 3>(c)\n" + PRODUCTS["plain"] + "j = Neg(i)\n y = Cast<to = 1>(j)"
    for largest, dtype in ((64, np.int8), (65, np.uint8)):
        model = model_of(body, INTEGER_WEIGHTS | {"wq": codes_of(-largest, largest)})
        for exact in (True, False):
            check(model, DATA, exact=exact)
            converted = rewrite(model, exact=exact).to_proto()
            (product,) = (node for node in converted.graph.node if node.op_type == "MatMulInteger")
            (weights,) = (t for t in converted.graph.initializer if t.name == product.input[1])
            assert numpy_helper.to_array(weights).dtype == dtype


# Several uses of one activation, and weights that are no longer used


def test_one_quantization_for_several_products() -> None:
    body = symmetric() + "dx = Mul(c, s)\n" + "".join(f"{y} = MatMul(dx, {w})\n" for y, w in ("yw", "ku", "lv"))
    weights = {name: codes_of(seed=i).astype(F) * scales_of(i) for i, name in enumerate("wuv")}
    converted = rewrite(model_of(body, weights, outputs="float[] y, float[] k, float[] l")).to_proto()
    operators = [node.op_type for node in converted.graph.node]
    assert operators.count("RowProgram") == 1
    assert operators.count("QuantizedMatMul") == 3


def test_another_use_of_the_activation_keeps_the_floats() -> None:
    model = model_of(
        symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)\n n = Relu(dx)",
        WEIGHTS["folded"][1],
        outputs="float[] y, float[] n",
    )
    assert found(check_products(model, DATA)) == ["QuantizedMatMul", "RowProgram"]


def test_unused_float_weights_are_removed() -> None:
    model = model_of(symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)", WEIGHTS["folded"][1])
    converted = rewrite(model).to_proto()
    assert "w" not in {tensor.name for tensor in converted.graph.initializer}
    assert all(
        tensor.data_type != TensorProto.FLOAT or tensor.dims[:] in ([1, N], [N], [])
        for tensor in converted.graph.initializer
    )


def test_weights_of_several_products_are_stored_once() -> None:
    body = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)\n k = MatMul(dx, w2)\n l0 = MatMul(dx, w)\n l = Neg(l0)"
    weights = {"w": codes_of().astype(F) * scales_of(), "w2": codes_of().astype(F) * scales_of()}
    model = model_of(body, weights, outputs="float[] y, float[] k, float[] l")
    converted = rewrite(model).to_proto()
    nodes = [node for node in converted.graph.node if product_of(node.op_type)]
    assert [node.op_type for node in nodes] == ["QuantizedMatMul", "QuantizedMatMul", "QuantizedMatMulProgram"]
    assert len({tuple(node.input[3:8]) for node in nodes}) == 1
    assert len({tensor.name for tensor in converted.graph.initializer} & {"w", "w2"}) == 0


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


def test_a_zero_point_for_each_row_and_moved_rows() -> None:
    """The scale of the rows is reshaped as the codes are: it has as many elements as the zero point already."""
    body = (
        asymmetric()
        + """v = Sub(c, z) v2 = Reshape(v, rows) p = MatMul(v2, w) sh = Shape(x) two = Slice(sh, n0, n2)
        to = Concat<axis = 0>(two, last) p3 = Reshape(p, to) y = Mul(p3, s)"""
    )
    constants = {"w": codes_of().astype(F), "n0": np.array([0]), "n2": np.array([2])}
    model = model_of(body, constants)
    expected = stock_session(model).run(None, DATA)[0]
    converted = rewrite(model).to_proto()
    for session in (make_session(converted, "native"), stock_session(converted)):
        np.testing.assert_allclose(session.run(None, DATA)[0], expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_zero_points_that_split() -> None:
    """The lengths of a Split are no zero points."""
    body = asymmetric() + "v = Sub(c, z) f = Mul(v, s) start, dx = Split<axis = 1>(f, lengths) y = MatMul(dx, w)"
    rest = DATA["x"].shape[1] - 1
    report = check_products(model_of(body, {"w": codes_of().astype(F), "lengths": np.array([1, rest])}), DATA)
    assert "QuantizedMatMul" in found(report)


WIDE = {  # codes as int32 or int64, without a step in 8 bits
    "symmetric": symmetric() + "i = Cast<to = 6>(c)\n",
    "int64": symmetric() + "i = Cast<to = 7>(c)\n",
    "not clipped": symmetric().replace("Clip(r, low, high)", "Identity(r)") + "i = Cast<to = 6>(c)\n",
    "zero point": asymmetric() + "j = Cast<to = 6>(c)\n k = Cast<to = 6>(z)\n i = Sub(j, k)\n",
    "uint8": asymmetric().replace("low", "zero").replace("high", "c255")
    + "j = Cast<to = 6>(c)\n k = Cast<to = 6>(z)\n i = Sub(j, k)\n",
}
WIDE_PRODUCTS = [
    "p = MatMul(i, w)\n",
    "v = Cast<to = 6>(w8)\n p = MatMul(i, v)\n",
    'p = Einsum<equation = "abk,kn->abn">(i, w)\n',
    'p = Einsum<equation = "abk,nk->abn">(i, wt)\n',
]


@pytest.mark.parametrize(("codes", "product"), diagonals(2, WIDE, WIDE_PRODUCTS))
def test_codes_that_are_cast_to_wider_integers_at_once(codes: str, product: str) -> None:
    dtype, w = (np.int64 if codes == "int64" else np.int32), codes_of()
    body = WIDE[codes] + (product.replace("to = 6", "to = 7") if codes == "int64" else product)
    body += "f = Cast<to = 1>(p)\n l = Mul(f, s)\n y = Mul(l, ws)"
    arrays = {"w": w.astype(dtype), "w8": w, "wt": np.ascontiguousarray(w.T).astype(dtype), "ws": scales_of()}
    model = model_of(body, arrays)
    report = check(model, DATA, exact=False)
    assert found(report) == ["QuantizedMatMul", "RowProgram"]
    assert not report.unconverted
    report = check(model, DATA, exact=True)  # a Cast of NaN to int32 is no code
    assert "QuantizedMatMul" not in found(report)
    assert [each.unconverted and each.unconverted.reason for each in report.unconverted] == [Reason.EXACT_WIDE_CODES]


def test_integers_that_may_not_fit_8_bits_stay() -> None:
    """A row of zeros gives NaN, which a Cast to int32 makes a number beyond all bounds; 128 with -128 is no 8 bits."""
    arrays = {"w": codes_of().astype(np.int32), "ws": scales_of(), "more": F(128)}
    tail = "i = Cast<to = 6>(c)\n p = MatMul(i, w)\n f = Cast<to = 1>(p)\n y = Mul(f, ws)"
    half = (
        symmetric().replace("Clip(r, low, high)", "Identity(r)").replace("Round(t)", "Cast<to = 10>(t)")
    )  # no integer
    for chain in (symmetric(epsilon=False), symmetric().replace("c127", "c255").replace("high", "more"), half):
        assert "QuantizedMatMul" not in products(rewrite(model_of(chain + tail, arrays)).report)


SPELLINGS = {
    "Einsum": 'y = Einsum<equation = "abk,kn->abn">(dx, w)',
    "Einsum of any rank": 'y = Einsum<equation = "...k, kn -> ...n">(dx, w)',
    "Einsum of transposed weights": 'y = Einsum<equation = "abk,nk->abn">(dx, wt)',
    "alpha": "d2 = Reshape(dx, rows)\n y = Gemm<alpha = -0.3>(d2, w)",
    "alpha and beta": "d2 = Reshape(dx, rows)\n y = Gemm<alpha = 3.0, beta = 0.7>(d2, w, b)",
    "beta of 0": "d2 = Reshape(dx, rows)\n y = Gemm<beta = 0.0, transB = 1>(d2, wt, infinite)",
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings_of_a_product(name: str) -> None:
    w = WEIGHTS["folded"][1]["w"]
    arrays = {"w": w, "wt": np.ascontiguousarray(w.T), "b": np.linspace(-9, 9, len(w[0]), dtype=F)}
    arrays |= {"infinite": np.full(len(w[0]), np.inf, F), "rows": np.array([-1, K])}
    used = {key: each for key, each in arrays.items() if re.search(rf"\b{key}\b", SPELLINGS[name])}
    model = model_of(symmetric() + "dx = Mul(c, s)\n" + SPELLINGS[name], used, inputs=f"float[2, 6, {K}] x")
    result = rewrite(model)
    assert found(result.report) == ["QuantizedMatMul", "RowProgram"]
    assert ort_dynq.verify(model, result.model, inputs={"x": DATA["x"][:, :6]}).passed


WITHOUT_EPSILON = """a = Abs(x) m = ReduceMax(a, last) s = Div(m, c127) {} r = Round(d)
    c = Clip(r, low, high) i = Cast<to = 6>(c) f = Cast<to = 1>(i) dx = Mul(f, {}) y = MatMul(dx, w)"""


@pytest.mark.parametrize(
    ("quotient", "scale", "fits"),
    [
        ("d = Div(x, s)", "s", True),
        ("e = Div(x, m) d = Mul(e, c127)", "s", True),
        ("d = Div(x, s) t = Max(s, eps)", "t", False),
        ("e = Div(x, m) d = Mul(e, c127) t = Reciprocal(m)", "t", False),
    ],
)
def test_rows_of_zeros_whose_codes_are_cast_to_int32(quotient: str, scale: str, fits: bool) -> None:
    """0 / 0 is NaN, and as int32 any number: 0 times it is 0, another scale times it is not."""
    model = model_of(WITHOUT_EPSILON.format(quotient, scale), WEIGHTS["folded"][1], inputs=f"float[2, 6, {K}] x")
    report = rewrite(model).report
    assert ("QuantizedMatMul" in products(report)) == fits
    if fits:
        x = np.nan_to_num(DATA["x"][:, :6], posinf=1, neginf=-1)
        x[:, 2] = 0
        assert ort_dynq.verify(model, rewrite(model).model, inputs={"x": x}).passed
    else:
        assert any("a row of zeros has NaN instead of codes" in each.reason for each in report.unconverted)


@pytest.mark.parametrize(
    "equation", ["abk,kn->bn", "aak,kn->aan", "abn,kn->abk", "abk,kn->abk", "kbk,kn->kbn", "abk,kk->abk"]
)
def test_other_einsums_stay(equation: str) -> None:
    """Some are sums over another dimension, or of a diagonal."""
    arrays = {"w": WEIGHTS["folded"][1]["w"][:, :K]}
    body = f'y = Einsum<equation = "{equation}">(dx, w)'
    report = rewrite(model_of(symmetric() + "dx = Mul(c, s)\n" + body, arrays, inputs=f"float[6, 6, {K}] x")).report
    assert "QuantizedMatMul" not in products(report)


def test_einsum_that_may_broadcast_stays() -> None:
    """Einsum repeats a K of 1 for each row of the weights; the sums are other ones."""
    body = 'd1 = ReduceMax(dx, last)\n y = Einsum<equation = "abk,kn->abn">(d1, w)'
    report = rewrite(model_of(symmetric() + "dx = Mul(c, s)\n" + body, WEIGHTS["folded"][1])).report
    assert "QuantizedMatMul" not in products(report)


def test_alpha_that_overflows_the_scales_stays() -> None:
    arrays = {"w": WEIGHTS["folded"][1]["w"] * F(2.0**33)}
    body = "dx = Mul(c, s)\n d2 = Reshape(dx, rows)\n y = Gemm<alpha = 1e38>(d2, w)"
    report = rewrite(model_of(symmetric() + body, arrays)).report
    assert ["exceed float32" in each.reason for each in report.unconverted] == [True]


@pytest.mark.parametrize("axes", [[-1], [-2, -1], [-3, -2, -1], [1, 2], [2]])
@pytest.mark.parametrize("is_range", [True, False])
def test_rows_that_are_reshaped_have_scales_of_their_own(axes: list[int], is_range: bool) -> None:
    """One scale for each matrix [B, 1, 1] is repeated before a Reshape makes one for each row of it, [B * M, 1]."""
    chain = symmetric().replace("last", "axes")
    if not is_range:
        chain = chain.replace("s = Div(m0, c127)", "s0 = Div(m0, c127)\n s = Mul(s0, s0)")
    body = chain + "dx = Mul(c, s)\n d2 = Reshape(dx, rows)\n y = MatMul(d2, w)"
    model = model_of(body, WEIGHTS["folded"][1] | {"axes": np.array(axes)})
    report = check_products(model, DATA)
    assert products(report) == ["QuantizedMatMul"]


def test_codes_of_more_than_eight_bits_stay() -> None:
    body = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["folded"][1])
    for tensor in model.graph.initializer:
        if tensor.name in ("low", "high"):
            tensor.CopyFrom(numpy_helper.from_array(F(-32768 if tensor.name == "low" else 32767), tensor.name))
        if tensor.name == "c127":
            tensor.CopyFrom(numpy_helper.from_array(F(32767), tensor.name))
    report = check(model, DATA, exact=False)
    assert found(report) == ["RowProgram"]
    assert ["not proven to fit 8 bits" in finding.reason for finding in report.unconverted] == [True]


@pytest.mark.parametrize(("depth", "fits"), [(65793, True), (65794, False)])
def test_sums_that_may_overflow(depth: int, fits: bool) -> None:
    """65793 * 255 * 128 is the largest bound of a sum that fits int32."""
    text = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)"
    weights = np.full((depth, 1), 127 * 0.5, F)
    weights[0] = 126 * 0.5  # so that the others are not 1
    model = model_of(text, {"w": weights}, inputs=f"float[M, {depth}] x")
    result = rewrite(model)
    assert ("QuantizedMatMul" in products(result.report)) == fits
    if fits:
        x = np.full((2, depth), 1, F)
        x[1] = -1
        ours = make_session(result.to_proto(), "native").run(None, {"x": x})[0]
        assert (np.abs(ours - x.astype(np.float64) @ weights) <= 2.0**-22 * depth * 63.5).all()
    else:
        assert ["overflow" in finding.reason for finding in result.report.unconverted] == [True]


@pytest.mark.parametrize(("depth", "zero_point", "fits"), [(33025, 5, True), (33026, 5, False), (65793, 0, True)])
def test_long_integer_products(depth: int, zero_point: int, fits: bool) -> None:
    """33025 * 255 * 255 fits int32. Longer sums may wrap around, as in MatMulInteger."""
    weights = {"w": np.full((depth, 1), -128, np.int8), "wz": np.int8(zero_point), "zq": np.uint8(0)}
    body = "i = MatMulInteger(q, w, zq, wz)\n f = Cast<to = 1>(i)\n y = Mul(f, s)"
    model = model_of(body, weights, inputs=f"uint8[M, {depth}] q, float s")
    report = check(model, {"q": np.full((2, depth), 255, np.uint8), "s": np.array(0.5, F)})
    assert found(report) == ["QuantizedMatMul" if fits else "MatMulInteger"]


def test_a_scale_along_the_summed_dimension_stays() -> None:
    body = "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a, lead)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n t = Div(x, s)\n"
    body += "r = Round(t)\n c = Clip(r, low, high)\n dx = Mul(c, s)\n y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["folded"][1] | {"lead": np.array([0, 1])})
    report = check(model, DATA, exact=False)
    assert "QuantizedMatMul" not in products(report)
    assert any("for each element of K" in finding.reason for finding in report.unconverted)


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


@pytest.mark.parametrize(("zero_point", "weights"), [*itertools.product([True, False], ["DequantizeLinear", "folded"])])
def test_products_that_onnxruntime_gets_wrong(zero_point: bool, weights: str) -> None:
    """u8 per row: ONNX Runtime's default level fails with zero points; without them it is wrong if M equals N."""
    z = ", z8" if zero_point else ""
    body = "m = ReduceMax<keepdims = 0>(x, last)\n p = Max(m, eps)\n s = Div(p, c255)\n zs = Shape(s)\n"
    body += (
        f"z8 = Expand(zero8, zs)\n q = QuantizeLinear<axis = 0>(x, s{z})\n dx = DequantizeLinear<axis = 0>(q, s{z})\n"
    )
    text, arrays = WEIGHTS[weights]
    x = {"x": np.abs(rows((N, K), seed=3))[:, :]}
    x["x"][~np.isfinite(x["x"])] = 1
    model = model_of(body + text + "y = MatMul(dx, w)", arrays | {"zero8": np.uint8(0)}, inputs=f"float[{N}, {K}] x")
    report = check_products(model, x)
    assert "QuantizedMatMul" in products(report)
    plain = stock_session(model).run(None, x)[0]
    ours = make_session(rewrite(model).to_proto(), "native", optimize=True).run(None, x)[0]
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5 * np.abs(plain).max())


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


def test_weights_that_stay_float_are_folded() -> None:
    """No DequantizeLinear remains that ONNX Runtime runs at every inference or fuses into MatMulNBits."""
    group = np.repeat(scales_of()[None], 3, 0) * F(np.arange(1, 4))[:, None]
    body = ACTIVATIONS["per tensor, QuantizeLinear"] + "wd = DequantizeLinear<axis = 1, block_size = 11>(wt, wg)\n"
    weights = {"wt": np.ascontiguousarray(codes_of().T), "wg": np.ascontiguousarray(group.T)}
    model = model_of(body + "w = Transpose<perm = [1, 0]>(wd)\n y = MatMul(dx, w)", weights, opset=21)
    report = check_products(model, DATA)
    assert found(report) == ["Constant", "RowProgram"]
    assert "DequantizeLinear" not in {node.op_type for node in rewrite(model).to_proto().graph.node}
    exact = rewrite(model, exact=True)
    assert found(exact.report) == ["DynamicDequantize", "RowProgram"]


def test_products_in_branches_and_functions() -> None:
    product = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)"
    branch = product.replace("y =", "y1 =")
    otherwise = "e () => (float[] y2) { y2 = Identity(x) }"
    body = f"y = If (flag) <then_branch = t () => (float[] y1) {{ {branch} }}, else_branch = {otherwise}>"
    model = model_of(body, WEIGHTS["folded"][1], inputs=f"bool flag, float[B, M, {K}] x")
    result = rewrite(model)
    assert "QuantizedMatMul" in products(result.report)
    inputs = DATA | {"flag": np.array(True)}
    expected = stock_session(model).run(None, inputs)[0]
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        np.testing.assert_allclose(
            session.run(None, inputs)[0], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
        )


def test_twice_the_same_bytes() -> None:
    model = model_of(symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)", WEIGHTS["folded"][1])
    first, second = (rewrite(model).to_proto().SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def activations_of(model: onnx.ModelProto) -> set[int]:
    """Returns the types of the codes that products multiply, from the operators before them."""
    producers = {output: node for node in model.graph.node for output in node.output}
    types = set()
    for node in model.graph.node:
        if node.op_type == "MatMulInteger" or product_of(node.op_type):
            source = producers[node.input[0]]
            while source.op_type in ("Reshape", "Transpose", "Identity"):
                source = producers[source.input[0]]
            given = {attribute.name: attribute.i for attribute in source.attribute}
            types.add(given["to"] if source.op_type == "Cast" else given.get("code_type") or given["output_dtype"])
    return types


@pytest.mark.parametrize("form", ["token", "tensor_u8", "torchao"])
def test_shapes_that_a_tool_has_written_hide_nothing(form: str) -> None:
    """They give dimensions new names, and some of these are dimensions of the input."""
    model = transformers.encoder(form, layers=1, hidden=32, heads=2)
    shaped = onnx.shape_inference.infer_shapes(model)
    assert len(shaped.graph.value_info) > len(model.graph.value_info)
    assert rewrite(shaped).report == rewrite(model).report


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
    for zeros in ([1], [0, 1, 2]):
        x[:, zeros] = 0
        expected = stock_session(model).run(None, {"x": x})[0]
        for session in (make_session(converted, "native"), stock_session(converted)):
            np.testing.assert_array_equal(np.isnan(session.run(None, {"x": x})[0]), np.isnan(expected))
        assert np.isnan(expected).any() == (rows_of == "last" or len(zeros) == 3)
