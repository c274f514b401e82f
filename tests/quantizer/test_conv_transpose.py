"""Transposed convolutions: the results equal ONNX Runtime's of the dequantized activation and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, pairwise, with_arrays
from onnx import helper
from quantizing import F, floats, model_of, operators, reasons, run, run_float, squared_error, weights_by_definition

import ort_dynq
from ort_dynq.quantizer import conv_transpose
from ort_dynq.rewriter.convolutions import transposed as transposed_convolutions

Geometry = dict[str, Any]


def transposed(
    weights: Array, bias: Array | None, shape: tuple[int | str, ...], geometry: Geometry, *more: onnx.NodeProto
) -> onnx.ModelProto:
    constants = {"w": weights} | ({} if bias is None else {"c": bias})
    node = helper.make_node("ConvTranspose", ["x", *constants], ["t" if more else "y"], **geometry)
    return model_of([node, *more], constants, shape=shape)


def check(weights: Array, bias: Array | None, x: Array, geometry: Geometry, *, is_static: bool = True) -> None:
    """Compares with the same layer of floats on the dequantized activation and weights."""
    group, (inputs, outputs, *kernel) = geometry.get("group", 1), weights.shape
    shape = x.shape if is_static else ("N", inputs, *(f"d{i}" for i in range(len(kernel))))
    result = ort_dynq.quantize(transposed(weights, bias, shape, geometry))
    interleaves = {"Interleave": 1} if max(geometry.get("strides", [1])) > 1 else {}
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1, **interleaves}
    assert "ConvTranspose" not in result.report.after
    axes = tuple(range(1, x.ndim))
    low, high = np.minimum(x.min(axes, keepdims=True), F(0)), np.maximum(x.max(axes, keepdims=True), F(0))
    scale = (high - low) / F(255)
    zero_point = np.rint(-low / scale)
    dequantized = ((np.clip(np.rint(x / scale) + zero_point, 0, 255) - zero_point) * scale).astype(F)
    by_channel = np.swapaxes(weights.reshape(group, inputs // group, outputs, *kernel), 1, 2)
    columns = weights_by_definition(by_channel.reshape(group * outputs, -1).T).T.reshape(by_channel.shape)
    rounded = np.swapaxes(columns, 1, 2).reshape(weights.shape).astype(F)
    expected = run_float(transposed(rounded, bias, x.shape, geometry), dequantized)
    actual = run(result, x)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 2e-5 * np.abs(expected).max()  # the order of float32 sums


FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Geometry]] = {
    "sound": ((256, 16, 16), (1, 256, 60), {"strides": [8], "pads": [4, 4]}),
    "image": ((128, 24, 4, 4), (2, 128, 9, 12), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "volume": ((512, 4, 2, 2, 2), (1, 512, 3, 4, 5), {"strides": [2, 2, 2]}),
    "stride 1": ((64, 24, 3, 3), (1, 64, 12, 13), {"pads": [1, 1, 1, 1]}),
    "groups": ((256, 8, 4, 4), (1, 256, 10, 11), {"strides": [2, 2], "group": 2}),
    "output_padding": ((256, 24, 4, 4), (1, 256, 8, 7), {"strides": [2, 2], "output_padding": [1, 0]}),
    "VALID": ((128, 24, 4, 4), (1, 128, 9, 12), {"strides": [2, 2], "auto_pad": "VALID"}),
}


@pytest.mark.parametrize(("form", "biased", "is_static"), pairwise(FORMS, [True, False], [True, False]))
def test_forms(form: str, biased: bool, is_static: bool) -> None:
    shape, x, geometry = FORMS[form]
    weights = floats(*shape, seed=2) * np.exp(floats(1, shape[1], *[1] * (len(shape) - 2), seed=3))
    bias = floats(shape[1] * geometry.get("group", 1), seed=4) if biased else None
    check(weights, bias, floats(*x, seed=5), geometry, is_static=is_static)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_geometry(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides longer than the kernel, pads as long as it, dilations, output_padding that no pad takes back."""
    monkeypatch.setattr(transposed_convolutions, "is_slow_transposed_convolution", lambda *_: False)
    monkeypatch.setattr(conv_transpose, "has_few_products", lambda *_: False)
    rng = np.random.default_rng(rank)

    def numbers(low: int, high: int) -> list[int]:
        return [int(number) for number in rng.integers(low, high, rank)]

    count = 0
    while count < 8:
        kernel, strides, dilations = numbers(1, (18, 6, 4)[rank - 1]), numbers(1, (9, 4, 4)[rank - 1]), numbers(1, 3)
        lengths = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = [int(rng.integers(0, length)) for length in 2 * lengths]
        more, group = [int(rng.integers(0, stride)) for stride in strides], int(rng.integers(1, 3))
        image = numbers(3, 9)
        ends = zip(image, strides, lengths, more, pads[:rank], pads[rank:], strict=True)
        if all((size - 1) * s + k + m - b - e > 0 for size, s, k, m, b, e in ends):
            geometry = {
                "strides": strides,
                "dilations": dilations,
                "pads": pads,
                "output_padding": more,
                "group": group,
            }
            weights, bias = floats(6, 3, *kernel, seed=count), floats(3 * group, seed=count)
            check(weights, bias, floats(2, 6, *image, seed=count), geometry, is_static=count % 2 == 0)
            count += 1


def test_a_bias_and_a_normalization_after_it_are_folded() -> None:
    nodes = [
        helper.make_node("Add", ["t", "shift"], ["u"]),
        helper.make_node("BatchNormalization", ["u", "gain", "mean", "mean", "variance"], ["y"]),
    ]
    model = transposed(floats(128, 24, 4, 4), None, (1, 128, 8, 9), {"strides": [2, 2]}, *nodes)
    vectors = {
        "shift": floats(24, 1, 1),
        "gain": floats(24),
        "mean": floats(24, seed=1),
        "variance": np.abs(floats(24)),
    }
    with_arrays(model, vectors)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedConv": 1, "Interleave": 1}
    assert not {"Add", "BatchNormalization"} & result.report.after.keys()
    x = floats(1, 128, 8, 9)
    # Codes of 8 bits for normal data of up to 4 standard deviations: (8 / 255) ** 2 / 12, and the weights.
    assert squared_error(run(result, x), run_float(model, x)) < 2e-4


@pytest.mark.parametrize(
    ("reason", "shape", "geometry"),
    [
        ("an element of the output has too few products", (23, 24, 2, 2), {"strides": [2, 2]}),
        ("an element of the output has too few products", (512, 24, 3, 3), {"strides": [2, 2]}),
        ("the convolution has too few products", (24, 1, 2, 2), {"strides": [2, 2]}),
        ("the pads of the ConvTranspose depend on the size", (128, 24, 4, 4), {"output_shape": [20, 20]}),
        ("the pads of the ConvTranspose depend on the size", (128, 24, 4, 4), {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_layers_that_stay(reason: str, shape: tuple[int, ...], geometry: Geometry) -> None:
    """Another layer of the model is quantized."""
    more, is_single = helper.make_node("Conv", ["t", "v"], ["y"]), shape[1] == 1
    kernel, size = (12, 60) if is_single else (3, 12)
    model = transposed(floats(*shape), None, (1, shape[0], size, size), geometry, more)
    model.graph.initializer.append(onnx.numpy_helper.from_array(floats(64, shape[1], kernel, kernel), "v"))
    result = ort_dynq.quantize(model)
    (found,) = reasons(result)
    assert found.startswith(reason)
    assert result.report.after["ConvTranspose"] == 1
