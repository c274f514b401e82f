"""Float convolutions of activations that are quantized at run time: which ones become QuantizedConv, and their results.

Each convolution is compared with float64, on the activation and the weights of the original model: the integer sums are
exact, so the result has as few roundings as ort_dynq.verify allows.
"""

from __future__ import annotations

import math
import re

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from helpers import Array, make_session, nodes_of, stock_session, with_arrays
from onnx import numpy_helper
from rewriting import check, products

from ort_dynq import verify
from ort_dynq.rewriter import Report, rewrite
from ort_dynq.rewriter.policy.cost import is_tiny_convolution
from ort_dynq.rewriter.reasons import Reason

F = np.float32
M, C = 6, 4

STEP = "a = Abs(x)\n m = ReduceMax<keepdims = {}>(a)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n"
CODES = "t = Div(x, s)\n r = Round(t)\n c = Clip(r, low, high)\n"
SYMMETRIC = STEP.format(1) + CODES
RANGE = (
    "mn = ReduceMin<keepdims = 0>(x)\n mx = ReduceMax<keepdims = 0>(x)\n mn0 = Min(mn, zero)\n mx0 = Max(mx, zero)\n"
    "d = Sub(mx0, mn0)\n e = Div(d, c255)\n s = Max(e, eps)\n n = Neg(mn0)\n g = Div(n, s)\n h = Round(g)\n"
    "z0 = Clip(h, zero, c255)\n z = Cast<to = 2>(z0)\n"
)
ACTIVATIONS = {
    "symmetric": SYMMETRIC + "dx = Mul(c, s)\n",
    "symmetric through int8": SYMMETRIC + "q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n dx = Mul(f, s)\n",
    "torch, per tensor": RANGE + "q = QuantizeLinear(x, s, z)\n dx = DequantizeLinear(q, s, z)\n",
    "s8, QuantizeLinear": STEP.format(0) + "q = QuantizeLinear(x, s, z8)\n dx = DequantizeLinear(q, s, z8)\n",
    "scale from elsewhere": STEP.format(1).replace("s = Div", "s0 = Div")
    + "s = Mul(s0, s0)\n"
    + CODES
    + "dx = Mul(c, s)\n",
    "DynamicQuantizeLinear": "q, s, z = DynamicQuantizeLinear(x)\n dx = DequantizeLinear(q, s, z)\n",
    "DynamicQuantizeLinear, shared": "q, s, z = DynamicQuantizeLinear(x)\n dx = DequantizeLinear(q, s, z)\n"
    "e = DequantizeLinear(q, s, z)\n other = Sqrt(e)\n",
}
OF_SAMPLES = {  # opset 18
    "symmetric, each sample": SYMMETRIC.replace("ReduceMax<keepdims = 1>(a)", "ReduceMax(a, sample)")
    + "dx = Mul(c, s)\n",
    "flattened, each sample": "v = Flatten(x)\n a = Abs(v)\n m = ReduceMax<keepdims = 0>(a, last)\n"
    "m0 = Max(m, eps)\n s0 = Div(m0, c127)\n s = Unsqueeze(s0, sample)\n" + CODES + "dx = Mul(c, s)\n",
    "flattened, reshaped, each sample": "v = Flatten(x)\n a = Abs(v)\n m = ReduceMax<keepdims = 0>(a, last)\n"
    "m0 = Max(m, eps)\n s0 = Div(m0, c127)\n s = Reshape(s0, numbers)\n" + CODES + "dx = Mul(c, s)\n",
    "reshaped, each sample": STEP.format(0).replace("(a)", "(a, sample)").replace("s = Div", "s0 = Div")
    + "s = Reshape(s0, numbers)\n"
    + CODES
    + "dx = Mul(c, s)\n",
    "asymmetric, each sample": RANGE.replace("<keepdims = 0>(x)", "(x, sample)").replace("z = Cast<to = 2>(z0)\n", "")
    + "u = Div(x, s)\n v = Round(u)\n w0 = Add(v, z0)\n c = Clip(w0, zero, c255)\n w1 = Sub(c, z0)\n dx = Mul(w1, s)\n",
}
AXES = {"sample": np.array([1, 2, 3]), "last": np.array([-1]), "numbers": np.array([-1, 1, 1, 1])}
NUMBERS = {"c127": 127, "c255": 255, "zero": 0, "low": -128, "high": 127, "eps": 1e-5}


