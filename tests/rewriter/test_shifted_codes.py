"""FakeQuantize of NNCF and OpenVINO: x is clamped to [low, low + range], numbers of run time, before it is rounded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewriting import F, check, check_products, parse, products, rows

from ort_dynq.rewriter import rewrite

RANGE = """l0 = ReduceMin<keepdims = 1>(x, one) h0 = ReduceMax<keepdims = 1>(x, one) l = Min(l0, zero) h = Max(h0, zero)
    w0 = Sub(h, l) w = Max(w0, eps) sc = Div(c255, w) """
CLAMPS = {
    "Min, Max": "e = Add(l, w) c0 = Min(x, e) c = Max(c0, l) ",
    "Max, Min": "e = Add(w, l) c0 = Max(l, x) c = Min(e, c0) ",
}
PLAIN = "u = Sub(c, l) g = Mul(u, sc) q = Round(g) d0 = Div(q, sc) d = Add(d0, l) "
SHIFTED = "u = Sub(c, l) g = Mul(u, sc) n = Neg(l) t = Mul(n, sc) z = Round(t) k = Sub(g, z) q = Round(k) "
SHIFTED += "d = Div(q, sc) "
WEIGHTS = (np.arange(64 * 32).reshape(64, 32) * 37 % 255 - 127).astype(F) * F(0.01)


def model_of(body: str) -> onnx.ModelProto:
    model = parse(f"{body} y = MatMul(d, w1)", inputs="float[N, 64] x, float[N, 1] other")
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w1"))
    return model


def data(*, nan: bool = False) -> dict[str, np.ndarray]:
    x = rows((18, 64), nan=nan)
    x = x if nan else np.nan_to_num(x, posinf=1, neginf=-1)
    return {"x": x, "other": x[:, :1].copy()}


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("codes", [PLAIN, SHIFTED])
def test_products(codes: str, clamp: str) -> None:
    model = model_of(RANGE + CLAMPS[clamp] + codes)
    report = rewrite(model).report
    assert products(report) == ["QuantizedMatMul"]
    assert not report.unconverted
    check_products(model, data())
    check(model, data(), stock_data=(data(nan=True),))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("c = Max(c0, l)", "c1 = Max(c0, l) c = Max(c1, other)"),
        ("c = Max(c0, l)", "c1 = Max(c0, l) c = Min(c1, other)"),
        ("c0 = Min(x, e)", "c0 = Min(x, other)"),
        ("e = Add(l, w)", "e = Add(l, other)"),
        ("l = Min(l0, zero)", "l = Identity(l0)"),
        ("u = Sub(c, l)", "u = Sub(c, other)"),
        ("w = Max(w0, eps)", "w = Max(other, eps)"),
    ],
)
def test_near_misses(old: str, new: str) -> None:
    """Other bounds, and a range that does not reach 0, whose low end may be much larger than the range."""
    for codes in (PLAIN, SHIFTED):
        body = RANGE + CLAMPS["Min, Max"] + codes
        assert old in body
        report = rewrite(model_of(body.replace(old, new))).report
        assert not products(report)
        assert "MatMul" in [each.op_type for each in report.unconverted]


def test_the_bounds_hold_for_all_rows() -> None:
    """The rounded sums and differences of NumPy's float32 are those of the model."""
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e30):
        x = (rng.normal(0, 1, (2000, 16)) * scale * 10.0 ** rng.integers(-8, 8, (2000, 1))).astype(F)
        low, high = np.minimum(x.min(1, keepdims=True), F(0)), np.maximum(x.max(1, keepdims=True), F(0))
        width = np.maximum(high - low, F(1e-5))
        inverse = F(255) / width
        g = (np.maximum(np.minimum(x, low + width), low) - low) * inverse
        zero_point = np.rint(-low * inverse)
        assert np.rint(g).min() >= 0
        assert np.rint(g).max() <= 255
        codes = np.rint(g - zero_point) + zero_point
        assert codes.min() >= 0
        assert codes.max() <= 255
