"""The convolutions that :mod:`bench.convolutions` compares.

All convolve the same values by the same weights, and add the same bias:

* ort_dynq s8, ort_dynq u8: QuantizedConv, from uint8 codes with a scale and a zero point, to float32. Each output
  channel has a scale. The weights are symmetric int8, or uint8 with a zero point other than 128.
* direct, Winograd: ort_dynq s8 by the direct form and by Winograd's algorithm, for dense kernels with stride 1.
* ort_dynq float: DynamicQuantizeLinear and QuantizedConv, from float32.
* two terms: TwoTermQuantize and QuantizedConv, as `ort-dynq quantize --activations two-term` has it.
* words: WordConv, from float32, as `ort-dynq quantize --weights int12` has it.
* ConvInteger s8, ConvInteger u8: with Cast, Mul and Add, from uint8 codes to float32, as onnxruntime's quantize_dynamic
  writes them. On x86, ONNX Runtime has fast kernels for the uint8 weights only.
* Conv: Conv of float32.
* OpenVINO: Conv of float32 in OpenVINO, if it is installed. It quantizes no activation of a Conv while a model runs.
* QLinearConv: from uint8 codes to uint8 codes. The scale of its output is a constant.

The weights are in the caches. They are small, and a convolution reads them several times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from ort_dynq import kernels
from ort_dynq.errors import DynqError
from ort_dynq.files import temporary_folder
from ort_dynq.inputs import Array
from ort_dynq.operators import DOMAIN, VERSION
from ort_dynq.operators.encodings import AutoPad, ScaleOrder
from ort_dynq.operators.packing import pack_conv
from ort_dynq.tools.bench import openvino
from ort_dynq.tools.measuring.timing import Contender, ContenderError, Settings, aligned, session_contender
from ort_dynq.tools.verification.saturation import cpu_saturates

from .onnx_text import parse, tensor_type

_SCALE, _ZERO_POINT = np.float32(0.02), np.uint8(128)
_WEIGHT_ZERO_POINT = 123  # of uint8 weights
_CHECKED_POSITIONS = 4
# The largest error of a right result, relative to the range of the output: from rounding of floats, from words, and
# from 127 codes.
_ROUNDING, _OF_WORDS, _QUANTIZING = 1e-4, 1e-3, 0.51 / 127


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution. Its pads are half of the kernel, rounded down.

    Attributes:
        name: How the command line selects it.
        channels: The input and the output channels.
        kernel: The shape of the kernel.
        image: The spatial sizes of the input.
        stride: The stride along every axis.
        depthwise: Whether every channel is a group.
    """

    name: str
    channels: tuple[int, int]
    kernel: tuple[int, ...]
    image: tuple[int, ...]
    stride: int = 1
    depthwise: bool = False

    @property
    def group(self) -> int:
        return self.channels[0] if self.depthwise else 1

    @property
    def input(self) -> tuple[int, ...]:
        return 1, self.channels[0], *self.image

    @property
    def weights(self) -> tuple[int, ...]:
        return self.channels[1], self.channels[0] // self.group, *self.kernel

    @property
    def output(self) -> tuple[int, ...]:
        sizes = zip(self.image, self.kernel, strict=True)
        return 1, self.channels[1], *((size + 2 * (k // 2) - k) // self.stride + 1 for size, k in sizes)

    @property
    def multiply_adds(self) -> int:
        """The products of a convolution."""
        return math.prod(self.output) * math.prod(self.weights[1:])

    @property
    def pads(self) -> tuple[int, ...]:
        """The leading pads of each axis, which equal the trailing ones."""
        return tuple(k // 2 for k in self.kernel)

    def attributes(self) -> str:
        """The attributes of the standard operators in ONNX's text."""
        strides = [self.stride] * len(self.kernel)
        return f"<group = {self.group}, pads = {[*self.pads, *self.pads]}, strides = {strides}>"


@dataclass(frozen=True)
class Case:
    """What one row of the table measures."""

    convolution: Convolution
    threads: int

    def __str__(self) -> str:
        return f"{self.convolution.name}, threads: {self.threads}"


@dataclass(frozen=True)
class _Data:
    """The codes of the activation, and the weights without zero points, with a scale for each output channel."""

    codes: Array
    weights: Array
    scales: Array
    bias: Array

    def activation(self) -> Array:
        return (self.codes.astype(np.float32) - np.float32(_ZERO_POINT)) * _SCALE

    def feeds(self) -> dict[str, Array]:
        return {"x": self.codes, "scale": np.asarray(_SCALE), "zero_point": np.asarray(_ZERO_POINT)}

    def real_weights(self) -> Array:
        return np.asarray(self.weights * self.column(self.scales, first=True))

    def column(self, values: Array, *, first: bool = False) -> Array:
        """Values of output channels in the shape that broadcasts to the output, or to the weights."""
        ones = (1,) * (self.weights.ndim - 2)
        return values.reshape((-1, 1, *ones) if first else (1, -1, *ones))


@dataclass(frozen=True)
class _Form:
    """One form of the convolution in ONNX's text.

    Attributes:
        nodes: From the input x to the output y.
        feeds: The inputs.
        constants: The initializers.
        output_scale: The scale of a quantized output; 0 for float32.
        is_ours: Whether the form needs ort_dynq's operators.
        tolerance: The largest error of a right result, relative to the range of the output.
    """

    nodes: str
    feeds: Mapping[str, Array]
    constants: Mapping[str, Array]
    output_scale: float = 0
    is_ours: bool = False
    tolerance: float = _ROUNDING


def contenders(case: Case, settings: Settings) -> tuple[dict[str, Contender], list[str]]:
    """Returns the contenders by name, and notes on contenders that are not available or wrong on this machine.

    Args:
        case: The convolution.
        settings: How to time.

    Raises:
        DynqError: Our convolution does not run, or its result is wrong.
    """
    convolution = case.convolution
    data = _make_data(convolution)
    expected = _Expected(convolution, data)
    found: dict[str, Contender] = {}
    notes: list[str] = []
    for name, form in _forms(convolution, data, expected.peak).items():
        try:
            found[name] = session_contender(
                f"{name}, {convolution.name}",
                _model(convolution, form),
                {key: aligned(array) for key, array in form.feeds.items()},
                case.threads,
                backend=settings.backend if form.is_ours else None,
            )
        except ContenderError as error:
            if form.is_ours:
                raise
            notes.append(f"{name} is not available: {error}")
            continue
        notes += _wrong(f"{name}, {convolution.name}", found[name].arrays[-1], form, expected)
        if name == "Conv" and openvino.forms():
            try:
                found["OpenVINO"] = _openvino(_model(convolution, form), form.feeds, case.threads)
            except ContenderError as error:
                notes.append(f"OpenVINO is not available: {error}")
    if has_winograd(convolution):
        found["direct"] = _with_winograd(found["ort_dynq s8"], "never")
        found["Winograd"] = _with_winograd(found["ort_dynq s8"], "always")
    return found, notes


def has_winograd(convolution: Convolution) -> bool:
    """Whether there is a Winograd form of the convolution."""
    return convolution.kernel[-1] > 1 and convolution.stride == 1 and not convolution.depthwise


def _openvino(model: onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> Contender:
    with temporary_folder() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        arrays = {name: aligned(array) for name, array in feeds.items()}
        return openvino.contender(openvino.forms()[0], path, arrays, threads)


def _with_winograd(contender: Contender, use: Literal["always", "never"]) -> Contender:
    def run() -> None:
        with kernels.use_algorithm("winograd", use):
            contender.run()

    return replace(contender, run=run)


def _make_data(convolution: Convolution) -> _Data:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, convolution.input, np.uint8)
    codes.reshape(-1)[:2] = 0, 255  # so that DynamicQuantizeLinear finds the same scale and zero point
    outputs = convolution.channels[1]
    return _Data(
        codes,
        rng.integers(-123, 124, convolution.weights, np.int8),
        rng.uniform(0.005, 0.01, outputs).astype(np.float32),
        rng.standard_normal(outputs, np.float32),
    )


def _forms(convolution: Convolution, data: _Data, peak: float) -> dict[str, _Form]:
    attributes, weights = convolution.attributes(), data.weights
    unsigned = (weights + np.int16(_WEIGHT_ZERO_POINT)).astype(np.uint8)
    codes = data.feeds()
    activation = {"x": data.activation()}
    output_scale = np.float32(peak / 127)
    ours, constants = _ours(convolution, data, 0)
    ours_u8, constants_u8 = _ours(convolution, data, _WEIGHT_ZERO_POINT - 128)
    return {
        "ort_dynq s8": _Form(f"y = {ours}", codes, constants, is_ours=True),
        "ort_dynq u8": _Form(f"y = {ours_u8}", codes, constants_u8, is_ours=True),
        "ort_dynq float": _Form(
            "codes, scale, zero_point = ort_dynq.DynamicQuantizeLinear(x)\n" + f"y = {ours.replace('(x', '(codes')}",
            activation,
            constants,
            is_ours=True,
        ),
        "two terms": _Form(
            "codes, scale = ort_dynq.TwoTermQuantize<axis = 1, block_size = 0>(x)\n"
            f"y = {ours.replace('(x', '(codes').replace('terms = 1', 'terms = 2')}",
            activation,
            {**constants, "zero_point": np.zeros((), np.int8)},
            is_ours=True,
        ),
        "words": _words(convolution, data, activation),
        "ConvInteger s8": _integer(data, attributes, weights, np.int8(0)),
        "ConvInteger u8": _integer(data, attributes, unsigned, np.uint8(_WEIGHT_ZERO_POINT)),
        "Conv": _Form(
            f"y = Conv{attributes}(x, weights, bias)", activation, {"weights": data.real_weights(), "bias": data.bias}
        ),
        "QLinearConv": _Form(
            f"y = QLinearConv{attributes}"
            "(x, scale, zero_point, weights, scales, weight_zero_points, output_scale, output_zero_point, bias)",
            {"x": data.codes},
            {
                "scale": codes["scale"],
                "zero_point": codes["zero_point"],
                "weights": weights,
                "scales": data.scales,
                "weight_zero_points": np.zeros_like(data.scales, np.int8),
                "output_scale": np.asarray(output_scale),
                "output_zero_point": np.asarray(_ZERO_POINT),
                "bias": np.rint(data.bias / (_SCALE * data.scales)).astype(np.int32),
            },
            output_scale=float(output_scale),
            tolerance=_QUANTIZING,
        ),
    }


def _integer(data: _Data, attributes: str, weights: Array, zero_point: np.generic) -> _Form:
    return _Form(
        f"sums = ConvInteger{attributes}(x, weights, zero_point, weight_zero_point) real = Cast<to = 1>(sums)\n"
        "both = Mul(scale, scales) scaled = Mul(real, both) y = Add(scaled, bias)",
        data.feeds(),
        {
            "weights": weights,
            "weight_zero_point": np.asarray(zero_point),
            "scales": data.column(data.scales),
            "bias": data.column(data.bias),
        },
    )


def _geometry(convolution: Convolution) -> Array:
    rank = len(convolution.kernel)
    rows = [convolution.kernel, [convolution.stride] * rank, [1] * rank, convolution.pads, convolution.pads]
    return np.asarray(rows, np.int32)


def _words(convolution: Convolution, data: _Data, activation: Mapping[str, Array]) -> _Form:
    attributes = f"<group = {convolution.group}, auto_pad = {AutoPad.EXPLICIT.value}>"
    constants = {"weights": data.weights.astype(np.int16), "scales": data.scales, "bias": data.bias}
    return _Form(
        f"y = ort_dynq.WordConv{attributes}(x, weights, scales, bias, geometry)",
        activation,
        {**constants, "geometry": _geometry(convolution)},
        is_ours=True,
        tolerance=_OF_WORDS,
    )


def _ours(convolution: Convolution, data: _Data, zero_point: int) -> tuple[str, dict[str, Array]]:
    """Returns QuantizedConv in ONNX's text, and its constants, for weights that are stored with a zero point."""
    packed, axis = pack_conv(data.weights + np.int8(zero_point))
    text = (  # with all attributes: onnxruntime-extensions has no defaults
        f"ort_dynq.QuantizedConv<group = {convolution.group}, auto_pad = {AutoPad.EXPLICIT.value}, "
        f"quad_axis = {axis.value}, scale_order = {ScaleOrder.COLUMN_FIRST.value}, terms = 1>"
        "(x, scale, zero_point, weights, weight_zero_point, scales, sums, bias, geometry)"
    )
    return text, {
        "weights": packed,
        "weight_zero_point": np.array([zero_point], np.int8),
        "scales": data.scales,
        "sums": data.weights.sum(axis=tuple(range(1, data.weights.ndim)), dtype=np.int32),
        "bias": data.bias,
        "geometry": _geometry(convolution),
    }


def _model(convolution: Convolution, form: _Form) -> onnx.ModelProto:
    names = {"float32": "float", "uint8": "uint8"}
    model = parse(
        ", ".join(f"{tensor_type(names[array.dtype.name], array.shape)} {key}" for key, array in form.feeds.items()),
        f"{tensor_type('uint8' if form.output_scale else 'float', convolution.output)} y",
        form.nodes,
        opset=21,
    )
    model.opset_import.add(domain=DOMAIN, version=VERSION)
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in form.constants.items())
    return model


class _Expected:
    """Some elements of the convolution, computed in float64.

    Attributes:
        positions: Positions of the output: corners with padding in their patches, and some others.
        values: The elements there, float64 [positions, output channels].
        peak: The largest magnitude that an output is likely to have: six standard deviations.
    """

    def __init__(self, convolution: Convolution, data: _Data) -> None:
        image = convolution.output[2:]
        rng = np.random.default_rng(1)
        inner = [tuple(int(rng.integers(size)) for size in image) for _ in range(_CHECKED_POSITIONS)]
        self.positions = [(0,) * len(image), tuple(size - 1 for size in image), *inner]
        padded = np.pad(data.activation()[0].astype(np.float64), [(0, 0), *((pad, pad) for pad in convolution.pads)])
        weights = data.real_weights().astype(np.float64)
        self.values = np.stack([self._convolve(convolution, padded, weights, each) for each in self.positions])
        self.values += data.bias
        self.peak = 6 * float(self.values.std())

    @staticmethod
    def _convolve(convolution: Convolution, padded: Array, weights: Array, position: Sequence[int]) -> Array:
        corner = [each * convolution.stride for each in position]
        patch = padded[(slice(None), *(slice(i, i + k) for i, k in zip(corner, convolution.kernel, strict=True)))]
        products = weights * (patch[:, None] if convolution.depthwise else patch)
        return np.asarray(products.reshape(len(weights), -1).sum(axis=1))


def _wrong(name: str, result: Array, form: _Form, expected: _Expected) -> list[str]:
    """Returns a note if a result differs from the expected one by more than rounding.

    Raises:
        DynqError: It differs, and the convolution is ort_dynq's.
    """
    actual = np.stack([result[0][(slice(None), *position)] for position in expected.positions]).astype(np.float64)
    if form.output_scale:
        actual = (actual - float(_ZERO_POINT)) * form.output_scale
    values = np.clip(expected.values, -expected.peak, expected.peak) if form.output_scale else expected.values
    error = float(np.abs(actual - values).max() / expected.peak)
    if error <= form.tolerance:
        return []
    problem = f"{name}: results are wrong by {error:.2g} times the range of the output"
    if form.is_ours:
        raise DynqError(problem)
    saturates = name.startswith(("ConvInteger", "QLinearConv")) and cpu_saturates()
    return [f"{problem}; ONNX Runtime's sums saturate on this CPU" if saturates else problem]
