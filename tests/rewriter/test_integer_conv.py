"""Integer convolutions: which ones become QuantizedConv, their results, and which ones stay.

The results equal those of the original in ONNX Runtime with optimizations off, bit for bit, with the plugin and without
it. On CPUs where its sums saturate (int8 codes by uint8 weights), the models have small weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from convolution_models import (
    CONV,
    DYNAMIC,
    GEOMETRY,
    IMAGES,
    TAIL,
    C,
    F,
    M,
    check_converted,
    given,
    images,
    model_of,
    weights_of,
)
from helpers import assert_same, diagonals, make_session, product_of, stock_session
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from rewriting import check, found, tails

from ort_dynq import verify
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.analysis.inference import Facts
from ort_dynq.rewriter.reasons import Reason

NETWORK = """network (float[N, 4, H, W] x) => (float[] y) {
    h1 = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    a1 = Relu(h1)
    h2 = Conv<group = 6, kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER">(a1, w2, b2)
    left = Conv(h2, w3)
    right = Conv<dilations = [2, 3], pads = [2, 3, 2, 3]>(h2, w4, b4)
    y = Add(left, right)
}"""


@pytest.mark.parametrize(
    ("per_channel", "weight_type"), diagonals(1, [False, True], [QuantType.QInt8, QuantType.QUInt8])
)
def test_models_of_quantize_dynamic(weight_type: QuantType, per_channel: bool, tmp_path: Path) -> None:
    """Two convolutions of the last layer share one DynamicQuantizeLinear, which stays."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {NETWORK}')
    shapes = {"w1": (6, 4, 3, 3), "w2": (6, 1, 3, 3), "w3": (5, 6, 1, 1), "w4": (5, 6, 3, 3), "b1": 6, "b2": 6, "b4": 5}
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(F), name) for name, shape in shapes.items()
    )
    path = tmp_path / "quantized.onnx"
    quantize_dynamic(model, path, weight_type=weight_type, per_channel=per_channel)
    quantized = onnx.load(path)
    check_converted(quantized, images(2, 4, 11, 10), images(1, 4, 8, 8), images(0, 4, 8, 8), count=4)
    converted = rewrite(quantized).to_proto()
    kinds = [node.op_type for node in converted.graph.node]
    assert kinds.count("DynamicQuantizeLinear") == 3
    assert (kinds.count("QuantizedConv"), kinds.count("QuantizedConvProgram")) == (3, 1)
    assert {"ConvInteger", "Cast", "Mul", "Relu", "Reshape"}.isdisjoint(kinds)
    biases = {node.input[7] for node in converted.graph.node if product_of(node.op_type)}
    assert {"b1", "b2", "b4"} <= biases
    assert verify(quantized, converted).passed


SCALES = {
    "product of scales": "k = Mul(s, ws)\n g = Mul(f, k)\n",
    "product of scales, other order": "k = Mul(ws, s)\n g = Mul(k, f)\n",
    "product of scales, per channel": "k = Mul(s, wsc)\n g = Mul(f, k)\n",
    "product of scales, per channel, rank 4": "k = Mul(wsc1, s)\n g = Mul(f, k)\n",
    "product of scales, Reshape": "r = Reshape(flat, shape)\n k = Mul(r, s)\n g = Mul(f, k)\n",
    "product of scales, Unsqueeze": "r = Unsqueeze(flat, axes)\n k = Mul(r, s)\n g = Mul(f, k)\n",
    "activation first": "h = Mul(f, s)\n g = Mul(h, wsc)\n",
    "weights first": "h = Mul(wsc, f)\n g = Mul(h, s)\n",
    "activation only": "g = Mul(f, s)\n",
    "weights only": "g = Mul(f, wsc)\n",
    "one number for the weights": "h = Mul(f, ws)\n g = Mul(s, h)\n",
}
BIASES = {
    "none": "y = Identity(g)",
    "initializer": "y = Add(g, b)",
    "initializer first": "y = Add(b, g)",
    "Reshape": "r2 = Reshape(bv, shape)\n y = Add(g, r2)",
    "one number": "y = Add(g, bs)",
}
ORDERS = {"product": 0, "activation": 1, "weights": 2, "one": 2}