def codes_of(low: int = -127, high: int = 127, *, seed: int = 1, kernel: tuple[int, ...] = (3, 3), c: int = C) -> Array:
    codes = np.random.default_rng(seed).integers(low, high + 1, (M, c, *kernel))
    codes[:, 0, 0] = high  # every channel has the largest
    codes[3] = 0
    return np.asarray(codes)


def scales_of(axes: int = 2) -> Array:
    return np.random.default_rng(2).uniform(0.001, 0.02, M).astype(F).reshape(M, 1, *[1] * axes)


SHIFTS = 9 * np.arange(M).reshape(M, 1, 1, 1)
WEIGHTS = {
    "folded": ("", {"w": codes_of().astype(F) * scales_of()}),
    "folded, one scale": ("", {"w": codes_of().astype(F) * F(0.0123)}),
    "folded, asymmetric": ("", {"w": (codes_of(0, 255) - SHIFTS).astype(F) * scales_of()}),
    "Cast, Mul": ("wf = Cast<to = 1>(wq)\n w = Mul(wf, ws)\n", {"wq": codes_of().astype(np.int8), "ws": scales_of()}),
    "DequantizeLinear": (
        "w = DequantizeLinear<axis = 0>(wq, ws)\n",
        {"wq": codes_of().astype(np.int8), "ws": scales_of().reshape(M)},
    ),
    "DequantizeLinear, u8": (
        "w = DequantizeLinear(wq, ws, wz)\n",
        {"wq": codes_of(0, 255).astype(np.uint8), "ws": F(0.01), "wz": np.uint8(130)},
    ),
}


def model_of(
    body: str, constants: dict[str, Array], *, axes: int = 2, opset: int = 18, inputs: str = "", outputs: str = ""
) -> onnx.ModelProto:
    """A model from x, float32 [N, C, ...], to y."""
    x = f"float[N, {C}, {', '.join('DEF'[:axes])}] x"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({x}{inputs}) => (float[] y{outputs}) {{ {body} }}'
    )
    used = {name for node in nodes_of(model.graph) for name in node.input} - {each.name for each in model.graph.input}
    used -= {name for node in nodes_of(model.graph) for name in node.output}
    numbers = {name: np.asarray(number, F) for name, number in NUMBERS.items()} | {
        "b": np.linspace(-3, 3, M).astype(F),
        "b4": np.linspace(-3, 3, M).astype(F).reshape(1, M, 1, 1),
        "z8": np.int8(0),
    }
    return with_arrays(model, numbers | constants)


def images(*lengths: int, seed: int = 3) -> dict[str, Array]:
    x = np.random.default_rng(seed).normal(0.3, 1, (2, C, *lengths)).astype(F)
    x.reshape(-1)[0] = 5
    return {"x": x}


def check_converted(model: onnx.ModelProto, data: dict[str, Array], count: int = 1) -> Report:
    """Checks that the exact rewrite has the same bits, that the other one is verified, and both of its forms agree."""
    report = check(model, data, exact=True)
    assert "QuantizedConv" not in products(report)
    assert sum(finding.reason.startswith("exact: ") for finding in report.unconverted) == count
    result = rewrite(model)
    assert products(result.report) == ["QuantizedConv"] * count
    converted = result.to_proto()
    verified = verify(model, converted, inputs=data)
    assert verified.passed or not data["x"].size, verified  # nothing can be compared without elements
    assert len(verified.products) == count
    sessions = stock_session(converted), make_session(converted, "native")
    plain, ours = (session.run(None, data) for session in sessions)
    assert [array.tobytes() for array in plain] == [array.tobytes() for array in ours]
    return result.report


@pytest.mark.parametrize(
    ("activation", "weights"),
    [
        *((activation, "folded") for activation in ACTIVATIONS),
        *(("torch, per tensor", weights) for weights in WEIGHTS if weights != "folded"),
    ],
)
def test_convolutions(activation: str, weights: str) -> None:
    text, arrays = WEIGHTS[weights]
    outputs = ", float[] other" if "shared" in activation else ""
    body = ACTIVATIONS[activation] + text + "y = Conv<pads = [1, 0, 2, 1], strides = [2, 1]>(dx, w, b)"
    check_converted(model_of(body, arrays, outputs=outputs), images(9, 8))


