"""The rule for integer convolutions of codes that are quantized at run time.

ConvInteger, [Add or Sub of integers], Cast, Mul by the scales of activation and weights in any order, [Add bias]
    -> QuantizedConv
ConvInteger of int8 codes
    -> ConvInteger of uint8 codes

The first needs constant weights, and constant zero points of the weights. The results are the same bit for bit: int32
holds every sum. The codes stay as they are, since several convolutions may read them, unless integers are added
to the sums: then QuantizedConv does not have the zero point that pads, and a Pad precedes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators.encodings import AutoPad
from ..analysis.nodes import input_of
from ..analysis.types import CODE_TYPES, check_type
from ..codes.codes import Codes
from ..codes.unsigned_codes import UnsignedCodes
from ..edit import Edit
from ..products.corrections import Correction, added, correction_of, terms_of_zero_point
from ..products.epilogue import Epilogue, epilogue_of
from ..products.integer_product import (
    UnsignedProduct,
    build_unsigned_product,
    is_static,
    match_product,
    weights_of,
    zero_points_of_columns,
)
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .convolution import Geometry, Weights, check_rank, geometry_of
from .quantized_conv import build_quantized_conv


@dataclass(frozen=True)
class IntegerConv:
    """A convolution that becomes QuantizedConv.

    Attributes:
        codes: The codes of the activation, uint8 or int8.
        zero_point: Their zero point, one number of the same type; None for 0.
        weights: The weights.
        geometry: The geometry.
        epilogue: The nodes after the product: scales and bias.
        correction: What is subtracted from the sums of the uint8 codes; None: the zero point times the weights' sums.
    """

    codes: ir.Value
    zero_point: ir.Value | None
    weights: Weights
    geometry: Geometry
    epilogue: Epilogue
    correction: Correction | None


def _match(node: ir.Node, context: Context) -> IntegerConv | UnsignedProduct | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type != "ConvInteger":
        return None
    codes, weights = node.inputs[:2]
    if codes is None or weights is None or is_static(codes, context.facts):
        return None
    return match_product(node, context.facts, lambda: _match_convolution(node, codes, context))


def _build(match: IntegerConv | UnsignedProduct, edit: Edit) -> None:
    if isinstance(match, UnsignedProduct):
        build_unsigned_product(match, edit)
        return
    codes, zero_point, geometry = match.codes, match.zero_point, match.geometry
    if zero_point is None:
        assert codes.dtype is not None
        zero_point = edit.add_constant(np.zeros((), codes.dtype.numpy()), before=edit.node)
    if match.correction is not None:
        unsigned = edit.shared(UnsignedCodes)
        codes, zero_point = unsigned.of(codes, edit), unsigned.of(zero_point, edit)
        if geometry.table[3:].any():  # the zero point of the correction does not pad
            pads = np.pad(geometry.table[3:].astype(np.int64), ((0, 0), (2, 0))).reshape(-1)
            pad = ir.node("Pad", [codes, edit.add_constant(pads, before=edit.node), zero_point])
            codes = edit.insert(pad, before=edit.node)
            geometry = replace(geometry, table=np.vstack([geometry.table[:3], 0 * geometry.table[3:]]))
        zero_point = match.correction.build_zero_point(match.codes.dtype == ir.DataType.INT8, edit)
    build_quantized_conv(
        match.epilogue, Codes(codes, None, zero_point), match.weights, geometry, edit, match.correction
    )


RULE: Rule[IntegerConv | UnsignedProduct] = Rule("integer convolution", 13, _match, _build, reports_opset=True)


def _match_convolution(node: ir.Node, codes: ir.Value, context: Context) -> IntegerConv:
    """Recognizes a convolution with known weights and an epilogue.

    Raises:
        Unconverted: The weights or zero points are not known, int32 may not hold the sums, or QuantizedConv does not
            have the rank, an attribute or the epilogue of the convolution.
    """
    zero_point = input_of(node, 2)
    check_type("the codes", codes, CODE_TYPES)
    if zero_point is not None and zero_point.shape is not None and any(dim != 1 for dim in zero_point.shape):
        raise Unconverted(Reason.ACTIVATION_ONE_ZERO_POINT)
    elements, zeros = weights_of(node, context.facts)
    check_rank(elements.ndim)
    weights = Weights(elements, zero_points_of_columns(zeros).reshape(-1))
    weights.check()
    geometry = geometry_of(node, weights)
    epilogue = epilogue_of(node, codes, weights.channels, context.facts)
    if epilogue is None:
        raise Unconverted(Reason.SUMS_NOT_SCALED_BY_CHANNEL)
    return IntegerConv(
        codes, zero_point, weights, geometry, epilogue, _correction(codes, zero_point, weights, geometry, epilogue)
    )


def _correction(
    codes: ir.Value, zero_point: ir.Value | None, weights: Weights, geometry: Geometry, epilogue: Epilogue
) -> Correction | None:
    """Returns how QuantizedConv adds the integers that the epilogue adds to the sums; None if it adds none.

    Raises:
        Unconverted: It cannot.
    """
    if not epilogue.added:
        return None
    if geometry.auto_pad != AutoPad.EXPLICIT:
        raise Unconverted(Reason.ADDED_NUMBERS_AUTO_PAD)
    terms = added(epilogue.added, terms_of_zero_point(zero_point, weights.sums))
    return correction_of(terms, weights.sums, codes, zero_point, epilogue.channels)
