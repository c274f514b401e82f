"""The rule for normalizations, and fusions of a whole layer.

`verify` compares each fusion with the original's nodes in float64, and everything else bit for bit. The function
body, which stock ONNX Runtime runs, gives the same bits as the kernels.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, in_turn, make_session, parse, stock_session, with_one_nan
from rewriting import operators, programs

import ort_dynq
from ort_dynq import DynqError, rewrite
from ort_dynq.quantizer import quantize_layers
from ort_dynq.quantizer.options import Options

WIDTH = 48
LAYER = "y = LayerNormalization<axis = -1, epsilon = 1e-5>({0}, gain, shift)"
NORMS = {
    "LayerNormalization": LAYER,
    "by axis": LAYER.replace("axis = -1", "axis = 2"),
    "without shift": LAYER.replace(", shift", ""),
    "ReduceMean, Pow, Sqrt, Div": """mean = ReduceMean<axes = [-1]>({0}) d = Sub({0}, mean) p = Pow(d, two)
        v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) s = Sqrt(e) n = Div(d, s) m = Mul(n, gain)
        y = Add(m, shift)""",
    "of squares": """mean = ReduceMean<axes = [-1]>({0}) d = Sub({0}, mean) p = Mul(d, d) v = ReduceMean<axes = [-1]>(p)
        e = Add(epsilon, v) s = Sqrt(e) r = Reciprocal(s) g = Mul(r, gain) m = Mul(d, g) y = Add(m, shift)""",
    "of tf2onnx": """mean = ReduceMean<axes = [-1]>({0}) d = Sub({0}, mean) p = Mul(d, d) v = ReduceMean<axes = [-1]>(p)
        e = Add(v, epsilon) s = Sqrt(e) r = Reciprocal(s) g = Mul(r, gain) m = Mul({0}, g) mg = Mul(mean, g)
        b = Sub(shift, mg) y = Add(m, b)""",
    "RMS": """p = Pow({0}, two) v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) s = Sqrt(e) r = Reciprocal(s)
        n = Mul({0}, r) y = Mul(gain, n)""",
    "RMS by Div": """p = Mul({0}, {0}) v = ReduceMean<axes = [2]>(p) e = Add(v, epsilon) s = Sqrt(e) n = Div({0}, s)
        y = Mul(n, gain)""",
    "RMS by Pow": """p = Pow({0}, two) v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) r = Pow(e, minus_half)
        n = Mul({0}, r) y = Mul(n, gain)""",
    "length of rows": """v = ReduceSumSquare<axes = [-1]>({0}) w = Div(v, width) e = Add(w, epsilon) s = Sqrt(e)
        n = Div({0}, s) y = Mul(n, gain)""",
}
QUANTIZATIONS = {
    "symmetric": """a = Abs(y) peak = ReduceMax<axes = [-1]>(a) c = Clip(peak, tiny) s1 = Div(c, high) q = Div(y, s1)
        i = Round(q) k = Clip(i, low, high) f = Mul(k, s1)""",
    "asymmetric": """l0 = ReduceMin<axes = [-1]>(y) h0 = ReduceMax<axes = [-1]>(y) l = Min(l0, zero) h = Max(h0, zero)
        w1 = Sub(h, l) s0 = Div(w1, steps) s1 = Clip(s0, tiny) o = Div(l, s1) o1 = Round(o) o2 = Sub(low, o1)
        z = Clip(o2, low, high) q = Div(y, s1) i = Round(q) j = Add(i, z) k = Clip(j, low, high) t = Sub(k, z)
        f = Mul(t, s1)""",
}


def model_of(body: str, outputs: str = "float[] out") -> onnx.ModelProto:
    """A model of x and other, float32 [N, T, WIDTH]; weights are [WIDTH, 64]."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, T, {WIDTH}] x, float[N, T, {WIDTH}] other) => ({outputs})
        <float zero = {{0}}, float two = {{2}}, float minus_half = {{-0.5}}, float epsilon = {{1e-5}},
         float tiny = {{1e-5}},
         float low = {{-128}}, float high = {{127}}, float steps = {{255}}, float width = {{{WIDTH}}}>
        {{ {body} }}"""
    )
    grid = np.asarray(rng.integers(-127, 128, (WIDTH, 64)) * (rng.random(64) / 100)).astype(np.float32)
    for name, array in (
        ("weights", grid),
        ("gain", rng.normal(1, 0.3, WIDTH)),
        ("shift", rng.normal(0, 0.3, WIDTH)),
    ):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


def data() -> dict[str, Array]:
    """Rows of ordinary numbers, of a large mean, of zeros, of tiny and of huge numbers."""
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (2, 7, WIDTH))
    x[0, 1] += 100
    x[0, 2] = 0
    x[1, 3] *= 1e-6
    x[1, 4] *= 1e4
    return {"x": x.astype(np.float32), "other": rng.normal(0, 1, x.shape).astype(np.float32) * (x != 0)}


def check(model: onnx.ModelProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    """Fuses, verifies, and compares kernels and functions with each other; returns the new model."""
    result = rewrite(model, fuse=True)
    converted = result.to_proto()
    verification = ort_dynq.verify(model, converted, inputs=feeds)
    assert verification.passed, verification
    for stock, native in zip(
        stock_session(converted).run(None, feeds), make_session(converted, "native").run(None, feeds), strict=True
    ):
        assert_same(with_one_nan(native), with_one_nan(stock))
    return converted


@pytest.mark.parametrize(("quantization", "norm"), in_turn(QUANTIZATIONS, NORMS))
def test_normalization_and_quantization(norm: str, quantization: str) -> None:
    body = f"x1 = Add(x, other) {NORMS[norm].format('x1')} {QUANTIZATIONS[quantization]} out = MatMul(f, weights)"
    converted = check(model_of(body), data())
    assert operators(converted) == {"ort_dynq.RowProgram": 1, "ort_dynq.QuantizedMatMul": 1}
    (program,) = programs(converted)
    assert "ReduceSum" in program
    assert "tensor" in program
    left = {node.op_type for node in converted.graph.node} - {"Constant", "RowProgram", "QuantizedMatMul"}
    assert not left


def test_sum_and_result_are_outputs() -> None:
    """As in a layer that normalizes first: the residual goes on, and another branch reads the normalized tensor."""
    body = (
        f"x1 = Add(x, other) {LAYER.format('x1')} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights) r1 = Mul(y, y)"
    )
    converted = check(model_of(body, "float[] out, float[] x1, float[] r1"), data())
    (program,) = programs(converted)
    assert "dst = " in program
    assert "dst_2 = " in program


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        (f"x1 = Add(x, other) {LAYER.format('x1').replace('y =', 'out =')}", 1),  # ONNX Runtime's form is slow
        (LAYER.format("x").replace("y =", "out ="), 0),  # ONNX Runtime's form is fast
        ("out = LayerNormalization<axis = 1>(x, both)", 0),  # of two dimensions
        (
            "out, d, v, s = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, other, gain, shift)",
            1,
        ),
        *((f"{NORMS[name].format('x')} out = Identity(y)", 1) for name in ("RMS", "RMS by Pow")),  # nodes of their own
        (f"{NORMS['RMS by Div'].format('x')} out = Identity(y)", 0),
        (f"{NORMS['length of rows'].format('x')} out = Identity(y)", 1),  # Div and Mul, without the length
        ("v = ReduceMean<axes = [-1]>(x) e = Add(v, epsilon) s = Sqrt(e) r = Reciprocal(s) out = Mul(r, x)", 1),
        ("v = ReduceMean<axes = [-1]>(x) e = Add(v, epsilon) r = Reciprocal(e) out = Mul(r, x)", 0),
    ],
)
def test_without_quantization(nodes: str, count: int) -> None:
    model = model_of(nodes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((7, WIDTH), np.float32), "both"))
    result = rewrite(model, fuse=True)
    assert operators(result.to_proto()).get("ort_dynq.RowProgram", 0) == count
    if count and "microsoft" not in nodes:
        check(model, data())


@pytest.mark.parametrize("last", ["n{i} = Mul(s{i}, r{i})", "n{i} = Mul(r{i}, s{i})"])
def test_sum_that_is_a_residual(last: str) -> None:
    """The sum before a layer's normalization is added to the layer's result: each normalization is one program."""
    body = "s0 = Add(x, other)"
    for i in range(3):
        body += f""" p{i} = Pow(s{i}, two) v{i} = ReduceMean<axes = [-1]>(p{i}) e{i} = Add(v{i}, epsilon)
            q{i} = Sqrt(e{i}) r{i} = Reciprocal(q{i}) {last.format(i=i)} y{i} = Mul(gain, n{i})
            a{i} = MatMul(y{i}, weights) b{i} = MatMul(a{i}, turned) s{i + 1} = Add(s{i}, b{i})"""
    model = model_of(f"{body} out = Identity(s3)")
    turned = np.random.default_rng(1).normal(0, 0.1, (64, WIDTH)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(turned, "turned"))
    fused = rewrite(model, fuse=True).to_proto()
    found = programs(fused)
    assert len(found) == 3
    assert all("Add(x, tensor1)" in each and "dst_2 = Mul(column2" in each for each in found)
    assert ort_dynq.verify(model, fused).passed


def test_skip_layer_normalization() -> None:
    """ONNX Runtime's own operator, in a model that was optimized before: against the nodes of a plain model."""
    skip = "y, m0, v0, x1 = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, other, gain, shift)"
    plain = f"x1 = Add(x, other) {LAYER.format('x1')}"
    tail = f"{QUANTIZATIONS['symmetric']} out = MatMul(f, weights)"
    fused = rewrite(model_of(f"{skip} {tail}", "float[] out, float[] x1"), fuse=True).to_proto()
    expected = rewrite(model_of(f"{plain} {tail}", "float[] out, float[] x1"), fuse=True).to_proto()
    assert [*map(len, programs(fused))] == [*map(len, programs(expected))]  # the names of operands differ
    for a, b in zip(*(make_session(each, "native").run(None, data()) for each in (fused, expected)), strict=True):
        assert_same(a, b)


