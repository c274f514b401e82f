"""The output channels of a product, and which values have one number for each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.shapes import broadcasts, has_one_element, is_shape_of_rows, unreshaped


class Channels(NamedTuple):
    """The output channels of a product.

    Attributes:
        size: Their number; the columns of a matrix product, of all matrices if the weights are stacked.
        spatial_rank: The number of dimensions of the image; 0 for a matrix product.
        rank: The fewest dimensions of a matrix product.
        stack: The leading dimensions of stacked weights; each channel is a column of one of their matrices.
    """

    size: int
    spatial_rank: int = 0
    rank: int = 1
    stack: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """The number of columns of one matrix."""
        return self.size // math.prod(self.stack)

    @property
    def most_dimensions(self) -> int:
        """The most dimensions of a value that broadcasts to the product."""
        return self.spatial_rank + 2 if self.spatial_rank else self.rank

    def vector(self, value: ir.Value | None, dtype: type[np.generic] | None, facts: Facts) -> npt.NDArray[Any] | None:
        """Returns a constant as one number for each channel, [size]; one number for all is broadcast.

        Returns:
            None for other values, and if the value may have more dimensions than the product.
        """
        most = self.most_dimensions
        if value is None or not facts.is_constant(value) or value.shape is None or len(value.shape) > most:
            return None
        elements = evaluate(value, facts)
        if elements is None or (dtype and elements.dtype != dtype) or len(elements.shape) > most:
            return None
        if self.stack:
            return self._of_stack(elements)
        if elements.size != 1 and not self._has_shape(elements.shape):
            return None
        return np.array(np.broadcast_to(elements.reshape(-1), self.size))

    def bias(self, value: ir.Value | None, facts: Facts) -> ir.Value | npt.NDArray[np.float32] | None:
        """Returns the float32 vector [size] that `value` is, or its numbers for each channel; None if it is no bias."""
        if value is None:
            return None
        source = unreshaped(value) if self.spatial_rank and self._has_shape(value.shape) else value
        lines_up = not self.stack and (not self.spatial_rank or source is not value)
        is_vector = lines_up and source.shape is not None and list(source.shape) == [self.size]
        if is_vector and source.dtype == ir.DataType.FLOAT:
            return source
        numbers = self.vector(value, np.float32, facts)
        return value if numbers is not None and is_vector and source is value else numbers

    def fits(self, value: ir.Value) -> bool:
        """Returns whether a value is known to have one number for each channel, or one for all."""
        return has_one_element(value, self.most_dimensions) or self._has_shape(value.shape)

    def is_scale(self, value: ir.Value | None, codes: ir.Value) -> bool:
        """Returns whether `value` is known to be the scale of `codes`: one, or one for each row or sample."""
        if value is None or value.dtype != ir.DataType.FLOAT:
            return False
        if not self.spatial_rank:
            return is_shape_of_rows(value, codes)
        if has_one_element(value, self.most_dimensions):
            return True
        if value.shape is None or len(value.shape) != self.most_dimensions:
            return False
        return all(dim == 1 for dim in value.shape[1:]) and broadcasts(value, codes)

    def _of_stack(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Returns numbers that broadcast to [stack..., 1, columns] as one number for each channel; None for others."""
        most = (*self.stack, 1, self.columns)
        missing = max(elements.ndim - len(most), 0)
        try:
            return np.broadcast_to(elements, (*([1] * missing), *most)).reshape(self.size)
        except ValueError:
            return None

    def _has_shape(self, shape: Sequence[int | ir.SymbolicDim] | ir.Shape | None) -> bool:
        """Returns whether a shape is known to have one number for each channel."""
        if shape is None or self.stack:
            return False
        before = len(shape) - self.spatial_rank - 1
        most = 2 if self.spatial_rank else self.rank
        return 0 <= before < most and list(shape) == [1] * before + [self.size] + [1] * self.spatial_rank


def columns_of(size: int, stack: tuple[int, ...], activation: ir.Value) -> Channels:
    """Returns the output channels of a matrix product of an activation and weights.

    Args:
        size: The number of columns, of all matrices.
        stack: The leading dimensions of stacked weights.
        activation: The activation, [..., M, K].
    """
    rank = 1 if activation.shape is None else len(activation.shape)
    return Channels(size, rank=max(rank, len(stack) + 2 if stack else 1), stack=stack)
