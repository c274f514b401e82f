"""DynamicQuantizeLinear before a convolution becomes an operator of ort_dynq; others stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from convolution_models import CONV, DYNAMIC, TAIL, C, F, given, images, model_of, weights_of
from rewriting import check, rows

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("seed", range(3))
def test_dynamic_quantize_linear_of_a_convolution(seed: int) -> None:
    """The new operator gives the same bits on ties, zeros of both signs, denormals, infinities, and ranges of 0."""
    large = rows((2 * C * 40, 40), seed).reshape(2, C, 40, 40)
    data = [large, np.zeros((1, C, 9, 8), F), np.full((1, C, 9, 8), -0.0, F), np.abs(images(1, C, 9, 8)["x"])]
    data += [
        (np.arange(C * 72) % 7 * F(1e-45)).astype(F).reshape(1, C, 9, 8),
        np.where(large == large.max(), np.inf, large),
    ]
    model = model_of(DYNAMIC + CONV + TAIL, given())
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in "qsz")
    report = check(model, *({"x": np.asarray(x, F)} for x in data), exact=True)
    assert sorted(each.operator or "" for each in report.rewritten) == ["DynamicQuantizeLinear", "QuantizedConv"]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (DYNAMIC + CONV + TAIL, (1, C, 16, 31)),
        (DYNAMIC + CONV + TAIL + "\n m = MatMulInteger(q, square, z)", (1, C, 32, 32)),
    ],
    ids=["tiny", "fused"],
)
def test_dynamic_quantize_linear_stays(body: str, shape: tuple[int, ...]) -> None:
    model = model_of(body, given() | {"square": weights_of("uint8", 32, 32)})
    for dim, length in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = length
    if "square" in body:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info("m"))
    report = rewrite(model, exact=True).report
    assert [each.operator for each in report.rewritten] == ["QuantizedConv"]
