"""The rule for integer convolutions of codes that are quantized at run time.

ConvInteger, Cast, Mul by the scales of activation and weights in any order, [Add bias]
    -> QuantizedConv
ConvInteger of int8 codes
    -> ConvInteger of uint8 codes

The first needs constant weights, and constant zero points of the weights. The results are the same bit for bit: int32
holds every sum. The codes stay as they are, since several convolutions may read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.types import CODE_TYPES, check_type
from ..edit import Edit
from ..products.codes import Codes
from ..products.integer_product import (
    UnsignedProduct,
    build_unsigned_product,
    is_static,
    unsigned_product_of,
    weights_of,
)
from ..products.tail import Tail, tail_of
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .convolution import Geometry, Weights, check_rank, geometry_of
from .quantized_conv import build_quantized_conv


@dataclass(frozen=True)
class Match:
    """A convolution that becomes QuantizedConv.

    Attributes:
        codes: The codes of the activation, uint8 or int8.
        zero_point: Their zero point, one number of the same type; None for 0.
        weights: The weights.
        geometry: The geometry.
        tail: The nodes after the product: scales and bias.
    """

    codes: ir.Value
    zero_point: ir.Value | None
    weights: Weights
    geometry: Geometry
    tail: Tail


def _match(node: ir.Node, context: Context) -> Match | UnsignedProduct | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type != "ConvInteger":
        return None
    codes, weights = node.inputs[:2]
    if codes is None or weights is None or is_static(codes, context.facts):
        return None
    try:
        return _match_convolution(node, codes, context)
    except Unconverted:
        if (unsigned := unsigned_product_of(node, context.facts)) is None:
            raise
        return unsigned


def _build(match: Match | UnsignedProduct, edit: Edit) -> None:
    if isinstance(match, UnsignedProduct):
        build_unsigned_product(match, edit)
        return
    zero_point = match.zero_point
    if zero_point is None:
        assert match.codes.dtype is not None
        zero_point = edit.add_constant(np.zeros((), match.codes.dtype.numpy()), before=edit.node)
    codes = Codes(match.codes, None, zero_point)
    build_quantized_conv(match.tail, codes, match.weights, match.geometry, edit)


RULE: Rule[Match | UnsignedProduct] = Rule("integer convolution", 13, _match, _build, reports_opset=True)


def _match_convolution(node: ir.Node, codes: ir.Value, context: Context) -> Match:
    """Recognizes a convolution with known weights and a tail.

    Raises:
        Unconverted: The weights or zero points are not known, int32 may not hold the sums, or QuantizedConv does not
            have the rank, an attribute or the tail of the convolution.
    """
    zero_point = [*node.inputs, None][2]
    check_type("the codes", codes, CODE_TYPES)
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
    return Match(codes, zero_point, weights, geometry, tail)
