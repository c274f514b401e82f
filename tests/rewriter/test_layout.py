"""Networks of images with the channels last: which Transposes around convolutions disappear, and which ones stay.

The results equal those of the original in ONNX Runtime with optimizations off, bit for bit, with the plugin and without
it. "conv x a" stands for a Transpose, the quantization of x, an integer convolution, its scales, and a Transpose.
"""

from __future__ import annotations

import random
import re

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from helpers import Array, every, with_arrays
from onnx import numpy_helper
from rewriting import YES, check, rows, tails

from ort_dynq import verify
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.metadata import LAYOUT

F = np.float32
C = 6
LAST, FIRST = "[0, 2, 3, 1]", "[0, 3, 1, 2]"
_CODES = np.random.default_rng(1)
CONSTANTS = {
    **{f"w_{name}": _CODES.integers(-60, 60, (C, C, 3, 3)).astype(np.int8) for name in "abcd"},
    "wz": np.int8(0),
    "ws": F(0.0123),
    "b": np.linspace(-3, 3, C).astype(F),
    "m": np.linspace(2, -1, C).astype(F).reshape(1, 1, 1, C),
    "v": np.linspace(0.5, 3, C).astype(F),
    "three": F(3),
    "six": F(6),
    "zero": F(0),
    "of_places": rows((5, 4, C)),
    "pads": np.array([0, 1, 2, 0, 0, 0, 1, 0]),
    "fill": F(-1.5),
    "two": np.array([2]),
    "middle": np.array([1, 2]),
    "ends": np.array([5, 4]),
    "around": np.array([0, 1, 1, 0, 0, 1, 1, 0]),
    "lengths": np.array([6, 6]),
    "of_width": np.array([2, 1]),
    "start": np.array([0, 1]),
}


def conv(x: str, a: str) -> str:
    """An integer convolution of an image with the channels last, as quantize_dynamic writes it."""
    weights = f"w_{a}" if f"w_{a}" in CONSTANTS else "w_d"
    return f"""{a}_t = Transpose<perm = {FIRST}>({x}) {a}_q, {a}_s, {a}_z = DynamicQuantizeLinear({a}_t)
        {a}_i = ConvInteger<pads = [1, 1, 1, 1]>({a}_q, {weights}, {a}_z, wz) {a}_f = Cast<to = 1>({a}_i)
        {a}_k = Mul({a}_s, ws) {a}_g = Mul({a}_f, {a}_k) {a} = Transpose<perm = {LAST}>({a}_g)
        """


def model_of(text: str, outputs: str = "float[] y") -> onnx.ModelProto:
    """A model; "conv x a" in the text is :func:`conv`."""
    body = re.sub(r"conv (\w+) (\w+)", lambda found: conv(found[1], found[2]), text)
    head = f'<ir_version: 8, opset_import: ["": 20]> g (float[N, 5, 4, {C}] x) => ({outputs})'
    return with_arrays(onnx.parser.parse_model(f"{head} {{ {body} }}"), CONSTANTS)


def images() -> dict[str, Array]:
    x = rows((2, 5, 4, C))
    return {"x": np.where(np.isfinite(x), x, F(0)).astype(F)}


def special() -> list[dict[str, Array]]:
    """Images with an infinity, NaN, denormals and no image at all. Products have no NaN beside numbers."""
    x = images()["x"]
    data = [np.where(x == x.max(), F(np.inf), x), np.full_like(x, np.nan), x * F(1e-40), np.zeros((0, 5, 4, C), F)]
    return [{"x": np.asarray(each, F)} for each in data]


