"""What the rules for MatMulInteger and ConvInteger share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.folding import evaluate
from ..analysis.inference import Facts
from ..analysis.shapes import is_shape_of_rows
from ..analysis.values import (
    CODE_TYPES,
    WIDE_TYPES,
    cast_to,
    constant_scalar,
    has_one_element,
    producer_of,
    skip_identity,
)
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..rule import Context
from ..shared_initializers import SharedInitializers
from .grid import Grid
from .unsigned_codes import MOVES, UnsignedCodes, unsigned_array

# On x86 without VNNI, ONNX Runtime adds pairs of u8 x s8 products in int16, which saturates with larger weights.
_LARGEST_UNSATURATED_WEIGHT = 64


class WideCodes(NamedTuple):
    """8-bit codes in int32 or int64 integers, minus a zero point or not.

    Attributes:
        codes: The codes, uint8 or int8.
        zero_point: What is subtracted from them, of the same type, or a constant; None if nothing is.
        shape: A value of the shape of the integers.
    """

    codes: ir.Value
    zero_point: ir.Value | None
    shape: ir.Value


def wide_codes_of(value: ir.Value | None) -> WideCodes | None:
    """Returns the codes that integers of another type are a Cast of; None if they are not.

    A zero point may be subtracted after the Cast; Reshape, Transpose and the like may precede and follow both.

    Raises:
        Unconverted: The zero point is not known to be one number for all codes, or one for each row.
    """
    if value is None or value.dtype not in WIDE_TYPES:
        return None
    at, zero_point, is_moved = skip_identity(value), None, False
    while (node := producer_of(at, *MOVES)) is not None and node.inputs[0] is not None:
        at, is_moved = skip_identity(node.inputs[0]), True
    if (sub := producer_of(at, "Sub")) is not None and sub.inputs[0] is not None:
        at, zero_point = sub.inputs[0], sub.inputs[1]
    codes = _narrow(at)
    if codes is None:
        return None
    if zero_point is not None:
        number = constant_scalar(zero_point)
        narrow = zero_point if number is not None else _narrow(zero_point)
        if narrow is None or (number is None and narrow.dtype != codes.dtype):
            raise Unconverted(Reason.ZERO_POINT_TYPE)
        if not is_shape_of_rows(narrow, codes):
            raise Unconverted(Reason.ZERO_POINT_OF_ROWS)
        if is_moved and number is None and not has_one_element(narrow):
            raise Unconverted(Reason.CODES_RESHAPED)
        zero_point = narrow
    return WideCodes(codes, zero_point, value if is_moved else codes)


def _narrow(value: ir.Value) -> ir.Value | None:
    """Returns the 8-bit integers that wider ones are a Cast of, or None; float32 may be between them."""
    value = skip_identity(value)
    while (cast := producer_of(value, "Cast")) is not None and cast.inputs[0] is not None:
        if cast_to(cast) not in (*WIDE_TYPES, ir.DataType.FLOAT):
            return None
        value = skip_identity(cast.inputs[0])
        if value.dtype in CODE_TYPES:
            return value
    return None


def is_static(codes: ir.Value, facts: Facts) -> bool:
    """Returns whether codes are constant or have constant parameters: static quantization is left to ONNX Runtime."""
    quantizer = producer_of(skip_identity(codes), "QuantizeLinear")
    return facts.is_constant(codes) or (quantizer is not None and all(map(facts.is_constant, quantizer.inputs[1:])))


def converted(node: ir.Node, context: Context, as_one_operator: Callable[[ir.Node, Context], Edit]) -> Edit:
    """Returns the edit that makes one operator of a product, or else a product of uint8 codes of one of int8 codes.

    Args:
        node: A MatMulInteger or ConvInteger.
        context: Its context.
        as_one_operator: Returns the edit that makes one operator, or raises Unconverted.

    Raises:
        Unconverted: It cannot become one operator, and its codes are not int8.
    """
    codes, weights = node.inputs[:2]
    assert codes is not None
    assert weights is not None
    try:
        return as_one_operator(node, context)
    except Unconverted:
        if codes.dtype != ir.DataType.INT8:
            raise
        return _as_unsigned(node, codes, weights, context)


def weights_of(node: ir.Node, facts: Facts) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Returns the weights of a product and their zero points, as int8: unsigned ones are 128 smaller.

    Raises:
        Unconverted: They are not known.
    """
    values = [*node.inputs, None, None][1:4:2]
    elements, zeros = (
        evaluate(each, facts) if each is not None and facts.is_constant(each) else None for each in values
    )
    if elements is None or (values[1] is not None and zeros is None):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    if zeros is None:
        zeros = np.zeros(1, elements.dtype)
    if zeros.dtype != elements.dtype:
        raise Unconverted(Reason.WEIGHTS_ZERO_POINT_TYPE)
    return _as_signed(elements), _as_signed(zeros)


