"""Dequantizations as models write them: (codes - zero point - zero) * scale + offset.

DequantizeLinear, DynamicDequantize, or Cast, Sub, Mul and Add. The codes have 8 or 4 bits and come from anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from ...graphs import operator_of
from ...operators import DOMAIN
from ..analysis.nodes import first_inputs, is_standard, producer_of
from ..analysis.shapes import has_one_element, is_equal, is_unnamed
from ..views import FLOATS, Axes, Axis, Dim, aligned, dims_of, leaves, skip_casts

MIDDLES = {ir.DataType.UINT8: 128, ir.DataType.INT8: 0, ir.DataType.UINT4: 8, ir.DataType.INT4: 0}
"""The types of codes, and the middle of each."""
DEQUANTIZERS = ("DequantizeLinear", f"{DOMAIN}.DynamicDequantize")


@dataclass(frozen=True)
class Dequantization:
    """Codes and what makes numbers of them: (codes - zero point - zero) * scale + offset.

    Attributes:
        codes, scale: The codes, and their scales.
        zero_point: Zero points of the type of the codes, or None.
        zero: Zero points of another type, such as floats, or None.
        offset: What is added to the products, or None.
        is_subtracted: Whether the offset is subtracted instead.
        axis: The axis of the codes along which vectors of parameters vary, or blocks; None: parameters broadcast.
        block: The number of elements of a block; 0: that is not known.
    """

    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None = None
    zero: ir.Value | None = None
    offset: ir.Value | None = None
    is_subtracted: bool = False
    axis: int | None = None
    block: int = 0

    @property
    def has_offset(self) -> bool:
        """Whether something but zero points of the type of the codes is added."""
        return self.zero is not None or self.offset is not None

    @property
    def parameters(self) -> list[ir.Value]:
        """The scale, and the others that there are."""
        return [each for each in (self.scale, self.zero_point, self.zero, self.offset) if each is not None]

    def axes_of(self, parameter: ir.Value, axes: Axes, tokens: Axis) -> Axes | None:
        """Returns the factors of the axes of a parameter, by which its numbers differ; None if they are not known.

        Args:
            parameter: The parameter.
            axes: The factors of the axes of the codes; one that groups divide is split.
            tokens: Those of tokens. Of a cache, codes and scales may have as many without a common name.
        """
        dims, whole, found = dims_of(parameter), dims_of(self.codes), list[Axis]()
        of_tokens = {*leaves([tokens])}
        if has_one_element(parameter, 1):
            return ((),) * len(dims)
        if self.axis is not None and len(dims) == 1:
            return (axes[self.axis],)
        if not dims or len(dims) > len(whole):
            return None
        for i, dim in enumerate(dims, len(whole) - len(dims)):
            size, axis = whole[i], axes[i]
            shared = 0  # the elements of a group; 0: there are none
            if isinstance(dim, int) and isinstance(size, int) and dim > 0 and size % dim == 0:
                shared = size // dim
            if self.block and i == self.axis and shared != self.block:
                return None
            if dim != 1 and shared > 1:
                groups = aligned(axis, (dim, shared))
                if groups is None:
                    return None
                axis = groups[0]
            elif dim != 1 and not is_equal(dim, size) and not ({*leaves([axis])} & of_tokens and _may_equal(dim, size)):
                return None
            found.append(() if dim == 1 else axis)
        return tuple(found)


def _may_equal(a: Dim, b: Dim) -> bool:
    """Returns whether two lengths are not known to differ: inference has computed one, or knows nothing of it."""
    is_computed = any(is_unnamed(each) or str(each).startswith("unk__") for each in (a, b))
    return is_computed and not isinstance(a, int) and not isinstance(b, int)


def dequantization_of(value: ir.Value) -> Dequantization | None:
    """Returns the dequantization that ends in a value; None if none does."""
    node = value.producer()
    if node is None or value.dtype not in FLOATS:
        return None
    if operator_of(node) in DEQUANTIZERS:
        return _of_linear(node)
    if is_standard(node, "Mul"):
        return _of_product(node)
    for i in (0, 1) if is_standard(node, "Add") else (0,) if is_standard(node, "Sub") else ():
        product, offset = node.inputs[i], node.inputs[1 - i]
        mul = None if product is None else producer_of(skip_casts(product), "Mul")
        found = None if mul is None else _of_product(mul)
        if found is not None and offset is not None and offset.dtype in FLOATS:
            return replace(found, offset=skip_casts(offset), is_subtracted=is_standard(node, "Sub"))
    return None


def _of_linear(node: ir.Node) -> Dequantization | None:
    """Returns the dequantization of DequantizeLinear or DynamicDequantize."""
    found = _made_of(*first_inputs(node, 3))
    if found is None or node.attributes.get_int("output_dtype", 0) not in (0, *map(int, FLOATS)):
        return None
    rank = len(dims_of(found.codes))
    if node.attributes.get_string("qtype", "") == "per_tensor" or not rank:
        return found if all(has_one_element(each, 1) for each in found.parameters) else None
    axis, block = node.attributes.get_int("axis", 1) % rank, node.attributes.get_int("block_size", 0)
    return replace(found, axis=axis, block=block)


def _of_product(node: ir.Node) -> Dequantization | None:
    """Returns the dequantization (Cast(codes) [- zero]) * scale."""
    for value, scale in (node.inputs, node.inputs[::-1]):
        if value is None or scale is None:
            continue
        sub, zero = producer_of(skip_casts(value), "Sub"), None
        if sub is not None:
            value, zero = sub.inputs
            zero = None if zero is None else codes_of_cast(zero) or skip_casts(zero)
        if (found := _made_of(codes_of_cast(value), skip_casts(scale), zero)) is not None:
            return found
    return None


def _made_of(codes: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None) -> Dequantization | None:
    """Returns the dequantization of codes, with a zero point if one is given; None if it has other types."""
    if codes is None or scale is None or codes.dtype not in MIDDLES or scale.dtype not in FLOATS:
        return None
    if zero is None or zero.dtype == codes.dtype:
        return Dequantization(codes, scale, zero)
    is_number = zero.dtype in (*MIDDLES, *FLOATS, ir.DataType.INT32)
    return Dequantization(codes, scale, zero=zero) if is_number else None


def codes_of_cast(value: ir.Value | None) -> ir.Value | None:
    """Returns the codes if a value is their Cast to floats; None if it is none."""
    cast = None if value is None else producer_of(skip_casts(value), "Cast")
    codes = None if cast is None else cast.inputs[0]
    return codes if codes is not None and codes.dtype in MIDDLES else None
