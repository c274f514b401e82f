"""Weights and activations as DoReFa quantizes them: roundings relative to 1, and a constant scale."""

from __future__ import annotations

import numpy as np
import pytest
from product_models import F, model_of
from rewriting import products

from ort_dynq import verify
from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("product", ["MatMul", "Gemm", "Conv"])
def test_weights_of_dorefa(product: str) -> None:
    """2 * round(15 * w) / 15 - 1, computed from w in the model; also where only small weights are multiplied."""
    rng = np.random.default_rng(2)
    shape = {"MatMul": (64, 24), "Gemm": (24, 64), "Conv": (24, 16, 3, 3)}[product]
    x = {"MatMul": (2, 9, 64), "Gemm": (9, 64), "Conv": (1, 16, 9, 9)}[product]
    last = {"MatMul": "MatMul(d, q)", "Gemm": "Gemm<transB = 1>(d, q)", "Conv": "Conv<pads = [1, 1, 1, 1]>(d, q)"}
    body = (
        "wt = Tanh(w) wa = Abs(wt) wm = ReduceMax<keepdims = 0>(wa) wn = Div(wt, wm) wh = Mul(wn, half)"
        " wp = Add(wh, half) w15 = Mul(wp, n) wr = Round(w15) wc = Div(wr, n) w2 = Mul(wc, two) q = Sub(w2, unit)"
        f" c = Clip(x, zero, unit) t = Mul(c, c255) r = Round(t) d = Div(r, c255) y = {last[product]}"
    )
    constants = {"half": F(0.5), "n": F(15), "two": F(2), "unit": F(1), "w": rng.normal(size=shape).astype(F)}
    model = model_of(body, constants, inputs=f"float[{', '.join(map(str, x))}] x")
    result = rewrite(model)
    assert products(result.report) == [f"Quantized{'Conv' if product == 'Conv' else 'MatMul'}"]
    few = np.zeros(x, F)
    few.reshape(x[0], -1)[:, :5] = 0.7
    for data in (rng.uniform(-1, 2, x).astype(F), few):
        verified = verify(model, result.to_proto(), inputs={"x": data})
        assert verified.passed, verified
        assert verified.products


def test_static_scale_that_where_keeps_from_zero() -> None:
    """The scale is a constant that is not 0, so that a later activation has no NaN of its own (ModelOpt)."""
    body = "g = Greater(amax, eps) k = Where(g, step, zero)" + "".join(
        f" t{i} = Mul({x}, k) r{i} = Round(t{i}) c{i} = Clip(r{i}, low, high) d{i} = Div(c{i}, k)"
        f" y{i} = MatMul(d{i}, w)"
        for i, x in enumerate(("x", "y0"))
    )
    codes = np.random.default_rng(4).integers(-127, 128, (64, 64))
    codes[0] = 127
    constants = {"w": codes.astype(F) * F(0.001), "amax": F(3), "step": F(42.3)}
    model = model_of(body + " y = Identity(y1)", constants, inputs="float[B, 9, 64] x")
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"] * 2
    verified = verify(
        model, result.to_proto(), inputs={"x": np.random.default_rng(5).normal(size=(2, 9, 64)).astype(F)}
    )
    assert verified.passed, verified
