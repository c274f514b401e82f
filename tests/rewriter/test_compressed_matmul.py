"""Products with matrices with scales that vary along the sums."""

from __future__ import annotations

import numpy as np
import pytest
from dequantized_models import ALONG_SUMS, EVERY_RUN, Form, outputs_of
from helpers import assert_same, options
from nbits import noise
from onnx import helper, numpy_helper

import ort_dynq


@pytest.mark.parametrize(("form", "are_inputs"), [(form, i % 2 > 0) for i, form in enumerate(ALONG_SUMS)], ids=str)
def test_scales_along_the_sums(form: Form, are_inputs: bool) -> None:
    """The activation times the scales of each part has 16 bits; the codes are constants or inputs of the model."""
    model = form.model()
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer if each.name != "bias"}
    if are_inputs:
        for tensor in [each for each in model.graph.initializer if each.name != "bias"]:
            model.graph.input.add().CopyFrom(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            model.graph.initializer.remove(tensor)
    result = ort_dynq.rewrite(model)
    (finding, *of_half) = result.report.findings
    assert finding.operator.startswith("CompressedMatMul")
    assert EVERY_RUN in finding.reason
    assert all(each.operator == "CompressedMatMul of float16" for each in of_half)
    reference = outputs_of(form.model(), form.x).astype(np.float64)
    many = np.repeat(form.x, 5, 0)
    for threads in (1, 3):
        session = ort_dynq.InferenceSession(model, options(threads, optimize=True))
        y, of_many = (
            np.asarray(session.run(None, {"x": x} | (constants if are_inputs else {}))[0]) for x in (form.x, many)
        )
        is_half = form.half or form.more == "cast"
        assert noise(y, reference) > (60 if is_half else 74)
        assert_same(np.repeat(y, 5, 0), of_many)  # rows do not depend on how many there are
    if not are_inputs:
        assert ort_dynq.verify(model, result.to_proto()).passed
