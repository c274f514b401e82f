"""A product of quantized weights stays if it is little beside the model's convolutions: nothing is gained."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import with_arrays
from onnx import numpy_helper

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason, Unconverted


def network(length: int | str) -> onnx.ModelProto:
    """A convolution of images of this length, and a last layer of 32x256 weights."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[n, 16, {length}, {length}] x) => (float[n, 256] y) {{
            f = DequantizeLinear(filter, s) c = Conv<pads = [1, 1, 1, 1]>(x, f)
            p = GlobalAveragePool(c) r = Flatten(p) w = DequantizeLinear(last, s) y = MatMul(r, w)
        }}"""
    )
    arrays = {
        "filter": rng.integers(-128, 128, (32, 16, 3, 3)).astype(np.int8),
        "last": rng.integers(-128, 128, (32, 256)).astype(np.int8),
        "s": np.float32(0.01),
    }
    return with_arrays(model, arrays)


def test_little() -> None:
    """(8 + 8) * 32 * 256 of 8 * 56 * 56 * 4608 products; the model does not grow."""
    model = network(56)
    result = rewrite(model)
    reasons = [str(each.unconverted) for each in result.report.unconverted]
    assert str(Unconverted(Reason.DEQUANTIZED_LITTLE, percent="0.11")) in " ".join(reasons)
    assert not result.report.rewritten
    assert {each.name for each in result.to_proto().graph.initializer} == {"filter", "last", "s"}


@pytest.mark.parametrize(("length", "options"), [(8, {}), ("size", {}), (56, {"weights_only": "two-term"})])
def test_more_or_asked_for(length: int | str, options: dict[str, str]) -> None:
    """Images may be small, and a user may ask for it."""
    assert len(rewrite(network(length), **options).report.rewritten) == 1


def test_attention_beside_convolutions() -> None:
    """A product of many rows is not little."""
    model = network(56)
    del model.graph.node[2:4]
    (last,) = (each for each in model.graph.initializer if each.name == "last")
    last.CopyFrom(numpy_helper.from_array(np.ones((56, 256), np.int8), "last"))
    model.graph.node[-1].input[0] = "c"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert len(rewrite(model).report.rewritten) == 1
