"""Gates of channels become ChannelGate; other nodes around means and products of single positions stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, make_session, stock_session
from onnx import numpy_helper
from rewriting import operators

from ort_dynq import rewrite

C, H, SIZE = 17, 5, (9, 7)
FIRST, SECOND = "m = GlobalAveragePool(x) a = Conv(m, w1, b1)", "c = Conv(b, w2, b2)"
FLAT = "m = GlobalAveragePool(x) p = Flatten(m)"
GATES = {
    "HardSigmoid": f"{FIRST} b = Relu(a) {SECOND} g = HardSigmoid(c) y = Mul(x, g)",
    "Sigmoid, SiLU": f"{FIRST} s = Sigmoid(a) b = Mul(a, s) {SECOND} g = Sigmoid(c) y = Mul(g, x)",
    "HardSwish and HardSigmoid by nodes, and x": f"{FIRST} p = Add(a, three) k = Clip(p, zero, six) t = Mul(a, k) "
    f"b = Div(t, six) {SECOND} d = Add(c, three) e = Clip(d, zero, six) g = Div(e, six) u = Mul(x, g) y = Add(x, u)",
    "ReduceMean, biases as nodes": "m = ReduceMean(x, axes) v = Conv(m, w1) a = Add(v, channel_1) b = Relu(a) "
    "z = Conv(b, w2) c = Add(channel_2, z) g = Sigmoid(c) y = Mul(x, g)",
    "no function between, a function behind": f"{FIRST} b = Identity(a) {SECOND} g = Sigmoid(c) u = Mul(x, g) "
    "y = HardSwish(u)",
    "the mean of one position": "m = GlobalAveragePool(x) a = Conv<auto_pad = 'SAME_UPPER'>(m, w1, b1) b = Relu(a) "
    f"{SECOND} g = Sigmoid(c) y = Mul(x, g)".replace("'", '"'),
    "Flatten, Gemm, Reshape": f"{FLAT} a = Gemm<transB = 1>(p, f1, b1) b = Relu(a) c = Gemm<transB = 1>(b, f2, b2) "
    "s = Sigmoid(c) g = Reshape(s, image) y = Mul(x, g)",
    "means without positions, MatMul, Expand": "m = ReduceMean<keepdims = 0>(x, axes) a = MatMul(m, k1) b = Relu(a) "
    "c = MatMul(b, k2) s = Sigmoid(c) u = Unsqueeze(s, axes) d = Shape(x) g = Expand(u, d) v = Mul(x, g) y = Add(v, x)",
    "lengths at run time, biases as nodes": "m = GlobalAveragePool(x) d = Shape<start = 0, end = 1>(x) "
    "e = Concat<axis = 0>(d, channels) p = Reshape(m, e) q = MatMul(p, k1) a = Add(q, b1) l = Sigmoid(a) b = Mul(a, l) "
    "z = MatMul(b, k2) c = Add(b2, z) u = Reshape(c, image) g = HardSigmoid(u) y = Mul(g, x)",
    "a Gemm and a Conv": f"{FLAT} q = Gemm(p, k1) a = Add(q, b1) u = Unsqueeze(a, axes) b = Relu(u) {SECOND} "
    "g = Sigmoid(c) y = Mul(x, g)",
}
OTHERS = {
    "another tensor": f"{FIRST} b = Relu(a) {SECOND} g = Sigmoid(c) y = Mul(r, g)",
    "no product with x": f"{FIRST} b = Relu(a) {SECOND} g = Sigmoid(c) y = Mul(g, six)",
    "the hidden numbers are read elsewhere": f"{FIRST} b = Relu(a) {SECOND} g = Sigmoid(c) u = Mul(x, g) "
    "n = ReduceSum(b) y = Add(u, n)",
    "the gate is read elsewhere": f"{FIRST} b = Relu(a) {SECOND} g = Sigmoid(c) u = Mul(x, g) v = Mul(r, g) "
    "y = Concat<axis = 0>(u, v)",
    "pads": "m = GlobalAveragePool(x) a = Conv<pads = [1, 1, 1, 1]>(m, w1, b1) b = Relu(a) c = Conv(b, w2, b2) "
    "k = Sigmoid(c) g = GlobalAveragePool(k) y = Mul(x, g)",
    "the mean of rows": f"m = ReduceMean(x, last) n = GlobalAveragePool(m) a = Conv(n, w1, b1) b = Relu(a) {SECOND} "
    "g = Sigmoid(c) y = Mul(x, g)",
    "computed weights": f"w = Mul(w1, factor) m = GlobalAveragePool(x) a = Conv(m, w, b1) b = Relu(a) {SECOND} "
    "g = Sigmoid(c) y = Mul(x, g)",
    "a function that is no step": f"{FIRST} b = Sin(a) {SECOND} g = Sigmoid(c) y = Mul(x, g)",
    "a Gemm times a number": f"{FLAT} a = Gemm<alpha = 0.5>(p, k1, b1) b = Relu(a) c = Gemm(b, k2, b2) s = Sigmoid(c) "
    "g = Reshape(s, image) y = Mul(x, g)",
    "samples in one row": "m = GlobalAveragePool(x) p = Reshape(m, row) a = Gemm(p, k1, b1) b = Relu(a) "
    "c = Gemm(b, k2, b2) s = Sigmoid(c) g = Reshape(s, image) y = Mul(x, g)",
    "channels along columns": f"{FLAT} a = Gemm(p, k1, b1) b = Relu(a) c = Gemm(b, k2, b2) s = Sigmoid(c) "
    "y = Mul(x, s)",
    "hidden numbers of two ranks": f"{FLAT} a = Gemm(p, k1, b1) t = Unsqueeze(a, axes) l = Mul(a, t) "
    "b = ReduceMean<keepdims = 0>(l, lead) c = Gemm(b, k2, b2) s = Sigmoid(c) g = Reshape(s, image) y = Mul(x, g)",
    "another order of the numbers": f"{FLAT} a = Gemm(p, k1, b1) b = Relu(a) c = Gemm(b, k2, b2) s = Sigmoid(c) "
    "g = Reshape(s, swapped) y = Mul(x, g)",
    "numbers behind other dimensions": f"{FLAT} a = Gemm(p, k1, b1) b = Relu(a) c = Gemm(b, k2, b2) "
    "u = Unsqueeze(c, lead) s = Sigmoid(u) g = Reshape(s, image) y = Mul(x, g)",
}


def model_of(body: str, channels: int = C, hidden: int = H) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = {
        "w1": rng.standard_normal((hidden, channels, 1, 1)) / channels**0.5,
        "b1": rng.standard_normal(hidden),
        "w2": rng.standard_normal((channels, hidden, 1, 1)) / hidden**0.5,
        "b2": rng.standard_normal(channels),
        "channel_1": rng.standard_normal((1, hidden, 1, 1)),
        "channel_2": rng.standard_normal((channels, 1, 1)),
        "f1": rng.standard_normal((hidden, channels)) / channels**0.5,
        "f2": rng.standard_normal((channels, hidden)) / hidden**0.5,
        "k1": rng.standard_normal((channels, hidden)) / channels**0.5,
        "k2": rng.standard_normal((hidden, channels)) / hidden**0.5,
        "zero": 0.0,
        "three": 3.0,
        "six": 6.0,
    }
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        m (float[N, {channels}, h, w] x, float[N, {channels}, h, w] r, float factor) => (float[] y) {{ {body} }}"""
    )
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(each), name) for name, each in arrays.items())
    integers = {"axes": [2, -1], "last": [3], "lead": [0, 1], "channels": [channels], "row": [1, -1]}
    integers |= {"image": [-1, channels, 1, 1], "swapped": [channels, -1, 1, 1]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(each), name) for name, each in integers.items())
    return model


