"""Weights of 12 bits: products of words. The results equal the definition, with either backend and without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same
from onnx import helper
from quantizing import (
    GEMMS,
    F,
    activations,
    check_both_ways,
    check_gemm,
    decibels,
    floats,
    model_of,
    operators,
    product,
    run,
    run_float,
    two_layers,
)

import ort_dynq
from ort_dynq import DynqError
from ort_dynq.backends.options import BACKENDS, Backend
from ort_dynq.operators.packing import pack_words
from ort_dynq.quantizer import checked, quantize_layers
from ort_dynq.quantizer.options import Forms
from ort_dynq.rewriter import Result

K, N = 288, 240  # two blocks of sums
W, BIAS = floats(K, N, seed=3), floats(N, seed=4)
X = activations(9, K)
X[0], X[1, 5] = 0, 300


def words_of(weights: Array) -> tuple[Array, Array]:
    """Weights, [..., K, N], as words, in float64, and their scales."""
    scale = np.abs(weights).max(-2, keepdims=True) / F(2047)
    return np.clip(np.rint(weights / scale), -2047, 2047).astype(np.float64), scale


def rounded(x: Array) -> Array:
    """An activation as words times their steps, in float64."""
    blocks = [x[..., first : first + 256] for first in range(0, x.shape[-1], 256)]
    steps = [np.maximum(np.abs(each).max(-1, keepdims=True) / F(4095), F(2**-126)) for each in blocks]
    pairs = zip(blocks, steps, strict=True)
    return np.concatenate([np.rint(each * (F(1) / step)).astype(np.float64) * step for each, step in pairs], -1)


def by_definition(x: Array, weights: Array) -> Array:
    words, scale = words_of(weights)
    return np.asarray(rounded(x) @ (words * scale))


def quantized(model: onnx.ModelProto, **options: Any) -> Result:
    return ort_dynq.quantize(model, weights="int12", **options)


@pytest.mark.parametrize("shape", [("M", K), (2, 3, K), (K,)], ids=str)
def test_definition(shape: tuple[int | str, ...]) -> None:
    result = quantized(product(W, shape=shape))
    assert operators(result) == {"WordMatMul": 1}
    x = X if shape[0] == "M" else activations(*(int(each) for each in shape))
    actual, expected = run(result, x), by_definition(x, W)
    # Only the float32 roundings of two sums, their steps and scales are left.
    words, scale = words_of(W)
    assert (np.abs(actual - expected) <= 2.0**-20 * np.abs(rounded(x)) @ np.abs(words * scale)).all()
    exact = x.astype(np.float64) @ W
    assert decibels(actual, exact) > max(55, decibels(run(ort_dynq.quantize(product(W, shape=shape)), x), exact) + 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_backends_and_no_plugin_give_the_same_bits(backend: Backend) -> None:
    """The Relu between the layers becomes a program of the first product."""
    result = quantized(two_layers(W, floats(K, seed=5)))
    assert operators(result) == {"WordMatMul": 1, "WordMatMulProgram": 1}
    check_both_ways(result, X, backend)


@pytest.mark.parametrize("attributes", GEMMS.values(), ids=GEMMS)
def test_gemm(attributes: dict[str, float]) -> None:
    assert operators(check_gemm(attributes, W, BIAS, X, quantized, by_definition(X, W))) == {"WordMatMul": 1}


def test_stacked_weights() -> None:
    """A matrix for each head."""
    stack, x = floats(3, K, N, seed=6), activations(2, 3, 5, K)
    result = quantized(model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": stack}, shape=x.shape))
    assert operators(result) == {"WordMatMul": 1}
    expected = by_definition(x, stack)
    assert np.abs(run(result, x) - expected).max() <= 2.0**-20 * np.abs(expected).max()


def test_dequantized_weights_keep_their_codes() -> None:
    """Codes of 8 bits with one scale for each column: words are not rounded anew."""
    codes, scale = np.random.default_rng(0).integers(-127, 128, (K, N)), np.exp(floats(N, seed=9)) / F(64)
    codes[0] = 127
    result = quantized(product(codes.astype(F) * scale, shape=("M", K)))
    (node,) = (each for each in result.to_proto().graph.node if each.op_type == "WordMatMul")
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in result.to_proto().graph.initializer}
    assert_same(constants[node.input[1]], pack_words(codes.astype(np.int16)))
    assert_same(constants[node.input[2]], scale)


IMAGE = floats(2, 8, 28, 30, seed=1)
IMAGE[1, 3, 2, 1] = 40
CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "pads and strides": ("Conv", (24, 8, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "groups": ("Conv", (32, 4, 3, 3), {"group": 2}),
    "auto_pad and dilations": ("Conv", (24, 8, 5, 3), {"auto_pad": "VALID", "dilations": [1, 2]}),
    "transposed": ("ConvTranspose", (8, 24, 4, 4), {"strides": [2, 2]}),
}


def rounded_images(x: Array) -> Array:
    """An activation as words times the step of its sample, in float32."""
    step = np.abs(x).max((1, 2, 3), keepdims=True) / F(4095)
    return np.asarray(np.rint(x * (F(1) / step)) * step, F)


def convolution(operator: str, weights: Array, attributes: dict[str, Any]) -> onnx.ModelProto:
    return model_of([helper.make_node(operator, ["x", "w"], ["y"], **attributes)], {"w": weights}, shape=IMAGE.shape)


@pytest.mark.parametrize("form", CONVOLUTIONS)
def test_convolutions(form: str) -> None:
    """The convolution of the rounded activation and weights, computed by ONNX Runtime in float."""
    operator, shape, attributes = CONVOLUTIONS[form]
    weights = floats(*shape, seed=2)
    by_channel = weights if operator == "Conv" else weights.swapaxes(0, 1)
    words, scale = words_of(by_channel.reshape(len(by_channel), -1).T)
    near = np.asarray((words * scale).T.reshape(by_channel.shape), F)
    near = near if operator == "Conv" else near.swapaxes(0, 1)
    model = convolution(operator, weights, attributes)
    result = quantized(model)
    assert operators(result) == {"WordConv": 1} | ({} if operator == "Conv" else {"Interleave": 1})
    actual, exact = run(result, IMAGE), run_float(model, IMAGE)
    expected = run_float(convolution(operator, np.ascontiguousarray(near), attributes), rounded_images(IMAGE))
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()
    assert decibels(actual, exact) > max(45, decibels(run(ort_dynq.quantize(model), IMAGE), exact) + 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_convolutions_with_both_backends_and_no_plugin(backend: Backend) -> None:
    """A BatchNormalization becomes a part of the first one, and the nodes behind it its program."""
    constants = {"w": floats(16, 8, 3, 3, seed=2), "v": floats(16, 16, 3, 3, seed=3), "z": np.zeros(16, F)}
    constants |= {"gain": floats(16, seed=4), "variance": np.abs(floats(16, seed=5)) + F(1)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", "gain", "z", "z", "variance"], ["b"]),
        helper.make_node("HardSwish", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "v"], ["d"], pads=[1] * 4),
        helper.make_node("Add", ["d", "c"], ["y"]),
    ]
    result = quantized(model_of(nodes, constants, shape=IMAGE.shape))
    assert operators(result) == {"WordConvProgram": 2}
    check_both_ways(result, IMAGE, backend)


def test_some_layers_have_words() -> None:
    """Two products of the same weights: one has words, the other one codes."""
    nodes = [helper.make_node("MatMul", ["x", "w"], [each], name=f"to_{each}") for each in "ab"]
    nodes.append(helper.make_node("Sum", ["a", "b"], ["y"]))
    options = checked("int8", None, "token", False, ())
    model = model_of(nodes, {"w": W}, shape=("M", K))
    found = quantize_layers(model, replace(options, forms=Forms(words=frozenset({"to_b"}))))
    became = {each.node: (each.operator, each.reason) for each in found.report.rewritten}
    note = "words, for the signal-to-noise ratio of the outputs"
    assert became == {"to_a": ("QuantizedMatMul", ""), "to_b": ("WordMatMul", note)}
    run(found, X)


def test_attention_and_embeddings_stay_float() -> None:
    options = checked("int12", None, "token", False, ())
    assert (options.attention, options.embeddings) == ("float", "keep")
    assert options.text == "weights=int12 activations=token symmetric=0"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"activations": "two-term"}, "weights int12 have activations of 13 bits for each token"),
        ({"activations": "tensor"}, "weights int12 have activations of 13 bits for each token"),
        ({"symmetric": True}, "symmetric is for activations of 8 bits"),
        ({"group": 32}, "give weights int4 as well"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DynqError, match=text):
        quantized(product(W, shape=("M", K)), **options)