def test_only_with_fuse() -> None:
    body = f"x1 = Add(x, other) {LAYER.format('x1')} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights)"
    for exact in (False, True):
        assert not any("ReduceSum" in each for each in programs(rewrite(model_of(body), exact=exact).to_proto()))
    with pytest.raises(DynqError, match="leave one of them out"):
        rewrite(model_of(body), exact=True, fuse=True)


def test_nan_stays() -> None:
    """A NaN makes its whole row NaN, as in the original."""
    body = f"x1 = Add(x, other) {LAYER.format('x1')} {QUANTIZATIONS['symmetric']} out = MatMul(f, weights)"
    feeds = data()
    feeds["x"][0, 3, 5] = np.nan
    feeds["x"][1, 0, 0] = np.inf
    model = model_of(body, "float[] out, float[] y")
    fused = make_session(rewrite(model, fuse=True).to_proto(), "native").run(None, feeds)
    original = stock_session(model).run(None, feeds)
    assert np.isnan(fused[1][0, 3]).all()
    for a, b in zip(fused, original, strict=True):
        rows = np.isnan(b).any(-1)
        np.testing.assert_array_equal(np.isnan(a).any(-1)[rows], True)
        assert np.isfinite(a[~rows]).all()


@pytest.mark.parametrize("fuse", [False, True])
def test_quantize(fuse: bool) -> None:
    """A float layer with Gelu: quantized with and without fusions, the results differ in last bits before rounding."""
    rng = np.random.default_rng(0)
    body = f"""x1 = Add(x, other) {LAYER.format("x1")} u = MatMul(y, up) u1 = Add(u, bias) c = Div(u1, root)
        e = Erf(c) e1 = Add(e, one) m1 = Mul(u1, e1) m2 = Mul(m1, half) dn = MatMul(m2, down) out = Add(dn, x1)"""
    model = model_of(body)
    width = 512
    for name, array in (
        ("up", rng.normal(0, 0.1, (WIDTH, width))),
        ("down", rng.normal(0, 0.1, (width, WIDTH))),
        ("bias", rng.normal(0, 0.1, width)),
        ("root", np.sqrt(2)),
        ("one", 1),
        ("half", 0.5),
    ):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    result = quantize_layers(model, Options(fuse=fuse))
    converted, texts = result.to_proto(), programs(result.to_proto())
    assert any("ReduceSum" in each for each in texts) == fuse
    assert ("Gelu" in str(converted.graph)) == fuse
    assert len(result.report.fused) == 2 * fuse
    (expected,) = stock_session(model).run(None, data())
    sessions = stock_session(converted), make_session(converted, "native")
    (stock,), (native,) = (each.run(None, data()) for each in sessions)
    if fuse:
        assert_same(native, stock)
    error = np.abs(native - expected).max(-1) / np.abs(expected).max(-1)
    assert error.max() < 0.02  # 8 bits


