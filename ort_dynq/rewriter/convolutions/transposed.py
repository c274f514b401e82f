"""A transposed convolution as a convolution with interleaved channels: QuantizedConv or WordConv, then Interleave.

With strides s and one axis, a transposed convolution is

    y[m, o] = sum(x[c, i] * w[c, m, k] for all i, k with i * s + k - pad = o)

Write k = s * j + r with the phase r < s. The outputs o + pad = s * q + r of one phase are a convolution of x by every
s-th weight: y[m, s * q + r - pad] = sum(x[c, q - j] * w[c, m, s * j + r]). So QuantizedConv gets the channels
m * s + r, and kernels of ceil(K / s) weights in reverse order; Interleave puts the phases side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import AutoPad
from ..analysis.inference import Facts
from ..codes.codes import Codes
from ..edit import Edit, call
from ..policy.cost import is_slow_transposed_convolution
from ..products.epilogue import Epilogue
from ..reasons import Reason, Unconverted
from ..weights.channels import Channels
from .convolution import Geometry, Weights, check_rank, integers_of
from .word_conv import insert_conv


@dataclass(frozen=True)
class Axes:
    """The geometry of a ConvTranspose, a list with a number for each spatial axis.

    Attributes:
        strides, dilations: The strides and dilations.
        taps: The weights of one phase along an axis: ceil(K / stride), where K includes the dilation.
        pads: The leading and the trailing pads of the convolution of the phases.
        cut: The leading and the trailing elements of the interleaved result that the output does not have.
    """

    strides: list[int]
    dilations: list[int]
    taps: list[int]
    pads: tuple[list[int], list[int]]
    cut: tuple[list[int], list[int]]


@dataclass(frozen=True)
class Phases:
    """The convolution of the phases.

    Attributes:
        activation: The activation.
        weights, geometry: Of the convolution of the phases.
        axes: The geometry of the ConvTranspose.
        channels: Its output channels.
        epilogue: Its epilogue, with a scale and a bias for each channel of the phases.
    """

    activation: ir.Value
    weights: Weights
    geometry: Geometry
    axes: Axes
    channels: int
    epilogue: Epilogue


def axes_of(node: ir.Node, weights: Weights) -> Axes:
    """Returns the geometry of a ConvTranspose, if the convolution of its phases takes less time.

    Args:
        node: The ConvTranspose.
        weights: Its weights, as :func:`by_output_channel` returns them.

    Raises:
        Unconverted: It does not, the pads depend on the size of the image, or an attribute is not valid.
    """
    inputs, *kernel = weights.codes.shape[1:]
    dilations = integers_of(node, "dilations", [1] * len(kernel))
    axes = _axes(node, dilations, [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)])
    if is_slow_transposed_convolution(node, inputs, kernel, axes.strides, axes.taps):
        raise Unconverted(Reason.CONV_TRANSPOSE_TOO_SMALL)
    return axes


def phases_of(activation: ir.Value, weights: Weights, axes: Axes, epilogue: Epilogue, facts: Facts) -> Phases:
    """Returns the convolution of the phases of a ConvTranspose.

    Args:
        activation: Its activation.
        weights, axes: Its weights and its geometry.
        epilogue: The ConvTranspose and the nodes after it. It has scales of the columns.
        facts: What is known of the model.

    Raises:
        Unconverted: The bias is not one constant for each channel.
    """
    channels, bias = weights.channels, epilogue.constant_bias(facts)
    if epilogue.bias is not None and bias is None:
        raise Unconverted(Reason.BIAS_OF_CHANNELS)
    phases = math.prod(axes.strides)
    assert epilogue.column is not None
    epilogue = replace(
        epilogue,
        channels=Channels(channels.size * phases, channels.spatial_rank),
        column=np.repeat(np.broadcast_to(epilogue.column.reshape(-1), channels.size), phases),
        bias=None if bias is None else np.repeat(bias, phases),
    )
    ones = [1] * channels.spatial_rank
    table = np.array([axes.taps, ones, ones, *axes.pads], np.int32)
    geometry = Geometry(table, epilogue.product.attributes.get_int("group", 1), AutoPad.EXPLICIT)
    return Phases(activation, _weights_of_phases(weights, axes), geometry, axes, channels.size, epilogue)


def build_phases(phases: Phases, codes: Codes | None, edit: Edit) -> None:
    """Puts a convolution and the nodes that interleave the phases in place of a ConvTranspose and its epilogue.

    Args:
        phases: The convolution.
        codes: The codes of its activation; None for weights that are words.
        edit: The edit of the ConvTranspose.
    """
    result = insert_conv(phases.epilogue, phases.activation, codes, phases.weights, phases.geometry, edit)
    edit.replace(phases.epilogue.last, _interleaved(result, phases, edit))


def by_output_channel(elements: npt.NDArray[np.float32], node: ir.Node) -> npt.NDArray[np.float32]:
    """Returns a copy of weights [C, M / group, k1, ..., kr] of a ConvTranspose as [M, C / group, k1, ..., kr].

    Raises:
        Unconverted: They have no axis of an image, or the group does not divide C.
    """
    check_rank(elements.ndim)
    group = node.attributes.get_int("group", 1)
    if group < 1 or len(elements) % group:
        raise Unconverted(Reason.CONV_GROUP_OR_AUTO_PAD)
    inputs, outputs, *kernel = elements.shape
    grouped = elements.reshape(group, inputs // group, outputs, *kernel).swapaxes(1, 2)
    return np.array(grouped.reshape(group * outputs, inputs // group, *kernel), order="C")


def _axes(node: ir.Node, dilations: list[int], lengths: Sequence[int]) -> Axes:
    """Returns the geometry of a ConvTranspose with a dilated kernel of these lengths.

    Raises:
        Unconverted: The pads depend on the size of the image, or an attribute is not valid.
    """
    rank = len(lengths)
    strides = integers_of(node, "strides", [1] * rank)
    more = integers_of(node, "output_padding", [0] * rank)
    pads = integers_of(node, "pads", [0] * 2 * rank)
    auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
    if "output_shape" in node.attributes or auto_pad not in ("NOTSET", "VALID"):
        raise Unconverted(Reason.CONV_OUTPUT_SHAPE)
    if min(*strides, *dilations, *lengths) < 1 or min(*pads, *more) < 0:
        raise Unconverted(Reason.CONV_STRIDES_DILATIONS_GROUP)
    taps = [-(-length // stride) for length, stride in zip(lengths, strides, strict=True)]
    begin, end = (pads[:rank], pads[rank:]) if auto_pad == "NOTSET" else ([0] * rank, [0] * rank)
    # The convolution of the phases with taps - 1 pads has all outputs; `spare` of them are behind the last one.
    spare = [t * s - k - m + e for t, s, k, m, e in zip(taps, strides, lengths, more, end, strict=True)]
    before = [max(0, t - 1 - b // s) for t, s, b in zip(taps, strides, begin, strict=True)]
    after = [max(0, t - 1 - e // s) for t, s, e in zip(taps, strides, spare, strict=True)]
    return Axes(
        strides,
        dilations,
        taps,
        (before, after),
        (
            [b - (t - 1 - p) * s for t, s, b, p in zip(taps, strides, begin, before, strict=True)],
            [e - (t - 1 - p) * s for t, s, e, p in zip(taps, strides, spare, after, strict=True)],
        ),
    )


def _weights_of_phases(weights: Weights, axes: Axes) -> Weights:
    """Returns the codes [M * phases, C / group, t1, ..., tr]; weights that a phase does not have are zero points."""
    outputs, inputs, *kernel = weights.codes.shape
    rank = len(kernel)
    padded = [t * s for t, s in zip(axes.taps, axes.strides, strict=True)]
    zero_points = np.broadcast_to(weights.zero_point.reshape(-1, *[1] * (rank + 1)), (outputs, inputs, *padded))
    codes = np.array(zero_points, weights.codes.dtype)
    places = tuple(slice(0, (k - 1) * d + 1, d) for k, d in zip(kernel, axes.dilations, strict=True))
    codes[(slice(None), slice(None), *places)] = weights.codes
    codes = codes.reshape(outputs, inputs, *itertools.chain(*zip(axes.taps, axes.strides, strict=True)))
    codes = codes.transpose(0, *range(3, 3 + 2 * rank, 2), 1, *range(2, 2 + 2 * rank, 2))
    phases = math.prod(axes.strides)
    codes = np.flip(codes.reshape(outputs * phases, inputs, *axes.taps), tuple(range(2, 2 + rank)))
    zero_point = weights.zero_point if weights.zero_point.size == 1 else np.repeat(weights.zero_point, phases)
    found = Weights(np.ascontiguousarray(codes), zero_point)
    found.check()
    return found


def _interleaved(result: ir.Value, phases: Phases, edit: Edit) -> ir.Value:
    """Returns the output of the ConvTranspose: the phases [N, M * s1 * ... * sr, q1, ..., qr] side by side, and cut."""
    strides, before = phases.axes.strides, phases.epilogue.last_node

    def constant(numbers: Sequence[int]) -> ir.Value:
        return edit.add_constant(np.array(numbers, np.int64), before=before)

    if any(stride > 1 for stride in strides):
        given = {f"stride_{i}": stride for i, stride in enumerate(strides, 1)}
        result = edit.insert(call("Interleave", [result], **given), before=before)
    first, last = phases.axes.cut
    if any(first) or any(last):
        ends = [-length if length else np.iinfo(np.int64).max for length in last]
        axes = [axis + 2 for axis in range(len(strides))]
        inputs = [result, constant(first), constant(ends), constant(axes)]
        result = edit.insert(ir.node("Slice", inputs), before=before)
    return result
