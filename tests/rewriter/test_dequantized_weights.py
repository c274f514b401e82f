"""Weights behind DequantizeLinear: which ones a product takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dequantized_models import EVERY_RUN, FORMS, Form, add_product, outputs_of
from helpers import with_arrays
from nbits import run
from onnx import TensorProto, helper, numpy_helper

import ort_dynq
from ort_dynq.rewriter.reasons import Reason


def test_weights_that_another_node_reads_stay() -> None:
    """The table of an embedding: the file would have it twice."""
    model = Form().model()
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [256, 264]))
    (finding,) = ort_dynq.rewrite(model).report.unconverted
    assert "other nodes also read its weights" in finding.reason
    assert EVERY_RUN in finding.reason


@pytest.mark.parametrize("to", [TensorProto.INT32, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_casts_to_other_types_stay(to: int) -> None:
    """QuantizedMatMul would not round the weights to this type."""
    model = Form(codes="INT8", axis=1, block=0, more="rounded").model()
    model.graph.node[1].attribute[0].i = to
    (finding,) = ort_dynq.rewrite(model).report.unconverted
    assert finding.unconverted is not None
    assert finding.unconverted.reason == Reason.DEQUANTIZED_TYPE


@pytest.mark.parametrize("form", [FORMS[12], FORMS[-1]], ids=str)
def test_overflow_of_float16(form: Form) -> None:
    """Codes times scales are finite in float32, but weights of float16 are infinite."""
    model = form.model()
    scales = numpy_helper.to_array(model.graph.initializer[1])
    largest = scales / scales.max() * 60000
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(largest.astype(scales.dtype), "scales"))
    result = ort_dynq.rewrite(model)
    assert "may be larger than float16 represents" in result.report.findings[0].reason
    expected = outputs_of(model, form.x)
    assert not np.isfinite(expected).all()
    np.testing.assert_array_equal(np.isfinite(run(result.to_proto(), form.x)), np.isfinite(expected))


_VALID: dict[str, Any] = {"codes": np.zeros((256, 264), np.int8), "scales": np.ones(264, np.float32)}
INVALID = {
    "few scales": ({"scales": np.ones(100, np.float32)}, {"axis": 1}),
    "rank of scales": ({"scales": np.ones((1, 1), np.float32)}, {"axis": 1}),
    "axis": ({}, {"axis": 5}),
    "few blocks": ({"scales": np.ones((5, 264), np.float32)}, {"axis": 0, "block_size": 32}),
    "rank of blocks": ({}, {"axis": 0, "block_size": 32}),
    "negative block_size": ({"scales": np.ones((8, 264), np.float32)}, {"axis": 0, "block_size": -32}),
    "few zero points": ({"zeros": np.zeros(3, np.int8)}, {"axis": 1}),
    "type of zero points": ({"zeros": np.full(264, 200, np.uint8)}, {"axis": 1}),
    "codes of rank 0": ({"codes": np.array(3, np.int8)}, {"axis": 1}),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_dequantizers_stay(name: str) -> None:
    """ONNX Runtime refuses these models, too; the report says why."""
    changed, attributes = INVALID[name]
    arrays = _VALID | changed
    model = Form().model()
    del model.graph.initializer[:]
    with_arrays(model, arrays)
    model.graph.node[0].CopyFrom(helper.make_node("DequantizeLinear", [*arrays], ["w"], **attributes))
    (finding,) = ort_dynq.rewrite(model).report.unconverted
    assert "is not valid" in finding.reason


def test_products_of_both_orientations_stay() -> None:
    model = Form(codes="INT8", axis=None, block=0, product="Gemm", depth=264).model()
    add_product(model)
    model.graph.node[-1].attribute.append(helper.make_attribute("transB", 1))
    findings = ort_dynq.rewrite(model).report.unconverted
    assert ["other nodes also read its weights" in each.reason for each in findings] == [True, True]