@pytest.mark.parametrize(
    ("scales", "bias"),
    [
        *((scales, "Reshape") for scales in SCALES),
        *(("activation first", bias) for bias in BIASES if bias != "Reshape"),
    ],
)
def test_tails(scales: str, bias: str) -> None:
    model = model_of(DYNAMIC + CONV + SCALES[scales] + BIASES[bias], given())
    check_converted(model)
    converted = rewrite(model).to_proto()
    (node,) = (node for node in converted.graph.node if node.op_type == "QuantizedConv")
    if "only" not in scales:
        order = next(attribute.i for attribute in node.attribute if attribute.name == "scale_order")
        assert order == ORDERS[scales.partition(" ")[0]]
    assert [
        each.op_type for each in converted.graph.node if each.op_type in ("Mul", "Add", "Cast", "ConvInteger")
    ] == []


def test_a_bias_that_is_computed_at_run_time() -> None:
    body = "bn = Neg(given)\n r = Reshape(bn, shape)\n" + DYNAMIC + CONV + SCALES["product of scales"] + "y = Add(g, r)"
    model = model_of(body, given(), inputs=f", float[{M}] given")
    check_converted(model, IMAGES | {"given": given()["bv"]})
    assert "Add" not in [node.op_type for node in rewrite(model).to_proto().graph.node]


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_zero_points_of_channels(dtype: str, equal: bool) -> None:
    """ONNX Runtime's ConvInteger has no zero points of channels. As weights without any, they are one number each."""
    constants = given(dtype)
    zeros = np.full(M, 5, dtype) if equal else weights_of(dtype, M, seed=5)
    model = model_of(DYNAMIC + CONV + TAIL, constants | {"wz": zeros})
    result = rewrite(model)
    assert found(result.report) == ["QuantizedConv"]
    # One convolution for each channel, with its own zero point.
    channels = [
        model_of(DYNAMIC + CONV + TAIL, constants | {name: constants[name][m : m + 1] for name in ("w",)}
                 | {"wz": zeros[m], "b": constants["b"][:, m : m + 1]})
        for m in range(M)
    ]  # fmt: skip
    expected = np.concatenate([stock_session(each).run(None, IMAGES)[0] for each in channels], 1)
    for session in (stock_session(result.to_proto()), make_session(result.to_proto(), "native")):
        assert_same(session.run(None, IMAGES)[0], expected)


