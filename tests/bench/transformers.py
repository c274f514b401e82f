"""Transformer networks with seeded weights and dynamically quantized linear layers, as exporters write them.

The networks are standard ONNX of opset 20 and IR version 10, which onnxruntime 1.20.1 and newer run. A layer follows
Vaswani et al. (2017), with the normalization after the residual sum: attention in float, then a feed-forward part with
a Gelu as torch decomposes it. A layer has six linear layers: their form is one of :data:`FORMS`. Query, key and value
share the quantization of their input.

Weights are normal values divided by the square root of the number of inputs. One percent of the columns are four times
as large. Quantized weights are int8 codes with one float32 scale per output channel, max(abs) / 127. Exporters that
fold weights store float32(code) * scale. All forms of one network, size and seed are made from the same floats.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_dynq.errors import DynqError

Array = npt.NDArray[Any]

_OPSET, _IR_VERSION = 20, 10
_OUTLIER_SHARE, _OUTLIER_FACTOR = 0.01, 4  # of the columns of a weight


def encoder(
    form: str, *, layers: int = 6, hidden: int = 768, heads: int = 12, feed_forward: int = 0, seed: int = 0
) -> onnx.ModelProto:
    """Builds a transformer encoder without embeddings.

    The input x and the output y are float32 [batch, tokens, hidden].

    Args:
        form: How the linear layers are quantized: a name from :data:`FORMS`.
        layers: The number of layers, of six linear layers each.
        hidden: The hidden size, a multiple of `heads`.
        heads: The number of attention heads.
        feed_forward: The size between the two linear layers of the feed-forward part; 0 for four times `hidden`.
        seed: The seed of the weights.

    Raises:
        DynqError: The form does not exist, or `hidden` is not a multiple of `heads`.
    """
    return _network("encoder", form, layers, hidden, heads, feed_forward, seed)


def decoder_step(
    form: str, *, layers: int = 6, hidden: int = 768, heads: int = 12, feed_forward: int = 0, seed: int = 0
) -> onnx.ModelProto:
    """Builds one step of a decoder with a key-value cache.

    The input x and the output y are float32 [batch, 1, hidden]. Layer l has the inputs past_key_values.l.key and
    past_key_values.l.value, float32 [batch, heads, past, hidden / heads], and the outputs present.l.key and
    present.l.value, which are one token longer. There is no mask, since one token attends to the whole past.
    Arguments and errors are the same as for :func:`encoder`.
    """
    return _network("decoder", form, layers, hidden, heads, feed_forward, seed)


def in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a network as ONNX Runtime's converter makes a float16 model of it; the given one is not changed.

    Its inputs and outputs are float16. The shapes that the converter writes into the model are removed: the original
    has none, and with shapes ONNX Runtime fuses other nodes.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that float16 does not represent
        converted: onnx.ModelProto = convert_float_to_float16(copy)
    del converted.graph.value_info[:]
    return converted


NETWORKS: dict[str, Callable[..., onnx.ModelProto]] = {"encoder": encoder, "decoder": decoder_step}


def feeds(model: onnx.ModelProto, tokens: int, *, batch: int = 1, seed: int = 0) -> dict[str, Array]:
    """Returns normal inputs of a network, float32 or float16 as it takes them.

    Args:
        model: The network.
        tokens: The number of tokens in the encoder's input, or in the decoder's past.
        batch: The batch size.
        seed: The seed of the values.
    """
    rng = np.random.default_rng(seed)
    sizes = {"batch": batch, "tokens": tokens, "past": tokens}
    return {
        value.name: rng.standard_normal(
            [sizes[size.dim_param] if size.dim_param else size.dim_value for size in value.type.tensor_type.shape.dim],
            np.float32,
        ).astype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        for value in model.graph.input
    }


class _Graph:
    """Collects nodes and initializers. Equal nodes and equal constants exist once, as in exported models."""

    def __init__(self, tokens: int | None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._names: dict[object, str] = {}
        self._counts: dict[str, int] = {}
        self._tokens = tokens  # None if it is dynamic

    def __call__(self, operator: str, *inputs: str | Array | np.generic, **attributes: Any) -> str:
        """Adds a node and returns the name of its output.

        Args:
            operator: The operator.
            inputs: Names of values, "" for an absent input, or constants.
            attributes: The attributes.
        """
        names = [each if isinstance(each, str) else self._constant(np.asarray(each)) for each in inputs]
        key = operator, *names, repr(attributes)
        if key not in self._names:
            self._names[key] = self._fresh(operator.lower())
            self.nodes.append(helper.make_node(operator, names, [self._names[key]], **attributes))
        return self._names[key]

    def initializer(self, name: str, array: Array) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def shape(self, *sizes: int) -> str:
        """Returns the name of the shape [batch, tokens, *sizes], computed from x."""
        tokens = self("Shape", "x", start=1, end=2) if self._tokens is None else np.array([self._tokens])
        return self("Concat", self("Shape", "x", start=0, end=1), tokens, *(np.array([n]) for n in sizes), axis=0)

    def rename(self, value: str, name: str) -> None:
        """Renames the output of a node to a graph output. No other node may use it yet."""
        (node,) = (node for node in self.nodes if value in node.output)
        node.output[0] = name

    def _constant(self, array: Array) -> str:
        key = array.dtype, array.shape, array.tobytes()
        if key not in self._names:
            self._names[key] = self.initializer(self._fresh("constant"), array)
        return self._names[key]

    def _fresh(self, stem: str) -> str:
        count = self._counts[stem] = self._counts.get(stem, -1) + 1
        return f"{stem}_{count}" if count else stem


# A form of linear layers is two functions: one quantizes the activation, one multiplies it by the weights.


@dataclass(frozen=True)
class _Weights:
    """The weights of one linear layer; `real` is float32 [inputs, outputs]."""

    name: str
    real: Array

    def scales(self) -> Array:
        """Returns float32 [outputs]."""
        return np.asarray(np.abs(self.real).max(axis=0) / np.float32(127))

    def codes(self) -> Array:
        """Returns int8 [inputs, outputs]."""
        return np.rint(self.real / self.scales()).astype(np.int8)

    def folded(self) -> Array:
        """Returns the dequantized codes, float32 [inputs, outputs]."""
        return np.asarray(self.codes().astype(np.float32) * self.scales())


@dataclass(frozen=True)
class _Quantized:
    """The left operand of a matrix product, and the scale to apply after the product, if any."""

    factor: str
    scale: str = ""


_float = np.float32
_LOW, _HIGH, _ZERO, _STEPS = _float(-128), _float(127), _float(0), _float(255)
_LAST = np.array([2])  # torch exports the axis -1 of a tensor of rank 3 as 2


def _unquantized(_: _Graph, x: str) -> _Quantized:
    return _Quantized(x)


def _token_codes(graph: _Graph, x: str) -> _Quantized:
    """Symmetric int8 per token, as torch's dynamo exporter writes x / (amax(abs(x)).clamp(min=1e-5) / 127)."""
    peak = graph("ReduceMax", graph("Abs", x), np.array([-1]), keepdims=1)
    scale = graph("Div", graph("Clip", peak, _float(1e-5)), _HIGH)
    rounded = graph("Round", graph("Div", x, scale))
    return _Quantized(graph("Cast", graph("Clip", rounded, _LOW, _HIGH), to=TensorProto.INT8), scale)


