"""Matrix products of weights or activations with one scale for each group of adjacent k.

The results are compared with float64 as in product_models.py. Kernels and function body must agree bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from group_models import DATA, SHAPES, WEIGHTS, F, K, N, codes_of, scales_of, zero_points_of
from helpers import assert_same, diagonals, make_session, stock_session
from onnx import TensorProto, helper
from product_models import asymmetric, check_products, model_of, symmetric
from rewriting import found, products, rows

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.policy import cost


@pytest.fixture(autouse=True)
def _small_products_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_cost.py tests which ones stay."""
    monkeypatch.setattr(cost, "_MIN_PRODUCTS_OF_GROUPS", 0)
    monkeypatch.setattr(cost, "_MIN_PRODUCTS_OF_RESHAPED_GROUPS", 0)


def in_groups(text: str, size: int, *, shape: str) -> str:
    """A chain of product_models.py over groups: x is split before it, and dx is joined after it."""
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
