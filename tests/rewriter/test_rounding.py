"""Codes that are rounded without Round: by sums, by Mod, by casts to int32, and with scales that are powers of two."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, pairwise, with_arrays
from rewriting import F, check, check_products, found, parse, products, rows

from ort_dynq.rewriter import rewrite

CHAIN = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) b = Max(m, eps) "
QUOTIENT = CHAIN + "s = Div(b, c127) v = Div(x, s) "
POWER = CHAIN + "i = Div(c127, b) l = Log(i) e = {} n = Floor(e) p = Pow(two, n) v = Mul(x, p) "
POWERS = POWER.format("Div(l, ln2)"), POWER.format("Mul(l, log2e)")
CEIL = CHAIN + "i = Div(b, c127) l = Log(i) e = Div(l, ln2) n = Ceil(e) s = Pow(two, n) v = Div(x, s) "
ROUNDINGS = {
    "sum": "u = Add(v, big) r = Sub(u, big)",
    "sum of the number first": "u = Add(big, v) r = Sub(u, big)",
    "remainder": "t = Mod<fmod = 1>(v, unit) r = Sub(v, t)",
    "remainder, half up": "t = Mod<fmod = 1>(v, unit) k = Sub(v, t) g = GreaterOrEqual(t, half)"
    " h = Cast<to = 1>(g) r = Add(k, h)",
    "truncation": "t = Cast<to = 6>(v) r = Cast<to = 1>(t)",
}
BACK = {QUOTIENT: "f = Mul({}, s)", POWERS[0]: "f = Div({}, p)", POWERS[1]: "f = Div({}, p)", CEIL: "f = Mul({}, s)"}
WEIGHTS = (np.arange(64 * 32).reshape(64, 32) * 37 % 255 - 127).astype(F) * F(0.01)
CONSTANTS = {"big": F(12582912), "unit": F(1), "half": F(0.5), "two": F(2)}
CONSTANTS |= {"ln2": F(np.log(2)), "log2e": F(1 / np.log(2)), "w": WEIGHTS}


def model_of(body: str) -> onnx.ModelProto:
    return with_arrays(parse(body, inputs="float[N, 64] x, float[N, 64] other"), CONSTANTS)


def data(*, nan: bool = False) -> dict[str, Array]:
    x = rows((18, 64), nan=nan)
    return {"x": x if nan else np.nan_to_num(x, posinf=1, neginf=-1), "other": x[::-1].copy()}


@pytest.mark.parametrize(("chain", "name", "clips"), pairwise(BACK, ROUNDINGS, [True, False]))
def test_products(chain: str, name: str, clips: bool) -> None:
    body = f"{chain} {ROUNDINGS[name]} "
    body += "c = Clip(r, low, high) " + BACK[chain].format("c") if clips else BACK[chain].format("r")
    model = model_of(f"{body} y = MatMul(f, w)")
    report = check_products(model, data())
    assert found(report) == ["QuantizedMatMul", "RowProgram"]
    assert not report.unconverted


@pytest.mark.parametrize("name", ROUNDINGS)
def test_codes_bit_for_bit(name: str) -> None:
    """Also those of NaN and infinities, and the sign of zeros, which 1 / y shows."""
    for chain in (QUOTIENT, POWERS[0], CEIL):
        model = model_of(f"{chain} {ROUNDINGS[name]} y = Clip(r, low, high) z = Add(r, unit) i0 = Div(unit, r)")
        model.graph.output.extend(
            onnx.helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, ["N", 64]) for each in ("r", "i0")
        )
        report = check(model, data(), stock_data=(data(nan=True),))
        assert "RowProgram" in found(report)


@pytest.mark.parametrize(
    "body",
    [
        "v = Div(x, other) u = Add(v, big) y = Sub(u, big)",
        "v = Div(x, other) u = Add(v, big) r = Sub(u, big) c = Clip(r, low, high) y = Add(c, r)",
        QUOTIENT + "u = Add(v, high) y = Sub(u, high)",
        QUOTIENT + "u = Add(v, big) y = Sub(u, high)",
        QUOTIENT + "t = Mod<fmod = 1>(v, half) y = Sub(v, t)",
        QUOTIENT + "t = Mod<fmod = 1>(v, unit) y = Sub(t, v)",
    ],
)
def test_near_misses(body: str) -> None:
    model = model_of(body)
    assert "Round" not in str(check(model, data(), stock_data=(data(nan=True),)).after)
    assert not any(each.operator == "Add" for each in rewrite(model, exact=True).report.findings)


def test_powers_of_other_logarithms_are_no_bounds() -> None:
    """2**floor(ln(r)) may be larger than r."""
    for chain in (POWER.format("Identity(l)"), POWER.format("Mul(l, two)"), POWERS[0].replace("Pow(two", "Pow(big")):
        model = model_of(f"{chain} r = Round(v) f = Div(r, p) y = MatMul(f, w)")
        assert not products(rewrite(model).report)
