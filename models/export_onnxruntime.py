"""Writes models of ONNX Runtime's own quantizer, with activations that are quantized at run time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from _common import Example, activations, grid_weights, main, parse
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.quant_utils import QuantizationMode
from onnxruntime.quantization.registry import IntegerOpsRegistry

INT8_RANGE = "fixed_quantization_range_int8"


def mlp(opset: int) -> onnx.ModelProto:
    """Two linear layers in float32."""
    rng = np.random.default_rng(7)
    return parse(
        """mlp (float[batch, tokens, 20] x) => (float[batch, tokens, 7] y) {
            h = MatMul(x, w1)  h1 = Add(h, b1)  a = Relu(h1)  o = MatMul(a, w2)  y = Add(o, b2)
        }""",
        opset,
        w1=grid_weights(rng, 20, 13),
        b1=grid_weights(rng, 13),
        w2=grid_weights(rng, 13, 7),
        b2=grid_weights(rng, 7),
    )


def convolutions(opset: int) -> onnx.ModelProto:
    """Two convolutions in float32."""
    rng = np.random.default_rng(8)
    return parse(
        """convolutions (float[batch, 3, 9, 11] x) => (float[batch, 7, 4, 5] y) {
            h = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)  a = Relu(h)  y = Conv<strides = [2, 2]>(a, w2, b2)
        }""",
        opset,
        w1=grid_weights(rng, 5, 3, 3, 3),
        b1=grid_weights(rng, 5),
        w2=grid_weights(rng, 7, 5, 3, 3),
        b2=grid_weights(rng, 7),
    )


def dynamic(model: onnx.ModelProto, x: Any, **options: Any) -> Example:
    """Quantizes `model` with onnxruntime.quantization.quantize_dynamic."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(model, path, **options)
        return Example(onnx.load(path), [x])


def quantizer(opset: int, activation: QuantType, int8_range: float | None = None) -> Example:
    """Quantizes `mlp` with ONNXQuantizer, which supports activation types that quantize_dynamic does not.

    `int8_range` replaces the divisor of int8 scales. Correct is 127.5, but version 1.31.1 computes 127 - (-128) in int8
    and writes -0.5.
    """
    model = ONNXQuantizer(
        mlp(opset),
        False,  # per_channel
        False,  # reduce_range
        QuantizationMode.IntegerOps,
        False,  # static
        QuantType.QInt8,
        activation,
        None,  # tensors_range
        [],
        [],
        list(IntegerOpsRegistry),
        {"MatMulConstBOnly": True},
    )
    model.quantize_model()
    quantized = model.model.model
    for initializer in quantized.graph.initializer:
        if initializer.name == INT8_RANGE and int8_range is not None:
            initializer.CopyFrom(numpy_helper.from_array(np.array(int8_range, dtype=np.float32), INT8_RANGE))
    return Example(quantized, [X])


X = activations(2, 7, 20, high=16.0, tensor=True)
IMAGE = activations(2, 3, 9, 11, high=16.0, tensor=True)

MODELS: dict[str, Callable[[], Example]] = {
    "ort_dynamic": lambda: dynamic(mlp(20), X, weight_type=QuantType.QInt8),
    "ort_dynamic_channel": lambda: dynamic(mlp(17), X, weight_type=QuantType.QUInt8, per_channel=True),
    "ort_dynamic_conv": lambda: dynamic(convolutions(20), IMAGE, weight_type=QuantType.QUInt8),
    "ort_int8": partial(quantizer, 17, QuantType.QInt8, 127.5),
    "ort_int8_negative": partial(quantizer, 17, QuantType.QInt8),
    "ort_uint8_opset10": partial(quantizer, 10, QuantType.QUInt8),
}

if __name__ == "__main__":
    main(MODELS)
