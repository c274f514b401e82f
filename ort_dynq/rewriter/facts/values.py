"""Values that are fixed before run time, and views of values that differ by nothing but form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS

# Constants of more elements are weights, whose values no rule asks for.
_MOST_ELEMENTS = 4096


def op(value: ir.Value | None, *types: str) -> ir.Node | None:
    """The node that computes `value`, if it is a standard operator of one of these types."""
    node = None if value is None else value.producer()
    return node if node is not None and node.domain in STANDARD_DOMAINS and node.op_type in types else None


def integer(node: ir.Node, name: str, default: int) -> int | None:
    """An integer attribute; None if it is a function's parameter, which each call gives."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() else attribute.as_int()


def is_given_by_caller(value: ir.Value | None) -> bool:
    """Whether a number is an attribute that each call of the function gives, or its negative."""
    if (node := op(value, "Neg", "Cast", "Identity")) is not None:
        return is_given_by_caller(node.inputs[0])
    node = op(value, "Constant")
    return node is not None and any(attribute.is_ref() for attribute in node.attributes.values())


def cast_to(node: ir.Node) -> ir.DataType:
    """The type that a Cast gives, UNDEFINED if a function's parameter says it."""
    return ir.DataType(integer(node, "to", 0) or 0)


def same(value: ir.Value) -> ir.Value:
    """What `value` is a copy of: Identity, and Cast from float32 to float32, are looked through."""
    while True:
        node = op(value, "Identity", "Cast")
        source = None if node is None else node.inputs[0]
        if node is None or source is None:
            return value
        if node.op_type == "Cast" and not (cast_to(node) == ir.DataType.FLOAT and source.dtype == ir.DataType.FLOAT):
            return value
        value = source


def array(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """A constant's elements: an initializer that is no graph input, a Constant, and Casts and reshapings of them."""
    if value is None:
        return None
    if value.is_initializer():
        tensor = None if value.is_graph_input() else value.const_value
        return None if tensor is None or tensor.size > _MOST_ELEMENTS else tensor.numpy()
    node = op(value, "Constant", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")
    if node is None:
        return None
    if node.op_type == "Constant":
        return _constant(node)
    source = array(node.inputs[0])
    if source is None or node.op_type == "Identity":
        return source
    if node.op_type == "Cast":
        to = cast_to(node)
        if to == ir.DataType.UNDEFINED or not is_number(to.numpy()) or not is_number(source.dtype):
            return None
        with np.errstate(all="ignore"):
            return source.astype(to.numpy())
    shape = value.shape
    if shape is None or not shape.is_static():
        return source.reshape(()) if source.size == 1 else None
    return source.reshape(shape.numpy()) if source.size == np.prod(shape.numpy()) else None


def _constant(node: ir.Node) -> npt.NDArray[Any] | None:
    """A Constant's elements; None for text, for what is referred to, and for weights."""
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for attribute in node.attributes.values():
        if attribute.is_ref():
            return None
        if attribute.name == "value":
            tensor = attribute.as_tensor()
            return None if tensor.size > _MOST_ELEMENTS else tensor.numpy()
        if attribute.name in dtypes:
            return np.asarray(attribute.value, dtypes[attribute.name])
    return None


def scalar(value: ir.Value | None) -> float | None:
    """The one number that a constant holds, in however many elements; zeros spread out at run time included.

    Expand(c, shape) and ConstantOfShape(shape) count as the number that they are filled with.
    """
    if value is None:
        return None
    value = same(value)
    if (node := op(value, "Expand")) is not None:
        return scalar(node.inputs[0])
    if (node := op(value, "ConstantOfShape")) is not None:
        fill = node.attributes.get("value")
        return 0.0 if fill is None else float(fill.as_tensor().numpy().reshape(-1)[0])
    if (node := op(value, "Cast", "Round", "Clip")) is not None and array(value) is None:
        source = scalar(node.inputs[0])
        return 0.0 if is_zero(source) and _keeps_zero(node) else None
    elements = array(value)
    if elements is None or elements.size == 0 or not is_number(elements.dtype):
        return None
    first = elements.reshape(-1)[0]
    return float(first) if np.all(elements == first) else None


def is_number(dtype: np.dtype[Any]) -> bool:
    """Not text, nor a complex number; the small types of ml_dtypes are of kind V."""
    return dtype.kind in "biufV"


def is_zero(number: float | None) -> bool:
    """Whether it is 0.0, and not -0.0: what is added to -0.0 differs."""
    return number == 0 and not np.signbit(number)


def is_unknown(dim: int | ir.SymbolicDim) -> bool:
    """Whether nothing is known of a dimension, not even a name."""
    return isinstance(dim, ir.SymbolicDim) and dim.value is None


def _keeps_zero(node: ir.Node) -> bool:
    if node.op_type != "Clip":
        return True
    low, high = (scalar(bound) if bound is not None else 0.0 for bound in [*node.inputs[1:], None, None][:2])
    return low is not None and high is not None and low <= 0 <= high


def shape_of(value: ir.Value | None) -> ir.Value | None:
    """What `value` is the whole shape of."""
    shape = None if value is None else op(same(value), "Shape")
    if shape is None or shape.inputs[0] is None or "end" in shape.attributes or integer(shape, "start", 0) != 0:
        return None
    return same(shape.inputs[0])


def does_not_grow(value: ir.Value | None, other: ir.Value | None) -> bool:
    """Whether an elementwise operation of `other` with the constant `value` surely keeps `other`'s shape."""
    if value is None or (value.shape is not None and len(value.shape) == 0):
        return True
    if other is not None and (node := op(same(value), "Expand", "ConstantOfShape")) is not None:
        like = shape_of(node.inputs[-1])
        is_small = node.op_type == "ConstantOfShape" or does_not_grow(node.inputs[0], other)
        if is_small and like is not None and like is same(other):
            return True
    if value.shape is None or other is None or other.shape is None:
        return False
    if len(value.shape) > len(other.shape):
        return False
    return all(
        mine == 1 or (mine == theirs and not is_unknown(mine))
        for mine, theirs in zip(reversed(value.shape), reversed(other.shape), strict=False)
    )
