"""Weights of products that stay float: folded, or removed if nothing reads them."""

from __future__ import annotations

import numpy as np
from helpers import with_arrays
from onnx import TensorProto
from product_models import ACTIVATIONS, DATA, WEIGHTS, F, N, check_products, codes_of, model_of, scales_of, symmetric
from rewriting import found, parse

import ort_dynq
from ort_dynq.rewriter import rewrite


def test_unused_float_weights_are_removed() -> None:
    model = model_of(symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)", WEIGHTS["folded"][1])
    converted = rewrite(model).to_proto()
    assert "w" not in {tensor.name for tensor in converted.graph.initializer}
    assert all(
        tensor.data_type != TensorProto.FLOAT or tensor.dims[:] in ([1, N], [N], [])
        for tensor in converted.graph.initializer
    )


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


def test_weights_of_float16_are_not_rounded_by_folding() -> None:
    """ONNX Runtime leaves out the Cast to float16 before a product that it computes in float32."""
    body = """floats = DequantizeLinear(left, ls, lz) w = Cast<to = 10>(floats) wide = Cast<to = 1>(x)
        q, s, z = DynamicQuantizeLinear(wide) d = DequantizeLinear(q, s, z) h = Cast<to = 10>(d) y = MatMul(w, h)"""
    rng = np.random.default_rng(0)
    weights = {"left": rng.integers(-127, 128, (40, 16)).astype(np.int8), "ls": F(0.0123), "lz": np.int8(3)}
    model = with_arrays(parse(body, inputs="float16[16, N] x", outputs="float16[40, N] y"), weights)
    feeds = {"x": rng.normal(0, 3, (16, 8)).astype(np.float16)}
    result = rewrite(model)
    assert result.report.rewritten
    assert ort_dynq.verify(model, result.to_proto(), inputs=feeds).passed
