"""The accuracy of quantized models: every figure against its definition in float64 NumPy."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from accuracy_models import F, K, floats, model_of, two_layers, with_outlier
from helpers import Array, make_session, parse, stock_session

import ort_dynq
from ort_dynq.accuracy import Accuracy, Reference, measure
from ort_dynq.signals import Agreement, ChannelMaxima, Cosines, Noise
from ort_dynq.tools.accuracy.reference import is_classifier

INF = math.inf
NAN = math.nan


def snr(a: Array, b: Array) -> float:
    """Decibels from the definition."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(10 * np.log10((a**2).sum() / ((b - a) ** 2).sum()))


def quantized(model: onnx.ModelProto, x: Array) -> Array:
    """The output y of a model after its quantization."""
    return np.asarray(
        make_session(ort_dynq.quantize(model).to_proto(), "native", optimize=True).run(["y"], {"x": x})[0]
    )


def accuracy_of(model: onnx.ModelProto, *sets: dict[str, Array]) -> Accuracy:
    return measure(Reference(model, sets), ort_dynq.quantize(model).model, seconds=0)


# Signals


def test_noise_of_several_arrays() -> None:
    a, b = floats(3, 9001), floats(3, 9001, seed=1)  # more than a part
    noise = Noise()
    noise.add(a[:1], b[:1])
    noise.add(a[1:], b[1:])
    assert noise.elements == 27003
    assert noise.decibels == pytest.approx(snr(a, b), rel=1e-12)
    assert noise.max_abs == np.abs(b.astype(np.float64) - a).max()


@pytest.mark.parametrize(
    ("a", "b", "decibels", "elements"),
    [
        ([], [], None, 0),
        ([1, 2], [1, 2], INF, 2),
        ([0, 0], [0, 0], INF, 2),
        ([0, 0], [0, 1], -INF, 2),
        ([1, 2], [1, NAN], -INF, 2),
        ([1, 2], [1, INF], -INF, 2),
        ([NAN, INF], [1, 2], None, 0),
        ([NAN, 10, -INF], [NAN, 11, 5], 20, 1),
        ([3e38, 1], [-3e38, 1], pytest.approx(10 * math.log10(1 / 4)), 2),
    ],
)
def test_noise_of_special_values(a: list[float], b: list[float], decibels: float | None, elements: int) -> None:
    noise = Noise()
    noise.add(np.array(a, F), np.array(b, F))
    assert (noise.decibels, noise.elements) == (decibels, elements)


def test_cosines_of_rows() -> None:
    a, b = floats(2, 5, 9), floats(2, 5, 9, seed=1)
    cosines = Cosines()
    for p, q in zip(a, b, strict=True):
        cosines.add(p, q)
    x, y = a.reshape(10, 9).astype(np.float64), b.reshape(10, 9).astype(np.float64)
    expected = [float(p @ q / np.sqrt((p @ p) * (q @ q))) for p, q in zip(x, y, strict=True)]
    assert cosines.worst == pytest.approx(min(expected), rel=1e-12)
    assert cosines.mean == pytest.approx(np.mean(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([[0, 0]], [[0, 0]], 1),
        ([[0, 0]], [[1, 0]], 0),
        ([[1, 0]], [[NAN, 0]], 0),
        ([[1, 0]], [[INF, 0]], 0),
        ([[NAN, 0]], [[1, 0]], None),
        ([[1], [2]], [[-1], [2]], None),
        ([[]], [[]], None),
        ([[1e-30, 0]], [[3e38, 0]], 1),
    ],
)
def test_cosines_of_special_rows(a: list[list[float]], b: list[list[float]], expected: float | None) -> None:
    cosines = Cosines()
    cosines.add(np.array(a, F), np.array(b, F))
    assert cosines.mean == (None if expected is None else pytest.approx(expected, abs=1e-15))


def test_agreement() -> None:
    argmax, equal = Agreement(is_argmax=True), Agreement(is_argmax=False)
    argmax.add(np.array([[1, 2], [3, 2], [NAN, 1], [5, 6]], F), np.array([[0, 9], [3, 4], [1, 2], [1, 2]], F))
    equal.add(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]))
    assert (argmax.share, argmax.count, equal.share) == (2 / 3, 3, 0.75)


def test_channels() -> None:
    x = floats(4, 10, 3)
    x[:, 7] *= 50
    channels = ChannelMaxima(axis=1)
    for each in x:
        channels.add(each[None])
    largest = np.abs(x).max((0, 2))
    assert channels.outlier == (7, pytest.approx(largest[7] / np.median(largest)))
    x[:, :5] = 0  # unused channels do not count; five channels are too few
    few = ChannelMaxima(axis=1)
    few.add(x)
    assert few.outlier is None


# Outputs


