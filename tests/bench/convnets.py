"""Networks of convolutions with seeded weights, in float and as onnxruntime's quantize_dynamic writes them.

* resnet is a ResNet of basic blocks, see He et al. (2015); its 18 layers are a 7x7 convolution, 16 of 3x3 in four
  stages and a linear layer. Three more convolutions of 1x1 are in its shortcuts.
* ppocr is a network of depthwise convolutions between two of 1x1, as the text recognizers of PP-OCR have them: a
  HardSwish after most convolutions, written as Add, Clip, Mul and Div, and before it a Mul and an Add of numbers.
* yolo is a detector of objects in the shape of YOLOv8: stages of 3x3 convolutions with SiLU (Sigmoid and Mul), whose
  blocks concatenate what each of them adds; then maps of three sizes, which exchange their channels, and a head of 3x3
  convolutions on each of them.

The batch normalizations are folded into weights and biases, as exporters write them. Weights are normal values times
the square root of two divided by the number of inputs. The last convolution of each block has a fourth of that, so that
the sums of blocks stay of one size.

The networks are standard ONNX of opset 20 and IR version 10, which onnxruntime 1.20.1 and newer run.
conv_s8 needs a newer version, whose ConvInteger takes int8 weights; 1.24.4 does.
"""

from __future__ import annotations

import logging
import math
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
    """Builds a detector in the shape of YOLOv8, whose size s has the width 32; see :func:`resnet`.

    The output y is float32 [batch, 144, cells]: 64 numbers of a box and 80 classes for each cell of the three maps. The
    image has a multiple of 32 pixels, or is cut.

    Raises:
        DynqError: The form does not exist.
    """
    return _in_form(form, _Builder(seed).yolo(image // 32 * 32, width))


NETWORKS = {"resnet": resnet, "ppocr": ppocr, "yolo": yolo}


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
        return self._model("resnet", x, inputs, image)

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
        return self._model("ppocr", x, 4 * inputs, image)

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
        return self._graph("yolo", image, ("batch", _BOX + _OBJECTS, "cells"))

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

    def _model(self, name: str, x: str, channels: int, image: int) -> onnx.ModelProto:
        """Adds a linear layer on the means of the channels, and returns the model."""
        x = self._add("Flatten", [self._add("GlobalAveragePool", [x])])
        linear = self._parameters("linear", (_CLASSES, channels), 1.0)
        self._add("Gemm", [x, *linear], "y", transB=1)
        return self._graph(name, image, ("batch", _CLASSES))

    def _graph(self, name: str, image: int, output: tuple[str | int, ...]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 3, image, image))],
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
