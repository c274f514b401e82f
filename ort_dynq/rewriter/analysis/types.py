"""Checks element types."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...operators.encodings import one_of
from ..reasons import Reason, Unconverted
from .microsoft import hiding_operator

_NAMES = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}  # the others have NumPy's names


def check_type(
    what: str, value: ir.Value, expected: Sequence[ir.DataType], *, dtype: ir.DataType | None = None
) -> None:
    """Checks the element type of a value.

    Args:
        what: What the value is, for the reason.
        value: The value.
        expected: The types that it may have.
        dtype: Its type, if an attribute tells it.

    Raises:
        Unconverted: The type is not known or is another one.
    """
    dtype = value.dtype if dtype is None else dtype
    if dtype in expected:
        return
    names = one_of(map(_name, expected)) if len(expected) > 1 else _name(expected[0])
    if dtype is not None:
        raise Unconverted(Reason.TYPE, what=what, dtype=_name(dtype), expected=names)
    operator = hiding_operator(value)
    raise Unconverted(Reason.TYPE_NOT_KNOWN, what=what, after=operator and f" after {operator}", expected=names)


def _name(dtype: ir.DataType) -> str:
    return _NAMES.get(dtype, dtype.name.lower())
