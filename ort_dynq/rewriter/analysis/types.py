"""Element types, and the operator that hides an unknown type."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators.encodings import one_of
from ..reasons import Reason, Unconverted

CODE_TYPES = (ir.DataType.UINT8, ir.DataType.INT8)
FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
WIDE_TYPES = (ir.DataType.INT32, ir.DataType.INT64)
_NAMES = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}  # the others have NumPy's names


def check_type(
    what: str, value: ir.Value, expected: Sequence[ir.DataType], *, dtype: ir.DataType | None = None
) -> None:
    """Checks the element type of a value.

    Args:
        what: The name of the value in the reason.
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
    operator = _hiding_operator(value)
    raise Unconverted(Reason.TYPE_NOT_KNOWN, what=what, after=operator and f" after {operator}", expected=names)


def _hiding_operator(value: ir.Value) -> str:
    """Returns the operator that hides the type of `value` from inference, for a reason; empty if there is none."""
    seen: set[ir.Value] = set()
    todo = [value]
    while todo:
        at = todo.pop()
        node = at.producer()
        if at in seen or at.dtype is not None or node is None:
            continue
        seen.add(at)
        if node.domain not in STANDARD_DOMAINS or all(each is None or each.dtype is not None for each in node.inputs):
            return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        todo += [each for each in node.inputs if each is not None]
    return ""


def _name(dtype: ir.DataType) -> str:
    return _NAMES.get(dtype, dtype.name.lower())
