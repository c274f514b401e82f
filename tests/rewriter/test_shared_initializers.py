"""Weights, scales and biases with the same elements are stored once."""

from __future__ import annotations

from helpers import product_of
from product_models import WEIGHTS, F, codes_of, model_of, scales_of, symmetric

from ort_dynq.rewriter import rewrite


def test_weights_of_several_products_are_stored_once() -> None:
    body = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)\n k = MatMul(dx, w2)\n l0 = MatMul(dx, w)\n l = Neg(l0)"
    weights = {"w": codes_of().astype(F) * scales_of(), "w2": codes_of().astype(F) * scales_of()}
    model = model_of(body, weights, outputs="float[] y, float[] k, float[] l")
    converted = rewrite(model).to_proto()
    nodes = [node for node in converted.graph.node if product_of(node.op_type)]
    assert [node.op_type for node in nodes] == ["QuantizedMatMul", "QuantizedMatMul", "QuantizedMatMulProgram"]
    assert len({tuple(node.input[3:8]) for node in nodes}) == 1
    assert len({tensor.name for tensor in converted.graph.initializer} & {"w", "w2"}) == 0


def test_twice_the_same_bytes() -> None:
    model = model_of(symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)", WEIGHTS["folded"][1])
    first, second = (rewrite(model).to_proto().SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
