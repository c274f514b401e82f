"""ConvTranspose of activations that are quantized at run time: which ones become QuantizedConv, and their results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import Array, make_session, nodes_of, pairwise, stock_session
from onnx import helper, numpy_helper
from rewriting import check, products

from ort_dynq import verify
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.convolutions import transposed
from ort_dynq.tools.verification.float64 import scatter

F = np.float32
Geometry = dict[str, Any]

ACTIVATIONS = {
    "DynamicQuantizeLinear": [("DynamicQuantizeLinear", "x", "q s z"), ("DequantizeLinear", "q s z", "dx")],
    "symmetric": [
        ("Abs", "x", "a"),
        ("ReduceMax", "a", "m"),
        ("Div", "m c127", "s"),
        ("QuantizeLinear", "x s z8", "q"),
        ("DequantizeLinear", "q s z8", "dx"),
    ],
}
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Geometry]] = {
    "sound": ((256, 6, 16), (2, 256, 60), {"strides": [8], "pads": [4, 4]}),
    "image": ((128, 6, 4, 4), (2, 128, 9, 12), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "volume": ((512, 6, 2, 2, 2), (1, 512, 3, 4, 5), {"strides": [2, 2, 2]}),
    "groups": ((256, 6, 4, 4), (1, 256, 10, 11), {"strides": [2, 2], "group": 2, "output_padding": [1, 0]}),
}


def model_of(
    activation: str,
    form: str | tuple[tuple[int, ...], tuple[int, ...], Geometry],
    *more: onnx.NodeProto,
    biased: bool = False,
    is_static: bool = True,
    constants: dict[str, Array] | None = None,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model with weights of int8 codes, dequantized per channel or with one scale, and data for it."""
    shape, image, geometry = FORMS[form] if isinstance(form, str) else form
    rng = np.random.default_rng(math.prod(shape))
    channels, group = shape[1], geometry.get("group", 1)
    is_per_channel = group == 1
    given = {
        "wq": rng.integers(-127, 128, shape).astype(np.int8),
        "ws": rng.uniform(0.001, 0.02, channels).astype(F) if is_per_channel else np.array(0.01, F),
        "b": np.linspace(-3, 3, channels * group).astype(F),
        "c127": np.array(127, F),
        "z8": np.array(0, np.int8),
    } | (constants or {})
    nodes = [
        helper.make_node(op, inputs.split(), outputs.split(), **({"keepdims": 0} if op == "ReduceMax" else {}))
        for op, inputs, outputs in ACTIVATIONS[activation]
    ]
    nodes.append(helper.make_node("DequantizeLinear", ["wq", "ws"], ["w"], **({"axis": 1} if is_per_channel else {})))
    operands = ["dx", "w", *(["b"] if biased else [])]
    nodes.append(helper.make_node("ConvTranspose", operands, ["t" if more else "y"], **geometry))
    names = {name for node in (*nodes, *more) for name in node.input}
    dims = image if is_static else ("N", image[1], *(f"d{i}" for i in range(len(image) - 2)))
    graph = helper.make_graph(
        [*nodes, *more],
        "g",
        [helper.make_tensor_value_info("x", 1, dims)],
        [helper.make_tensor_value_info("y", 1, [None] * len(image))],
        [numpy_helper.from_array(array, name) for name, array in given.items() if name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model, {"x": rng.normal(0.3, 1, image).astype(F)}


def check_converted(model: onnx.ModelProto, data: dict[str, Array]) -> onnx.ModelProto:
    """Checks that the exact rewrite has the same bits, that the other one is verified, and both of its forms agree."""
    report = check(model, data, exact=True)
    assert "QuantizedConv" not in products(report)
    result = rewrite(model)
    assert products(result.report) == ["QuantizedConv"]
    converted = result.to_proto()
    assert not any(node.op_type == "ConvTranspose" for node in converted.graph.node)
    verified = verify(model, converted, inputs=data)
    assert verified.passed, verified
    assert [(product.elements > 0, product.skipped) for product in verified.products] == [(True, 0)]
    original, plain, ours = (
        session.run(None, data)[0]
        for session in (stock_session(model), stock_session(converted), make_session(converted, "native"))
    )
    assert plain.tobytes() == ours.tobytes()
    assert np.abs(original - ours).max() <= 2e-5 * np.abs(original).max()  # the order of float32 sums
    return converted


@pytest.mark.parametrize(
    ("activation", "form", "biased", "is_static"), pairwise(ACTIVATIONS, FORMS, [True, False], [True, False])
)
def test_forms(activation: str, form: str, biased: bool, is_static: bool) -> None:
    check_converted(*model_of(activation, form, biased=biased, is_static=is_static))


def test_a_bias_after_it_is_included() -> None:
    bias = {"b4": np.linspace(-3, 3, 6).astype(F).reshape(1, 6, 1, 1)}
    more = helper.make_node("Add", ["t", "b4"], ["y"])
    converted = check_converted(*model_of("DynamicQuantizeLinear", "image", more, constants=bias))
    assert "Add" not in [node.op_type for node in converted.graph.node]


@pytest.mark.parametrize("rank", [1, 2])
def test_every_geometry(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transposed, "is_slow_transposed_convolution", lambda *_: False)
    rng = np.random.default_rng(rank)

    def numbers(low: int, high: int) -> list[int]:
        return [int(number) for number in rng.integers(low, high, rank)]

    for _ in range(5):
        kernel, strides, dilations = numbers(1, 6), numbers(1, 5), numbers(1, 3)
        pads = [int(rng.integers(0, k)) for k in 2 * kernel]
        more, group = [int(rng.integers(0, stride)) for stride in strides], int(rng.integers(1, 3))
        geometry = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": more, "group": group}
        image = (2, 6, *numbers(6, 9))
        check_converted(*model_of("DynamicQuantizeLinear", ((6, 3, *kernel), image, geometry), biased=True))


def test_the_reference_is_a_transposed_convolution() -> None:
    """Against ONNX Runtime: its sums are rounded to float32."""
    rng = np.random.default_rng(0)
    for group, pads, more, dilations, auto_pad in (
        (1, [0, 0, 0, 0], [0, 0], [1, 1], "NOTSET"),
        (2, [1, 0, 2, 1], [1, 0], [2, 1], "NOTSET"),
        (3, [1, 0, 2, 1], [0, 2], [1, 2], "VALID"),
    ):
        x, w = rng.normal(size=(2, 6, 5, 7)).astype(F), rng.normal(size=(6, 4, 3, 2)).astype(F)
        given: Geometry = {"group": group, "strides": [2, 3], "output_padding": more, "dilations": dilations}
        given |= {"pads": pads} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **given)
        infos = [helper.make_tensor_value_info(name, 1, None) for name in ("x", "w", "y")]
        graph = helper.make_graph([node], "g", infos[:2], infos[2:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        (expected,) = stock_session(model).run(None, {"x": x, "w": w})
        actual = scatter(x.astype(np.float64), w.astype(np.float64), ir.from_proto(node))
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() < 1e-5


def test_a_wrong_result_is_found() -> None:
    """Verification compares with the ConvTranspose of the original: other weights fail it."""
    model, data = model_of("DynamicQuantizeLinear", "image", is_static=False)
    converted = rewrite(model).to_proto()
    (node,) = (node for node in converted.graph.node if node.op_type == "QuantizedConv")
    (weights,) = (tensor for tensor in converted.graph.initializer if tensor.name == node.input[3])
    wrong = numpy_helper.to_array(weights).copy()
    wrong[0, 0, 0] += np.int8(1)
    weights.CopyFrom(numpy_helper.from_array(wrong, weights.name))
    result = verify(model, converted, inputs=data)
    assert not result.passed
    assert "units" in result.products[0].problem


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (((23, 6, 2, 2), (1, 23, 40, 40), {"strides": [2, 2]}), "an element of the output has too few products"),
        (((128, 6, 4, 4), (1, 128, 9, 9), {"output_shape": [20, 20]}), "the pads of the ConvTranspose depend on"),
        (((128, 6, 4, 4), (1, 128, 9, 9), {"auto_pad": "SAME_LOWER"}), "the pads of the ConvTranspose depend on"),
        (((128, 6, 4, 4), (1, 128, 9, 9), {"group": 3}), "the attribute group or auto_pad is not valid"),
    ],
)
def test_layers_that_stay(form: tuple[tuple[int, ...], tuple[int, ...], Geometry], reason: str) -> None:
    model, _ = model_of("DynamicQuantizeLinear", form)
    result = rewrite(model)
    assert "QuantizedConv" not in products(result.report)
    assert any(finding.reason.startswith(reason) for finding in result.report.unconverted), result.report.unconverted
    assert any(node.op_type == "ConvTranspose" for node in nodes_of(result.to_proto().graph))


def test_an_offset_of_the_activation_stays() -> None:
    """Codes from the minimum on, without a zero point: x is about codes * s + low."""
    text = [
        ("ReduceMin", "x", "low"),
        ("ReduceMax", "x", "high"),
        ("Sub", "high low", "span"),
        ("Div", "span c255", "s"),
        ("Sub", "x low", "above"),
        ("Div", "above s", "e"),
        ("Round", "e", "r"),
        ("Clip", "r zero c255", "c"),
        ("Mul", "c s", "scaled"),
        ("Add", "scaled low", "dx"),
    ]
    model, _ = model_of("symmetric", "image", constants={"c255": np.array(255, F), "zero": np.array(0, F)})
    nodes = [
        helper.make_node(op, inputs.split(), [output], **({"keepdims": 0} if op.startswith("Reduce") else {}))
        for op, inputs, output in text
    ]
    old = len(ACTIVATIONS["symmetric"])
    model.graph.node.MergeFrom(nodes)
    ordered = [*model.graph.node[-len(nodes) :], *model.graph.node[old : -len(nodes)]]
    del model.graph.node[:]
    model.graph.node.extend(ordered)
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.array(255, F), "c255"), numpy_helper.from_array(np.array(0, F), "zero")]
    )
    reasons = [finding.reason for finding in rewrite(model).report.unconverted]
    assert any("transposed convolution of codes with an offset" in reason for reason in reasons), reasons
