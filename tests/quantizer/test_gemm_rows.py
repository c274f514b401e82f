"""Products of rows that a Reshape merges, as GPT-2's Gemm: the node before the Reshape and the quantization join."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session

import ort_dynq

WIDTH, COLUMNS = 256, 192
NORM = "s = Add(x, r) n = LayerNormalization(s, gain, shift)"


def model_of(before: str, merged: str, shape: str = "flat") -> onnx.ModelProto:
    """A Gemm of `merged` after a Reshape, float32 [B, S, WIDTH] x and r to [B, S, COLUMNS] y."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20]>
        g (float[B, S, {WIDTH}] x, float[B, S, {WIDTH}] r) => (float[B, S, {COLUMNS}] y)
        <int64[2] flat = {{-1, {WIDTH}}}, int64[2] narrow = {{-1, {WIDTH // 2}}}, int64[3] whole = {{0, 0, {COLUMNS}}}>
        {{ {before} rows = Reshape({merged}, {shape}) p = Gemm(rows, w, b)
           dims = Shape(x) two = Constant<value_ints = [2]>() nought = Constant<value_ints = [0]>()
           lead = Slice(dims, nought, two) last = Constant<value_ints = [{COLUMNS}]>()
           all = Concat<axis = 0>(lead, last) y = Reshape(p, all) }}"""
    )
    depth = WIDTH if shape == "flat" else WIDTH // 2
    arrays = {
        "gain": rng.normal(1, 0.1, WIDTH),
        "shift": rng.normal(0, 0.1, WIDTH),
        "w": rng.normal(0, 0.1, (depth, COLUMNS)),
        "b": rng.normal(0, 1, COLUMNS),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    return model


def feeds(batch: int = 2, tokens: int = 7) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(0, 1, (batch, tokens, WIDTH)).astype(np.float32) for name in "xr"}


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type in ("RowProgram", "QuantizedMatMul", "Gemm")]


@pytest.mark.parametrize(("before", "merged"), [(NORM, "n"), ("n = Gelu(x)", "n"), ("n = Mish(x)", "n")])
def test_the_node_before_and_the_quantization_are_one_program(before: str, merged: str) -> None:
    model = model_of(before, merged)
    quantized = ort_dynq.quantize(model).to_proto()
    assert kinds(quantized) == ["RowProgram", "QuantizedMatMul"]
    sessions = make_session(quantized, "native"), stock_session(quantized), stock_session(model)
    for batch, tokens in ((2, 7), (1, 1), (0, 3)):
        given = feeds(batch, tokens)
        y, of_bodies, expected = (session.run(None, given)[0] for session in sessions)
        assert_same(y, of_bodies)
        assert y.shape == expected.shape == (batch, tokens, COLUMNS)
        assert np.abs(y - expected).max(initial=0) < 0.05 * np.abs(expected).max(initial=1)


def test_a_matrix_that_others_read() -> None:
    """The Reshape stays for them."""
    model = model_of(NORM, "n")
    model.graph.node.extend([onnx.helper.make_node("Neg", ["rows"], ["z"])])
    model.graph.output.extend([onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["R", WIDTH])])
    quantized = ort_dynq.quantize(model).to_proto()
    found = make_session(quantized, "native").run(None, feeds())
    expected = stock_session(model).run(None, feeds())
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
    assert np.abs(found[0] - expected[0]).max() < 0.05 * np.abs(expected[0]).max()


def test_an_input_of_the_model_stays_before_the_reshape() -> None:
    quantized = ort_dynq.quantize(model_of("", "x")).to_proto()
    program = next(node for node in quantized.graph.node if node.op_type == "RowProgram")
    assert (kinds(quantized), program.input[0]) == (["RowProgram", "QuantizedMatMul"], "rows")
