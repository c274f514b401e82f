"""Rows of x with NaN: ONNX Runtime's ReduceMax ignores most of them, and a guard may hide others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import assert_same, every, make_session, stock_session
from product_models import F, model_of
from published_forms import ASYMMETRIC, CODES, CONSTANTS, ENDS, INPUTS, PRODUCT, RANGE, K
from rewriting import FOLDERS, MODELS, products
from unbounded_models import data, with_nan

from ort_dynq import verify
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason
from ort_dynq.tools.bench.models import recorded_inputs

END = "t = Div(x, s) n = Round(t) c = Clip(n, low, high) y0 = Mul(c, s) "
FINITE_CODES = {
    "range: Clip": RANGE + "r = Clip(m, eps) s = Div(r, c127) " + END,
    "scale: Max": RANGE + "r = Div(m, c127) s = Max(r, eps) " + END,
    "ends": ENDS + "g = Neg(mn) r0 = Max(g, mx) r = Clip(r0, eps) s = Div(r, c127) " + END,
    "scale 1": RANGE + "r = Div(m, c127) g = Equal(r, zero) s = Where(g, unit, r) " + END,
    "zero point": ENDS + ASYMMETRIC.replace("s = Div(r, c255)", "r1 = Clip(r, eps) s = Div(r1, c255)"),
    "no bounds": RANGE + "r = Clip(m, eps) s = Div(r, c127) t = Div(x, s) n = Round(t) y0 = Mul(n, s) ",
    "estimator": RANGE
    + "r = Clip(m, eps) s = Div(r, c127) "
    + END.replace("y0", "q")
    + "d = Sub(q, x) y0 = Add(d, x) ",
    "columns": RANGE + "r = Clip(m, eps) s = Div(r, c127) " + END.replace("y0", "q") + "y0 = Reshape(q, joined) ",
}


@pytest.mark.parametrize("form", FINITE_CODES)
def test_rows_with_nan_are_those_of_the_model(form: str) -> None:
    """The mark is a step of the program. x is also the result of another node, so that NaN may be born in the model."""
    body = "x = Mul(x0, x1) " + FINITE_CODES[form] + PRODUCT
    inputs = INPUTS.replace(" x", " x0") + f", float[B, M, {K}] x1"
    model = model_of(body, {**CONSTANTS, "unit": F(1)}, inputs=inputs)
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    assert not {"Equal", "ReduceMin"} & {node.op_type for node in result.to_proto().graph.node}
    x0, x1 = with_nan(), np.ones((3, 12, K), F)
    x0[2, 6, 5], x1[2, 6, 5] = np.inf, 0
    feeds = {"x0": x0, "x1": x1}
    (expected,) = stock_session(model).run(None, feeds)
    assert np.isnan(expected).all(-1).sum() == 6
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        assert np.array_equal(np.isnan(session.run(None, feeds)[0]), np.isnan(expected))


def test_codes_of_integers_have_no_mark() -> None:
    body = RANGE + "r = Clip(m, eps) s = Div(r, c127) t = Div(x, s) n = Round(t) k = Clip(n, low, high)"
    model = model_of(
        f"{body} i = Cast<to = 3>(k) c = Cast<to = 1>(i) y0 = Mul(c, s) {PRODUCT}", CONSTANTS, inputs=INPUTS
    )
    (expected,) = stock_session(model).run(None, {"x": with_nan()})
    (actual,) = make_session(rewrite(model).to_proto(), "native").run(None, {"x": with_nan()})
    assert np.isfinite(expected[2, [1, 2]]).all()
    assert (np.isfinite(actual) == np.isfinite(expected)).all()


WIDE = {
    "int32": "i = Cast<to = 6>(k) m0 = MatMul(i, wide)",
    "int64": "i = Cast<to = 7>(k) v = Cast<to = 7>(wide) m0 = MatMul(i, v)",
    "Einsum": 'i = Cast<to = 6>(k) m0 = Einsum<equation = "bmk,kn->bmn">(i, wide)',
    "two activations": "i = Cast<to = 6>(k) t1 = Transpose<perm = [0, 2, 1]>(i) m0 = MatMul(i, t1)",
}


@pytest.mark.parametrize("form", WIDE)
def test_exact_rows_of_codes_that_are_cast_to_wide_integers(form: str) -> None:
    """A Cast to int32 makes -2**31 of NaN, which times an odd weight is -2**31 again: no 8-bit code does that."""
    body = f"{RANGE} r = Clip(m, eps) s = Div(r, c127) t = Div(x, s) n = Round(t) k = Clip(n, low, high) {WIDE[form]}"
    constants = {**CONSTANTS, "wide": CODES.astype(np.int32)}
    model = model_of(f"{body} f = Cast<to = 1>(m0) y = Mul(f, s)", constants, inputs=INPUTS)
    result = rewrite(model, exact=True)
    assert [each.unconverted and each.unconverted.reason for each in result.report.unconverted] == [
        Reason.EXACT_WIDE_CODES
    ]
    x = data()
    x[0, 3, 20], x[2, 3], x[2, 4, 13:], x[1, 5, 9], x[1, 6, 7] = np.nan, np.nan, np.nan, np.inf, -np.inf
    (expected,) = stock_session(model).run(None, {"x": x})
    assert (expected.min(-1) < -1e6).sum() > 2
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        assert_same(session.run(None, {"x": x})[0], expected)
    if form != "two activations":
        assert products(rewrite(model).report) == ["QuantizedMatMul"]


def test_verify_compares_nan() -> None:
    """Without its mark, a row is finite where the model's is NaN."""
    model = model_of(FINITE_CODES["range: Clip"] + PRODUCT, CONSTANTS, inputs=INPUTS)
    result, x = rewrite(model).to_proto(), with_nan()
    assert verify(model, result, inputs={"x": x}).passed
    (node,) = (each for each in result.graph.node if each.op_type == "RowProgram")
    (program,) = (each for each in node.attribute if each.name == "program")
    program.s = program.s.replace(b"Equal(x, x)", b"Or(Equal(x, x), Not(Equal(x, x)))")
    assert "finite where A's are NaN" in verify(model, result, inputs={"x": x}).reason


