"""Products of a sum of two quantized terms, such as q(x) + q(x - q(x)), and of rows of an embedding of codes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import diagonals, make_session, stock_session, with_arrays
from rewriting import F, check_products, parse, products, rows

from ort_dynq.rewriter import rewrite

K = 512
TERM = "a{i} = Abs({x}) m{i} = ReduceMax<keepdims = 1>(a{i}, one) b{i} = Max(m{i}, eps) s{i} = Div(b{i}, c127)"
TERM += " v{i} = Div({x}, s{i}) r{i} = Round(v{i}) c{i} = Clip(r{i}, low, high) d{i} = Mul(c{i}, s{i}) "
TWO = TERM.format(i=0, x="x") + "rest = Sub(x, d0) " + TERM.format(i=1, x="rest") + "d = Add(d0, d1) "
OF_TWO_INPUTS = TERM.format(i=0, x="x") + TERM.format(i=1, x="other") + "d = Add(d1, d0) "
WEIGHTS = np.random.default_rng(0).integers(-127, 128, (K, K)).astype(F) * F(0.01)
CONSTANTS = {"w": WEIGHTS, "bias": np.linspace(-9, 9, K, dtype=F), "small": WEIGHTS[:, :64].copy()}


def model_of(body: str, inputs: str = "float[N, 512] x, float[N, 512] other", **arrays: np.ndarray) -> onnx.ModelProto:
    return with_arrays(parse(body, inputs=inputs), {**CONSTANTS, **arrays})


def data(*, nan: bool = False) -> dict[str, np.ndarray]:
    x = rows((9, K), nan=nan)
    x = x if nan else np.nan_to_num(x, posinf=1, neginf=-1)
    return {"x": x, "other": x[::-1].copy()}


@pytest.mark.parametrize(
    ("product", "terms"),
    diagonals(1, ["MatMul(d, w)", "Gemm<beta = 0.5>(d, w, bias)", "Gemm<transB = 1>(d, w)"], [TWO, OF_TWO_INPUTS]),
)
def test_products(terms: str, product: str) -> None:
    model = model_of(f"{terms} p = {product} y = Add(p, bias)")
    report = check_products(model, data())
    assert products(report) == ["QuantizedMatMul"]
    assert not report.unconverted
    inputs, converted = data(nan=True), rewrite(model).to_proto()
    (expected,) = stock_session(model).run(None, inputs)
    for session in (make_session(converted, "native"), stock_session(converted)):
        (actual,) = session.run(None, inputs)
        assert np.isnan(expected).any()
        assert not (np.isnan(expected) & np.isfinite(actual)).any()


@pytest.mark.parametrize("body", [f"{TWO} y = MatMul(d, small)", f"{TWO} e = Add(d, x) y = MatMul(e, w)"])
def test_others_stay(body: str) -> None:
    """Two products of little weights take longer than one of floats; x is no code."""
    report = rewrite(model_of(body)).report
    assert not products(report)
    assert [each.op_type for each in report.unconverted] == ["MatMul"]


def test_rows_of_an_embedding_of_codes() -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "table": rng.integers(-127, 128, (20, 64)).astype(np.int8),
        "scales": rng.uniform(1, 2, (20, 1)).astype(F),
    }
    body = "c = Gather(table, ids) s = Gather(scales, ids) f = Cast<to = 1>(c) d = Mul(f, s) y = MatMul(d, v)"
    model = model_of(body, "int64[B, T] ids", v=WEIGHTS[:64, :96].copy(), **arrays)
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    check_products(model, {"ids": rng.integers(0, 20, (2, 7))})


def test_remainders_of_a_byte() -> None:
    body = TERM.format(i=0, x="x").replace("Clip(r0, low, high)", "Sub(r0, h)")
    body = body.replace("c0 =", "f = Div(r0, n) g = Floor(f) h = Mul(g, n) c0 =").replace("c127)", "number)")
    model = model_of(f"{body} y = MatMul(d0, w)", n=np.array(256, F), number=np.array(12700, F))
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
    check_products(model, {"x": data()["x"]})
