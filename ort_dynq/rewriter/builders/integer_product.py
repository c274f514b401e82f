"""What the rules for MatMulInteger and ConvInteger share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..edit import Edit
from ..facts.folding import evaluate
from ..facts.inference import Facts
from ..facts.values import CODE_TYPES, producer_of, skip_identity
from ..report import Left
from ..rule import Context
from .shared_initializers import SharedInitializers
from .unsigned_codes import UnsignedCodes

# On x86 without VNNI, ONNX Runtime adds pairs of u8 x s8 products in int16, which saturates with larger weights.
_LARGEST_UNSATURATED_WEIGHT = 64


def is_static(codes: ir.Value, facts: Facts) -> bool:
    """Returns whether codes are constant or have constant parameters: static quantization is left to ONNX Runtime."""
    quantizer = producer_of(skip_identity(codes), "QuantizeLinear")
    return facts.is_constant(codes) or (quantizer is not None and all(map(facts.is_constant, quantizer.inputs[1:])))


def converted(node: ir.Node, context: Context, as_one_operator: Callable[[ir.Node, Context], Edit]) -> Edit:
    """Returns the edit that makes one operator of a product, or else a product of uint8 codes of one of int8 codes.

    Args:
        node: A MatMulInteger or ConvInteger.
        context: Its context.
        as_one_operator: Returns the edit that makes one operator, or raises Left.

    Raises:
        Left: It cannot become one operator, and its codes are not int8.
    """
    codes, weights = node.inputs[:2]
    assert codes is not None
    assert weights is not None
    try:
        return as_one_operator(node, context)
    except Left:
        if codes.dtype != ir.DataType.INT8:
            raise
        return _as_unsigned(node, codes, weights, context)


def weights_of(node: ir.Node, facts: Facts) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Returns the weights of a product and their zero points, as int8: unsigned ones are 128 smaller.

    Raises:
        Left: They are not known.
    """
    values = [*node.inputs, None, None][1:4:2]
    elements, zeros = (
        evaluate(each, facts) if each is not None and facts.is_constant(each) else None for each in values
    )
    if elements is None or (values[1] is not None and zeros is None):
        raise Left("the weights or their zero points are computed at run time")
    if zeros is None:
        zeros = np.zeros(1, elements.dtype)
    if zeros.dtype != elements.dtype:
        raise Left("the zero points of the weights are of another type than the weights")
    return _as_signed(elements), _as_signed(zeros)


def _as_signed(codes: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    return np.asarray((codes ^ np.uint8(0x80)).view(np.int8) if codes.dtype == np.uint8 else codes)


def _as_unsigned(node: ir.Node, codes: ir.Value, weights: ir.Value, context: Context) -> Edit:
    """Returns the edit that makes uint8 codes of the int8 codes of a product, and uint8 weights unless they are small.

    Raises:
        Left: The type of the weights is not known.
    """
    zero_point, weights_zero_point = [*node.inputs[2:], None, None][:2]
    if weights.dtype not in CODE_TYPES:
        raise Left("the type of the weights is not known")
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
            weights = context.shared(SharedInitializers).of(elements.view(np.uint8) ^ np.uint8(0x80), node, edit)
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