def feeds(channels: int = C) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    x, r = (rng.standard_normal((3, channels, *SIZE), np.float32) for _ in range(2))
    return {"x": x, "r": r, "factor": np.array(1.5, np.float32)}


def check(model: onnx.ModelProto, channels: int = C) -> None:
    """Both results differ by some roundings of sums of numbers of the size 1."""
    given = {each.name: feeds(channels)[each.name] for each in model.graph.input}
    expected = stock_session(model).run(None, given)[0]
    converted = rewrite(model, fuse=True).to_proto()
    assert operators(converted)["ort_dynq.ChannelGate"] == 1
    assert not {"Conv", "Gemm", "GlobalAveragePool", "MatMul", "ReduceMean"} & {
        node.op_type for node in converted.graph.node
    }
    actual = make_session(converted, "native").run(None, given)[0]
    np.testing.assert_allclose(actual, expected, rtol=4e-6, atol=4e-6)
    assert np.abs(expected).max() > 1


@pytest.mark.parametrize("body", GATES.values(), ids=GATES)
def test_gates(body: str) -> None:
    check(model_of(body))


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others_stay(body: str) -> None:
    assert "ort_dynq.ChannelGate" not in operators(rewrite(model_of(body), fuse=True).to_proto())


def test_only_fusions_change_last_bits() -> None:
    assert not operators(rewrite(model_of(GATES["HardSigmoid"])).to_proto())


def test_large_weights_stay() -> None:
    body = GATES["HardSigmoid"]
    check(model_of(body, 256, 256), 256)
    assert not operators(rewrite(model_of(body, 257, 256), fuse=True).to_proto())
