"""The rule for integer convolutions of codes that are quantized at run time.

ConvInteger, Cast, Mul by the activation's scale and by those of the weights in any order, [Add bias]
    -> QuantizedConv
ConvInteger of int8 codes
    -> ConvInteger of uint8 codes

The first needs constant weights, and constant zero points of the weights. The results are the same bit for bit: int32
holds every sum. The codes stay as they are: those of one DynamicQuantizeLinear serve all convolutions that read them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.types import check_type
from ..analysis.values import CODE_TYPES
from ..edit import Edit
from ..products.integer_product import converted, is_static, weights_of
from ..products.tail import tail_of
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .convolution import Weights, check_rank, geometry_of, replace_convolution


def _apply(node: ir.Node, context: Context) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type != "ConvInteger":
        return None
    codes, weights = node.inputs[:2]
    if codes is None or weights is None or is_static(codes, context.facts):
        return None
    return converted(node, context, _as_one_operator)


RULE = Rule("integer convolution", 13, _apply, reports_opset=True)


def _as_one_operator(node: ir.Node, context: Context) -> Edit:
    """Returns the edit that puts QuantizedConv in place of a convolution and its tail.

    Raises:
        Unconverted: The weights or zero points are not known, int32 may not hold the sums, or QuantizedConv does not
            have the rank, an attribute or the tail of the convolution.
    """
    codes, zero_point = [*node.inputs, None][:3:2]
    assert codes is not None
    check_type("the codes", codes, CODE_TYPES)
    assert codes.dtype is not None
    if zero_point is not None and zero_point.shape is not None and any(dim != 1 for dim in zero_point.shape):
        raise Unconverted(Reason.ACTIVATION_ONE_ZERO_POINT)
    elements, zeros = weights_of(node, context.facts)
    check_rank(elements.ndim)
    zeros = zeros.reshape(-1)
    weights = Weights(elements, zeros if (zeros != zeros[:1]).any() else zeros[:1])
    weights.check()
    geometry = geometry_of(node, weights)
    tail = tail_of(node, codes, weights.channels, context.facts)
    if tail is None:
        raise Unconverted(Reason.SUMS_NOT_SCALED_BY_CHANNEL)
    edit = context.edit("QuantizedConv", node)
    if zero_point is None:
        zero_point = edit.add_constant(np.zeros((), codes.dtype.numpy()), before=node)
    replace_convolution(tail, codes, zero_point, weights, geometry, context, edit)
    return edit
