"""Builds WordMatMul from weights of 12 bits and the epilogue of a product."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ...operators.packing import pack_words
from ..edit import Edit, call
from ..shared_initializers import SharedInitializers
from ..weights.grid import QuantizedWeights, stacked
from .einsum import Einsum
from .epilogue import Epilogue
from .quantized_matmul import column_and_bias


def build_word_matmul(
    epilogue: Epilogue, activation: ir.Value, grid: QuantizedWeights, edit: Edit, einsum: Einsum | None = None
) -> None:
    """Puts WordMatMul in place of a matrix product of floats and its epilogue.

    Args:
        epilogue: The nodes after the product: a bias.
        activation: float32, [..., K].
        grid: The weights, of 12 bits. The epilogue has their scales.
        edit: The edit of the product.
        einsum: The Einsum that the product is part of, if it is one.
    """
    shared, stack, before = edit.shared(SharedInitializers), grid.stack, epilogue.last_node
    column, bias = column_and_bias(epilogue, edit)
    scale = column.reshape(*stack, epilogue.channels.columns)
    matrices = stacked(grid.codes.astype(np.int16), stack).reshape(math.prod(stack), len(grid.codes), -1)
    packed = np.stack([pack_words(matrix) for matrix in matrices])
    weights = packed.reshape(*stack, *packed.shape[1:])
    main = call("WordMatMul", [activation, shared.of(weights, edit), shared.of(scale, edit), bias])
    result = epilogue.moved(edit.insert_main(main, before=before), edit)
    edit.replace(epilogue.last, result if einsum is None else einsum.result(result, edit, before))
