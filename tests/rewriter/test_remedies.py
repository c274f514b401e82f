"""What to change in a model that loses its codes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from unconverted_models import FAKE, TRUNCATED, model_of, report_of

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason


def test_dequantized_weights_and_codes_that_are_lost() -> None:
    """The note says that the activation was codes, and where it is none any more."""
    (finding, *_) = report_of(f"{FAKE} t = Relu(f) u = DequantizeLinear(wq, eps) y = MatMul(t, u)").rewritten
    assert finding.node == "y"
    assert finding.reason.endswith("after Relu t: it is not affine; quantize after it")


def test_an_offset_is_not_where_codes_are_lost() -> None:
    """A product of floats behind a product of codes with a float offset multiplies no codes."""
    nodes = "h = ReduceMax<keepdims = 1>(x, one) l = ReduceMin<keepdims = 1>(x, one) e = Sub(h, l) k = Max(e, eps)"
    nodes += " s = Div(k, c255) o = Sub(x, l) d = Div(o, s) r = Round(d) t = Mul(r, s) f = Add(t, l)"
    model = model_of(f"{nodes} p = MatMul(f, v) g = Erf(p) y = MatMul(g, w)")
    codes = np.random.default_rng(0).integers(-127, 128, (48, 48))
    codes[0] = 127
    model.graph.initializer.append(numpy_helper.from_array((codes * 0.01).astype(np.float32), "v"))
    report = rewrite(model).report
    assert [each.operator for each in report.rewritten if each.op_type == "MatMul"] == ["QuantizedMatMul"]
    assert not report.unconverted


@pytest.mark.parametrize(
    ("nodes", "how"),
    [
        ("t = Add(d, big) r = Sub(t, big) e = Exp(r)", "rounded by adding and subtracting 12582912"),
        ("t = Mod<fmod = 1>(d, one_f) r = Sub(d, t) e = Exp(t)", "rounded by Mod"),
        ("t = Cast<to = 7>(d) r = Cast<to = 1>(t)", "truncated"),
        ("t = Add(d, big) r = Sub(t, big)", ""),
        ("t = Mod<fmod = 1>(d, one_f) r = Sub(d, t)", ""),
        ("t = Cast<to = 6>(d) r = Cast<to = 1>(t)", ""),
        ("t = Add(d, one_f) r = Sub(t, one_f)", ""),
        ("t = Mod<fmod = 1>(d, half) r = Sub(d, t)", ""),
    ],
)
def test_codes_by_arithmetic(nodes: str, how: str) -> None:
    """They are no floats: the report does not advise to quantize the model."""
    scale = "e" if "e =" in nodes else "s"
    report = report_of(f"{TRUNCATED} {nodes} c = Clip(r, low, high) f = Mul(c, {scale}) y = MatMul(f, w)")
    found = [each.reason for each in report.unconverted if each.unconverted.reason == Reason.NOT_ROUNDED]
    assert found == ([f"the codes are {how}, expected Round"] if how else [])
    assert not how or "for float models" not in report.summary


@pytest.mark.parametrize("exponent", ["Pow(base, r)", "Exp(r)"])
def test_rounded_exponents_are_no_codes(exponent: str) -> None:
    report = report_of(f"{TRUNCATED} l = Log(m) r = Floor(l) p = {exponent} f = Mul(x, p) y = MatMul(f, w)")
    assert not [each for each in report.unconverted if "Floor" in each.reason]
