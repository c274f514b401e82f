"""Elementwise nodes between other layers as one program: its bits are the model's, except those of functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from elementwise_models import EXACT, C, H, W, model_of
from helpers import Array, assert_same, make_session, stock_session, with_one_nan
from onnx import numpy_helper
from rewriting import operators

import ort_dynq
from ort_dynq import rewrite

FUNCTIONS = {
    "Softplus alone": "y = Softplus(x)",
    "Selu alone": "y = Selu(x)",
    "Mish": "m = Mish(x) y = Add(m, r)",
    "Elu": "m = Elu(x) y = Mul(m, g)",
    "Sigmoid of a gate": "s = Sigmoid(x) t = Mul(s, r) y = Add(t, x)",
}


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
        """c = Conv<group = 6>(x, ones) b = BatchNormalization(c, gain, shift, mean, variance)
        a = HardSwish(b) y = Identity(a)""",
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
