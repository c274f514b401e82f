"""`ort_dynq.dequantize` of operators that take codes with their scales: QLinearMatMul, QAttention, QMoE, ..."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import Array, pairwise, stock_session
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from rewriting import parse

from ort_dynq import dequantize
from ort_dynq.tools.bench.models import recorded_inputs

F = np.float32
MODELS = Path(__file__).parents[2] / "models"
RNG = np.random.default_rng(0)
LAYERS = {
    "matrices": ("h = MatMul(x, w) h1 = Add(h, b) a = Relu(h1) y = MatMul(a, v)", "float[B, 32] x"),
    "gemm": ("h = Gemm<transB = 1, alpha = 0.5>(x, u, b) y = Sigmoid(h)", "float[B, 32] x"),
    "convolutions": (
        "h = Conv<pads = [1, 1, 1, 1]>(x, k, c) a = Relu(h) p = AveragePool<kernel_shape = [2, 2]>(a) "
        "q = LeakyRelu(p) r = Concat<axis = 1>(p, q) y = Conv<group = 2, strides = [2, 2]>(r, g)",
        "float[1, 8, 12, 12] x",
    ),
}
ARRAYS = {"w": (32, 48), "b": (48,), "v": (48, 24), "u": (48, 32), "k": (8, 8, 3, 3), "c": (8,), "g": (4, 8, 3, 3)}


def static(name: str, folder: Path, kind: QuantType, *, per_channel: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Returns a model of QLinear operators, and an input."""
    body, inputs = LAYERS[name]
    model = parse(body, inputs=inputs, opset=17)
    used = {each for node in model.graph.node for each in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(RNG.normal(0, 0.1, shape).astype(F), each)
        for each, shape in ARRAYS.items()
        if each in used
    )
    shape = [dim.dim_value or 5 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": RNG.normal(0, 1, shape).astype(F)}

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        sets = iter([feeds])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.sets, None)

    onnx.save(model, folder / "float.onnx")
    target = folder / "int8.onnx"
    quantize_static(
        folder / "float.onnx",
        target,
        Reader(),
        quant_format=QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        weight_type=kind,
        per_channel=per_channel,
    )
    return onnx.load(target), feeds


def floats_of(model: onnx.ModelProto, codes: str, scale: str, zero_point: str, axis: int = 0) -> Array:
    """Returns what stock ONNX Runtime's DequantizeLinear computes of initializers."""
    kept = [each for each in model.graph.initializer if each.name in (codes, scale, zero_point)]
    sizes = {each.name: list(each.dims) for each in kept}
    attributes = {"axis": axis} if sizes[scale] not in ([], [1]) else {}
    node = helper.make_node("DequantizeLinear", [codes, scale, zero_point], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, None)], kept)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return np.asarray(stock_session(made).run(None, {})[0])


def weights_of(model: onnx.ModelProto) -> list[Array]:
    """Returns the second factors of products, also behind DequantizeLinear."""
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    made = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    found = []
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm", "Conv", "Attention"):
            name = node.input[1]
            dq = made.get(name)
            axis = next((each.i for each in dq.attribute if each.name == "axis"), 0) if dq else 0
            found.append(arrays[name] if dq is None else floats_of(model, *dq.input, axis=axis))
    return found


def expected_weights(model: onnx.ModelProto) -> list[Array]:
    """Returns the floats of the weights of each QLinear product, in order."""
    places = {"QLinearMatMul": (3, 1), "QLinearConv": (3, 0), "QGemm": (3, 0), "QAttention": (1, 1)}
    places |= {"MatMulIntegerToFloat": (1, 1), "DynamicQuantizeMatMul": (1, 1)}
    found = []
    for node in model.graph.node:
        if node.op_type not in places:
            continue
        at, axis = places[node.op_type]
        scale, zero = {
            "QAttention": (4, 7),
            "MatMulIntegerToFloat": (3, 5),
            "DynamicQuantizeMatMul": (2, 3),
        }.get(node.op_type, (at + 1, at + 2))
        found.append(floats_of(model, node.input[at], node.input[scale], node.input[zero], axis))
    return found


def noise(expected: Array, actual: Array) -> float:
    return float(np.square((actual - expected).astype(np.float64)).sum() / np.square(expected).sum())


@pytest.mark.parametrize(
    ("form", "per_channel", "kind", "name"),
    pairwise(["float", "qdq"], [False, True], [QuantType.QInt8, QuantType.QUInt8], LAYERS),
)
def test_qlinear_operators(name: str, kind: QuantType, per_channel: bool, form: str, tmp_path: Path) -> None:
    """The weights are those of DequantizeLinear bit for bit; the result is nearer to the float model than before."""
    model, feeds = static(name, tmp_path, kind, per_channel=per_channel)
    result = dequantize(model, weights_form=form)
    assert not result.report.unconverted
    converted = result.to_proto()
    assert not any(node.op_type.startswith("Q") for node in converted.graph.node)
    assert all(map(np.array_equal, weights_of(converted), expected_weights(model)))
    (wanted,) = stock_session(onnx.load(tmp_path / "float.onnx")).run(None, feeds)
    (before,), (after,) = (stock_session(each).run(None, feeds) for each in (model, converted))
    assert noise(wanted, after) < 1.1 * noise(wanted, before)  # that of weights may be most of it
    assert noise(wanted, after) < 1e-2


