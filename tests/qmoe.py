"""Models of one QMoE, as onnxruntime-genai's builder writes it, and its results in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
EXPERTS, HIDDEN, INNER = 5, 64, 96
HAS_LEVELS = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 32)
GPT_OSS: dict[str, Any] = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.0}


@dataclass(frozen=True)
class Case:
    """A QMoE.

    Attributes:
        model: The model.
        feeds: Its inputs: x, the scores of the router and, if there are any, the weights of the experts.
        products: The dequantized weights of fc1, fc2 and fc3, [experts, N, K], and the biases, [experts, N].
        attributes: The attributes.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array]
    products: dict[str, tuple[Array, Array]]
    attributes: dict[str, Any]

    def of(self, tokens: int, seed: int = 1) -> Case:
        """The same experts of other tokens."""
        return replace(self, feeds=feeds_of(tokens, self.feeds["x"].dtype, seed, has_weights="weights" in self.feeds))

    def reference(self, quantize: Callable[[Array], Array] = lambda x: x) -> Array:
        """The results in float64; `quantize` changes the left factors of the products, [1, K]."""
        given = self.attributes
        x, scores = (self.feeds[name].astype(np.float64) for name in ("x", "router"))
        results = np.zeros_like(x)
        for token, row in enumerate(x):
            order = sorted(range(EXPERTS), key=lambda i: (scores[token, i], i), reverse=True)[: given["k"]]
            weights = np.exp(scores[token, order] - scores[token, order].max())
            if "weights" in self.feeds:
                weights = self.feeds["weights"][token, order].astype(np.float64)
            if "weights" not in self.feeds or given.get("normalize_routing_weights"):
                weights = weights / weights.sum()
            for expert, weight in zip(order, weights, strict=True):
                y = self._activated(quantize(row[None].astype(np.float32)).astype(np.float64), expert)
                y = self._product("fc2", expert, quantize(y.astype(np.float32)).astype(np.float64))
                results[token] += weight * y[0]
        return results

    def _product(self, name: str, expert: int, x: Array) -> Array:
        weights, bias = self.products[name]
        return np.asarray(x @ weights[expert].T + bias[expert])

    def _activated(self, x: Array, expert: int) -> Array:
        given = self.attributes
        y, kind = self._product("fc1", expert, x), given["activation_type"]
        if kind == "swiglu":
            gate, linear = {
                0: lambda: (y, self._product("fc3", expert, x)),
                1: lambda: (y[:, 0::2], y[:, 1::2]),
                2: lambda: np.split(y, 2, 1),
            }[given["swiglu_fusion"]]()
            limit = given.get("swiglu_limit", np.inf)
            gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
            sigmoid = 1 / (1 + np.exp(-given.get("activation_alpha", 1.0) * gate))
            return np.asarray(gate * sigmoid * (linear + given.get("activation_beta", 0.0)))
        functions: dict[str, Callable[[Array], Array]] = {
            "identity": lambda y: y,
            "relu": lambda y: np.maximum(y, 0),
            "silu": lambda y: np.asarray(y / (1 + np.exp(-y))),
            "gelu": lambda y: np.asarray(y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))),
        }
        return functions[kind](y)


def feeds_of(tokens: int, dtype: Any = np.float32, seed: int = 0, *, has_weights: bool = False) -> dict[str, Array]:
    """Tokens, of which one has equal scores for all experts."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (tokens, EXPERTS))
    scores[0] = 1
    arrays = {"x": rng.normal(0, 1, (tokens, HIDDEN)), "router": scores}
    if has_weights:
        arrays["weights"] = rng.uniform(0.1, 1, (tokens, EXPERTS))
    return {name: array.astype(dtype) for name, array in arrays.items()}


def make(
    *,
    bits: int = 4,
    block_size: int = 32,
    level: int = 4,
    kind: str = "swiglu",
    fusion: int = 1,
    k: int = 2,
    zero_points: bool = False,
    bias: bool = False,
    router_weights: bool = False,
    half: bool = False,
    tokens: int = 9,
    **attributes: Any,
) -> Case:
    """A QMoE.

    Args:
        bits, block_size, level, kind, fusion, k: The attributes; without blocks, `block_size` is 0.
        zero_points: Whether the weights have zero points.
        bias: Whether the products have biases.
        router_weights: Whether the weights of experts are given.
        half: Whether all floats are float16.
        tokens: The number of tokens.
        **attributes: Further attributes.
    """
    rng = np.random.default_rng(0)
    dtype = np.float16 if half else np.float32
    gated = kind == "swiglu"
    shapes = {"fc1": (INNER * (2 if gated and fusion else 1), HIDDEN), "fc2": (HIDDEN, INNER)}
    if gated and not fusion:
        shapes["fc3"] = INNER, HIDDEN
    tensors: dict[str, Array] = {}
    products = {}
    for name, (columns, depth) in shapes.items():
        blocks = depth // block_size if block_size else 1
        codes = rng.integers(0, 2**bits, (EXPERTS, columns, depth)).astype(np.uint8)
        scales = (rng.uniform(0.5, 1.5, (EXPERTS, columns, blocks)) * 4 / 2**bits / depth**0.5).astype(dtype)
        zeros = np.full((EXPERTS, columns, blocks), 2 ** (bits - 1), np.uint8)
        if zero_points:
            zeros = rng.integers(0, 2**bits, zeros.shape).astype(np.uint8)
            tensors[f"{name}_zeros"] = packed(zeros if block_size else zeros[..., 0], bits)
        tensors[f"{name}_codes"] = packed(codes, bits)
        tensors[f"{name}_scales"] = scales if block_size else scales[..., 0]
        biases = np.zeros((EXPERTS, columns), dtype)
        if bias:
            biases = tensors[f"{name}_bias"] = rng.normal(0, 0.3, biases.shape).astype(dtype)
        centered = codes.reshape(*zeros.shape, -1).astype(np.float64) - zeros[..., None]
        dequantized = (centered * scales[..., None]).reshape(codes.shape)
        products[name] = dequantized, biases.astype(np.float64)
    names = [f"{name}_{part}" for name in ("fc1", "fc2", "fc3") for part in ("codes", "scales", "bias")]
    names += [f"{name}_zeros" for name in ("fc1", "fc2", "fc3")]
    inputs = ["x", "router", *(name if name in tensors else "" for name in names), "weights"]
    while inputs[-1] == "" or (inputs[-1] == "weights" and not router_weights):
        inputs.pop()
    given = {"k": k, "activation_type": kind, "expert_weight_bits": bits, "swiglu_fusion": fusion if gated else 0}
    given |= ({"block_size": block_size} if block_size else {}) | ({"accuracy_level": level} if level else {})
    given |= attributes
    node = helper.make_node("QMoE", inputs, ["y"], "experts", domain="com.microsoft", **given)
    element = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    widths = {"x": HIDDEN, "router": EXPERTS} | ({"weights": EXPERTS} if router_weights else {})
    graph = helper.make_graph(
        [node],
        "experts",
        [helper.make_tensor_value_info(name, element, ["tokens", width]) for name, width in widths.items()],
        [helper.make_tensor_value_info("y", element, ["tokens", HIDDEN])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return Case(model, feeds_of(tokens, dtype, has_weights=router_weights), products, given)


def packed(codes: Array, bits: int) -> Array:
    """Codes along the last dimension, low bits first; the last byte is padded with 0."""
    per_byte = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_byte)])
    parts = [padded[..., i::per_byte] << np.uint8(i * bits) for i in range(per_byte)]
    return np.asarray(sum(parts[1:], parts[0]))
