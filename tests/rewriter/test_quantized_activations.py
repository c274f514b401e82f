"""Activation functions and the quantization of their results as one program.

`verify` compares the function with the original's nodes in float64, and everything else bit for bit. The function
body, which stock ONNX Runtime runs, gives the same bits as the kernels.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, diagonals, make_session, stock_session, with_one_nan
from rewriting import operators, programs

import ort_dynq
from ort_dynq import rewrite
from ort_dynq.quantizer import quantize_layers
from ort_dynq.quantizer.options import Options

WIDTH, COLUMNS = 256, 96
ERF = "d = Div(x, root) e = Erf(d) e1 = Add(e, one) m = Mul(x, e1) {0} = Mul(m, half)"
SILU = "t = Sigmoid(x) {0} = Mul(x, t)"
TANH = """c2 = Mul(x, x) c3 = Mul(x, c2) c = Mul(c3, cube) a1 = Add(x, c) u = Mul(a1, factor) t = Tanh(u)
    t1 = Add(t, one) m = Mul(x, t1) {0} = Mul(m, half)"""
GATED = "{0} y = Mul(g, up)"
ACTIVATIONS = {
    "Gelu": (ERF.format("y"), "Gelu(x)"),
    "gated Gelu": (GATED.format(ERF.format("g")), "Mul(Gelu(x), tensor1)"),
    "gated Gelu by tanh": (GATED.format(TANH.format("g")), "tensor1)"),
    "gated SiLU": (GATED.format(SILU.format("g")), "Mul(Mul(x, Sigmoid(x)), tensor1)"),
    "gated sigmoid": ("t = Sigmoid(x) y = Mul(up, t)", "Mul(tensor1, Sigmoid(x))"),
}
SLOWER = {"SiLU": SILU.format("y"), "Gelu by tanh": TANH.format("y"), "sigmoid": "y = Sigmoid(x)"}
QUANTIZATIONS = {
    "symmetric": """ab = Abs(y) peak = ReduceMax<axes = [-1]>(ab) p = Clip(peak, tiny) s1 = Div(p, high) q = Div(y, s1)
        i = Round(q) k = Clip(i, low, high) f = Mul(k, s1)""",
    "asymmetric": """l0 = ReduceMin<axes = [-1]>(y) h0 = ReduceMax<axes = [-1]>(y) l = Min(l0, zero) h = Max(h0, zero)
        w1 = Sub(h, l) s0 = Div(w1, steps) s1 = Clip(s0, tiny) o = Div(l, s1) o1 = Round(o) o2 = Sub(low, o1)
        z = Clip(o2, low, high) q = Div(y, s1) i = Round(q) j = Add(i, z) k = Clip(j, low, high) r = Sub(k, z)
        f = Mul(r, s1)""",
}
NUMBERS = {
    "zero": 0,
    "one": 1,
    "half": 0.5,
    "root": 2**0.5,
    "cube": 0.044715,
    "factor": (2 / np.pi) ** 0.5,
    "tiny": 1e-5,
    "low": -128,
    "high": 127,
    "steps": 255,
}


def model_of(body: str, outputs: str = "float[] out", rows: str = "N, T") -> onnx.ModelProto:
    """A model of x and up, float32 [rows, WIDTH]; `weights` are on a grid, `floats` are not."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[{rows}, {WIDTH}] x, float[{rows}, {WIDTH}] up) => ({outputs}) {{ {body} }}"""
    )
    arrays: dict[str, Array] = {name: np.array(number) for name, number in NUMBERS.items()}
    arrays["weights"] = rng.integers(-127, 128, (WIDTH, COLUMNS)) * (rng.random(COLUMNS) / 100).astype(np.float32)
    arrays["floats"] = rng.normal(0, 0.1, (WIDTH, COLUMNS))
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    return model


def data() -> dict[str, Array]:
    """Rows of ordinary, of large and of tiny numbers, of many negative ones, and of zeros."""
    rng = np.random.default_rng(1)
    x = rng.normal(0, 2, (3, 7, WIDTH))
    x[0, 1] *= 30
    x[0, 2] = 0
    x[1, 3] *= 1e-6
    x[1, 4, 1:] = -np.abs(x[1, 4, 1:]) - 20
    return {"x": x.astype(np.float32), "up": rng.normal(0, 1, x.shape).astype(np.float32)}


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