def _token_deferred(graph: _Graph, x: str) -> _Quantized:
    codes = _token_codes(graph, x)
    return _Quantized(graph("Cast", codes.factor, to=TensorProto.FLOAT), codes.scale)


def _token(graph: _Graph, x: str) -> _Quantized:
    codes = _token_deferred(graph, x)
    return _Quantized(graph("Mul", codes.factor, codes.scale))


def _tensor_range(graph: _Graph, x: str) -> tuple[str, str]:
    """Returns the scale and the minimum that torch.fake_quantize uses for a whole tensor."""
    low = graph("Clip", graph("ReduceMin", x, keepdims=0), "", _ZERO)
    high = graph("Clip", graph("ReduceMax", x, keepdims=0), _ZERO)
    return graph("Clip", graph("Div", graph("Sub", high, low), _STEPS), _float(1e-8)), low


def _quantize_dequantize(graph: _Graph, x: str, scale: str, zero_point: str) -> _Quantized:
    codes = graph("QuantizeLinear", x, scale, zero_point, axis=1)
    return _Quantized(graph("DequantizeLinear", codes, scale, zero_point, axis=1))


def _tensor_s8(graph: _Graph, x: str) -> _Quantized:
    scale, low = _tensor_range(graph, x)
    shifted = graph("Sub", _LOW, graph("Round", graph("Div", low, scale)))
    wide = graph("Cast", graph("Clip", shifted, _LOW, _HIGH), to=TensorProto.INT32)
    return _quantize_dequantize(graph, x, scale, graph("Cast", wide, to=TensorProto.INT8))


