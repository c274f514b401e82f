"""Elementwise nodes between other layers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

C, H, W = 6, 17, 43  # rows of a channel end in a part of a vector
CONSTANTS = {
    "zero": 0.0,
    "three": 3.0,
    "six": 6.0,
    "tenth": 0.1,
    "two": 2.0,
    "number": np.array([0.37], np.float32),
    "slope": np.linspace(-0.5, 1.5, C, dtype=np.float32).reshape(C, 1, 1),
    "channel": np.linspace(-2, 2, C, dtype=np.float32).reshape(1, C, 1, 1),
    "gain": np.linspace(0.5, 2, C, dtype=np.float32),
    "shift": np.linspace(-1, 1, C, dtype=np.float32),
    "mean": np.linspace(-0.3, 0.4, C, dtype=np.float32),
    "variance": np.linspace(0.2, 3, C, dtype=np.float32),
    "column": np.linspace(-1, 3, W, dtype=np.float32),
}
HARD_SWISH = "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) h = Div(m, six)"
EXACT = {
    "HardSwish by nodes": f"{HARD_SWISH} y = Mul(h, number)",
    "learned scalars": f"s = Mul(number, x0) x = Add(s, number) {HARD_SWISH} t = Mul(h, number) y = Add(t, number)",
    "HardSigmoid by nodes": "m = Mul(x, tenth) a = Add(m, three) c = Clip(a, zero, six) y = Div(c, six)",
    "HardSwish and a sum": "h = HardSwish(x) y = Add(h, r)",
    "PRelu": "p = PRelu(x, slope) y = Mul(p, channel)",
    "PRelu alone": "y = PRelu(x, slope)",
    "LeakyRelu alone": "y = LeakyRelu<alpha = 0.3>(x)",
    "HardSwish alone": "y = HardSwish(x)",
    "LeakyRelu": "p = LeakyRelu<alpha = 0.1>(x) y = Add(p, r)",
    "two sums": "s = Add(x, r) t = Relu(s) y = Add(t, r)",
    "gate": "s = Mul(x, g) y = Add(s, r)",
    "gate of HardSigmoid": "k = HardSigmoid(g) s = Mul(x, k) y = Add(s, r)",
    "channels": "s = Mul(x, channel) t = Add(s, slope) y = Relu(t)",
    "columns": "s = Mul(x, column) y = Add(s, column)",
    "BatchNormalization": "b = BatchNormalization(x, gain, shift, mean, variance) y = Relu(b)",
}


def model_of(body: str, dims: str = f"N, {C}, {H}, {W}") -> onnx.ModelProto:
    given = "x0" if "x0" in body else "x"
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        m (float[{dims}] {given}, float[{dims}] r, float[N, {C}, 1, 1] g) => (float[{dims}] y) {{ {body} }}"""
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in CONSTANTS.items()
    )
    return model