def test_outputs_over_several_sets() -> None:
    model, sets = two_layers(), [floats(n, K, seed=n) for n in (1, 4)]
    found = accuracy_of(model, *({"x": x} for x in sets))
    a = np.concatenate([stock_session(model).run(None, {"x": x})[0] for x in sets])
    b = np.concatenate([quantized(model, x) for x in sets])
    (output,) = found.outputs
    assert (output.name, output.dtype, output.elements) == ("y", "float32", 5 * K)
    assert output.snr_db == found.snr_db == pytest.approx(snr(a, b), abs=1e-4)
    assert 25 < found.snr_db < 50
    assert output.max_abs == pytest.approx(np.abs(a - b).max(), rel=1e-4)
    x, y = a.astype(np.float64), b.astype(np.float64)
    cosines = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    assert (output.cosine_worst, output.cosine_mean) == (pytest.approx(cosines.min()), pytest.approx(cosines.mean()))
    assert output.agreement == (a.argmax(1) == b.argmax(1)).mean()  # it ends in a MatMul, as a classifier does


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = MatMul(x, w)", True),
        ("h = MatMul(x, w) y = Add(b, h)", True),
        ("h = Gemm(x, w, b) i = Softmax(h) y = Identity(i)", True),
        ("h = MatMul(x, w) i = Add(h, b) j = Add(i, b) y = Relu(j)", False),
        ("h = MatMul(x, w) y = Tanh(h)", False),
        ("h = Tanh(x) y = LogSoftmax(h)", True),
        ("y = Add(x, b)", False),
        ("h = MatMul(x, w) y = LayerNormalization(h, b)", False),
        ("y = Identity(x)", False),
    ],
)
def test_classifiers(body: str, expected: bool) -> None:
    model = ir.from_proto(parse("float[n, 4] x, float[4, 4] w, float[4] b", "float[n, 4] y", body))
    assert is_classifier(model.graph.outputs[0]) == expected


@pytest.mark.parametrize(("shape", "expected"), [("float[n, 4] y", True), ("float[n, 4, h, v] y", False)])
def test_convolutions_classify_if_the_output_has_two_dimensions(shape: str, expected: bool) -> None:
    body = "h = Conv(x, w) i = GlobalAveragePool(h) y = Flatten(i)" if expected else "y = Conv(x, w)"
    model = ir.from_proto(parse("float[n, 4, 8, 8] x, float[4, 4, 1, 1] w", shape, body))
    assert is_classifier(model.graph.outputs[0]) == expected


def test_outputs_of_other_types() -> None:
    model = model_of(
        """y = MatMul(x, w) root = Sqrt(y) none = Slice(y, zero, zero) best = ArgMax<axis = 1, keepdims = 0>(y)
        text = Cast<to = 8>(best) items = SequenceConstruct(y) always = Greater(zero, zero)""",
        {"w": floats(K, K), "zero": np.zeros(1, np.int64)},
        outputs=f"""float[n, {K}] y, float[n, {K}] root, float[m, {K}] none, int64[n] best, string[n] text,
        seq(float[n, {K}]) items, bool[1] always""",
    )
    x = floats(50, K, seed=3)
    found = accuracy_of(model, {"x": x})
    y, root, none, best, text, items, always = found.outputs
    assert y.elements == 50 * K
    assert 0.3 * 50 * K < root.elements < 0.7 * 50 * K  # half of the roots are NaN
    assert root.snr_db == -INF  # a number became NaN
    assert (none.elements, none.snr_db, none.cosine_mean, none.max_abs) == (0, None, None, None)
    expected = (stock_session(model).run(["best"], {"x": x})[0] == quantized(model, x).argmax(1)).mean()
    assert best.agreement == text.agreement == y.agreement == expected
    assert best.snr_db is text.snr_db is always.snr_db is None
    assert always.agreement == 1
    assert "list is not compared" in items.problem
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_output_of_another_shape_is_the_worst() -> None:
    """Noise moves numbers to or from 0."""
    model = model_of(
        "y = MatMul(x, w) r = Round(y) places = NonZero(r)",
        {"w": floats(K, K) / F(K**0.5)},
        outputs=f"float[n, {K}] y, int64[2, m] places",
    )
    found = accuracy_of(model, {"x": floats(50, K, seed=3)})
    assert "gives int64 [2," in found.outputs[1].problem
    assert found.outputs[1].snr_db == found.snr_db == -INF


# Layers


