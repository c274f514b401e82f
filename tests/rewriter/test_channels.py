"""The bias of a product, whatever nodes are between, and which values are no bias."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import in_turn
from product_models import ACTIVATIONS, DATA, WEIGHTS, F, K, N, check_products, model_of
from rewriting import products

from ort_dynq.rewriter import rewrite

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