def _tensor_u8(graph: _Graph, x: str) -> _Quantized:
    scale, low = _tensor_range(graph, x)
    rounded = graph("Round", graph("Div", graph("Neg", low), scale))
    wide = graph("Cast", graph("Clip", rounded, _ZERO, _STEPS), to=TensorProto.INT32)
    return _quantize_dequantize(graph, x, scale, graph("Cast", wide, to=TensorProto.UINT8))


def _range_with_zero(graph: _Graph, x: str, keepdims: int) -> tuple[str, str]:
    """Returns the range of each token, extended to zero, as torch.minimum(amin, zeros_like(amin)) is exported."""

    def end(reduce: str, choose: str) -> str:
        found = graph(reduce, x, _LAST, keepdims=keepdims)
        return graph(choose, found, graph("Expand", _ZERO, graph("Shape", found, start=0)))

    return end("ReduceMin", "Min"), end("ReduceMax", "Max")


def _torchao(graph: _Graph, x: str) -> _Quantized:
    """torchao 0.18's Int8DynamicActivationIntxWeightConfig: asymmetric per token, x * (1 / scale)."""
    low, high = _range_with_zero(graph, x, keepdims=0)
    scale = graph("Clip", graph("Div", graph("Sub", high, low), _STEPS), _float(np.finfo(np.float32).tiny))
    shifted = graph("Sub", _LOW, graph("Round", graph("Div", low, scale)))
    zero_point = graph("Cast", graph("Clip", shifted, _LOW, _HIGH), to=TensorProto.INT8)
    scale = graph("Reshape", scale, graph.shape(1), allowzero=1)
    zero_point = graph("Reshape", zero_point, graph.shape(1), allowzero=1)
    rounded = graph("Round", graph("Mul", x, graph("Reciprocal", scale)))
    zero = graph("Cast", zero_point, to=TensorProto.FLOAT)
    codes = graph("Cast", graph("Clip", graph("Add", rounded, zero), _LOW, _HIGH), to=TensorProto.INT8)
    return _Quantized(graph("Mul", graph("Sub", graph("Cast", codes, to=TensorProto.FLOAT), zero), scale))


def _compressed_tensors(graph: _Graph, x: str) -> _Quantized:
    """compressed-tensors 0.20's fake_quantize, symmetric per token: its zero points are computed from zeros."""
    low, high = _range_with_zero(graph, x, keepdims=1)
    raw = graph("Div", graph("Max", graph("Abs", low), graph("Abs", high)), _float(127.5))
    return _compressed_tensors_codes(graph, x, raw, graph("Expand", _ZERO, graph.shape(1)))


def _compressed_tensors_asymmetric(graph: _Graph, x: str) -> _Quantized:
    low, high = _range_with_zero(graph, x, keepdims=1)
    raw = graph("Div", graph("Sub", high, low), _STEPS)
    return _compressed_tensors_codes(graph, x, raw, graph("Sub", _LOW, graph("Div", low, raw)))


def _compressed_tensors_codes(graph: _Graph, x: str, raw: str, zero_point: str) -> _Quantized:
    scale = graph("Where", graph("Equal", raw, _ZERO), _float(np.finfo(np.float32).eps), raw)
    codes = graph("Cast", graph("Round", graph("Clip", zero_point, _LOW, _HIGH)), to=TensorProto.INT8)
    zero = graph("Cast", codes, to=TensorProto.FLOAT)
    rounded = graph("Round", graph("Clip", graph("Add", graph("Div", x, scale), zero), _LOW, _HIGH))
    return _Quantized(graph("Mul", graph("Sub", rounded, zero), scale))


def _plain_product(graph: _Graph, x: _Quantized, weights: _Weights) -> str:
    return graph("MatMul", x.factor, graph.initializer(f"{weights.name}.weight", weights.real))


def _folded_product(graph: _Graph, x: _Quantized, weights: _Weights) -> str:
    """Multiplies by weights that the exporter folded to float."""
    return graph("MatMul", x.factor, graph.initializer(f"{weights.name}.weight", weights.folded()))


