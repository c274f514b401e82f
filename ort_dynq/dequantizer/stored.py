"""Weights of a quantized product: their codes, scales and zero points, and what stands in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..opsets import OPSET
from ..rewriter.edit import Edit
from ..rewriter.shared_initializers import SharedInitializers

FORMS = ("float", "qdq")
_OLDEST_WITH_BLOCKS = 21


@dataclass(frozen=True)
class StoredWeights:
    """Codes with a scale and a zero point for each index of an axis, for each block along it, or for all.

    Attributes:
        codes: int8 or uint8, of any shape.
        zero_point: Of the type of the codes: of the shape of the scale.
        scale: float32: [], or [codes.shape[axis]], or with blocks the shape of the codes, divided along the axis.
        axis: The axis.
        block_size: The number of adjacent codes along the axis that share a scale; 0 for a scale for each index.
        bits: 8, 4 or 2.
    """

    codes: npt.NDArray[Any]
    zero_point: npt.NDArray[Any]
    scale: npt.NDArray[np.float32]
    axis: int = 0
    block_size: int = 0
    bits: int = 8

    def floats(self) -> npt.NDArray[np.float32]:
        """Returns what DequantizeLinear computes: (code - zero point) * scale, rounded once."""
        scale, zero_point = self.scale, self.zero_point
        if self.block_size:
            length = self.codes.shape[self.axis]
            indices = np.arange(length) // self.block_size
            scale, zero_point = (np.take(each, indices, self.axis) for each in (scale, zero_point))
        elif scale.ndim:
            shape = [-1 if i == self.axis else 1 for i in range(self.codes.ndim)]
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        return np.asarray((self.codes.astype(np.int32) - zero_point.astype(np.int32)) * scale, np.float32)

    def fits(self, opset: int) -> bool:
        """Returns whether DequantizeLinear of an opset has this form."""
        if self.bits != 8:
            return False
        return opset >= (_OLDEST_WITH_BLOCKS if self.block_size else OPSET if self.scale.ndim else 10)

    def insert(self, form: str, before: ir.Node, edit: Edit) -> ir.Value:
        """Returns the weights as floats, or behind a DequantizeLinear.

        Args:
            form: One of :data:`FORMS`. Weights that DequantizeLinear does not have are floats.
            before: The node that reads them.
            edit: The edit.
        """
        shared = edit.shared(SharedInitializers)
        if form == FORMS[0] or not self.fits(edit.facts.opset):
            return shared.of(self.floats(), edit)
        attributes = {"axis": self.axis} if self.scale.ndim else {}
        attributes |= {"block_size": self.block_size} if self.block_size else {}
        inputs = [shared.of(each, edit) for each in (self.codes, self.scale, self.zero_point)]
        return edit.insert(ir.node("DequantizeLinear", inputs, attributes), before=before)


def by_index(numbers: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """Returns one number as it is, [], and several ones as one for each index."""
    return numbers.reshape(()) if numbers.size == 1 else np.ascontiguousarray(numbers.reshape(length))


def in_one_shape(
    scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], length: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns a scale and a zero point of the same shape: [], or [length]."""
    scale, zero_point = by_index(scale, length), by_index(zero_point, length)
    shape = scale.shape or zero_point.shape
    return np.array(np.broadcast_to(scale, shape)), np.array(np.broadcast_to(zero_point, shape))
