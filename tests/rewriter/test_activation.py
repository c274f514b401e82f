"""What a product takes as its activation: scales and zero points of its rows."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import make_session, stock_session
from onnx import numpy_helper
from product_models import DATA, WEIGHTS, F, asymmetric, check_products, codes_of, model_of, symmetric
from rewriting import check, found, products

from ort_dynq.rewriter import rewrite


def test_a_zero_point_for_each_row_and_moved_rows() -> None:
    """The scale of the rows is reshaped as the codes are: it has as many elements as the zero point already."""
    body = (
        asymmetric()
        + """v = Sub(c, z) v2 = Reshape(v, rows) p = MatMul(v2, w) sh = Shape(x) two = Slice(sh, n0, n2)
        to = Concat<axis = 0>(two, last) p3 = Reshape(p, to) y = Mul(p3, s)"""
    )
    constants = {"w": codes_of().astype(F), "n0": np.array([0]), "n2": np.array([2])}
    model = model_of(body, constants)
    expected = stock_session(model).run(None, DATA)[0]
    converted = rewrite(model).to_proto()
    for session in (make_session(converted, "native"), stock_session(converted)):
        np.testing.assert_allclose(session.run(None, DATA)[0], expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("axes", [[-1], [-2, -1], [-3, -2, -1], [1, 2], [2]])
@pytest.mark.parametrize("is_range", [True, False])
def test_rows_that_are_reshaped_have_scales_of_their_own(axes: list[int], is_range: bool) -> None:
    """One scale for each matrix [B, 1, 1] is repeated before a Reshape makes one for each row of it, [B * M, 1]."""
    chain = symmetric().replace("last", "axes")
    if not is_range:
        chain = chain.replace("s = Div(m0, c127)", "s0 = Div(m0, c127)\n s = Mul(s0, s0)")
    body = chain + "dx = Mul(c, s)\n d2 = Reshape(dx, rows)\n y = MatMul(d2, w)"
    model = model_of(body, WEIGHTS["folded"][1] | {"axes": np.array(axes)})
    report = check_products(model, DATA)
    assert products(report) == ["QuantizedMatMul"]


def test_codes_of_more_than_eight_bits_stay() -> None:
    body = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["folded"][1])
    for tensor in model.graph.initializer:
        if tensor.name in ("low", "high"):
            tensor.CopyFrom(numpy_helper.from_array(F(-32768 if tensor.name == "low" else 32767), tensor.name))
        if tensor.name == "c127":
            tensor.CopyFrom(numpy_helper.from_array(F(32767), tensor.name))
    report = check(model, DATA, exact=False)
    assert found(report) == ["RowProgram"]
    assert ["not proven to fit 8 bits" in finding.reason for finding in report.unconverted] == [True]


def test_a_scale_along_the_summed_dimension_stays() -> None:
    body = "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a, lead)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n t = Div(x, s)\n"
    body += "r = Round(t)\n c = Clip(r, low, high)\n dx = Mul(c, s)\n y = MatMul(dx, w)"
    model = model_of(body, WEIGHTS["folded"][1] | {"lead": np.array([0, 1])})
    report = check(model, DATA, exact=False)
    assert "QuantizedMatMul" not in products(report)
    assert any("for each element of K" in finding.reason for finding in report.unconverted)