@pytest.mark.parametrize("activation", OF_SAMPLES)
def test_a_scale_for_each_sample(activation: str) -> None:
    """The result of a sample does not depend on the others: it has the same bits alone."""
    body = OF_SAMPLES[activation] + "y = Conv<pads = [1, 0, 2, 1]>(dx, w, b)"
    model, data = model_of(body, WEIGHTS["folded"][1] | AXES), images(9, 8)
    data["x"][1] /= 100
    check_converted(model, data)
    session = make_session(rewrite(model).to_proto(), "native")
    (together,) = session.run(None, data)
    for i, result in enumerate(together):
        assert session.run(None, {"x": data["x"][i : i + 1]})[0].tobytes() == result.tobytes()


def part(index: int, activation: str) -> str:
    """Returns the nodes of an activation, with names of their own, of a part of the channels."""
    own = {"x", *(name for names in re.findall(r"((?:\w+, )*\w+) = \w+[(<]", activation) for name in names.split(", "))}
    return re.sub(r"\b(\w+)\b", lambda name: f"{name[0]}_{index}" if name[0] in own else name[0], activation)


PARTS = {
    "of all": ("symmetric", "symmetric through int8"),
    "of two kinds": ("DynamicQuantizeLinear", "symmetric"),
    "of samples": ("symmetric, each sample", "asymmetric, each sample"),
}


@pytest.mark.parametrize("kind", PARTS)
def test_parts_of_the_channels(kind: str) -> None:
    """Tensors that are quantized alone and joined, as skip connections are: the sum of a convolution of each."""
    forms = [(ACTIVATIONS | OF_SAMPLES)[each] for each in PARTS[kind]]
    body = "x_0, x_1 = Split<axis = 1>(x, channels)\n" + "".join(part(i, form) for i, form in enumerate(forms))
    body += "dx = Concat<axis = 1>(dx_0, dx_1)\n y = Conv<pads = [1, 0, 2, 1]>(dx, w, b)"
    model, data = model_of(body, WEIGHTS["folded"][1] | AXES | {"channels": np.array([2, 2])}), images(9, 8)
    data["x"][1, -1] *= 100
    check_converted(model, data)
    after = [node.op_type for node in rewrite(model).to_proto().graph.node]
    assert after.count("QuantizedConv") == 2
    assert "Concat" not in after


def test_parts_of_the_channels_that_stay() -> None:
    """A part that is a float, parts of rows, and parts of groups of channels."""
    first, second = part(0, ACTIVATIONS["symmetric"]), part(1, ACTIVATIONS["symmetric"])
    split = "x_0, x_1 = Split<axis = 1>(x, channels)\n" + first
    conv = "dx = Concat<axis = {}>(dx_0, {})\n y = Conv<group = {}>(dx, w)"
    constants = WEIGHTS["folded"][1] | {"channels": np.array([2, 2])}
    for body in (
        split + conv.format(1, "x_1", 1),
        split.replace("axis = 1", "axis = 2").replace("channels", "rows") + second + conv.format(2, "dx_1", 1),
        split + second + conv.format(1, "dx_1", 2).replace("w)", "w2)"),
    ):
        model = model_of(body, constants | {"rows": np.array([4, 5]), "w2": codes_of(c=2).astype(F)})
        check(model, images(9, 8))
        assert not products(rewrite(model).report)


def test_rows_of_a_sample_that_may_be_nan() -> None:
    """Without an epsilon, marks belong to the rows of the moved codes: one scale of a sample cannot have them."""
    body = "a = Abs(x)\n m = ReduceMax(a, sample)\n s = Div(m, c127)\n" + CODES
    body += "i = Reshape(c, rows)\n h = Neg(i)\n j = Reshape(h, image)\n dx = Mul(j, s)\n y = Conv(dx, w)"
    constants = {"w": codes_of().astype(F), "rows": np.array([-1, 8]), "image": np.array([2, C, 9, 8])}
    model = model_of(body, constants | AXES)
    for dim, length in zip(model.graph.input[0].type.tensor_type.shape.dim, (2, C, 9, 8), strict=True):
        dim.dim_value = length
    (finding,) = rewrite(model).report.unconverted
    assert finding.reason == Reason.ACTIVATION_OF_SAMPLES.value