def test_codes_of_an_earlier_rewrite() -> None:
    """A program's outputs of codes round and saturate, also for nodes that become steps of the same program."""
    program = "codes = Mul(x, 100.0); scale = ReduceMax(Abs(x)); zero_point = Mul(ReduceMax(x), 0.3)"
    model = parse(
        "float[4, 256] x",
        "int8[4, 256] codes, int8[4, 1] z, float[4, 1] s, float[4, 256] y",
        f"""like = Constant<value = int8 {{0}}>() u = Constant<value_float = 0.0>() n = LayerNormalization(x, gains)
            codes, z, d, e, s, m = ort_dynq.RowProgram<program = "{program}", code_type = 3>(n, like, u, u, u, u)
            f = Cast<to = 1>(codes) g = Cast<to = 1>(z) h = Sub(f, g) y = Mul(h, s)""",
        opset=17,
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(256, np.float32), "gains"))
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    codes, _, _, y = make_session(model, "native").run(None, {"x": x})
    result = rewrite(model, fuse=True)
    assert "dst_2 = Mul(Sub(Int8(" in programs(result.to_proto())[0]
    other_codes, _, _, other_y = make_session(result.to_proto(), "native").run(None, {"x": x})
    same = codes == other_codes  # a last bit of the normalization may change a code by one
    assert same.mean() > 0.99
    np.testing.assert_allclose(other_y[same], y[same], rtol=1e-5)  # and the scale in its last bits
