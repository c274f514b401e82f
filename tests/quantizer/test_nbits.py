"""MatMulNBits in quantize: the weights stay, and the activation gets 8 bits in their blocks, at each accuracy level."""

from __future__ import annotations

import nbits
import numpy as np
import onnx
import pytest
import qmoe
from helpers import assert_same
from onnx import TensorProto, helper, numpy_helper
from quantizing import operators, reasons

import ort_dynq


@pytest.mark.parametrize(
    ("bits", "level", "half"), [(4, 0, False), (4, None, True), (8, 1, False), (4, 4, False), (2, 0, True)]
)
def test_products_equal_the_definition(bits: int, level: int | None, half: bool) -> None:
    case = nbits.make(bits=bits, level=level, half=half)
    result = ort_dynq.quantize(case.model)
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 1}
    assert_same(nbits.run(result.to_proto(), case.x), nbits.in_blocks(case))


def test_a_layer_of_floats_beside_it() -> None:
    case = nbits.make(columns=128)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.node[0].output[0] = "h"
    model.graph.node.append(helper.make_node("MatMul", ["h", "w"], ["y"], name="head"))
    weights = np.random.default_rng(0).standard_normal((128, 192), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 2, "QuantizedMatMul": 2}
    assert "MatMulNBits" not in result.report.after
    nbits.run(result.to_proto(), case.x)


def test_excluded() -> None:
    model = nbits.make(level=0).model
    name = model.graph.node[0].name or model.graph.node[0].output[0]
    assert reasons(ort_dynq.quantize(model, exclude=[name])) == [f"excluded by {name}"]


@pytest.mark.parametrize("level", [0, 4])
def test_two_terms(level: int) -> None:
    """Also at level 4, where ONNX Runtime quantizes the activation itself."""
    case = nbits.make(level=level, columns=1024)
    result = ort_dynq.quantize(case.model, activations="two-term")
    assert operators(result) == {"TwoTermQuantize": 1, "QuantizedMatMul": 1}
    assert nbits.noise(nbits.run(result.to_proto(), case.x), case.reference) > 80


def test_min_snr() -> None:
    """The noise of the product is measured, and its activation may get two terms, or it may stay."""
    case = nbits.make(level=0, columns=1024)
    data = {"x": case.x}
    for wanted, operator in ((20, "RowProgram"), (70, "TwoTermQuantize")):
        result = ort_dynq.quantize(case.model, min_snr=wanted, data=data)
        assert operators(result) == {operator: 1, "QuantizedMatMul": 1}
    with pytest.raises(ort_dynq.DynqError, match="choose a smaller one"):
        ort_dynq.quantize(case.model, min_snr=200, data=data)


def test_mixtures_of_experts_stay() -> None:
    """With the advice to use rewrite, which takes the result."""
    model = qmoe.make().model
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((qmoe.HIDDEN, 1024), np.float32), "w")
    model.graph.initializer.append(weights)
    model.graph.node.append(helper.make_node("MatMul", ["y", "w"], ["z"], name="head"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["tokens", 1024]))
    result = ort_dynq.quantize(model)
    (reason,) = reasons(result)
    assert "ort-dynq rewrite" in reason
    rewritten = ort_dynq.rewrite(result.to_proto()).report
    assert [each.operator for each in rewritten.rewritten] == ["QuantizedExperts"]


def test_no_weights() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    with pytest.raises(
        ort_dynq.DynqError, match="no MatMul, Gemm, Einsum, Conv, LSTM, GRU, RNN, MatMulNBits or Gather has"
    ):
        ort_dynq.quantize(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
