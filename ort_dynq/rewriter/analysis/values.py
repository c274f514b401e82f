"""Constant values, the nodes that compute values, and the uses of values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import OPERATORS
from ..reasons import Reason, Unconverted

CODE_TYPES = (ir.DataType.UINT8, ir.DataType.INT8)
WIDE_TYPES = (ir.DataType.INT32, ir.DataType.INT64)
_MOST_ELEMENTS = 4096  # larger constants are weights; constant_array() does not read them


def producer_of(value: ir.Value | None, *types: str) -> ir.Node | None:
    """Returns the node that computes `value` if it is a standard operator of one of these types, or None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.domain in STANDARD_DOMAINS and node.op_type in types else None


def operand(node: ir.Node, index: int = 0) -> ir.Value:
    """Returns an input of a node, before any copies.

    Raises:
        Unconverted: It is absent.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=index)
    return skip_identity(value)


class Use(NamedTuple):
    """A node and the index of the input at which it uses a value."""

    node: ir.Node
    idx: int


def only_use(value: ir.Value) -> Use | None:
    """Returns the only use of a node's output or of its copy by a standard operator of the same graph, or None.

    Identity and Cast from float32 to float32 copy; such Casts are what TorchScript makes of `x.to(x.dtype)`.
    """
    while True:
        uses, producer = value.uses(), value.producer()
        if len(uses) != 1 or value.is_graph_output() or producer is None:
            return None
        use = Use(*next(iter(uses)))
        if use.node.domain not in STANDARD_DOMAINS or use.node.graph is not producer.graph:
            return None
        if not _copies(use.node):
            return use
        value = use.node.outputs[0]


def integer(node: ir.Node, name: str, default: int) -> int | None:
    """Returns an integer attribute or its default; None if it refers to an attribute of the enclosing function."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() else attribute.as_int()


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Returns the attributes of a call of one of ort_dynq's operators by name, defaults included."""
    defaults = {attribute.name: attribute.default for attribute in OPERATORS[node.op_type].attributes}
    return defaults | {name: attribute.value for name, attribute in node.attributes.items()}


def is_given_by_caller(value: ir.Value | None) -> bool:
    """Returns whether a value is an attribute of the enclosing function, or the negative of one."""
    if (node := producer_of(value, "Neg", "Cast", "Identity")) is not None:
        return is_given_by_caller(node.inputs[0])
    node = producer_of(value, "Constant")
    return node is not None and given_by_caller(node) is not None


def given_by_caller(node: ir.Node) -> Unconverted | None:
    """Returns the reason why a node stays if an attribute refers to one of the enclosing function; else None."""
    name = next((name for name, attribute in node.attributes.items() if attribute.is_ref()), None)
    return None if name is None else Unconverted(Reason.GIVEN_BY_CALLER, name=name)


def data_type(node: ir.Node, name: str) -> ir.DataType:
    """Returns an attribute that is a type; UNDEFINED if it is absent, not a type, or refers to one of the caller."""
    try:
        return ir.DataType(integer(node, name, 0) or 0)
    except ValueError:
        return ir.DataType.UNDEFINED


def cast_to(node: ir.Node) -> ir.DataType:
    """Returns the output type of a Cast; UNDEFINED if it is not known.

    With another `saturate` than 1, ONNX Runtime fails or leaves integers uninitialized.
    """
    return data_type(node, "to") if integer(node, "saturate", 1) == 1 else ir.DataType.UNDEFINED


def skip_identity(value: ir.Value) -> ir.Value:
    """Returns the value that `value` is a copy of, before any Identity and Cast from float32 to float32."""
    while True:
        node = producer_of(value, "Identity", "Cast")
        source = None if node is None else node.inputs[0]
        if node is None or source is None:
            return value
        if not _copies(node):
            return value
        value = source


def _copies(node: ir.Node) -> bool:
    """Returns whether a standard operator is an Identity, or a Cast from float32 to float32."""
    if node.op_type != "Cast":
        return node.op_type == "Identity"
    source = node.inputs[0]
    return cast_to(node) == ir.DataType.FLOAT and source is not None and source.dtype == ir.DataType.FLOAT


def uncast(value: ir.Value | None) -> ir.Value | None:
    """Returns the uint8 or int8 integers that `value` is a float32 Cast of, or None."""
    if value is None or (cast := producer_of(skip_identity(value), "Cast")) is None or cast.inputs[0] is None:
        return None
    return cast.inputs[0] if cast.inputs[0].dtype in CODE_TYPES and cast_to(cast) == ir.DataType.FLOAT else None


def rounded_to_float16(value: ir.Value | None) -> ir.Value | None:
    """Returns the float32 value that `value` is a Cast to float16 and back of, or None."""
    wide = producer_of(value, "Cast")
    narrow = None if wide is None or cast_to(wide) != ir.DataType.FLOAT else producer_of(wide.inputs[0], "Cast")
    if narrow is None or cast_to(narrow) != ir.DataType.FLOAT16 or narrow.inputs[0] is None:
        return None
    return narrow.inputs[0] if narrow.inputs[0].dtype == ir.DataType.FLOAT else None


