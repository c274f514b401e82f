"""Weights, attributes and geometry of convolutions: which become QuantizedConv."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from convolution_models import CONV, DYNAMIC, TAIL, C, F, M, check_converted, given, images, model_of, weights_of
from rewriting import check, found

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("zero_points", ["(q, w)", "(q, w, z)", "(q, w, z, wz)"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_weights(dtype: str, zero_points: str) -> None:
    conv = CONV.replace("(q, w, z, wz)", zero_points)
    check_converted(model_of(DYNAMIC + conv + TAIL, given(dtype)))


ATTRIBUTES = {
    "none": ("", (3, 3)),
    "kernel_shape": ("<kernel_shape = [3, 2]>", (3, 2)),
    "pads, strides": ("<pads = [1, 0, 2, 3], strides = [3, 2]>", (3, 3)),
    "dilations": ("<dilations = [2, 3], pads = [2, 3, 2, 3]>", (3, 2)),
    "NOTSET": ('<auto_pad = "NOTSET", pads = [1, 1, 1, 1]>', (3, 3)),
    "VALID": ('<auto_pad = "VALID", strides = [2, 2]>', (3, 3)),
    "SAME_UPPER": ('<auto_pad = "SAME_UPPER", strides = [2, 3]>', (4, 3)),
    "SAME_LOWER": ('<auto_pad = "SAME_LOWER", strides = [2, 3]>', (4, 3)),
    "SAME_UPPER, stride longer than the kernel": ('<auto_pad = "SAME_UPPER", strides = [3, 4]>', (1, 2)),
    "group": ("<group = 2, pads = [1, 1, 1, 1]>", (3, 3)),
    "1-D": ("<pads = [2, 0], dilations = [2], strides = [3]>", (5,)),
    "1-D, 1": ("", (1,)),
    "1-D, SAME_LOWER": ('<auto_pad = "SAME_LOWER">', (2,)),
    "3-D": ("<pads = [1, 0, 1, 0, 1, 2], strides = [1, 2, 1]>", (3, 2, 2)),
    "3-D, SAME_UPPER, group": ('<auto_pad = "SAME_UPPER", group = 2, strides = [2, 2, 1]>', (2, 3, 2)),
}


@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_attributes(attributes: str) -> None:
    text, kernel = ATTRIBUTES[attributes]
    constants = given("int8", kernel, C // 2 if "group" in text else C)
    model = model_of(DYNAMIC + f"i = ConvInteger{text}(q, w, z, wz)\n f = Cast<to = 1>(i)\n" + TAIL, constants,
                     rank=2 + len(kernel))  # fmt: skip
    check_converted(model, images(2, C, *(9, 8, 7)[: len(kernel)]), images(1, C, *(7, 11, 5)[: len(kernel)]))


def test_depthwise() -> None:
    constants = given("uint8", (3, 3), 1) | {"w": weights_of("uint8", C, 1, 3, 3), "b": given()["b"][:, :C]}
    body = DYNAMIC + CONV.replace("<pads", f"<group = {C}, pads") + TAIL
    model = model_of(body, constants)
    check_converted(model)


def test_images_of_four_dimensions_stay() -> None:
    constants = {"w": weights_of("uint8", M, C, 1, 1, 2, 1), "wz": np.uint8(3), "ws": F(0.5)}
    body = DYNAMIC + "i = ConvInteger(q, w, z, wz)\n f = Cast<to = 1>(i)\n k = Mul(s, ws)\n y = Mul(f, k)"
    report = check(model_of(body, constants, rank=6), images(1, C, 2, 3, 4, 2))
    assert found(report) == []
    assert ["of rank 6, expected 3 to 5" in finding.reason for finding in report.unconverted] == [True]


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"pads": [1, 1]}, "the attribute pads is not a list of 4 integers"),
        ({"pads": "abcd"}, "the attribute pads is not a list of 4 integers"),
        ({"pads": [2**40] * 4}, "an attribute exceeds int32"),
        ({"strides": [0, 1]}, "strides, dilations or group is not valid"),
        ({"kernel_shape": [3, 2]}, "kernel_shape is not the shape of the weights"),
        ({"group": 4}, "strides, dilations or group is not valid"),
        ({"group": 1.5}, "group or auto_pad is not valid"),
        ({"auto_pad": "SAME"}, "group or auto_pad is not valid"),
    ],
)
def test_attributes_that_are_not_valid(attributes: dict[str, Any], reason: str) -> None:
    """ONNX Runtime refuses these models, too."""
    model = model_of(DYNAMIC + "i = ConvInteger(q, w, z, wz)\n f = Cast<to = 1>(i)\n" + TAIL, given())
    (node,) = (node for node in model.graph.node if node.op_type == "ConvInteger")
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    assert [reason in finding.reason for finding in rewrite(model).report.unconverted] == [True]
