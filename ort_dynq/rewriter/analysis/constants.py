"""The elements of small constants, read from the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .nodes import cast_to, producer_of

_FEW = 1024
_MOST_COMPUTED = 16
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Pow": np.power,
}
_MOST_ELEMENTS = 4096  # larger constants are weights; constant_array() does not read them


def constant_array(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Returns the elements of a constant; None if they are not known without running a model.

    A constant is an initializer that is not a graph input, a Constant, a Cast or a reshaping of a constant, or the
    result of arithmetic of few numbers, such as the bounds -2**(bits - 1) and 2**(bits - 1) - 1.
    """
    if value is None:
        return None
    if value.is_initializer():
        tensor = None if value.is_graph_input() else value.const_value
        if tensor is None or tensor.size > _MOST_ELEMENTS:
            return None
        is_missing = isinstance(tensor, ir.ExternalTensor) and not os.path.exists(tensor.path)
        return None if is_missing else tensor.numpy()  # a model can be inspected without its weights
    node = producer_of(value, "Constant", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", *_ARITHMETIC)
    if node is None:
        return None
    if node.op_type in _ARITHMETIC:
        return _computed(node)
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


def _computed(node: ir.Node) -> npt.NDArray[Any] | None:
    """Returns the result of float arithmetic of few constants, which IEEE 754 or exact integers determine; or None."""
    inputs = [constant_array(each) for each in node.inputs]
    known = [each for each in inputs if each is not None and each.dtype in (np.float32, np.float64)]
    if len(known) < len(inputs) or any(each.size > _MOST_COMPUTED for each in known):
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(_ARITHMETIC[node.op_type](*known))
    except ValueError:  # a wrong model
        return None
    if node.op_type == "Pow" and not all((each == np.rint(each)).all() for each in (*known, result)):
        return None
    return result if result.dtype == known[0].dtype else None


def _constant(node: ir.Node) -> npt.NDArray[Any] | None:
    """Returns the elements of a Constant; None for text, references to attributes, and large constants."""
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for attribute in node.attributes.values():
        if attribute.is_ref():  # in a function that stays
            return None
        if attribute.name == "value":
            tensor = attribute.value  # as_tensor() checks a protocol, which takes longer than the rest
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
    is_mixed = first == 0 and elements.dtype.kind == "f" and len(np.unique(np.signbit(elements))) > 1  # 0 and -0
    return float(first) if np.all(elements == first) and not is_mixed else None


def _keeps_zero(node: ir.Node) -> bool:
    if node.op_type != "Clip":
        return True
    low, high = (constant_scalar(bound) if bound is not None else 0.0 for bound in [*node.inputs[1:], None, None][:2])
    return low is not None and high is not None and low <= 0 <= high


def is_number(dtype: np.dtype[Any]) -> bool:
    """Returns whether a type has real numbers or Booleans; the small types of ml_dtypes are of kind V."""
    return dtype.kind in "biufV"


def is_float16(elements: npt.NDArray[Any]) -> bool:
    """Returns whether float16 represents all elements exactly; False if there is a NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        # A few of them show most of the time that it does not.
        return all((part.astype(np.float16) == part).all() for part in (elements.flat[:_FEW], elements))


def is_zero(number: float | None) -> bool:
    """Returns whether a number is 0.0 and not -0.0: adding them to -0.0 gives different zeros."""
    return number == 0 and not np.signbit(number)
