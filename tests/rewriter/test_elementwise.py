"""Elementwise nodes between other layers as one program: its bits are the model's, except those of functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session, with_one_nan
from onnx import numpy_helper
from rewriting import operators

import ort_dynq
from ort_dynq import rewrite

C, H, W = 6, 17, 43  # rows of a channel end in a part of a vector
CONSTANTS = {
    "zero": 0.0,
    "three": 3.0,
    "six": 6.0,
    "tenth": 0.1,
    "two": 2.0,
    "number": np.array([0.37], np.float32),
    "slope": np.linspace(-0.5, 1.5, C, dtype=np.float32).reshape(C, 1, 1),
    "channel": np.linspace(-2, 2, C, dtype=np.float32).reshape(1, C, 1, 1),
    "gain": np.linspace(0.5, 2, C, dtype=np.float32),
    "shift": np.linspace(-1, 1, C, dtype=np.float32),
    "mean": np.linspace(-0.3, 0.4, C, dtype=np.float32),
    "variance": np.linspace(0.2, 3, C, dtype=np.float32),
    "column": np.linspace(-1, 3, W, dtype=np.float32),
}
HARD_SWISH = "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) h = Div(m, six)"
EXACT = {
    "HardSwish by nodes": f"{HARD_SWISH} y = Mul(h, number)",
    "learned scalars": f"s = Mul(number, x0) x = Add(s, number) {HARD_SWISH} t = Mul(h, number) y = Add(t, number)",
    "HardSigmoid by nodes": "m = Mul(x, tenth) a = Add(m, three) c = Clip(a, zero, six) y = Div(c, six)",
    "HardSwish and a sum": "h = HardSwish(x) y = Add(h, r)",
    "PRelu": "p = PRelu(x, slope) y = Mul(p, channel)",
    "PRelu alone": "y = PRelu(x, slope)",
    "LeakyRelu alone": "y = LeakyRelu<alpha = 0.3>(x)",
    "HardSwish alone": "y = HardSwish(x)",
    "LeakyRelu": "p = LeakyRelu<alpha = 0.1>(x) y = Add(p, r)",
    "two sums": "s = Add(x, r) t = Relu(s) y = Add(t, r)",
    "gate": "s = Mul(x, g) y = Add(s, r)",
    "gate of HardSigmoid": "k = HardSigmoid(g) s = Mul(x, k) y = Add(s, r)",
    "channels": "s = Mul(x, channel) t = Add(s, slope) y = Relu(t)",
    "columns": "s = Mul(x, column) y = Add(s, column)",
    "BatchNormalization": "b = BatchNormalization(x, gain, shift, mean, variance) y = Relu(b)",
}
FUNCTIONS = {
    "Softplus alone": "y = Softplus(x)",
    "Selu alone": "y = Selu(x)",
    "Mish": "m = Mish(x) y = Add(m, r)",
    "Elu": "m = Elu(x) y = Mul(m, g)",
    "Sigmoid of a gate": "s = Sigmoid(x) t = Mul(s, r) y = Add(t, x)",
}


def model_of(body: str, dims: str = f"N, {C}, {H}, {W}") -> onnx.ModelProto:
    given = "x0" if "x0" in body else "x"
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        m (float[{dims}] {given}, float[{dims}] r, float[N, {C}, 1, 1] g) => (float[{dims}] y) {{ {body} }}"""
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in CONSTANTS.items()
    )
    return model


