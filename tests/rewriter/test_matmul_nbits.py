"""MatMulNBits, as onnxruntime-genai's builder and MatMulNBitsQuantizer write it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from helpers import stock_session
from onnx import TensorProto, helper, numpy_helper

import ort_dynq

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A MatMulNBits: y = x @ dequantized + bias."""

    model: onnx.ModelProto
    x: Array
    dequantized: Array
    bias: Array

    @property
    def reference(self) -> Array:
        return np.asarray(self.x.astype(np.float64) @ self.dequantized + self.bias)


def make(
    *,
    bits: int = 4,
    block_size: int = 32,
    depth: int = 128,
    columns: int = 40,
    zero_points: str | None = "uint8",
    with_bias: bool = False,
    half: bool = False,
    level: int | None = 4,
    lead: tuple[int, ...] = (4, 32),
    order: str = "",
    attributes: dict[str, Any] | None = None,
) -> Case:
    """Makes a model of one product. Codes are often extreme; the activation has a row of zeros and a large one."""
    rng = np.random.default_rng([bits, block_size, depth, columns])
    blocks, dtype = -(-depth // block_size), np.float16 if half else np.float32
    codes = rng.integers(0, 2**bits, (columns, blocks * block_size))
    codes[rng.random(codes.shape) < 0.3] = 2**bits - 1
    scales = (rng.random((columns, blocks)) * 0.01 + 0.001).astype(dtype)
    zeros = rng.integers(0, 2**bits, (columns, blocks)) if zero_points else np.full((columns, blocks), 2 ** (bits - 1))
    bias = rng.normal(0, 1, columns).astype(dtype) * (1 if with_bias else 0)
    initializers = {"B": _packed(codes.reshape(columns, blocks, block_size), bits), "scales": scales.ravel()}
    if zero_points == "uint8":
        initializers["zero_points"] = _packed(zeros, bits).ravel()
    elif zero_points == "float":
        initializers["zero_points"] = zeros.astype(dtype)
    if order:
        groups = np.arange(depth, dtype=np.int32) // block_size
        initializers["g_idx"] = groups if order == "trivial" else groups[::-1].copy()
    if with_bias:
        initializers["bias"] = bias
    names = ["x", "B", "scales", *(name if name in initializers else "" for name in ("zero_points", "g_idx", "bias"))]
    given = {"K": depth, "N": columns, "bits": bits, "block_size": block_size, **(attributes or {})}
    if level is not None:
        given["accuracy_level"] = level
    node = helper.make_node("MatMulNBits", names, ["y"], name="product", domain="com.microsoft", **given)
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", kind, [*lead, depth])],
        [helper.make_tensor_value_info("y", kind, [*lead, columns])],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    x = rng.normal(0, 1, (*lead, depth)).astype(dtype)
    if lead not in ((), (1,)):
        x.reshape(-1, depth)[0] = 0
        x.reshape(-1, depth)[-1] *= 100
    centered = codes - np.repeat(zeros, block_size, 1)
    dequantized = (centered * np.repeat(scales.astype(np.float64), block_size, 1))[:, :depth].T
    return Case(helper.make_model(graph, opset_imports=opsets, ir_version=10), x, dequantized, bias.astype(np.float64))


def _packed(codes: Array, bits: int) -> Array:
    """Packs codes along the last axis, the first ones into the lowest bits; rows are padded to bytes."""
    per_byte = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_byte)])
    parts = padded.reshape(*padded.shape[:-1], -1, per_byte) << (np.arange(per_byte) * bits)
    return np.asarray(parts.sum(-1)).astype(np.uint8)


def noise(result: Array, reference: Array) -> float:
    """Returns the signal-to-noise ratio in dB: the mean of the rows that are not zeros, whose magnitudes differ."""
    error = ((result.astype(np.float64) - reference) ** 2).sum(-1)
    signal = (reference**2).sum(-1)
    return float(-10 * np.log10(np.mean((error / np.maximum(signal, 1e-30))[error > 0])))


def run(model: onnx.ModelProto, x: Array) -> Array:
    """Runs a model with the plugin, at the default optimization level."""
    options = ort_dynq.register(ort.SessionOptions())
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def rewritten(case: Case, **options: Any) -> onnx.ModelProto:
    result = ort_dynq.rewrite(case.model, **options)
    assert [finding.operator for finding in result.report.rewritten] == ["QuantizedMatMul"]
    model = result.to_proto()
    onnx.checker.check_model(model)
    assert not any(node.op_type == "MatMulNBits" for node in model.graph.node)
    return model


