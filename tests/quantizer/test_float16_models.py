"""Float16 models: layers compute in float32, their inputs and outputs stay float16."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import TensorProto, helper
from quantizing import F, K, N, activations, by_definition, floats, model_of, operators, reasons, weights_by_definition

import ort_dynq
from ort_dynq.accuracy import Reference, measure
from ort_dynq.rewriter import Result
from ort_dynq.rewriter.float16 import casts

H = np.float16
X = activations(9, K).astype(H)
W, V, BIAS = floats(K, N, seed=3).astype(H), floats(N, N, seed=5).astype(H), floats(N, seed=4).astype(H)
TWO = [
    helper.make_node("MatMul", ["x", "w"], ["p"], name="first"),
    helper.make_node("Add", ["p", "b"], ["h"]),
    helper.make_node("Relu", ["h"], ["r"]),
    helper.make_node("MatMul", ["r", "v"], ["y"], name="second"),
]


def half(
    nodes: list[onnx.NodeProto], constants: dict[str, Array], shape: tuple[int | str, ...] = ("M", K)
) -> onnx.ModelProto:
    model = model_of(nodes, constants, shape=shape, type_=TensorProto.FLOAT16)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def run(result: Result, x: Array) -> Array:
    """The output with the plugin, which is also that without it, bit for bit."""
    content = result.to_proto()
    onnx.checker.check_model(content)
    (actual,), (stock,) = (
        each.run(None, {"x": x}) for each in (make_session(content, "native"), stock_session(content))
    )
    assert_same(np.asarray(actual), np.asarray(stock))
    return np.asarray(actual)


def snr(actual: Array, expected: Array) -> float:
    wide = expected.astype(np.float64)
    return float(10 * np.log10((wide**2).sum() / ((actual - wide) ** 2).sum()))


@pytest.mark.parametrize("form", ["Gemm", "MatMul"])
def test_operators_take_and_give_float16(form: str) -> None:
    gemm = [helper.make_node("Gemm", ["x", "w", "b"], ["y"])]
    product = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    result = ort_dynq.quantize(half(gemm if form == "Gemm" else product, {"w": W, "b": BIAS}))
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 1}
    assert "Cast" not in result.report.after
    expected = by_definition(X.astype(F)) @ weights_by_definition(W.astype(F)) + BIAS
    error = np.abs(run(result, X) - expected)
    # One rounding to float16, of a result that has a few roundings of float32.
    assert (error <= np.spacing(np.abs(expected).astype(H)) * 0.5001 + 2.0**-21 * np.abs(expected).max()).all()


def test_layers_between_float32_nodes() -> None:
    """ONNX Runtime rounds nothing between these nodes, and neither does the quantized model."""
    model = half(TWO, {"w": W, "b": BIAS, "v": V})
    result = ort_dynq.quantize(model)
    assert operators(result)["QuantizedMatMul"] + operators(result)["QuantizedMatMulProgram"] == 2
    assert reasons(result) == []
    wide = ort_dynq.quantize(model_of(TWO, {"w": W.astype(F), "b": BIAS.astype(F), "v": V.astype(F)}))
    (expected,) = make_session(wide.to_proto(), "native").run(None, {"x": X.astype(F)})
    assert_same(run(result, X), np.asarray(expected).astype(H))


def test_a_layer_that_stays() -> None:
    result = ort_dynq.quantize(half(TWO, {"w": W, "b": BIAS, "v": V}), exclude=["first"])
    assert reasons(result) == ["excluded by first"]
    run(result, X)


@pytest.mark.parametrize("activations", ["token", "two-term"])
def test_reasons_if_no_layer_is_quantized(activations: str) -> None:
    """They are those of the float32 model, not the type."""
    w = floats(16, 16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    result = ort_dynq.quantize(half(nodes, {"w": w.astype(H)}, ("M", 16)), activations=activations)
    wide = ort_dynq.quantize(model_of(nodes, {"w": w}, shape=("M", 16)), activations=activations)
    assert reasons(result) == reasons(wide)
    assert [text for text in reasons(result) if "too few" in text]


def test_where_onnxruntime_computes_products_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 64-bit ARM it has such kernels. Here its graph is not known: Casts are written around the layers alone."""
    monkeypatch.setattr(casts, "saved_by_onnxruntime", lambda model: None)
    model = half(TWO, {"w": W, "b": BIAS, "v": V})
    result = ort_dynq.quantize(model)
    assert operators(result)["QuantizedMatMul"] == 2
    assert reasons(result) == []
    assert snr(run(result, X), stock_session(model).run(None, {"x": X})[0]) > 35


def test_subgraphs() -> None:
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT16, None)],
    )
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    model = half([node], {"w": W, "flag": np.array(True)})
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))  # a session may override it
    result = ort_dynq.quantize(model)
    assert operators(result)["QuantizedMatMul"] == 2
    run(result, X)


def test_accuracy_of_layers() -> None:
    """A's values are those that ONNX Runtime computes in float32, so that each layer has them."""
    model = half(TWO, {"w": W, "b": BIAS, "v": V})
    result = ort_dynq.quantize(model)
    found = measure(Reference(model, {"x": X}), result.model)
    ratios = {each.name: each.output_snr_db for each in found.layers}
    assert set(ratios) == {"first", "second"}
    assert all(ratio is not None and ratio > 30 for ratio in ratios.values())
