"""The elements of small constants, read from the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .limits import CHAIN, COMPUTED, CONSTANTS, ELEMENTS
from .nodes import cast_to, input_of, is_standard, producer_of
from .standard import PASSING, REPEATING, RESHAPES, ROUNDING

_FEW = 1024
_MOVES = RESHAPES - {"Flatten"} | PASSING  # no exporter flattens constants
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Pow": np.power,
}


def constant_array(value: ir.Value | None, *, depth: int = 0) -> npt.NDArray[Any] | None:
    """Returns the elements of a constant; None if they are not known without running a model.

    A constant is an initializer that is not a graph input, a Constant, a Cast or a reshaping of a constant, or the
    result of arithmetic of few numbers, such as the bounds -2**(bits - 1) and 2**(bits - 1) - 1; `depth` counts the
    nodes of arithmetic behind it.
    """
    moves = list[ir.Node]()
    while (node := producer_of(value, *_MOVES)) is not None:
        if CHAIN.is_passed(len(moves) + 1):
            return None
        moves.append(node)
        value = node.inputs[0]
    elements = _unmoved(value, depth)
    while elements is not None and moves:
        elements = _moved(elements, moves.pop())
    return elements


def _unmoved(value: ir.Value | None, depth: int) -> npt.NDArray[Any] | None:
    """Returns the elements of an initializer, a Constant, or the result of arithmetic."""
    if value is None:
        return None
    if value.is_initializer():
        tensor = None if value.is_graph_input() else value.const_value
        if tensor is None or tensor.size > ELEMENTS.most:
            return None
        is_missing = isinstance(tensor, ir.ExternalTensor) and not os.path.exists(tensor.path)
        return None if is_missing else tensor.numpy()  # a model can be inspected without its weights
    node = producer_of(value, "Constant", *_ARITHMETIC)
    if node is None or node.op_type == "Constant":
        return None if node is None else _constant(node)
    return None if CONSTANTS.is_passed(depth + 1) else _computed(node, depth + 1)


def _moved(source: npt.NDArray[Any], node: ir.Node) -> npt.NDArray[Any] | None:
    """Returns the elements of a constant after an Identity, a Cast or a reshaping."""
    if node.op_type == "Identity":
        return source
    if node.op_type == "Cast":
        to = cast_to(node)
        if to == ir.DataType.UNDEFINED or not is_number(to.numpy()) or not is_number(source.dtype):
            return None
        with np.errstate(all="ignore"):
            return source.astype(to.numpy())
    shape = node.outputs[0].shape
    if shape is None or not shape.is_static():
        return source.reshape(()) if source.size == 1 else None
    return source.reshape(shape.numpy()) if source.size == np.prod(shape.numpy()) else None


def _computed(node: ir.Node, depth: int) -> npt.NDArray[Any] | None:
    """Returns the result of float arithmetic of few constants, which IEEE 754 or exact integers determine; or None."""
    known = list[npt.NDArray[Any]]()
    for value in node.inputs:
        each = constant_array(value, depth=depth)
        if each is None or each.dtype not in (np.float32, np.float64) or each.size > COMPUTED.most:
            return None
        known.append(each)
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
            return None if tensor.size > ELEMENTS.most else tensor.numpy()
        if attribute.name in dtypes:
            return np.asarray(attribute.value, dtypes[attribute.name])
    return None


def is_idle_dropout(node: ir.Node) -> bool:
    """Returns whether a node is a Dropout that does not train: output 0 is its input."""
    if not is_standard(node, "Dropout"):
        return False
    training = input_of(node, 2)
    return training is None or constant_scalar(training) == 0


def constant_scalar(value: ir.Value | None) -> float | None:
    """Returns the number that all elements of a constant equal; None if there is no such number.

    Expand(c, shape) and ConstantOfShape(shape) have a number even if the shape is computed at run time.
    """
    is_kept, types = True, list[ir.DataType]()
    for _ in CHAIN.steps():
        node = producer_of(value, *REPEATING, *RESHAPES, *ROUNDING, "Cast", "Clip")
        if node is None or (node.op_type not in REPEATING and constant_array(value) is not None):
            break
        if node.op_type == "Cast" and cast_to(node).is_floating_point():
            types.append(cast_to(node))
        elif node.op_type not in REPEATING | RESHAPES:
            is_kept = False  # a number other than 0 may change
            if not _keeps_zero(node):
                return None
        value = node.inputs[0]
    if (node := producer_of(value, "ConstantOfShape")) is not None:
        fill = node.attributes.get("value")
        number: float | None = 0.0 if fill is None else float(fill.as_tensor().numpy().reshape(-1)[0])
    else:
        number = _number_of(constant_array(value))
    with np.errstate(over="ignore"):
        is_kept = is_kept and all(each.numpy().type(number) == number for each in types if number is not None)
    return number if is_kept or is_zero(number) else None


def _number_of(elements: npt.NDArray[Any] | None) -> float | None:
    if elements is None or elements.size == 0 or not is_number(elements.dtype):
        return None
    first = elements.reshape(-1)[0]
    is_mixed = first == 0 and elements.dtype.kind == "f" and len(np.unique(np.signbit(elements))) > 1  # 0 and -0
    return float(first) if np.all(elements == first) and not is_mixed else None


def _keeps_zero(node: ir.Node) -> bool:
    if node.op_type != "Clip":
        return True
    bounds = [*node.inputs[1:], None, None][:2]
    low, high = (0.0 if bound is None else _number_of(constant_array(bound)) for bound in bounds)
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
