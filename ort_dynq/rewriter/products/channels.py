"""The output channels of a product, and which values have one number for each of them."""

from __future__ import annotations

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
        size: Their number; the columns of a matrix product.
        spatial_rank: The number of dimensions of the image; 0 for a matrix product.
        rank: The fewest dimensions of a matrix product.
    """

    size: int
    spatial_rank: int = 0
    rank: int = 1

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
        if elements.size != 1 and not self._has_shape(elements.shape):
            return None
        return np.array(np.broadcast_to(elements.reshape(-1), self.size))

    def bias(self, value: ir.Value | None, facts: Facts) -> ir.Value | npt.NDArray[np.float32] | None:
        """Returns the float32 vector [size] that `value` is, or its numbers for each channel; None if it is no bias."""
        if value is None:
            return None
        source = unreshaped(value) if self.spatial_rank and self._has_shape(value.shape) else value
        lines_up = not self.spatial_rank or source is not value
        if lines_up and source.dtype == ir.DataType.FLOAT and self._is_vector(source):
            return source
        numbers = self.vector(value, np.float32, facts)
        return value if numbers is not None and self._is_vector(value) else numbers

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

    def _is_vector(self, value: ir.Value) -> bool:
        return value.shape is not None and list(value.shape) == [self.size]

    def _has_shape(self, shape: Sequence[int | ir.SymbolicDim] | ir.Shape | None) -> bool:
        """Returns whether a shape is known to have one number for each channel."""
        if shape is None:
            return False
        before = len(shape) - self.spatial_rank - 1
        most = 2 if self.spatial_rank else self.rank
        return 0 <= before < most and list(shape) == [1] * before + [self.size] + [1] * self.spatial_rank
