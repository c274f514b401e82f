"""Means of channels as ReduceMean; pools of convolutions stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from elementwise_models import EXACT, C, H, W, model_of
from onnx import numpy_helper
from rewriting import operators

import ort_dynq
from ort_dynq import rewrite


def pooled(opset: int, before: str = EXACT["learned scalars"].replace("y = Add", "u = Add")) -> onnx.ModelProto:
    model = model_of(f"{before} y = GlobalAveragePool(u)")
    model.opset_import[0].version = opset
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    return model


@pytest.mark.parametrize("opset", [17, 18])
def test_means_of_channels(opset: int) -> None:
    """ReduceMean takes half of the time. `verify` compares it in float64; the terms are far larger than their mean."""
    model = pooled(opset)
    given = next(each for each in ("x0", "x") if each in {value.name for value in model.graph.input})
    rng = np.random.default_rng(3)
    feeds = {given: rng.normal(-0.4, 3, (2, C, H, W)).astype(np.float32)}
    feeds |= {"r": feeds[given], "g": np.zeros((2, C, 1, 1), np.float32)}
    converted = rewrite(model, fuse=True).to_proto()
    assert operators(converted) == {"ort_dynq.RowProgram": 1}
    assert {node.op_type for node in converted.graph.node} == {"RowProgram", "Constant", "ReduceMean"}
    verification = ort_dynq.verify(model, converted, inputs=feeds)
    assert verification.passed, verification
    assert [each.is_fusion for each in verification.products] == [True]


def test_pools_of_convolutions_stay() -> None:
    """There, ONNX Runtime reads the layout that the Conv writes."""
    model = pooled(18, "u = Conv(x, ones)")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((C, C, 1, 1), np.float32), "ones"))
    assert "ReduceMean" not in {node.op_type for node in rewrite(model, fuse=True).to_proto().graph.node}
