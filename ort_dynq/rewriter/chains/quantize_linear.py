"""QuantizeLinear and DequantizeLinear with scales or zero points at run time, and the operator that takes their place.

QuantizeLinear(x, s[, z])                   -> DynamicQuantize(x, s, z)
DequantizeLinear(x, s[, z])                 -> DynamicDequantize(x, s, z)
QuantizeLinear, DequantizeLinear            -> DynamicFakeQuantize(x, s, z)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ...runtime import version
from ..analysis.nodes import cast_to, input_of, producer_of
from ..analysis.standard import FLOAT16_MOVES
from ..analysis.types import CODE_TYPES, check_type
from ..edit import Edit, call
from ..reasons import Reason, Unconverted

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_CASTS_4_BITS, _SATURATES_FLOAT16 = (1, 23), (1, 32)
_CODES = (*CODE_TYPES, ir.DataType.UINT4, ir.DataType.INT4)


class LinearNode(NamedTuple):
    """What takes the place of a QuantizeLinear or DequantizeLinear, with the DequantizeLinear after it or without.

    Attributes:
        operator: DynamicQuantize, DynamicDequantize or DynamicFakeQuantize; it gets the inputs of the node.
        codes: The type of the codes.
        last: The result.
        arithmetic: The attribute of DynamicQuantize.
    """

    operator: str
    codes: ir.DataType
    last: ir.Value
    arithmetic: str = "onnx"


def dequantize_linear(node: ir.Node) -> LinearNode:
    """Recognizes a DequantizeLinear, with constant parameters or not.

    Raises:
        Unconverted: The types are not supported.
    """
    codes, scale, _ = inputs_of(node)
    if node.attributes.get_int("output_dtype", 0) not in (0, scale.dtype):
        raise Unconverted(Reason.OUTPUT_DTYPE)
    return LinearNode("DynamicDequantize", check_parameters(node, codes.dtype), node.outputs[0])


def is_rounded(value: ir.Value) -> bool:
    """Returns whether a float16 value is certainly rounded where it is read, whatever ONNX Runtime runs in float32."""
    producer, rounding = value.producer(), producer_of(value, "Cast")
    if rounding is not None:
        read = rounding.inputs[0]
        is_float = read is not None and read.dtype == ir.DataType.FLOAT
        return is_float and producer_of(read, "Cast") is None  # ONNX Runtime may remove two adjacent Casts
    return producer is None or producer.domain == DOMAIN or producer_of(value, *FLOAT16_MOVES) is producer


def reads_rounded(node: ir.Node) -> bool:
    """Returns whether a node certainly reads rounded float16 values."""
    if node.domain == DOMAIN:
        return True
    to_float = node.op_type == "Cast" and cast_to(node) == ir.DataType.FLOAT
    return node.domain in STANDARD_DOMAINS and (to_float or node.op_type in FLOAT16_MOVES)


def inputs_of(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Returns x, scale and zero point of a QuantizeLinear or DequantizeLinear."""
    x, scale = node.inputs[:2]
    assert x is not None
    assert scale is not None
    return x, scale, input_of(node, 2)


def check_parameters(node: ir.Node, codes: ir.DataType | None) -> ir.DataType:
    """Checks the types of the codes, the scale and the zero point.

    Returns:
        The type of the codes, which is `codes`.

    Raises:
        Unconverted: A type is not known or not supported.
    """
    x, scale, zero_point = inputs_of(node)
    typed = x if node.op_type == "DequantizeLinear" or zero_point is None else zero_point
    check_type("the codes", typed, _CODES, dtype=codes)
    assert codes is not None
    if codes not in CODE_TYPES and version() < _CASTS_4_BITS:
        raise Unconverted(Reason.FOUR_BITS_BEFORE_1_23)
    check_type("the scale", scale, FLOATS)
    if node.op_type == "QuantizeLinear" and scale.dtype != x.dtype:
        raise Unconverted(Reason.SCALE_NOT_OF_TYPE_OF_X)
    if zero_point is not None:
        check_type("the zero point", zero_point, (codes,))
    return codes


def arithmetic_of(node: ir.Node) -> str:
    """Returns how ONNX Runtime computes a QuantizeLinear: the attribute of DynamicQuantize."""
    is_float16 = inputs_of(node)[0].dtype == ir.DataType.FLOAT16
    return "wrapping" if is_float16 and version() < _SATURATES_FLOAT16 else "onnx"


def granularity_of(node: ir.Node) -> str:
    """Returns the granularity if shapes tell it; otherwise ``auto``, which decides at run time as ONNX does."""
    if node.attributes.get_int("block_size", 0) > 0:
        return "per_group"
    _, scale, _ = inputs_of(node)
    shape = scale.shape
    if shape is None or len(shape) > 1:
        return "auto"
    if len(shape) == 0 or shape[0] == 1:
        return "per_tensor"
    return "per_channel" if isinstance(shape[0], int) else "auto"


def granularity_attributes(node: ir.Node) -> dict[str, str | int]:
    """Returns the attributes of the operator of a QuantizeLinear or DequantizeLinear that select its scales."""
    axis, block_size = (node.attributes.get_int(*each) for each in (("axis", 1), ("block_size", 0)))
    return {"qtype": granularity_of(node), "axis": axis, "block_size": block_size}


def build_linear(match: LinearNode, edit: Edit) -> None:
    """Puts the operator in place of the nodes."""
    node = edit.node
    x, scale, zero_point = inputs_of(node)
    if zero_point is None:
        zero_point = edit.add_constant(np.zeros((), match.codes.numpy()), before=node)
    inputs = [x, scale, zero_point]
    main = call(match.operator, inputs, **granularity_attributes(node), arithmetic=match.arithmetic)
    edit.replace(match.last, edit.insert_main(main, before=node))
