"""Recognizes the constant weights and the geometry of a convolution that becomes QuantizedConv or WordConv."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import AutoPad
from ..analysis.constants import constant_array, constant_scalar
from ..analysis.nodes import input_of, producer_of
from ..policy.cost import has_short_sums, is_tiny_convolution
from ..reasons import Reason, Unconverted
from ..weights.channels import Channels
from ..weights.grid import QuantizedWeights, check_sums, grid_of

_MAX_SPATIAL_RANK = 3
_AUTO_PADS = {
    "NOTSET": AutoPad.EXPLICIT,
    "VALID": AutoPad.EXPLICIT,
    "SAME_UPPER": AutoPad.SAME_UPPER,
    "SAME_LOWER": AutoPad.SAME_LOWER,
}


@dataclass(frozen=True)
class Weights:
    """The weights of a convolution.

    Attributes:
        codes: int8, [M, C / group, k1, ..., kr]; int16 of words.
        zero_point: int8, [1] or [M]. Words have none: it is 0.
    """

    codes: npt.NDArray[Any]
    zero_point: npt.NDArray[np.int8]

    @property
    def are_words(self) -> bool:
        """Whether they are words of 12 bits."""
        return self.codes.dtype == np.int16

    @property
    def spatial_rank(self) -> int:
        """The number of dimensions of the image, r."""
        return self.codes.ndim - 2

    @property
    def channels(self) -> Channels:
        """The output channels."""
        return Channels(len(self.codes), self.spatial_rank)

    @property
    def sums(self) -> npt.NDArray[np.int32]:
        """The sums of the codes minus their zero points, [M]."""
        matrix = self.codes.reshape(len(self.codes), -1)
        return np.asarray(matrix.sum(1, dtype=np.int32) - np.int32(matrix.shape[1]) * self.zero_point.astype(np.int32))

    def check(self) -> None:
        """Checks that QuantizedConv, or WordConv, has a form for these weights.

        Raises:
            Unconverted: It has none.
        """
        check_rank(self.codes.ndim)
        if not self.codes.size:
            raise Unconverted(Reason.WEIGHTS_EMPTY)
        if self.zero_point.shape not in ((1,), (len(self.codes),)):
            raise Unconverted(Reason.WEIGHTS_ZERO_POINTS)
        if not self.are_words:
            check_sums(math.prod(self.codes.shape[1:]), self.zero_point)


def grid_of_channels(elements: npt.NDArray[Any], *, may_be_rounded: bool = False) -> QuantizedWeights | None:
    """Returns float32 weights, [M, C / group, k1, ..., kr], as a grid of M columns; None if they are not one.

    Args:
        elements: The weights.
        may_be_rounded: See :func:`ort_dynq.rewriter.weights.grid.grid_of`.

    Raises:
        Unconverted: QuantizedConv does not take weights of this rank.
    """
    check_rank(elements.ndim)
    columns = elements.reshape(len(elements), -1).T
    grid = grid_of(columns, may_be_rounded=may_be_rounded) if elements.size else None
    return None if grid is None or grid.group_size else grid


def weights_of(grid: QuantizedWeights, shape: tuple[int, ...]) -> Weights:
    """Returns the codes of a grid of M columns as weights of a shape, [M, C / group, k1, ..., kr].

    Raises:
        Unconverted: QuantizedConv has no form for them.
    """
    weights = Weights(np.ascontiguousarray(grid.codes.T).reshape(shape), grid.zero_point.reshape(-1))
    weights.check()
    return weights


@dataclass(frozen=True)
class Geometry:
    """Where a convolution reads its input.

    Attributes:
        table: int32, [5, r]: the kernel's shape, strides, dilations, leading pads and trailing pads.
        group: The number of groups of channels.
        auto_pad: Where the pads come from.
    """

    table: npt.NDArray[np.int32]
    group: int
    auto_pad: AutoPad


def check_rank(rank: int) -> None:
    """Checks that QuantizedConv takes weights of this rank.

    Raises:
        Unconverted: It does not.
    """
    if not 3 <= rank <= 2 + _MAX_SPATIAL_RANK:
        raise Unconverted(Reason.WEIGHTS_RANK, rank=rank, expected=f"3 to {2 + _MAX_SPATIAL_RANK}")


def unpadded(x: ir.Value, spatial_rank: int) -> tuple[ir.Value, list[int]]:
    """Returns the value that a Pad pads with zeros along spatial dimensions, and the pads; or the value itself.

    A convolution pads with zeros, too.
    """
    node = producer_of(x, "Pad")
    if node is None or node.inputs[0] is None or len(node.inputs) > 3:
        return x, [0] * 2 * spatial_rank
    given = constant_array(input_of(node, 1))
    fill = input_of(node, 2)
    is_zero = fill is None or constant_scalar(fill) == 0
    is_constant = "mode" not in node.attributes or node.attributes["mode"].value == "constant"
    if given is None or given.shape != (2 * (spatial_rank + 2),) or not (is_zero and is_constant):
        return x, [0] * 2 * spatial_rank
    begins, ends = given.reshape(2, -1).tolist()
    if any(begins[:2] + ends[:2]):
        return x, [0] * 2 * spatial_rank
    return node.inputs[0], begins[2:] + ends[2:]


def geometry_of(node: ir.Node, weights: Weights, more_pads: Sequence[int] = ()) -> Geometry:
    """Returns the geometry of a Conv or ConvInteger; `more_pads` are added to its pads.

    Raises:
        Unconverted: An attribute is given by a function's caller, or has a value that QuantizedConv does not have.
    """
    rank, kernel = weights.spatial_rank, list(weights.codes.shape[2:])
    strides, dilations = (integers_of(node, name, [1] * rank) for name in ("strides", "dilations"))
    pads = integers_of(node, "pads", [0] * 2 * rank)
    if integers_of(node, "kernel_shape", kernel) != kernel:
        raise Unconverted(Reason.CONV_KERNEL_SHAPE)
    group = node.attributes["group"].value if "group" in node.attributes else 1
    auto_pad = node.attributes["auto_pad"].value if "auto_pad" in node.attributes else "NOTSET"
    if not isinstance(group, int) or not isinstance(auto_pad, str) or auto_pad not in _AUTO_PADS:
        raise Unconverted(Reason.CONV_GROUP_OR_AUTO_PAD)
    if any(more_pads) and auto_pad != "NOTSET":
        raise Unconverted(Reason.CONV_PAD_AND_AUTO_PAD)
    pads = [mine + its for mine, its in zip(pads, more_pads or [0] * len(pads), strict=True)]
    if min(pads) < 0 or min(more_pads, default=0) < 0:
        raise Unconverted(Reason.CONV_PADS_NEGATIVE)
    if min(*strides, *dilations, group) < 1 or len(weights.codes) % group:
        raise Unconverted(Reason.CONV_STRIDES_DILATIONS_GROUP)
    is_same = _AUTO_PADS[auto_pad] != AutoPad.EXPLICIT
    if is_same and any(step > length + 2 for step, length in zip(strides, kernel, strict=True)):
        raise Unconverted(Reason.CONV_STRIDES_WITH_AUTO_PAD)
    if auto_pad != "NOTSET":
        pads = [0] * 2 * rank
    table = np.array([kernel, strides, dilations, pads[:rank], pads[rank:]], np.int64)
    if table.max() >= 2**31:
        raise Unconverted(Reason.CONV_INT32)
    return Geometry(table.astype(np.int32), group, _AUTO_PADS[auto_pad])


def geometry_of_floats(
    node: ir.Node,
    bias: ir.Value | None,
    weights: Weights,
    more_pads: Sequence[int] = (),
    *,
    has_scales_of_samples: bool,
) -> Geometry:
    """Returns the geometry of a Conv of floats with this bias, if QuantizedConv can replace it and saves time.

    Raises:
        Unconverted: It cannot, or does not save time.
    """
    if bias is not None and (bias.dtype != ir.DataType.FLOAT or bias.shape != ir.Shape([weights.channels.size])):
        raise Unconverted(Reason.BIAS_OF_CHANNELS)
    geometry = geometry_of(node, weights, more_pads)
    if has_short_sums(weights.codes.shape, geometry.group):
        raise Unconverted(Reason.CONV_SINGLE_CHANNELS)
    if is_tiny_convolution(node, weights.codes, has_scales_of_samples=has_scales_of_samples):
        raise Unconverted(Reason.CONV_TOO_SMALL)
    return geometry


def integers_of(node: ir.Node, name: str, default: list[int]) -> list[int]:
    """Returns an attribute of as many integers as its default has.

    Raises:
        Unconverted: It is not.
    """
    if name not in node.attributes:
        return default
    value = node.attributes[name].value
    numbers = list(value) if isinstance(value, (list, tuple)) else []
    if len(numbers) != len(default) or not all(isinstance(number, int) for number in numbers):
        raise Unconverted(Reason.CONV_INTEGERS, name=name, length=len(default))
    return numbers
