"""What ONNX Runtime alone makes of a product whose constant weights come from a DequantizeLinear.

It makes MatMulNBits of some forms at its default optimization level, with accuracy_level 4 (the session option
``session.qdq_matmulnbits_accuracy_level``), and runs the DequantizeLinear of all others in every run. The conditions
are those of onnxruntime 1.32 (DQMatMulNodeGroupSelector in qdq_transformer/selectors_actions/qdq_selectors.cc), tested
with it. Releases before 1.26 make it of fewer forms.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..analysis.nodes import is_standard
from ..reasons import Reason

_SMALLEST_BLOCK = 16
_BITS_8 = ("INT8", "UINT8")
_CODES = (*_BITS_8, "INT4", "UINT4", "INT2", "UINT2")


def made_by_onnxruntime(product: ir.Node, dq: ir.Node, moves: Sequence[ir.Node], uses: int, readers: int) -> Reason:
    """Returns MADE_LEVEL_4 or MADE_DEQUANTIZATION.

    Args:
        product: The MatMul, Gemm or Einsum.
        dq: The DequantizeLinear of its second factor, whose inputs are constants.
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
        return not moves and axis in (0, -2) and size >= _SMALLEST_BLOCK and size & (size - 1) == 0
    is_of_tensor = all(length == 1 for length in scale.shape)
    return is_of_tensor or axis in ((0, -2) if moves else (1, -1))
