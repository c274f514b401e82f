"""Weights of products that stay float: folded, or removed if nothing reads them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from product_models import ACTIVATIONS, DATA, WEIGHTS, F, N, check_products, codes_of, model_of, scales_of, symmetric
from rewriting import found

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
