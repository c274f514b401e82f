"""The convolution of an activation's codes by constant weights, and what follows it: they become QuantizedConv."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import AutoPad
from ...operators.packing import pack_conv
from ..edit import Edit, call
from ..report import Left
from ..rule import Context
from .product_tail import Channels, Tail, check_sums
from .shared_initializers import SharedInitializers

_MOST_AXES = 3


@dataclass(frozen=True)
class Weights:
    """The weights of a convolution.

    Attributes:
        codes: int8, [M, C / group, k1, ..., kr].
        zero_point: int8, [1] or [M].
    """

    codes: npt.NDArray[np.int8]
    zero_point: npt.NDArray[np.int8]

    @property
    def axes(self) -> int:
        """The number of dimensions of the image, r."""
        return self.codes.ndim - 2

    @property
    def channels(self) -> Channels:
        """The output channels."""
        return Channels(len(self.codes), self.axes)

    @property
    def sums(self) -> npt.NDArray[np.int32]:
        """The sums of the codes minus their zero points, [M]."""
        matrix = self.codes.reshape(len(self.codes), -1)
        return np.asarray(matrix.sum(1, dtype=np.int32) - np.int32(matrix.shape[1]) * self.zero_point.astype(np.int32))

    def check(self) -> None:
        """Checks that QuantizedConv has a form for these weights.

        Raises:
            Left: It has not.
        """
        check_rank(self.codes.ndim)
        if not self.codes.size:
            raise Left("the weights are empty")
        if self.zero_point.shape not in ((1,), (len(self.codes),)):
            raise Left("the zero points of the weights are not one number for each output channel")
        check_sums(math.prod(self.codes.shape[1:]), self.zero_point)


@dataclass(frozen=True)
class Geometry:
    """Where a convolution reads its input.

    Attributes:
        table: int32, [5, r]: the kernel's shape, strides, dilations, pads at the begin and at the end.
        group: The number of groups of channels.
        auto_pad: Where the pads come from.
    """

    table: npt.NDArray[np.int32]
    group: int
    auto_pad: AutoPad


def check_rank(rank: int) -> None:
    """Checks that QuantizedConv takes weights of this rank.

    Raises:
        Left: It does not.
    """
    if not 3 <= rank <= 2 + _MOST_AXES:
        raise Left(f"the weights are of rank {rank}, expected 3 to {2 + _MOST_AXES}")


def geometry_of(node: ir.Node, weights: Weights) -> Geometry:
    """Returns the geometry of a Conv or ConvInteger.

    Raises:
        Left: An attribute is given by a function's caller, or has a value that QuantizedConv does not have.
    """
    given = {}
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            raise Left(f"the attribute {name} is given by the function's caller")
        given[name] = attribute.value
    axes, kernel = weights.axes, list(weights.codes.shape[2:])
    ones, group = [1] * axes, int(given.get("group", 1))
    if list(given.get("kernel_shape", kernel)) != kernel:
        raise Left("the attribute kernel_shape is not the shape of the weights")
    strides, dilations = (list(given.get(name, ones)) for name in ("strides", "dilations"))
    pads = list(given.get("pads", [0] * 2 * axes))
    if [len(strides), len(dilations), len(pads)] != [axes, axes, 2 * axes]:
        raise Left("the attributes strides, dilations or pads have another length than the kernel's shape")
    if min(pads) < 0:
        raise Left("pads are negative")
    if min(*strides, *dilations, group) < 1 or len(weights.codes) % group:
        raise Left("the attribute strides, dilations or group is not valid")
    text = given.get("auto_pad", "NOTSET")
    auto_pad = {"SAME_UPPER": AutoPad.SAME_UPPER, "SAME_LOWER": AutoPad.SAME_LOWER}.get(text, AutoPad.EXPLICIT)
    if auto_pad != AutoPad.EXPLICIT and any(step > length + 2 for step, length in zip(strides, kernel, strict=True)):
        raise Left("strides exceed the kernel's shape by more than 2, with auto_pad")
    if text != "NOTSET":
        pads = [0] * 2 * axes
    table = np.array([kernel, strides, dilations, pads[:axes], pads[axes:]], np.int64)
    if table.max() >= 2**31:
        raise Left("an attribute exceeds int32")
    return Geometry(table.astype(np.int32), group, auto_pad)


def replace_convolution(
    tail: Tail,
    codes: ir.Value,
    zero_point: ir.Value,
    weights: Weights,
    geometry: Geometry,
    context: Context,
    edit: Edit,
) -> None:
    """Puts QuantizedConv in place of a convolution and of everything up to the end of its tail.

    Args:
        tail: What follows the sums.
        codes: The codes of the activation, uint8 or int8, [N, C, D1, ..., Dr].
        zero_point: Their zero point, one number of the same type.
        weights: The weights, which :meth:`Weights.check` has accepted. Their scales are those of the tail.
        geometry: The geometry.
        context: The context of the convolution.
        edit: The edit of the convolution.
    """

    def initializer(elements: npt.NDArray[Any]) -> ir.Value:
        return context.shared(SharedInitializers).of(elements, edit.node, edit)

    packed, quad_axis = pack_conv(weights.codes)
    scale, channel_scale, bias = tail.operands(weights.channels, context, edit)
    main = call(
        "QuantizedConv",
        [
            codes,
            scale,
            zero_point,
            initializer(packed),
            initializer(weights.zero_point),
            channel_scale,
            initializer(weights.sums),
            bias,
            initializer(geometry.table),
        ],
        group=geometry.group,
        auto_pad=int(geometry.auto_pad),
        quad_axis=int(quad_axis),
        scale_order=int(tail.scale_order),
    )
    edit.replace(tail.last, edit.insert_main(main, before=tail.node))
