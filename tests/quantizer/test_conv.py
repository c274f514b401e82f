"""Convolutions: the results equal the definition in NumPy, with the plugin and without it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import assert_same
from onnx import helper
from quantizing import (
    F,
    floats,
    model_of,
    operators,
    reasons,
    run,
    run_float,
    squared_error,
    weights_by_definition,
)
from rewriting import MODELS

import ort_dynq

X = np.maximum(floats(2, 8, 28, 28, seed=1), F(-0.5))
FORMS = {
    "plain": ((24, 8, 3, 3), {}),
    "pads and strides": ((24, 8, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "groups": ((32, 4, 3, 3), {"group": 2}),
    "dilations": ((24, 8, 3, 3), {"dilations": [2, 1]}),
    "auto_pad": ((24, 8, 3, 3), {"auto_pad": "SAME_UPPER"}),
    "5x1": ((64, 8, 5, 1), {}),
}


def _conv(weights: np.ndarray, bias: np.ndarray | None, attributes: dict[str, object], x: np.ndarray = X):  # type: ignore[no-untyped-def]
    constants = {"w": weights} | ({} if bias is None else {"c": bias})
    node = helper.make_node("Conv", ["x", *constants], ["y"], name="conv", **attributes)
    return model_of([node], constants, shape=x.shape)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("biased", [True, False])
def test_forms(form: str, biased: bool) -> None:
    """The product of the dequantized activation and weights, computed by ONNX Runtime in float."""
    shape, attributes = FORMS[form]
    weights = floats(*shape, seed=2) * np.exp(floats(shape[0], 1, 1, 1, seed=3))
    bias = floats(shape[0], seed=4) if biased else None
    model = _conv(weights, bias, attributes)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1}
    low, high = X.min((1, 2, 3), keepdims=True), X.max((1, 2, 3), keepdims=True)
    scale = (high - low) / F(255)
    zero_point = np.rint(-low / scale)
    dequantized = ((np.clip(np.rint(X / scale) + zero_point, 0, 255) - zero_point) * scale).astype(F)
    columns = weights_by_definition(weights.reshape(len(weights), -1).T).T.reshape(shape).astype(F)
    expected = run_float(_conv(columns, bias, attributes), dequantized)
    actual = run(result, X)
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()
    assert squared_error(actual, run_float(model, X)) < 1e-4


def test_samples_of_quantize_dynamic() -> None:
    """Its convolutions have one scale for a batch; with `from_dynamic`, samples have scales of their own."""
    model = onnx.load(MODELS / "ort_dynamic_conv" / "model.onnx")
    result = ort_dynq.quantize(model, from_dynamic=True)
    assert operators(result) == {"RowProgram": 2, "QuantizedConvProgram": 1, "QuantizedConv": 1}
    (x,) = model.graph.input
    x = floats(4, *(dim.dim_value for dim in x.type.tensor_type.shape.dim[1:]))
    x[1:] *= F(0.01)
    for i, row in enumerate(run(result, x)):
        assert_same(run(result, x[i : i + 1])[0], row)
    per_tensor = ort_dynq.quantize(model, from_dynamic=True, activations="tensor")
    assert operators(per_tensor) == {"DynamicQuantizeLinear": 2, "QuantizedConvProgram": 1, "QuantizedConv": 1}


def test_one_channel_with_a_long_kernel() -> None:
    """The Fourier transform of sound is a convolution of one channel."""
    x = floats(1, 1, 4000, seed=1)
    model = _conv(floats(258, 1, 256, seed=2), None, {"strides": [64]}, x)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1}
    assert squared_error(run(result, x), run_float(model, x)) < 2e-4  # codes of 8 bits for normal data


@pytest.mark.parametrize(
    ("shape", "group", "reason"),
    [
        ((64, 1, 31), 1, "a convolution of single channels"),
        ((64, 1, 32), 1, ""),
        ((64, 1, 127), 64, "a convolution of single channels"),  # depthwise
        ((64, 1, 128), 64, ""),
        ((64, 2, 15), 1, "the convolution has too few products"),
        ((64, 2, 16), 1, ""),
        ((64, 4, 7), 1, "the convolution has too few products"),
        ((64, 4, 8), 1, ""),
        ((64, 1, 11, 11), 1, "a convolution of single channels"),  # 121 products for an output, of an image
        ((64, 1, 8, 16), 1, ""),
    ],
)
def test_short_sums_of_few_channels(shape: tuple[int, ...], group: int, reason: str) -> None:
    """Layers over time that ONNX Runtime copies to a matrix gain from 32 products for an element of the output on."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=group)
    size = (4000,) if len(shape) == 3 else (90, 90)
    result = ort_dynq.quantize(model_of([node], {"w": floats(*shape)}, shape=(1, shape[1] * group, *size)))
    assert [text.startswith(reason) for text in reasons(result)] == [True] * bool(reason)
    assert ("QuantizedConv" in operators(result)) == (not reason)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_codes_of_dequantized_weights_stay(weights: str) -> None:
    """The codes stay, and none is 127; quantizing the weights anew would give each channel this code."""
    shape = (24, 8, 3, 3)
    codes = np.random.default_rng(5).integers(-100, 101, shape).astype(np.int8)
    scales = np.abs(floats(24, seed=6))
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "s"], ["w"], axis=0),
        helper.make_node("Conv", ["x", "w"], ["y"]),
    ]
    result = ort_dynq.quantize(model_of(nodes, {"codes": codes, "s": scales}, shape=X.shape), weights=weights)
    (conv,) = (node for node in result.to_proto().graph.node if node.op_type == "QuantizedConv")
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in result.to_proto().graph.initializer}
    assert constants[conv.input[5]].tobytes() == scales.tobytes()
    expected = codes.reshape(24, -1).sum(1)
    assert np.array_equal(constants[conv.input[6]], expected)
    run(result, X)


