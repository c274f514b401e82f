"""What ONNX Runtime makes of products of weights behind DequantizeLinear is reported."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from dequantized_models import ALONG_SUMS, EVERY_RUN, FOLDED, FORMS, LEVEL_4, Form

import ort_dynq
from ort_dynq.rewriter import inspect


def optimized(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Returns the operators of the model that ONNX Runtime makes."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


_OF_1_32 = pytest.mark.skipif(
    not ort.__version__.startswith("1.32."), reason="what ONNX Runtime fuses depends on its version"
)


@_OF_1_32
@pytest.mark.parametrize("form", [*FORMS, *FOLDED, *ALONG_SUMS], ids=str)
def test_reports_what_onnxruntime_makes(form: Form, tmp_path: Path) -> None:
    """ONNX Runtime's optimized model agrees with the report, also of a rewrite that changes nothing."""
    model = form.model()
    kinds = optimized(model, tmp_path)
    assert ("MatMulNBits" in kinds, "DequantizeLinear" in kinds) == (form.made == LEVEL_4, form.made == EVERY_RUN)
    report = inspect(model, exact=True)
    (finding,) = report.unconverted
    assert finding.reason.startswith("exact")
    assert form.made in finding.reason
    assert "left to ONNX Runtime" not in report.summary


@_OF_1_32
@pytest.mark.parametrize("shared", ["scales", "zeros"])
def test_reports_what_onnxruntime_makes_of_shared_tensors(shared: str, tmp_path: Path) -> None:
    """It makes no MatMulNBits of scales that two DequantizeLinear read, but of zero points; the first rewritten product
    does not change what the report says of the second one."""
    model, other = Form(codes="UINT4").model(), Form(codes="UINT4").model()
    for each in other.graph.node:
        for names in (each.input, each.output):
            names[:] = [name if name in ("x", shared) else f"{name}_2" for name in names]
        each.name += "_2"
        model.graph.node.add().CopyFrom(each)
    for each in other.graph.initializer:
        if each.name != shared:
            each.name += "_2"
            model.graph.initializer.add().CopyFrom(each)
    other.graph.output[0].name = "y_2"
    model.graph.output.append(other.graph.output[0])
    made = LEVEL_4 if "MatMulNBits" in optimized(model, tmp_path) else EVERY_RUN
    assert made == (EVERY_RUN if shared == "scales" else LEVEL_4)
    for report in (inspect(model, exact=True), ort_dynq.rewrite(model).report):
        assert [made in each.reason for each in report.findings] == [True, True]