@pytest.mark.parametrize("form", ["float", "qdq"])
@pytest.mark.parametrize("name", ["ort_dynamic_optimized", "ort_dynamic_attention", "ort_mixture_of_experts"])
def test_operators_of_microsoft(name: str, form: str) -> None:
    """MatMulIntegerToFloat, DynamicQuantizeMatMul, QAttention, QEmbedLayerNormalization and QMoE."""
    model = onnx.load(MODELS / name / "model.onnx")
    result = dequantize(model, weights_form=form)
    assert not result.report.unconverted
    converted, feeds = result.to_proto(), recorded_inputs(MODELS / name)
    stored = [each for each in weights_of(converted) if each.ndim > 1]
    for wanted in expected_weights(model):
        assert any(map(np.array_equal, stored, [wanted] * len(stored)))
    for actual, expected in zip(
        stock_session(converted).run(None, feeds), stock_session(model).run(None, feeds), strict=True
    ):
        assert noise(expected, actual) < 1e-3


def test_rows_of_a_table_of_few_bits() -> None:
    """They have the bits that GatherBlockQuantized computes."""
    model, feeds = (
        onnx.load(MODELS / "ort_tied_embedding" / "model.onnx"),
        recorded_inputs(MODELS / "ort_tied_embedding"),
    )
    result = dequantize(model)
    assert not result.report.unconverted
    converted = result.to_proto()
    assert [node.op_type for node in converted.graph.node] == ["Gather", "MatMul"]
    actual, expected = (session.run(None, feeds) for session in (stock_session(converted), stock_session(model)))
    assert np.array_equal(actual[0], expected[0])
    assert noise(expected[1], actual[1]) < 1e-4