def test_a_bias_after_it_is_folded_and_activations_are_shared() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["q"]),
        helper.make_node("Conv", ["x", "w"], ["r"]),
        helper.make_node("Sub", ["q", "r"], ["y"]),
    ]
    bias = floats(24, 1, 1)
    result = ort_dynq.quantize(model_of(nodes, {"w": floats(24, 8, 3, 3), "c": bias}, shape=X.shape))
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1, "QuantizedConvProgram": 1}
    assert "Add" not in result.report.after
    assert np.allclose(run(result, X), bias, atol=1e-4)


@pytest.mark.parametrize("bias", [None, "of the Conv", "added"])
def test_batch_normalization_is_folded(bias: str | None) -> None:
    c = floats(24, 1, 1, seed=2)
    nodes = [
        helper.make_node("Conv", ["x", "w", *(["c"] if bias == "of the Conv" else [])], ["p"]),
        helper.make_node("Add" if bias == "added" else "Identity", ["p", *(["c"] if bias == "added" else [])], ["q"]),
        helper.make_node("BatchNormalization", ["q", "gain", "shift", "mean", "variance"], ["y"], epsilon=0.01),
    ]
    constants = {"w": floats(24, 8, 3, 3), "variance": np.abs(floats(24, seed=3))}
    constants |= {"c": c if bias == "added" else c.reshape(-1)}
    constants |= {name: floats(24, seed=seed) for seed, name in enumerate(("gain", "shift", "mean"), 4)}
    model = model_of(nodes, constants, shape=X.shape)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1}
    assert "BatchNormalization" not in result.report.after
    assert squared_error(run(result, X), run_float(model, X)) < 1e-4


@pytest.mark.parametrize("is_last", [False, True])
def test_constants_of_channels_are_folded(is_last: bool) -> None:
    """A bias and a BatchNormalization that an exporter wrote as several nodes, with the channels first or last."""
    operator, last, first = "Transpose", {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}
    if not is_last:
        operator, last, first = "Identity", {}, {}
    steps = (("Add", "ab"), ("Sub", "bc"), ("Mul", "cd"), ("Div", "de"), ("Sub", "ef"))
    nodes = [
        helper.make_node(operator, ["x"], ["t"], **first),
        helper.make_node("Conv", ["t", "w"], ["p"], pads=[1, 1, 1, 1]),
        helper.make_node(operator, ["p"], ["a"], **last),
        *(helper.make_node(op, [x, f"c{x}"] if x != "e" else [f"c{x}", x], [y]) for op, (x, y) in steps),
        helper.make_node(operator, ["f"], ["y"], **first),
    ]
    shape = (24,) if is_last else (24, 1, 1)
    constants = {f"c{x}": floats(*shape, seed=seed) for seed, x in enumerate("abce")} | {"w": floats(24, 8, 3, 3)}
    constants["cd"] = np.abs(floats(*shape, seed=9)) + F(0.5)
    x = X.transpose(0, 2, 3, 1) if is_last else X
    model = model_of(nodes, constants, shape=x.shape)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1}
    assert not {"Add", "Sub", "Mul", "Div"} & result.report.after.keys()
    assert result.report.after["Transpose"] == is_last
    assert squared_error(run(result, x), run_float(model, x)) < 1e-4


