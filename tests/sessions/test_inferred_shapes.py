"""The shapes that a session infers: for QuantizedMatMul the shape of src, with the last dimension of the bias."""

from __future__ import annotations

import helpers
import numpy as np
import onnx
import pytest
from cases.quantized_conv import NAMES, conv_inputs
from helpers import with_arrays

from ort_dynq.operators import packing

DEPTH, COLUMNS = 20, 3
WEIGHTS = np.arange(-30, 30, dtype=np.int8).reshape(DEPTH, COLUMNS)


def make_model(shape: str, consumer: str) -> onnx.ModelProto:
    """A product, no value_info describes its output `product`, and a node that makes `dst` of it."""
    model = helpers.parse(
        f"uint8{shape} src, float[] scale, uint8 zero_point",
        "float dst",
        f"""product = ort_dynq.QuantizedMatMul(
                src, scale, zero_point, weight, weight_zero_point, column_scale, column_sum, bias)
            dst = {consumer}""",
    )
    constants = {
        "weight": packing.pack(WEIGHTS),
        "weight_zero_point": np.int8([0]),
        "column_scale": np.ones((1, COLUMNS), np.float32),
        "column_sum": WEIGHTS.sum(0, np.int32)[None],
        "bias": np.zeros(COLUMNS, np.float32),
    }
    with_arrays(model, constants)
    model.graph.output[0].ClearField("type")
    return model


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (f"[4, {DEPTH}]", [4, COLUMNS]),
        (f"[batch, tokens, {DEPTH}]", ["batch", "tokens", COLUMNS]),
        ("[batch, 7, depth]", ["batch", 7, COLUMNS]),
        (f"[{DEPTH}]", [COLUMNS]),
        ("[depth]", [COLUMNS]),
    ],
)
@pytest.mark.parametrize("optimize", [False, True])
def test_shape_of_a_product(shape: str, expected: list[int | str], optimize: bool) -> None:
    model = make_model(shape, "Relu(product)")
    output = helpers.make_session(model, "native", optimize=optimize).get_outputs()[0]
    assert (output.type, output.shape) == ("tensor(float)", expected)


def test_shape_reaches_a_consumer_that_needs_it() -> None:
    """Transpose without perm reverses the dimensions, so its output has the product's rank."""
    session = helpers.make_session(make_model(f"[batch, tokens, {DEPTH}]", "Transpose(product)"), "native")
    assert session.get_outputs()[0].shape == [COLUMNS, "tokens", "batch"]


@pytest.mark.parametrize("unknown", ["rank", "first dimension", "last dimension"])
def test_unknown_dimensions(unknown: str) -> None:
    """Only the last dimension of src may be unknown: the product does not have it."""
    model = make_model("[]" if unknown == "rank" else f"[2, {DEPTH}]", "Transpose(product)")
    if unknown != "rank":
        model.graph.input[0].type.tensor_type.shape.dim[0 if unknown == "first dimension" else 1].Clear()
    session = helpers.make_session(model, "native")
    assert session.get_outputs()[0].shape == ([COLUMNS, 2] if unknown == "last dimension" else [])
    src = np.arange(2 * DEPTH, dtype=np.uint8).reshape(2, DEPTH)
    dst = session.run(None, {"src": src, "scale": np.float32([1]), "zero_point": np.array(0, np.uint8)})[0]
    assert np.array_equal(dst, (src.astype(np.int64) @ WEIGHTS).T)


@pytest.mark.parametrize("operator", ["ReduceAbsMax", "ReduceMinMax"])
def test_shape_of_a_reduction_is_not_that_of_src(operator: str) -> None:
    """ONNX Runtime would give the result of a later operator the memory of the smaller one, and fail."""
    other = ", high" if operator == "ReduceMinMax" else ""
    model = helpers.parse(
        "float[4, 5] src",
        "float dst",
        f"low{other} = ort_dynq.{operator}<axis = -1, keepdims = 0, reduce_others = 0>(src) dst = Relu(low)",
    )
    model.graph.output[0].ClearField("type")
    session = helpers.make_session(model, "native")
    assert session.get_outputs()[0].shape == []
    assert session.run(None, {"src": np.ones((4, 5), np.float32)})[0].shape == (4,)


def test_shape_of_a_convolution_is_not_that_of_src() -> None:
    """It depends on the values of `geometry`, which are not known while shapes are inferred."""
    inputs, _, given = conv_inputs(np.random.default_rng(0), (1, 4, 5, 5), 24, (3, 3), strides=(2, 2))
    heads = "uint8[1, 4, 5, 5] src, float scale, uint8 zero_point, int8[] weight, int8[] weight_zero_point, "
    heads += "float[24] channel_scale, int32[24] channel_sum, float[24] bias, int32[5, 2] geometry"
    attributes = ", ".join(f"{name} = {value}" for name, value in given.items())
    conv = f"ort_dynq.QuantizedConv<{attributes}>({', '.join(NAMES)})"
    model = helpers.parse(heads, "float dst", f"one = {conv} two = Relu(one) three = Neg(two) dst = Relu(three)")
    model.graph.output[0].ClearField("type")
    session = helpers.make_session(model, "native")
    assert session.get_outputs()[0].shape == []
    assert session.run(None, dict(zip(NAMES, inputs, strict=True)))[0].shape == (1, 24, 2, 2)
