"""Shared by the rules for MatMulInteger and ConvInteger: their weights, and the same product of uint8 codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.nodes import producer_of, skip_identity
from ..analysis.types import CODE_TYPES
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..shared_initializers import SharedInitializers
from .grid import Grid, columns_of_stack
from .unsigned_codes import UnsignedCodes, unsigned_array

# On x86 without VNNI, ONNX Runtime adds pairs of u8 x s8 products in int16, which larger weights saturate.
_LARGEST_UNSATURATED_WEIGHT = 64
T = TypeVar("T")


@dataclass(frozen=True)
class UnsignedProduct:
    """A MatMulInteger or ConvInteger of int8 codes that becomes a product of uint8 codes, which is faster.

    Attributes:
        node: The product.
        weights: The int8 weights, or their elements if known, if they also become uint8, since sums with them may
            saturate; None if the weights stay as they are.
    """

    node: ir.Node
    weights: ir.Value | npt.NDArray[np.int8] | None


def match_product(node: ir.Node, facts: Facts, match: Callable[[], T]) -> T | UnsignedProduct:
    """Returns what `match` returns, or the uint8 form of a MatMulInteger or ConvInteger of int8 codes if it fails.

    Raises:
        Unconverted: `match` raised it, and the codes are not int8.
    """
    try:
        return match()
    except Unconverted:
        if (unsigned := _unsigned_product_of(node, facts)) is None:
            raise
        return unsigned


def _unsigned_product_of(node: ir.Node, facts: Facts) -> UnsignedProduct | None:
    """Returns the uint8 form of an unconverted MatMulInteger or ConvInteger; None if its codes are not int8.

    Raises:
        Unconverted: The type of the weights is not known.
    """
    codes, weights = node.inputs[:2]
    if codes is None or weights is None or codes.dtype != ir.DataType.INT8:
        return None
    if weights.dtype not in CODE_TYPES:
        raise Unconverted(Reason.WEIGHTS_TYPE_NOT_KNOWN)
    if weights.dtype == ir.DataType.UINT8:
        return UnsignedProduct(node, None)
    elements = evaluate(weights, facts) if facts.is_constant(weights) else None
    if elements is None:
        return UnsignedProduct(node, weights)
    is_small = np.abs(elements.astype(np.int32)).max(initial=0) <= _LARGEST_UNSATURATED_WEIGHT
    return UnsignedProduct(node, None if is_small else elements)


def build_unsigned_product(match: UnsignedProduct, edit: Edit) -> None:
    """Puts the same product of uint8 codes in place of one of int8 codes."""
    node, unsigned = match.node, edit.shared(UnsignedCodes)
    codes, weights, zero_point, weights_zero_point = [*node.inputs, None, None][:4]
    assert codes is not None

    def shifted(value: ir.Value | None) -> ir.Value:
        return edit.add_constant(np.uint8(128), before=node) if value is None else unsigned.shifted(value, edit)

    if isinstance(match.weights, ir.Value):
        weights = unsigned.shifted(match.weights, edit)
    elif match.weights is not None:
        weights = edit.shared(SharedInitializers).of(unsigned_array(match.weights), edit)
    if match.weights is not None:
        weights_zero_point = shifted(weights_zero_point)
    inputs = [unsigned.shifted(codes, edit), weights, shifted(zero_point), weights_zero_point]
    while inputs[-1] is None:
        inputs.pop()
    product = ir.node(node.op_type, inputs, dict(node.attributes))
    edit.replace(node.outputs[0], edit.insert_main(product, before=node))


def is_static(codes: ir.Value, facts: Facts) -> bool:
    """Returns whether codes are constant or have constant parameters: static quantization is left to ONNX Runtime."""
    quantizer = producer_of(skip_identity(codes), "QuantizeLinear")
    return facts.is_constant(codes) or (quantizer is not None and all(map(facts.is_constant, quantizer.inputs[1:])))


def weights_of(node: ir.Node, facts: Facts) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Returns the weights of a product and their zero points, as int8: unsigned ones are 128 smaller.

    Raises:
        Unconverted: They are not known.
    """
    values = [*node.inputs, None, None][1:4:2]
    elements, zeros = (
        evaluate(each, facts) if each is not None and facts.is_constant(each) else None for each in values
    )
    if elements is None or (values[1] is not None and zeros is None):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    if zeros is None:
        zeros = np.zeros(1, elements.dtype)
    if zeros.dtype != elements.dtype:
        raise Unconverted(Reason.WEIGHTS_ZERO_POINT_TYPE)
    return _as_signed(elements), _as_signed(zeros)


def grid_of_weights(node: ir.Node, facts: Facts) -> Grid:
    """Returns the weights of a MatMulInteger and their zero points as int8; the scales are 1.

    Raises:
        Unconverted: They are not known.
    """
    elements, zeros = weights_of(node, facts)
    if elements.ndim < 2 or not elements.size:
        raise Unconverted(Reason.WEIGHTS_NO_MATRIX)
    *lead, _, columns = elements.shape
    if zeros.shape not in ((), (1,), (columns,), (*lead, 1, columns)):
        raise Unconverted(Reason.WEIGHTS_ZERO_POINTS)
    codes, stack = columns_of_stack(elements)
    if zeros.size > 1:
        zeros = np.broadcast_to(zeros, (*lead, 1, columns)).reshape(-1)
    return Grid(codes, zero_points_of_columns(zeros), np.ones((1, codes.shape[1]), np.float32), stack=stack)


def zero_points_of_columns(zeros: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Returns zero points as [1, N], or as [1] if all are equal."""
    return zeros.reshape(1, -1) if (zeros != zeros.reshape(-1)[0]).any() else zeros.reshape(-1)[:1]


def _as_signed(codes: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    return np.asarray((codes ^ np.uint8(0x80)).view(np.int8) if codes.dtype == np.uint8 else codes)
