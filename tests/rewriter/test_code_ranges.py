"""The proof that codes without a clip fit int8 (analysis/code_ranges.py), and the products that depend on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, make_session, stock_session
from rewriting import check_products, parse

from ort_dynq import kernels
from ort_dynq.operators import OPERATORS
from ort_dynq.operators.encodings import AddedEpsilon, InverseScale, RangeConstants, Scaling
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.analysis.code_ranges import are_codes_int8

LARGEST = float(np.finfo(np.float32).max)
EPSILON = {"lowest_range": 1e-10, "highest_range": LARGEST}
LATE = {"lowest_scale": 1e-10, "highest_scale": LARGEST}
RECIPROCAL = {"inverse_scale": InverseScale.RECIPROCAL, "scaling": Scaling.MULTIPLY}
QUOTIENT = {"inverse_scale": InverseScale.QUOTIENT, "scaling": Scaling.MULTIPLY}
FORMS: dict[str, tuple[dict[str, Any], dict[str, float], bool]] = {
    "m / 127": ({}, {"divisor": 127, **EPSILON}, True),
    "m / 127, late epsilon": ({}, {"divisor": 127, **LATE}, True),
    "m / 127 + epsilon": ({"added_epsilon": AddedEpsilon.SCALE}, {"divisor": 127, **LATE}, True),
    "(m + epsilon) / 127": ({"added_epsilon": AddedEpsilon.RANGE}, {"divisor": 127, **EPSILON}, True),
    "m * (1 / 127)": ({}, {"factor": 1 / 127, **EPSILON}, True),
    "m / 127, x * (1 / s)": ({"scaling": Scaling.MULTIPLY_BY_THE_RECIPROCAL}, {"divisor": 127, **EPSILON}, True),
    "1 / m * 127": (RECIPROCAL, {"factor": 127, **EPSILON}, True),
    "127 / m": (QUOTIENT, {"factor": 127, **EPSILON}, True),
    "1 / (m / 127)": (QUOTIENT, {"divisor": 127, **EPSILON}, True),
    "smallest epsilon": ({}, {"divisor": 127, "lowest_range": 2.0**-100}, True),
    "largest ratio": ({}, {"divisor": 127.25, **EPSILON}, True),
    "m / 7": ({}, {"divisor": 7, **EPSILON}, True),
    "m / 127.5": ({}, {"divisor": 127.5, **EPSILON}, False),
    "m / 128": ({}, {"divisor": 128, **EPSILON}, False),
    "127.5 / m": (QUOTIENT, {"factor": 127.5, **EPSILON}, False),
    "1 / m * 128": (RECIPROCAL, {"factor": 128, **EPSILON}, False),
    "no epsilon": ({}, {"divisor": 127}, True),
    "denormal epsilon": ({}, {"divisor": 127, "lowest_range": 1e-43}, True),
    "1 / m * 127, no epsilon": (RECIPROCAL, {"factor": 127}, True),
    "127 / m, no epsilon": (QUOTIENT, {"factor": 127}, True),
    "1 / (m / 127), no epsilon": (QUOTIENT, {"divisor": 127}, True),
    "bounded range": ({}, {"divisor": 127, "lowest_range": 1e-10, "highest_range": 100}, False),
    "bounded scale": ({}, {"divisor": 127, "lowest_range": 1e-10, "highest_scale": 100}, False),
    "bounded inverse": (QUOTIENT, {"factor": 127, "lowest_range": 1e-10, "lowest_scale": 1}, False),
}


def magnitudes() -> Array:
    """Returns positive floats of every exponent, denormals among them, with the outermost and random mantissas."""
    rng = np.random.default_rng(0)
    mantissas = np.unique([*range(200), *range(2**23 - 50, 2**23), *rng.integers(0, 2**23, 300)])
    bits = (np.arange(255)[:, None] << 23) | mantissas
    return np.asarray(bits.astype(np.uint32).view(np.float32).reshape(-1, 1))


@pytest.mark.parametrize("form", FORMS)
def test_codes_of_every_exponent(form: str) -> None:
    """The element with the largest magnitude of its row has the largest code: 127 or less if the proof holds.

    Without an epsilon, rows of an infinite inverse scale are NaN, and those of a denormal scale are almost the same if
    their codes saturate.
    """
    given, constants, is_proven = FORMS[form]
    spec = OPERATORS["DynamicRangeQuantize"]
    given = {each.name: each.default for each in spec.attributes} | {"rounding_order": 2, "clip": 0} | given
    values = RangeConstants(**constants)
    assert are_codes_int8(given, values) == is_proven
    x = magnitudes() * np.float32([1, -1])
    inputs = [x, np.array(values, np.float32), np.zeros((), np.int8)]
    codes, scale, _ = kernels.run(spec.name, inputs, **given)
    fits = (codes[:, 0] >= 0) & (codes[:, 1] == -codes[:, 0])  # 128 would wrap around to -128
    if given["inverse_scale"]:
        fits |= np.isinf(scale[:, 0])
    elif max(values.lowest_range, values.lowest_scale) < 2.0**-100:
        saturated = kernels.run(spec.name, inputs, **given | {"clip": 1, "quant_min": -127, "quant_max": 127})[0]
        is_close = np.abs(saturated * scale.astype(np.float64) - x).max(1) < 2.0**-132
        is_denormal = scale[:, 0] < np.finfo(np.float32).tiny
        fits |= is_denormal & (is_close | (scale[:, 0] == 0))
    assert fits.all() == is_proven


@pytest.mark.parametrize(("epsilon", "divisor", "operator"), [
    ("m = Clip(m0, eps)", 127, "QuantizedMatMul"),
    ("m = Add(m0, eps)", 127, "QuantizedMatMul"),
    ("m = Identity(m0)", 127, "QuantizedMatMul"),
    ("m = Clip(m0, eps)", 128, None),
])  # fmt: skip
def test_product_of_unclipped_floats(epsilon: str, divisor: int, operator: str | None) -> None:
    """Codes that stay floats become integers if they are proven to fit; an infinite row does not become finite, and a
    row of zeros without an epsilon stays NaN."""
    rng = np.random.default_rng(0)
    weights = ", ".join(str(float(code) / 128) for code in rng.integers(-127, 128, 32 * 4))
    body = f"""c = Constant<value_float = {divisor}.0>() w = Constant<value = float[32, 4] {{{weights}}}>() a = Abs(x)
        m0 = ReduceMax(a, one) {epsilon} s = Div(m, c) d = Div(x, s) r = Round(d) q = Mul(r, s) y = MatMul(q, w)"""
    model = parse(body, inputs="float[9, 32] x", outputs="float[9, 4] y")
    x = rng.normal(size=(9, 32)).astype(np.float32)
    report = rewrite(model).report
    products = [each.operator for each in report.rewritten if each.operator and "MatMul" in each.operator]
    assert products == ([operator] if operator else [])
    check_products(model, {"x": x})
    if operator is None:
        assert any("not proven to fit 8 bits" in each.reason for each in report.unconverted)
    else:
        x[3, 5], x[4], lost = np.inf, 0, [3] if "eps" in epsilon else [3, 4]
        y = make_session(rewrite(model).to_proto(), "native").run(None, {"x": x})[0]
        assert np.isfinite(y).all(1).tolist() == [row not in lost for row in range(9)]


@pytest.mark.parametrize("chain", [
    "n = Round(d) u = Cast<to = 2>(n) f = Cast<to = 1>(u)",  # wraps around
    "n = Round(e) f = Identity(n)",  # 1 / s is infinite for tiny rows, whose floats are NaN
])  # fmt: skip
def test_unclipped_codes_that_are_not_int8_stay(chain: str) -> None:
    rng = np.random.default_rng(0)
    weights = ", ".join(str(float(code) / 128) for code in rng.integers(-127, 128, 32 * 4))
    body = f"""c = Constant<value_float = 127.0>() w = Constant<value = float[32, 4] {{{weights}}}>() a = Abs(x)
        m = ReduceMax(a, one) s = Div(m, c) d = Div(x, s) i = Reciprocal(s) e = Mul(x, i) {chain} q = Mul(f, s)
        y = MatMul(q, w)"""
    model = parse(body, inputs="float[9, 32] x", outputs="float[9, 4] y")
    x = rng.normal(size=(9, 32)).astype(np.float32)
    x[2] *= np.float32(1e-38)
    expected = stock_session(model).run(None, {"x": x})[0]
    actual = make_session(rewrite(model).to_proto(), "native").run(None, {"x": x})[0]
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.nanmax(np.abs(expected)))


@pytest.mark.parametrize("inverse", ["s = Div(c127, m)", "i = Reciprocal(m) s = Mul(i, c127)"])
def test_product_of_inverse_scales_without_epsilon(inverse: str) -> None:
    """A row of zeros has an infinite inverse scale, and stays NaN; so does a tiny row."""
    rng = np.random.default_rng(0)
    weights = ", ".join(str(float(code) / 128) for code in rng.integers(-127, 128, 32 * 4))
    body = f"""w = Constant<value = float[32, 4] {{{weights}}}>() a = Abs(x) m = ReduceMax(a, one) {inverse}
        v = Mul(x, s) n0 = Round(v) n = Clip(n0, low, high) q = Div(n, s) y = MatMul(q, w)"""
    model = parse(body, inputs="float[9, 32] x", outputs="float[9, 4] y")
    result = rewrite(model)
    assert "QuantizedMatMul" in {each.operator for each in result.report.rewritten}
    x = rng.normal(size=(9, 32)).astype(np.float32)
    check_products(model, {"x": x})
    x[2], x[5], x[5, 7] = 0, 1e-44, 0
    expected = stock_session(model).run(None, {"x": x})[0]
    assert np.isnan(expected).all(1).tolist() == [row in (2, 5) for row in range(9)]
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        y = session.run(None, {"x": x})[0]
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))


@pytest.mark.parametrize(("floats", "is_product"), [("q = Div(n, s)", True), ("t = Div(m, c127) q = Mul(n, t)", False)])
def test_codes_that_are_infinite_where_an_inverse_scale_is(floats: str, is_product: bool) -> None:
    """Without Clip, codes are divided by the inverse scale, so that the row is NaN; by another scale it is infinite."""
    rng = np.random.default_rng(0)
    weights = ", ".join(str(float(code) / 128) for code in rng.integers(-127, 128, 32 * 4))
    body = f"""w = Constant<value = float[32, 4] {{{weights}}}>() a = Abs(x) m = ReduceMax(a, one) s = Div(c127, m)
        v = Mul(x, s) n = Round(v) {floats} y = MatMul(q, w)"""
    model = parse(body, inputs="float[9, 32] x", outputs="float[9, 4] y")
    result = rewrite(model)
    assert ("QuantizedMatMul" in {each.operator for each in result.report.rewritten}) == is_product
    x = rng.normal(size=(9, 32)).astype(np.float32)
    check_products(model, {"x": x})
    x[2], x[3, 4], x[5], x[6] = 0, np.inf, 1e-38, 1e-38 * rng.normal(size=32)
    expected = stock_session(model).run(None, {"x": x})[0]
    assert (~np.isfinite(expected)).all(1).tolist() == [row in (2, 3, 5, 6) for row in range(9)]
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        y = session.run(None, {"x": x})[0]
        np.testing.assert_array_equal(np.isfinite(y), np.isfinite(expected))
