"""The index of each weight's scale, behind DequantizeLinear and nodes that move the weights, without an array of them.

The index is a sum over the digits of the coordinates: the coordinate along a dimension of 64 weights in blocks of 16,
each with a scale, is one digit of 64 values, and its scale is that of digit // 16. A Transpose orders the dimensions,
and a Reshape splits and joins their digits.

Example: [4, 64] in blocks of 16 has 4 * 4 scales; the index of the weight (2, 37) is 2 * 4 + 37 // 16 = 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..reasons import Reason, Unconverted


class Digit(NamedTuple):
    """A digit of a coordinate: what it adds to the index is value // size * stride.

    Attributes:
        length: The number of its values.
        stride: The distance between the scales of two blocks; 0 if all values share a scale.
        size: The number of values that share a scale.
    """

    length: int
    stride: int = 0
    size: int = 1

    def split(self, length: int) -> tuple[Digit, Digit]:
        """Returns two digits; the second has `length` values.

        Raises:
            Unconverted: A block has a part of these values only.
        """
        high = self.length // length
        if self.size % length == 0 or not self.stride:
            return Digit(high, self.stride, max(1, self.size // length)), Digit(length)
        if length % self.size:
            raise Unconverted(Reason.DEQUANTIZED_SCALES)
        return Digit(high, self.stride * (length // self.size)), Digit(length, self.stride, self.size)


class ScaleIndices:
    """The indices of the scales of an array of weights. It has the methods of an array that move its elements."""

    def __init__(self, dimensions: Sequence[Sequence[Digit]]) -> None:
        """Stores the digits of each dimension, the most significant first."""
        self._dimensions = [*dimensions]

    @classmethod
    def of(cls, shape: Sequence[int], of_scale: Sequence[int], axis: int, block_size: int) -> ScaleIndices:
        """Returns the indices of the weights of a valid DequantizeLinear.

        Args:
            shape: The shape of the codes.
            of_scale: The shape of the scales.
            axis: The axis, not negative.
            block_size: The number of weights in a block; 0 if there are none.
        """
        if math.prod(of_scale) == 1:
            return cls([[Digit(length)] for length in shape])
        if not block_size:
            return cls([[Digit(length, int(i == axis))] for i, length in enumerate(shape)])
        strides = [math.prod(of_scale[i + 1 :]) for i in range(len(shape))]
        sizes = [block_size if i == axis else 1 for i in range(len(shape))]
        return cls([[Digit(*each)] for each in zip(shape, strides, sizes, strict=True)])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return tuple(math.prod(digit.length for digit in digits) for digits in self._dimensions)

    def transpose(self, perm: Sequence[int] | None = None) -> ScaleIndices:
        """Returns those of transposed weights."""
        return ScaleIndices([self._dimensions[i] for i in perm or reversed(range(len(self._dimensions)))])

    def reshape(self, shape: Sequence[int]) -> ScaleIndices:
        """Returns those of reshaped weights; there is at least one.

        Raises:
            Unconverted: A block is cut.
        """
        left: list[Digit] = []  # the digits that have no dimension yet
        for digit in (each for digits in self._dimensions for each in digits if each.length > 1):
            if left and not left[-1].stride and not digit.stride:
                digit = Digit(left.pop().length * digit.length)
            left.append(digit)
        dimensions: list[list[Digit]] = []
        for length in reversed(shape):
            digits: list[Digit] = []
            while length > 1:
                digit = left.pop()
                common = math.gcd(length, digit.length)
                if common == 1:
                    raise Unconverted(Reason.DEQUANTIZED_SCALES)
                if common < digit.length:
                    high, digit = digit.split(common)
                    left.append(high)
                digits.insert(0, digit)
                length //= common
            dimensions.insert(0, digits)
        return ScaleIndices(dimensions)

    def along(self, dimension: int) -> npt.NDArray[np.int32]:
        """Returns what the coordinates along a dimension add to the index."""
        found = np.zeros(1, np.int32)
        for digit in self._dimensions[dimension]:
            values = np.arange(digit.length, dtype=np.int32)
            found = (found[:, None] + values // np.int32(digit.size) * np.int32(digit.stride)).reshape(-1)
        return found
