"""Quantized float16 models: normalizations and Gelu, also with rounded constants, become parts of programs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session
from rewriting import programs, tails

import ort_dynq
from ort_dynq import rewrite

WIDTH = 256
ERF = "d = Div(h, root) e = Erf(d) e1 = Add(e, one) m = Mul(h, e1) a = Mul(m, half)"
FORMS = {
    "LayerNormalization": ("a = LayerNormalization(x, gain, shift)", 1, "Float16(Add(Mul(Mul("),
    "Gelu": ("h = MatMul(x, v) a = Gelu(h)", 2, "Gelu(Float16(x))"),
    "Gelu of rounded constants": (f"h = MatMul(x, v) {ERF}", 2, "dst = Gelu(x)"),
}


def model_of(body: str) -> onnx.ModelProto:
    """float16 [B, S, WIDTH] x to y = a * w."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20]>
        g (float16[B, S, {WIDTH}] x) => (float16[B, S, {WIDTH}] y) {{ {body} y = MatMul(a, w) }}"""
    )
    arrays: dict[str, Array] = {
        "gain": rng.normal(1, 0.1, WIDTH),
        "shift": rng.normal(0, 0.1, WIDTH),
        "v": rng.normal(0, 0.06, (WIDTH, WIDTH)),
        "w": rng.normal(0, 0.06, (WIDTH, WIDTH)),
        "root": np.array(2**0.5),
        "half": np.array(0.5),
        "one": np.array(1),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float16), name) for name, array in arrays.items()
    )
    return model


def feeds() -> dict[str, Array]:
    return {"x": np.random.default_rng(1).normal(0, 1, (2, 9, WIDTH)).astype(np.float16)}


@pytest.mark.parametrize("name", FORMS)
def test_programs(name: str) -> None:
    body, products, expected = FORMS[name]
    model = model_of(body)
    quantized = ort_dynq.quantize(model).to_proto()
    kinds = [node.op_type for node in quantized.graph.node]
    assert sum("QuantizedMatMul" in kind for kind in kinds) == products
    assert not {"LayerNormalization", "Gelu", "Erf"} & {*kinds}
    texts = [*programs(quantized), *tails(quantized)]
    assert any(expected in text for text in texts), texts
    (y,) = make_session(quantized, "native").run(None, feeds())
    assert_same(y, stock_session(quantized).run(None, feeds())[0])
    of_float = stock_session(model).run(None, feeds())[0].astype(np.float64)
    noise = ((y - of_float) ** 2).sum()
    assert 10 * np.log10((of_float**2).sum() / noise) > 35


def test_without_fusions_and_in_a_rewrite() -> None:
    """Then the functions keep their bits."""
    plain = ort_dynq.quantize(model_of(FORMS["Gelu"][0]), fuse=False).to_proto()
    assert "Gelu" in {node.op_type for node in plain.graph.node}
    assert not any("Gelu" in text for text in programs(rewrite(model_of(FORMS["Gelu"][0]), fuse=True).to_proto()))
