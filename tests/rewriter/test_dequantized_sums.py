"""Sums of integer products that DequantizeLinear scales."""

from __future__ import annotations

import numpy as np
import pytest
from correction_models import CONSTANTS, F, data_of
from product_models import K, N, model_of
from rewriting import check, products


@pytest.mark.parametrize("scale", ["step", "ws"])
@pytest.mark.parametrize("bias", ["", "i = Add(p, br)\n", "i = Add(b1, p)\n"])
def test_dequantized_sums(bias: str, scale: str) -> None:
    """DequantizeLinear scales the sums, by one number or by one for each column."""
    body = "q, s, z = DynamicQuantizeLinear(x)\n p = MatMulInteger(q, wq, z)\n" + (bias or "i = Identity(p)\n")
    body += f"t = Mul(s, {scale})\n y = DequantizeLinear<axis = -1>(i, t)"
    constants = CONSTANTS | {"step": F(0.3)}
    x = np.random.default_rng(0).normal(0, 1, (7, K)).astype(F)
    given = {"x": x, "br": data_of(np.uint8, "token")["br"]}
    report = check(model_of(body, constants, inputs=f"float[M, {K}] x, int32[{N}] br"), given, exact=True)
    assert products(report) == ["QuantizedMatMul"]
    assert not report.unconverted
