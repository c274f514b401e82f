"""Models of DynamicQuantizeLSTM, and checks of their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from helpers import Array, assert_same, make_session, stock_session
from onnx import numpy_helper
from recurrence import decibels
from rewriting import operators

import ort_dynq


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


def change(model: onnx.ModelProto, name: str, array: Array) -> None:
    tensor = next(each for each in model.graph.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def unconverted(model: onnx.ModelProto, **options: Any) -> str:
    """Returns why a layer stays; its int8 weights become uint8."""
    result = ort_dynq.rewrite(model, **options)
    assert not operators(result.to_proto())
    (finding,) = result.report.findings
    return finding.note if finding.rule == "int8 weights that saturate" else finding.reason
