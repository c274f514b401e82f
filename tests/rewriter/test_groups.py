"""Matrix products whose weights or activations have one scale for each group of adjacent k.

The results are compared with float64 as in test_products.py. Kernels and function body must agree bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, diagonals, make_session, stock_session
from onnx import TensorProto, helper
from rewriting import check, found, products, rows
from test_products import asymmetric, check_products, model_of, symmetric

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.policy import cost

F = np.float32
K, N = 96, 18


DATA = {"x": rows((2, 9, K), seed=4)[:, [0, 1, 2, 3, 4, 6, 7]]}  # finite


@pytest.fixture(autouse=True)
def _small_products_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_cost.py tests which ones stay."""
    monkeypatch.setattr(cost, "_MIN_PRODUCTS_OF_GROUPS", 0)
    monkeypatch.setattr(cost, "_MIN_PRODUCTS_OF_RESHAPED_GROUPS", 0)


def in_groups(text: str, size: int, *, shape: str) -> str:
    """A chain of test_products.py over groups: x is split before it, and dx is joined after it."""
    chain = text.replace("(x)", "(xg)").replace("(x,", "(xg,")
    return f"xg = Reshape(x, {shape}{size})\n {chain} dg = Mul({'c' if 'Sub' not in text else 'v'}, s)\n"


def per_group(size: int, *, is_asymmetric: bool, flat: bool = False) -> str:
    chain = asymmetric() + "v = Sub(c, z)\n" if is_asymmetric else symmetric()
    back = "xs = Shape(x)\n dx = Reshape(dg, xs)\n" if flat else "dx = Reshape(dg, joined)\n"
    return in_groups(chain, size, shape="flat" if flat else "split") + back


def blocks(size: int, zero_point: str) -> str:
    z = f"z0 = Mul(s, zero)\n z = Cast<to = {zero_point}>(z0)\n"
    attributes = f"<axis = -1, block_size = {size}>"
    return (
        f"g = Reshape(x, split{size})\n a = Abs(g)\n m = ReduceMax<keepdims = 0>(a, last)\n m0 = Max(m, eps)\n"
        f"s = Div(m0, c127)\n {z} q = QuantizeLinear{attributes}(x, s, z)\n"
        f"dx = DequantizeLinear{attributes}(q, s, z)\n"
    )


