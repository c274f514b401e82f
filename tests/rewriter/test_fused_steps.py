"""Activation functions after an integer product, in its program: their errors, their ends, and what is not taken.

The functions are compared with float64. Their terms have errors of some 1e-7, relatively or, where they are smaller
than 1, absolutely; that of Elu near 0 is a difference of numbers near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session, with_arrays, with_one_nan
from rewriting import programs

import ort_dynq
from ort_dynq import rewrite

DEPTH, COLUMNS = 48, 64
_erf = np.vectorize(math.erf, otypes=[np.float64])


def elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


FUNCTIONS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "Mish": ("y = Mish(h)", lambda x: x * np.tanh(np.logaddexp(0, x))),
    "Softplus, Tanh, Mul": ("p = Softplus(h) t = Tanh(p) y = Mul(t, h)", lambda x: x * np.tanh(np.logaddexp(0, x))),
    "Softplus": ("y = Softplus(h)", lambda x: np.logaddexp(0, x)),
    "Elu": ("y = Elu(h)", elu),
    "Elu with alpha": ("y = Elu<alpha = 0.3>(h)", lambda x: elu(x, 0.3)),
    "Selu": ("y = Selu(h)", lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772)),
    "Celu": ("y = Celu<alpha = 0.7>(h)", lambda x: np.maximum(x, 0) + 0.7 * np.expm1(np.minimum(x, 0) / 0.7)),
    "squared Relu": ("r = Relu(h) y = Pow(r, two)", lambda x: np.maximum(x, 0) ** 2),
    "BiasGelu": ("y = com.microsoft.BiasGelu(h, shift)", lambda x: (x + 0.5) / 2 * (1 + _erf((x + 0.5) / 2**0.5))),
}


def model_of(body: str) -> onnx.ModelProto:
    """A product of uint8 codes of x by weights, float32 h [N, COLUMNS], and a function y of it."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
        g (float[N, {DEPTH}] x) => (float[N, {COLUMNS}] y, float[N, {COLUMNS}] g) {{
            codes, scale, zero = DynamicQuantizeLinear(x)
            sums = MatMulInteger(codes, weights, zero, weight_zero)
            real = Cast<to = 1>(sums)  both = Mul(scale, weight_scale)  h = Mul(real, both)  {body}
            g = Identity(y)
        }}"""
    )
    arrays = {
        "weights": rng.integers(-127, 128, (DEPTH, COLUMNS)).astype(np.int8),
        "weight_zero": np.array(0, np.int8),
        "weight_scale": np.array(0.001, np.float32),
        "two": np.array(2, np.float32),
        "shift": np.full(COLUMNS, 0.5, np.float32),
    }
    return with_arrays(model, arrays)


def data() -> Array:
    """Rows of small and large numbers: products of both signs up to some hundreds."""
    rng = np.random.default_rng(1)
    return (rng.normal(0, 1, (40, DEPTH)) * 10 ** rng.uniform(-3, 2, (40, 1))).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, product_isa: str) -> None:
    body, function = FUNCTIONS[name]
    model = model_of(body)
    converted = rewrite(model, fuse=True).to_proto()
    assert [node.op_type for node in converted.graph.node if "Program" in node.op_type] == [
        "DynamicQuantizedMatMulProgram"
    ]
    assert not {"Mish", "Softplus", "Tanh", "Elu", "Selu", "Celu", "Pow", "BiasGelu"} & {
        node.op_type for node in converted.graph.node
    }
    (h,) = make_session(rewrite(model_of("y = Identity(h)")).to_proto(), "native").run(["y"], {"x": data()})
    (y,) = make_session(converted, "native").run(["y"], {"x": data()})
    (stock,) = stock_session(converted).run(["y"], {"x": data()})
    assert_same(y, stock)
    expected = function(h.astype(np.float64))
    assert (np.abs(y - expected) <= 1e-6 * np.maximum(1, np.abs(expected))).all()
    assert ort_dynq.verify(model, converted, inputs={"x": data()}).passed


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ends(name: str) -> None:
    """NaN stays, and so does infinity; the limit at -infinity is that of ONNX Runtime's function, or not finite."""
    model = model_of(FUNCTIONS[name][0])
    x = np.zeros((3, DEPTH), np.float32)
    x[1] = np.nan
    converted = rewrite(model, fuse=True).to_proto()
    y = make_session(converted, "native").run(["y"], {"x": x})[0]
    expected = stock_session(model).run(["y"], {"x": x})[0]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    assert_same(with_one_nan(y), with_one_nan(stock_session(converted).run(["y"], {"x": x})[0]))


@pytest.mark.parametrize("body", ["y = Tanh(h)", "y = Pow(h, shift)", "y = Celu<alpha = 0.0>(h)"])
def test_others_stay(body: str) -> None:
    """ONNX Runtime's Tanh takes less time than the steps of a program."""
    converted = rewrite(model_of(body), fuse=True).to_proto()
    assert not any("Sigmoid" in text for text in programs(converted))
    assert ort_dynq.verify(model_of(body), converted, inputs={"x": data()}).passed