STEP = "a = Abs(x)\n m = ReduceMax<keepdims = 0>(a)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n"
SOURCES = {
    "QuantizeLinear, s8": (STEP + "q = QuantizeLinear(x, s, zs)\n", ", zs", 1),
    "QuantizeLinear, run-time zero point": (
        STEP + "z0 = Mul(m, zero)\n z = Cast<to = 2>(z0)\n q = QuantizeLinear(x, s, z)\n",
        ", z",
        1,
    ),
    "symmetric, Cast": (
        "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n t = Div(x, s)\n"
        "r = Round(t)\n c = Clip(r, low, high)\n q = Cast<to = 3>(c)\n",
        "",
        1,
    ),
}
NUMBERS = {"c127": F(127), "eps": F(1e-5), "zero": F(0), "low": F(-128), "high": F(127)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_sources(dtype: str, source: str) -> None:
    body, zero_point, others = SOURCES[source]
    conv = CONV.replace(", z, wz", zero_point)
    constants = given(dtype) | NUMBERS
    if dtype == "uint8":
        constants["w"] //= 4  # products of int8 codes and uint8 weights saturate on some CPUs
    check_converted(model_of(body + conv + TAIL, constants), others=others)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_codes_from_elsewhere(dtype: str) -> None:
    model = model_of(
        "i = ConvInteger<pads = [1, 1, 1, 1]>(q, w, z)\n f = Cast<to = 1>(i)\n g = Mul(f, s)\n y = Add(g, x)",
        {"w": weights_of("int8", C, C, 3, 3)},
        inputs=f", {dtype}[N, {C}, D, E] q, {dtype} z, float[1] s",
    )
    q = weights_of(dtype, 2, C, 9, 8, seed=4)
    check_converted(model, IMAGES | {"q": q, "z": np.asarray(3, dtype), "s": np.array([0.5], F)})


def test_chains_of_the_near_misses_are_converted() -> None:
    check_converted(model_of(DYNAMIC + CONV + TAIL, given()))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("f = Cast<to = 1>(i)", "f0 = Cast<to = 11>(i)\n f = Cast<to = 1>(f0)", "not converted to float32"),
        ("g = Mul(f, k)", "g = Div(f, k)", "not converted to float32 and multiplied"),
        ("g = Mul(f, k)", "g = Mul(f, row)", "not converted to float32 and multiplied"),
        ("k = Mul(s, ws)", "k = Mul(s, row)", "not converted to float32 and multiplied"),
        ("k = Mul(s, ws)", "k = Mul(x, ws)", "not converted to float32 and multiplied"),
        ("(q, w, z, wz)", "(q, w2, z, wz)", "computed at run time"),
        ("(q, w, z, wz)", "(q, w, z, wz2)", "computed at run time"),
        ("<pads = [1, 0, 2, 1],", "<pads = [-1, 0, 2, 1],", "pads are negative"),
        (GEOMETRY, '<auto_pad = "SAME_UPPER", strides = [2, 6]', "by more than 2, with auto_pad"),
        (GEOMETRY, '<auto_pad = "SAME_LOWER", strides = [7, 2]', "by more than 2, with auto_pad"),
    ],
)
def test_near_misses(old: str, new: str, reason: str) -> None:
    body = DYNAMIC + CONV + TAIL
    assert body.count(old) == 1
    constants = given() | {"row": np.linspace(1, 2, 8, dtype=F)}
    if "w2" in new:
        body = "wf = Cast<to = 1>(w)\n n = ReduceMax<keepdims = 0>(x)\n d = Sub(n, n)\n e = Add(wf, d)\n" \
            "w2 = Cast<to = 2>(e)\n" + body  # fmt: skip
    if "wz2" in new:
        body = "n = ReduceMax<keepdims = 0>(x)\n wz2 = Cast<to = 2>(n)\n" + body
    model = model_of(body.replace(old, new), constants)
    # The pads and factors of a row fit images of one size only.
    report = check(model, images(2, C, 9, 7) if "row" not in new else images(2, C, 9, 9))
    assert found(report) == []
    assert [reason in finding.reason for finding in report.unconverted] == [True], report.unconverted


@pytest.mark.parametrize(
    "tail",
    [
        "k = Mul(s, ws)\n g = Mul(f, k)\n y = Add(g, x1)",  # not a bias
        "k = Mul(s, ws)\n g = Mul(f, k)\n y = Add(g, bv4)",  # along the width
    ],
)
def test_tails_that_end_early(tail: str) -> None:
    """Nodes after the tail of the convolution stay."""
    model = with_tail(tail)
    check_converted(model, images(2, C, 9, 8))
    assert [node.op_type for node in rewrite(model).to_proto().graph.node[-2:]] == ["QuantizedConv", "Add"]


@pytest.mark.parametrize(
    ("tail", "program"),
    [
        # The bias is not the last step.
        ("h = Mul(f, s)\n g = Add(h, b)\n y = Mul(g, ws)", "dst = Mul(x, 0.012299999594688416)"),
        # Three factors.
        (
            "k = Mul(s, ws)\n g = Mul(f, k)\n h = Mul(g, ws)\n y = Add(h, b)",
            "dst = Add(Mul(x, 0.012299999594688416), row1)",
        ),
    ],
)
def test_tails_that_are_programs(tail: str, program: str) -> None:
    """Nodes that the convolution itself cannot be are steps of its program."""
    model = with_tail(tail)
    check_converted(model, images(2, C, 9, 8))
    assert tails(rewrite(model).to_proto()) == [program]


def with_tail(tail: str) -> onnx.ModelProto:
    constants = given() | {"bv4": np.arange(7, dtype=F)}
    constants["x1"] = np.arange(2 * M, dtype=F).reshape(2, M, 1, 1)
    return model_of(DYNAMIC + CONV + tail, constants)


