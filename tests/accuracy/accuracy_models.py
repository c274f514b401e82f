"""Float models and data for the tests of accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from helpers import Array, parse, with_arrays

F = np.float32
K = 160  # with K * K weights, a quantization pays
WIDE = 256  # likewise one of two terms


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, F)


def model_of(
    body: str, constants: Mapping[str, Array], *, inputs: str = "", outputs: str = "", width: int = K
) -> onnx.ModelProto:
    """A model with the input x, [n, width], the output y, [n, width], and these constants."""
    model = parse(inputs or f"float[n, {width}] x", outputs or f"float[n, {width}] y", body, opset=18)
    del model.opset_import[1:]
    with_arrays(model, constants)
    for node in model.graph.node:
        node.name = f"to_{node.output[0]}"
    return model


def two_layers() -> onnx.ModelProto:
    """The layers to_h and to_y with a Relu between them."""
    constants = {"w": floats(K, K, seed=1), "v": floats(K, K, seed=2)}
    return model_of("h = MatMul(x, w) r = Relu(h) y = MatMul(r, v)", constants)


def with_outlier() -> onnx.ModelProto:
    """Four layers; channel 5 of the activation of to_c is 300 times as large as the others, its weights are small."""
    scale = np.ones(K, F)
    scale[5] = 300
    constants = {name: floats(K, K, seed=seed) / F(K**0.5) for seed, name in enumerate(("w", "v", "u", "t"))}
    constants["u"] = constants["u"] / scale[:, None] ** 2
    return model_of(
        "a = MatMul(x, w) b = MatMul(a, v) s = Mul(b, scale) c = MatMul(s, u) y = MatMul(c, t)",
        {**constants, "scale": scale},
    )


def with_three_forms(of_weights: float = 300) -> onnx.ModelProto:
    """Three layers of WIDE channels. One term suffices for to_h.

    Channel 5 of the activation of to_c is 300 times as large as the others, and its weights are small: two terms
    suffice. The weights of to_y for channel 7 are `of_weights` times as large as the others, and the activation is
    small there: their own noise is large, so the layer must stay in float, or have words if they are 20 times as large.
    """
    large, small = np.ones(WIDE, F), np.ones(WIDE, F)
    large[5], small[7] = 300, F(300) ** -2
    constants = {name: floats(WIDE, WIDE, seed=seed) / F(WIDE**0.5) for seed, name in enumerate(("w", "v", "u"))}
    constants["v"][5] /= 300**2
    constants["u"][7] *= of_weights
    return model_of(
        "h = MatMul(x, w) s = Mul(h, large) c = MatMul(s, v) t = Mul(c, small) y = MatMul(t, u)",
        {**constants, "large": large, "small": small},
        width=WIDE,
    )