CASES = [
    dict(zip(("bits", "block_size", "zero_points"), given, strict=True))
    for given in itertools.product((4, 8), (16, 32, 128), ("uint8", None))
]
CASES += [
    {"depth": 100},
    {"depth": 40, "block_size": 128},
    {"with_bias": True},
    {"half": True, "with_bias": True},
    {"lead": ()},
    {"lead": (1,), "columns": 17},
    {"lead": (3, 1, 7), "columns": 17},
    {"order": "trivial"},
]


@pytest.mark.parametrize("given", CASES, ids=str)
def test_result(given: dict[str, Any]) -> None:
    """It is closer to the product of the dequantized weights than ONNX Runtime's level 4, and needs no plugin."""
    case = make(**given)
    model = rewritten(case)
    with_plugin = run(model, case.x)
    without = np.asarray(stock_session(model).run(None, {"x": case.x})[0])
    np.testing.assert_array_equal(with_plugin, without)
    stock = np.asarray(stock_session(case.model).run(None, {"x": case.x})[0])
    assert with_plugin.dtype == stock.dtype
    ours, theirs = noise(with_plugin, case.reference), noise(stock, case.reference)
    assert ours > 35
    if len(case.x) > 1:  # the noise of one row is chance
        assert ours > theirs


def test_activation_is_exact_on_a_grid() -> None:
    """An activation of whole codes, with 0 and 255 in each block, is not rounded: the product is exact."""
    case = make(block_size=16, depth=64, lead=(5,))
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (5, 64)).astype(np.float32)
    x[:, ::16], x[:, 1::16] = 0, 255
    reference = x.astype(np.float64) @ case.dequantized
    np.testing.assert_allclose(run(rewritten(case), x), reference, rtol=0, atol=1e-6 * np.abs(reference).max())


def test_products_of_one_activation_share_its_codes() -> None:
    case = make()
    second = onnx.NodeProto()
    second.CopyFrom(case.model.graph.node[0])
    second.name, second.output[0] = "second", "z"
    case.model.graph.node.append(second)
    case.model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 32, 40]))
    kinds = [node.op_type for node in ort_dynq.rewrite(case.model).to_proto().graph.node]
    assert kinds.count("DynamicRangeQuantize") == 1
    assert kinds.count("QuantizedMatMul") == 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"level": None}, "its accuracy_level, 0, asks for a float activation"),
        ({"level": 1}, "its accuracy_level, 1, asks for a float activation"),
        ({"zero_points": "float"}, "the zero points of its weights are float, expected uint8"),
        ({"order": "reversed"}, "g_idx assigns its weights to blocks in another order"),
        ({"attributes": {"bits": 3}}, "its weights have 3 bits, expected 2, 4 or 8"),
        ({"attributes": {"N": 41}}, "the weights have"),
    ],
    ids=str,
)
def test_reasons(given: dict[str, Any], reason: str) -> None:
    (finding,) = ort_dynq.rewrite(make(**given).model).report.unconverted
    assert reason in finding.reason


def test_weights_with_another_reader_stay() -> None:
    """A tied embedding: repacked weights would be stored twice."""
    case = make()
    case.model.graph.node.append(helper.make_node("Identity", ["B"], ["table"]))
    case.model.graph.output.append(helper.make_tensor_value_info("table", TensorProto.UINT8, None))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert "other nodes also read its packed weights" in finding.reason


def test_exact() -> None:
    (finding,) = ort_dynq.rewrite(make().model, exact=True).report.unconverted
    assert "exact" in finding.reason


def test_level_of_float_activations() -> None:
    case = make(level=0)
    model = rewritten(case, weights_only="blocks")
    assert noise(run(model, case.x), case.reference) > 35


@pytest.mark.parametrize("given", [{}, {"bits": 8, "with_bias": True}, {"half": True}, {"depth": 100}], ids=str)
def test_verification(given: dict[str, Any]) -> None:
    case = make(**given)
    model = rewritten(case)
    verified = ort_dynq.verify(case.model, model)
    assert verified.passed, verified
    (product,) = verified.products
    assert 0 < product.b_error < product.a_error  # the noise of A's activation, too, is found
    # Another scale of one block is found.
    scales = next(
        each for each in model.graph.initializer if list(each.dims) == [-(-case.dequantized.shape[0] // 32), 40]
    )
    array = numpy_helper.to_array(scales).copy()
    array[0] *= 2
    scales.CopyFrom(numpy_helper.from_array(array, scales.name))
    assert not ort_dynq.verify(case.model, model).passed