@pytest.mark.parametrize(("bits", "size", "has_zeros"), [(8, 16, True), (4, 16, False), (4, 0, True), (2, 16, True)])
def test_weights_of_experts(bits: int, size: int, has_zeros: bool) -> None:
    """(code - zero point) * scale, where codes have the low bits first."""
    experts, columns, depth = 3, 8, 32
    blocks = depth // size if size else 1
    numbers = {
        "codes1": RNG.integers(0, 1 << bits, (experts, columns, depth)),
        "codes2": RNG.integers(0, 1 << bits, (experts, depth, columns)),
    }
    blocks2 = 1 if not size else -(-columns // size)
    scales = {
        "scales1": RNG.uniform(0.01, 0.1, (experts, columns, blocks)[: 3 if size else 2]).astype(F),
        "scales2": RNG.uniform(0.01, 0.1, (experts, depth, blocks2)[: 3 if size else 2]).astype(F),
    }
    zeros = {
        "zeros1": RNG.integers(0, 1 << bits, (experts, columns, blocks)),
        "zeros2": RNG.integers(0, 1 << bits, (experts, depth, blocks2)),
    }

    def packed(codes: Array) -> Array:
        per_byte = 8 // bits
        padded = np.pad(codes, [(0, 0), (0, 0), (0, -codes.shape[2] % per_byte)])
        parts = padded.reshape(*codes.shape[:2], -1, per_byte) << (np.arange(per_byte) * bits)
        return parts.sum(-1).astype(np.uint8)

    def stored_zeros(each: Array) -> Array:
        # without blocks, ONNX Runtime packs the zero points of columns
        return packed(each) if size else packed(each.reshape(experts, 1, -1)).reshape(experts, -1)

    given = "zeros1, zeros2" if has_zeros else ", "
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, {depth}] x, float[N, {experts}] r) => (float[N, {depth}] y) {{
        y = com.microsoft.QMoE<k = 2, expert_weight_bits = {bits}, block_size = {size}, activation_type = "silu">
            (x, r, codes1, scales1, , codes2, scales2, , , , , {given}) }}"""
    model = onnx.parser.parse_model(text.replace("block_size = 0,", ""))
    arrays = {name: packed(each) for name, each in numbers.items()} | scales
    arrays |= {name: stored_zeros(each) for name, each in zeros.items()} if has_zeros else {}
    model.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in arrays.items())
    result = dequantize(model)
    assert not result.report.unconverted
    (node,) = result.to_proto().graph.node
    found = {each.name: numpy_helper.to_array(each) for each in result.to_proto().graph.initializer}
    for name, index in (("1", 2), ("2", 4)):
        codes = numbers[f"codes{name}"].astype(np.int32)
        zero = zeros[f"zeros{name}"] if has_zeros else np.full(zeros[f"zeros{name}"].shape, 1 << (bits - 1))
        scale = scales[f"scales{name}"].reshape(zero.shape)
        of = np.arange(codes.shape[2]) // (size or codes.shape[2])
        wanted = ((codes - zero[..., of]) * scale[..., of]).astype(F)
        assert np.array_equal(found[node.input[index]], wanted)


@pytest.mark.parametrize("form", ["", ", normalize_routing_weights = 0", ", normalize_routing_weights = 1"])
@pytest.mark.parametrize("chosen", [1, 2])
def test_scores_of_chosen_experts(chosen: int, form: str) -> None:
    """ONNX Runtime's QMoE normalizes them whatever the attribute is."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[N, 32] x, float[N, 3] r)
            => (float[N, 32] y) {{ y = com.microsoft.QMoE<k = {chosen}, expert_weight_bits = 8{form}>
            (x, r, c, s, , c, s) }}"""
    )
    arrays = {"c": RNG.integers(0, 256, (3, 32, 32)).astype(np.uint8), "s": RNG.uniform(0.01, 0.1, (3, 32)).astype(F)}
    model.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in arrays.items())
    feeds = {name: RNG.normal(0, 1, (5, n)).astype(F) for name, n in (("x", 32), ("r", 3))}
    expected, actual = (stock_session(each).run(None, feeds)[0] for each in (model, dequantize(model).to_proto()))
    assert noise(expected, actual) < 1e-10


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("form", ["axis = 1", "axis = -1", "axis = 2", ""])
@pytest.mark.parametrize("kernel", [12, 13])
def test_axes_of_softmax(opset: int, form: str, kernel: int) -> None:
    """Before opset 13, Softmax takes all axes from `axis` on together. The operator has an opset of its own."""
    attributes = ", ".join(each for each in (f"opset = {kernel}", form) if each)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> g (uint8[N, 4, 6] x) => (uint8[N, 4, 6] y)
            {{ y = com.microsoft.QLinearSoftmax<{attributes}>(x, s, z, t, n) }}"""
    )
    arrays = {"s": F(0.03), "z": np.uint8(128), "t": F(1 / 256), "n": np.uint8(0)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in arrays.items())
    result = dequantize(model)
    stays = any(node.op_type == "QLinearSoftmax" for node in result.to_proto().graph.node)
    assert stays == (form == "axis = 1" and kernel != opset)
    feeds = {"x": RNG.integers(0, 256, (3, 4, 6)).astype(np.uint8)}
    actual, expected = (stock_session(each).run(None, feeds)[0] for each in (result.to_proto(), model))
    assert np.abs(actual.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("form", ["ceil_mode = 1", "count_include_pad = 1", "ceil_mode = 1, count_include_pad = 1"])
def test_pads_of_pools(form: str) -> None:
    """With both attributes, ONNX Runtime's kernels of codes and of floats divide by other numbers of elements."""
    attributes = f"kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], {form}"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (uint8[N, 2, 8, 8] x) => (uint8[N, 2, A, B] y)
            {{ y = com.microsoft.QLinearAveragePool<{attributes}>(x, s, z, s, z) }}"""
    )
    arrays = {"s": F(0.03), "z": np.uint8(3)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in arrays.items())
    result = dequantize(model)
    assert ("QLinearAveragePool" in [node.op_type for node in result.to_proto().graph.node]) == ("," in form)
    feeds = {"x": RNG.integers(0, 256, (3, 2, 8, 8)).astype(np.uint8)}
    actual, expected = (stock_session(each).run(None, feeds)[0] for each in (result.to_proto(), model))
    assert np.abs(actual.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("part", ["scale", "router"])
def test_reasons(part: str) -> None:
    """What stays is reported."""
    if part == "scale":
        text = """<ir_version: 8, opset_import: ["": 17]> g (uint8[N, 8] a, float s) => (uint8[N, 8] y)
            { y = QLinearMatMul(a, one, z, w, s, z, one, z) }"""
    else:
        text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[N, 8] x, float[N, 2] r)
            => (float[N, 8] y) { y = com.microsoft.QMoE<expert_weight_bits = 8>
            (x, r, c, t, , c, t, , , , , , , , r) }"""
    model = onnx.parser.parse_model(text)
    arrays = {
        "one": F(1),
        "z": np.uint8(3),
        "w": RNG.integers(0, 256, (8, 8)).astype(np.uint8),
        "c": RNG.integers(0, 256, (2, 8, 8)).astype(np.uint8),
        "t": np.ones((2, 8), F),
    }
    used = {each for node in model.graph.node for each in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(each), name) for name, each in arrays.items() if name in used
    )
    (finding,) = dequantize(model).report.unconverted
    expected = "MoE has no such router" if part == "router" else "are computed at run time"
    assert expected in finding.reason
