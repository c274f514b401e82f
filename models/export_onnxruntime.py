"""Writes models of ONNX Runtime's own tools: of its quantizer, with activations that are quantized at run time, and of
its offline optimization.

More than 450 lines: a list of small graphs, one function for each.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from _common import HERE, Example, activations, grid_weights, main, parse, two_layers
from bench import transformers as networks
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.quant_utils import QuantizationMode
from onnxruntime.quantization.registry import IntegerOpsRegistry
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.optimizer import optimize_model

INT8_RANGE = "fixed_quantization_range_int8"


def mlp(opset: int) -> onnx.ModelProto:
    """Two linear layers in float32."""
    rng = np.random.default_rng(7)
    return parse(
        """mlp (float[batch, tokens, 20] x) => (float[batch, tokens, 7] y) {
            h = MatMul(x, w1)  h1 = Add(h, b1)  a = Relu(h1)  o = MatMul(a, w2)  y = Add(o, b2)
        }""",
        opset,
        w1=grid_weights(rng, 20, 13),
        b1=grid_weights(rng, 13),
        w2=grid_weights(rng, 13, 7),
        b2=grid_weights(rng, 7),
    )


def convolutions(opset: int) -> onnx.ModelProto:
    """Two convolutions in float32."""
    rng = np.random.default_rng(8)
    return parse(
        """convolutions (float[batch, 3, 9, 11] x) => (float[batch, 7, 4, 5] y) {
            h = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)  a = Relu(h)  y = Conv<strides = [2, 2]>(a, w2, b2)
        }""",
        opset,
        w1=grid_weights(rng, 5, 3, 3, 3),
        b1=grid_weights(rng, 5),
        w2=grid_weights(rng, 7, 5, 3, 3),
        b2=grid_weights(rng, 7),
    )


def filters(rng: np.random.Generator, *shape: int) -> Any:
    """Returns weights of a convolution, which keep the magnitude of its input, with few significant bits."""
    return grid_weights(rng, *shape) * np.float32(2.0) ** -(math.prod(shape[1:]).bit_length() // 2)


def mobile(opset: int) -> onnx.ModelProto:
    """A small image classifier in float32, of depthwise and pointwise convolutions."""
    rng = np.random.default_rng(9)
    return parse(
        """mobile (float[batch, 3, 32, 32] x) => (float[batch, 10] y) {
            stem = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w1, b1)
            a1 = Clip(stem, low, high)
            depthwise1 = Conv<group = 16, pads = [1, 1, 1, 1]>(a1, w2, b2)
            a2 = Clip(depthwise1, low, high)
            pointwise1 = Conv(a2, w3, b3)
            sum = Add(pointwise1, a1)
            depthwise2 = Conv<auto_pad = "SAME_UPPER", group = 16, strides = [2, 2]>(sum, w4, b4)
            a3 = Clip(depthwise2, low, high)
            pointwise2 = Conv(a3, w5)
            means = GlobalAveragePool(pointwise2)
            flat = Flatten(means)
            y = Gemm<transB = 1>(flat, w6, b6)
        }""",
        opset,
        low=np.float32(0),
        high=np.float32(6),
        w1=filters(rng, 16, 3, 3, 3),
        b1=grid_weights(rng, 16),
        w2=filters(rng, 16, 1, 3, 3),
        b2=grid_weights(rng, 16),
        w3=filters(rng, 16, 16, 1, 1),
        b3=grid_weights(rng, 16),
        w4=filters(rng, 16, 1, 5, 5),
        b4=grid_weights(rng, 16),
        w5=filters(rng, 24, 16, 1, 1),
        w6=filters(rng, 10, 24),
        b6=grid_weights(rng, 10),
    )


def channels_last(opset: int) -> onnx.ModelProto:
    """A block of a Keras network in float32, as tf2onnx writes it before it moves Transposes."""
    rng = np.random.default_rng(11)
    return parse(
        """channels_last (float[batch, 9, 11, 8] x) => (float[batch, height, width, 8] y) {
            t1 = Transpose<perm = [0, 3, 1, 2]>(x)
            c1 = Conv<pads = [1, 1, 1, 1]>(t1, w1)
            u1 = Transpose<perm = [0, 2, 3, 1]>(c1)
            a1 = Add(u1, b1)
            t2 = Transpose<perm = [0, 3, 1, 2]>(a1)
            n1 = BatchNormalization<epsilon = 0.001>(t2, gain, shift, mean, variance)
            u2 = Transpose<perm = [0, 2, 3, 1]>(n1)
            r1 = Relu(u2)
            t3 = Transpose<perm = [0, 3, 1, 2]>(r1)
            c2 = Conv(t3, w2)
            u3 = Transpose<perm = [0, 2, 3, 1]>(c2)
            a2 = Add(u3, b2)
            s2 = Mul(a2, gain)
            sum = Add(s2, x)
            y = Relu(sum)
        }""",
        opset,
        w1=filters(rng, 8, 8, 3, 3),
        b1=grid_weights(rng, 8),
        w2=filters(rng, 8, 8, 1, 1),
        b2=grid_weights(rng, 8),
        gain=np.linspace(0.5, 2, 8, dtype=np.float32),
        shift=grid_weights(rng, 8),
        mean=grid_weights(rng, 8),
        variance=np.linspace(4, 1, 8, dtype=np.float32),
    )


def speech(opset: int) -> onnx.ModelProto:
    """A small network over time in float32, of grouped and dilated convolutions."""
    rng = np.random.default_rng(10)
    return parse(
        """speech (float[batch, 20, time] x) => (float[batch, 12, frames] y) {
            h1 = Conv<pads = [1, 1], strides = [2]>(x, w1, b1)
            a1 = Relu(h1)
            h2 = Conv<dilations = [2], group = 4, pads = [4, 4]>(a1, w2, b2)
            a2 = Relu(h2)
            sum = Add(a2, a1)
            h3 = Conv<dilations = [4], group = 32, pads = [8, 0]>(sum, w3)
            a3 = Relu(h3)
            y = Conv(a3, w4, b4)
        }""",
        opset,
        w1=filters(rng, 32, 20, 3),
        b1=grid_weights(rng, 32),
        w2=filters(rng, 32, 8, 5),
        b2=grid_weights(rng, 32),
        w3=filters(rng, 32, 1, 3),
        w4=filters(rng, 12, 32, 1),
        b4=grid_weights(rng, 12),
    )


def recurrent(opset: int) -> onnx.ModelProto:
    """Two LSTM layers in float32: in both directions, with the lengths of sequences, and backwards, with a state."""
    rng = np.random.default_rng(11)
    return parse(
        """recurrent (float[steps, batch, 12] x, int32[batch] lengths, float[1, batch, 20] state) =>
            (float[steps, batch, 20] y, float[1, batch, 20] y_h, float[1, batch, 20] y_c) {
            both = LSTM<direction = "bidirectional", hidden_size = 20>(x, w1, r1, b1, lengths)
            moved = Transpose<perm = [0, 2, 1, 3]>(both)
            h = Reshape(moved, shape)
            states, y_h, y_c = LSTM<direction = "reverse", hidden_size = 20>(h, w2, r2, b2, , state)
            y = Squeeze(states, axis)
        }""",
        opset,
        w1=grid_weights(rng, 2, 80, 12) * np.float32(0.25),
        r1=grid_weights(rng, 2, 80, 20) * np.float32(0.25),
        b1=grid_weights(rng, 2, 160) * np.float32(0.25),
        w2=grid_weights(rng, 1, 80, 40) * np.float32(0.25),
        r2=grid_weights(rng, 1, 80, 20) * np.float32(0.25),
        b2=grid_weights(rng, 1, 160) * np.float32(0.25),
        shape=np.array([0, 0, 40]),
        axis=np.array([1]),
    )


def large_weights(rng: np.random.Generator, *shape: int) -> Any:
    """Returns weights with large codes, so that ONNX Runtime's sums saturate on CPUs without VNNI."""
    return (rng.choice([-1, 1], shape) * rng.integers(40, 61, shape) / 512).astype(np.float32)