def constant_array(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Returns the elements of a constant; None if they are not known without running a model.

    A constant is an initializer that is not a graph input, a Constant, or a Cast or a reshaping of one.
    """
    if value is None:
        return None
    if value.is_initializer():
        tensor = None if value.is_graph_input() else value.const_value
        return None if tensor is None or tensor.size > _MOST_ELEMENTS else tensor.numpy()
    node = producer_of(value, "Constant", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")
    if node is None:
        return None
    if node.op_type == "Constant":
        return _constant(node)
    source = constant_array(node.inputs[0])
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
    """Returns the elements of a Constant; None for text, references to attributes, and large constants."""
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if given_by_caller(node):
        return None
    for attribute in node.attributes.values():
        if attribute.name == "value":
            tensor = attribute.as_tensor()
            return None if tensor.size > _MOST_ELEMENTS else tensor.numpy()
        if attribute.name in dtypes:
            return np.asarray(attribute.value, dtypes[attribute.name])
    return None


def constant_scalar(value: ir.Value | None) -> float | None:
    """Returns the number that all elements of a constant equal; None if there is no such number.

    Expand(c, shape) and ConstantOfShape(shape) have a number even if the shape is computed at run time.
    """
    if value is None:
        return None
    value = skip_identity(value)
    if (node := producer_of(value, "Expand")) is not None:
        return constant_scalar(node.inputs[0])
    if (node := producer_of(value, "ConstantOfShape")) is not None:
        fill = node.attributes.get("value")
        return 0.0 if fill is None else float(fill.as_tensor().numpy().reshape(-1)[0])
    if (node := producer_of(value, "Cast", "Round", "Clip")) is not None and constant_array(value) is None:
        source = constant_scalar(node.inputs[0])
        return 0.0 if is_zero(source) and _keeps_zero(node) else None
    elements = constant_array(value)
    if elements is None or elements.size == 0 or not is_number(elements.dtype):
        return None
    first = elements.reshape(-1)[0]
    return float(first) if np.all(elements == first) else None


def has_one_element(value: ir.Value, most_dimensions: int | None = None) -> bool:
    """Returns whether a value is known to have one element, and no more dimensions than `most_dimensions`, if given."""
    elements = constant_array(value)
    shape = value.shape if elements is None else elements.shape
    if shape is None or (most_dimensions is not None and len(shape) > most_dimensions):
        return False
    return all(dim == 1 for dim in shape)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Returns whether a type is one of real numbers or Booleans; the small types of ml_dtypes are of kind V."""
    return dtype.kind in "biufV"


def is_float16(elements: npt.NDArray[Any]) -> bool:
    """Returns whether float16 represents all elements; NaN counts as a number that it does not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((elements.astype(np.float16) == elements).all())


def is_zero(number: float | None) -> bool:
    """Returns whether a number is 0.0 and not -0.0: adding them to -0.0 gives different zeros."""
    return number == 0 and not np.signbit(number)


def is_unknown(dim: int | ir.SymbolicDim) -> bool:
    """Returns whether a dimension has neither a length nor a name."""
    return isinstance(dim, ir.SymbolicDim) and dim.value is None


def _keeps_zero(node: ir.Node) -> bool:
    if node.op_type != "Clip":
        return True
    low, high = (constant_scalar(bound) if bound is not None else 0.0 for bound in [*node.inputs[1:], None, None][:2])
    return low is not None and high is not None and low <= 0 <= high


def shape_of(value: ir.Value | None) -> ir.Value | None:
    """Returns the value that `value` is the whole shape of, or None."""
    shape = None if value is None else producer_of(skip_identity(value), "Shape")
    if shape is None or shape.inputs[0] is None or "end" in shape.attributes or integer(shape, "start", 0) != 0:
        return None
    return skip_identity(shape.inputs[0])


def does_not_grow(value: ir.Value | None, other: ir.Value | None) -> bool:
    """Returns whether an elementwise operation of `other` with a constant is known to keep the shape of `other`."""
    if value is None or (value.shape is not None and len(value.shape) == 0):
        return True
    if other is not None and (node := producer_of(skip_identity(value), "Expand", "ConstantOfShape")) is not None:
        like = shape_of(node.inputs[-1])
        is_small = node.op_type == "ConstantOfShape" or does_not_grow(node.inputs[0], other)
        if is_small and like is not None and like is skip_identity(other):
            return True
    if value.shape is None or other is None or other.shape is None:
        return False
    if len(value.shape) > len(other.shape):
        return False
    return all(
        mine == 1 or (mine == theirs and not is_unknown(mine))
        for mine, theirs in zip(reversed(value.shape), reversed(other.shape), strict=False)
    )
