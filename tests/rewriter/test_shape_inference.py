"""Shapes that tools have written into a model hide nothing."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
from bench import transformers

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("form", ["token", "tensor_u8", "torchao"])
def test_shapes_that_a_tool_has_written_hide_nothing(form: str) -> None:
    """They give dimensions new names, and some of these are dimensions of the input."""
    model = transformers.encoder(form, layers=1, hidden=32, heads=2)
    shaped = onnx.shape_inference.infer_shapes(model)
    assert len(shaped.graph.value_info) > len(model.graph.value_info)
    assert rewrite(shaped).report == rewrite(model).report
