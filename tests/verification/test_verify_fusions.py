"""Verification of fusions: every model that has one passes, and a fusion that computes something else does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from rewriting import FOLDERS, data_sets, load, programs, tails

import ort_dynq
from ort_dynq import rewrite
from ort_dynq.verification import verify

FUSED = {
    "decoder_token_weights": 3,
    "encoder_tensor_s8": 2,
    "encoder_tensor_u8": 4,
    "encoder_token": 3,
    "encoder_token_integer": 3,
    "encoder_torchao": 3,
    "ort_optimized": 2,
    "torch_encoder_s8": 2,
    "torch_encoder_u8": 2,
}
"""The models with fusions, and how many they have."""


@pytest.mark.parametrize("name", FUSED)
def test_models_with_fusions(name: str) -> None:
    model = load(name)
    result = rewrite(model, fuse=True)
    assert len(result.report.fused) == FUSED[name]
    inputs = next(iter(data_sets(name)))[0]
    found = verify(model, result.model, inputs=inputs)
    assert found.passed, found
    inexact = [each for each in found.products if each.depth == 0]  # products have a depth
    assert inexact
    assert max(each.b_error for each in inexact) > 0


def test_other_models_have_none() -> None:
    for name in FOLDERS[::5]:
        if name not in FUSED:
            converted = rewrite(load(name), fuse=True)
            assert not converted.report.fused
            texts = [*programs(converted.to_proto()), *tails(converted.to_proto())]
            assert not any(step in text for text in texts for step in ("ReduceSum", "Gelu", "Sigmoid"))


@pytest.mark.parametrize(
    ("operator", "old", "new"),
    [
        ("RowProgram", "Div(ReduceSum(x), ", "Div(ReduceSum(Mul(x, 1.001)), "),  # a wrong mean
        ("QuantizedMatMulProgram", "Gelu(x)", "Mul(x, Sigmoid(Mul(x, 1.702)))"),  # another activation function
    ],
)
def test_a_wrong_fusion(operator: str, old: str, new: str) -> None:
    model = load("encoder_torchao")
    converted = rewrite(model, fuse=True).to_proto()
    inputs = next(iter(data_sets("encoder_torchao")))[0]
    assert verify(model, converted, inputs=inputs).passed
    changed = 0
    for node in converted.graph.node:
        for attribute in node.attribute:
            if node.op_type == operator and attribute.name == "program" and old in attribute.s.decode():
                attribute.s = attribute.s.decode().replace(old, new).encode()
                changed += 1
    assert changed == 1
    found = verify(model, converted, inputs=inputs)
    assert not found.passed
    assert any("B's error is" in each.problem for each in found.products)


def test_wrong_attention() -> None:
    model = load("encoder_torchao")
    converted = rewrite(model, fuse=True).to_proto()
    (node,) = (node for node in converted.graph.node if node.op_type == "MultiHeadAttention")
    (scale,) = (attribute for attribute in node.attribute if attribute.name == "scale")
    scale.f *= np.float32(1.0001)
    found = verify(model, converted, inputs=next(iter(data_sets("encoder_torchao")))[0])
    assert not found.passed


def test_an_operator_without_a_reference() -> None:
    """It is not compared, and the message says so."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, 64] x, float[N, 64] other) => (float[N, 64] y)
        <float[64] gain = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,
                           1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}>
        { b = com.microsoft.BiasGelu(x, gain) s = Add(b, other) y = LayerNormalization(s, gain) }"""
    )
    result = rewrite(model, fuse=True)
    assert len(result.report.fused) == 1
    found = ort_dynq.verify(model, result.model, shapes={"x": (4, 64), "other": (4, 64)})
    assert not found.passed
    (product,) = found.products
    assert product.problem.startswith("A's nodes cannot be computed in float64: ")