def test_convolutions_of_the_optimizer() -> None:
    """ONNX Runtime's own layout depends on the CPU. The reason names the remedy, here and in a rewrite."""
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["t"], domain="com.microsoft.nchwc"),
        helper.make_node("Conv", ["t", "w"], ["p"], domain="com.microsoft.nchwc"),
        helper.make_node("ReorderOutput", ["p"], ["y"], domain="com.microsoft.nchwc", channels=24),
    ]
    model = model_of(nodes, {"w": floats(24, 8, 3, 3)}, shape=X.shape)
    model.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    for result in (ort_dynq.quantize(model), ort_dynq.rewrite(model)):
        (finding,) = result.report.unconverted
        assert "use the original model, before it is optimized" in finding.reason


def _normalized(**changes: float | np.ndarray) -> onnx.ModelProto:
    """A Conv and a BatchNormalization."""
    parameters = {name: np.ones(24, F) for name in ("gain", "shift", "mean", "variance")}
    parameters |= {name: np.full(24, number, F) for name, number in changes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["p"]),
        helper.make_node("BatchNormalization", ["p", *parameters], ["y"]),
    ]
    return model_of(nodes, {"w": floats(24, 8, 3, 3), **parameters}, shape=X.shape)


@pytest.mark.parametrize(
    "changes",
    [{"variance": -1.0}, {"gain": 3e38, "variance": 1e-20}, {"shift": np.inf}],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_a_normalization_without_finite_factors_stays(changes: dict[str, float]) -> None:
    result = ort_dynq.quantize(_normalized(**changes))
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1}
    assert result.report.after["BatchNormalization"] == 1


def test_a_normalization_with_the_epsilon_of_the_caller_stays() -> None:
    model = _normalized()
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    nodes[1].attribute.add(name="epsilon", ref_attr_name="epsilon", type=onnx.AttributeProto.FLOAT)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    opset = [helper.make_opsetid("", 20)]
    function = helper.make_function("local", "Block", ["x", *constants], ["y"], nodes, opset, ["epsilon"])
    call = helper.make_node("Block", ["x", *constants], ["y"], domain="local", epsilon=0.5)
    model = model_of([call], constants, shape=X.shape, functions=[function])
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1}
    assert squared_error(run(result, X), run_float(model, X)) < 1e-4


def test_convolutions_have_8_bits_with_weights_of_4_bits() -> None:
    model = _conv(floats(24, 8, 3, 3), None, {})
    result = ort_dynq.quantize(model, weights="int4")
    assert run(result, X).tobytes() == run(ort_dynq.quantize(model), X).tobytes()
    assert [each.note for each in result.report.findings if each.operator == "QuantizedConv"] == ["int8"]


@pytest.mark.parametrize(
    ("weights", "attributes", "reason"),
    [
        (floats(8, 1, 3, 3), {"group": 8}, "a convolution of single channels is faster in float"),
        (floats(2, 8, 1, 1), {}, "the convolution is too small"),
        (floats(24, 8, 3, 3) * F(np.nan), {}, "the weights have NaN or an infinity"),
    ],
    ids=["depthwise", "small", "NaN"],
)
def test_nodes_that_stay(weights: np.ndarray, attributes: dict[str, object], reason: str) -> None:
    (text,) = reasons(ort_dynq.quantize(_conv(weights, None, attributes)))
    assert text.startswith(reason)


@pytest.mark.parametrize(
    ("shape", "stride", "stays"),
    [
        ((16, 3, 3, 3), 2, True),
        ((64, 3, 3, 3), 1, True),  # 27 products for an output, of an image
        ((32, 3, 4, 4), 4, True),  # 48, and 32 for an input
        ((64, 3, 5, 5), 1, True),  # 75 for an output, of an image
        ((32, 4, 5, 5), 2, False),
        ((39, 74, 1, 1), 1, True),
        ((40, 73, 1, 1), 1, True),
        ((40, 74, 1, 1), 1, False),  # 20 / 40 for an input, 37 / 74 for an output
        ((240, 40, 1, 1), 1, True),
        ((240, 41, 1, 1), 1, False),
        ((10, 18, 2, 2), 1, True),
        ((10, 19, 2, 2), 1, False),
        ((159, 74, 1, 1), 2, True),
        ((160, 74, 1, 1), 2, False),  # 40 for an input
    ],
)
def test_layers_of_few_products_stay(shape: tuple[int, ...], stride: int, stays: bool) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride, stride])
    result = ort_dynq.quantize(model_of([node], {"w": floats(*shape)}, shape=(1, shape[1], 224, 224)))
    assert [text.startswith("the convolution has too few products") for text in reasons(result)] == [True] * stays
    assert ("QuantizedConv" in operators(result)) == (not stays)
