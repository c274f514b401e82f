"""Networks of convolutions with seeded weights, in float and as onnxruntime's quantize_dynamic writes them.

* resnet is a ResNet of basic blocks, see He et al. (2015); its 18 layers are a 7x7 convolution, 16 of 3x3 in four
  stages and a linear layer. Three more convolutions of 1x1 are in its shortcuts.
* ppocr is a network of depthwise convolutions between two of 1x1, as the text recognizers of PP-OCR have them: a
  HardSwish after most convolutions, written as Add, Clip, Mul and Div, and before it a Mul and an Add of numbers.
* yolo is a detector of objects in the shape of YOLOv8: stages of 3x3 convolutions with SiLU (Sigmoid and Mul): their
  blocks concatenate what each of them adds; then maps of three sizes, which exchange their channels, and a head of 3x3
  convolutions on each of them.
* mobilenet is MobileNetV3-Large, see Howard et al. (2019), and efficientnet EfficientNet-B0, see Tan and Le (2019):
  depthwise convolutions between two of 1x1, with Relu, HardSwish or SiLU, and gates of channels.
* unet is a U-Net of three sizes, see Ronneberger et al. (2015): pairs of 3x3 convolutions, MaxPool, and ConvTranspose
  before the maps of the same size are concatenated.
* wave is the encoder of sound of wav2vec 2.0, see Baevski et al. (2020): seven convolutions in a row with Gelu.

The batch normalizations are folded into weights and biases, as exporters write them. Weights are normal values times
the square root of two divided by the number of inputs. The last convolution of each block has a fourth of that, so that
the sums of blocks stay of one size.

The networks are standard ONNX of opset 20 and IR version 10, which onnxruntime 1.20.1 and newer run.
conv_s8 needs a newer version: its ConvInteger takes int8 weights; 1.24.4 does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_dynq.errors import DynqError
from ort_dynq.files import temporary_folder
from ort_dynq.inputs import Array

FORMS = ("float", "conv_u8", "conv_s8")
"""How the convolutions are quantized.

- float: They are not quantized.
- conv_u8, conv_s8: quantize_dynamic with uint8 and int8 weights: DynamicQuantizeLinear, ConvInteger, Cast, Mul, Add. It
  gives the weights of a convolution one scale, also with per_channel=True.
"""

_OPSET, _IR_VERSION = 20, 10
_STAGES, _BLOCKS, _CLASSES = 4, 2, 1000
# Of the blocks of mobilenet: the kernel, the channels inside and after it for a width of 16, whether it has a gate, the
# activation and the stride.
_MOBILE = (
    *((3, 16, 16, False, "Relu", 1), (3, 64, 24, False, "Relu", 2), (3, 72, 24, False, "Relu", 1)),
    *((5, 72, 40, True, "Relu", 2), (5, 120, 40, True, "Relu", 1), (5, 120, 40, True, "Relu", 1)),
    *((3, 240, 80, False, "HardSwish", 2), (3, 200, 80, False, "HardSwish", 1), (3, 184, 80, False, "HardSwish", 1)),
    *((3, 184, 80, False, "HardSwish", 1), (3, 480, 112, True, "HardSwish", 1), (3, 672, 112, True, "HardSwish", 1)),
    *((5, 672, 160, True, "HardSwish", 2), (5, 960, 160, True, "HardSwish", 1), (5, 960, 160, True, "HardSwish", 1)),
)
# Of those of efficientnet: the factor of the channels inside, the channels after it for a width of 32, the number of
# blocks, the stride of the first one and the kernel.
_EFFICIENT = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)
_WAVE = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))  # the kernels and the strides of wave
_SAMPLES_OF_A_PIXEL = 64
_BOX, _OBJECTS = 64, 80  # outputs of yolo for each cell
# Of the blocks of ppocr: the channels inside and after it, in units of the width; the stride and the kernel.
_DEPTHWISE = ((2, 1, 1, 3), (4, 2, 2, 3), (4, 2, 1, 3), (8, 4, 2, 5), (8, 4, 1, 5), (16, 8, 2, 5), (16, 8, 1, 5))


def resnet(form: str, *, image: int = 224, width: int = 64, seed: int = 0) -> onnx.ModelProto:
    """Builds a ResNet-18.

    The input x is float32 [batch, 3, image, image], the output y float32 [batch, 1000].

    Args:
        form: How the convolutions are quantized: a name from :data:`FORMS`.
        image: The height and width of the images in pixels.
        width: The channels of the first stage.
        seed: The seed of the weights.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).resnet(image, width))