def test_a_scale_for_each_sample_after_the_convolution() -> None:
    codes = SYMMETRIC.replace("ReduceMax<keepdims = 1>(a)", "ReduceMax(a, sample)")
    body = codes + "q = Cast<to = 3>(c)\n dx = Cast<to = 1>(q)\n g = Conv(dx, w)\n h = Mul(g, s)\n y = Mul(h, ws)"
    model = model_of(body, {"w": codes_of().astype(F), "ws": scales_of().reshape(1, M, 1, 1)} | AXES)
    check_converted(model, images(9, 8))
    assert "Mul" not in [node.op_type for node in rewrite(model).to_proto().graph.node]


@pytest.mark.parametrize(
    ("attributes", "kernel"),
    [
        ("<dilations = [2, 3], pads = [2, 3, 2, 3]>", (3, 2)),
        ('<auto_pad = "VALID", strides = [2, 2]>', (3, 3)),
        ('<auto_pad = "SAME_UPPER", strides = [2, 3]>', (4, 3)),
        ('<auto_pad = "SAME_LOWER", group = 2>', (4, 3)),
        ("<group = 2, pads = [2, 0], dilations = [2], strides = [3]>", (5,)),
        ("<pads = [1, 0, 1, 0, 1, 2], strides = [1, 2, 1]>", (3, 2, 2)),
    ],
)
def test_attributes(attributes: str, kernel: tuple[int, ...]) -> None:
    """Verification computes the same convolution in float64."""
    codes = codes_of(kernel=kernel, c=C // 2 if "group" in attributes else C)
    body = ACTIVATIONS["symmetric"] + f"y = Conv{attributes}(dx, w)"
    model = model_of(body, {"w": codes.astype(F) * scales_of(len(kernel))}, axes=len(kernel))
    check_converted(model, images(*(9, 8, 7)[: len(kernel)]))


PADS = np.array([0, 0, 1, 0, 0, 0, 2, 1])


@pytest.mark.parametrize("activation", ["symmetric", "torch, per tensor"])
@pytest.mark.parametrize("attributes", ["", "<pads = [1, 2, 0, 1], strides = [2, 1]>"])
def test_a_pad_before_a_convolution(activation: str, attributes: str) -> None:
    body = ACTIVATIONS[activation] + f"p = Pad(dx, ends)\n y = Conv{attributes}(p, w, b)"
    model = model_of(body, WEIGHTS["folded"][1] | {"ends": PADS})
    check_converted(model, images(9, 8))
    assert "Pad" not in [node.op_type for node in rewrite(model).to_proto().graph.node]


@pytest.mark.parametrize(
    ("pad", "ends", "reason"),
    [
        ('p = Pad<mode = "edge">(dx, ends)', PADS, "after Pad"),
        ("p = Pad(dx, ends, eps)", PADS, "after Pad"),
        ("p = Pad(dx, ends)", np.array([0, 1, 0, 0, 0, -1, 0, 0]), "after Pad"),
        ("p = Pad(dx, ends)", -PADS, "pads are negative"),
        ("p = Pad(dx, ends)", PADS, "a Pad precedes a convolution"),
    ],
)
def test_pads_that_stay(pad: str, ends: Array, reason: str) -> None:
    auto_pad = '<auto_pad = "SAME_UPPER">' if "precedes" in reason else ""
    model = model_of(
        ACTIVATIONS["symmetric"] + f"{pad}\n y = Conv{auto_pad}(p, w)", WEIGHTS["folded"][1] | {"ends": ends}
    )
    report = check(model, images(9, 8), exact=False)
    assert "QuantizedConv" not in products(report)
    assert [reason in finding.reason for finding in report.unconverted] == [True], report.unconverted


@pytest.mark.parametrize("ends", [np.zeros(3, np.int64), np.zeros(0, np.int64), np.zeros((2, 4), np.int64)])
def test_pads_of_another_length_stay(ends: Array) -> None:
    """ONNX Runtime does not run these models."""
    model = model_of(
        ACTIVATIONS["symmetric"] + "p = Pad(dx, ends)\n y = Conv(p, w)", WEIGHTS["folded"][1] | {"ends": ends}
    )
    assert "QuantizedConv" not in products(rewrite(model).report)


@pytest.mark.parametrize(
    "tail", ["y = Conv(dx, w)", "g = Conv(dx, w)\n y = Add(g, b4)", "g = Conv(dx, w)\n y = Relu(g)"]
)
def test_biases(tail: str) -> None:
    model = model_of(ACTIVATIONS["symmetric"] + tail, WEIGHTS["folded"][1])
    check_converted(model, images(9, 8))
    kinds = [node.op_type for node in rewrite(model).to_proto().graph.node]
    assert kinds[-1] == ("QuantizedConvProgram" if "Relu" in tail else "QuantizedConv")
    assert {"Add", "Relu"}.isdisjoint(kinds)


def test_a_bias_of_unknown_length() -> None:
    """It cannot be told from one that does not fit, so the convolution stays."""
    model = model_of(ACTIVATIONS["symmetric"] + "y = Conv(dx, w, b)", WEIGHTS["folded"][1], inputs=", float[K] b")
    report = check(model, images(9, 8) | {"b": np.linspace(-3, 3, M).astype(F)}, exact=False)
    assert "QuantizedConv" not in products(report)
    assert ["one float32 number for each output channel" in finding.reason for finding in report.unconverted] == [True]


def test_a_bias_that_is_computed_at_run_time() -> None:
    body = ACTIVATIONS["symmetric"] + "b = Neg(given)\n y = Conv(dx, w, b)"
    model = model_of(body, WEIGHTS["folded"][1], inputs=f", float[{M}] given")
    check_converted(model, images(9, 8) | {"given": np.linspace(-3, 3, M).astype(F)})


def test_an_empty_batch() -> None:
    model = model_of(
        ACTIVATIONS["DynamicQuantizeLinear"] + "y = Conv<pads = [1, 1, 1, 1]>(dx, w, b)", WEIGHTS["folded"][1]
    )
    check_converted(model, {"x": np.zeros((0, C, 9, 8), F)})


def test_one_activation_for_several_convolutions() -> None:
    """They share its codes, and a consumer that stays keeps its floats."""
    body = ACTIVATIONS["symmetric"] + "g = Conv(dx, w)\n h = Conv(dx, w, b)\n y = Add(g, h)\n other = Sqrt(dx)"
    model = model_of(body, WEIGHTS["folded"][1], outputs=", float[] other")
    check_converted(model, images(9, 8), count=2)
    nodes = [node for node in rewrite(model).to_proto().graph.node if node.op_type == "QuantizedConv"]
    assert nodes[0].input[:5] == nodes[1].input[:5]


def test_a_scale_after_the_convolution() -> None:
    """The codes are multiplied as floats, exactly, since the sums are short; both scales follow."""
    body = SYMMETRIC + "q = Cast<to = 3>(c)\n dx = Cast<to = 1>(q)\n g = Conv(dx, w)\n h = Mul(g, s)\n y = Mul(h, ws)"
    model = model_of(body, {"w": codes_of().astype(F), "ws": scales_of().reshape(1, M, 1, 1)})
    check_converted(model, images(9, 8))
    assert "Mul" not in [node.op_type for node in rewrite(model).to_proto().graph.node]


@pytest.mark.parametrize(
    ("body", "weights", "reason"),
    [
        (ACTIVATIONS["symmetric"] + "y = Conv(dx, w)", "random", "not an 8-bit grid in each output channel"),
        (ACTIVATIONS["symmetric"] + "w2 = Mul(w, m)\n y = Conv(dx, w2)", "folded", "computed at run time"),
        (ACTIVATIONS["symmetric"] + "y = ConvTranspose<strides = [2, 2]>(dx, w)", "transposed", "too few products"),
        (
            SYMMETRIC.replace("ReduceMax<keepdims = 1>(a)", "ReduceMax(a, last)") + "dx = Mul(c, s)\n y = Conv(dx, w)",
            "folded",
            "one scale and one zero point for its whole activation, or for each sample",
        ),
    ],
)
def test_unconverted_nodes(body: str, weights: str, reason: str) -> None:
    constants = {
        "random": {"w": np.random.default_rng(0).normal(size=(M, C, 3, 3)).astype(F)},
        "transposed": {"w": codes_of().astype(F).reshape(C, M, 3, 3)},
        "folded": WEIGHTS["folded"][1],
    }[weights]
    for exact in (False, True):
        report = check(model_of(body, constants | {"last": np.array([-1])}), images(9, 8), exact=exact)
        assert "QuantizedConv" not in products(report)
        if not exact:
            assert [reason in finding.reason for finding in report.unconverted] == [True], report.unconverted


@pytest.mark.parametrize(("size", "is_left"), [(34, True), (35, False)])
def test_small_convolutions_stay(size: int, is_left: bool) -> None:
    """216 weights by 34 * 34 positions are fewer than 262144 products, by 35 * 35 they are more."""
    model = model_of(ACTIVATIONS["symmetric"] + "y = Conv<pads = [1, 1, 1, 1]>(dx, w, b)", WEIGHTS["folded"][1])
    for dim, length in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, C, size, size), strict=True):
        dim.dim_value = length
    result = rewrite(model)
    assert ("QuantizedConv" not in products(result.report)) == is_left
    assert ["too small" in finding.reason for finding in result.report.unconverted] == [True] * is_left


