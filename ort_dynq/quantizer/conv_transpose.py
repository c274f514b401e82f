"""The rule for transposed convolutions with constant float weights.

activation, ConvTranspose, [Add bias], [BatchNormalization]
    -> DynamicQuantizeLinear, QuantizedConv, [Reshape, Transpose, Reshape for each axis], [Slice]

A transposed convolution with strides s is a convolution with stride 1 whose channels are interleaved. With one axis,

    y[m, o] = sum(x[c, i] * w[c, m, k] for all i, k with i * s + k - pad = o)

Write k = s * j + r with the phase r < s. The outputs o + pad = s * q + r of one phase are a convolution of x by every
s-th weight: y[m, s * q + r - pad] = sum(x[c, q - j] * w[c, m, s * j + r]). So QuantizedConv gets the channels
m * s + r, and kernels of ceil(K / s) weights in reverse order; Transpose puts the phases side by side.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..operators.encodings import AutoPad
from ..opsets import OPSET
from ..rewriter.convolutions.convolution import Geometry, Weights, check_rank, integers_of
from ..rewriter.convolutions.quantized_conv import insert_quantized_conv
from ..rewriter.edit import Edit
from ..rewriter.policy.cost import is_slow_transposed_convolution
from ..rewriter.products.channels import Channels
from ..rewriter.products.provenance import note_activation
from ..rewriter.products.tail import Tail
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from .activations import codes_of_images, note_on
from .conv import operands_of, past_normalization, weights_of_floats
from .options import Options
from .weights import floats_of, release


@dataclass(frozen=True)
class _Axes:
    """The geometry of a ConvTranspose, a list with a number for each spatial axis.

    Attributes:
        strides: The strides.
        taps: The weights of one phase along an axis: ceil(K / stride), where K includes the dilation.
        pads: The leading and the trailing pads of the convolution of the phases.
        cut: The leading and the trailing elements of the interleaved result that the output does not have.
    """

    strides: list[int]
    taps: list[int]
    pads: tuple[list[int], list[int]]
    cut: tuple[list[int], list[int]]


@dataclass(frozen=True)
class _Match:
    activation: ir.Value
    weights: Weights  # of the phases
    geometry: Geometry
    axes: _Axes
    channels: int
    tail: Tail
    options: Options


def _match(node: ir.Node, context: Context, options: Options) -> _Match | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type != "ConvTranspose":
        return None
    if (operands := operands_of(node, context, options)) is None:
        return None
    (a, w, bias), facts = operands, context.facts
    group = node.attributes.get_int("group", 1)
    by_channel = _by_output_channel(floats_of(w, facts), group)
    release(w)
    dilations = integers_of(node, "dilations", [1] * (by_channel.ndim - 2))
    axes = _axes(node, [(k - 1) * d + 1 for k, d in zip(by_channel.shape[2:], dilations, strict=True)])
    weights, scale = weights_of_floats(by_channel, options.has_two_terms(node))
    if is_slow_transposed_convolution(node, by_channel.shape[1], by_channel.shape[2:], axes.strides, axes.taps):
        raise Unconverted(Reason.CONV_TRANSPOSE_TOO_SMALL)
    channels = Channels(len(by_channel), by_channel.ndim - 2)
    tail = Tail(node, channels, node.outputs[0], column=scale, bias=bias)
    tail = past_normalization(tail if bias is not None else tail.past_bias(facts), facts)
    # The parameters are vectors, [M].
    numbers = (
        Channels(channels.size).vector(tail.bias, np.float32, facts) if isinstance(tail.bias, ir.Value) else tail.bias
    )
    if tail.bias is not None and numbers is None:
        raise Unconverted(Reason.BIAS_OF_CHANNELS)
    phases = math.prod(axes.strides)
    assert tail.column is not None
    tail = replace(
        tail,
        channels=Channels(channels.size * phases, channels.spatial_rank),
        column=np.repeat(tail.column.reshape(-1), phases),
        bias=None if numbers is None else np.repeat(numbers, phases),
    )
    ones = [1] * channels.spatial_rank
    table = np.array([axes.taps, ones, ones, *axes.pads], np.int32)
    of_phases = _weights_of_phases(weights, dilations, axes)
    return _Match(a, of_phases, Geometry(table, group, AutoPad.EXPLICIT), axes, channels.size, tail, options)


def _build(match: _Match, edit: Edit) -> None:
    codes = codes_of_images(match.activation, edit, match.options)
    result = insert_quantized_conv(match.tail, codes, match.weights, match.geometry, edit)
    edit.replace(match.tail.last, _interleaved(result, match, edit))
    note_activation(edit, match.activation)
    edit.note = note_on(codes, match.options)


def rule(options: Options) -> Rule[_Match]:
    """Returns the rule with these options."""
    match = functools.partial(_match, options=options)
    return Rule("quantized transposed convolution", OPSET, match, _build, reports_opset=True)


def _by_output_channel(elements: npt.NDArray[np.float32], group: int) -> npt.NDArray[np.float32]:
    """Returns a copy of weights [C, M / group, k1, ..., kr] of a ConvTranspose as [M, C / group, k1, ..., kr].

    Raises:
        Unconverted: They have no axis of an image, or the group does not divide C.
    """
    check_rank(elements.ndim)
    if group < 1 or len(elements) % group:
        raise Unconverted(Reason.CONV_GROUP_OR_AUTO_PAD)
    inputs, outputs, *kernel = elements.shape
    grouped = elements.reshape(group, inputs // group, outputs, *kernel).swapaxes(1, 2)
    return np.array(grouped.reshape(group * outputs, inputs // group, *kernel), order="C")


def _axes(node: ir.Node, lengths: Sequence[int]) -> _Axes:
    """Returns the geometry of a ConvTranspose whose dilated kernel has these lengths.

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
    if min(*strides, *lengths) < 1 or min(*pads, *more) < 0:
        raise Unconverted(Reason.CONV_STRIDES_DILATIONS_GROUP)
    taps = [-(-length // stride) for length, stride in zip(lengths, strides, strict=True)]
    begin, end = (pads[:rank], pads[rank:]) if auto_pad == "NOTSET" else ([0] * rank, [0] * rank)
    # The convolution of the phases with taps - 1 pads has all outputs; `spare` of them are behind the last one.
    spare = [t * s - k - m + e for t, s, k, m, e in zip(taps, strides, lengths, more, end, strict=True)]
    before = [max(0, t - 1 - b // s) for t, s, b in zip(taps, strides, begin, strict=True)]
    after = [max(0, t - 1 - e // s) for t, s, e in zip(taps, strides, spare, strict=True)]
    return _Axes(
        strides,
        taps,
        (before, after),
        (
            [b - (t - 1 - p) * s for t, s, b, p in zip(taps, strides, begin, before, strict=True)],
            [e - (t - 1 - p) * s for t, s, e, p in zip(taps, strides, spare, after, strict=True)],
        ),
    )


def _weights_of_phases(weights: Weights, dilations: Sequence[int], axes: _Axes) -> Weights:
    """Returns the codes [M * phases, C / group, t1, ..., tr]; weights that a phase does not have are zero points."""
    outputs, inputs, *kernel = weights.codes.shape
    rank = len(kernel)
    padded = [t * s for t, s in zip(axes.taps, axes.strides, strict=True)]
    zero_points = np.broadcast_to(weights.zero_point.reshape(-1, *[1] * (rank + 1)), (outputs, inputs, *padded))
    codes = np.array(zero_points, np.int8)
    places = tuple(slice(0, (k - 1) * d + 1, d) for k, d in zip(kernel, dilations, strict=True))
    codes[(slice(None), slice(None), *places)] = weights.codes
    codes = codes.reshape(outputs, inputs, *itertools.chain(*zip(axes.taps, axes.strides, strict=True)))
    codes = codes.transpose(0, *range(3, 3 + 2 * rank, 2), 1, *range(2, 2 + 2 * rank, 2))
    phases = math.prod(axes.strides)
    codes = np.flip(codes.reshape(outputs * phases, inputs, *axes.taps), tuple(range(2, 2 + rank)))
    zero_point = weights.zero_point if weights.zero_point.size == 1 else np.repeat(weights.zero_point, phases)
    found = Weights(np.ascontiguousarray(codes), zero_point)
    found.check()
    return found


class _Shapes:
    """Shapes of the convolution of the phases, as constants if the size of the image is known."""

    def __init__(self, result: ir.Value, match: _Match, edit: Edit) -> None:
        self._edit, self._before, self._strides = edit, match.tail.last_node, match.axes.strides
        rank, shape = len(self._strides), match.activation.shape
        image = [None] * rank if shape is None else [dim if isinstance(dim, int) else None for dim in shape[2:]]
        more = [a + b - t + 1 for a, b, t in zip(*match.axes.pads, match.axes.taps, strict=True)]
        self._lengths = [None if dim is None else dim + n for dim, n in zip(image, more, strict=True)]
        self._shape = None if None not in self._lengths else self._insert("Shape", result)

    def of(self, *dims: int | tuple[Sequence[int], Sequence[int]]) -> ir.Value:
        """Returns a shape. A dimension is a number, or the product of the lengths of axes and the strides of axes."""
        parts = []
        for dim in dims:
            axes, strided = dim if isinstance(dim, tuple) else ((), ())
            known = [self._lengths[axis] for axis in axes]
            number = math.prod(self._strides[axis] for axis in strided) if isinstance(dim, tuple) else dim
            numbers = [number, *(length for length in known if length is not None)]
            value: int | ir.Value = math.prod(numbers)
            for axis, length in zip(axes, known, strict=True):
                if length is None:
                    value = self._insert("Mul", self._constant(value), self._length(axis))
            parts.append(value)
        if not any(isinstance(part, ir.Value) for part in parts):
            return self._constant([part for part in parts if isinstance(part, int)])
        return self._insert("Concat", *map(self._constant, parts), axis=0)

    def _length(self, axis: int) -> ir.Value:
        assert self._shape is not None
        return self._insert("Gather", self._shape, self._constant(axis + 2))

    def _constant(self, numbers: int | Sequence[int] | ir.Value) -> ir.Value:
        if isinstance(numbers, ir.Value):
            return numbers
        return self._edit.add_constant(np.array(numbers, np.int64).reshape(-1), before=self._before)

    def _insert(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        return self._edit.insert(ir.node(op_type, list(inputs), attributes), before=self._before)


def _interleaved(result: ir.Value, match: _Match, edit: Edit) -> ir.Value:
    """Returns the output of the ConvTranspose: the phases [N, M * s1 * ... * sr, q1, ..., qr] side by side, and cut."""
    strides, before = match.axes.strides, match.tail.last_node
    axes = range(len(strides))

    def insert(op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        return edit.insert(ir.node(op_type, list(inputs), attributes), before=before)

    def constant(numbers: Sequence[int]) -> ir.Value:
        return edit.add_constant(np.array(numbers, np.int64), before=before)

    if any(stride > 1 for stride in strides):
        shapes = _Shapes(result, match, edit)
        for axis in reversed(axes):  # one at a time, which ONNX Runtime moves fastest
            if strides[axis] > 1:
                outer, inner = axes[: axis + 1], axes[axis + 1 :]
                # [..., s, q1 * ... * q, the inner axes] becomes [..., q1 * ... * q, s, the inner axes].
                by_phase = insert("Reshape", result, shapes.of(-1, strides[axis], (outer, ()), (inner, inner)))
                result = insert("Transpose", by_phase, perm=[0, 2, 1, 3])
        result = insert("Reshape", result, shapes.of(-1, match.channels, *(((axis,), (axis,)) for axis in axes)))
    first, last = match.axes.cut
    if any(first) or any(last):
        ends = [-length if length else np.iinfo(np.int64).max for length in last]
        result = insert("Slice", result, constant(first), constant(ends), constant([axis + 2 for axis in axes]))
    return result
