"""Builds QuantizedConv from codes, weights, geometry and the tail of a convolution."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from ...operators.packing import pack_conv
from ..edit import Edit, call
from ..products.codes import Codes
from ..products.corrections import Correction
from ..products.quantized_matmul import scales_and_bias
from ..products.tail import Tail
from ..shared_initializers import SharedInitializers
from .convolution import Geometry, Weights


def build_quantized_conv(
    tail: Tail, codes: Codes, weights: Weights, geometry: Geometry, edit: Edit, correction: Correction | None = None
) -> None:
    """Puts QuantizedConv in place of a convolution and its tail.

    Args:
        tail: The nodes after the product: scales and bias.
        codes: The codes of the activation, uint8 or int8, with one zero point.
        weights: The weights, which :meth:`Weights.check` has accepted. The tail has their scales.
        geometry: The geometry.
        edit: The edit of the convolution.
        correction: What is subtracted from the sums, if it is not the zero point times the sums of the weights.
    """

    def initializer(elements: npt.NDArray[Any]) -> ir.Value:
        return edit.shared(SharedInitializers).of(elements, edit)

    packed, quad_axis = pack_conv(weights.codes)
    scale, channel_scale, bias = scales_and_bias(tail, codes, edit)
    main = call(
        "QuantizedConv",
        [
            codes.codes,
            scale,
            codes.zero_point,
            initializer(packed),
            initializer(weights.zero_point),
            channel_scale,
            (correction or Correction()).build_sums(weights.sums, edit, tail.last_node),
            bias,
            initializer(geometry.table),
        ],
        group=geometry.group,
        auto_pad=int(geometry.auto_pad),
        quad_axis=int(quad_axis),
        scale_order=int(tail.scale_order),
    )
    edit.replace(tail.last, edit.insert_main(main, before=tail.last_node))
