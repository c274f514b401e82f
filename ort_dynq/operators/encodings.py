"""The integers that attributes are encoded as, and the constants of the dynamic range operators.

Attributes are integers, not strings: a function body has to compare them, and ONNX compares strings only from opset 19
on. Each class below is one encoding. The enumerations in ops/ have the same values; tests/operators/test_encodings.py
compares the two.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import NamedTuple


class Encoding(enum.IntEnum):
    """An integer attribute with named values."""

    @property
    def text(self) -> str:
        """The value for messages and documentation: ``1 (multiply by the reciprocal)``."""
        return f"{self.value} ({self.name.lower().replace('_', ' ')})"

    @classmethod
    def describe(cls, values: Iterable[Encoding] | None = None) -> str:
        """The values as a list: ``0 (divide), 1 (multiply by the reciprocal) or 2 (multiply)``."""
        *others, last = (value.text for value in values or cls)
        return f"{', '.join(others)} or {last}" if others else last


class Scaling(Encoding):
    """How src becomes a quotient t, before it is rounded."""

    DIVIDE = 0  # t = src / scale
    MULTIPLY_BY_THE_RECIPROCAL = 1  # t = src * (1 / scale)
    MULTIPLY = 2  # t = src * scale: the scale is an inverse one


class RoundingOrder(Encoding):
    """Where the zero point is added."""

    ROUND_THEN_ADD = 0  # clip(round(t) + zero_point)
    ADD_THEN_ROUND = 1  # round(clip(t + zero_point))
    NO_ZERO_POINT = 2  # clip(round(t))


class ScaleOrder(Encoding):
    """In which order a sum of products is multiplied by its two scales."""

    SCALES_FIRST = 0  # real * (scale * column_scale)
    ROW_FIRST = 1  # (real * scale) * column_scale
    COLUMN_FIRST = 2  # (real * column_scale) * scale


class RangeKind(Encoding):
    """What of a row its scale is computed from."""

    ABS_MAX = 0  # max(abs(src))
    MIN_MAX = 1  # max(src) - min(src)
    MIN_MAX_WITH_ZERO = 2  # max(max(src), 0) - min(min(src), 0)
    LARGER_SIDE = 3  # max(max(src) / highest_maximum, min(src) / lowest_minimum)


class ZeroPointRule(Encoding):
    """How the zero point is computed from the minimum of the range, low, and the scale."""

    NONE = 0
    ROUND_CLIPPED = 1  # round(clip(quant_min - low / scale))
    SUBTRACT_ROUNDED = 2  # clip(quant_min - round(low / scale))
    ROUND_NEGATED = 3  # clip(round(-low / scale))
    FLOOR_NEGATED = 4  # floor((0 - low) / scale)


class NanCode(Encoding):
    """The code of a NaN."""

    ZERO = 0  # as ONNX Runtime's Cast
    QUANT_MIN = 1  # as QuantizeLinear
    NAN = 2  # only for codes that stay float32


class CodeType(Encoding):
    """An element type, by ONNX's numbers (TensorProto.DataType)."""

    FLOAT32 = 1
    UINT8 = 2
    INT8 = 3


class RangeConstants(NamedTuple):
    """The input `constants` of the dynamic range operators, element by element; float32.

    The default of each field leaves the value that it applies to unchanged. They are a tensor and not attributes, since
    onnxruntime-extensions passes float attributes as text with six digits. ops/operators/dynamic_range.cc has a struct
    with the same fields.

    Attributes:
        lowest_minimum, highest_maximum: The minimum and the maximum are clipped to these (RangeKind.MIN_MAX_WITH_ZERO)
            or divided by these (RangeKind.LARGER_SIDE).
        lowest_range, highest_range: The range is clipped to these.
        divisor, factor: The range is divided, then multiplied by these to give the scale.
        lowest_scale, highest_scale: The scale is clipped to these.
        scale_of_zero: Replaces a scale of 0.
    """

    lowest_minimum: float = -math.inf
    highest_maximum: float = math.inf
    lowest_range: float = -math.inf
    highest_range: float = math.inf
    divisor: float = 1.0
    factor: float = 1.0
    lowest_scale: float = -math.inf
    highest_scale: float = math.inf
    scale_of_zero: float = 0.0