NETWORKS = {
    "bias and Relu": ("conv x a h = Add(a, b) r = Relu(h) conv r c y = Add(c, b)", 2),
    "a BatchNormalization in four nodes": (
        "conv x a h = Add(a, b) h2 = Sub(h, m) h3 = Mul(v, h2) h4 = Div(h3, v) r = Clip(h4, zero, six) conv r c "
        "y = Identity(c)",
        2,
    ),
    "a BatchNormalization between Transposes": (
        f"conv x a t = Transpose<perm = {FIRST}>(a) n = BatchNormalization<epsilon = 0.01>(t, b, v, b, v) "
        f"u = Transpose<perm = {LAST}>(n) r = Relu(u) conv r c y = Relu(c)",
        2,
    ),
    "residuals": (
        "conv x a r = Relu(a) conv r c s = Add(c, r) u = Relu(s) conv u d t2 = Add(u, d) y = Relu(t2)",
        2,
    ),
    "a residual of the input with its Transpose": ("conv x a h = Add(x, a) r = Relu(h) conv r c y = Relu(c)", 2),
    "gates": (
        "conv x a e = Sigmoid(a) s = Mul(a, e) p = ReduceMax<keepdims = 1>(s, middle) conv p c g = Sigmoid(c) "
        "u = Mul(s, g) conv u d y = Tanh(d)",
        4,  # ReduceMax reads s in the layout of the model, and conv reads its result in the other
    ),
    "HardSwish": (
        "conv x a h = Add(a, three) k = Clip(h, zero, six) g = Mul(a, k) r = Div(g, six) conv r c y = Relu(c)",
        2,
    ),
    "pads": ("conv x a r = Relu(a) h = Pad(r, pads, fill) conv h c y = Relu(c)", 2),
    "pads of axes": ("conv x a r = Relu(a) h = Pad(r, of_width, fill, two) conv h c y = Relu(c)", 2),
    "concatenated and split": (
        "conv x a conv x c r = Relu(c) h = Concat<axis = -1>(a, r) l, k = Split<axis = 3, num_outputs = 2>(h) "
        "conv k d y = Add(d, l)",
        3,
    ),
    "slices": ("conv x a h = Slice(a, middle, ends, middle) conv h c y = Relu(c)", 2),
    "slices of the first axes": ("conv x a h = Slice(a, start, ends) conv h c y = Relu(c)", 2),
    "constants of places": ("conv x a h = Mul(a, of_places) conv h c y = Relu(c)", 2),
    "a pool": (
        f"conv x a r = Relu(a) t = Transpose<perm = {FIRST}>(r) p = MaxPool<kernel_shape = [2, 2]>(t) "
        f"u = Transpose<perm = {LAST}>(p) h = Add(u, b) conv h c y = Relu(c)",
        2,
    ),
    "a Where": ("conv x a h = Less(a, b) k = Where(h, three, a) conv k c y = Relu(c)", 2),
    "an output in the layout of convolutions": (f"conv x a r = Relu(a) y = Transpose<perm = {FIRST}>(r)", 1),
}
"""The nodes, and how many Transposes remain."""


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    text, remaining = NETWORKS[name]
    model = model_of(text)
    in_order = check(model, images(), *(() if "Pad(" in text else special()), exact=True)
    for report in (in_order, rewrite(model).report) if remaining else (in_order,):
        assert report.after["Transpose"] == remaining
        assert report.after["ConvInteger"] == 0
        assert sum(report.after.values()) < sum(report.before.values())


