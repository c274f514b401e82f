"""A BatchNormalization after a convolution of integers becomes steps of its program, with the same bits."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from helpers import Array, with_arrays
from rewriting import check, operators

from ort_dynq.rewriter import rewrite

F = np.float32


@pytest.mark.parametrize("tail", ["y = Identity(n)", "y = Relu(n)"])
def test_the_bits_are_those_of_the_node(tail: str) -> None:
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[batch, 16, 12, 12] x) => (float[batch, 24, h, w] y) {'
        "q, s, z = DynamicQuantizeLinear(x) p = ConvInteger<pads = [1, 1, 1, 1]>(q, wq, z) f = Cast<to = 1>(p)"
        " k = Mul(s, ws) c = Mul(f, k) n = BatchNormalization<epsilon = 0.01>(c, gain, shift, mean, variance) "
        f"{tail} }}"
    )
    arrays: dict[str, Array] = {
        "wq": rng.integers(-127, 128, (24, 16, 3, 3)).astype(np.int8),
        "ws": F(0.01),
        "gain": rng.uniform(0.5, 2, 24).astype(F),
        "shift": rng.normal(0, 1, 24).astype(F),
        "mean": rng.normal(0, 1, 24).astype(F),
        "variance": rng.uniform(0.1, 2, 24).astype(F),
    }
    with_arrays(model, arrays)
    check(model, {"x": rng.normal(0, 1, (2, 16, 12, 12)).astype(F)})
    assert "ort_dynq.QuantizedConvProgram" in operators(rewrite(model, exact=True).to_proto())