@pytest.mark.parametrize(("quantization", "activation"), diagonals(1, QUANTIZATIONS, ACTIVATIONS))
def test_rewrite(activation: str, quantization: str) -> None:
    body, expected = ACTIVATIONS[activation]
    model = model_of(f"{body} {QUANTIZATIONS[quantization]} out = MatMul(f, weights)")
    converted = rewrite(model, fuse=True).to_proto()
    assert kinds(converted) == ["RowProgram", "QuantizedMatMul"]
    (program,) = programs(converted)
    assert expected in program
    verification = ort_dynq.verify(model, converted, inputs=data())
    assert verification.passed, verification
    assert max(each.b_error for each in verification.products if each.depth == 0) > 0
    sessions = stock_session(converted), make_session(converted, "native")
    (stock,), (native,) = (each.run(None, data()) for each in sessions)
    assert_same(with_one_nan(native), with_one_nan(stock))


@pytest.mark.parametrize(("symmetric", "activation"), diagonals(1, [False, True], ACTIVATIONS))
def test_quantize(activation: str, symmetric: bool) -> None:
    model = model_of(f"{ACTIVATIONS[activation][0]} out = MatMul(y, floats)")
    result = quantize_layers(model, Options(symmetric=symmetric))
    converted = result.to_proto()
    assert kinds(converted) == ["RowProgram", "QuantizedMatMul"]
    assert [each.operator for each in result.report.fused][-1] == "RowProgram"
    (expected,) = stock_session(model).run(None, data())
    sessions = stock_session(converted), make_session(converted, "native")
    (stock,), (native,) = (each.run(None, data()) for each in sessions)
    assert_same(native, stock)
    difference, size = (np.abs(each[2]).max(-1) for each in (native - expected, expected))
    assert (difference / size).max() < 0.04  # 8 bits


@pytest.mark.parametrize("activation", SLOWER)
def test_where_onnxruntimes_function_is_faster(activation: str) -> None:
    model = model_of(f"{SLOWER[activation]} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights)")
    converted = rewrite(model, fuse=True).to_proto()
    assert operators(converted) == {"ort_dynq.RowProgram": 1, "ort_dynq.QuantizedMatMul": 1}


@pytest.mark.parametrize(("rows", "count"), [("1, 15", 0), ("1, 16", 1), ("N, 15", 1)])
def test_few_elements(rows: str, count: int) -> None:
    body = f"{ERF.format('y')} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights)"
    converted = rewrite(model_of(body, rows=rows), fuse=True).to_proto()
    assert sum("Gelu(" in text for text in programs(converted)) == count


def test_result_is_an_output() -> None:
    model = model_of(
        f"{ERF.format('y')} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights) n = Tanh(y)",
        "float[] out, float[] y, float[] n",
    )
    converted = rewrite(model, fuse=True).to_proto()
    assert kinds(converted) == ["RowProgram", "QuantizedMatMul", "Tanh"]
    assert ort_dynq.verify(model, converted, inputs=data()).passed


def test_without_quantization_and_without_fuse() -> None:
    model = model_of(ERF.format("out"))
    assert kinds(rewrite(model, fuse=True).to_proto()) == ["Gelu"]
    quantized = model_of(f"{ERF.format('y')} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights)")
    for exact in (False, True):
        assert not any("Gelu(" in text for text in programs(rewrite(quantized, exact=exact).to_proto()))


def test_nan_stays() -> None:
    """NaN and infinity stay in the result of the function, and do not change other rows."""
    model = model_of(
        f"{ERF.format('y')} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights)", "float[] out, float[] y"
    )
    feeds = data()
    feeds["x"][0, 3, 5] = np.nan
    feeds["x"][1, 0, 0] = np.inf
    found = make_session(rewrite(model, fuse=True).to_proto(), "native").run(None, feeds)
    expected = stock_session(model).run(None, feeds)
    np.testing.assert_array_equal(np.isnan(found[1]), np.isnan(expected[1]))
    np.testing.assert_array_equal(np.isinf(found[1]), np.isinf(expected[1]))
    finite = np.isfinite(expected[1]).all(-1)
    assert np.isfinite(found[0][finite]).all()
