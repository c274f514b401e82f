"""Builds WordConv from weights of 12 bits, geometry and the epilogue of a convolution, or QuantizedConv from codes."""

from __future__ import annotations

import onnx_ir as ir

from ..codes.codes import Codes
from ..edit import Edit, call
from ..products.epilogue import Epilogue
from ..products.quantized_matmul import column_and_bias
from ..shared_initializers import SharedInitializers
from .convolution import Geometry, Weights
from .quantized_conv import insert_quantized_conv


def insert_conv(
    epilogue: Epilogue, activation: ir.Value, codes: Codes | None, weights: Weights, geometry: Geometry, edit: Edit
) -> ir.Value:
    """Inserts WordConv or QuantizedConv before the last node of a convolution and its epilogue; returns its result.

    Args:
        epilogue: The nodes after the product: a bias, and factors of channels.
        activation: float32, [N, C, ...].
        codes: The codes of the activation; None if the weights are words.
        weights: The weights. The epilogue has their scales.
        geometry: The geometry.
        edit: The edit of the convolution.
    """
    if codes is not None:
        return insert_quantized_conv(epilogue, codes, weights, geometry, edit)
    shared = edit.shared(SharedInitializers)
    scale, bias = column_and_bias(epilogue, edit)
    main = call(
        "WordConv",
        [activation, shared.of(weights.codes, edit), shared.of(scale, edit), bias, shared.of(geometry.table, edit)],
        group=geometry.group,
        auto_pad=int(geometry.auto_pad),
    )
    return edit.insert_main(main, before=epilogue.last_node)