def attention(opset: int) -> onnx.ModelProto:
    """Small transformer layers in float32 as ONNX Runtime's transformers optimizer writes them.

    The first attention has the lengths of the sequences, the second one is causal, the third one has no mask. Three
    products share the last activation.
    """
    rng = np.random.default_rng(12)
    weights = {f"w{i}": large_weights(rng, 24, 72 if i < 2 else 24) for i in range(7)}
    return parse(
        """attention (int32[batch, tokens] ids, int32[batch, tokens] mask) => (float[batch, tokens, 24] y) {
            x, lengths = com.microsoft.EmbedLayerNormalization(ids, , words, positions, , gamma, beta, mask)
            a1 = com.microsoft.Attention<num_heads = 4>(x, w0, b0, lengths)
            o1 = MatMul(a1, w2)  p1 = Add(o1, b2)
            h1 = com.microsoft.SkipLayerNormalization(p1, x, gamma, beta)
            a2 = com.microsoft.Attention<num_heads = 4, unidirectional = 1>(h1, w1, b0)
            h2 = com.microsoft.SkipLayerNormalization(a2, h1, gamma, beta)
            a3 = com.microsoft.Attention<num_heads = 2>(h2, w1, b0)
            h3 = com.microsoft.SkipLayerNormalization(a3, h2, gamma, beta)
            q = MatMul(h3, w3)  k = MatMul(h3, w4)  v = MatMul(h3, w5)
            k1 = Add(k, b2)  g = com.microsoft.FastGelu(k1)  s = Mul(q, g)  t = Sub(s, v)
            y = MatMul(t, w6)
        }""",
        opset,
        ("com.microsoft",),
        words=large_weights(rng, 30, 24),
        positions=large_weights(rng, 16, 24),
        gamma=np.ones(24, np.float32),
        beta=grid_weights(rng, 24),
        b0=grid_weights(rng, 72),
        b2=grid_weights(rng, 24),
        **weights,
    )


