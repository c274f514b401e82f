"""Recognizes 8-bit codes in int32 or int64 integers, which exporters multiply by a MatMul of integers.

Example: Transpose(Cast(q) - 3) of int32 has the codes q, which are uint8, and the zero point 3.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.nodes import cast_to, producer_of
from ..analysis.shapes import has_one_element, is_shape_of_rows
from ..analysis.types import CODE_TYPES, WIDE_TYPES
from ..reasons import Reason, Unconverted
from .unsigned_codes import CODE_MOVES


class WideCodes(NamedTuple):
    """8-bit codes in int32 or int64 integers, with or without a subtracted zero point.

    Attributes:
        codes: The codes, uint8 or int8.
        zero_point: The subtracted value, of the same type, or a constant; None if nothing is subtracted.
        shape: A value of the shape of the integers.
    """

    codes: ir.Value
    zero_point: ir.Value | None
    shape: ir.Value


def wide_codes_of(value: ir.Value) -> WideCodes | None:
    """Returns the codes that integers of another type are a Cast of; None if they are not.

    A zero point may be subtracted after the Cast; Reshape, Transpose and the like may precede and follow both.

    Raises:
        Unconverted: The zero point is not known to be one number for all codes, or one for each row.
    """
    if value.dtype not in WIDE_TYPES:
        return None
    at, zero_point, is_moved = value, None, False
    while (node := producer_of(at, *CODE_MOVES)) is not None and node.inputs[0] is not None:
        at, is_moved = node.inputs[0], True
    if (sub := producer_of(at, "Sub")) is not None and sub.inputs[0] is not None:
        at, zero_point = sub.inputs[0], sub.inputs[1]
    codes = narrow(at)
    if codes is None:
        return None
    if zero_point is not None:
        number = constant_scalar(zero_point)
        narrowed = zero_point if number is not None else narrow(zero_point)
        if narrowed is None or (number is None and narrowed.dtype != codes.dtype):
            raise Unconverted(Reason.ZERO_POINT_TYPE)
        if not is_shape_of_rows(narrowed, codes):
            raise Unconverted(Reason.ZERO_POINT_OF_ROWS)
        if is_moved and number is None and not has_one_element(narrowed):
            raise Unconverted(Reason.CODES_RESHAPED)
        zero_point = narrowed
    return WideCodes(codes, zero_point, value if is_moved else codes)


def narrow(value: ir.Value) -> ir.Value | None:
    """Returns the 8-bit integers that wider ones are a Cast of, or None; float32 may be between them."""
    while (cast := producer_of(value, "Cast")) is not None and cast.inputs[0] is not None:
        if cast_to(cast) not in (*WIDE_TYPES, ir.DataType.FLOAT):
            return None
        value = cast.inputs[0]
        if value.dtype in CODE_TYPES:
            return value
    return None
