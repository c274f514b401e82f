"""Products of a float activation and constant weights behind DequantizeLinear, as exporters write them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from dequantized_models import FOLDED, FORMS, Form, add_product, outputs_of
from helpers import assert_same, stock_session
from nbits import noise, run
from onnx import helper, numpy_helper

import ort_dynq
from ort_dynq.rewriter.products import dequantized_matmul
from ort_dynq.rewriter.reasons import Reason
from ort_dynq.storage import ComputedTensor, tensors


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_two_terms(form: Form) -> None:
    """By default, the activation keeps about 90 dB; float16 models round their results."""
    model = form.model()
    result = ort_dynq.rewrite(model)
    (finding,) = result.report.findings
    assert finding.operator == "QuantizedMatMul"
    assert "two terms" in finding.reason
    rewritten = result.to_proto()
    y, reference = run(rewritten, form.x), outputs_of(model, form.x).astype(np.float64)
    ordinary = slice(5, None)  # a row of one scale has less with an element of 30 times the others'
    is_half = form.half or form.more in ("cast", "rounded")
    assert noise(y[ordinary], reference[ordinary]) > (60 if is_half else 86)
    assert noise(y, reference) > (60 if is_half else 70)
    assert_same(y, np.asarray(stock_session(rewritten).run(None, {"x": form.x})[0]))
    x = form.x
    x.reshape(-1, x.shape[-1])[2, 70] = np.nan
    assert np.array_equal(np.isnan(run(rewritten, x)), np.isnan(outputs_of(model, x)))


@pytest.mark.parametrize("form", [each for each in FORMS if each.half or each.more or "T" in each.product], ids=str)
def test_verify(form: Form) -> None:
    """Verification finds the weights of each form in the original: transposed, rounded, and with alpha."""
    model = form.model()
    assert ort_dynq.verify(model, ort_dynq.rewrite(model).to_proto()).passed


@pytest.mark.parametrize("form", FORMS[::3], ids=str)
def test_one_term(form: Form) -> None:
    """It is about as accurate as the MatMulNBits that ONNX Runtime makes; channels of one scale are split in blocks."""
    model = form.model()
    result = ort_dynq.rewrite(model, weights_only="blocks")
    assert "8 bits in blocks" in result.report.findings[0].reason
    rewritten = result.to_proto()
    reference = outputs_of(model, form.x).astype(np.float64)
    assert noise(run(rewritten, form.x), reference) > 38
    assert ort_dynq.verify(model, rewritten).passed


@pytest.mark.parametrize("form", FOLDED, ids=str)
def test_folded(form: Form) -> None:
    """Weights that QuantizedMatMul does not have, or too few of them, are dequantized once."""
    model = form.model()
    result = ort_dynq.rewrite(model)
    (finding,) = result.report.findings
    assert "dequantized once" in finding.reason
    rewritten = result.to_proto()
    assert [node.op_type for node in rewritten.graph.node] == [form.product]
    y = outputs_of(model, form.x)
    np.testing.assert_allclose(run(rewritten, form.x), y, rtol=0, atol=2e-6 * np.abs(y).max())  # orders of sums
    assert ort_dynq.verify(model, rewritten).passed


def test_products_of_the_same_weights_share_them() -> None:
    model = Form().model()
    add_product(model)
    assert len(ort_dynq.rewrite(model).report.rewritten) == 2
    rewritten = ort_dynq.rewrite(model).to_proto()
    calls = [node for node in rewritten.graph.node if node.op_type == "QuantizedMatMul"]
    assert calls[0].input[:7] == calls[1].input[:7]
    assert "DequantizeLinear" not in {node.op_type for node in rewritten.graph.node}


@pytest.mark.parametrize("moves", [(), ("Transpose", "Transpose")])
def test_static_activations_stay(moves: tuple[str, ...]) -> None:
    """ONNX Runtime makes one integer product of such an activation and weights, so they are not weights only."""
    model = Form(codes="INT8", axis=1, block=0).model()
    scale = numpy_helper.from_array(np.array(0.05, np.float32), "x_scale")
    zero_point = numpy_helper.from_array(np.array(9, np.uint8), "x_zero_point")
    model.graph.initializer.extend([scale, zero_point])
    at, nodes = "fake", []
    for i, name in enumerate(moves):
        nodes.append(helper.make_node(name, [at], [at := f"moved_{i}"]))
    product = model.graph.node[-1]
    product.input[0] = at
    quantized = ["x_codes", "x_scale", "x_zero_point"]
    before = [helper.make_node("QuantizeLinear", ["x", *quantized[1:]], quantized[:1])]
    before += [helper.make_node("DequantizeLinear", quantized, ["fake"]), *nodes]
    rest = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*before, *rest])
    report = ort_dynq.rewrite(model).report
    assert [each.operator for each in report.findings if each.operator] == []
    assert [each.unconverted.reason for each in report.unconverted if each.unconverted] == [Reason.STATIC]


def test_folded_weights_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that several products share count once."""
    form = FOLDED[0]
    model = form.model()
    add_product(model)
    size = 4 * form.depth * form.columns
    monkeypatch.setattr(dequantized_matmul, "FOLDED", dataclasses.replace(dequantized_matmul.FOLDED, most=size))
    assert len(ort_dynq.rewrite(model).report.rewritten) == 2
    monkeypatch.setattr(dequantized_matmul, "FOLDED", dataclasses.replace(dequantized_matmul.FOLDED, most=size - 1))
    assert ["more than 1 GB" in each.reason for each in ort_dynq.rewrite(model).report.unconverted] == [True, True]


def test_products_of_the_same_weights_with_another_alpha_share_codes() -> None:
    form = Form(codes="INT8", axis=None, block=0, product="Gemm", depth=264)
    model = form.model()
    add_product(model)
    model.graph.node[-1].attribute.append(helper.make_attribute("alpha", 2.0))
    rewritten = ort_dynq.rewrite(model).to_proto()
    calls = [node for node in rewritten.graph.node if node.op_type == "QuantizedMatMul"]
    assert [calls[0].input[i] == calls[1].input[i] for i in range(3, 7)] == [True, True, False, True]
    assert ort_dynq.verify(model, rewritten).passed


def test_weights_in_a_file(tmp_path: Path) -> None:
    """They are read when the rewritten model is written."""
    form = FORMS[6]
    onnx.save(form.model(), tmp_path / "a.onnx", save_as_external_data=True, size_threshold=0, location="a.data")
    result = ort_dynq.rewrite(tmp_path / "a.onnx")
    assert any(isinstance(each, ComputedTensor) for each in tensors(result.model))
    result.save(tmp_path / "b.onnx")
    assert_same(run(str(tmp_path / "b.onnx"), form.x), run(ort_dynq.rewrite(form.model()).to_proto(), form.x))
