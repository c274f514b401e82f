"""Models with products that stay."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import with_arrays
from onnx import helper
from rewriting import parse

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.report import Report

CONSTANTS = {
    "w": np.random.default_rng(0).normal(size=(48, 32)).astype(np.float32),
    "wq": np.random.default_rng(0).integers(-128, 128, (48, 32)).astype(np.int8),
    "wu": np.random.default_rng(0).integers(0, 256, (48, 32)).astype(np.uint8),
    "filter": np.random.default_rng(0).normal(size=(4, 8, 3, 3)).astype(np.float32),
    "none": np.array(0, np.uint8),
    "big": np.array(12582912, np.float32),
    "half": np.array(0.5, np.float32),
    "base": np.array(2, np.float32),
    "one_f": np.array(1, np.float32),
    "pointwise": np.ones((4, 8, 1, 1), np.float32),
    "of_channels": np.array([1]),
}
TRUNCATED = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) s = Div(m, c127) d = Div(x, s)"
FAKE = f"{TRUNCATED} r = Round(d) c = Clip(r, low, high) f = Mul(c, s)"


def report_of(nodes: str, *, inputs: str = "float[48, 48] x") -> Report:
    return rewrite(model_of(nodes, inputs)).report


def model_of(nodes: str, inputs: str = "float[48, 48] x", outputs: str = "float[] y") -> onnx.ModelProto:
    model = parse(nodes, inputs=inputs, outputs=outputs)
    with_arrays(model, CONSTANTS)
    if "com.microsoft" in nodes:
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model