def _stored(graph: _Graph, weights: _Weights) -> str:
    """Adds the codes as torch stores them, [outputs, inputs]."""
    return graph.initializer(f"{weights.name}.weight", np.ascontiguousarray(weights.codes().T))


def _cast_product(graph: _Graph, x: _Quantized, weights: _Weights, *, zero_points: bool = False) -> str:
    """Multiplies by (float(codes) [- zero points]) * scales, which torch's exporter does not fold for large weights."""
    real = graph("Cast", _stored(graph, weights), to=TensorProto.FLOAT)
    scales = weights.scales()[:, None]
    if zero_points:
        real = graph("Sub", real, graph.initializer(f"{weights.name}.weight_zero_point", np.zeros_like(scales)))
    real = graph("Mul", real, graph.initializer(f"{weights.name}.weight_scale", scales))
    return graph("MatMul", x.factor, graph("Transpose", real, perm=[1, 0]))


def _torchao_product(graph: _Graph, x: _Quantized, weights: _Weights) -> str:
    return _cast_product(graph, x, weights, zero_points=True)


def _dequantized_product(graph: _Graph, x: _Quantized, weights: _Weights) -> str:
    """Multiplies by DequantizeLinear of the codes, as torch's dequantize_per_channel is exported."""
    scales = graph.initializer(f"{weights.name}.weight_scale", weights.scales())
    zero_points = np.zeros(weights.real.shape[1], np.int8)
    real = graph("DequantizeLinear", _stored(graph, weights), scales, zero_points, axis=0)
    return graph("MatMul", x.factor, graph("Transpose", real, perm=[1, 0]))


def _deferred_product(graph: _Graph, x: _Quantized, weights: _Weights) -> str:
    """Multiplies codes by codes in float, then applies both scales."""
    codes = graph.initializer(f"{weights.name}.weight", weights.codes().astype(np.float32))
    return _scaled(graph, graph("MatMul", x.factor, codes), x, weights)


def _integer_product(graph: _Graph, x: _Quantized, weights: _Weights) -> str:
    product = graph("MatMulInteger", x.factor, graph.initializer(f"{weights.name}.weight", weights.codes()))
    return _scaled(graph, graph("Cast", product, to=TensorProto.FLOAT), x, weights)


def _scaled(graph: _Graph, product: str, x: _Quantized, weights: _Weights) -> str:
    scales = graph.initializer(f"{weights.name}.weight_scale", weights.scales())
    return graph("Mul", graph("Mul", product, x.scale), scales)


FORMS: dict[str, tuple[Callable[[_Graph, str], _Quantized], Callable[[_Graph, _Quantized, _Weights], str]]] = {
    "float": (_unquantized, _plain_product),
    "token": (_token, _folded_product),
    "token_weights": (_token, _cast_product),
    "token_integer": (_token_codes, _integer_product),
    "token_deferred": (_token_deferred, _deferred_product),
    "tensor_s8": (_tensor_s8, _dequantized_product),
    "tensor_u8": (_tensor_u8, _dequantized_product),
    "torchao": (_torchao, _torchao_product),
    "compressed_tensors": (_compressed_tensors, _folded_product),
    "compressed_tensors_asymmetric": (_compressed_tensors_asymmetric, _folded_product),
}
"""How a linear layer is quantized.

- float: It is not quantized.
- token: Symmetric int8 activations per token, fake-quantized; the exporter folded the weights to float.
- token_weights: As token, with int8 weights that Cast, Mul and Transpose dequantize.
- token_integer: The same codes in MatMulInteger, s8 x s8.
- token_deferred: The same codes in a float MatMul; both scales follow it.
- tensor_s8, tensor_u8: Asymmetric activations per tensor and int8 weights, both followed by DequantizeLinear.
- torchao, compressed_tensors, compressed_tensors_asymmetric: As models of these libraries are exported.
"""