def llama(opset: int) -> onnx.ModelProto:
    """Feed-forward blocks in float32 with operators that ONNX Runtime's optimizer writes.

    SimplifiedLayerNormalization is not among them: ONNX Runtime has it in ONNX's domain, so the checker refuses it.
    """
    rng = np.random.default_rng(16)
    return parse(
        """llama (float[batch, tokens, 24] x) => (float[batch, tokens, 24] y) {
            g1 = MatMul(x, w0)  a1 = com.microsoft.QuickGelu<alpha = 1.0>(g1)  u1 = MatMul(x, w1)  m1 = Mul(a1, u1)
            d1 = MatMul(m1, w2)
            n2, , , sum = com.microsoft.SkipSimplifiedLayerNormalization(d1, x, gain)
            u2 = MatMul(n2, w3)  a2 = com.microsoft.Gelu(u2)  d2 = MatMul(a2, w4)  y = Add(d2, sum)
        }""",
        opset,
        ("com.microsoft",),
        gain=np.linspace(0.5, 2, 24, dtype=np.float32),
        w0=grid_weights(rng, 24, 40),
        w1=grid_weights(rng, 24, 40),
        w2=grid_weights(rng, 40, 24),
        w3=grid_weights(rng, 24, 40),
        w4=grid_weights(rng, 40, 24),
    )


def large_mlp(opset: int) -> onnx.ModelProto:
    """Linear layers in float32, two of them of one activation, and a Gemm."""
    rng = np.random.default_rng(13)
    weights = {f"w{i}": large_weights(rng, 32, 32) for i in range(3)}
    return parse(
        """large (float[batch, 32] x) => (float[batch, 9] y) {
            g = MatMul(x, w0)  g1 = Add(g, b)  h = MatMul(x, w1)  a = Sigmoid(g1)  m = Mul(a, h)
            n = MatMul(m, w2)  r = Relu(n)  y = Gemm<transB = 1>(r, w3, b3)
        }""",
        opset,
        b=grid_weights(rng, 32),
        w3=large_weights(rng, 9, 32),
        b3=grid_weights(rng, 9),
        **weights,
    )


