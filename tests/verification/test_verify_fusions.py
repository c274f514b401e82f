"""Verification of fusions: every model that has one passes, and a fusion that computes something else does not."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewriting import FOLDERS, data_sets, load, programs, tails

from ort_dynq import rewrite
from ort_dynq.tools.verification import fusions
from ort_dynq.verification import verify

FUSED = {
    "compressed_causal": 1,
    "decoder_token_weights": 3,
    "encoder_tensor_s8": 2,
    "encoder_tensor_u8": 2,
    "encoder_token": 3,
    "encoder_token_integer": 3,
    "encoder_torchao": 3,
    "masked_attention": 3,
    "ort_dynamic_attention": 3,
    "ort_dynamic_llama": 1,
    "ort_half_optimized": 2,
    "ort_optimized": 3,
    "torch_encoder_s8": 2,
    "torch_encoder_u8": 2,
}
"""The models with fusions, and how many they have."""
OTHERS = {"ort_dynamic_attention": 1, "ort_dynamic_llama": 3, "ort_half_optimized": 1, "ort_optimized": 1}
"""Further float results that B computes otherwise: activation functions of A in programs, and the sum of a fusion."""
KINDS = (
    "compressed_causal",
    "encoder_tensor_s8",
    "encoder_torchao",
    "ort_dynamic_attention",
    "ort_dynamic_llama",
    "ort_optimized",
)
"""One of each kind; test_numbers_of_rows_of_a_decoder has another one."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in KINDS)) for name in FUSED]
)
def test_models_with_fusions(name: str) -> None:
    model = load(name)
    result = rewrite(model, fuse=True)
    assert len(result.report.fused) == FUSED[name]
    inputs = data_sets(name)[0][0]
    found = verify(model, result.model, inputs=inputs)
    assert found.passed, found
    inexact = [each for each in found.products if each.is_fusion]
    assert len(inexact) == FUSED[name] + OTHERS.get(name, 0)
    assert max(each.b_error for each in inexact) > 0


def test_other_models_have_none() -> None:
    attention = tuple(
        f"compressed_{what}" for what in ("key", "value", "both", "causal", "4_bits", "bert", "mlp", "groups")
    )
    for name in FOLDERS[::8]:
        # One has a Sigmoid of its own, one Add and Relu after a product of floats, others elementwise nodes in a row.
        others = (*attention, "torch_int8_cache", "torch_bitnet", "ort_dynamic_optimized", "torchao_weights")
        others += ("integer_heads", "positions", "shared_scales")
        if name not in FUSED and not name.startswith(others):
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
    inputs = data_sets("encoder_torchao")[0][0]
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
    found = verify(model, converted, inputs=data_sets("encoder_torchao")[0][0])
    assert not found.passed


def test_a_wrong_gate_of_channels() -> None:
    """A bias that differs by one thousandth is an error of many units."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, 8, h, w] x) => (float[N, 8, h, w] y) {
        m = GlobalAveragePool(x) a = Conv(m, w1, b1) r = Relu(a) c = Conv(r, w2, b2) s = Sigmoid(c) y = Mul(x, s) }"""
    )
    shapes = {"w1": (4, 8, 1, 1), "b1": (4,), "w2": (8, 4, 1, 1), "b2": (8,)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in arrays.items())
    converted = rewrite(model, fuse=True).to_proto()
    found = verify(model, converted, shapes={"x": (2, 8, 5, 3)})
    assert found.passed, found.reason
    (gate,) = found.products
    assert gate.is_fusion
    assert 0 < gate.b_error < 1  # FLOOR is 16
    (bias,) = (
        each for each in converted.graph.initializer if np.array_equal(numpy_helper.to_array(each), arrays["b2"])
    )
    bias.CopyFrom(numpy_helper.from_array(arrays["b2"] * np.float32(1.001), bias.name))
    (gate,) = verify(model, converted, shapes={"x": (2, 8, 5, 3)}).products
    assert "B's error is" in gate.problem


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("encoder_token", 2), ("encoder_token_integer", 16), ("encoder_torchao", 128), ("encoder_token", 512)],
)
def test_numbers_of_tokens(name: str, tokens: int) -> None:
    """Of many tokens, a last bit of attention or of a function changes the code of one: products have A's codes."""
    model = load(name)
    found = verify(model, rewrite(model, fuse=True).model, shapes={"x": (1, tokens, 32)})
    assert found.passed, found.reason
    fusions = [each for each in found.products if each.is_fusion]
    assert len(fusions) == FUSED[name]
    assert max(each.b_error for each in fusions) < 8  # FLOOR is 16


def test_numbers_of_rows_of_a_decoder() -> None:
    model = load("decoder_token_weights")
    cache = dict.fromkeys(("past_key_values.0.key", "past_key_values.0.value"), (128, 4, 16, 8))
    found = verify(model, rewrite(model, fuse=True).model, shapes={"x": (128, 1, 32), **cache})
    assert found.passed, found.reason


