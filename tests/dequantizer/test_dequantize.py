"""`ort_dynq.dequantize`: float models of quantized ones, with the weights that DequantizeLinear computes."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import Array, pairwise, stock_session
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader
from rewriting import MODELS, data_sets, parse

import ort_dynq
from ort_dynq import DynqError, dequantize
from ort_dynq.rewriter.reasons import Reason

F = np.float32
RNG = np.random.default_rng(0)
FLOAT = {
    "matrices": ("h = MatMul(x, w1) h1 = Add(h, b1) a = Relu(h1) y = MatMul(a, w2)", "float[B, 32] x"),
    "convolutions": (
        "h = Conv<pads = [1, 1, 1, 1]>(x, k1, c1) a = Relu(h) y = Conv<group = 2, strides = [2, 2]>(a, k2)",
        "float[1, 8, 12, 12] x",
    ),
    "gemm": ("h = Gemm<transB = 1>(x, w3, b1) y = Tanh(h)", "float[B, 32] x"),
    "lstm": ("y, h, c = LSTM<hidden_size = 16>(x, wx, wh, wb)", "float[T, 1, 32] x"),
}
ARRAYS = {
    "w1": RNG.normal(0, 0.1, (32, 48)),
    "b1": RNG.normal(0, 0.1, 48),
    "w2": RNG.normal(0, 0.1, (48, 24)),
    "w3": RNG.normal(0, 0.1, (48, 32)),
    "k1": RNG.normal(0, 0.1, (16, 8, 3, 3)),
    "c1": RNG.normal(0, 0.1, 16),
    "k2": RNG.normal(0, 0.1, (4, 8, 3, 3)),
    "wx": RNG.normal(0, 0.1, (1, 64, 32)),
    "wh": RNG.normal(0, 0.1, (1, 64, 16)),
    "wb": RNG.normal(0, 0.1, (1, 128)),
}


def float_model(name: str) -> onnx.ModelProto:
    body, inputs = FLOAT[name]
    model = parse(body, inputs=inputs, opset=17)
    used = {each for node in model.graph.node for each in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, F), each) for each, array in ARRAYS.items() if each in used
    )
    return model


def data_of(model: onnx.ModelProto) -> dict[str, Array]:
    shape = [dim.dim_value or 5 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": RNG.normal(0, 1, shape).astype(F)}


def quantized(name: str, folder: Path, kind: str, **options: object) -> onnx.ModelProto:
    source, target = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(float_model(name), source)
    if kind == "dynamic":
        quantize_dynamic(source, target, **options)
    else:

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            sets = iter([data_of(float_model(name))])

            def get_next(self) -> dict[str, Array] | None:
                return next(self.sets, None)

        quantize_static(source, target, Reader(), quant_format=QuantFormat.QDQ, **options)
    return onnx.load(target)


def initializers(model: onnx.ModelProto) -> dict[str, Array]:
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def snr(expected: Array, actual: Array) -> float:
    """Returns a signal-to-noise ratio in decibels."""
    noise = np.square((actual - expected).astype(np.float64)).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / noise)) if noise else np.inf


def weights_of(model: onnx.ModelProto) -> list[Array]:
    """Returns what the products of a float model, or of one with QDQ weights, multiply by."""
    arrays = initializers(model)
    model = copy.deepcopy(model)
    names = [node.input[1] for node in model.graph.node if node.op_type in ("MatMul", "Conv", "Gemm")]
    names += [each for node in model.graph.node if node.op_type == "LSTM" for each in node.input[1:3]]
    computed = [each for each in names if each not in arrays]
    model.graph.output.extend(helper.make_tensor_value_info(each, 1, None) for each in computed)
    results = stock_session(model).run(computed, data_of(model)) if computed else []
    found = arrays | dict(zip(computed, results, strict=True))
    return [found[each] for each in names]


def reference(codes: Array, scale: Array, zero_point: Array, axis: int) -> Array:
    """Returns what stock ONNX Runtime's DequantizeLinear computes."""
    attributes = {"axis": axis} if scale.ndim else {}
    node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, None)])
    graph.initializer.extend(
        numpy_helper.from_array(each, name) for name, each in (("q", codes), ("s", scale), ("z", zero_point))
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (result,) = stock_session(model).run(None, {})
    return np.asarray(result)


@pytest.mark.parametrize(
    ("form", "per_channel", "weight_type", "name"),
    pairwise(
        ["float", "qdq"],
        [False, True],
        [QuantType.QInt8, QuantType.QUInt8],
        ["matrices", "convolutions", "gemm", "lstm"],
    ),
)
def test_quantize_dynamic(name: str, weight_type: QuantType, per_channel: bool, form: str, tmp_path: Path) -> None:
    """The weights are those of DequantizeLinear bit for bit, and the outputs near those of the float model."""
    model = quantized(name, tmp_path, "dynamic", weight_type=weight_type, per_channel=per_channel)
    result = dequantize(model, weights_form=form)
    assert not result.report.unconverted
    restored = result.to_proto()
    onnx.checker.check_model(restored)
    assert not {"MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"} & {
        each.op_type for each in restored.graph.node
    }
    assert all(not node.metadata_props for node in restored.graph.node)
    assert ("DequantizeLinear" in [each.op_type for each in restored.graph.node]) == (form == "qdq" and name != "lstm")
    arrays = initializers(model)
    for given in weights_of(restored):
        found = []
        for key, codes in arrays.items():
            if not key.endswith("_quantized"):
                continue
            stem = key.removesuffix("_quantized")
            scale, zero_point = arrays[f"{stem}_scale"], arrays[f"{stem}_zero_point"]
            if name == "lstm":
                scale, zero_point, axis = scale.reshape(-1), zero_point.reshape(-1), 2
                scale, zero_point = (each.reshape(()) if each.size == 1 else each for each in (scale, zero_point))
            else:
                axis = 0 if name == "convolutions" else 1
            found.append(reference(codes, scale, zero_point, axis))
        assert any(np.array_equal(given, each) or np.array_equal(given, each.swapaxes(-1, -2)) for each in found)
    original, inputs = float_model(name), data_of(model)
    expected, actual = (stock_session(each).run(None, inputs)[0] for each in (original, restored))
    assert snr(expected, actual) > 30


@pytest.mark.parametrize("form", ["float", "qdq"])
@pytest.mark.parametrize("name", ["matrices", "convolutions"])
def test_quantize_static(name: str, form: str, tmp_path: Path) -> None:
    model = quantized(name, tmp_path, "static", per_channel=True)
    restored = dequantize(model, weights_form=form).to_proto()
    operators = [each.op_type for each in restored.graph.node]
    assert "QuantizeLinear" not in operators
    assert ("DequantizeLinear" in operators) == (form == "qdq")
    assert "Relu" not in operators  # the codes were its bounds
    inputs = data_of(model)
    expected, actual = (stock_session(each).run(None, inputs)[0] for each in (float_model(name), restored))
    assert snr(expected, actual) > 15  # calibrated on other data


NEAR = {
    "ort_nbits": 20,
    "ort_dequantized_weights": 20,
    "torch_token": 30,
    "torch_token_asymmetric": 25,
    "torchao_8da8w_group": 30,
    "torch_group_product": 30,
    "integer_token_s8": 30,
    "dynamic_quantize_dequantize": 30,
    "ort_dynamic_mobile": 25,
    "ort_dynamic_lstm": 25,
}


@pytest.mark.parametrize("name", NEAR)
def test_models(name: str) -> None:
    """Stock ONNX Runtime runs the result: its outputs are near those of the quantized model."""
    result = dequantize(MODELS / name / "model.onnx")
    assert not result.report.unconverted
    for inputs, outputs in data_sets(name):
        session = stock_session(result.to_proto())
        for output, actual in zip(session.get_outputs(), session.run(None, inputs), strict=True):
            if output.type == "tensor(float)":
                assert snr(outputs[output.name], actual) > NEAR[name], output.name


def test_numbers_of_few_bits_are_those_of_the_product() -> None:
    """A MatMulNBits of a unit matrix is its weights, in float32."""
    model = onnx.load(MODELS / "ort_nbits" / "model.onnx")
    restored = initializers(dequantize(model).to_proto())
    for node in [each for each in model.graph.node if each.op_type == "MatMulNBits"]:
        depth = next(each.i for each in node.attribute if each.name == "K")
        attributes = [each for each in node.attribute if each.name != "accuracy_level"]
        alone = helper.make_node("MatMulNBits", ["x", *node.input[1:4]], ["y"], domain="com.microsoft")
        alone.attribute.extend(attributes)
        graph = helper.make_graph(
            [alone],
            "g",
            [helper.make_tensor_value_info("x", 1, [depth, depth])],
            [helper.make_tensor_value_info("y", 1, None)],
        )
        graph.initializer.extend(each for each in model.graph.initializer if each.name in node.input[1:4])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        unit = stock_session(helper.make_model(graph, opset_imports=opsets, ir_version=8))
        (weights,) = unit.run(None, {"x": np.eye(depth, dtype=F)})
        assert any(np.array_equal(weights, each) for each in restored.values())


def test_zero_points_of_run_time() -> None:
    """Without their zero points, the weights of few bits are not known."""
    model = onnx.load(MODELS / "ort_nbits" / "model.onnx")
    (points,) = (each for each in model.graph.initializer if each.name == "w1_zero_points")
    model.graph.initializer.remove(points)
    model.graph.input.append(helper.make_tensor_value_info(points.name, points.data_type, points.dims))
    found = dequantize(model).report.unconverted
    reasons = [each.unconverted.reason for each in found if each.unconverted is not None]
    assert reasons == [Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME]


def test_what_stays_has_a_reason() -> None:
    report = dequantize(MODELS / "ort_int8" / "model.onnx").report
    assert report.summary == "0 nodes dequantized, 4 stay"
    reasons = {each.unconverted.reason for each in report.unconverted if each.unconverted is not None}
    assert reasons == {Reason.NO_FLOAT_FORM}


def test_models_that_are_no_quantized_ones(tmp_path: Path) -> None:
    with pytest.raises(DynqError, match="it is a float model already"):
        dequantize(float_model("matrices"))
    with pytest.raises(DynqError, match="give the model that was rewritten, or the float model"):
        dequantize(ort_dynq.rewrite(MODELS / "torch_token" / "model.onnx").to_proto())
    with pytest.raises(DynqError, match="weights_form is 'int8', expected one of float, qdq"):
        dequantize(float_model("matrices"), weights_form="int8")


def test_a_quantization_of_the_result() -> None:
    """It is a float model like any other."""
    model = onnx.load(MODELS / "ort_dequantized_weights" / "model.onnx")
    result = ort_dynq.quantize(dequantize(model).to_proto())
    layers = [each for each in result.report.rewritten if each.op_type == "MatMul"]
    assert [each.unconverted for each in layers] == [None, None]
