"""Activations of two terms: the results equal the definition in NumPy, with either backend and without the plugin."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import helper
from onnx.reference import ReferenceEvaluator
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
    reasons,
    run,
    run_float,
    two_layers,
    weights_by_definition,
)

import ort_dynq
from ort_dynq import DynqError
from ort_dynq.accuracy import Reference, measure
from ort_dynq.backends.options import BACKENDS, Backend
from ort_dynq.quantizer.weights import grid_of_groups
from ort_dynq.rewriter import Result

K, N = 288, 240  # enough weights for two terms to pay; K is a multiple of 32
W, BIAS = floats(K, N, seed=3), floats(N, seed=4)
X = activations(9, K)
X[0], X[1, 5] = 0, 300  # a row of zeros, and an element that leaves few codes for the others
TWO = {"TwoTermQuantize": 1, "QuantizedMatMul": 1}


def by_definition(x: Array) -> Array:
    """An activation as two codes for each element, the second of what the first leaves, dequantized in float64."""
    largest = np.abs(x).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.nan_to_num(x * (F(127) / largest), nan=0)
    codes = np.clip(np.rint(numbers), -127, 127)
    rest = np.clip(np.rint((numbers - codes) * F(254)), -127, 127)
    return np.asarray((254 * codes.astype(np.float64) + rest) * (largest / F(127) / F(254)))


def weights_of_groups(weights: Array) -> Array:
    """Weights as 4-bit codes in groups of 32, dequantized in float64."""
    grid = grid_of_groups(weights, 32)
    return np.asarray((grid.codes.astype(np.float64) - grid.zero_point) * np.repeat(grid.scale, 32, 0))


def quantized(model: onnx.ModelProto, **options: str) -> Result:
    return ort_dynq.quantize(model, activations="two-term", **options)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("shape", [("M", K), (2, 3, K), (K,)], ids=str)
def test_definition(weights: str, shape: tuple[int | str, ...]) -> None:
    result = quantized(product(W, shape=shape), weights=weights)
    assert operators(result) == TWO
    x = X if shape[0] == "M" else activations(*(int(each) for each in shape))
    dequantized = weights_by_definition(W) if weights == "int8" else weights_of_groups(W)
    expected = by_definition(x) @ dequantized
    actual = run(result, x)
    # The definition has exact sums; the kernels round them and the scales to float32, with int4 once for each group.
    assert (np.abs(actual - expected) <= 2.0**-20 * np.abs(by_definition(x)) @ np.abs(dequantized)).all()
    exact = x.astype(np.float64) @ dequantized
    one_term = run(ort_dynq.quantize(product(W, shape=shape), weights=weights), x)
    # Steps are 127 times as fine or more, 42 dB. Elements below half a step lose less than half a step with one term.
    assert decibels(actual, exact) > max(75, decibels(one_term, exact) + 36)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_both_backends_and_no_plugin_give_the_same_bits(backend: Backend, weights: str) -> None:
    """The Relu between the layers becomes a program of the first product."""
    result = quantized(two_layers(W, floats(K, seed=5)), weights=weights)
    assert operators(result) == {"TwoTermQuantize": 2, "QuantizedMatMul": 1, "QuantizedMatMulProgram": 1}
    check_both_ways(result, X, backend)


@pytest.mark.parametrize("attributes", GEMMS.values(), ids=GEMMS)
def test_gemm(attributes: dict[str, float]) -> None:
    assert operators(check_gemm(attributes, W, BIAS, X, quantized, by_definition(X) @ weights_by_definition(W))) == TWO


def test_activations_are_shared() -> None:
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name}.p"]) for name in "qk"]
    nodes.append(helper.make_node("Sum", ["q.p", "k.p"], ["y"]))
    result = quantized(
        model_of(nodes, {name: floats(K, N, seed=seed) for seed, name in enumerate("qk")}, shape=("M", K))
    )
    assert operators(result) == {"TwoTermQuantize": 1, "QuantizedMatMul": 2}
    run(result, X)


def images_by_definition(x: Array) -> Array:
    """An activation of a convolution with one scale for each sample, by :func:`by_definition`."""
    return by_definition(x.reshape(len(x), -1)).reshape(x.shape)


CONVOLUTIONS = {
    "Conv": (helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4, strides=[2, 1]), floats(24, 16, 3, 3)),
    "groups": (helper.make_node("Conv", ["x", "w", "b"], ["y"], group=2), floats(24, 8, 3, 3)),
    "ConvTranspose": (
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2]),
        floats(16, 24, 12, 12),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_definition_of_convolutions(name: str) -> None:
    """All elements of a sample have one scale; small ones are exact in comparison with one term."""
    node, weights = CONVOLUTIONS[name]
    # onnx.reference takes seconds for a large ConvTranspose.
    image = (7, 6) if name == "ConvTranspose" else (19, 20)
    x = floats(2, 16, *image, seed=7)
    x[0, 0, 0, 0] = 300
    model = model_of([node], {"w": weights, "b": floats(24, seed=8)}, shape=("N", 16, *image))
    result = quantized(model)
    phases = {"Interleave": 1} if name == "ConvTranspose" else {}
    assert operators(result) == {"TwoTermQuantize": 1, "QuantizedConv": 1, **phases}
    (codes,) = (each for each in result.model.graph if each.op_type == "QuantizedConv")
    assert codes.attributes.get_int("terms") == 2
    output_channel = 1 if name == "ConvTranspose" else 0
    of_channel = np.moveaxis(weights, output_channel, -1)
    dequantized = np.moveaxis(
        weights_by_definition(of_channel.reshape(-1, 24)).reshape(of_channel.shape), -1, output_channel
    )
    wide = copy.deepcopy(model)  # in float64: its sums have no errors to speak of
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    del wide.graph.initializer[:]
    for its_name, array in (("w", dequantized), ("b", floats(24, seed=8).astype(np.float64))):
        wide.graph.initializer.append(onnx.numpy_helper.from_array(array, its_name))
    expected = ReferenceEvaluator(wide).run(None, {"x": images_by_definition(x)})[0]
    actual = run(result, x)
    # Sums, scales, bias and the sum of the terms are rounded to float32.
    assert np.abs(actual - expected).max() <= 2.0**-20 * np.abs(expected).max()
    one_term = run(ort_dynq.quantize(model), x)
    assert decibels(actual, expected) > decibels(one_term, expected) + 36


@pytest.mark.parametrize("backend", BACKENDS)
def test_convolutions_with_both_backends_and_without_the_plugin(backend: Backend) -> None:
    """A clip and a program follow; the kernels apply them to the sum of the terms."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["p"], pads=[1] * 4),
        helper.make_node("Clip", ["p", "zero", "six"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["q"], pads=[1] * 4),
        helper.make_node("HardSwish", ["q"], ["y"]),
    ]
    constants = {"w": floats(16, 16, 3, 3), "zero": np.array(0, F), "six": np.array(6, F)}
    result = quantized(model_of(nodes, constants, shape=("N", 16, 19, 20)))
    assert operators(result) == {"TwoTermQuantize": 2, "QuantizedConvProgram": 2}
    content, x = result.to_proto(), floats(2, 16, 19, 20)
    expected = np.asarray(stock_session(content).run(None, {"x": x})[0])
    for threads in (1, 2):
        session = make_session(content, backend, threads=threads)
        assert_same(np.asarray(session.run(None, {"x": x})[0]), expected)


