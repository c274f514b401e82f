"""Builds the edits that insert DynamicQuantize, DynamicDequantize or DynamicFakeQuantize."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...runtime import version
from ..analysis.microsoft import hiding_operator
from ..analysis.values import CODE_TYPES
from ..edit import Edit, call, constant
from ..reasons import Reason, Unconverted
from ..rule import Context

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_CASTS_4_BITS = (1, 23)
_CODES = (*CODE_TYPES, ir.DataType.UINT4, ir.DataType.INT4)


def replace_dequantize_linear(node: ir.Node, context: Context) -> Edit:
    """Returns the edit that makes a DynamicDequantize of a DequantizeLinear, with constant parameters or not.

    Raises:
        Unconverted: The types are not supported.
    """
    codes, scale, _ = inputs_of(node)
    if node.attributes.get_int("output_dtype", 0) not in (0, scale.dtype):
        raise Unconverted(Reason.OUTPUT_DTYPE)
    check_parameters(node, codes.dtype)
    return replace_by_operator(node, context, "DynamicDequantize", codes.dtype, node.outputs[0])


def replace_by_operator(
    node: ir.Node, context: Context, operator: str, codes: ir.DataType | None, last: ir.Value, **attributes: str
) -> Edit:
    """Returns the edit that puts one operator in place of everything between the first input of a node and `last`.

    Args:
        node: A QuantizeLinear or DequantizeLinear; its inputs and granularity become those of the operator.
        context: The context of the node.
        operator: The operator of ort_dynq.
        codes: The type of the codes.
        last: The result of the chain.
        attributes: Further attributes of the operator.
    """
    assert codes is not None
    x, scale, zero_point = inputs_of(node)
    edit = context.edit(operator, node)
    if zero_point is None:
        zero_point = edit.insert(constant(np.zeros((), codes.numpy())), before=node)
    main = call(
        operator,
        [x, scale, zero_point],
        qtype=qtype_of(node, scale),
        axis=node.attributes.get_int("axis", 1),
        block_size=node.attributes.get_int("block_size", 0),
        **attributes,
    )
    edit.replace(last, edit.insert_main(main, before=node))
    return edit


def inputs_of(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Returns x, scale and zero point of a QuantizeLinear or DequantizeLinear."""
    x, scale = node.inputs[:2]
    assert x is not None
    assert scale is not None
    return x, scale, node.inputs[2] if len(node.inputs) > 2 else None


def check_parameters(node: ir.Node, codes: ir.DataType | None) -> None:
    """Checks the types of the codes, the scale and the zero point.

    Raises:
        Unconverted: A type is not known or not supported.
    """
    x, scale, zero_point = inputs_of(node)
    if codes not in _CODES:
        typed = x if node.op_type == "DequantizeLinear" or zero_point is None else zero_point
        raise unsupported("the codes", codes, "expected uint8, int8, uint4 or int4", typed)
    if codes not in CODE_TYPES and version() < _CASTS_4_BITS:
        raise Unconverted(Reason.FOUR_BITS_BEFORE_1_23)
    if scale.dtype not in FLOATS:
        raise unsupported("the scale", scale.dtype, "expected float32, float16 or bfloat16", scale)
    if node.op_type == "QuantizeLinear" and scale.dtype != x.dtype:
        raise Unconverted(Reason.SCALE_NOT_OF_TYPE_OF_X)
    if zero_point is not None and zero_point.dtype != codes:
        raise unsupported(
            "the zero point", zero_point.dtype, f"expected that of the codes, {codes.name.lower()}", zero_point
        )


def unsupported(what: str, dtype: ir.DataType | None, expected: str, value: ir.Value) -> Unconverted:
    """Returns the exception for a value, or something of its type, that has another type than the expected one."""
    if dtype is not None:
        return Unconverted(Reason.TYPE, what=what, dtype=dtype.name.lower(), expected=expected)
    operator = hiding_operator(value)
    return Unconverted(Reason.TYPE_NOT_KNOWN, what=what, after=operator and f" after {operator}", expected=expected)


def qtype_of(node: ir.Node, scale: ir.Value) -> str:
    """Returns the granularity if shapes tell it; otherwise ``auto``, which decides at run time as ONNX does."""
    if node.attributes.get_int("block_size", 0) > 0:
        return "per_group"
    shape = scale.shape
    if shape is None or len(shape) > 1:
        return "auto"
    if len(shape) == 0 or shape[0] == 1:
        return "per_tensor"
    return "per_channel" if isinstance(shape[0], int) else "auto"
