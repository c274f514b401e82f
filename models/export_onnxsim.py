"""Writes models of onnxsim's quantizers of weights: `pip install onnxsim==0.8.1`."""

from __future__ import annotations

import numpy as np
import onnx
import onnxsim  # type: ignore[import-not-found,unused-ignore]
from _common import Example, activations, main, two_layers


def weights() -> Example:
    """Two layers: 4 bits in blocks, and 8 bits with a scale for each channel, since its K is no multiple of 32."""
    # onnxsim quantizes products of known types.
    model = onnx.shape_inference.infer_shapes(two_layers("weights", np.random.default_rng(13), 256, 272, 256))
    quantized = onnxsim.quantize_weight_only(onnxsim.quantize_weight_only_int4(model))
    names = {name for node in quantized.graph.node for name in node.input}
    for initializer in [each for each in quantized.graph.initializer if each.name not in names]:
        quantized.graph.initializer.remove(initializer)  # the float weights, which no node reads
    return Example(quantized, [activations(2, 7, 256, zero_row=True)])


if __name__ == "__main__":
    main({"onnxsim_weights": weights})