def data(body: str) -> dict[str, Array]:
    """Ordinary numbers, rounding ties, zeros of both signs, denormal, huge and infinite numbers, and NaN."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 4, (2, C, H, W)).astype(np.float32)
    x.flat[::7] = rng.integers(-64, 64, x.flat[::7].size) / 16
    x.flat[:12] = (0, -0.0, 1e-41, -1e-41, 3e38, -3e38, np.inf, -np.inf, np.nan, -3, 3, 6)
    r, g = (rng.normal(0, 1, (2, C, *dims)).astype(np.float32) for dims in ((H, W), (1, 1)))
    return {"x0" if "x0" in body else "x": x, "r": r, "g": g}


def run(model: onnx.ModelProto, body: str) -> Array:
    y = make_session(model, "native").run(None, data(body))[0]
    return with_one_nan(y)


@pytest.mark.parametrize("body", EXACT.values(), ids=EXACT)
def test_bits_of_the_nodes(body: str, isa: str) -> None:
    model = model_of(body)
    converted = rewrite(model, fuse=True).to_proto()
    assert operators(converted) == {"ort_dynq.RowProgram": 1}
    assert {node.op_type for node in converted.graph.node} <= {"RowProgram", "Constant", "HardSigmoid"}
    expected = with_one_nan(stock_session(model).run(None, data(body))[0])
    assert_same(run(converted, body), expected)
    assert_same(with_one_nan(stock_session(converted).run(None, data(body))[0]), expected)


@pytest.mark.parametrize("body", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions(body: str, isa: str) -> None:
    """`verify` compares them with the nodes in float64; the function body has the kernels' bits."""
    model, feeds = model_of(body), {name: np.nan_to_num(each, posinf=9, neginf=-9) for name, each in data(body).items()}
    converted = rewrite(model, fuse=True).to_proto()
    assert operators(converted) == {"ort_dynq.RowProgram": 1}
    native, stock = (f(converted).run(None, feeds)[0] for f in (lambda m: make_session(m, "native"), stock_session))
    assert_same(native, stock)
    assert ort_dynq.verify(model, converted, inputs={name: each.clip(-1e3, 1e3) for name, each in feeds.items()}).passed


def test_shapes_are_followed() -> None:
    """The sizes of images are not known: what functions of x compute has the shape of x."""
    body = EXACT["learned scalars"]
    model = model_of(body, dims=f"N, {C}, height, width")
    del model.graph.value_info[:]
    assert operators(rewrite(model, fuse=True).to_proto()) == {"ort_dynq.RowProgram": 1}


def test_without_fusions() -> None:
    """A rewrite leaves them without --fuse, as a quantization does without fusions."""
    assert not operators(rewrite(model_of(EXACT["learned scalars"])).to_proto())


@pytest.mark.parametrize(
    "body",
    [
        "y = Add(x, r)",  # one node
        "f = Transpose<perm = [0, 1, 3, 2]>(x) y = BatchNormalization(f, gain, shift, mean, variance)",
        "c = Conv<group = 6>(x, ones) a = Relu(c) y = Identity(a)",  # ONNX Runtime fuses Relu with Conv
        "c = Conv<group = 6>(x, ones) a = HardSwish(c) y = Identity(a)",
        "c = Conv<group = 6>(x, ones) a = LeakyRelu(c) y = Identity(a)",
        "k = HardSigmoid(g) l = Mul(k, number) y = Mul(x, l)",  # few numbers, then one node
    ],
)
def test_what_stays(body: str) -> None:
    model = model_of(body)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((C, 1, 1, 1), np.float32), "ones"))
    assert not operators(rewrite(model, fuse=True).to_proto())


def test_small_tensors_stay() -> None:
    model = model_of(EXACT["two sums"], dims="1, 6, 8, 8")
    assert not operators(rewrite(model, fuse=True).to_proto())


def pooled(opset: int, before: str = EXACT["learned scalars"].replace("y = Add", "u = Add")) -> onnx.ModelProto:
    model = model_of(f"{before} y = GlobalAveragePool(u)")
    model.opset_import[0].version = opset
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    return model


@pytest.mark.parametrize("opset", [17, 18])
def test_means_of_channels(opset: int) -> None:
    """ReduceMean takes half of the time. `verify` compares it in float64; the terms are far larger than their mean."""
    model = pooled(opset)
    given = next(each for each in ("x0", "x") if each in {value.name for value in model.graph.input})
    rng = np.random.default_rng(3)
    feeds = {given: rng.normal(-0.4, 3, (2, C, H, W)).astype(np.float32)}
    feeds |= {"r": feeds[given], "g": np.zeros((2, C, 1, 1), np.float32)}
    converted = rewrite(model, fuse=True).to_proto()
    assert operators(converted) == {"ort_dynq.RowProgram": 1}
    assert {node.op_type for node in converted.graph.node} == {"RowProgram", "Constant", "ReduceMean"}
    verification = ort_dynq.verify(model, converted, inputs=feeds)
    assert verification.passed, verification
    assert [each.is_fusion for each in verification.products] == [True]


def test_pools_of_convolutions_stay() -> None:
    """There, ONNX Runtime reads the layout that the Conv writes."""
    model = pooled(18, "u = Conv(x, ones)")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((C, C, 1, 1), np.float32), "ones"))
    assert "ReduceMean" not in {node.op_type for node in rewrite(model, fuse=True).to_proto().graph.node}
