"""The integers that attributes are encoded as, and the constants of the dynamic range operators.

Attributes are integers, not strings: a function body has to compare them, and ONNX compares strings only from opset 19
on. Each class below is one encoding. ops/core/encodings.h has the same enumerations, with which the native library
rejects other values; tests/operators/test_encodings.py compares the two.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import NamedTuple


class Encoding(enum.IntEnum):
    """An integer attribute with named values.

    Attributes:
        meaning: What the value selects.
    """

    meaning: str
    _value_: int

    # mypy checks lookups, such as Scaling(1), against this signature: hence the default.
    def __new__(cls, value: int, meaning: str = "") -> Encoding:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    @property
    def text(self) -> str:
        """The value for messages and documentation: ``1 (multiply by the reciprocal)``."""
        return f"{int(self)} ({self.name.lower().replace('_', ' ')})"


def one_of(values: Iterable[str | int]) -> str:
    """The values of an attribute as a list for messages, with the names of encodings: ``2 (uint8) or 3 (int8)``."""
    *others, last = (value.text if isinstance(value, Encoding) else str(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last


class Scaling(Encoding):
    """How `src` is scaled to `t`, which is then rounded."""

    DIVIDE = 0, "t = src / scale"
    MULTIPLY_BY_THE_RECIPROCAL = 1, "t = src * (1 / scale)"
    MULTIPLY = 2, "t = src * scale; the scale is an inverse scale"


class RoundingOrder(Encoding):
    """Whether `t` is rounded before or after the zero point is added."""

    ROUND_THEN_ADD = 0, "code = clip(round(t) + zero_point)"
    ADD_THEN_ROUND = 1, "code = round(clip(t + zero_point))"
    NO_ZERO_POINT = 2, "code = clip(round(t)); zero_point is not used"
    FLOAT16_QUOTIENT = 3, "code = clip(round(float16(t))); zero_point is not used"
    FLOAT16_SUM = 4, "code = round(clip(float16(t + zero_point)))"

    @property
    def adds_first(self) -> bool:
        """Whether the zero point is added before rounding to an integer."""
        return self in (RoundingOrder.ADD_THEN_ROUND, RoundingOrder.FLOAT16_SUM)


class CodeType(Encoding):
    """An element type, by ONNX's numbers (TensorProto.DataType)."""

    FLOAT32 = 1, "The value stays float32: there is no Cast"
    UINT8 = 2, "uint8"
    INT8 = 3, "int8"
    UINT4 = 21, "uint4"
    INT4 = 22, "int4"


class NanCode(Encoding):
    """The code that a NaN becomes."""

    ZERO = 0, "The code 0, as from ONNX Runtime's Cast"
    QUANT_MIN = 1, "quant_min, as from QuantizeLinear"
    NAN = 2, "NaN; only for codes of float32"


class RangeKind(Encoding):
    """The range of a row, from which its scale is computed."""

    ABS_MAX = 0, "range = max(abs(src))"
    MIN_MAX = 1, "low = min(src); high = max(src); range = high - low"
    MIN_MAX_WITH_ZERO = (
        2,
        "low = clip(min(src), lowest_minimum, 0); high = clip(max(src), 0, highest_maximum); range = high - low",
    )
    LARGER_SIDE = 3, "range = max(max(src) / highest_maximum, min(src) / lowest_minimum)"


class InverseScale(Encoding):
    """Whether the output `scale` is an inverse scale, and how it is computed."""

    NONE = 0, "scale = range / divisor * factor"
    RECIPROCAL = 1, "scale = (1 / range) / divisor * factor"
    QUOTIENT = 2, "scale = factor / (range / divisor)"


class AddedEpsilon(Encoding):
    """Whether a bound of `constants` is added instead."""

    NONE = 0, "`lowest_range` and `lowest_scale` are lower bounds"
    RANGE = 1, "`lowest_range` is added to the range, which then has no lower bound"
    SCALE = 2, "`lowest_scale` is added to the scale, which then has no lower bound"


class ZeroPointRule(Encoding):
    """How the zero point is computed from `low`, the minimum of the range, and the scale."""

    NONE = 0, "zero_point = 0"
    ROUND_CLIPPED = 1, "zero_point = round(clip(quant_min - low / scale))"
    SUBTRACT_ROUNDED = 2, "zero_point = clip(quant_min - round(low / scale))"
    ROUND_NEGATED = 3, "zero_point = clip(round(-low / scale))"
    FLOOR_NEGATED = 4, "zero_point = floor((0 - low) / scale)"


class ScaleOrder(Encoding):
    """The order in which a sum of products is multiplied by its two scales."""

    SCALES_FIRST = 0, "exact * (scale * column_scale)"
    ROW_FIRST = 1, "(exact * scale) * column_scale"
    COLUMN_FIRST = 2, "(exact * column_scale) * scale"


class AutoPad(Encoding):
    """How the pads of a convolution are determined."""

    EXPLICIT = 0, "The pads of `geometry`"
    SAME_UPPER = (
        1,
        "The output has ceil(length / stride) elements; an odd number of pads has one more trailing pad",
    )
    SAME_LOWER = 2, "The output has ceil(length / stride) elements; an odd number of pads has one more leading pad"


class Direction(Encoding):
    """The order of the steps of a recurrent layer."""

    FORWARD = 0, "From the first step of a sequence to its last one"
    REVERSE = 1, "From the last step of a sequence to its first one"
    BIDIRECTIONAL = 2, "Both: the first direction is forward, the second one is reverse"


class LastGate(Encoding):
    """What the last gate of a recurrent layer is."""

    SUM = 0, "As the others: the products of the state and of the input, added"
    APART = 1, "Two gates: the product of the state with its bias, then that of the input"
    OF_RESET = (
        2,
        "As the others, but of another state: the program's dst_2, which is computed before, when the gate is only the "
        "product of the input. So dst_2 is no second state",
    )


class QuadAxis(Encoding):
    """The axis of a convolution's weights along which four adjacent packed weights run."""

    CHANNELS = 0, "The input channels of a group; the kernel positions are the outer index"
    WIDTH = 1, "The last kernel axis; the input channels are the outer index"


class RangeConstants(NamedTuple):
    """The input `constants` of the dynamic range operators, element by element; float32.

    The default of each field leaves the value that it applies to unchanged. They are a tensor and not attributes, since
    onnxruntime-extensions passes float attributes as text with six digits. ops/operators/dynamic_range.cc has a struct
    with the same fields. RANGE_CONSTANT_MEANINGS has the meaning of each field.
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


RANGE_CONSTANT_MEANINGS = {
    "lowest_minimum": "The minimum is clipped to this (`range_kind` 2) or divided by this (`range_kind` 3)",
    "highest_maximum": "The maximum is clipped to this (`range_kind` 2) or divided by this (`range_kind` 3)",
    "lowest_range": "The lower bound of the range: an epsilon; see `added_epsilon`",
    "highest_range": "The upper bound of the range",
    "divisor": "The range is divided by this",
    "factor": "The quotient is multiplied by this, which gives the scale; see `inverse_scale`",
    "lowest_scale": "The lower bound of the scale: an epsilon; see `added_epsilon`",
    "highest_scale": "The upper bound of the scale",
    "scale_of_zero": "Replaces a scale of 0",
}
