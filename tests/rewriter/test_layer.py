"""Layers of DynamicQuantizeLSTM: weights, outputs, and layers one after the other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import assert_same, diagonals
from lstm_models import change, rewritten, run, unconverted
from onnx import TensorProto, helper, numpy_helper
from recurrence import dynamic, layer

import ort_dynq


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


@pytest.mark.parametrize(("zero_point", "per_channel"), diagonals(1, [128, 127], [False, True]))
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


def test_weights_that_do_not_fit() -> None:
    model = dynamic(layer("LSTM")[0])
    for each in list(model.graph.initializer):
        if (array := numpy_helper.to_array(each)).dtype == np.int8:
            change(model, each.name, np.full(array.shape, 7 if array.size == 1 else 255, np.uint8))
    assert "not a matrix of integers of 8 bits" in unconverted(model)
