"""DynamicQuantizeLSTM, as onnxruntime's quantize_dynamic writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import TensorProto, helper, numpy_helper
from recurrence import decibels, dynamic, layer, with_weights_of
from rewriting import operators

import ort_dynq
from ort_dynq.rewriter.listing import listing_of

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (1, {}),
    "backwards": (1, {"direction": "reverse", "given": ["lengths"]}),
    "both": (2, {"given": ["lengths", "state", "cell"]}),
    "with peepholes": (2, {"given": ["peepholes", "lengths", "state", "cell"]}),
    "with a clip": (1, {"clip": 0.3}),
    "with peepholes and a clip": (1, {"given": ["peepholes"], "clip": 0.4}),
    "without bias": (1, {"given": ["no bias"]}),
    "coupled": (1, {"input_forget": 1}),
    "one step, one sequence": (1, {"steps": 1, "batch": 1, "given": ["state", "cell"]}),
    "long": (1, {"steps": 60, "batch": 1, "size": 64}),
    "many sequences": (2, {"batch": 50, "steps": 3}),
    "narrow": (1, {"size": 7, "depth": 3, "batch": 5, "steps": 20}),
    "with others": (1, {"activations": ["HardSigmoid", "Relu", "Sigmoid"], "clip": 2.0}),
    "with numbers": (
        2,
        {
            "activations": ["HardSigmoid", "Tanh", "HardSigmoid"] * 2,
            "activation_alpha": [0.25, 0.9] * 2,
            "activation_beta": [0.45, 0.1] * 2,
        },
    ),
}


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    result = ort_dynq.rewrite(model)
    assert [each.operator for each in result.report.rewritten] == ["QuantizedRecurrence"], result.report.unconverted
    content = result.to_proto()
    onnx.checker.check_model(content)
    assert not any(node.op_type == "DynamicQuantizeLSTM" for node in content.graph.node)
    return content


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The outputs with the plugin and two threads; without it, they are the same, bit for bit."""
    outputs = make_session(model, "native", threads=2).run(None, feeds)
    for other in (stock_session(model),):
        for one, two in zip(outputs, other.run(None, feeds), strict=True):
            assert_same(one, two)
    return list(outputs)


def noise(expected: list[Array], found: list[Array]) -> float:
    """The sum of the squared errors, relative to the squares, in decibels."""
    return -decibels(*(np.concatenate([each.ravel() for each in arrays]) for arrays in (expected, found)))


@pytest.mark.parametrize(("name", "per_channel"), [(name, i % 2 == 1) for i, name in enumerate(CASES)])
def test_result(name: str, per_channel: bool) -> None:
    """It is nearer to ONNX Runtime's float LSTM of the same weights than DynamicQuantizeLSTM; verify agrees."""
    directions, given = CASES[name]
    model, feeds = layer("LSTM", directions, **given)
    original = dynamic(model, per_channel=per_channel)
    converted = rewritten(original)
    found = run(converted, feeds)
    expected = stock_session(with_weights_of(original, model)).run(None, feeds)
    stock = stock_session(original).run(None, feeds)
    ours, theirs = noise(expected, found), noise(expected, stock)
    assert ours < -34
    # The step of one row is that of all rows: then both have the same noise, except for the last bits.
    assert ours <= theirs + (0.5 if feeds["x"].shape[1] == 1 else 0)
    for one, two in zip(stock, found, strict=True):
        assert one.shape == two.shape
        assert np.array_equal((one == 0).all(-1), (two == 0).all(-1))  # after the end of a sequence
    verification = ort_dynq.verify(original, converted, inputs=feeds)
    assert verification.passed, verification
    (product,) = verification.products
    assert product.b_noise is not None
    assert product.b_noise < -34


def test_outliers() -> None:
    """One large input takes the codes of all others from DynamicQuantizeLSTM, here only those of its own row."""
    model, feeds = layer("LSTM", steps=30)
    feeds["x"][3, 1, 5] = 100
    original = dynamic(model)
    expected = stock_session(with_weights_of(original, model)).run(None, feeds)
    stock = stock_session(original).run(None, feeds)
    assert noise(expected, run(rewritten(original), feeds)) < noise(expected, stock) - 15


def test_states_of_one_sign() -> None:
    """Relu makes all states positive: they have 256 codes, as in DynamicQuantizeLSTM."""
    model, feeds = layer("LSTM", activations=["Sigmoid", "Relu", "Relu"], steps=20)
    original = dynamic(model)
    expected = stock_session(with_weights_of(original, model)).run(None, feeds)
    stock = stock_session(original).run(None, feeds)
    assert noise(expected, run(rewritten(original), feeds)) < noise(expected, stock)


@pytest.mark.parametrize("outputs", [["", "", "c"], ["", "h", ""], ["y", "", "c"]])
def test_outputs_that_are_not_there(outputs: list[str]) -> None:
    model, feeds = layer("LSTM", outputs=outputs)
    original = dynamic(model)
    converted = rewritten(original)
    names = [each.name for each in converted.graph.output]
    assert names == [each for each in outputs if each]
    verification = ort_dynq.verify(original, converted, inputs=feeds)
    assert verification.passed, verification