def test_verify_knows_the_roundings_of_a_difference() -> None:
    """q * s - z * s is near 0, and the model rounds q * s and z * s."""
    body = (
        ENDS
        + "h = Max(mx, zero) l = Min(mn, zero) d = Sub(h, l) e = Max(d, eps) s = Div(e, c255) f = Div(l, s) g = Neg(f)"
    )
    body += " z0 = Round(g) z = Clip(z0, zero, c255) t = Div(x, s) n = Round(t) u = Add(n, z) c = Clip(u, zero, c255)"
    body += " v = Mul(c, s) w0 = Mul(z, s) y0 = Sub(v, w0) "
    weights = np.where(np.arange(K)[:, None] == 1, F(0), CONSTANTS["w"])
    model = model_of(body + PRODUCT, {**CONSTANTS, "w": weights}, inputs=INPUTS)
    x = np.random.default_rng(8).normal(0, 1, (2, 9, K)).astype(F)
    x[0] *= F(3e-8)
    x[0, :, 1] = F(-9e-6)  # the zero point is large, and the weights of this element are 0
    assert verify(model, rewrite(model).to_proto(), inputs={"x": x}).passed


LOST = {  # docs/numerics.md has the reasons
    "brevitas_tensor": "rows share a scale",
    "frame_unclipped": "a convolution",
    "joined_parts": "rows share a scale",
    "moved_codes": "rows share a scale",
    "relative_bounds": "x is clamped before it is divided",
    "shared_scales": "rows share a scale",
    "token_float_offset": "no epsilon",
    "torch_quarot": "x is reshaped before it is reduced",
    "torch_quarot_group": "x is reshaped before it is reduced",
}
OTHERS = {"ort_dynamic_lstm", "ort_nbits"}
"""Models whose operators of com.microsoft quantize NaN in other ways."""


@pytest.mark.parametrize("name", [*LOST, *every(12, [each for each in FOLDERS if each not in {*LOST, *OTHERS}])])
def test_models_that_lose_nan(name: str) -> None:
    """In others, the same elements are NaN, and exact rewrites lose none. Verification finds what is lost."""
    model, feeds = onnx.load(MODELS / name / "model.onnx"), recorded_inputs(MODELS / name)
    given = next((each for each, array in feeds.items() if array.dtype.kind == "f" and array.size > 8), None)
    if given is None:
        pytest.skip("no input of floats")
    results = [rewrite(model, exact=exact).to_proto() for exact in (False, True)]
    sessions = [stock_session(model), *(make_session(each, "native") for each in results)]
    rng, passes = np.random.default_rng(0), set()
    for _ in range(10):
        inputs = {**feeds, given: feeds[given].copy()}
        inputs[given].flat[rng.integers(feeds[given].size)] = np.nan
        found = [session.run(None, inputs) for session in sessions]
        expected, actual, exact = (
            np.array([element != element for each in outputs for element in np.ravel(each)]) for outputs in found
        )
        assert np.array_equal(exact, expected)
        assert not (actual & ~expected).any()
        if (expected & ~actual).any():
            passes.add(verify(model, results[0], inputs=inputs).passed)
    assert passes == ({False} if name in LOST else set())
