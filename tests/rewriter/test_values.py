"""Bounds of values, from which rules prove that codes fit: ONNX Runtime's results lie within them."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import stock_session
from rewriting import WHOLE_CHAIN, parse, rows

from ort_dynq.rewriter.analysis.inference import Facts
from ort_dynq.rewriter.analysis.values import Values

SYMMETRIC = """a = Abs(x) m = ReduceMax(a, one) l = Max(m, eps) s = Div(l, c127) d = Div(x, s) r = Round(d)
    c = Clip(r, low, high) q = Cast<to = 3>(c) y = Cast<to = 1>(q)"""
DIFFERENCES = """a = ReduceMin(x, one) b = ReduceMax(x, one) d = Sub(x, a) e = Sub(b, a) f = Max(d, eps)
    g = Div(d, f) h = Clip(g, zero, c255) k = Floor(h) n = Sign(x) p = Abs(x) t = Mul(n, p) y = Add(g, h)"""

SQUARES = """p = Mul(x, x) m = ReduceMean(p, one) r = Sqrt(m) s = ReduceSum(p, one) l = ReduceL2(x, one)
    h = ReduceSumSquare(x, one) t = Softplus(x) w = Pow(x, eps) y = Add(p, t)"""

POOLS = """h = Clip(x, eps, c255) u = Unsqueeze(h, one) t = Transpose<perm = [0, 2, 1]>(u) g = GlobalMaxPool(t)
    p = AveragePool<kernel_shape = [3], pads = [1, 1]>(t) a = GlobalAveragePool(p) y = Add(g, a)"""
REMAINDERS = """n = Constant<value_float = 256.0>() k = Constant<value_float = -3.0>() i = Clip(x, low, c255)
    r = Round(i) d = Div(r, n) f = Floor(d) b = Mul(f, n) q = Sub(r, b) m = Mod<fmod = 1>(x, c127)
    o = Mod<fmod = 1>(r, k) w = Cast<to = 6>(r) wn = Cast<to = 6>(n) wk = Cast<to = 6>(k) e = Mod(w, wn) g = Mod(w, wk)
    h = Clip(x, eps, c255) l = Log(h) p = Pow(n, l) s = Add(q, m) y = Add(s, p)"""


@pytest.mark.parametrize("body", [POOLS, REMAINDERS, WHOLE_CHAIN, SYMMETRIC, DIFFERENCES, SQUARES])
def test_results_lie_within_the_bounds(body: str) -> None:
    model = parse(body)
    typed = {each.name: each for each in onnx.shape_inference.infer_shapes(model).graph.value_info}
    bounds = {}
    with Facts(ir.from_proto(model)) as facts:
        values = Values(facts)
        for node in facts.model.graph:
            for output in node.outputs:
                known = values.known(output)
                bounds[output.name or ""] = (known.low, known.high, known.is_integer)
    assert sum(math.isfinite(low) or math.isfinite(high) for low, high, _ in bounds.values()) >= 3
    shown = [each for name, each in typed.items() if name in bounds]
    for each in shown:
        each.type.tensor_type.ClearField("shape")
    model.graph.output.extend(shown)
    x = rows((18, 33))
    x[~np.isfinite(x)] = 1
    x[0] = np.linspace(1, 1.5, 33)  # differences of less than 1
    for output, result in zip(model.graph.output, stock_session(model).run(None, {"x": x}), strict=True):
        low, high, is_integer = bounds[output.name]
        finite = np.asarray(result, np.float64)[np.isfinite(np.asarray(result, np.float64))]
        assert low <= finite.min(), output.name
        assert finite.max() <= high, output.name
        assert not is_integer or (finite == np.rint(finite)).all(), output.name


@pytest.mark.parametrize("number", [2**24 - 254, 2**31 - 1])
def test_sums_of_integers_that_float32_rounds(number: int) -> None:
    """255 + 16776962 is 2**24 + 1; larger sums wrap around. The bounds of such sums are not known."""
    model = parse("c = Cast<to = 6>(q) s = Add(c, b) y = Sub(s, b)", inputs="uint8[N] q", outputs="int32[N] y")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int32(number), "b"))
    (result,) = stock_session(model).run(None, {"q": np.arange(256, dtype=np.uint8)})
    with Facts(ir.from_proto(model)) as facts:
        known = Values(facts).known(facts.model.graph.outputs[0])
    assert known.low <= result.min() < result.max() <= known.high
    assert result.max() == 255


def test_bounds_that_are_computed_from_constants() -> None:
    """torch exports ``clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)`` of a buffer so."""
    body = """p = Sub(bits, unit) q = Pow(two, p) most = Sub(q, unit) least = Neg(q) r = Round(x)
        c = Clip(r, least, most) y = Cast<to = 1>(c)"""
    model = parse(body)
    numbers = {"bits": 8, "unit": 1, "two": 2}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(n), name) for name, n in numbers.items())
    (result,) = stock_session(model).run(None, {"x": np.linspace(-300, 300, 33, dtype=np.float32)[None]})
    with Facts(ir.from_proto(model)) as facts:
        known = Values(facts).known(facts.model.graph.outputs[0])
    assert known.fits(result.min(), result.max())
    assert (result.min(), result.max()) == (-128, 127)


def test_integers_that_wrap_around() -> None:
    """100 * 100 is 16 in int8, and -(-128) is -128."""
    body = "d = Round(x) c = Clip(d, zero, c127) q = Cast<to = 3>(c) n = Sub(i, q) p = Mul(q, q) y = Neg(n)"
    model = parse(body, inputs="float[N] x, int8[N] i", outputs="int8[] n, int8[] p, int8[] y")
    x = np.arange(128, dtype=np.float32)
    results = stock_session(model).run(None, {"x": x, "i": np.full(128, -1, np.int8)})
    with Facts(ir.from_proto(model)) as facts:
        for output, result in zip(facts.model.graph.outputs, results, strict=True):
            known = Values(facts).known(output)
            assert known.low <= result.min() < result.max() <= known.high
    assert [result.min() for result in results] == [-128, -127, -128]
