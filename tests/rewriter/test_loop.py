"""The loop applies the rules in every graph: in branches, loops and functions."""

from __future__ import annotations

import numpy as np
from helpers import make_session, stock_session
from product_models import DATA, WEIGHTS, K, model_of, symmetric
from rewriting import products

from ort_dynq.rewriter import rewrite


def test_products_in_branches_and_functions() -> None:
    product = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)"
    branch = product.replace("y =", "y1 =")
    otherwise = "e () => (float[] y2) { y2 = Identity(x) }"
    body = f"y = If (flag) <then_branch = t () => (float[] y1) {{ {branch} }}, else_branch = {otherwise}>"
    model = model_of(body, WEIGHTS["folded"][1], inputs=f"bool flag, float[B, M, {K}] x")
    result = rewrite(model)
    assert "QuantizedMatMul" in products(result.report)
    inputs = DATA | {"flag": np.array(True)}
    expected = stock_session(model).run(None, inputs)[0]
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        np.testing.assert_allclose(
            session.run(None, inputs)[0], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
        )
