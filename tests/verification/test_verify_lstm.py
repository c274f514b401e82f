"""verify on DynamicQuantizeLSTM: correct layers pass, with less noise than A; one wrong number fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import Array, assert_same, stock_session
from onnx import helper, numpy_helper
from recurrence import decibels, dynamic, layer
from rewriting import check_tight, verified_product

import ort_dynq
from ort_dynq.runtime import open_session, session_options
from ort_dynq.storage import load, to_proto
from ort_dynq.tools.verification import recurrent
from ort_dynq.tools.verification.recurrent import Rounded
from ort_dynq.tools.verification.saturation import without_saturation

GIVEN = ["lengths", "state", "cell", "peepholes"]


def case(directions: int = 2, **given: Any) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, Array]]:
    """A model of one DynamicQuantizeLSTM, the rewritten model, and inputs."""
    model, feeds = layer("LSTM", directions, **({"given": GIVEN} | given))
    original = dynamic(model)
    return original, ort_dynq.rewrite(original).to_proto(), feeds


def test_correct() -> None:
    original, model, feeds = case()
    product = verified_product(original, model, feeds)
    assert product.problem == ""
    assert product.name == "layer_quant"
    assert product.depth == 136
    assert product.elements == 7 * 2 * 3 * 136
    assert product.skipped == 0
    check_tight(product, b_error=0.01, noise=-34)


def test_generated_inputs() -> None:
    original, model, _ = case(given=[])
    assert ort_dynq.verify(original, model).passed


# The reference


FUNCTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "others": {"activations": ["HardSigmoid", "Relu", "Sigmoid"] * 2, "clip": 2.0},
    "numbers": {
        "activations": ["HardSigmoid", "Tanh", "HardSigmoid"] * 2,
        "activation_alpha": [0.25, 0.9] * 2,
        "activation_beta": [0.45, 0.1] * 2,
    },
    "coupled": {"input_forget": 1, "clip": 0.5},
    "backwards": {"direction": "reverse"},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reference(name: str) -> None:
    """Without quantization, it is ONNX Runtime's float LSTM: only rounding to float32 remains."""
    directions = 1 if name == "backwards" else 2
    model, feeds = layer("LSTM", directions, given=GIVEN, **FUNCTIONS[name])
    node = load(model).graph[0]
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer} | feeds
    arrays = {key: array.swapaxes(1, 2) if key in ("w", "r") else array for key, array in arrays.items()}
    values = [None if value is None else value.name for value in node.inputs] + ["one", None] * 2
    arrays["one"] = np.ones(1, np.float32)
    inputs = [None if each is None else ir.Value(name=each) for each in values]
    quantized = ir.Node("com.microsoft", "DynamicQuantizeLSTM", inputs, node.attributes.values(), num_outputs=3)
    found = recurrent._Steps(quantized, arrays).run(feeds["x"].astype(np.float64))
    for expected, (value, error) in zip(stock_session(model).run(None, feeds), found, strict=True):
        # Errors of all steps add up here, while a bound is for one step.
        assert decibels(value, expected) > 110
        assert np.shape(error) == value.shape


def test_bounds() -> None:
    """The error of float32 arithmetic is within the bound; that of other numbers is not."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=1000).astype(np.float32) for _ in range(3))
    wide = [Rounded(each.astype(np.float64)) for each in (a, b, c)]
    exact = (wide[0] + wide[1]) * wide[2]
    assert (np.abs((a + b) * c - exact.value) <= exact.error).all()
    assert (np.abs((a + b) * c * np.float32(1.000001) - exact.value) > exact.error).mean() > 0.9
    exact = (wide[0] * wide[1]).after(np.tanh)
    assert (np.abs(np.tanh(a * b) - exact.value) <= exact.error).all()
    disturbed = Rounded(exact.value, 1e-3).after(np.exp)
    assert (np.abs(np.exp(exact.value + 1e-3) - disturbed.value) <= disturbed.error).all()
    assert (np.abs(np.exp(exact.value + 2e-3) - disturbed.value) > disturbed.error).all()


def test_reference_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If both the rewrite and the verification misread the gates, A's result shows it."""
    original, model, feeds = case()
    correct = recurrent._Steps._gates

    def in_another_order(*arguments: Any) -> Rounded:
        i, o, f, g = zip(*(np.split(each, 4, 1) for each in correct(*arguments)), strict=True)
        return Rounded(*(np.concatenate(parts, 1) for parts in zip(i, f, o, g, strict=True)))

    monkeypatch.setattr(recurrent._Steps, "_gates", in_another_order)
    assert verified_product(original, model, feeds).problem.startswith("A's states are")