CONV = helper.make_node("Conv", ["x", "w"], ["y"])
STAYING = [
    (
        "sums of 63 products are too short: two terms cost more than integers save; use --activations token",
        model_of([CONV], {"w": floats(24, 7, 3, 3)}, shape=(1, 7, 28, 28)),
    ),
    (
        "a convolution of single channels is faster in float",
        model_of([CONV], {"w": floats(8, 1, 3, 3)}, shape=(1, 1, 28, 28)),
    ),
    (
        "256 x 255 weights are too few: two terms cost more than integers save; use --activations token",
        product(floats(256, 255), shape=("M", 256)),
    ),
    (
        "256 x 8 weights are too few: quantizing the activation costs more than integers save",
        product(floats(256, 8), shape=("M", 256)),
    ),
]


@pytest.mark.parametrize(("reason", "model"), STAYING)
def test_layers_that_stay(reason: str, model: onnx.ModelProto) -> None:
    assert reasons(quantized(model)) == [reason]
    assert operators(quantized(model)) == {}
    has_one_term = bool(operators(ort_dynq.quantize(model)))
    assert has_one_term == ("token" in reason)


def test_attention_stays_float() -> None:
    """Its products have one term, and no option could remove their noise."""
    from ort_dynq.quantizer import checked

    assert checked("int8", None, "two-term", False, ()).attention == "float"
    assert checked("int8", None, "token", False, ()).attention == "int8"


def test_symmetric_is_for_one_term() -> None:
    with pytest.raises(DynqError, match="symmetric is for activations per token; give activations token"):
        ort_dynq.quantize(product(W), activations="two-term", symmetric=True)


@pytest.mark.filterwarnings("ignore")
def test_from_dynamic(tmp_path: Path) -> None:
    """The weights of quantize_dynamic, and activations of two terms."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    onnx.save(product(W, shape=("M", K)), tmp_path / "float.onnx")
    quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx", per_channel=True)
    dynamic = onnx.load(tmp_path / "dynamic.onnx")
    result = ort_dynq.quantize(dynamic, from_dynamic=True, activations="two-term")
    assert operators(result) == TWO
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in dynamic.graph.initializer}
    weights = (constants["w_quantized"].astype(np.float64) - constants["w_zero_point"]) * constants["w_scale"]
    expected = by_definition(X) @ weights
    assert np.abs(run(result, X) - expected).max() < 2.0**-20 * np.abs(expected).max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_accuracy_of_layers(backend: Backend) -> None:
    """`quantize --verify` and `bench --report` measure these layers, and say that they have two terms."""
    model = product(W, shape=("M", K))
    result = quantized(model)
    found = measure(Reference(model, {"x": X}), result.model, backend=backend, seconds=0)
    (layer,) = found.layers
    assert (layer.form, layer.terms) == ("QuantizedMatMul, two terms", 2)
    assert layer.snr_db == pytest.approx(decibels(run(result, X), run_float(model, X).astype(np.float64)), abs=0.01)
    assert layer.range_ratio is not None
    assert layer.range_ratio > 8
    assert not layer.has_outlier  # there are enough codes for all channels
    (one_term,) = measure(Reference(model, {"x": X}), ort_dynq.quantize(model).model, seconds=0).layers
    assert (one_term.form, one_term.has_outlier) == ("QuantizedMatMul", True)


def test_verify_gives_advice() -> None:
    model = product(W, shape=("M", K))
    with pytest.raises(DynqError, match="B was quantized, so its outputs differ from A's"):
        ort_dynq.verify(model, quantized(model).to_proto())
    assert ort_dynq.verify(quantized(model).to_proto(), quantized(model).to_proto()).passed
