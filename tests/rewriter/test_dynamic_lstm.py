"""DynamicQuantizeLSTM, as onnxruntime's quantize_dynamic writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import assert_same, stock_session
from lstm_models import change, noise, rewritten, run, unconverted
from onnx import TensorProto, helper, numpy_helper
from recurrence import dynamic, layer, with_weights_of

import ort_dynq

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


@pytest.mark.parametrize(
    ("name", "per_channel"),
    [  # others have the parts of these three together
        pytest.param(name, i % 2 == 1, marks=[pytest.mark.exhaustive] * (name in ("plain", "both", "with a clip")))
        for i, name in enumerate(CASES)
    ],
)
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
