"""Products of float16 models whose exporter has rounded code * scale to float16: they become integer products."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import numpy_helper
from test_float16_casts import CHAINS, model_of, rows

from ort_dynq.operators.packing import pack
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.metadata import ROUNDED_WEIGHTS
from ort_dynq.verification import verify

VERSION = tuple(map(int, ort.__version__.split(".")[:2]))
DEPTH, COLUMNS = 257, 24
RNG = np.random.default_rng(5)
CODES = RNG.integers(-127, 128, (DEPTH, COLUMNS))
CODES[3] = 127
SCALES = RNG.uniform(0.001, 0.02, COLUMNS).astype(np.float32)
WEIGHTS = (CODES * SCALES.astype(np.float64)).astype(np.float16)


def layer(weights: Array = WEIGHTS, product: str = "y = MatMul(f, weights)") -> onnx.ModelProto:
    body = CHAINS["quotient"].replace("y =", "f =")
    model = onnx.ModelProto.FromString(model_of(f"{body} {product}", outputs="float16[N, M] y"))
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    model.graph.initializer.append(numpy_helper.from_array(np.full(COLUMNS, 0.5, np.float16), "bias"))
    return model


FORMS = {
    "MatMul": layer(),
    "bias": layer(product="p = MatMul(f, weights) y = Add(p, bias)"),
    "Gemm": layer(np.ascontiguousarray(WEIGHTS.T), "y = Gemm<transB = 1>(f, weights, bias)"),
    "transposed": layer(np.ascontiguousarray(WEIGHTS.T), "v = Transpose<perm = [1, 0]>(weights) y = MatMul(f, v)"),
}


@pytest.mark.parametrize("form", FORMS)
def test_products(isa: str, form: str) -> None:
    model = FORMS[form]
    result = rewrite(model)
    assert "QuantizedMatMul" in {finding.operator for finding in result.report.rewritten}, result.report
    assert any("before the model rounds them" in finding.reason for finding in result.report.rewritten)
    proto, x = result.to_proto(), rows()[14:]
    found = verify(model, proto, inputs={"x": x})
    assert found.passed, found
    assert len(found.products) == 1
    assert found.products[0].b_error < 3
    results = [session.run(None, {"x": x})[0] for session in (make_session(proto, "native"), stock_session(proto))]
    assert_same(*results)
    (original,) = stock_session(model).run(None, {"x": x})
    weights = np.spacing(np.abs(WEIGHTS)).astype(np.float64) / 2  # what their rounding may change
    bound = np.abs(x.astype(np.float64)) * 1.01 @ weights + np.spacing(np.abs(original))
    assert (np.abs(results[0].astype(np.float64) - original) <= bound).all()


def test_exact_rewrites_and_other_weights_stay() -> None:
    assert not any(
        finding.operator == "QuantizedMatMul" for finding in rewrite(FORMS["MatMul"], exact=True).report.rewritten
    )
    other = WEIGHTS.copy()
    other[5, 7] = np.nextafter(np.nextafter(other[5, 7], np.float16(9)), np.float16(9))
    result = rewrite(layer(other))
    assert [finding.reason for finding in result.report.left if finding.op_type == "MatMul"] == [
        "the weights are not an 8-bit grid in each output channel, or in groups of 16 to 256 along K"
    ]


def test_verification_finds_other_weights() -> None:
    """A code that differs by one, and a scale that gives other weights."""
    proto = rewrite(FORMS["MatMul"]).to_proto()
    (node,) = [node for node in proto.graph.node if node.op_type == "QuantizedMatMul"]
    assert {entry.key: entry.value for entry in node.metadata_props}[ROUNDED_WEIGHTS] == "1"
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    codes = CODES.astype(np.int8)
    codes[100, 9] += 1
    changes = {node.input[3]: pack(codes), node.input[5]: (SCALES * np.float32(1.001))[None]}
    for name, values in changes.items():
        before = tensors[name].SerializeToString()
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))
        found = verify(FORMS["MatMul"], proto, inputs={"x": rows()[14:]})
        assert [product.problem for product in found.products] == ["B's weights, rounded to float16, are not A's"]
        tensors[name].ParseFromString(before)
    assert verify(FORMS["MatMul"], proto, inputs={"x": rows()[14:]}).passed


@pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
@pytest.mark.parametrize("axis", [None, 0])
def test_quantize_and_dequantize_linear(isa: str, axis: int | None) -> None:
    """ONNX Runtime quantizes with the rounded scale, and dequantizes with the scale before it is rounded."""
    keep, given = ("<keepdims = 0>(a, one)", "<axis = 0>") if axis == 0 else ("<keepdims = 0>(a)", "")
    body = (
        f"a = Abs(x) m = ReduceMax{keep} s = Div(m, limit) n = Sub(s, s) z = Cast<to = 3>(n)"
        f" q = QuantizeLinear{given}(x, s, z) d = DequantizeLinear{given}(q, s, z)"
        " w = DequantizeLinear<axis = 1>(codes, scales) y = MatMul(d, w)"
    )
    model = onnx.ModelProto.FromString(
        model_of(body, before=f"float16[100, {DEPTH}] x", outputs=f"float16[100, {COLUMNS}] y")
    )
    model.opset_import[0].version, model.ir_version = 21, 10
    model.graph.initializer.append(numpy_helper.from_array(CODES.astype(np.int8), "codes"))
    model.graph.initializer.append(numpy_helper.from_array(SCALES.astype(np.float16), "scales"))
    result = rewrite(model)
    assert {"QuantizedMatMul", "QuantizedMatMul of float16"} <= {each.operator for each in result.report.rewritten}
    x = np.random.default_rng(6).normal(0, 3, (100, DEPTH)).astype(np.float16)
    proto = result.to_proto()
    found = verify(model, proto, inputs={"x": x})
    assert found.passed, found
    assert len(found.products) == 1
    assert_same(*(session.run(None, {"x": x})[0] for session in (make_session(proto, "native"), stock_session(proto))))
