"""Writes models of onnxsim's quantizers of weights: `pip install onnxsim==0.8.1`."""

from __future__ import annotations

import numpy as np
import onnx
import onnxsim  # type: ignore[import-not-found,unused-ignore]
from _common import Example, activations, grid_weights, main, parse


def weights() -> Example:
    """Two layers: 4 bits in blocks, and 8 bits with a scale for each channel, since its K is no multiple of 32."""
    rng = np.random.default_rng(13)
    model = parse(
        """weights (float[batch, tokens, 256] x) => (float[batch, tokens, 256] y) {
            h = MatMul(x, w1)  h1 = Add(h, b1)  a = Relu(h1)  y = MatMul(a, w2)
        }""",
        21,
        w1=rng.normal(0, 0.1, (256, 272)).astype(np.float32),
        b1=grid_weights(rng, 272),
        w2=rng.normal(0, 0.1, (272, 256)).astype(np.float32),
    )
    model = onnx.shape_inference.infer_shapes(model)  # onnxsim quantizes products of known types
    quantized = onnxsim.quantize_weight_only(onnxsim.quantize_weight_only_int4(model))
    names = {name for node in quantized.graph.node for name in node.input}
    for initializer in [each for each in quantized.graph.initializer if each.name not in names]:
        quantized.graph.initializer.remove(initializer)  # the float weights, which no node reads
    return Example(quantized, [activations(2, 7, 256, zero_row=True)])


if __name__ == "__main__":
    main({"onnxsim_weights": weights})
