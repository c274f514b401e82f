"""Reads MatMul, Gemm and Einsum as one form: alpha * A @ B + beta * C.

alpha and beta are not exact: the scales of the weights and the bias are multiplied by them, one rounding each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.einsums import labels_of_einsum
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs
from ..reasons import Reason, Unconverted
from .channels import Channels
from .grid import QuantizedWeights

_BIAS = "the bias times the attribute beta"


@dataclass(frozen=True)
class MatrixProduct:
    """A matrix product of A, [..., M, K], and B, [K, N] or stacked matrices [..., K, N].

    Attributes:
        a, b: The factors.
        c: What is added; None if nothing is, or if beta is 0: C is then not read.
        alpha, beta: The numbers that multiply.
        has_transposed_a, has_transposed_b: Whether a factor is transposed.
        is_swapped: Whether the node multiplies B by A; C is then added to the transpose of the product.
    """

    a: ir.Value
    b: ir.Value
    c: ir.Value | None = None
    alpha: float = 1.0
    beta: float = 1.0
    has_transposed_a: bool = False
    has_transposed_b: bool = False
    is_swapped: bool = False


def matrix_product_of(node: ir.Node) -> MatrixProduct | None:
    """Returns a MatMul, a Gemm, or an Einsum that computes the same as a MatMul; None for other nodes.

    Raises:
        Unconverted: It is another Einsum, or may be.
    """
    a, b, c = first_inputs(node, 3)
    if node.domain not in STANDARD_DOMAINS or a is None or b is None:
        return None
    if node.op_type == "MatMul":
        return MatrixProduct(a, b)
    if node.op_type == "Einsum":
        return MatrixProduct(a, b, has_transposed_b=_is_transposed(node))
    if node.op_type != "Gemm":
        return None
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    is_a_transposed, is_b_transposed = (node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB"))
    return MatrixProduct(a, b, c if beta else None, alpha, beta, is_a_transposed, is_b_transposed)


def _is_transposed(node: ir.Node) -> bool:
    """Returns whether an Einsum is ``...mk,...nk->...mn``; it is ``...mk,...kn->...mn`` if not.

    Other labels of the weights are the last ones before the rows, as MatMul aligns stacked weights. Einsum also
    broadcasts a K of 1, which MatMul does not.

    Raises:
        Unconverted: It is neither.
    """
    a, b, result = labels_of_einsum(node) or ("", "", "")
    rows, k, stack, n = a[:-1], a[-1:], b[:-2], result[-1:]
    lead = max(rows[:-1], stack, key=len)
    are_labels = n and n not in a and sorted(b[-2:]) == sorted(k + n) and result == lead + rows[-1:] + n
    if not are_labels or not (lead.endswith(rows[:-1]) and lead.endswith(stack)):
        raise Unconverted(Reason.EINSUM)
    depths = [
        None if each is None or each.shape is None else each.shape[labels.index(k)]
        for each, labels in zip(node.inputs, (a, b), strict=True)
    ]
    if not isinstance(depths[0], int) or depths[0] != depths[1]:
        raise Unconverted(Reason.EINSUM)
    return b[-1] == k


def bias_of(product: MatrixProduct, channels: Channels, facts: Facts) -> ir.Value | npt.NDArray[np.float32] | None:
    """Returns beta * C as a value or as numbers, [N]; None if nothing is added.

    Raises:
        Unconverted: It is not one number for each column, or C is computed at run time and beta is not 1.
    """
    if product.is_swapped and product.c is not None:
        elements = evaluate(product.c, facts) if facts.is_constant(product.c) else None
        if (
            elements is None
            or elements.dtype != np.float32
            or (elements.size != 1 and elements.shape != (channels.size, 1))
        ):
            raise Unconverted(Reason.BIAS)
        return _times(np.broadcast_to(elements.reshape(-1), channels.size), product.beta, _BIAS)
    bias = channels.bias(product.c, facts)
    if product.c is not None and bias is None:
        raise Unconverted(Reason.BIAS)
    if bias is None or product.beta == 1:
        return bias
    if (numbers := channels.vector(product.c, np.float32, facts)) is None:
        raise Unconverted(Reason.BIAS_AT_RUN_TIME)
    return _times(numbers, product.beta, _BIAS)


def with_alpha(grid: QuantizedWeights, product: MatrixProduct) -> QuantizedWeights:
    """Returns the grid of alpha times the weights.

    Raises:
        Unconverted: A scale is not finite, or the weights are rounded: those times alpha would be rounded otherwise.
    """
    if product.alpha == 1:
        return grid
    if grid.is_rounded:
        raise Unconverted(Reason.GEMM_ATTRIBUTES)
    name = "the weights times the attribute alpha"
    offset = None if grid.offset is None else _times(grid.offset, product.alpha, name)
    return replace(grid, scale=_times(grid.scale, product.alpha, name), offset=offset)


def stack_beside(stack: tuple[int, ...], activation: ir.Value) -> tuple[int, ...]:
    """Returns the leading dimensions of stacked weights without those of 1 that the activation has, too.

    Raises:
        Unconverted: The weights are stacked, and the activation is a vector, or may be one.
    """
    rank = None if activation.shape is None else len(activation.shape)
    while stack and rank is not None and rank >= len(stack) + 2 and stack[0] == 1:
        stack = stack[1:]
    if stack and rank is None:
        raise Unconverted(Reason.RANK_NOT_KNOWN)
    if stack and rank == 1:
        raise Unconverted(Reason.WEIGHTS_RANK, rank=len(stack) + 2, expected=2)
    return stack


def _times(numbers: npt.NDArray[np.float32], factor: float, name: str) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        products = numbers * np.float32(factor)
    if not np.isfinite(products).all():
        raise Unconverted(Reason.GEMM_OVERFLOW, what=name)
    return np.asarray(products)
