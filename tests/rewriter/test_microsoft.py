"""Types and shapes after ONNX Runtime's own operators: inference must agree with the values that a session computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers import make_session, options, stock_session, with_arrays
from microsoft_models import CHAIN, with_chain
from onnx import helper
from rewriting import check, found, parse, rows

from ort_dynq.operators import DOMAIN
from ort_dynq.rewriter.analysis.inference import Facts
from ort_dynq.rewriter.analysis.microsoft import _STAND_INS

HIDDEN = "float[b, t, 16] x"
BATCH, TOKENS = 2, 3
SIZES = {"b": BATCH, "t": TOKENS, "p": 5}
MS = "com.microsoft."
LSTM = """<direction = "bidirectional", hidden_size = 5>
    (x, w_lstm, r_lstm, , , , , , s_lstm, z_lstm, s_lstm, z_lstm)"""
# The inputs, the nodes, and the shape of the first output: None for an unknown dimension.
CASES = [
    (HIDDEN, "y = LayerNormalization(x, g)", ("b", "t", 16)),
    (HIDDEN, "y = SimplifiedLayerNormalization(x, g)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}BiasGelu(x, g)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}FastGelu(x)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}FastGelu(x, g)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}Gelu(x)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}QuickGelu(x)", ("b", "t", 16)),
    (f"{HIDDEN}, int64[1] start", f"y = {MS}RotaryEmbedding<num_heads = 2>(x, start, halves, halves)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}Trilu(x)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}SkipLayerNormalization(x, x, g)", ("b", "t", 16)),
    (HIDDEN, f"z, , , y = {MS}SkipLayerNormalization(x, x, g, g, g)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}SkipSimplifiedLayerNormalization(x, x, g)", ("b", "t", 16)),
    (HIDDEN, f"z, , , y = {MS}SkipSimplifiedLayerNormalization(x, x, g)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}FusedMatMul<alpha = 0.5>(x, wide)", ("b", "t", 48)),
    (HIDDEN, f"y = {MS}FusedMatMul<transB = 1>(x, tall)", ("b", "t", 48)),
    (HIDDEN, f"y = {MS}FusedMatMul<transB = 1>(x, x)", ("b", "t", "t")),
    (HIDDEN, f"y = {MS}FusedMatMul<transA = 1>(x, x)", ("b", 16, 16)),
    (HIDDEN, f"y = {MS}FusedMatMul<transBatchA = 1, transBatchB = 1, transB = 1>(x, x)", None),
    (HIDDEN, f"y = {MS}TransposeMatMul<transB = 1>(x, tall)", ("b", "t", 48)),
    ("float[b, 16] x", f'y = {MS}FusedGemm<activation = "Relu", transB = 1>(x, tall, zero)', ("b", 48)),
    (HIDDEN, f"y = {MS}DynamicQuantizeMatMul(x, codes, s)", ("b", "t", 48)),
    ("int16[b, t, 16] x", f"y = {MS}MatMulInteger16(x, x16)", ("b", "t", 4)),
    ("uint8[b, t, 16] x", f"y = {MS}MatMulIntegerToFloat(x, codes, s, s)", ("b", "t", 48)),
    (HIDDEN, f"y = {MS}MatMulNBits<K = 16, N = 4, bits = 4, block_size = 16>(x, nibbles, ones4)", ("b", "t", 4)),
    (HIDDEN, f"y = {MS}MatMulBnb4<K = 16, N = 4, block_size = 16, quant_type = 1>(x, bytes32, ones4)", ("b", "t", 4)),
    (HIDDEN, f"y = {MS}Attention<num_heads = 2>(x, wide, bias)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}Attention<num_heads = 2, qkv_hidden_sizes = [20, 20, 8]>(x, wide, bias)", ("b", "t", 8)),
    ("uint8[b, t, 16] x", f"y = {MS}QAttention<num_heads = 2>(x, codes, bias, s, s)", ("b", "t", 16)),
    (f"{HIDDEN}, float[b, p, 16] k", f"y = {MS}MultiHeadAttention<num_heads = 2>(x, k, k)", ("b", "t", 16)),
    ("float[b, t, 2, 3, 8] x", f"y = {MS}MultiHeadAttention<num_heads = 2>(x)", None),
    (
        f"{HIDDEN}, float[b, t, 8] k, int32[b] lens, int32 total",
        f"y = {MS}GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x, k, k, , , lens, total)",
        ("b", "t", 16),
    ),
    (
        "float[b, t, 32] x, int32[b] lens, int32 total",
        f"y = {MS}GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x, , , , , lens, total)",
        ("b", "t", 16),
    ),
    (
        f"{HIDDEN}, float[b, t, 8] k, float[b, t, 12] v",
        f'y, z = {MS}LinearAttention<q_num_heads = 2, kv_num_heads = 1, update_rule = "linear">(x, k, v)',
        ("b", "t", 24),
    ),
    (
        f"{HIDDEN}, float[b, t, 12] v, float[b, 2, 8, 6] state",
        f'z, y = {MS}LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(x, x, v, state)',
        ("b", 2, 8, 6),
    ),
    ("float[b, 16, t] x", f"y, z = {MS}CausalConvWithState(x, depthwise)", ("b", 16, "t")),
    (
        "float[b, 16, t] x, float[b, 16, 3] state",
        f'z, y = {MS}CausalConvWithState<activation = "silu">(x, depthwise, g, state)',
        ("b", 16, 3),
    ),
    (HIDDEN, f"y = {MS}SwiGLU(x, x)", ("b", "t", 16)),
    (HIDDEN, f"y = {MS}SwiGLU(x)", ("b", "t", 8)),
    ("int32[b, t] x", f"y, m = {MS}EmbedLayerNormalization(x, , table, table, , g, g)", ("b", "t", 16)),
    ("int32[b, t] x", f"z, y = {MS}EmbedLayerNormalization(x, , table, table, , g, g, x)", ("b",)),
    ("int32[b, t] x", f"z, m, y = {MS}EmbedLayerNormalization(x, , table, table, , g, g)", ("b", "t", 16)),
    (
        "int32[b, t] x",
        f"y, m = {MS}QEmbedLayerNormalization(x, , packed, packed, , g8, g8, , s, s, , s, s, z8, z8, , z8, z8)",
        ("b", "t", 16),
    ),
    ("int32[b, t] x", f"y = {MS}GatherBlockQuantized<block_size = 16>(packed, x, scales)", ("b", "t", 32)),
    (
        "int32[b, t] x",
        f"y = {MS}GatherBlockQuantized<block_size = 16, bits = 8, quantize_axis = 1>(packed, x, few)",
        ("b", "t", 16),
    ),
    (
        "float[b, 3, 8, 9] x",
        f'y = {MS}FusedConv<activation = "Relu", pads = [1, 1, 1, 1], strides = [2, 2]>(x, filter)',
        ("b", 6, 4, 5),
    ),
    ("uint8[b, 8, 9, 3] x", f"y = {MS}NhwcMaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)", ("b", 4, 4, 3)),
    (
        "uint8[b, 8, 9, 3] x",
        f"y = {MS}QLinearConv<channels_last = 1, pads = [1, 1, 1, 1]>(x, s, z, filter8, s, z, s, z)",
        ("b", 8, 9, 6),
    ),
    (
        "uint8[b, 3, 8, 9] x",
        f'y = {MS}QLinearConv<group = 1, auto_pad = "SAME_UPPER">(x, s, z, filter8, s, z, s, z)',
        ("b", 6, 8, 9),
    ),
    ("uint8[b, 3, 8, 9] x", f"y = {MS}QLinearAveragePool<kernel_shape = [2, 2]>(x, s, z, s, z)", ("b", 3, 7, 8)),
    ("uint8[b, 3, 8, 9] x", f"y = {MS}QLinearGlobalAveragePool(x, s, z, s, z)", ("b", 3, 1, 1)),
    ("uint8[b, 8, 9, 3] x", f"y = {MS}QLinearGlobalAveragePool<channels_last = 1>(x, s, z, s, z)", None),
    ("uint8[b, t, 16] x", f"y = {MS}QLinearAdd(x, s, z, x, s, z, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x", f"y = {MS}QLinearMul(x, s, z, x, s, z, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x", f"y = {MS}QLinearLeakyRelu(x, s, z, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x", f"y = {MS}QLinearSigmoid(x, s, z, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x", f"y = {MS}QLinearSoftmax<axis = 2, opset = 13>(x, s, z, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x, bool[t, 1] c", f"y = {MS}QLinearWhere(c, x, s, z, x, s, z, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x", f"y = {MS}QLinearConcat<axis = 2>(s, z, x, s, z, x, s, z)", ("b", "t", 32)),
    ("uint8[b, 16] x", f"y = {MS}QGemm(x, s, z, codes, s, z)", ("b", 48)),
    ("uint8[b, 16] x", f"y = {MS}QGemm<transB = 1>(x, s, z, tall8, s, z, , s, z)", ("b", 48)),
    (HIDDEN, f"y = {MS}DynamicQuantizeLSTM{LSTM}", ("b", 2, "t", 5)),
    (HIDDEN, f", , y = {MS}DynamicQuantizeLSTM{LSTM}", (2, "t", 5)),
    (HIDDEN, f"y = {MS}QuantizeLinear(x, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x", f"y = {MS}DequantizeLinear(x, s, z)", ("b", "t", 16)),
    (HIDDEN, f"y = {DOMAIN}.DynamicQuantize<output_dtype = 3>(x, s)", ("b", "t", 16)),
    (HIDDEN, f"y = {DOMAIN}.DynamicQuantize(x, s, z)", ("b", "t", 16)),
    ("uint8[b, t, 16] x", f"y = {DOMAIN}.DynamicDequantize(x, s, z)", ("b", "t", 16)),
]
CONSTANTS = {
    "w_lstm": np.ones((2, 16, 20), np.int8),
    "r_lstm": np.ones((2, 5, 20), np.int8),
    "s_lstm": np.ones(2, np.float32),
    "z_lstm": np.zeros(2, np.int8),
    "g": np.ones(16, np.float32),
    "zero": np.zeros(48, np.float32),
    "bias": np.zeros(48, np.float32),
    "halves": np.ones((8, 4), np.float32),
    "depthwise": np.ones((16, 1, 4), np.float32),
    "wide": np.ones((16, 48), np.float32),
    "tall": np.ones((48, 16), np.float32),
    "codes": np.ones((16, 48), np.uint8),
    "tall8": np.ones((48, 16), np.uint8),
    "x16": np.ones((16, 4), np.int16),
    "nibbles": np.ones((4, 1, 8), np.uint8),
    "bytes32": np.ones(32, np.uint8),
    "ones4": np.ones(4, np.float32),
    "table": np.ones((9, 16), np.float32),
    "packed": np.ones((9, 16), np.uint8),
    "g8": np.ones(16, np.uint8),
    "z8": np.uint8(0),
    "scales": np.ones((9, 2), np.float32),
    "few": np.ones((9, 1), np.float32),
    "filter": np.ones((6, 3, 3, 3), np.float32),
    "filter8": np.ones((6, 3, 3, 3), np.uint8),
    "s": np.float32(0.5),
    "z": np.uint8(0),
}


def model_of(inputs: str, body: str, opset: int = 16) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "{DOMAIN}": 1]> g ({inputs}) => (y)'
    return with_arrays(onnx.parser.parse_model(f"{head} {{ {body} }}"), CONSTANTS)


def inferred(model: onnx.ModelProto) -> tuple[ir.DataType | None, list[int | str | None] | None]:
    """Returns the type and the shape of a copy of the output: the model does not declare its type."""
    loaded = ir.from_proto(model)
    before = ir.to_proto(loaded).SerializeToString()
    with Facts(loaded):
        value = loaded.graph.outputs[0]
        shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        result = value.dtype, shape
    assert ir.to_proto(loaded).SerializeToString() == before
    return result


@pytest.mark.parametrize(("inputs", "body", "expected"), CASES, ids=[body for _, body, _ in CASES])
def test_types_and_shapes(inputs: str, body: str, expected: tuple[int | str, ...] | None) -> None:
    """The inferred type and shape agree with the tensor that ONNX Runtime computes."""
    model = model_of(inputs, body)
    dtype, shape = inferred(model)
    if expected is None:
        assert (dtype, shape) == (None, None)
        return
    assert shape == list(expected)
    feeds = {}
    for value in model.graph.input:
        dims = [SIZES[dim.dim_param] if dim.dim_param else dim.dim_value for dim in value.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = np.full(dims, {"lens": TOKENS - 1, "total": TOKENS, "start": 0}.get(value.name, 1), kind)
    if "SwiGLU" in body:
        return  # ONNX Runtime has no kernel for CPUs
    session = make_session(model, "native") if DOMAIN in body else stock_session(model)
    actual = session.run(["y"], feeds)[0]
    assert dtype is not None
    assert dtype.numpy() == actual.dtype
    assert actual.shape == tuple(SIZES[dim] if isinstance(dim, str) else dim for dim in shape)


def test_scattered_tensors_of_opset_24() -> None:
    """ONNX infers them: a cache of keys that TensorScatter writes."""
    model = model_of("float[b, 2, 8, 4] x, float[b, 2, t, 4] new, int64[b] at", "y = TensorScatter(x, new, at)", 24)
    assert inferred(model) == (ir.DataType.FLOAT, ["b", 2, 8, 4])


def test_a_chain_after_an_operator_of_onnxruntime() -> None:
    report = check(with_chain("h = com.microsoft.QuickGelu(x)"), {"x": rows((5, 32))})
    assert found(report) == ["RowProgram"]


def optimized(model: onnx.ModelProto, level: ort.GraphOptimizationLevel, folder: Path) -> onnx.ModelProto:
    """Returns the model that ONNX Runtime writes after its offline optimization."""
    path, settings = folder / "optimized.onnx", options(1, True)
    settings.graph_optimization_level, settings.optimized_model_filepath = level, str(path)
    ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def test_blocked_channels(tmp_path: Path) -> None:
    """Between operators with blocks of channels, ONNX Runtime's optimizer does not change chains."""
    model = parse(
        f"""c0 = Conv<pads = [1, 1, 1, 1]>(x, filters) r0 = Relu(c0) p = MaxPool<kernel_shape = [2, 2]>(r0)
            h = Conv<group = 32, pads = [1, 1, 1, 1]>(p, others) {CHAIN}""",
        inputs="float[N, 32, 8, 8] x",
    )
    rng = np.random.default_rng(5)
    for name, shape in (("filters", (32, 32, 3, 3)), ("others", (32, 1, 3, 3))):
        array = rng.integers(-3, 4, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = optimized(model, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, tmp_path)
    domains = {node.domain for node in model.graph.node}
    if "com.microsoft.nchwc" not in domains:
        pytest.skip("ONNX Runtime has no blocks of channels on this CPU")
    x = rng.integers(-9, 10, (2, 32, 8, 8)).astype(np.float32)
    assert found(check(model, {"x": x})) == ["RowProgram"]
    loaded = ir.from_proto(model)
    with Facts(loaded):
        shapes = {node.op_type: node.outputs[0].shape for node in loaded.graph if node.domain == "com.microsoft.nchwc"}
    assert set(shapes) == {"ReorderInput", "Conv", "MaxPool", "ReorderOutput"}


def test_every_operator_has_a_case() -> None:
    text = " ".join(body for _, body, _ in CASES)
    missing = [
        name for domain, name in _STAND_INS if "nchwc" not in domain and f"{name}(" not in text.replace("<", "(")
    ]
    assert not missing