def grid_of_weights(node: ir.Node, facts: Facts) -> Grid:
    """Returns the weights of a MatMulInteger, [K, N], and their zero points as int8; the scales are 1.

    Raises:
        Unconverted: They are not known.
    """
    elements, zeros = weights_of(node, facts)
    if elements.ndim != 2 or not elements.size:
        raise Unconverted(Reason.WEIGHTS_NO_MATRIX)
    columns = elements.shape[1]
    if zeros.shape not in ((), (1,), (columns,)):
        raise Unconverted(Reason.WEIGHTS_ZERO_POINTS)
    zeros = zeros.reshape(1, -1) if (zeros != zeros.reshape(-1)[0]).any() else zeros.reshape(-1)[:1]
    return Grid(elements, zeros, np.ones((1, columns), np.float32))


def _as_signed(codes: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    return np.asarray((codes ^ np.uint8(0x80)).view(np.int8) if codes.dtype == np.uint8 else codes)


def _as_unsigned(node: ir.Node, codes: ir.Value, weights: ir.Value, context: Context) -> Edit:
    """Returns the edit that makes uint8 codes of the int8 codes of a product, and uint8 weights unless they are small.

    Raises:
        Unconverted: The type of the weights is not known.
    """
    zero_point, weights_zero_point = [*node.inputs[2:], None, None][:2]
    if weights.dtype not in CODE_TYPES:
        raise Unconverted(Reason.WEIGHTS_TYPE_NOT_KNOWN)
    may_saturate = weights.dtype == ir.DataType.INT8 and not _is_small(weights, context.facts)
    edit = context.edit(node.op_type, node)
    unsigned, half = context.shared(UnsignedCodes), np.uint8(128)

    def shifted(value: ir.Value | None) -> ir.Value:
        return edit.add_constant(half, before=node) if value is None else unsigned.shifted(value, edit)

    if may_saturate:
        weights_zero_point = shifted(weights_zero_point)
        elements = evaluate(weights, context.facts) if context.facts.is_constant(weights) else None
        if elements is None:
            weights = unsigned.shifted(weights, edit)
        else:
            weights = context.shared(SharedInitializers).of(unsigned_array(elements), node, edit)
    inputs = [unsigned.shifted(codes, edit), weights, shifted(zero_point), weights_zero_point]
    while inputs[-1] is None:
        inputs.pop()
    product = ir.node(node.op_type, inputs, dict(node.attributes))
    edit.replace(node.outputs[0], edit.insert_main(product, before=node))
    return edit


def _is_small(weights: ir.Value, facts: Facts) -> bool:
    """Returns whether weights are known to be so small that no pair of products saturates int16."""
    elements = evaluate(weights, facts) if facts.is_constant(weights) else None
    return elements is not None and np.abs(elements.astype(np.int32)).max(initial=0) <= _LARGEST_UNSATURATED_WEIGHT
