"""Models of one MatMulNBits, as onnxruntime-genai's builder and MatMulNBitsQuantizer write it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from helpers import stock_session
from onnx import TensorProto, helper, numpy_helper

import ort_dynq

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A MatMulNBits: y = x @ dequantized + bias.

    Attributes:
        model: The model.
        x: The activation.
        codes: The codes of the weights, [K, N], K padded to whole blocks.
        zeros, scales: Their zero points and scales, [blocks, N].
        bias: [N]; zeros without one.
    """

    model: onnx.ModelProto
    x: Array
    codes: Array
    zeros: Array
    scales: Array
    bias: Array

    @property
    def dequantized(self) -> Array:
        """The weights, float64, [K, N]."""
        size = len(self.codes) // len(self.zeros)
        centered = self.codes - np.repeat(self.zeros, size, 0)
        return np.asarray(centered * np.repeat(self.scales.astype(np.float64), size, 0))[: self.x.shape[-1]]

    def of(self, x: Array) -> Case:
        """The same product of another activation."""
        return replace(self, x=x)

    @property
    def reference(self) -> Array:
        """The result in float64."""
        return np.asarray(self.x.astype(np.float64) @ self.dequantized + self.bias.astype(np.float64))


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
    is_flat: bool = True,
    narrow_scales: bool = False,
    attributes: dict[str, Any] | None = None,
) -> Case:
    """Makes a model of one product.

    Codes are often extreme. The activation has ties of DynamicQuantizeLinear, blocks of zeros, blocks of one sign, a
    row of zeros and a row of large numbers.
    """
    rng = np.random.default_rng([bits, block_size, depth, columns])
    blocks, dtype = -(-depth // block_size), np.float16 if half else np.float32
    codes = rng.integers(0, 2**bits, (columns, blocks * block_size))
    codes[rng.random(codes.shape) < 0.3] = 2**bits - 1
    scales = (rng.random((columns, blocks)) * 0.01 + 0.001).astype(np.float16 if narrow_scales else dtype).astype(dtype)
    zeros = rng.integers(0, 2**bits, (columns, blocks)) if zero_points else np.full((columns, blocks), 2 ** (bits - 1))
    if zero_points == "fraction":  # some beyond the codes
        zeros = (zeros + rng.normal(0, 0.4, zeros.shape)).astype(dtype)
    bias = rng.normal(0, 1, columns).astype(dtype) * (1 if with_bias else 0)
    initializers = {"B": packed(codes.reshape(columns, blocks, block_size), bits), "scales": scales}
    if zero_points == "uint8":
        initializers["zero_points"] = packed(zeros, bits)
    elif zero_points in ("float", "fraction"):
        initializers["zero_points"] = zeros.astype(dtype)
    if is_flat:
        initializers = {name: array if name == "B" else array.ravel() for name, array in initializers.items()}
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
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return Case(model, activation(rng, lead, depth).astype(dtype), codes.T, zeros.T, scales.T, bias)


def activation(rng: np.random.Generator, lead: tuple[int, ...], depth: int) -> Array:
    """Returns an activation with the numbers that :func:`make` describes."""
    rows = rng.normal(0, 1, (int(np.prod(lead)), depth))
    grid = rng.integers(-256, 255, rows.shape) / 16  # multiples of half a step, if the range is 255 / 8
    rows[1::2] = np.where(rng.random(rows.shape) < 0.7, grid, rows)[1::2]
    rows[1::2, ::16], rows[1::2, 1::16] = -16, 255 / 8 - 16
    rows[2::3, :16] = 0
    rows[3::5] = np.abs(rows[3::5])
    if len(rows) > 2:
        rows[0] = 0
        rows[-1] *= 100
    return rows.reshape(*lead, depth)


def packed(codes: Array, bits: int) -> Array:
    """Packs codes along the last axis, the first ones into the lowest bits; rows are padded to bytes."""
    per_byte = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_byte)])
    parts = padded.reshape(*padded.shape[:-1], -1, per_byte) << (np.arange(per_byte) * bits)
    return np.asarray(parts.sum(-1)).astype(np.uint8)


def in_blocks(case: Case) -> Array:
    """Returns the product as the rewrite defines it, bit for bit: DynamicQuantizeLinear quantizes each block.

    Stock ONNX Runtime quantizes, and NumPy adds: integers exactly, then the products with both scales block after block
    in float32.
    """
    quantize = stock_session(_quantize_linear())
    depth, size = case.x.shape[-1], len(case.codes) // len(case.zeros)
    rows = case.x.reshape(-1, depth).astype(np.float32)
    rows = np.pad(rows, [(0, 0), (0, len(case.codes) - depth)])
    result = np.zeros((len(rows), case.codes.shape[1]), np.float32)
    for row, sums in zip(rows, result, strict=True):
        for block, (zeros, scales) in enumerate(zip(case.zeros, case.scales.astype(np.float32), strict=True)):
            part = slice(block * size, (block + 1) * size)
            codes, scale, zero_point = quantize.run(None, {"x": row[part]})
            exact = (codes.astype(np.int64) - int(zero_point)) @ (case.codes[part] - zeros)
            sums += exact.astype(np.float32) * scales * np.float32(scale)
    biased = result + case.bias.astype(np.float32)
    return biased.astype(case.x.dtype).reshape(*case.x.shape[:-1], -1)


def _quantize_linear() -> onnx.ModelProto:
    text = "<ir_version: 10, opset_import: ['': 21]> g (float[n] x) => (uint8[n] y, float s, uint8 z)"
    return onnx.parser.parse_model(text.replace("'", '"') + " { y, s, z = DynamicQuantizeLinear(x) }")


def noise(result: Array, reference: Array) -> float:
    """Returns the signal-to-noise ratio in dB: the mean of the rows that are not zeros; their magnitudes differ."""
    error = ((result.astype(np.float64) - reference) ** 2).sum(-1)
    signal = (reference**2).sum(-1)
    return float(-10 * np.log10(np.mean((error / np.maximum(signal, 1e-30))[error > 0])))


def run(model: onnx.ModelProto | str, x: Array) -> Array:
    """Runs a model with the plugin, at the default optimization level."""
    options = ort_dynq.register(ort.SessionOptions())
    source = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def rewritten(case: Case, **options: Any) -> onnx.ModelProto:
    """Returns the rewritten model, which has no MatMulNBits."""
    result = ort_dynq.rewrite(case.model, **options)
    assert [finding.operator for finding in result.report.rewritten] == ["QuantizedMatMul"], result.report.unconverted
    model = result.to_proto()
    onnx.checker.check_model(model)
    assert not any(node.op_type == "MatMulNBits" for node in model.graph.node)
    return model