@pytest.mark.parametrize(
    ("samples", "image", "is_left"),
    [(1, (1, 7), True), (1, (1, 8), False), (3, (1, 2), True), (4, (1, 2), False), (64, (1, 1), True)],
)
def test_convolutions_of_few_positions_stay(samples: int, image: tuple[int, int], is_left: bool) -> None:
    """The positions of all samples count, but a single one of a sample does not."""
    node = ir.node("Conv", [ir.Value(name="x"), ir.Value(name="w")])
    node.outputs[0].shape = ir.Shape([samples, 512, *image])
    weights = np.ones((512, 512, 3, 3), np.int8)
    assert is_tiny_convolution(node, weights) == is_left
    alone = is_tiny_convolution(node, weights, has_scales_of_samples=True)
    assert alone == (is_left or math.prod(image) < 8)


@pytest.mark.parametrize(("lengths", "is_left"), [((4,), False), ((1, 4), True)])
def test_convolutions_of_few_positions_and_an_unknown_number_of_samples(
    lengths: tuple[int, ...], is_left: bool
) -> None:
    """Windows of a signal are many samples; an image may be alone."""
    node = ir.node("Conv", [ir.Value(name="x"), ir.Value(name="w")])
    node.outputs[0].shape = ir.Shape(["windows", 128, *lengths])
    weights = np.ones((128, 128, *(3 for _ in lengths)), np.int8)
    assert is_tiny_convolution(node, weights, has_scales_of_samples=True) == is_left