# Wrong models


def edit(model: onnx.ModelProto, position: int, change: Callable[[Array], None]) -> None:
    """Changes a constant input of QuantizedRecurrence."""
    node = next(each for each in model.graph.node if each.op_type == "QuantizedRecurrence")
    tensor = next(each for each in model.graph.initializer if each.name == node.input[position])
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def change_code(array: Array) -> None:
    array[1, 3, 2, 5, 1] ^= 8


def change_number(array: Array) -> None:
    array[0, 7] += 0.001


def change_scale(array: Array) -> None:
    array[0, 7] *= 1.01


@pytest.mark.parametrize(
    ("position", "change"), [(1, change_code), (2, change_scale), (4, change_number), (8, change_number)]
)
def test_wrong_number(position: int, change: Callable[[Array], None]) -> None:
    original, model, feeds = case()
    edit(model, position, change)
    assert verified_product(original, model, feeds).problem.startswith("B's error is")


def replaced(model: onnx.ModelProto, name: str, old: Any, new: Any) -> None:
    node = next(each for each in model.graph.node if each.op_type == "QuantizedRecurrence")
    attribute = next(each for each in node.attribute if each.name == name)
    before = helper.get_attribute_value(attribute)
    after = before.decode().replace(old, new) if isinstance(before, bytes) else new
    assert after != before
    attribute.CopyFrom(helper.make_attribute(name, after))


def test_wrong_cell() -> None:
    """The forget gate and the output gate change places: as a program, or as a branch of the function."""
    original, model, feeds = case(given=[])
    replaced(model, "program", "Sigmoid(tensor3)", "Sigmoid(tensor2)")
    assert verified_product(original, model, feeds).problem.startswith("B's error is")


def test_wrong_direction() -> None:
    original, model, feeds = case(1)
    replaced(model, "direction", 0, 1)
    assert verified_product(original, model, feeds).problem.startswith("B's error is")


@pytest.mark.parametrize("position", [5, 6, 7])
def test_input_that_is_not_read(position: int) -> None:
    """First states and lengths are taken from another input."""
    original, model, feeds = case()
    node = next(each for each in model.graph.node if each.op_type == "QuantizedRecurrence")
    if position == 7:
        model.graph.initializer.append(numpy_helper.from_array(np.full(1, 7, np.int32), "other"))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 1, 1), np.float32), "other"))
    node.input[position] = "other"
    assert verified_product(original, model, feeds).problem.startswith("B's error is")


def test_wrong_steps() -> None:
    """A coarser step of the inputs is found."""
    original, model, feeds = case()
    (inputs,) = (node for node in model.graph.node if node.op_type == "RowProgram")
    (text,) = (each for each in inputs.attribute if each.name == "program")
    text.s = text.s.replace(b"r1), 255.0)", b"r1), 60.0)")
    assert verified_product(original, model, feeds).problem.startswith("B's inputs are further from A's")


def test_other_layer_in_a() -> None:
    """A has a float LSTM, which B was not made from."""
    float_model, feeds = layer("LSTM", given=[])
    model = ort_dynq.rewrite(dynamic(float_model)).to_proto()
    assert verified_product(float_model, model, feeds).problem == "A has no such float product"


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_inputs_that_are_not_finite(special: float) -> None:
    """Steps from this one on are not compared, in this sequence; the others are."""
    original, model, feeds = case(1, given=[])
    feeds["x"][4, 1, 3] = special
    found = ort_dynq.verify(original, model, inputs=feeds)
    (product,) = found.products
    assert product.problem == ""
    assert product.skipped < product.elements


# CPUs without VNNI


def test_exact_form() -> None:
    """The form that does not saturate computes the same where nothing saturates: weights of up to 64."""
    original, _, feeds = case()
    for each in original.graph.initializer:
        array = numpy_helper.to_array(each)
        if array.dtype == np.int8:
            each.CopyFrom(numpy_helper.from_array((array // 2).astype(np.int8), each.name))
    changed, count = without_saturation(original)
    assert count == 1
    assert isinstance(changed, ir.Model)
    sessions = (
        open_session(content.SerializeToString(), session_options(optimize=False))
        for content in (original, to_proto(changed))
    )
    for one, two in zip(*(session.run(None, feeds) for session in sessions), strict=True):
        assert_same(np.asarray(one), np.asarray(two))