def _network(
    network: str, form: str, layers: int, hidden: int, heads: int, feed_forward: int, seed: int
) -> onnx.ModelProto:
    if form not in FORMS:
        raise DynqError(f"there is no form {form!r} of a network, expected one of {', '.join(FORMS)}")
    if hidden % heads:
        raise DynqError(f"the hidden size {hidden} is not a multiple of {heads} heads")
    builder = _Builder(form, hidden, heads, feed_forward or 4 * hidden, seed, cached=network == "decoder")
    x = "x"
    for layer in range(layers):
        x = builder.layer(x, layer)
    graph = builder.graph
    graph.rename(x, "y")
    result = helper.make_graph(graph.nodes, network, builder.inputs, builder.outputs, graph.initializers)
    return helper.make_model(result, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


class _Builder:
    """Adds layers to a graph and draws their weights."""

    def __init__(self, form: str, hidden: int, heads: int, feed_forward: int, seed: int, *, cached: bool) -> None:
        self._quantize, self._multiply = FORMS[form]
        self._hidden, self._heads, self._feed_forward, self._cached = hidden, heads, feed_forward, cached
        self._rng = np.random.default_rng(seed)
        self.graph = _Graph(1 if cached else None)
        shape = ("batch", 1 if cached else "tokens", hidden)
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        self.outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]

    def layer(self, x: str, index: int) -> str:
        name, hidden, graph = f"layers.{index}", self._hidden, self.graph
        context = self._attention(x, index)
        x = self._norm(graph("Add", x, self._linear(context, f"{name}.output", hidden, hidden)), f"{name}.norm1")
        up = self._linear(x, f"{name}.up", hidden, self._feed_forward)
        erf = graph("Erf", graph("Div", up, _float(math.sqrt(2))))
        gelu = graph("Mul", graph("Mul", up, graph("Add", erf, _float(1))), _float(0.5))
        down = self._linear(gelu, f"{name}.down", self._feed_forward, hidden)
        return self._norm(graph("Add", x, down), f"{name}.norm2")

    def _attention(self, x: str, layer: int) -> str:
        """Adds the attention without its output projection."""
        graph, hidden, head = self.graph, self._hidden, self._hidden // self._heads
        query, key, value = (
            self._split_heads(self._linear(x, f"layers.{layer}.{each}", hidden, hidden))
            for each in ("query", "key", "value")
        )
        key, value = self._with_past(key, layer, "key"), self._with_past(value, layer, "value")
        scores = graph("MatMul", query, graph("Transpose", key, perm=[0, 1, 3, 2]))
        attention = graph("Softmax", graph("Div", scores, _float(math.sqrt(head))), axis=-1)
        context = graph("Transpose", graph("MatMul", attention, value), perm=[0, 2, 1, 3])
        return graph("Reshape", context, graph.shape(hidden), allowzero=1)

    def _linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        real = self._rng.standard_normal((inputs, outputs), np.float32) / _float(math.sqrt(inputs))
        real[:, self._rng.random(outputs) < _OUTLIER_SHARE] *= _OUTLIER_FACTOR
        bias = self._rng.standard_normal(outputs, np.float32) / _float(8)
        product = self._multiply(self.graph, self._quantize(self.graph, x), _Weights(name, real))
        return self.graph("Add", product, self.graph.initializer(f"{name}.bias", bias))

    def _norm(self, x: str, name: str) -> str:
        gain = 1 + self._rng.standard_normal(self._hidden, np.float32) / _float(8)
        shift = self._rng.standard_normal(self._hidden, np.float32) / _float(8)
        parameters = self.graph.initializer(f"{name}.weight", gain), self.graph.initializer(f"{name}.bias", shift)
        return self.graph("LayerNormalization", x, *parameters, axis=-1, epsilon=1e-5, stash_type=1)

    def _split_heads(self, x: str) -> str:
        shape = self.graph.shape(self._heads, self._hidden // self._heads)
        return self.graph("Transpose", self.graph("Reshape", x, shape, allowzero=1), perm=[0, 2, 1, 3])

    def _with_past(self, present: str, layer: int, kind: str) -> str:
        """Appends the keys or values of this token to the cached ones."""
        if not self._cached:
            return present
        for values, name, length in ((self.inputs, "past_key_values", "past"), (self.outputs, "present", "past + 1")):
            sizes = ("batch", self._heads, length, self._hidden // self._heads)
            values.append(helper.make_tensor_value_info(f"{name}.{layer}.{kind}", TensorProto.FLOAT, sizes))
        whole = self.graph("Concat", self.inputs[-1].name, present, axis=2)
        self.graph.rename(whole, self.outputs[-1].name)
        return self.outputs[-1].name
