"""Builds QuantizedConv from codes, weights, geometry and the epilogue of a convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import AutoPad
from ...operators.packing import pack_conv
from ..codes.codes import Codes
from ..edit import Edit, call
from ..products.corrections import Correction
from ..products.epilogue import Epilogue
from ..products.quantized_matmul import scales_and_bias
from ..shared_initializers import SharedInitializers
from .convolution import Geometry, Weights


def build_quantized_conv(
    epilogue: Epilogue,
    codes: Codes,
    weights: Weights,
    geometry: Geometry,
    edit: Edit,
    correction: Correction | None = None,
) -> None:
    """Puts QuantizedConv in place of a convolution and its epilogue: see :func:`insert_quantized_conv`."""
    edit.replace(epilogue.last, insert_quantized_conv(epilogue, codes, weights, geometry, edit, correction))


def insert_quantized_conv(
    epilogue: Epilogue,
    codes: Codes,
    weights: Weights,
    geometry: Geometry,
    edit: Edit,
    correction: Correction | None = None,
) -> ir.Value:
    """Inserts QuantizedConv before the last node of a convolution and its epilogue, and returns its result.

    Args:
        epilogue: The nodes after the product: scales and bias.
        codes: The codes of the activation, uint8 or int8, with one scale and one zero point.
        weights: The weights, which :meth:`Weights.check` has accepted. The epilogue has their scales.
        geometry: The geometry.
        edit: The edit of the convolution.
        correction: What is subtracted from the sums, if it is not the zero point times the sums of the weights.
    """

    def initializer(elements: npt.NDArray[Any]) -> ir.Value:
        return edit.shared(SharedInitializers).of(elements, edit)

    packed, quad_axis = pack_conv(weights.codes)
    scale, channel_scale, bias = scales_and_bias(epilogue, codes, edit)
    main = call(
        "QuantizedConv",
        [
            codes.codes,
            scale,
            codes.zero_point,
            initializer(packed),
            initializer(weights.zero_point),
            channel_scale,
            (correction or Correction()).build_sums(weights.sums, edit, epilogue.last_node),
            bias,
            initializer(geometry.table),
        ],
        group=geometry.group,
        auto_pad=int(geometry.auto_pad),
        quad_axis=int(quad_axis),
        scale_order=int(epilogue.scale_order),
        terms=codes.terms,
    )
    result = edit.insert_main(main, before=epilogue.last_node)
    if codes.offset is not None:
        result = edit.insert(
            ir.node("Add", [result, _of_offset(codes.offset, epilogue, codes, weights, geometry, edit)]),
            before=edit.node,
        )
    return result


def _of_offset(
    offset: ir.Value, epilogue: Epilogue, codes: Codes, weights: Weights, geometry: Geometry, edit: Edit
) -> ir.Value:
    """Returns the convolution of an offset that is one number: the offset times that of an image of ones.

    Pads have no offset, so it is not a multiple of the sums of the weights. The image has one channel, and the weights
    their sums over the channels. If its size is known, constant folding computes this convolution.
    """

    def insert(op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        return edit.insert(ir.node(op_type, list(inputs), attributes), before=edit.node)

    def constant(*numbers: int) -> ir.Value:
        return edit.add_constant(np.array(numbers), before=edit.node)

    assert epilogue.column is not None
    real = weights.codes.astype(np.float64) - weights.zero_point.reshape(-1, *[1] * (weights.codes.ndim - 1))
    sums = real.sum(1, keepdims=True) * epilogue.column.reshape(-1, *[1] * (weights.codes.ndim - 1))
    size = insert("Slice", insert("Shape", codes.codes), constant(2), constant(weights.codes.ndim))
    ones = insert(
        "Expand", edit.add_constant(np.float32(1), before=edit.node), insert("Concat", constant(1, 1), size, axis=0)
    )
    attributes = {name: each.value for name, each in epilogue.product.attributes.items() if name != "group"}
    if geometry.auto_pad == AutoPad.EXPLICIT:
        attributes |= {"auto_pad": "NOTSET", "pads": geometry.table[3:].ravel().tolist()}
    filters = edit.shared(SharedInitializers).of(sums.astype(np.float32), edit)
    return insert("Mul", offset, insert("Conv", ones, filters, **attributes))
