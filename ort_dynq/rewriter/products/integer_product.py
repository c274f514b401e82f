"""Shared by the rules for MatMulInteger and ConvInteger: their weights, and the same product of uint8 codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.evaluation import evaluate_if_constant
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs, input_of, producer_of
from ..analysis.shapes import has_one_element
from ..analysis.types import CODE_TYPES
from ..codes.unsigned_codes import UnsignedCodes, unsigned_array
from ..edit import Edit
from ..policy.saturation import may_saturate
from ..reasons import Reason, Unconverted
from ..shared_initializers import SharedInitializers
from ..weights.grid import QuantizedWeights, columns_of_stack

T = TypeVar("T")


@dataclass(frozen=True)
class UnsignedProduct:
    """A MatMulInteger or ConvInteger of int8 codes or weights that becomes a product of uint8 ones.

    Codes become uint8 because ONNX Runtime multiplies uint8 codes faster, weights because sums with int8 weights may
    saturate.

    Attributes:
        node: The product.
        weights: The int8 weights, or their elements if known, if they become uint8; None if the weights stay.
    """

    node: ir.Node
    weights: ir.Value | npt.NDArray[np.int8] | None


def match_product(node: ir.Node, facts: Facts, match: Callable[[], T]) -> T | UnsignedProduct:
    """Returns what `match` returns, or the uint8 form of a MatMulInteger or ConvInteger if it fails.

    Raises:
        Unconverted: `match` raised it, and the product is as right and fast in stock ONNX Runtime as its uint8 form.
    """
    try:
        return match()
    except Unconverted:
        if (unsigned := _unsigned_product_of(node, facts)) is None:
            raise
        return unsigned


def _unsigned_product_of(node: ir.Node, facts: Facts) -> UnsignedProduct | None:
    """Returns the uint8 form of an unconverted MatMulInteger or ConvInteger; None if it would change nothing.

    Raises:
        Unconverted: The codes are int8, and the type of the weights is not known.
    """
    codes, weights, zero_point, _ = first_inputs(node, 4)
    if codes is None or weights is None or codes.dtype not in CODE_TYPES or has_several(zero_point):
        return None  # ONNX Runtime takes one zero point of all codes
    is_signed = codes.dtype == ir.DataType.INT8
    if weights.dtype not in CODE_TYPES and is_signed:
        raise Unconverted(Reason.WEIGHTS_TYPE_NOT_KNOWN)
    found: ir.Value | npt.NDArray[np.int8] | None = None
    if weights.dtype == ir.DataType.INT8 and (is_signed or node.op_type == "MatMulInteger"):
        elements = evaluate_if_constant(weights, facts)
        if elements is None:
            found = weights
        elif may_saturate(elements):
            found = elements
    return None if found is None and not is_signed else UnsignedProduct(node, found)


def has_several(zero_point: ir.Value | None) -> bool:
    """Returns whether the zero point of a product is not known to be one number: there may be one for each row."""
    return zero_point is not None and zero_point.shape is not None and not has_one_element(zero_point)


def build_unsigned_product(match: UnsignedProduct, edit: Edit) -> None:
    """Puts the same product of uint8 codes in its place."""
    node, unsigned = match.node, edit.shared(UnsignedCodes)
    codes, weights, zero_point, weights_zero_point = first_inputs(node, 4)
    assert codes is not None
    if codes.dtype == ir.DataType.INT8:
        zero_point = _unsigned(zero_point, edit)
        codes = unsigned.shifted(codes, edit)

    if isinstance(match.weights, ir.Value):
        weights = unsigned.shifted(match.weights, edit)
    elif match.weights is not None:
        weights = edit.shared(SharedInitializers).of(unsigned_array(match.weights), edit)
    if match.weights is not None:
        weights_zero_point = _unsigned(weights_zero_point, edit)
    inputs = [codes, weights, zero_point, weights_zero_point]
    while inputs[-1] is None:
        inputs.pop()
    product = ir.node(node.op_type, inputs, dict(node.attributes))
    edit.replace(node.outputs[0], edit.insert_main(product, before=node))


def _unsigned(zero_point: ir.Value | None, edit: Edit) -> ir.Value:
    """Returns the uint8 form of an int8 zero point; None is 0."""
    if zero_point is None:
        return edit.add_constant(np.uint8(128), before=edit.node)
    return edit.shared(UnsignedCodes).shifted(zero_point, edit)


def is_static(codes: ir.Value, facts: Facts) -> bool:
    """Returns whether codes are constant or have constant parameters: static quantization is left to ONNX Runtime."""
    quantizer = producer_of(codes, "QuantizeLinear")
    return facts.is_constant(codes) or (quantizer is not None and all(map(facts.is_constant, quantizer.inputs[1:])))


def weights_of(
    node: ir.Node, facts: Facts, positions: tuple[int, int] = (1, 3)
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Returns the weights of a product and their zero points, as int8: unsigned ones are 128 smaller.

    Args:
        node: The product.
        facts: What is known of the model.
        positions: The inputs that are the weights and their zero points; the second one may be absent.

    Raises:
        Unconverted: They are not known.
    """
    elements, zeros = stored_weights_of(node, facts, positions)
    return _as_signed(elements), _as_signed(zeros)


def stored_weights_of(
    node: ir.Node, facts: Facts, positions: tuple[int, int] = (1, 3)
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the weights of a product and their zero points as the model has them; without any, one zero point of 0.

    Args:
        node, facts, positions: As for :func:`weights_of`.

    Raises:
        Unconverted: They are not known, or have different types.
    """
    values = [input_of(node, i) for i in positions]
    elements, zeros = (evaluate_if_constant(each, facts) for each in values)
    if elements is None or (values[1] is not None and zeros is None):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    if zeros is None:
        zeros = np.zeros(1, elements.dtype)
    if zeros.dtype != elements.dtype:
        raise Unconverted(Reason.WEIGHTS_ZERO_POINT_TYPE)
    return elements, zeros


def grid_of_weights(node: ir.Node, facts: Facts, positions: tuple[int, int] = (1, 3)) -> QuantizedWeights:
    """Returns the weights of a matrix product and their zero points as int8; the scales are 1.

    Args:
        node, facts, positions: As for :func:`weights_of`.

    Raises:
        Unconverted: They are not known.
    """
    elements, zeros = weights_of(node, facts, positions)
    if elements.ndim < 2:
        raise Unconverted(Reason.WEIGHTS_NO_MATRIX)
    *lead, _, columns = elements.shape
    if not columns or 0 in lead:  # K may be 0
        raise Unconverted(Reason.WEIGHTS_EMPTY)
    if zeros.shape not in ((), (1,), (columns,), (*lead, 1, columns)):
        raise Unconverted(Reason.WEIGHTS_ZERO_POINTS)
    codes, stack = columns_of_stack(elements)
    if zeros.size > 1:
        zeros = np.broadcast_to(zeros, (*lead, 1, columns)).reshape(-1)
    return QuantizedWeights(codes, zero_points_of_columns(zeros), np.ones((1, codes.shape[1]), np.float32), stack=stack)


def zero_points_of_columns(zeros: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Returns zero points as [1, N], or as [1] if all are equal."""
    return zeros.reshape(1, -1) if (zeros != zeros.reshape(-1)[0]).any() else zeros.reshape(-1)[:1]


def _as_signed(codes: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    return np.asarray((codes ^ np.uint8(0x80)).view(np.int8) if codes.dtype == np.uint8 else codes)
