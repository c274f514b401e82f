"""Products of quantize_dynamic with sums that saturate on CPUs without VNNI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
from helpers import Array, make_session, stock_session
from onnx import numpy_helper

F = np.float32
DEPTH, COLUMNS = 64, 48
QUANTIZE = "q, s, z = DynamicQuantizeLinear(x)"
SCALED = "c = Cast<to = 1>(i) t = Mul(s, ws) {} = Mul(c, t)"
FORMS = {
    "product": f"{QUANTIZE} i = MatMulInteger(q, w, z, wz) {SCALED.format('y')}",
    "product and bias": f"{QUANTIZE} i = MatMulInteger(q, w, z, wz) {SCALED.format('m')} y = Add(m, b)",
    "DynamicQuantizeMatMul": "y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, wz, b)",
    "DynamicQuantizeMatMul without bias": "y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, wz)",
    "MatMulIntegerToFloat": f"{QUANTIZE} y = com.microsoft.MatMulIntegerToFloat(q, w, s, ws, z, wz, b)",
    "DequantizeLinear, MatMul": f"""{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 1>(w, ws, wz)
        y = MatMul(f, v)""",
    "DequantizeLinear, Gemm": f"""{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 1>(w, ws, wz)
        y = Gemm(f, v)""",
}
WEIGHTS = {  # the type, the largest magnitude of the codes minus the zero point, and whether channels have scales
    "int8": ("int8", 127, False),
    "int8 of channels": ("int8", 127, True),
    "uint8": ("uint8", 127, False),
    "uint8 of channels": ("uint8", 127, True),
    "int8 of 7 bits": ("int8", 64, True),
}


def model_of(text: str, inputs: str, outputs: str = "float[] y", **constants: Array) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {text} }}")
    used = {name for node in model.graph.node for name in node.input}
    tensors = [numpy_helper.from_array(each, name) for name, each in constants.items() if name in used]
    model.graph.initializer.extend(tensors)
    return model


def activation(*shape: int) -> Array:
    """Returns integers from -100 to 155, most of them at the ends: their codes are 100 larger, and the scale is 1."""
    rng = np.random.default_rng(1)
    x = np.where(rng.random(shape) < 0.8, rng.choice([-100, 155], shape), rng.integers(-100, 156, shape)).astype(F)
    x.reshape(-1)[:2] = -100, 155
    return x


def weights(kind: str, columns: int = COLUMNS) -> dict[str, Array]:
    """Returns weights, most of them as large as possible, their scales and zero points, and a bias."""
    rng = np.random.default_rng(2)
    dtype, largest, of_channels = WEIGHTS[kind]
    codes = np.where(rng.random((DEPTH, columns)) < 0.8, largest, rng.integers(-largest, largest + 1, (DEPTH, columns)))
    zero = 128 if dtype == "uint8" else 0
    size = columns if of_channels else ()
    return {
        "w": (codes + zero).astype(dtype),
        "wz": np.full(size, zero, dtype),
        "ws": np.asarray(rng.uniform(0.001, 0.1, size), F),
        "b": rng.normal(size=columns).astype(F),
    }


def sums(x: Array, constants: dict[str, Array]) -> Array:
    return np.asarray(x.astype(np.int64) @ (constants["w"].astype(np.int64) - constants["wz"].astype(np.int64)))


def sessions(model: onnx.ModelProto, turn: int) -> list[Any]:
    """Two sessions of a rewritten model: the usual one, and one without optimizations, the plugin or the library."""
    others: list[Callable[[], Any]] = [
        lambda: stock_session(model, optimize=True),
        lambda: make_session(model, "native"),
        lambda: stock_session(model),
        lambda: make_session(model, "extensions"),
    ]
    return [make_session(model, "native", optimize=True), others[turn % len(others)]()]