def ppocr(form: str, *, image: int = 224, width: int = 16, seed: int = 0) -> onnx.ModelProto:
    """Builds a network of depthwise convolutions with HardSwish; see :func:`resnet`.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).ppocr(image, width))


def yolo(form: str, *, image: int = 224, width: int = 32, seed: int = 0) -> onnx.ModelProto:
    """Builds a detector in the shape of YOLOv8: size s has the width 32; see :func:`resnet`.

    The output y is float32 [batch, 144, cells]: 64 numbers of a box and 80 classes for each cell of the three maps. The
    image has a multiple of 32 pixels, or is cut.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).yolo(image // 32 * 32, width))


def mobilenet(form: str, *, image: int = 224, width: int = 16, seed: int = 0) -> onnx.ModelProto:
    """Builds MobileNetV3-Large: its first layer has 16 channels; see :func:`resnet`.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).mobilenet(image, width))


def efficientnet(form: str, *, image: int = 224, width: int = 32, seed: int = 0) -> onnx.ModelProto:
    """Builds EfficientNet-B0: its first layer has 32 channels; see :func:`resnet`.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).efficientnet(image, width))


def unet(form: str, *, image: int = 224, width: int = 32, seed: int = 0) -> onnx.ModelProto:
    """Builds a U-Net; see :func:`resnet`.

    The output y is float32 [batch, 2, image, image]. The image has a multiple of 8 pixels, or is cut.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).unet(image // 8 * 8, width))


def wave(form: str, *, image: int = 224, width: int = 128, seed: int = 0) -> onnx.ModelProto:
    """Builds an encoder of sound; see :func:`resnet`.

    The input x is float32 [batch, 1, 64 * image], samples of a sound.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).wave(image * _SAMPLES_OF_A_PIXEL, width))


NETWORKS = {
    "resnet": resnet,
    "ppocr": ppocr,
    "yolo": yolo,
    "mobilenet": mobilenet,
    "efficientnet": efficientnet,
    "unet": unet,
    "wave": wave,
}


def _in_form(form: str, model: onnx.ModelProto) -> onnx.ModelProto:
    if form not in FORMS:
        raise DynqError(f"there is no form {form!r} of a network of convolutions, expected one of {', '.join(FORMS)}")
    return model if form == "float" else _quantize(model, form)


def feeds(model: onnx.ModelProto, *, batch: int = 1, seed: int = 0) -> dict[str, Array]:
    """Returns a normal float32 input of a network.

    Args:
        model: The network.
        batch: The batch size.
        seed: The seed of the values.
    """
    (x,) = model.graph.input
    sizes = [size.dim_value for size in x.type.tensor_type.shape.dim[1:]]
    return {x.name: np.random.default_rng(seed).standard_normal((batch, *sizes), np.float32)}


def _quantize(model: onnx.ModelProto, form: str) -> onnx.ModelProto:
    from onnxruntime import quantization

    dtype = {"conv_u8": quantization.QuantType.QUInt8, "conv_s8": quantization.QuantType.QInt8}[form]
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it recommends to optimize the model first
    try:
        with temporary_folder() as folder:
            path = Path(folder) / "quantized.onnx"
            quantization.quantize_dynamic(model, path, op_types_to_quantize=["Conv"], weight_type=dtype)
            return onnx.load(path)
    finally:
        logging.disable(disabled)


