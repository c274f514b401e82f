"""MatMul, Gemm and Einsum as one form: which spellings are products, and which stay."""

from __future__ import annotations

import re

import numpy as np
import pytest
from product_models import DATA, WEIGHTS, F, K, model_of, symmetric
from rewriting import found, products

import ort_dynq
from ort_dynq.rewriter import rewrite

SPELLINGS = {
    "Einsum": 'y = Einsum<equation = "abk,kn->abn">(dx, w)',
    "Einsum of any rank": 'y = Einsum<equation = "...k, kn -> ...n">(dx, w)',
    "Einsum of transposed weights": 'y = Einsum<equation = "abk,nk->abn">(dx, wt)',
    "alpha": "d2 = Reshape(dx, rows)\n y = Gemm<alpha = -0.3>(d2, w)",
    "alpha and beta": "d2 = Reshape(dx, rows)\n y = Gemm<alpha = 3.0, beta = 0.7>(d2, w, b)",
    "beta of 0": "d2 = Reshape(dx, rows)\n y = Gemm<beta = 0.0, transB = 1>(d2, wt, infinite)",
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings_of_a_product(name: str) -> None:
    w = WEIGHTS["folded"][1]["w"]
    arrays = {"w": w, "wt": np.ascontiguousarray(w.T), "b": np.linspace(-9, 9, len(w[0]), dtype=F)}
    arrays |= {"infinite": np.full(len(w[0]), np.inf, F), "rows": np.array([-1, K])}
    used = {key: each for key, each in arrays.items() if re.search(rf"\b{key}\b", SPELLINGS[name])}
    model = model_of(symmetric() + "dx = Mul(c, s)\n" + SPELLINGS[name], used, inputs=f"float[2, 6, {K}] x")
    result = rewrite(model)
    assert found(result.report) == ["QuantizedMatMul", "RowProgram"]
    assert ort_dynq.verify(model, result.model, inputs={"x": DATA["x"][:, :6]}).passed


@pytest.mark.parametrize(
    "equation", ["abk,kn->bn", "aak,kn->aan", "abn,kn->abk", "abk,kn->abk", "kbk,kn->kbn", "abk,kk->abk"]
)
def test_other_einsums_stay(equation: str) -> None:
    """Some are sums over another dimension, or of a diagonal."""
    arrays = {"w": WEIGHTS["folded"][1]["w"][:, :K]}
    body = f'y = Einsum<equation = "{equation}">(dx, w)'
    report = rewrite(model_of(symmetric() + "dx = Mul(c, s)\n" + body, arrays, inputs=f"float[6, 6, {K}] x")).report
    assert "QuantizedMatMul" not in products(report)


def test_einsum_that_may_broadcast_stays() -> None:
    """Einsum repeats a K of 1 for each row of the weights; the sums are other ones."""
    body = 'd1 = ReduceMax(dx, last)\n y = Einsum<equation = "abk,kn->abn">(d1, w)'
    report = rewrite(model_of(symmetric() + "dx = Mul(c, s)\n" + body, WEIGHTS["folded"][1])).report
    assert "QuantizedMatMul" not in products(report)


def test_alpha_that_overflows_the_scales_stays() -> None:
    arrays = {"w": WEIGHTS["folded"][1]["w"] * F(2.0**33)}
    body = "dx = Mul(c, s)\n d2 = Reshape(dx, rows)\n y = Gemm<alpha = 1e38>(d2, w)"
    report = rewrite(model_of(symmetric() + body, arrays)).report
    assert ["exceed float32" in each.reason for each in report.unconverted] == [True]
