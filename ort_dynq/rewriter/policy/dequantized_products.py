"""What ONNX Runtime alone makes of a product of constant weights behind a DequantizeLinear, and how much it is.

ONNX Runtime makes MatMulNBits of some forms at its default optimization level, with accuracy_level 4 (the session
option ``session.qdq_matmulnbits_accuracy_level``), and runs the DequantizeLinear of all others in every run. The
conditions are those of onnxruntime 1.32 (DQMatMulNodeGroupSelector in qdq_transformer/selectors_actions/
qdq_selectors.cc), tested with it. Releases before 1.26 make it of fewer forms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ..analysis.inference import Facts
from ..analysis.nodes import is_standard
from ..analysis.standard import CONVOLUTIONS
from ..reasons import Reason, Unconverted
from .cost import ASSUMED

_MIN_BLOCK = 16
_BITS_8 = ("INT8", "UINT8")
_CODES = (*_BITS_8, "INT4", "UINT4", "INT2", "UINT2")
_OF_A_WEIGHT = 8  # products take the time in which ONNX Runtime dequantizes a weight
_MIN_SHARE = 0.01  # of the products of all convolutions: less is not seen in the time of a run


class Convolutions:
    """The products of all convolutions of a model in one run; where lengths are not known, as few as there may be."""

    def __init__(self, facts: Facts) -> None:
        """Counts them."""
        nodes = (node for node in facts.model.graph if is_standard(node, *CONVOLUTIONS))
        self.products = sum(map(_products_of_convolution, nodes))

    def outweigh(self, activation: ir.Value | None, weights: ir.Value) -> Unconverted | None:
        """Returns the reason why an integer product in place of a float one does not make the model faster, or None.

        Args:
            activation: Its left factor, [..., K].
            weights: Its right factor.
        """
        if not self.products or activation is None or activation.shape is None:
            return None
        if weights.shape is None or not weights.shape.is_static():
            return None
        rows = math.prod(dim if isinstance(dim, int) else ASSUMED for dim in list(activation.shape)[:-1])
        share = (rows + _OF_A_WEIGHT) * math.prod(weights.shape.numpy()) / self.products
        return None if share >= _MIN_SHARE else Unconverted(Reason.DEQUANTIZED_LITTLE, percent=f"{100 * share:.2g}")


def _products_of_convolution(node: ir.Node) -> int:
    x, weights, result = node.inputs[0], node.inputs[1], node.outputs[0]
    positions = result if node.op_type == "Conv" else x  # each is multiplied by all weights of its channels
    if weights is None or weights.shape is None or not weights.shape.is_static():
        return 0
    if positions is None or positions.shape is None or len(positions.shape) < 2:
        return 0
    lengths = [dim if isinstance(dim, int) else ASSUMED for dim in positions.shape]
    del lengths[1]
    return math.prod(lengths) * math.prod(weights.shape.numpy())


def made_by_onnxruntime(product: ir.Node, dq: ir.Node, moves: Sequence[ir.Node], uses: int, readers: int) -> Reason:
    """Returns MADE_LEVEL_4 or MADE_DEQUANTIZATION.

    Args:
        product: The MatMul, Gemm or Einsum.
        dq: The DequantizeLinear of its second factor. Its inputs are constants.
        moves: The nodes between them.
        uses: The number of uses of the weights: each node of `moves` and the product have one.
        readers: The number of uses of the codes or of the scales, the larger one: MatMulNBits has its own.
    """
    is_used_once = uses == len(moves) + 1 and readers == 1
    is_level_4 = is_used_once and _is_taken(product, moves) and _has_scales(dq, moves)
    return Reason.MADE_LEVEL_4 if is_level_4 else Reason.MADE_DEQUANTIZATION


def _is_taken(product: ir.Node, moves: Sequence[ir.Node]) -> bool:
    """Returns whether MatMulNBits computes a product of weights that are moved like this."""
    if is_standard(product, "Gemm"):
        is_plain = all(product.attributes.get_float(name, 1.0) == 1 for name in ("alpha", "beta"))
        is_transposed = any(product.attributes.get_int(name, 0) for name in ("transA", "transB"))
        return is_plain and not is_transposed and not moves
    if not is_standard(product, "MatMul"):
        return False
    return not moves or (len(moves) == 1 and is_standard(moves[0], "Transpose"))


def _has_scales(dq: ir.Node, moves: Sequence[ir.Node]) -> bool:
    """Returns whether MatMulNBits has such scales."""
    codes, scale = dq.inputs[:2]
    if codes is None or scale is None or scale.shape is None or codes.dtype is None or codes.dtype.name not in _CODES:
        return False
    axis, size = dq.attributes.get_int("axis", 1), dq.attributes.get_int("block_size", 0)
    if moves and codes.dtype.name not in _BITS_8:
        return False
    if size:
        return not moves and axis in (0, -2) and size >= _MIN_BLOCK and size & (size - 1) == 0
    is_of_tensor = all(length == 1 for length in scale.shape)
    return is_of_tensor or axis in ((0, -2) if moves else (1, -1))
