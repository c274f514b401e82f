"""The integers that attributes are encoded as.

Attributes are integers, not strings: a function body has to compare them, and ONNX compares strings only from opset 19
on. Each class below is one encoding. ops/core/encodings.h has the same enumerations, with which the native library
rejects other values; tests/operators/test_encodings.py compares the two.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Encoding(enum.IntEnum):
    """An integer attribute with named values.

    Attributes:
        meaning: What the value selects.
    """

    meaning: str
    _value_: int

    # mypy checks lookups, such as ScaleOrder(1), against this signature: so there is a default.
    def __new__(cls, value: int, meaning: str = "") -> Encoding:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    @property
    def text(self) -> str:
        """The value for messages and documentation: ``1 (row first)``."""
        return f"{int(self)} ({self.name.lower().replace('_', ' ')})"


def one_of(values: Iterable[str | int]) -> str:
    """The values of an attribute as a list for messages, with the names of encodings: ``2 (uint8) or 3 (int8)``."""
    *others, last = (value.text if isinstance(value, Encoding) else str(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last


class CodeType(Encoding):
    """An element type, by ONNX's numbers (TensorProto.DataType)."""

    FLOAT32 = 1, "The value stays float32: there is no Cast"
    UINT8 = 2, "uint8"
    INT8 = 3, "int8"
    UINT4 = 21, "uint4"
    INT4 = 22, "int4"


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


class HeadLayout(Encoding):
    """The order of the axes of a tensor of heads."""

    TOKENS_FIRST = 0, "[B, T, H * D]"
    HEADS_FIRST = 1, "[B, H, T, D]"
    ELEMENTS_FIRST = 2, "[B, H, D, T]"


class LastGate(Encoding):
    """What the last gate of a recurrent layer is."""

    SUM = 0, "As the others: the products of the state and of the input, added"
    SEPARATE_PRODUCTS = 1, "Two gates: the product of the state with its bias, then that of the input"
    RESET_STATE = (
        2,
        "As the others, but of another state: the program's dst_2, which is computed before, when the gate is only the "
        "product of the input. So dst_2 is no second state",
    )


class QuadAxis(Encoding):
    """The axis of a convolution's weights along which four adjacent packed weights run."""

    CHANNELS = 0, "The input channels of a group; the kernel positions are the outer index"
    WIDTH = 1, "The last kernel axis; the input channels are the outer index"
