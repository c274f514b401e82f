"""Shared by the tests of the quantizer: models of float layers, and their quantization in NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import numpy as np
import onnx
from helpers import Array, assert_same, make_session, stock_session
from onnx import TensorProto, helper, numpy_helper

from ort_dynq.backends.options import Backend
from ort_dynq.rewriter import Result
from ort_dynq.rewriter.policy import cost

F = np.float32
K, N = 160, 320  # enough weights for a quantization to pay, also of one row; K is a multiple of 32 but not of 64


@contextmanager
def every_size() -> Iterator[None]:
    """Layers of every size are quantized within the block, however little it saves."""
    others = ("_MIN_PASSES_SAVED", "_MIN_SHARE_OF_WEIGHTS")
    sizes = [name for name in vars(cost) if name.startswith("_MIN_") and name not in others]
    with mock.patch.multiple(cost, **dict.fromkeys(sizes, 0)):
        yield


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, F)


def activations(*shape: int, seed: int = 1) -> Array:
    """Rows of very different magnitude, with more positive than negative numbers, as after a Gelu."""
    rows = floats(*shape, seed=seed)
    rows[rows < 0] *= F(0.25)
    return np.asarray(rows * np.exp(floats(*shape[:-1], 1, seed=seed + 1)), F)


def model_of(
    nodes: list[onnx.NodeProto],
    constants: Mapping[str, Array],
    *,
    shape: tuple[int | str, ...] = ("M", K),
    opset: int = 20,
    functions: list[onnx.FunctionProto] | None = None,
    type_: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model with the input x and the output y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", type_, shape)],
        [helper.make_tensor_value_info("y", type_, [f"y{i}" for i in range(len(shape))])],
        [numpy_helper.from_array(elements, name) for name, elements in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports[: 2 if functions else 1], ir_version=10, functions=functions)


def product(weights: Array | None = None, **options: int) -> onnx.ModelProto:
    """A MatMul named layer by weights, [K, N]."""
    constants = {"w": floats(K, N) if weights is None else weights}
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")], constants, **options)


def run(result: Result, x: Array) -> Array:
    """The output of a quantized model with the plugin, which is also that without it, bit for bit."""
    content = result.to_proto()
    onnx.checker.check_model(content)
    (actual,) = make_session(content, "native").run(None, {"x": x})
    (stock,) = stock_session(content).run(None, {"x": x})
    assert_same(np.asarray(actual), np.asarray(stock))
    return np.asarray(actual)


def check_both_ways(result: Result, x: Array, backend: Backend) -> None:
    """A quantized model has the same bits with a backend, one thread or two, as without the plugin."""
    content = result.to_proto()
    expected = np.asarray(stock_session(content).run(None, {"x": x})[0])
    for threads in (1, 2):
        session = make_session(content, backend, threads=threads)
        assert_same(np.asarray(session.run(None, {"x": x})[0]), expected)


def two_layers(weights: Array, bias: Array) -> onnx.ModelProto:
    """Two products by weights, [K, N], the second with its transpose, and a Relu between them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Gemm", ["r", "w", "c"], ["y"], transB=1),
    ]
    return model_of(nodes, {"w": weights, "c": bias}, shape=("M", len(weights)))


GEMMS: dict[str, dict[str, float]] = {"transA": {"transA": 1}, "all": {"alpha": -0.5, "beta": 2.0, "transB": 1}}
"""Attributes of Gemm. Those with beta have a bias."""


def check_gemm(
    attributes: Mapping[str, float],
    weights: Array,
    bias: Array,
    x: Array,
    quantized: Callable[[onnx.ModelProto], Result],
    exact: Array,
) -> Result:
    """Compares a quantized Gemm with its exact product, before alpha and the bias: 2^-20 of the largest element."""
    constants = {"b": np.ascontiguousarray(weights.T) if attributes.get("transB") else weights}
    expected = attributes.get("alpha", 1.0) * exact
    if "beta" in attributes:
        constants["c"] = bias
        expected = expected + attributes["beta"] * bias
    x = np.ascontiguousarray(x.T) if attributes.get("transA") else x
    gemm = helper.make_node("Gemm", ["x", *constants], ["y"], **attributes)
    result = quantized(model_of([gemm], constants, shape=x.shape))
    assert np.abs(run(result, x) - expected).max() <= 2.0**-20 * np.abs(expected).max()
    return result


def decibels(actual: Array, expected: Array) -> float:
    return float(10 * np.log10(np.square(expected).sum() / np.square(actual - expected).sum()))


def run_float(model: onnx.ModelProto, x: Array) -> Array:
    return np.asarray(stock_session(model).run(None, {"x": x})[0])


def by_definition(x: Array) -> Array:
    """An activation that is quantized per token by the formula of DynamicQuantizeLinear, dequantized in float64."""
    low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
    scale = ((high - low) / F(255)).astype(F)
    zero_point = np.rint(np.clip(-low / scale, 0, 255))
    codes = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    return np.asarray((codes.astype(np.float64) - zero_point) * scale)


def weights_by_definition(weights: Array) -> Array:
    """Weights, [K, N], as int8 codes per column, dequantized in float64."""
    scale = (np.abs(weights).max(0) / F(127)).astype(F)
    return np.asarray(np.rint(weights / scale).astype(np.float64) * scale)


def squared_error(actual: Array, expected: Array) -> float:
    """Relative to the expected numbers."""
    wide = expected.astype(np.float64)
    return float(((actual - wide) ** 2).sum() / (wide**2).sum())


def operators(result: Result) -> Counter[str]:
    return Counter({op.removeprefix("ort_dynq."): n for op, n in result.report.after.items() if "ort_dynq." in op})


def reasons(result: Result) -> list[str]:
    return [finding.reason for finding in result.report.unconverted]
