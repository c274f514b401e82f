"""Models of integer convolutions, and checks of their results."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from helpers import Array, with_arrays
from rewriting import check, found, products

from ort_dynq.rewriter import Report, rewrite

F = np.float32
M, C = 6, 4
DYNAMIC = "q, s, z = DynamicQuantizeLinear(x)\n"
GEOMETRY = "<pads = [1, 0, 2, 1], strides = [2, 1]"
CONV = f"i = ConvInteger{GEOMETRY}>(q, w, z, wz)\n f = Cast<to = 1>(i)\n"
TAIL = "k = Mul(s, ws)\n g = Mul(f, k)\n y = Add(g, b)"


def weights_of(dtype: str, *shape: int, seed: int = 1) -> Array:
    info = np.iinfo(dtype)
    codes = np.random.default_rng(seed).integers(info.min, info.max + 1, shape)
    return np.asarray(codes.astype(dtype))


def given(dtype: str = "uint8", kernel: tuple[int, ...] = (3, 3), channels: int = C) -> dict[str, Array]:
    """Weights, their zero point and scales, and a bias, for every tail."""
    ones = [1] * len(kernel)
    scales = np.random.default_rng(2).uniform(0.001, 0.02, M).astype(F)
    return {
        "w": weights_of(dtype, M, channels, *kernel),
        "wz": np.asarray(7, dtype),
        "ws": np.asarray(0.0123, F),
        "wsc": scales.reshape(M, *ones),
        "wsc1": scales.reshape(1, M, *ones),
        "flat": scales,
        "shape": np.array([1, -1, *ones]),
        "axes": np.arange(1, 1 + len(kernel)),
        "b": np.linspace(-3, 3, M).astype(F).reshape(1, M, *ones),
        "bv": np.linspace(-3, 3, M).astype(F),
        "bs": np.asarray(-1.5, F),
        "zs": np.asarray(-3, np.int8),
    }


def model_of(
    body: str, constants: dict[str, Array], *, rank: int = 4, opset: int = 18, inputs: str = ""
) -> onnx.ModelProto:
    """A model from x, float32 [N, C, ...], to y."""
    x = f"float[N, {C}, {', '.join('DEFG'[: rank - 2])}] x"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({x}{inputs}) => (float[] y) {{ {body} }}'
    )
    return with_arrays(model, constants)


def images(*shape: int, seed: int = 3) -> dict[str, Array]:
    """Images with an outlier, so that most codes are near the zero point."""
    x = np.random.default_rng(seed).normal(0.3, 1, shape).astype(F)
    if x.size:
        x.reshape(-1)[0] = 5
    return {"x": x}


IMAGES = images(2, C, 9, 8)


def check_converted(model: onnx.ModelProto, *data: dict[str, Array], count: int = 1, others: int = 0) -> Report:
    """Checks that all convolutions of a model are converted, with the same bits, with --exact and without."""
    for report in (check(model, *(data or (IMAGES,)), exact=True), rewrite(model).report):
        assert products(report) == ["QuantizedConv"] * count
        assert [finding.reason for finding in report.unconverted] == []
        assert len(found(report)) == count + others
    return report