def test_layers_in_sequence() -> None:
    """The type after DynamicQuantizeLSTM is known even if the model does not declare it."""
    model, feeds = layer("LSTM", outputs=["states", "", ""], size=40)
    graph = model.graph
    graph.node.append(helper.make_node("Squeeze", ["states", "axis"], ["between"]))
    second = onnx.NodeProto()
    second.CopyFrom(graph.node[0])
    second.input[0], second.output[0], second.name = "between", "y", "second"
    graph.node.append(second)
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "axis"))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4))
    original = dynamic(model)
    del original.graph.value_info[:]
    result = ort_dynq.rewrite(original)
    assert [each.node for each in result.report.rewritten] == ["layer_quant", "second_quant"]
    assert ort_dynq.verify(original, result.to_proto(), inputs=feeds).passed


def change(model: onnx.ModelProto, name: str, array: Array) -> None:
    tensor = next(each for each in model.graph.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array, name))


@pytest.mark.parametrize("zero_point", [128, 127])
@pytest.mark.parametrize("per_channel", [False, True])
def test_unsigned_weights(zero_point: int, per_channel: bool) -> None:
    """They have a zero point; codes minus the zero point fit 8 bits here, and are the same weights."""
    model, feeds = layer("LSTM", 2)
    original = dynamic(model, per_channel=per_channel)
    signed = run(rewritten(original), feeds)
    for each in list(original.graph.initializer):
        if (array := numpy_helper.to_array(each)).dtype == np.int8:
            change(original, each.name, (array.astype(np.int32) + zero_point).astype(np.uint8))
    for one, two in zip(signed, run(rewritten(original), feeds), strict=True):
        assert_same(one, two)
    assert ort_dynq.verify(original, rewritten(original), inputs=feeds).passed


def unconverted(model: onnx.ModelProto, **options: Any) -> str:
    """Returns why a layer stays; its int8 weights become uint8."""
    result = ort_dynq.rewrite(model, **options)
    assert not operators(result.to_proto())
    (finding,) = result.report.findings
    return finding.note if finding.rule == "int8 weights that saturate" else finding.reason


def test_weights_that_do_not_fit() -> None:
    model = dynamic(layer("LSTM")[0])
    for each in list(model.graph.initializer):
        if (array := numpy_helper.to_array(each)).dtype == np.int8:
            change(model, each.name, np.full(array.shape, 7 if array.size == 1 else 255, np.uint8))
    assert "not a matrix of integers of 8 bits" in unconverted(model)


@pytest.mark.parametrize("name", ["w_quantized", "r_scale", "b"])
def test_weights_at_run_time(name: str) -> None:
    """An initializer that is also an input may be overridden."""
    model = dynamic(layer("LSTM")[0])
    tensor = next(each for each in model.graph.initializer if each.name == name)
    model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    assert "computed at run time" in unconverted(model)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"activations": ["Sigmoid", "Elu", "Tanh"]}, "no integer layer with the activation function Elu"),
        ({"activations": ["Sigmoid", "Tanh"]}, "the attribute activations is not valid"),
        ({"hidden_size": 8}, "the attribute hidden_size is not valid, or its meaning is not clear"),
        ({"direction": "sideways"}, "the attribute direction is not valid"),
        ({"direction": "bidirectional"}, "its weights do not have the types and shapes"),
    ],
    ids=str,
)
def test_reasons(given: dict[str, Any], reason: str) -> None:
    model = dynamic(layer("LSTM")[0])
    (node,) = model.graph.node
    kept = [each for each in node.attribute if each.name not in given]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(key, value) for key, value in given.items())])
    assert reason in unconverted(model)


def test_scales_that_are_not_finite() -> None:
    model = dynamic(layer("LSTM")[0])
    change(model, "r_scale", np.full(1, np.inf, np.float32))
    assert "NaN or an infinity" in unconverted(model)


def test_exact() -> None:
    assert "an integer product changes the last bits" in unconverted(dynamic(layer("LSTM")[0]), exact=True)


def test_second_rewrite_changes_nothing() -> None:
    model = rewritten(dynamic(layer("LSTM")[0]))
    again = ort_dynq.rewrite(model)
    assert not again.report.findings
    assert again.to_proto() == model


@pytest.mark.parametrize("exact", [False, True])
def test_a_constant_layer_stays(exact: bool) -> None:
    """ONNX Runtime computes it when it opens a session."""
    model, feeds = layer("LSTM")
    original = dynamic(model)
    del original.graph.input[:]
    original.graph.initializer.append(numpy_helper.from_array(feeds["x"], "x"))
    assert ort_dynq.rewrite(original, exact=exact).report.findings == []


def test_a_layer_in_a_branch() -> None:
    model, feeds = layer("LSTM", outputs=["y"])
    original = dynamic(model)
    graph = original.graph
    value = graph.output[0]
    branches = {}
    for branch in ("then_branch", "else_branch"):
        node = onnx.NodeProto()
        node.CopyFrom(graph.node[0])
        node.output[0] = f"y_{branch}"
        output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [None] * 4)
        branches[branch] = helper.make_graph([node], branch, [], [output])
    del graph.node[:]
    graph.node.append(helper.make_node("If", ["condition"], [value.name], **branches))
    graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    result = ort_dynq.rewrite(original)
    assert [each.operator for each in result.report.rewritten] == ["QuantizedRecurrence"] * 2
    expected = run(rewritten(dynamic(model)), feeds)
    for condition in (True, False):
        found = run(result.to_proto(), feeds | {"condition": np.array(condition)})
        assert_same(found[0], expected[0])


def test_listing_of_the_program() -> None:
    """What `ort-dynq inspect --program` shows."""
    model = dynamic(layer("LSTM")[0])
    listing = listing_of(model, "layer_quant")
    assert listing.operator == "QuantizedRecurrence"
    assert [(each.name, each.value) for each in listing.outputs] == [("dst", "y"), ("dst_2", "y_c")]
