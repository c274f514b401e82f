"""Models with constant scales: their weights stay, and their activations are quantized at run time, within bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import Array, stock_session
from onnx import TensorProto, helper
from quantizing import (
    F,
    K,
    N,
    activations,
    by_definition,
    floats,
    model_of,
    operators,
    product,
    reasons,
    run,
    squared_error,
)

import ort_dynq
from ort_dynq import DynqError

X = activations(9, K)
CODES, SCALES = np.random.default_rng(5).integers(-127, 128, (K, N)).astype(np.int8), np.abs(floats(N, seed=6))
WEIGHTS = {"codes": CODES, "scales": SCALES}
DEQUANTIZE = helper.make_node("DequantizeLinear", ["codes", "scales"], ["w"], axis=1)
MATMUL = helper.make_node("MatMul", ["d", "w"], ["y"], name="layer")
DEQUANTIZED = CODES * SCALES.astype(np.float64)


def pair(x: str, d: str, q: str = "q", scale: str = "s", zero: str = "z") -> list[onnx.NodeProto]:
    """QuantizeLinear and DequantizeLinear of x."""
    return [
        helper.make_node("QuantizeLinear", [x, scale, zero], [q]),
        helper.make_node("DequantizeLinear", [q, scale, zero], [d]),
    ]


def close(actual: Array, expected: Array) -> bool:
    return bool((np.abs(actual - expected) <= 2.0**-20 * np.abs(expected).max()).all())


@pytest.mark.parametrize(
    "zero", [np.uint8(0), np.uint8(100), np.int8(-128), np.int8(20), np.uint16(30000)], ids=lambda each: repr(each)
)
def test_activations_stay_within_the_bounds_of_their_codes(zero: np.generic) -> None:
    """A zero point at the end of the range stands for a Relu, which quantize_static removes."""
    scale = F(2.0**-14 if zero.dtype == np.uint16 else 0.02)
    constants = {**WEIGHTS, "s": np.array(scale), "z": np.array(zero)}
    result = ort_dynq.quantize(model_of([*pair("x", "d"), DEQUANTIZE, MATMUL], constants, opset=21), from_static=True)
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 1}
    limits = np.iinfo(zero.dtype)
    low, high = ((each - int(zero)) * scale for each in (limits.min, limits.max))
    assert (low > X).any()
    assert (high < X).any()
    assert close(run(result, X), by_definition(np.clip(X, F(low), F(high))) @ DEQUANTIZED)


def test_one_clip_for_several_readers_and_for_what_only_moves() -> None:
    nodes = [
        *pair("x", "d"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d2"]),
        DEQUANTIZE,
        MATMUL,
        helper.make_node("MatMul", ["t", "w"], ["y2"]),
        helper.make_node("Reshape", ["d2", "shape"], ["r"]),
        *pair("r", "t", "q2"),
    ]
    nodes = [*nodes[:4], nodes[6], *nodes[7:], *nodes[4:6]]
    nodes = [each for each in nodes if each.output[0] != "y"]
    nodes += [helper.make_node("MatMul", ["d", "w"], ["y1"]), helper.make_node("Add", ["y1", "y2"], ["y"])]
    constants = {**WEIGHTS, "s": np.array(F(0.02)), "z": np.array(np.uint8(9)), "shape": np.array([-1, K])}
    result = ort_dynq.quantize(model_of(nodes, constants), from_static=True)
    assert result.report.after["Clip"] == 1
    assert "QuantizeLinear" not in result.report.after
    clipped = by_definition(np.clip(X, F(-9 * F(0.02)), F(246 * F(0.02))))
    assert close(run(result, X), 2 * (clipped @ DEQUANTIZED))


def test_outputs() -> None:
    """An activation that is an output, and read by a layer, keeps its name."""
    model = model_of(
        [*pair("x", "d"), DEQUANTIZE, MATMUL], {**WEIGHTS, "s": np.array(F(0.02)), "z": np.array(np.uint8(9))}
    )
    model.graph.output.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, None))
    result = ort_dynq.quantize(model, from_static=True)
    names = [each.name for each in result.to_proto().graph.output]
    assert names == ["y", "d"]
    found = dict(zip(names, stock_session(result.to_proto()).run(None, {"x": X}), strict=True))
    assert np.array_equal(found["d"], np.clip(X, F(-9 * F(0.02)), F(246 * F(0.02))))


STAYING = {
    "scales of channels": [
        helper.make_node("QuantizeLinear", ["x", "ss", "zz"], ["q"], axis=1),
        helper.make_node("DequantizeLinear", ["q", "ss", "zz"], ["d"], axis=1),
    ],
    "another scale": [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s2", "z"], ["d"]),
    ],
}


@pytest.mark.parametrize("case", STAYING)
def test_other_pairs_stay(case: str) -> None:
    """The product is quantized at run time, and its activation is what the pair returns."""
    constants = {
        **WEIGHTS,
        "s": np.array(F(0.02)),
        "s2": np.array(F(0.03)),
        "z": np.array(np.uint8(9)),
        "ss": np.linspace(0.01, 0.02, K, dtype=F),
        "zz": np.full(K, 100, np.uint8),
    }
    model = model_of([*STAYING[case], DEQUANTIZE, MATMUL], constants)
    result = ort_dynq.quantize(model, from_static=True)
    assert result.report.after["QuantizeLinear"] == 1
    run(result, X)


def _of_quantize_static(model: onnx.ModelProto, folder: Path, **options: object) -> onnx.ModelProto:
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Data(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._sets = iter([{"x": activations(64, K, seed=seed)} for seed in range(4)])

        def get_next(self) -> dict[str, Array] | None:
            return next(self._sets, None)

    onnx.save(model, folder / "float.onnx")
    quantization.quantize_static(folder / "float.onnx", folder / "static.onnx", Data(), **options)
    return onnx.load(folder / "static.onnx")


@pytest.mark.filterwarnings("ignore")
def test_quantize_static(tmp_path: Path) -> None:
    """It removes the Relu. Codes of a row have fewer errors than codes of constant scales."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="first"),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"], name="second"),
    ]
    model = model_of(nodes, {"w": floats(K, N, seed=3), "v": floats(N, N)}, shape=("M", K))
    static = _of_quantize_static(model, tmp_path, weight_type=_weight_type())
    assert not any(node.op_type == "Relu" for node in static.graph.node)
    with pytest.raises(DynqError, match="--from-static"):
        ort_dynq.quantize(static)
    result = ort_dynq.quantize(static, from_static=True)
    assert operators(result)["QuantizedMatMul"] + operators(result)["QuantizedMatMulProgram"] == 2
    assert "QuantizeLinear" not in result.report.after
    x = activations(64, K, seed=2)
    expected = stock_session(model).run(None, {"x": x})[0]
    error = squared_error(run(result, x), expected)
    assert error < squared_error(stock_session(static).run(None, {"x": x})[0], expected)
    assert error < 2e-3
    assert reasons(ort_dynq.quantize(static, from_static=True, exclude=["*"])) == ["excluded by *"] * 2


def _weight_type() -> object:
    return pytest.importorskip("onnxruntime.quantization").QuantType.QInt8


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        (product(), {}, "needs a model with QuantizeLinear of constant scales, but there is none"),
        (product(), {"from_dynamic": True}, "from_dynamic and from_static are for two kinds of models"),
        (product(), {"min_snr": 30}, "a model that quantize_static made has no float layers"),
        (
            model_of([helper.make_node("QLinearAdd", ["x", "x"], ["y"], domain="com.microsoft")], {}),
            {},
            "operators with constant scales such as QLinearConv",
        ),
    ],
    ids=["float", "dynamic", "min_snr", "operators"],
)
def test_errors(model: onnx.ModelProto, options: dict[str, float], text: str) -> None:
    with pytest.raises(DynqError, match=text):
        ort_dynq.quantize(model, from_static=True, **options)