def test_a_float_product_after_a_convolution() -> None:
    """The results of a convolution are no codes, and one more product of them stays float."""
    body = ACTIVATIONS["symmetric"] + "g = Conv(dx, w)\n y = MatMul(g, v)"
    weights = WEIGHTS["folded"][1] | {"v": np.eye(6, dtype=F) * F(0.01)}
    check_converted(model_of(body, weights), images(9, 8))


def test_depthwise_convolutions_stay() -> None:
    """They are faster in float, whatever the size of the image. Long kernels of single channels are not."""
    for kernel, is_left in (((3, 3), True), ((12, 12), False)):
        weights = codes_of(kernel=kernel, c=1)[:C].astype(F) * F(0.0123)
        body = ACTIVATIONS["symmetric"] + f"y = Conv<group = {C}>(dx, w)"
        report = check(model_of(body, {"w": weights}), images(20, 20), exact=False) if is_left else None
        report = report or rewrite(model_of(body, {"w": weights})).report
        assert products(report) == ([] if is_left else ["QuantizedConv"])
        reasons = [finding.reason for finding in report.unconverted]
        assert reasons == ["a convolution of single channels is faster in float"] * is_left


def test_a_wrong_result_is_found() -> None:
    """Verification compares with the convolution of the original: other weights fail it."""
    model = model_of(ACTIVATIONS["symmetric"] + "y = Conv<pads = [1, 1, 1, 1]>(dx, w, b)", WEIGHTS["folded"][1])
    converted = rewrite(model).to_proto()
    (node,) = (node for node in converted.graph.node if node.op_type == "QuantizedConv")
    (sums,) = (tensor for tensor in converted.graph.initializer if tensor.name == node.input[8])
    wrong = numpy_helper.to_array(sums).copy()
    wrong[3:] = wrong[3:, ::-1] + np.array([[1, -1], [-1, 1]], np.int32)
    sums.CopyFrom(numpy_helper.from_array(wrong, sums.name))
    result = verify(model, converted, inputs=images(9, 8))
    assert not result.passed
    assert "units" in (result.products[0].problem if result.products else "")
