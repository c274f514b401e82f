"""Activations and weights as an integer product reads them: without the roundings of the original to float16."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...errors import DynqError
from ...graphs import label
from ...inputs import Array
from ...operators import DOMAIN
from ...operators.packing import packed_conv_shape, unpack, unpack_conv
from ...operators.quantized_matmul import TERM_RATIO
from ...rewriter.analysis.standard import OWN_RECURRENCES
from ...rewriter.metadata import NEAR, ROUNDED_ACTIVATION, ROUNDED_WEIGHTS
from ...rewriter.weights.grid import MAX_ROUNDING_OF_ALL
from .float64 import FloatProduct
from .layers import name_of


@dataclass(frozen=True)
class PackedWeights:
    """The packed weights of a node of B, which A rounds to float16 after it dequantizes them, or otherwise."""

    node: ir.Node
    packed: npt.NDArray[np.int8]
    zero_point: Array
    scale: Array

    def like(self, weights: Array, of_a: FloatProduct, dtype: npt.DTypeLike = np.float64) -> Array:
        """Returns them dequantized, in the shape of A's weights if both have the same number of elements."""
        if self.node.op_type == "QuantizedConv":
            quad_axis = self.node.attributes.get_int("quad_axis", 0)
            if packed_conv_shape(weights.shape, quad_axis) != self.packed.shape:
                return np.empty(0)
            codes = unpack_conv(self.packed, quad_axis, weights.shape).astype(dtype)
            channels = (-1, *[1] * (weights.ndim - 1))
            return np.asarray((codes - self.zero_point.reshape(channels)) * self.scale.reshape(channels))
        bits, size = self.node.attributes.get_int("bits", 8), self.node.attributes.get_int("group_size", 0)
        *stack, _, units, _, _ = self.packed.shape
        depth, columns = units * 32 // bits, self.scale.shape[-1]  # with padding
        matrices = self.packed.reshape(-1, *self.packed.shape[-4:])
        codes = np.array([unpack(matrix, depth, columns, bits) for matrix in matrices], dtype)
        # Parameters of groups have a row for each group; others broadcast.
        zero_point, scale = (
            np.repeat(x, size, -2) if size and x.ndim > 1 and x.shape[-2] > 1 else x
            for x in (self.zero_point, self.scale)
        )
        depth_of_a = weights.size // max(math.prod(stack) * columns, 1)
        found = ((codes.reshape(*stack, depth, columns) - zero_point) * scale)[..., :depth_of_a, :]
        if found.size != weights.size:
            return np.asarray(found)
        axes = of_a.axes(weights.ndim, len(stack))
        return np.asarray(found.reshape([weights.shape[axis] for axis in axes]).transpose(np.argsort(axes)))

    def rounds_to(self, weights: Array, of_a: FloatProduct) -> bool:
        """Returns whether they are A's weights after they are rounded to float16, or nearly, if A rounds otherwise.

        A may round them to float32 first (DequantizeLinear with float32 scales, then Cast), or not (folded weights).
        """
        found = self.like(weights, of_a)
        if self.node.metadata_props[ROUNDED_WEIGHTS] == NEAR:
            most = 2 * MAX_ROUNDING_OF_ALL * np.abs(weights).max()
            return found.shape == weights.shape and bool((np.abs(found - weights) <= most).all())
        return any(np.array_equal(each.astype(np.float16), weights) for each in (found, found.astype(np.float32)))


def stored_weights_of(node: ir.Node) -> PackedWeights | None:
    """Returns the weights of a node; None if they are not constant."""
    tensors = [ir.convenience.get_const_tensor(value) for value in node.inputs[3:6] if value is not None]
    if None in tensors or len(tensors) < 3:
        return None
    return PackedWeights(node, *(tensor.numpy() for tensor in tensors if tensor is not None))


def rounded_weights_of(node: ir.Node) -> PackedWeights | None:
    """Returns the weights of a node, if A rounds them to float16, or otherwise; None if A does not.

    Raises:
        DynqError: They are not constant.
    """
    if node.metadata_props.get(ROUNDED_WEIGHTS) not in ("1", NEAR):
        return None
    if (found := stored_weights_of(node)) is None:
        raise DynqError(f"the weights of {label(node)} are not constant, but its metadata have {ROUNDED_WEIGHTS}")
    return found


def is_rounded_by_a(node: ir.Node) -> bool:
    """Returns whether A rounds the activation of a node to float16."""
    return node.metadata_props.get(ROUNDED_ACTIVATION) == "1"


def codes_of(node: ir.Node) -> list[ir.Value]:
    """Returns codes, scale and zero point of an integer product; nothing of a product of floats."""
    return [value for value in node.inputs[:3] if value is not None] if node.domain == DOMAIN else []


def terms_of(node: ir.Node) -> int:
    """Returns the codes that an integer product has of an element of its activation."""
    if node.op_type in OWN_RECURRENCES:
        inputs = None if node.inputs[0] is None else node.inputs[0].producer()
        return 1 if inputs is None else terms_of(inputs)
    return node.attributes.get_int("terms", 1)


def dequantized(node: ir.Node, values: list[ir.Value], arrays_of_b: Mapping[str, Array]) -> Array | None:
    """Returns the activation of codes, scale and zero point, float64; None without these.

    Args:
        node: The integer product.
        values: The values; empty if there are none.
        arrays_of_b: The inputs of B and its computed values, by name.
    """
    if not values:
        return None
    tensors = map(ir.convenience.get_const_tensor, values)
    arrays = [
        arrays_of_b[name_of(value)] if tensor is None else tensor.numpy()
        for value, tensor in zip(values, tensors, strict=True)
    ]
    codes, *parameters = (array.astype(np.float64) for array in arrays)
    if terms_of(node) == 2:
        first, rest = np.split(codes, 2, 1 if node.op_type == "QuantizedConv" else -1)
        codes = first * TERM_RATIO + rest
    depth = codes.shape[-1]
    scale, zero_point = (  # each row has one for each of its groups
        np.repeat(each, depth // each.shape[-1], -1) if each.ndim and 1 < each.shape[-1] < depth else each
        for each in parameters
    )
    with np.errstate(all="ignore"):  # a scale may be infinite
        return np.asarray((codes - zero_point) * scale)
