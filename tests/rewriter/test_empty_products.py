"""Weights without rows or columns, and zero points of rows, which ONNX Runtime's MatMulInteger does not run."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import numpy_helper
from rewriting import products

from ort_dynq import verify
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason

K, N = 64, 48
W = np.random.default_rng(0).integers(-127, 128, (K, N)).astype(np.int8)
SCALED = "f = Cast<to = 1>(m) y = Mul(f, ws)"


def model_of(inputs: str, body: str, weights: Array) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[] y) <float ws = {{0.01}}> {{ {body} }}'
    )
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


FUSED = "q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z) f = Cast<to = 1>(m) t = Mul(s, ws) y = Mul(f, t)"


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("stack", [(), (2,)])
def test_empty_sums_are_zeros(exact: bool, stack: tuple[int, ...]) -> None:
    """ONNX Runtime's own product returns memory that it did not write."""
    lead = "".join(f"{each}, " for each in stack)
    model = model_of(f"float[{lead}M, 0] x", FUSED, np.zeros((*stack, 0, N), np.int8))
    result = rewrite(model, exact=exact)
    assert products(result.report) == ["QuantizedMatMul"]
    x = np.zeros((*stack, 5, 0), np.float32)
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        for _ in range(3):
            np.full((*stack, 5, N), 7, np.int32)  # memory that is used again
            assert_same(session.run(None, {"x": x})[0], np.zeros((*stack, 5, N), np.float32))
    assert verify(model, result.to_proto(), inputs={"x": x}).passed
    assert verify(model, model, inputs={"x": x}).passed


def test_an_empty_result_is_verified() -> None:
    model = model_of(f"float[M, {K}] x", FUSED, np.zeros((K, 0), np.int8))
    result = rewrite(model)
    (left,) = [each for each in result.report.unconverted if each.op_type == "MatMulInteger"]
    assert left.unconverted is not None
    assert left.unconverted.reason is Reason.WEIGHTS_EMPTY
    assert verify(model, result.to_proto()).passed
    assert verify(model, result.to_proto(), inputs={"x": np.zeros((0, K), np.float32)}).status == "unchecked"
    without_data = model_of(f"float[M, {K}] x", FUSED, W)
    given = {"x": np.zeros((0, K), np.float32)}
    assert verify(without_data, rewrite(without_data).to_proto(), inputs=given).status == "unchecked"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("rows", ["M", "5"])
@pytest.mark.parametrize("has_scale", [False, True])
def test_a_vector_of_zero_points_of_rows(dtype: str, rows: str, has_scale: bool) -> None:
    scale, scaled = (f", float[{rows}, 1] s", " t = Mul(f, s)") if has_scale else ("", " t = Identity(f)")
    body = f"m = MatMulInteger(q, w, z) f = Cast<to = 1>(m){scaled} y = Mul(t, ws)"
    result = rewrite(model_of(f"{dtype}[{rows}, {K}] q, {dtype}[{rows}] z{scale}", body, W))
    assert products(result.report) == ["QuantizedMatMul"]
    rng, limits = np.random.default_rng(1), np.iinfo(dtype)
    q, z = (rng.integers(limits.min, limits.max + 1, shape).astype(dtype) for shape in ((5, K), (5,)))
    sums = (q.astype(np.int32) - z[:, None]) @ W.astype(np.int32)
    expected = sums.astype(np.float32)
    feeds = {"q": q, "z": z}
    if has_scale:
        feeds["s"] = rng.normal(size=(5, 1)).astype(np.float32)
        expected *= feeds["s"]
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        assert_same(session.run(None, feeds)[0], expected * np.float32(0.01))


@pytest.mark.parametrize(
    ("inputs", "body", "reason"),
    [
        (f"uint8[B, M, {K}] q, uint8[M] z", SCALED, Reason.ACTIVATION_ZERO_POINT),  # of no matrix
        (f"uint8[M, {K}] q, uint8[P] z", SCALED, Reason.ACTIVATION_ZERO_POINT),
        (f"int8[5, {K}] q, int8[5] z", "i = Add(m, m) y = Cast<to = 1>(i)", Reason.ACTIVATION_ONE_ZERO_POINT),
    ],
)
def test_other_zero_points_stay_with_a_reason(inputs: str, body: str, reason: Reason) -> None:
    model = model_of(inputs, f"m = MatMulInteger(q, w, z) {body}", W)
    result = rewrite(model)
    assert [each.unconverted and each.unconverted.reason for each in result.report.unconverted] == [reason]
    assert [node.op_type for node in result.to_proto().graph.node] == [node.op_type for node in model.graph.node]