def model_of(text: str, before: str = "") -> onnx.ModelProto:
    """A model of x and other, float32 [N, 64]."""
    ones = ",".join(["1"] * 64)
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, 64] x, float[N, 64] other{before}) => (float[N, 64] y)
        <float[64] gain = {{{ones}}}, float small = {{0.02}}, int8[1, 64] codes = {{{ones}}}> {{ {text} }}"""
    )


SHAPES = {"x": (4, 64), "other": (4, 64)}


@pytest.mark.parametrize(
    "before",
    [
        "b = com.microsoft.BiasGelu(x, gain)",
        "d = DequantizeLinear(codes, small) b = Add(d, x)",  # the reference has no version 17 of it
    ],
)
def test_a_reference_begins_at_the_values_that_a_fusion_reads(before: str) -> None:
    """Nodes before a fusion are not computed again: ONNX may have no implementation of them."""
    model = model_of(f"{before} s = Add(b, other) y = LayerNormalization(s, gain)")
    result = rewrite(model, fuse=True)
    assert len(result.report.fused) == 1
    found = verify(model, result.model, shapes=SHAPES)
    assert found.passed, found.reason
    assert [each.name for each in found.products] == ["y"]


def test_what_cannot_be_checked_is_not_incorrect() -> None:
    """An operator of A has no implementation in float64, and B computes it otherwise."""
    known = [each for each in fusions._OPERATORS if each is not fusions.BiasGelu]
    model = model_of("b = com.microsoft.BiasGelu(x, gain) y = Identity(b)")
    other = model_of("sum = Add(x, gain) y = com.microsoft.Gelu(sum)")
    with mock.patch.object(fusions, "_OPERATORS", known):
        found = verify(model, other, shapes=SHAPES)
    assert (found.status, found.passed) == ("unchecked", False)
    assert found.reason.startswith("y: A's nodes cannot be computed in float64: ")
    (product,) = found.products
    assert (product.is_fusion, product.problem, f"y: {product.unchecked}") == (True, "", found.reason)


def test_a_product_of_a_fusion_without_a_name_in_a() -> None:
    """A difference in the last bits may change codes, so neither the product nor what follows is judged."""
    model = load("encoder_torchao")
    converted = rewrite(model, fuse=True).to_proto()
    for node in converted.graph.node:
        for names in (node.input, node.output):
            names[:] = ["hidden" if name == "reshape_5" else name for name in names]
    found = verify(model, converted, shapes={"x": (1, 512, 32)})
    assert (found.status, found.reason) == (
        "unchecked",
        "add_5: it depends on a fusion before A has a float value to compare",
    )
    assert all(each.equal for each in found.outputs)


def test_a_scale_of_a_fusion_beside_rows_without_their_minimum() -> None:
    """The fused program returns g - min(g), and computes the scale from g."""
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[N, 128] x) => (float[N, 128] y) {
        n = Constant <value_float = 255.0> () e = Constant <value_float = 0.0001> () z = Constant <value_float = 0.0> ()
        i = Sigmoid(x) g = Mul(x, i) l = ReduceMin <axes = [-1]> (g) h = ReduceMax <axes = [-1]> (g) r = Sub(h, l)
        o = Max(r, e) s = Div(o, n) d = Sub(g, l) q = Div(d, s) k = Clip(q, z, n) c = Round(k) m = Mul(c, s)
        a = Add(m, l) y = MatMul(a, w) }"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).integers(-127, 128, (128, 128)).astype(np.float32) * np.float32(0.01)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    result = rewrite(model, fuse=True)
    assert len(result.report.fused) == 1
    assert not [each.problem for each in verify(model, result.model, shapes={"x": (48, 128)}).products if each.problem]


@pytest.mark.parametrize("operator", ["Gelu", "FastGelu", "QuickGelu", "QuickGelu<alpha = 1.5>"])
def test_activation_functions_of_onnx_runtime(operator: str) -> None:
    model = model_of(f"b = Add(x, other) g = com.microsoft.{operator}(b) y = Identity(g)")
    text = f"b = Add(x, other) y = com.microsoft.{operator}(b)"
    found = verify(model, model_of(text), shapes=SHAPES)
    assert found.passed, found.reason
    assert [each.name for each in found.products] == ["y"]
    assert found.products[0].b_error > 0
    wrong = model_of(text.replace("(b)", "(x)"))
    assert verify(model, wrong, shapes=SHAPES).status == "failed"


def test_a_fusion_in_a_subgraph_is_not_compared() -> None:
    """Neither is the output of the node that contains it; the nodes after it get A's."""
    gelu = "d = Div(x, root) e = Erf(d) e1 = Add(e, one) m = Mul(x, e1) t = Mul(m, half)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, 64] x, bool c) => (float[N, 64] z, float[N, 64] y)
        <float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}>
        {{ z = Neg(x) b = Not(c) d0 = Not(b) h = If (d0) <then_branch = g1 () => (float[N, 64] t) {{ {gelu} }},
        else_branch = g2 () => (float[N, 64] f) {{ f = Identity(x) }}> y = Mul(h, h) }}"""
    )
    result = rewrite(model, fuse=True)
    assert len(result.report.fused) == 1
    found = verify(model, result.model, inputs={"c": np.array(True)}, shapes={"x": (64, 64)})
    assert found.passed, found.reason
    assert found.unreachable == 1
    assert [each.name for each in found.outputs] == ["z", "y"]