class _Builder:
    """Adds layers to a graph and draws their weights."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []

    def resnet(self, image: int, width: int) -> onnx.ModelProto:
        x = self._convolution("stem", "x", 3, width, 7, 2)
        x = self._add("MaxPool", [self._add("Relu", [x])], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        inputs = width
        for stage in range(_STAGES):
            outputs = width << stage
            for block in range(_BLOCKS):
                stride = 2 if stage and not block else 1
                x = self._block(f"stages.{stage}.{block}", x, inputs, outputs, stride)
                inputs = outputs
        return self._model("resnet", x, inputs, 3, image, image)

    def ppocr(self, image: int, width: int) -> onnx.ModelProto:
        x = self._hard_swish(self._convolution("stem", "x", 3, width, 3, 2))
        inputs = width
        for i, (inner, outputs, stride, kernel) in enumerate(_DEPTHWISE):
            shortcut, inside, outside = x, inner * width, outputs * width
            x = self._activated(self._convolution(f"blocks.{i}.expand", x, inputs, inside, 1, 1))
            x = self._convolution(f"blocks.{i}.depthwise", x, inside, inside, kernel, stride, group=inside)
            x = self._convolution(f"blocks.{i}.project", self._activated(x), inside, outside, 1, 1, gain=0.25)
            if stride == 1 and inputs == outside:
                x = self._add("Add", [shortcut, x])
            inputs = outside
        x = self._hard_swish(self._convolution("head", x, inputs, 4 * inputs, 1, 1))
        return self._model("ppocr", x, 4 * inputs, 3, image, image)

    def yolo(self, image: int, width: int) -> onnx.ModelProto:
        x, inputs, maps = self._silu("stem", "x", 3, width, 3, 2), width, []
        for stage, blocks in enumerate((1, 2, 2, 1)):
            outputs = width << (stage + 1)
            x = self._silu(f"stages.{stage}.down", x, inputs, outputs, 3, 2)
            x, inputs = self._concatenating(f"stages.{stage}", x, outputs, outputs, blocks, shortcut=True), outputs
            maps.append((x, inputs))
        for step in (1, 2):  # what the small maps know goes to the larger ones
            larger, channels = maps[-1 - step]
            resized = self._add("Resize", [x, "", self._constant(np.array([1, 1, 2, 2], np.float32))], mode="nearest")
            x = self._add("Concat", [resized, larger], axis=1)
            x = self._concatenating(f"up.{step}", x, inputs + channels, channels, 1, shortcut=False)
            maps[-1 - step], inputs = (x, channels), channels
        cells = [self._head(f"heads.{i}", *each) for i, each in enumerate(maps[1:])]
        self._add("Concat", cells, "y", axis=2)
        return self._graph("yolo", (3, image, image), ("batch", _BOX + _OBJECTS, "cells"))

    def mobilenet(self, image: int, width: int) -> onnx.ModelProto:
        x, inputs = self._add("HardSwish", [self._convolution("stem", "x", 3, width, 3, 2)]), width
        for i, (kernel, inside, outside, has_gate, activation, stride) in enumerate(_MOBILE):
            inner, outputs = inside * width // 16, outside * width // 16
            squeezed = max(8, inner // 4) if has_gate else 0
            x = self._inverted(
                f"blocks.{i}",
                x,
                (inputs, inner, outputs),
                kernel,
                stride,
                activation,
                squeezed,
                ("Relu", "HardSigmoid"),
            )
            inputs = outputs
        x = self._add("HardSwish", [self._convolution("head", x, inputs, 6 * inputs, 1, 1)])
        return self._model("mobilenet", x, 6 * inputs, 3, image, image)

    def efficientnet(self, image: int, width: int) -> onnx.ModelProto:
        x, inputs = self._silu("stem", "x", 3, width, 3, 2), width
        for stage, (factor, outside, blocks, stride, kernel) in enumerate(_EFFICIENT):
            outputs = outside * width // 32
            for block in range(blocks):
                channels, step = (inputs, factor * inputs, outputs), 1 if block else stride
                squeezed = max(1, inputs // 4)
                name = f"stages.{stage}.{block}"
                x = self._inverted(name, x, channels, kernel, step, "Sigmoid", squeezed, ("Sigmoid", "Sigmoid"))
                inputs = outputs
        return self._model("efficientnet", self._silu("head", x, inputs, 4 * inputs, 1, 1), 4 * inputs, 3, image, image)

    def unet(self, image: int, width: int) -> onnx.ModelProto:
        x, inputs, maps = "x", 3, []
        for level in range(3):
            x, inputs = self._pair(f"down.{level}", x, inputs, width << level), width << level
            maps.append((x, inputs))
            x = self._add("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
        x, inputs = self._pair("middle", x, inputs, width << 3), width << 3
        for level, (larger, channels) in reversed([*enumerate(maps)]):
            weights = self._parameters(f"up.{level}", (inputs, channels, 2, 2), 2 * math.sqrt(channels / inputs))[:1]
            x = self._add("ConvTranspose", [x, *weights], kernel_shape=[2, 2], strides=[2, 2])
            x = self._pair(f"up.{level}", self._add("Concat", [x, larger], axis=1), 2 * channels, channels)
            inputs = channels
        weight, bias = self._parameters("last", (2, inputs, 1, 1), 1.0)
        self._add("Conv", [x, weight, bias], "y", kernel_shape=[1, 1])
        return self._graph("unet", (3, image, image), ("batch", 2, image, image))

    def wave(self, samples: int, width: int) -> onnx.ModelProto:
        x, inputs = "x", 1
        for i, (kernel, stride) in enumerate(_WAVE):
            parameters = self._parameters(f"layers.{i}", (width, inputs, kernel), math.sqrt(2))
            x = self._add("Gelu", [self._add("Conv", [x, *parameters], kernel_shape=[kernel], strides=[stride])])
            inputs = width
        return self._model("wave", x, width, 1, samples)

    def _pair(self, name: str, x: str, inputs: int, outputs: int) -> str:
        for i, channels in enumerate((inputs, outputs)):
            x = self._add("Relu", [self._convolution(f"{name}.{i}", x, channels, outputs, 3, 1)])
        return x

    def _inverted(
        self,
        name: str,
        x: str,
        channels: tuple[int, int, int],
        kernel: int,
        stride: int,
        activation: str,
        squeezed: int,
        of_gate: tuple[str, str],
    ) -> str:
        """A depthwise convolution between two of 1x1, a gate of so many channels behind it, and a shortcut."""
        shortcut, (inputs, inner, outputs) = x, channels
        if inner != inputs:
            x = self._function(activation, self._convolution(f"{name}.expand", x, inputs, inner, 1, 1))
        x = self._convolution(f"{name}.depthwise", x, inner, inner, kernel, stride, group=inner)
        x = self._function(activation, x)
        if squeezed:
            gate = self._convolution(f"{name}.squeeze", self._add("GlobalAveragePool", [x]), inner, squeezed, 1, 1)
            gate = self._convolution(f"{name}.gate", self._function(of_gate[0], gate), squeezed, inner, 1, 1)
            x = self._add("Mul", [x, self._add(of_gate[1], [gate])])
        x = self._convolution(f"{name}.project", x, inner, outputs, 1, 1, gain=0.5)
        return self._add("Add", [shortcut, x]) if stride == 1 and inputs == outputs else x

    def _function(self, activation: str, x: str) -> str:
        """An activation; Sigmoid stands for SiLU."""
        result = self._add(activation, [x])
        return self._add("Mul", [x, result]) if activation == "Sigmoid" else result

    def _concatenating(self, name: str, x: str, inputs: int, outputs: int, blocks: int, *, shortcut: bool) -> str:
        """Two halves of a 1x1 convolution, what each block makes of the last one, and a 1x1 convolution of them all."""
        half = outputs // 2
        parts = [self._silu(f"{name}.half.{i}", x, inputs, half, 1, 1) for i in range(2)]
        for block in range(blocks):
            inner = self._silu(f"{name}.{block}.first", parts[-1], half, half, 3, 1)
            inner = self._silu(f"{name}.{block}.second", inner, half, half, 3, 1)
            parts.append(self._add("Add", [parts[-1], inner]) if shortcut else inner)
        return self._silu(f"{name}.all", self._add("Concat", parts, axis=1), len(parts) * half, outputs, 1, 1)

    def _head(self, name: str, x: str, inputs: int) -> str:
        found = []
        for kind, inner, outputs in (("box", max(16, inputs // 4), _BOX), ("object", inputs, _OBJECTS)):
            y = self._silu(f"{name}.{kind}.first", x, inputs, inner, 3, 1)
            y = self._silu(f"{name}.{kind}.second", y, inner, inner, 3, 1)
            found.append(self._convolution(f"{name}.{kind}.last", y, inner, outputs, 1, 1))
        shape = self._constant(np.array([0, 0, -1], np.int64))
        return self._add("Reshape", [self._add("Concat", found, axis=1), shape])

    def _silu(self, name: str, x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        x = self._convolution(name, x, inputs, outputs, kernel, stride)
        return self._add("Mul", [x, self._add("Sigmoid", [x])])

    def _model(self, name: str, x: str, channels: int, *image: int) -> onnx.ModelProto:
        """Adds a linear layer on the means of the channels, and returns the model of images or sounds of this shape."""
        x = self._add("Flatten", [self._add("GlobalAveragePool", [x])])
        linear = self._parameters("linear", (_CLASSES, channels), 1.0)
        self._add("Gemm", [x, *linear], "y", transB=1)
        return self._graph(name, image, ("batch", _CLASSES))

    def _graph(self, name: str, image: Sequence[int], output: tuple[str | int, ...]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", *image))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
            self._initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)

    def _block(self, name: str, x: str, inputs: int, outputs: int, stride: int) -> str:
        inner = self._add("Relu", [self._convolution(f"{name}.first", x, inputs, outputs, 3, stride)])
        residual = self._convolution(f"{name}.second", inner, outputs, outputs, 3, 1, gain=0.25)
        shortcut = x
        if inputs != outputs or stride > 1:
            shortcut = self._convolution(f"{name}.shortcut", x, inputs, outputs, 1, stride)
        return self._add("Relu", [self._add("Add", [residual, shortcut])])

    def _activated(self, x: str) -> str:
        """A HardSwish of x, scaled and shifted by numbers that were learned."""
        return self._hard_swish(self._add("Add", [self._add("Mul", [x, self._number(1.02)]), self._number(0.01)]))

    def _hard_swish(self, x: str) -> str:
        clipped = self._add("Clip", [self._add("Add", [x, self._number(3)]), self._number(0), self._number(6)])
        return self._add("Div", [self._add("Mul", [x, clipped]), self._number(6)])

    def _number(self, value: float) -> str:
        """Adds a number, and returns its name."""
        return self._constant(np.asarray(value, np.float32))

    def _constant(self, array: Array) -> str:
        name = f"constant_{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(array, name))
        return name

    def _convolution(
        self,
        name: str,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        *,
        gain: float = 1.0,
        group: int = 1,
    ) -> str:
        parameters = self._parameters(name, (outputs, inputs // group, kernel, kernel), gain * math.sqrt(2))
        window: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        if group > 1:
            window["group"] = group
        return self._add("Conv", [x, *parameters], **window)

    def _parameters(self, name: str, shape: tuple[int, ...], gain: float) -> list[str]:
        """Adds weights [outputs, inputs, ...] and a bias, and returns their names."""
        weights = self._rng.standard_normal(shape, np.float32) * np.float32(gain / math.sqrt(math.prod(shape[1:])))
        bias = self._rng.standard_normal(shape[0], np.float32) / np.float32(8)
        arrays = {f"{name}.weight": weights, f"{name}.bias": bias}
        self._initializers += [numpy_helper.from_array(array, key) for key, array in arrays.items()]
        return [*arrays]

    def _add(self, operator: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        """Adds a node and returns the name of its output."""
        output = output or f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output
