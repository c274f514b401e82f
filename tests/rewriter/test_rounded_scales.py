"""Products of float16 models that round code * scale to float16, of weights or activations, become integer products."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float16_models import model_of, rows
from helpers import assert_same, make_session, product_of, stock_session, with_arrays
from onnx import numpy_helper
from rewriting import products
from rounded_models import (
    CODES,
    COLUMNS,
    CONVOLUTIONS,
    DEPTH,
    FORMS,
    SCALES,
    VERSION,
    WEIGHTS,
    convolution,
    layer,
    rounded_activation,
)

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.metadata import ROUNDED_ACTIVATION
from ort_dynq.verification import verify


@pytest.mark.parametrize("form", FORMS)
def test_products(form: str) -> None:
    model = FORMS[form]
    result = rewrite(model)
    assert "QuantizedMatMul" in {finding.operator for finding in result.report.rewritten}, result.report
    assert any("the weights before they are rounded" in finding.reason for finding in result.report.rewritten)
    proto, x = result.to_proto(), rows()[14:]
    found = verify(model, proto, inputs={"x": x})
    assert found.passed, found
    assert len(found.products) == 1
    assert found.products[0].b_error < 3
    results = [session.run(None, {"x": x})[0] for session in (make_session(proto, "native"), stock_session(proto))]
    assert_same(*results)
    (original,) = stock_session(model).run(None, {"x": x})
    weights = np.spacing(np.abs(WEIGHTS)).astype(np.float64) / 2  # the largest effect of their rounding
    bound = np.abs(x.astype(np.float64)) * 1.01 @ weights + np.spacing(np.abs(original))
    assert (np.abs(results[0].astype(np.float64) - original) <= bound).all()


def test_exact_rewrites_and_other_weights_stay() -> None:
    assert products(rewrite(FORMS["MatMul"], exact=True).report) == []
    other = WEIGHTS.copy()
    other[5, 7] = np.nextafter(np.nextafter(other[5, 7], np.float16(9)), np.float16(9))
    result = rewrite(layer(other))
    assert [finding.reason for finding in result.report.unconverted if finding.op_type == "MatMul"] == [
        "the weights are not an 8-bit grid in each output channel, or in groups of 16 to 256 along K"
    ]


@pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
@pytest.mark.parametrize("axis", [None, 0])
def test_quantize_and_dequantize_linear(axis: int | None) -> None:
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


@pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
def test_rounded_activation() -> None:
    model = rounded_activation()
    assert "QuantizedMatMul" not in products(rewrite(model, exact=True).report)
    proto, x = rewrite(model).to_proto(), np.random.default_rng(6).normal(1, 3, (100, DEPTH)).astype(np.float16)
    found = verify(model, proto, inputs={"x": x})
    assert found.passed, found
    assert len(found.products) == 3
    assert max(product.b_error for product in found.products) < 3
    results = [session.run(None, {"x": x}) for session in (make_session(proto, "native"), stock_session(proto))]
    original = stock_session(model).run(None, {"x": x})
    largest = np.spacing(np.abs(x).max()).astype(np.float64) / 2  # the largest effect of rounding the activation
    spacing = np.spacing(np.abs(WEIGHTS)).astype(np.float64)
    bound = np.abs(WEIGHTS.astype(np.float64)).sum(0) * largest + np.abs(x).astype(np.float64) * 1.1 @ spacing
    for ours, plain, expected in zip(*results, original, strict=True):
        assert_same(ours, plain)
        assert (np.abs(ours.astype(np.float64) - expected) <= bound + np.spacing(np.abs(expected))).all()


@pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
@pytest.mark.parametrize("groups", [1, 8])
def test_rounded_activation_in_rows_and_groups(groups: int) -> None:
    """A scale for each row, or for each group of 32 elements of it."""
    given = f"axis = 1, block_size = {256 // groups}" if groups > 1 else "axis = 0"
    body = (
        "g = Reshape(x, shape) a = Abs(g) m = ReduceMax<keepdims = 0>(a, one) b = Div(m, limit) s = Clip(b, eps, limit)"
        " n = Sub(s, s) z = Cast<to = 3>(n)"
        f" q = QuantizeLinear<{given}>(x, s, z) d = DequantizeLinear<{given}>(q, s, z)"
        " y = MatMul(d, weights)"
    )
    model = onnx.ModelProto.FromString(
        model_of(body, before="float16[100, 256] x", outputs=f"float16[100, {COLUMNS}] y")
    )
    model.opset_import[0].version, model.ir_version = 21, 10
    shape = np.array([100, groups, 256 // groups] if groups > 1 else [100, 256])
    arrays = {"weights": WEIGHTS[:256], "shape": shape}
    with_arrays(model, arrays)
    proto, x = rewrite(model).to_proto(), np.random.default_rng(7).normal(0, 3, (100, 256)).astype(np.float16)
    found = verify(model, proto, inputs={"x": x})
    assert found.passed, found
    assert len(found.products) == 1
    assert_same(*(session.run(None, {"x": x})[0] for session in (make_session(proto, "native"), stock_session(proto))))


def test_rounded_activation_of_given_codes() -> None:
    """Codes, scale and zero point are inputs of the model."""
    before = f"uint8[100, {DEPTH}] q, float16 s, uint8 z"
    body = "d = DequantizeLinear(q, s, z) r = Round(d) y = MatMul(d, weights)"
    outputs = f"float16[100, {COLUMNS}] y, float16[100, {DEPTH}] r"
    model = onnx.ModelProto.FromString(model_of(body, before=before, outputs=outputs))
    model.opset_import[0].version, model.ir_version = 21, 10
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "weights"))
    rng = np.random.default_rng(8)
    feeds = {"q": rng.integers(0, 256, (100, DEPTH), np.uint8), "s": np.float16(0.0371), "z": np.uint8(117)}
    proto = rewrite(model).to_proto()
    (node,) = [node for node in proto.graph.node if node.op_type == "QuantizedMatMul"]
    assert ROUNDED_ACTIVATION in {entry.key for entry in node.metadata_props}
    found = verify(model, proto, inputs={name: np.asarray(array) for name, array in feeds.items()})
    assert found.passed, found
    assert len(found.products) == 1


@pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
@pytest.mark.parametrize("form", CONVOLUTIONS)
def test_convolutions(form: str) -> None:
    model = convolution(CONVOLUTIONS[form])
    assert "QuantizedConv" not in products(rewrite(model, exact=True).report)
    proto, x = rewrite(model).to_proto(), np.random.default_rng(6).normal(1, 3, (2, 6, 20, 21)).astype(np.float16)
    nodes = [node for node in proto.graph.node if product_of(node.op_type)]
    kind = "QuantizedConvProgram" if form == "Relu" else "QuantizedConv"
    assert [node.op_type for node in nodes] == [kind] * (1 + (form == "two"))
    found = verify(model, proto, inputs={"x": x})
    assert found.passed, found
    assert len(found.products) == len(nodes)
    assert max(product.b_error for product in found.products) < 3
    ours, plain = (session.run(None, {"x": x})[0] for session in (make_session(proto, "native"), stock_session(proto)))
    assert_same(ours, plain)
    expected = stock_session(model).run(None, {"x": x})[0].astype(np.float64)
    largest = np.abs(expected).max()  # the model rounds weights, activation and result to float16, by 2**-11 each
    assert np.abs(ours.astype(np.float64) - expected).max() < 2e-3 * largest
