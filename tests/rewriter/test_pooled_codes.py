"""MaxPool of codes runs in floats, with the same results; other pools stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import stock_session

from ort_dynq import rewrite

POOLS = {
    "image": ("[3, 2]", ", strides = [2, 1], pads = [1, 0, 2, 1]", (2, 17, 19, 23)),
    "SAME_LOWER": ("[4, 3]", ', strides = [3, 2], auto_pad = "SAME_LOWER"', (1, 9, 20, 31)),
    "sound": ("[5]", ", pads = [4, 4]", (2, 8, 257)),
    "volume": ("[2, 2, 2]", ", strides = [2, 2, 2]", (1, 6, 8, 10, 12)),
}
OTHERS = {
    "ends beyond the pads": "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)",
    "dilations": "y = MaxPool<kernel_shape = [2, 2], dilations = [1, 2]>(x)",
    "pads below 0": 'y = MaxPool<kernel_shape = [1, 1], strides = [2, 2], auto_pad = "SAME_UPPER">(x)',
    "places": "y, places = MaxPool<kernel_shape = [2, 2]>(x)",
    "few elements": "p = Slice(x, starts, ends) y = MaxPool<kernel_shape = [2, 2]>(p)",
    "a product of ONNX Runtime": "p = MaxPool<kernel_shape = [2, 2]>(x) y = QLinearConv(p, s, x0, w, s, x0, s, x0)",
    "an operator of com.microsoft": "p = com.microsoft.QLinearSigmoid(x, s, x0, s, x0) "
    "y = MaxPool<kernel_shape = [2, 2]>(p)",
    "floats": "p = Cast<to = 1>(x) y = MaxPool<kernel_shape = [2, 2]>(p)",
}


def model_of(body: str, kind: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> m ({kind}{list(shape)} x) => ({kind}[] y)
        <float s = {{0.5}}, {kind} x0 = {{3}}, {kind}[1, 8, 1, 1] w = {{1, 2, 3, 4, 5, 6, 7, 8}},
         int64[2] starts = {{0, 0}}, int64[2] ends = {{1, 6}}> {{ {body} }}"""
    )


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("pool", POOLS)
def test_pools(pool: str, kind: str) -> None:
    """Of all codes, of the lowest one beside pads, and of the highest one."""
    kernel, more, shape = POOLS[pool]
    model = model_of(f"y = MaxPool<kernel_shape = {kernel}{more}>(x)", kind, shape)
    converted = rewrite(model).to_proto()
    assert kinds(converted) == ["Cast", "MaxPool", "Cast"]
    ends, rng = np.iinfo(kind), np.random.default_rng(7)
    for low, high in ((ends.min, ends.max), (ends.min, ends.min), (ends.max - 1, ends.max)):
        feeds = {"x": rng.integers(low, high, shape, kind, endpoint=True)}
        expected, actual = (stock_session(each).run(None, feeds)[0] for each in (model, converted))
        np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others_stay(body: str) -> None:
    model = model_of(body, "uint8", (1, 8, 17, 19))
    assert kinds(rewrite(model).to_proto()) == kinds(model)


def test_pools_between_products() -> None:
    """The product that reads the pool multiplies its codes; the quantization before it stays one operator."""
    codes = np.random.default_rng(8).integers(0, 256, (32, 16, 3, 3), np.uint8)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> m (float[1, 16, 32, 32] x) => (float[] y) {
            q, s, z = DynamicQuantizeLinear(x)  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(q)
            i = ConvInteger(p, w, z)  f = Cast<to = 1>(i)  y = Mul(f, s)
        }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    converted = rewrite(model).to_proto()
    assert kinds(converted) == ["DynamicQuantizeLinear", "Cast", "MaxPool", "Cast", "QuantizedConv"]
    assert converted.graph.node[0].domain == "ort_dynq"
