"""Activation functions after convolutions: QuantizedConv computes Relu and Clip(0, 6)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from rewriting import check, nodes_of, rows
from test_convolutions import CONV, DYNAMIC, TAIL, C, F, given, images, model_of

from ort_dynq import verify
from ort_dynq.operators.encodings import Activation
from ort_dynq.rewriter import rewrite

SUM = TAIL.replace("y = ", "a = ")
CONSTANTS = """zero = Constant<value_float = 0.0>() six = Constant<value_float = 6.0>()
    seven = Constant<value_float = 7.0>() one = Constant<value_float = 1.0>()
"""
ACTIVATIONS = {
    "y = Relu(a)": Activation.RELU,
    "y = Clip(a, zero, six)": Activation.RELU6,
    "r = Relu(a) y = Relu(r)": Activation.RELU,
    "m = Neg(zero) y = Clip(a, m, six)": Activation.NONE,  # -0.0 stays
    "y = Clip(a, zero)": Activation.NONE,  # infinity becomes the largest finite number
    "y = Clip(a, zero, seven)": Activation.NONE,
    "y = Clip(a, one, six)": Activation.NONE,
    "r = Relu(a) y = Add(r, a)": Activation.NONE,
    "r = Sigmoid(a) y = Relu(r)": Activation.NONE,
}


def activations_of(model: onnx.ModelProto) -> list[int]:
    convs = [node for node in nodes_of(model.graph) if node.op_type == "QuantizedConv"]
    return [each.i for node in convs for each in node.attribute if each.name == "activation"]


@pytest.mark.parametrize("text", ACTIVATIONS)
def test_activations(text: str) -> None:
    """The bits stay, also for NaN, infinities, denormals and zeros."""
    large = rows((2 * C * 12, 12)).reshape(2, C, 12, 12)
    data = [large, np.full((1, C, 9, 8), np.nan, F), np.where(large == large.max(), np.inf, large)]
    data += [(large * F(1e-40)).astype(F), np.zeros((1, C, 9, 8), F)]
    model = model_of(CONSTANTS + DYNAMIC + CONV + SUM + "\n" + text, given())
    check(model, *({"x": np.asarray(x, F)} for x in data), exact=True)
    assert activations_of(rewrite(model).to_proto()) == [ACTIVATIONS[text]]


def test_a_sum_that_is_an_output_is_kept() -> None:
    model = model_of(DYNAMIC + CONV + SUM + "\n y = Relu(a)", given())
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("a"))
    check(model, images(1, C, 9, 8), exact=True)
    assert activations_of(rewrite(model).to_proto()) == [Activation.NONE]


@pytest.mark.parametrize("text", ["y = Relu(a)", "y = Clip(a, zero, six)"])
def test_verification_knows_them(text: str) -> None:
    """The sums of a float convolution are compared after the activation."""
    body = CONSTANTS + DYNAMIC + f"dx = DequantizeLinear(q, s, z)\n a = Conv(dx, w, b)\n {text}"
    constants = {"w": (given("int8")["w"] * F(0.01)).astype(F), "b": given()["b"].reshape(-1)}
    model = model_of(body, constants)
    result = rewrite(model).to_proto()
    assert activations_of(result) != [Activation.NONE]
    verified = verify(model, result, inputs=images(1, C, 9, 8))
    assert verified.passed, verified
    assert len(verified.products) == 1
    wrong = rewrite(model_of(body, constants | {"b": constants["b"] + F(1)})).to_proto()
    assert not verify(model, wrong, inputs=images(1, C, 9, 8)).passed