KEPT = {
    "another node reads the layout of the model": "conv x a r = Relu(a) h = Softplus(a) y = Add(r, h)",
    "an output of the model": "conv x a r = Relu(a) y = Softplus(r)",
    "an operand without Transposes": "conv x a h = Softplus(x) r = Mul(a, h) y = Softplus(r)",
    "a function with bits that depend on the place": f"conv x a h = Elu(a) y = Transpose<perm = {FIRST}>(h)",
    "a subgraph": (
        f"conv x a {YES} y = If(yes) "
        "<then_branch = t () => (float[] p) { p = Relu(a) }, "
        "else_branch = e () => (float[] p) { p = Identity(a) }>"
    ),
    "pads at run time": "conv x a d = Shape(x) k = Sub(d, d) p = Concat<axis = 0>(k, k) y = Pad(a, p)",
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    """Transposes that other nodes need stay, and none is added."""
    model = model_of(KEPT[name], "float[] y, float[] a" if "output" in name else "float[] y")
    report = check(model, images())
    assert report.after["Transpose"] == report.before["Transpose"]
    assert report.after["ort_dynq.QuantizedConv"] == 1


OUTPUTS = {
    "both layouts": (f"conv x a y = Relu(a) z = Transpose<perm = {FIRST}>(y)", 2),
    "the same twice": (f"conv x a r = Relu(a) y = Transpose<perm = {FIRST}>(r) z = Transpose<perm = {FIRST}>(r)", 1),
    "what a convolution reads": ("conv x a y = Relu(a) conv y c z = Relu(c)", 3),
    "the result of a convolution": (
        f"conv x a r = Relu(a) y = Transpose<perm = {FIRST}>(a) z = Transpose<perm = {FIRST}>(r)",
        1,
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str) -> None:
    """Outputs of the model keep their names and layouts."""
    text, remaining = OUTPUTS[name]
    assert check(model_of(text, "float[] y, float[] z"), images()).after["Transpose"] == remaining


STEPS = (
    "conv {a} {v}",
    "{v} = Relu({a})",
    "{v} = Softplus({a})",
    "{v} = Sigmoid({a})",
    "{v} = Add({a}, {b})",
    "{v} = Mul({a}, {b})",
    "{v} = Add({a}, b)",
    "{v} = Mul(m, {a})",
    "{v} = Sub({a}, of_places)",
    "{v} = Clip({a}, zero, six)",
    "{v}c = Less({a}, {b}) {v} = Where({v}c, {a}, three)",
    "{v}c = Concat<axis = -1>({a}, {b}) {v}l, {v} = Split<axis = 3, num_outputs = 2>({v}c)",
    "{v}l, {v}r = Split<axis = -1, num_outputs = 2>({a}) {v} = Concat<axis = 3>({v}r, {v}l)",
    "{v}p = Pad({a}, around) {v} = Slice({v}p, middle, lengths, middle)",
    f"{{v}}t = Transpose<perm = {FIRST}>({{a}}) {{v}} = Transpose<perm = {LAST}>({{v}}t)",
    f"{{v}}t = Transpose<perm = {FIRST}>({{a}}) {{v}}p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({{v}}t) "
    f"{{v}} = Transpose<perm = {LAST}>({{v}}p)",
    f"{{v}}t = Transpose<perm = {FIRST}>({{a}}) {{v}}p = BatchNormalization({{v}}t, v, b, b, v) "
    f"{{v}} = Transpose<perm = {LAST}>({{v}}p)",
)


@pytest.mark.parametrize("seed", every(25, range(100)))
def test_random_networks(seed: int) -> None:
    """Networks of any nodes between any values, with two outputs; no Transpose is added."""
    choose = random.Random(seed)
    values, nodes = ["x", "a"], ["conv x a"]
    for v in [f"n{i}" for i in range(choose.randint(6, 16))]:
        first, second = choose.choices(values[-4:], k=2)
        nodes.append(choose.choice(STEPS).format(a=first, b=second, v=v))
        values.append(v)
    nodes.append(f"y = Identity({v})" if choose.random() < 0.5 else f"y = Transpose<perm = {FIRST}>({v})")
    model = model_of(" ".join(nodes), f"float[] y, float[] {choose.choice(values[1:])}")
    report = check(model, stock_data=(images(),))
    assert report.after["Transpose"] <= report.before["Transpose"]


def test_without_a_converted_convolution() -> None:
    """Transposes of other convolutions stay, though a node behind them is converted."""
    text = f"""t = Transpose<perm = {FIRST}>(x) f = Conv(t, w) a = Transpose<perm = {LAST}>(f) h = Relu(a)
        u = Transpose<perm = {FIRST}>(h) g = Conv(u, w) k = Transpose<perm = {LAST}>(g)"""
    model = model_of(f"{text} q, s, z = DynamicQuantizeLinear(k) y = DequantizeLinear(q, s, z)")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((C, C, 1, 1), F), "w"))
    report = check(model, images())
    assert report.after["Transpose"] == report.before["Transpose"]
    plain = model_of(f"{text} y = Relu(k)")
    plain.graph.initializer.append(numpy_helper.from_array(np.ones((C, C, 1, 1), F), "w"))
    before = ir.to_proto(ir.from_proto(plain)).SerializeToString()
    assert rewrite(plain).to_proto().SerializeToString() == before


def test_verification() -> None:
    """Values of both models correspond, so that each product is compared with the original's."""
    body = f"""most = ReduceMax<keepdims = 0>(x) l = ReduceMin<keepdims = 0>(x) d = Sub(most, l) s = Div(d, c255)
        q = QuantizeLinear(x, s, of_zero) u = DequantizeLinear(q, s, of_zero) t = Transpose<perm = {FIRST}>(u)
        f = Conv<pads = [1, 1, 1, 1]>(t, w) a = Transpose<perm = {LAST}>(f) h = Add(a, b) r = Relu(h)
        y = Transpose<perm = {FIRST}>(r)"""
    model = model_of(body)
    weights = CONSTANTS["w_a"] * F(0.01)
    with_arrays(model, {"w": weights, "c255": F(255), "of_zero": np.uint8(128)})
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 32
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 32
    converted = rewrite(model).to_proto()
    assert tails(converted) == ["dst = Clip(x, 0.0, inf)"]
    assert {entry.key: entry.value for entry in converted.metadata_props}[LAYOUT] == "1"
    x = np.random.default_rng(0).standard_normal((2, 32, 32, C)).astype(F)
    result = verify(model, converted, inputs={"x": x})
    assert result.passed
    assert [product.elements for product in result.products] == [x.size]