def dynamic(model: onnx.ModelProto, *inputs: Any, **options: Any) -> Example:
    """Quantizes `model` with onnxruntime.quantization.quantize_dynamic."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(model, path, **options)
        return Example(onnx.load(path), inputs)


def static(opset: int) -> Example:
    """Quantizes two layers with quantize_static, which removes the Relu: the codes have its bounds."""
    rng = np.random.default_rng(15)
    model = parse(
        """static (float[batch, 3, 9, 11] x) => (float[batch, 7] y) {
            h = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)  a = Relu(h)
            m = MaxPool<kernel_shape = [2, 2], strides = [3, 3]>(a)  r = Reshape(m, shape)
            p = MatMul(r, w2)  y = Add(p, b2)
        }""",
        opset,
        w1=grid_weights(rng, 5, 3, 3, 3),
        b1=grid_weights(rng, 5),
        shape=np.array([0, 60]),
        w2=grid_weights(rng, 60, 7),
        b2=grid_weights(rng, 7),
    )

    class Data(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.sets = iter([{"x": IMAGE}])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.sets, None)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_static(model, path, Data(), weight_type=QuantType.QInt8, per_channel=True)
        return Example(onnx.load(path), [IMAGE])


def quantizer(opset: int, activation: QuantType, int8_range: float | None = None) -> Example:
    """Quantizes `mlp` with ONNXQuantizer, which supports activation types that quantize_dynamic does not.

    `int8_range` replaces the divisor of int8 scales. Correct is 127.5, but version 1.31.1 computes 127 - (-128) in int8
    and writes -0.5.
    """
    model = ONNXQuantizer(
        mlp(opset),
        False,  # per_channel
        False,  # reduce_range
        QuantizationMode.IntegerOps,
        False,  # static
        QuantType.QInt8,
        activation,
        None,  # tensors_range
        [],
        [],
        list(IntegerOpsRegistry),
        {"MatMulConstBOnly": True},
    )
    model.quantize_model()
    quantized = model.model.model
    for initializer in quantized.graph.initializer:
        if initializer.name == INT8_RANGE and int8_range is not None:
            initializer.CopyFrom(numpy_helper.from_array(np.array(int8_range, dtype=np.float32), INT8_RANGE))
    return Example(quantized, [X])


def nbits() -> Example:
    """Two layers with weights of 4 and 8 bits; ONNX Runtime quantizes their activations in MatMulNBits itself.

    MatMulNBitsQuantizer leaves a bias as an Add. onnxruntime-genai's builder makes it an input, as here the second one.
    """
    rng = np.random.default_rng(11)
    model = two_layers("nbits", rng, 72, 48, 37)
    model.graph.node[-1].name = "second"
    for bits, block_size, excluded in ((4, 32, ["second"]), (8, 16, [])):
        quantizer = MatMulNBitsQuantizer(
            model,
            bits=bits,
            block_size=block_size,
            is_symmetric=False,
            accuracy_level=4,
            nodes_to_exclude=excluded,
        )
        quantizer.process()
        model = quantizer.model.model
    last = next(node for node in model.graph.node if node.output[0] == "y")
    last.input.extend(["", "b2"])
    model.graph.initializer.append(numpy_helper.from_array(grid_weights(rng, 37), "b2"))
    return Example(model, [activations(2, 7, 72, zero_row=True)])


def tied_embedding() -> Example:
    """The table of an embedding, which the last layer multiplies by, as onnxruntime-genai's builder writes both."""
    rng, (words, hidden, block) = np.random.default_rng(14), (264, 64, 32)
    model = parse(
        f"""tied_embedding (int64[batch, tokens] ids)
            => (float[batch, tokens, {hidden}] rows, float[batch, tokens, {words}] y) {{
            rows = com.microsoft.GatherBlockQuantized
                <bits = 4, block_size = {block}, gather_axis = 0, quantize_axis = 1> (table, ids, scales)
            y = com.microsoft.MatMulNBits
                <K = {hidden}, N = {words}, accuracy_level = 4, bits = 4, block_size = {block}> (rows, codes, scales)
            table = Reshape(codes, shape)
        }}""",
        21,
        ("com.microsoft",),
        codes=rng.integers(0, 256, (words, hidden // block, block // 2)).astype(np.uint8),
        scales=rng.uniform(0.001, 0.002, (words, hidden // block)).astype(np.float32),
        shape=np.array([words, hidden // 2]),
    )
    model.graph.node.insert(0, model.graph.node.pop())
    return Example(model, [rng.integers(0, words, (2, 9))])


def mixture_of_experts() -> Example:
    """A router, and experts as onnxruntime-genai's builder writes those of GPT-OSS, with codes of 8 bits.

    ONNX Runtime quantizes their activations in QMoE itself.
    """
    rng = np.random.default_rng(12)
    experts, hidden, inner, block = 4, 32, 48, 16
    weights: dict[str, Any] = {"gate": rng.normal(0, 1, (hidden, experts)).astype(np.float32)}
    for number, columns, depth in ((1, 2 * inner, hidden), (2, hidden, inner)):
        weights[f"codes{number}"] = rng.integers(0, 256, (experts, columns, depth)).astype(np.uint8)
        weights[f"scales{number}"] = rng.uniform(0.0005, 0.0015, (experts, columns, depth // block)).astype(np.float32)
        weights[f"b{number}"] = grid_weights(rng, experts * columns).reshape(experts, columns)
    model = parse(
        f"""mixture (float[tokens, {hidden}] x) => (float[tokens, {hidden}] y) {{
            router = MatMul(x, gate)
            y = com.microsoft.QMoE <activation_alpha = 1.702, activation_beta = 1.0, activation_type = "swiglu",
                block_size = {block}, expert_weight_bits = 8, k = 2, normalize_routing_weights = 1, swiglu_fusion = 1,
                swiglu_limit = 7.0> (x, router, codes1, scales1, b1, codes2, scales2, b2)
        }}""",
        21,
        ("com.microsoft",),
        **weights,
    )
    return Example(model, [activations(9, hidden)])


def dequantized_weights() -> Example:
    """Two layers with weights behind DequantizeLinear; activations are floats.

    The first one is what MatMulNBitsQuantizer writes, and so onnxruntime-genai's builder with `use_qdq`. The second one
    has a scale for each channel and a Transpose, as torch writes `dequantize_per_channel` before a Linear.
    """
    rng = np.random.default_rng(12)
    model = parse(
        """dequantized_weights (float[batch, tokens, 256] x) => (float[batch, tokens, 256] y) {
            h = MatMul(x, w1)  h1 = Add(h, b1)  a = Relu(h1)
            d = DequantizeLinear<axis = 0>(w2, s2)  t = Transpose<perm = [1, 0]>(d)  y = MatMul(a, t)
        }""",
        21,
        w1=rng.normal(0, 0.1, (256, 256)).astype(np.float32),
        b1=grid_weights(rng, 256),
        w2=rng.integers(-127, 128, (256, 256)).astype(np.int8),
        s2=rng.uniform(0.001, 0.002, 256).astype(np.float32),
    )
    quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=False, quant_format=QuantFormat.QDQ)
    quantizer.process()
    return Example(quantizer.model.model, [activations(2, 7, 256, zero_row=True)])


def saved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model as a session optimizes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        model = onnx.load(path)
    used = {node.domain for node in model.graph.node}
    imports = [each for each in model.opset_import if each.domain in used]  # older releases reject newer versions
    del model.opset_import[:]
    model.opset_import.extend(imports)
    return model


def dynamic_optimized() -> Example:
    """`large_mlp`, quantized by quantize_dynamic and saved as a session optimizes it."""
    quantized = dynamic(large_mlp(17), weight_type=QuantType.QInt8, per_channel=True).model
    return Example(saved(quantized), [activations(6, 32, high=16.0, tensor=True)])


def optimized() -> Example:
    """Saves a layer of a transformer as a session optimizes it, then removes the types and shapes that it declares."""
    network = networks.encoder("token", layers=1, hidden=32, heads=4, feed_forward=32)
    network = onnx.shape_inference.infer_shapes(network, data_prop=True)  # SkipLayerNormalization needs shapes
    model = saved(network)
    del model.graph.value_info[:]
    return Example(model, [activations(2, 7, 32, zero_row=True)])


X = activations(2, 7, 20, high=16.0, tensor=True)
IMAGE = activations(2, 3, 9, 11, high=16.0, tensor=True)
LAST_IMAGE = activations(2, 9, 11, 8, high=16.0, tensor=True)
LARGER_IMAGE = activations(1, 3, 32, 32, high=16.0, tensor=True)
SIGNAL = activations(2, 20, 45, high=16.0, tensor=True)
TOKENS = (
    np.array([[1, 5, 29, 7, 0, 12, 3, 2], [4, 4, 17, 8, 2, 0, 0, 0]], np.int32),
    np.array([[1] * 8, [1] * 5 + [0] * 3], np.int32),
)
SEQUENCES = (
    activations(5, 3, 12, high=16.0, tensor=True) / np.float32(8),
    np.array([5, 2, 4], np.int32),
    activations(1, 3, 20, high=16.0, tensor=True) / np.float32(16),
)


def half_token() -> Example:
    """`integer_token_zero_point`, converted to float16 by the transformers optimizer of ONNX Runtime."""
    source = HERE / "integer_token_zero_point"
    data = onnx.TensorProto.FromString((source / "test_data_set_0" / "input_0.pb").read_bytes())
    model = ir.from_proto(convert_float_to_float16(onnx.load(source / "model.onnx")))
    model.graph.sort()  # the converter appends Casts
    return Example(ir.to_proto(model), [numpy_helper.to_array(data).astype(np.float16)])


def half_optimized() -> Example:
    """A layer of a transformer, optimized and converted to float16 by the transformers optimizer of ONNX Runtime."""
    network = networks.encoder("token", layers=1, hidden=32, heads=4, feed_forward=32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(network, path)
        optimizer = optimize_model(str(path), model_type="bert", num_heads=4, hidden_size=32, opt_level=0)
        optimizer.convert_float_to_float16()
        optimizer.save_model_to_file(str(path))
        model = onnx.load(path)
    del model.graph.value_info[:]
    return Example(model, [activations(2, 7, 32, zero_row=True)])


MODELS: dict[str, Callable[[], Example]] = {
    "ort_half_optimized": half_optimized,
    "ort_half_token": half_token,
    "ort_dynamic": lambda: dynamic(mlp(20), X, weight_type=QuantType.QInt8),
    "ort_dynamic_channel": lambda: dynamic(mlp(17), X, weight_type=QuantType.QUInt8, per_channel=True),
    "ort_dynamic_attention": lambda: dynamic(
        attention(17), *TOKENS, weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT}
    ),
    "ort_dynamic_optimized": dynamic_optimized,
    "ort_dynamic_conv": lambda: dynamic(convolutions(20), IMAGE, weight_type=QuantType.QUInt8),
    "ort_dynamic_channels_last": lambda: dynamic(channels_last(17), LAST_IMAGE, weight_type=QuantType.QUInt8),
    "ort_dynamic_mobile": lambda: dynamic(mobile(17), LARGER_IMAGE, weight_type=QuantType.QUInt8),
    "ort_dynamic_speech": lambda: dynamic(speech(20), SIGNAL, weight_type=QuantType.QInt8, per_channel=True),
    "ort_dynamic_llama": lambda: dynamic(
        llama(17),
        activations(2, 7, 24, zero_row=True),
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    ),
    "ort_dynamic_lstm": lambda: dynamic(recurrent(17), *SEQUENCES),
    "ort_int8": partial(quantizer, 17, QuantType.QInt8, 127.5),
    "ort_int8_negative": partial(quantizer, 17, QuantType.QInt8),
    "ort_dequantized_weights": dequantized_weights,
    "ort_nbits": nbits,
    "ort_mixture_of_experts": mixture_of_experts,
    "ort_optimized": optimized,
    "ort_static": partial(static, 17),
    "ort_tied_embedding": tied_embedding,
    "ort_uint8_opset10": partial(quantizer, 10, QuantType.QUInt8),
}

if __name__ == "__main__":
    main(MODELS)