def test_sums_too_long() -> None:
    """int32 holds 65793 products if the weights have no zero points, else 33025."""
    for channels, zero, reason in ((65793, 128, ""), (65794, 128, "may overflow int32"), (33026, 5, "may overflow")):
        body = DYNAMIC + "i = ConvInteger(q, w, z, wz)\n f = Cast<to = 1>(i)\n k = Mul(s, ws)\n y = Mul(f, k)"
        constants = {"w": weights_of("uint8", 1, channels, 1), "wz": np.uint8(zero), "ws": F(0.5)}
        model = model_of(body.replace("x)", "x0)", 1).join(["x0 = Expand(x, to)\n", ""]), constants | {
            "to": np.array([1, channels, 1])}, rank=3)  # fmt: skip
        model.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_value")
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "C"
        report = check(model, images(1, channels, 2))
        assert found(report) == ([] if reason else ["QuantizedConv"])
        assert [reason in finding.reason for finding in report.unconverted] == ([True] if reason else [])


def test_static_quantization_stays() -> None:
    constants = given() | {"step": F(0.02), "z": np.uint8(7)}
    body = "q = QuantizeLinear(x, step, z)\n" + CONV + "y = Mul(f, ws)"
    report = check(model_of(body, constants), IMAGES)
    assert (report.rewritten, [finding.reason for finding in report.unconverted]) == ([], [Reason.STATIC.value])


def test_an_old_opset_is_converted() -> None:
    model = model_of(DYNAMIC + CONV + TAIL, given(), opset=12)
    report = check(model, IMAGES)
    assert report.notes[0].startswith("converted from opset 12 to 13")
    assert found(report) == ["QuantizedConv"]


def test_in_a_function() -> None:
    """The caller may give an attribute."""
    constants = given()
    pads: Any = ("<pads = [1, 0, 2, 1], strides = [2, 1]>", "<pads = [1, 0, 2, 1], strides: ints = @strides>")
    for text, attributes in ((pads[0], ""), (pads[1], "<strides>")):
        body = DYNAMIC + f"i = ConvInteger{text}(q, w, z, wz)\n f = Cast<to = 1>(i)\n" + TAIL
        given_attributes = "<strides = [2, 1]>" if attributes else ""
        names = ["w", "wz", "ws", "b"]
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18, "local": 1]> g (float[N, {C}, D, E] x) => (float[] y) {{'
            f"y = local.layer{given_attributes}(x) }}"
            f'<domain: "local", opset_import: ["": 18]> layer {attributes} (x) => (y) {{ {body} }}'
        )
        for name in reversed(names):
            value = numpy_helper.from_array(np.asarray(constants[name]), name)
            model.functions[0].node.insert(0, onnx.helper.make_node("Constant", [], [name], value=value))
        result = rewrite(model)
        assert found(result.report) == ["QuantizedConv"]
        expected = stock_session(model).run(None, IMAGES)[0]
        session = make_session(result.to_proto(), "native")
        assert_same(session.run(None, IMAGES)[0], expected)


def test_weights_are_stored_once() -> None:
    """Two convolutions with the same weights share the packed ones."""
    conv = CONV + SCALES["product of scales"]
    second = conv.replace("i ", "i2 ").replace("f ", "f2 ").replace("(i)", "(i2)").replace("(f,", "(f2,")
    second = second.replace("k ", "k2 ").replace("k)", "k2)").replace("g ", "g2 ")
    model = model_of(DYNAMIC + conv + second + "y = Add(g, g2)", given())
    check_converted(model, count=2)
    nodes = [node for node in rewrite(model).to_proto().graph.node if node.op_type == "QuantizedConv"]
    assert nodes[0].input == nodes[1].input


def test_shapes_of_a_rewritten_model_are_inferred() -> None:
    """A model that was rewritten before has no declared shapes: the weights give the channels."""
    model = rewrite(model_of(DYNAMIC + CONV + TAIL, given())).model
    with Facts(model):
        (node,) = (node for node in model.graph if node.op_type == "QuantizedConv")
        shape = node.outputs[0].shape
        assert shape is not None
        assert [dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in shape] == ["N", M, None, None]
        (quantize,) = (node for node in model.graph if node.op_type == "DynamicQuantizeLinear")
        assert [str(output.shape) for output in quantize.outputs] == ["[N,4,D,E]", "[]", "[]"]