TOKEN = {"per token": symmetric() + "dx = Mul(c, s)\n", "asymmetric": asymmetric() + "v = Sub(c, z)\n dx = Mul(v, s)\n"}
ACTIVATIONS: dict[str, tuple[str, int]] = {
    **{name: (text, 0) for name, text in TOKEN.items()},
    "groups of 16": (per_group(16, is_asymmetric=False), 16),
    "groups of 32, asymmetric": (per_group(32, is_asymmetric=True), 32),
    "groups of 32, flat": (per_group(32, is_asymmetric=False, flat=True), 32),
    "groups of 16, flat, asymmetric": (per_group(16, is_asymmetric=True, flat=True), 16),
    "blocks of 16, int8": (blocks(16, "3"), 16),
    "blocks of 32, uint8": (blocks(32, "2"), 32),
}
SHAPES = {
    f"{name}{size}": np.array(shape)
    for size in (16, 24, 32)
    for name, shape in (("split", [0, 0, K // size, size]), ("flat", [-1, size]))
} | {"joined": np.array([0, 0, K])}


def codes_of(low: int, high: int, size: int = 32) -> Array:
    codes = np.random.default_rng(1).integers(low, high + 1, (K, N))
    codes[::16], codes[1::16] = high, low
    codes[:size, 3] = 0
    return np.asarray(codes)


def scales_of(size: int) -> Array:
    return np.random.default_rng(2).uniform(0.001, 0.02, (K // size, N)).astype(F)


def zero_points_of(low: int = 2, high: int = 13) -> Array:
    return np.random.default_rng(3).integers(low, high + 1, (K // 32, N))


def folded(codes: Array, size: int, zero_points: Array | int = 0) -> dict[str, Array]:
    zeros = np.repeat(np.broadcast_to(zero_points, (K // size, N)), size, 0)
    return {"w": (codes - zeros).astype(F) * np.repeat(scales_of(size), size, 0)}


def by_column(values: Array, size: int) -> Array:
    """Values of [K, N] as exporters store them: [N, K / size, size]."""
    return np.ascontiguousarray(values.T.reshape(N, K // size, size))


# The text that computes w, its constants, its bits and the size of its groups.
WEIGHTS: dict[str, tuple[str, dict[str, Array], int, int]] = {
    "column": ("", {"w": codes_of(-127, 127).astype(F) * scales_of(K)}, 8, 0),
    "column, asymmetric": ("", {"w": (codes_of(0, 255) - np.arange(N) * 14).astype(F) * scales_of(K)}, 8, 0),
    "s4, 32": ("", folded(codes_of(-8, 7), 32), 4, 32),
    "s4, 48 is 16": ("", folded(codes_of(-8, 7, 48), 48), 4, 16),
    "u4, 32": ("", folded(codes_of(0, 15), 32, zero_points_of()), 4, 32),
    "s8, 32": ("", folded(codes_of(-127, 127), 32), 8, 32),
    "u8, 32": ("", folded(codes_of(0, 255), 32, zero_points_of(90, 170)), 8, 32),
    "s4, Cast, Mul": (
        "wf = Cast<to = 1>(wq)\n wm = Mul(wf, ws)\n wr = Reshape(wm, wshape)\n w = Transpose<perm = [1, 0]>(wr)\n",
        {
            "wq": by_column(codes_of(-8, 7), 32).astype(np.int8),
            "ws": scales_of(32).T[:, :, None],
            "wshape": np.array([N, K]),
        },
        4,
        32,
    ),
    "u4, Cast, Sub, Mul": (
        "wf = Cast<to = 1>(wq)\n wg = Cast<to = 1>(wz)\n wd = Sub(wf, wg)\n wm = Mul(wd, ws)\n"
        "wr = Reshape(wm, wshape)\n w = Transpose<perm = [1, 0]>(wr)\n",
        {
            "wq": by_column(codes_of(0, 15), 32).astype(np.int8),
            "ws": scales_of(32).T[:, :, None],
            "wz": zero_points_of().T[:, :, None].astype(np.int8),
            "wshape": np.array([N, K]),
        },
        4,
        32,
    ),
    "s8, DequantizeLinear": (
        "w = DequantizeLinear<axis = 0, block_size = 32>(wq, ws)\n",
        {"wq": codes_of(-127, 127).astype(np.int8), "ws": scales_of(32)},
        8,
        32,
    ),
    "u8, DequantizeLinear, Transpose": (
        "wd = DequantizeLinear<axis = 1, block_size = 32>(wq, ws, wz)\n w = Transpose<perm = [1, 0]>(wd)\n",
        {
            "wq": np.ascontiguousarray(codes_of(0, 255).T).astype(np.uint8),
            "ws": scales_of(32).T,
            "wz": zero_points_of(90, 170).T.astype(np.uint8),
        },
        8,
        32,
    ),
}


def product_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Returns the attributes of the only QuantizedMatMul."""
    (node,) = (node for node in model.graph.node if node.op_type == "QuantizedMatMul")
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


@pytest.mark.parametrize(("activation", "weights"), diagonals(1, ACTIVATIONS, WEIGHTS))
def test_groups(activation: str, weights: str) -> None:
    chain, row_group = ACTIVATIONS[activation]
    text, arrays, bits, group = WEIGHTS[weights]
    model = model_of(
        chain + text + "p = MatMul(dx, w)\n y = Add(p, b)",
        arrays | SHAPES | {"b": np.linspace(-3, 3, N).astype(F)},
        opset=21,
        inputs=f"float[B, M, {K}] x",
    )
    report = check_products(model, DATA, groups=K // 16)
    assert "QuantizedMatMul" in products(report)
    assert not report.unconverted
    converted = rewrite(model).to_proto()
    attributes = product_of(converted)
    assert (attributes["bits"], attributes["group_size"]) == (bits, math.gcd(row_group, group))
    assert_same(make_session(converted, "native").run(None, DATA)[0], stock_session(converted).run(None, DATA)[0])


@pytest.mark.parametrize("dtype", [TensorProto.INT4, TensorProto.UINT4])
def test_dequantize_linear_of_4_bit_tensors(dtype: int) -> None:
    codes = codes_of(-8, 7) if dtype == TensorProto.INT4 else codes_of(0, 15)
    body = TOKEN["asymmetric"] + "w = DequantizeLinear<axis = 0, block_size = 32>(wq, ws, wz)\n y = MatMul(dx, w)"
    weights = {"ws": scales_of(32), "wq": codes, "wz": zero_points_of(2, 5)}
    model = model_of(body, weights, opset=21, inputs=f"float[B, M, {K}] x")
    for tensor in model.graph.initializer:
        if tensor.name in ("wq", "wz"):
            tensor.CopyFrom(helper.make_tensor(tensor.name, dtype, tensor.dims, weights[tensor.name].reshape(-1)))
    check_products(model, DATA, groups=K // 32)
    converted = rewrite(model).to_proto()
    assert product_of(converted)["bits"] == 4
    assert not {"wq", "wz", "ws"} & {tensor.name for tensor in converted.graph.initializer}


def test_one_scale_for_all_groups() -> None:
    """Groups of an activation that share one scale are no groups."""
    chain = symmetric().replace("(a, last)", "(a)")
    body = in_groups(chain, 16, shape="split") + "dx = Reshape(dg, joined)\n y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["column"][1] | SHAPES, inputs=f"float[B, M, {K}] x")
    assert found(check_products(model, DATA)) == ["QuantizedMatMul", "RowProgram"]
    assert product_of(rewrite(model).to_proto())["group_size"] == 0


MX = """g = Reshape(x, split32) a = Abs(g) m = ReduceMax(a, last) o = Max(m, eps) l = Log(o) t = Div(l, ln2)
    e = Floor(t) p = Pow(two, e) v = Div(g, p) h = Mul(v, c64) i = Sign(h) k = Abs(h) n = Add(k, half) f = Floor(n)
    r = Mul(i, f) d = {}(r, factor) c = Clip(d, least, most) q = Mul(c, p) dx = Reshape(q, joined) """


@pytest.mark.parametrize(
    ("operator", "factor", "bounds", "expected"),
    [
        ("Div", 64, (-127 / 64, 127 / 64), True),
        ("Mul", 1 / 64, (-2, 127 / 64), True),
        ("Div", 100, (F(-127) / F(100), F(127) / F(100)), True),
        ("Div", 64, (-2, 127.5 / 64), False),
        ("Div", 100, (F(-127) / F(100), np.nextafter(F(127) / F(100), F(0))), False),
        ("Div", 64, (-2.5, 2.5), False),
        ("Div", -64, (-127 / 64, 127 / 64), False),
    ],
)
def test_codes_that_are_clipped_behind_a_factor(
    operator: str, factor: float, bounds: tuple[float, float], expected: bool
) -> None:
    """MXINT8: a magnitude of almost twice its power of two is rounded to the code 128, which the bounds make 127."""
    numbers = {"ln2": np.log(F(2)), "two": F(2), "c64": F(64), "half": F(0.5)}
    numbers |= {"factor": F(factor), "least": F(bounds[0]), "most": F(bounds[1])}
    body = MX.format(operator) + "y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["column"][1] | SHAPES | numbers, inputs=f"float[B, M, {K}] x")
    x = DATA["x"].copy()
    x[0, 0], x[0, 1, :32] = np.nextafter(F(2), F(0)), -np.nextafter(F(4), F(0))
    assert products(check_products(model, {"x": x}, groups=K // 32)) == ["QuantizedMatMul"] * expected
    activation = model_of(MX.format(operator), SHAPES | numbers, inputs=f"float[B, M, {K}] x", outputs="float[] dx")
    check(activation, {"x": x}, {"x": rows((3, 9, K), nan=True)})


@pytest.mark.parametrize("is_asymmetric", [False, True])
def test_rows_of_groups_that_a_concat_joins(is_asymmetric: bool) -> None:
    parts = "p0, p1 = Split<axis = 1>(dx, lengths)\n dd = Concat<axis = 1>(p0, p1)\n y = MatMul(dd, w)"
    arrays = WEIGHTS["column"][1] | SHAPES | {"lengths": np.array([3, 4])}
    model = model_of(per_group(16, is_asymmetric=is_asymmetric) + parts, arrays, inputs=f"float[B, M, {K}] x")
    assert "QuantizedMatMul" in products(check_products(model, DATA, groups=K // 16))
    assert product_of(rewrite(model).to_proto())["group_size"] == 16


@pytest.mark.parametrize("weights", ["column", "u8, 32"])
@pytest.mark.parametrize("activation", ["asymmetric", "groups of 16", "groups of 32, asymmetric"])
def test_results_that_the_original_has_are_finite(product_isa: str, activation: str, weights: str) -> None:
    """The sums of a row of 3e36, scaled by the row's scales alone, would overflow."""
    arrays = WEIGHTS[weights][1] | SHAPES
    model = model_of(ACTIVATIONS[activation][0] + "y = MatMul(dx, w)", arrays, inputs=f"float[B, M, {K}] x")
    x = np.repeat(np.float32([3e36, 1, 1e-30, -3e36]), 5)[None, :, None] * rows((1, 20, K), seed=4).clip(-1, 1)
    expected = stock_session(model).run(None, {"x": x})[0]
    converted = rewrite(model).to_proto()
    assert np.isfinite(expected).all()
    for session in (make_session(converted, "native"), stock_session(converted)):
        bound = 1e-5 * np.abs(expected).max(-1, keepdims=True)
        assert (np.abs(session.run(None, {"x": x})[0] - expected) <= bound).all()


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_gemm_of_groups(is_blocked: bool) -> None:
    body = per_group(16, is_asymmetric=True).replace("joined", "matrix")
    if is_blocked:
        body = blocks(16, "3").replace("dx", "d3") + "dx = Reshape(d3, matrix)\n"
    body += "y = Gemm<transB = 1>(dx, wt, b)"
    weights = WEIGHTS["u4, 32"][1]
    arrays = {"wt": np.ascontiguousarray(weights["w"].T), "b": np.ones(N, F), "matrix": np.array([-1, K])} | SHAPES
    model = model_of(body, arrays, opset=21, inputs=f"float[B, M, {K}] x")
    converted = rewrite(model).to_proto()
    assert product_of(converted)["group_size"] == 16
    expected = stock_session(model).run(None, DATA)[0]
    for session in (make_session(converted, "native"), stock_session(converted)):
        ours = session.run(None, DATA)[0]
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (per_group(24, is_asymmetric=False), "expected a multiple of 16"),
        (blocks(24, "3"), "expected a multiple of 16"),
        (per_group(32, is_asymmetric=False).replace("split32", "unknown"), "after Reshape dx: the scale"),
    ],
)
def test_groups_that_stay(body: str, reason: str) -> None:
    model = model_of(
        body + "y = MatMul(dx, w)",
        WEIGHTS["column"][1] | SHAPES,
        opset=21,
        inputs=f"float[B, M, {K}] x, int64[4] unknown",
    )
    report = rewrite(model).report
    assert "QuantizedMatMul" not in products(report)
    assert any(reason in finding.reason for finding in report.unconverted), [
        finding.reason for finding in report.unconverted
    ]
