"""Rows of codes that a mask picks, as of the tokens of an expert, and codes that are pooled."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import make_session, stock_session, with_arrays
from rewriting import F, parse, products

import ort_dynq
from ort_dynq.rewriter import rewrite

RNG = np.random.default_rng(0)
CODES = """a = Abs(x) m = ReduceMax<keepdims = 1>(a, last) o = Max(m, eps) s = Div(o, c127) d = Div(x, s) r = Round(d)
    c = Clip(r, low, c127) f = Mul(c, s)"""
NUMBERS = {"last": np.array([-1]), "eps": F(1e-6), "c127": F(127), "low": F(-128), "scale": F(0.01)}


def model_of(body: str, inputs: str, **arrays: np.ndarray) -> onnx.ModelProto:
    return with_arrays(parse(body, inputs=inputs, opset=18), NUMBERS | arrays)


@pytest.mark.parametrize("picked", [0, 1, 5])
def test_tokens_of_an_expert(picked: int) -> None:
    """torch writes x[mask] as NonZero and GatherND."""
    weights = (RNG.integers(-127, 128, (64, 64)) * F(0.01)).astype(F)
    model = model_of(
        f"{CODES} n = NonZero(mask) t = Transpose(n) g = GatherND(f, t) y = MatMul(g, w)",
        "float[N, 64] x, bool[N] mask",
        w=weights,
    )
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    assert not result.report.unconverted
    inputs = {"x": RNG.normal(0, 1, (5, 64)).astype(F), "mask": np.arange(5) < picked}
    assert ort_dynq.verify(model, result.to_proto(), inputs=inputs).status != "failed"
    (actual,), (expected,) = (
        session.run(None, inputs) for session in (make_session(result.to_proto(), "native"), stock_session(model))
    )
    assert actual.shape == expected.shape
    assert np.allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max(initial=1))


def test_elements_and_floats_stay() -> None:
    """GatherND of single elements, and of rows that are no codes."""
    assert not rewrite(model_of("y = GatherND(x, i)", "float[5, 64] x, int64[K, 1] i")).report.rewritten
    body = f"{CODES} g = GatherND(f, i) u = Unsqueeze(g, last) y = MatMul(u, w)"
    model = model_of(body, "float[5, 64] x, int64[K, 2] i", w=np.ones((1, 64), F))
    assert "GatherND" in [node.op_type for node in rewrite(model).to_proto().graph.node]


@pytest.mark.parametrize("pads", ["", ", pads = [1, 1, 1, 1]"])
def test_codes_that_are_pooled(pads: str) -> None:
    """The largest code is that of the largest number; padding is less than every code."""
    weights = (RNG.integers(-127, 128, (32, 16, 3, 3)) * F(0.01)).astype(F)
    pool = f"MaxPool<kernel_shape = [3, 3], strides = [2, 2]{pads}>"
    body = f"q, s, z = DynamicQuantizeLinear(x) p = {pool}(q) d = DequantizeLinear(p, s, z) y = Conv(d, w)"
    model = model_of(body, "float[1, 16, 32, 32] x", w=weights)
    result = rewrite(model)
    assert products(result.report) == ["QuantizedConv"]
    found = ort_dynq.verify(model, result.to_proto(), inputs={"x": RNG.normal(0, 1, (1, 16, 32, 32)).astype(F)})
    assert found.passed, found
    assert len(found.products) == 1


def test_floats_that_are_pooled_stay() -> None:
    """MaxPool ignores NaN, so that a tensor of NaN would not be one."""
    pool = "MaxPool<kernel_shape = [2, 2]>"
    body = f"q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) p = {pool}(d) y = Conv(p, w)"
    model = model_of(body, "float[1, 16, 20, 20] x", w=(RNG.integers(-9, 9, (32, 16, 3, 3)) * F(0.01)).astype(F))
    (finding,) = rewrite(model).report.unconverted
    assert "pool the codes before they are dequantized" in finding.reason