def test_layers_multiply_the_float_models_activations() -> None:
    model, x = two_layers(), floats(6, K, seed=5)
    h = floats_of(model, "h", x)
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    first = quantized(model_of("y = MatMul(x, w)", {"w": constants["w"]}), x)
    second = quantized(model_of("y = MatMul(x, w)", {"w": constants["v"]}), np.maximum(h, 0))
    y = np.maximum(h, 0) @ constants["v"]
    layers = {each.name: each for each in accuracy_of(model, {"x": x}).layers}
    assert layers["to_h"].snr_db == pytest.approx(snr(h, first), abs=1e-3)
    assert layers["to_y"].snr_db == pytest.approx(snr(y, second), abs=1e-3)
    assert layers["to_y"].output_snr_db == pytest.approx(snr(y, second), abs=1e-3)
    assert layers["to_h"].output_snr_db == pytest.approx(snr(y, np.maximum(first, 0) @ constants["v"]), abs=1e-3)
    assert {each.operator for each in layers.values()} == {"QuantizedMatMul"}


def test_effects_of_the_noisiest_layers() -> None:
    """They are in three of four parts, and the same as if the effects of all layers are measured."""
    chain = "".join(f"p{i} = MatMul({'x' if i == 0 else f'r{i - 1}'}, w{i}) r{i} = Tanh(p{i}) " for i in range(20))
    model = model_of(f"{chain}y = Add(r19, x)", {f"w{i}": floats(K, K, seed=i) for i in range(20)})
    reference, result = Reference(model, {"x": floats(6, K, seed=5)}), ort_dynq.quantize(model)
    every = {each.name: each for each in measure(reference, result.model, seconds=0).layers}
    few = {each.name: each for each in measure(reference, result.model, seconds=0, effects=3).layers}
    noisiest = sorted(every.values(), key=lambda each: each.snr_db or 0)[:3]
    effects = {name: each.output_snr_db for name, each in few.items() if each.output_snr_db is not None}
    assert effects == {each.name: each.output_snr_db for each in noisiest}
    assert list(few)[:3] == sorted(effects, key=lambda name: few[name].order)
    assert {name: each.snr_db for name, each in few.items()} == {name: each.snr_db for name, each in every.items()}


def floats_of(model: onnx.ModelProto, name: str, x: Array) -> Array:
    """A value of a model."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    return np.asarray(stock_session(changed).run([name], {"x": x})[0])


def test_the_channel_that_holds_the_range_is_named() -> None:
    model, x = with_outlier(), floats(20, K, seed=7)
    layers = {each.name: each for each in accuracy_of(model, {"x": x[:9]}, {"x": x[9:]}).layers}
    largest = np.abs(floats_of(model, "s", x)).max(0)
    assert layers["to_c"].channel == 5
    assert layers["to_c"].range_ratio == pytest.approx(largest[5] / np.median(largest), rel=1e-5)
    assert [name for name, each in layers.items() if each.has_outlier] == ["to_c"]
    assert next(iter(layers)) == "to_c"  # the worst is first


def test_share_of_the_time() -> None:
    model, x = two_layers(), floats(300, K)
    found = measure(Reference(model, {"x": x}), ort_dynq.quantize(model).model, seconds=0.01)
    shares = [each.share or 0.0 for each in found.layers]
    assert all(0 < share < 1 for share in shares)
    assert sum(shares) < 1


def test_layers_in_subgraphs_are_counted() -> None:
    """Also a product with a program."""
    branch = f"""{{ y = If (flag) <
        then_branch = g1 () => (float[n, {K}] a) {{ p = MatMul(x, w) a = Relu(p) }},
        else_branch = g2 () => (float[n, {K}] b) {{ b = MatMul(x, v) }}> }}"""
    model = model_of(
        branch.strip("{} "),
        {"w": floats(K, K), "v": floats(K, K)},
        inputs=f"float[n, {K}] x, bool flag",
    )
    assert ort_dynq.quantize(model).report.after["ort_dynq.QuantizedMatMulProgram"] == 1
    found = accuracy_of(model, {"x": floats(3, K), "flag": np.array(True)})
    assert (found.layers, found.unreachable) == ((), 2)
    assert 20 < found.snr_db < 60


def test_a_layer_with_a_transposed_activation_is_counted() -> None:
    model = model_of("y = Gemm <transA = 1> (x, w)", {"w": floats(K, K)}, inputs=f"float[{K}, n] x")
    found = accuracy_of(model, {"x": floats(K, 3)})
    assert (found.layers, found.unreachable) == ((), 1)


def test_models_that_are_not_interchangeable() -> None:
    other = ort_dynq.quantize(model_of("y = MatMul(z, w)", {"w": floats(K, K)}, inputs=f"float[n, {K}] z")).model
    with pytest.raises(ort_dynq.DynqError, match="only A has input x"):
        measure(Reference(two_layers(), {"x": floats(1, K)}), other)


def test_verify_refers_to_the_accuracy() -> None:
    model = two_layers()
    result = ort_dynq.quantize(model)
    with pytest.raises(ort_dynq.DynqError, match="B was quantized, so its outputs differ from A's; `ort-dynq bench A"):
        ort_dynq.verify(model, result.model)
    assert ort_dynq.verify(result.model, result.model).passed
