"""Numbers that a model computes from constants and from the shapes of its tensors.

Example: Mul(Gather(Shape(x), 0), 3) is 12 if x is [4, n].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .constants import constant_array, is_number
from .limits import CHAIN, FACTORS, LENGTHS
from .nodes import is_standard, producer_of
from .shapes import is_equal, shape_source, unreshaped
from .standard import AXES, PASSING, REARRANGING, RESHAPES, ROOTS, SCALING, SELECTING, SIZES

Length: TypeAlias = "int | ir.SymbolicDim | None"
"""A dimension, or None if it is not known."""
_INEXACT = 1 << 53  # float64 has no odd integers from here on
_TIMES = " × "  # in the names of lengths that are products
_MOVES = REARRANGING - {"Flatten"} | SELECTING - {"Split"} | PASSING | {"Concat"}  # no exporter writes them for shapes
_OF_PRODUCTS = AXES | SCALING | {"Cast", "Gather", "ReduceProd"}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mod": np.mod,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}

_Elements: TypeAlias = "npt.NDArray[np.float64] | None"
_Found: TypeAlias = dict[tuple[ir.Value, int], _Elements]  # elements by value and distance: a value may be read often


def known_number(value: ir.Value) -> float | None:
    """Returns the number that a tensor of one element is known to have before run time, or None.

    Exporters compute the scale of attention from the shape of the query. Its last dimension is known, also if others
    are not.
    """
    try:
        with np.errstate(all="ignore"):
            elements = _elements(value, {})
    except (ArithmeticError, LookupError, ValueError):  # an index is not known, or out of range
        return None
    number = math.nan if elements is None or elements.size != 1 else float(elements.reshape(()))
    return None if math.isnan(number) else number


def known_condition(value: ir.Value | None) -> bool | None:
    """Returns whether a comparison of two integers holds, if both are known before run time; None for other values.

    Exporters ask for the rank of a tensor so: Greater(Size(Shape(x)), 1). Floats are rounded at run time, not here.
    """
    node = producer_of(value, *_COMPARISONS)
    if node is None or not all(each is not None and each.dtype and each.dtype.is_integer() for each in node.inputs):
        return None
    numbers = [None if each is None else known_number(each) for each in node.inputs]
    if None in numbers:
        return None
    return bool(_COMPARISONS[node.op_type](*numbers))


def known_lengths(value: ir.Value | None) -> list[int | None] | None:
    """Returns the elements of a vector of integers, such as a shape, None for those that are not known; or None."""
    try:
        with np.errstate(all="ignore"):
            elements = _elements(value, {})
    except (ArithmeticError, LookupError, ValueError):
        return None
    if elements is None or elements.ndim != 1:
        return None
    return [int(each) if math.isfinite(each) else None for each in elements.tolist()]


def elements_of_shape(value: ir.Value | None) -> list[Length] | None:
    """Returns the elements of a vector, numbers and lengths of tensors; None for those that are not known; or None.

    torch keeps a dimension in an Expand by -1, which Where(shape == -1 * ones, ones, shape) makes 1 before it.
    """
    where = None if value is None else producer_of(value, "Where")
    kept = value if where is None else _kept_by_minus_one(where)
    while (node := producer_of(kept, *RESHAPES, "Identity")) is not None and _are_vectors(node.inputs[0], kept):
        kept = node.inputs[0]
    given, concat = known_lengths(kept), producer_of(kept, "Concat")
    if given is None:
        return None
    lengths = [None] * len(given) if concat is None else _lengths_of_parts(concat)
    lengths = lengths if len(lengths) == len(given) else [None] * len(given)
    found = [length if n is None else n for n, length in zip(given, lengths, strict=True)]
    return found if where is None else [1 if each == -1 else each for each in found]


def _lengths_of_parts(concat: ir.Node) -> list[Length]:
    """Returns the elements of the parts of a shape, each a number or the dimensions of a tensor.

    tf2onnx takes the larger ones of the dimensions of two tensors that broadcast: they are equal, or 1.
    """
    found = list[Length]()
    for part in concat.inputs:
        largest = producer_of(part, "Max")
        given = [_lengths_of_shape(each) for each in (largest.inputs if largest is not None else [part])]
        known = [each for each in given if each is not None]
        if len(known) < len(given) or len({len(each) for each in known}) > 1:
            found.append(known_product(part))
            continue
        for lengths in zip(*known, strict=True):
            others = [each for each in lengths if each != 1] or [1]
            found.append(others[0] if all(_are_same(each, others[0]) for each in others[1:]) else None)
    return found


def _are_same(a: Length, b: Length) -> bool:
    return a is not None and b is not None and is_equal(a, b)


def _kept_by_minus_one(where: ir.Node) -> ir.Value | None:
    """Returns the shape of Where(shape == -1, 1, shape); None for other nodes."""
    equal, (_, ones, shape) = producer_of(where.inputs[0], "Equal"), where.inputs
    if equal is None or shape is None or shape not in equal.inputs or set(known_lengths(ones) or ()) != {1}:
        return None
    others = [each for each in equal.inputs if each is not shape]
    return shape if len(others) == 1 and set(known_lengths(others[0]) or ()) == {-1} else None


def _are_vectors(*values: ir.Value | None) -> bool:
    return all(each is not None and each.shape is not None and len(each.shape) == 1 for each in values)


def known_product(value: ir.Value | None, distance: int = 0) -> Length:
    """Returns the length that a number is, if it is a product of the lengths of a tensor, divided by a number or not.

    Example: Div(ReduceProd(Shape(x)), 64), the number of the rows of x, is the length "6 × b" if x is [b, 6, 64].
    """
    if value is None or value.dtype != ir.DataType.INT64 or FACTORS.is_passed(distance):
        return None
    node = producer_of(value, *_OF_PRODUCTS)
    if node is None:
        number = known_number(value)
        return int(number) if number is not None and number > 0 else None
    if node.op_type == "ReduceProd":
        lengths = _lengths_of_shape(node.inputs[0])
        is_whole = len(node.inputs) == 1 and node.attributes.keys() <= {"keepdims"}
        return product_of(lengths) if lengths and is_whole else None
    if node.op_type == "Gather":
        lengths = _lengths_of_shape(value)
        return product_of(lengths) if lengths is not None and len(lengths) == 1 else None
    count = 2 if node.op_type in SCALING else 1
    lengths = [known_product(each, distance + 1) for each in node.inputs[:count]]
    if node.op_type != "Div":
        return product_of(lengths)
    (number, names), divisor = factors_of(lengths[:1]) or (0, []), lengths[1]
    return product_of([number // divisor, *names]) if isinstance(divisor, int) and not number % divisor else None


def _lengths_of_shape(value: ir.Value | None) -> list[Length] | None:
    """Returns the dimensions of a tensor that a Shape, or a Gather of some of its elements, has; None for others."""
    gather, data = producer_of(value, "Gather"), shape_source(value)
    if data is not None:
        return None if data.shape is None else list(data.shape)
    lengths = None if gather is None else _lengths_of_shape(gather.inputs[0])
    indices = None if gather is None else constant_array(gather.inputs[1])
    if lengths is None or indices is None or not all(-len(lengths) <= i < len(lengths) for i in indices.reshape(-1)):
        return None
    return [lengths[int(i)] for i in indices.reshape(-1)]


def factors_of(lengths: Iterable[Length]) -> tuple[int, list[ir.SymbolicDim]] | None:
    """Returns the number and the names that lengths are the product of; None if one is not known."""
    number, names = 1, list[ir.SymbolicDim]()
    for each in lengths:
        if isinstance(each, int):
            number *= each
        elif each is None or each.value is None:
            return None
        elif (parts := str(each.value).split(_TIMES))[1:] and parts[0].isdecimal():
            number, names = number * int(parts[0]), [*names, *map(ir.SymbolicDim, parts[1:])]
        else:
            names.append(each)
    return number, sorted(names, key=str)


def product_of(lengths: Iterable[Length]) -> Length:
    """Returns the product of lengths, which has a name of its own; None if it is not known, is 0, or has many names."""
    number, names = factors_of(lengths) or (0, [])
    if FACTORS.is_passed(len(names)):
        return None
    if number < 1 or not names:
        return number if number > 0 else None
    is_one = number == 1 and len(names) == 1
    texts = [str(number), *(str(name.value) for name in names)]
    return names[0] if is_one else ir.SymbolicDim(_TIMES.join(texts))


def solved_lengths(graph: ir.Graph, names: Collection[int | ir.SymbolicDim]) -> dict[int | ir.SymbolicDim, int]:
    """Returns lengths of these dimensions that follow from Reshapes to a constant shape, which fail otherwise.

    Example: [n, 256] becomes [2, 4, 256] only if n is 8. A Reshape in a branch says nothing of other runs, nor does one
    with a result that is read for its shape alone, since ONNX Runtime may remove it.
    """
    found, needed = dict[int | ir.SymbolicDim, int](), set(graph.outputs)
    for node in reversed(graph) if names else ():
        if needed.isdisjoint(node.outputs):
            continue
        if not is_standard(node, *SIZES):
            needed.update(each for each in node.inputs if each is not None)
        lengths = known_lengths(node.inputs[1]) if is_standard(node, "Reshape") else None
        if lengths is None or not all(length is not None and length > 0 for length in lengths):
            continue
        before = factors_of((node.inputs[0] and unreshaped(node.inputs[0]).shape) or [None])
        total = math.prod(length or 0 for length in lengths)
        if before is None or len(before[1]) != 1 or before[1][0] not in names:
            continue
        if before[0] and total % before[0] == 0:
            found[before[1][0]] = total // before[0]
    return found


def _elements(value: ir.Value | None, found: _Found, distance: int = 0) -> _Elements:
    """Returns the elements of a number or a shape; NaN for a length that is not known."""
    if value is None or CHAIN.is_passed(distance):
        return None
    if (value, distance) not in found:
        computed = _computed(value, found, distance)
        if computed is not None and producer_of(value, "Cast", "Size", *_ARITHMETIC) is not None:
            computed = _without_overflow(computed, value.dtype)
        found[value, distance] = computed
    return found[value, distance]


def _computed(value: ir.Value, found: _Found, distance: int) -> _Elements:
    if (elements := constant_array(value)) is not None:
        return elements.astype(np.float64) if is_number(elements.dtype) else None
    node = producer_of(value, *_MOVES, "ConstantOfShape", *SIZES, *_ARITHMETIC)
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Concat":
        return _concatenated(node, found, distance + 1)
    if node.op_type == "ConstantOfShape":
        given, length = node.attributes.get("value"), _elements(node.inputs[0], found, distance + 1)
        number = 0.0 if given is None else float(given.as_tensor().numpy().reshape(-1)[0])
        return (
            None if length is None or math.prod(length.tolist()) > LENGTHS.most else np.full(length.astype(int), number)
        )
    is_integer = value.dtype is not None and value.dtype.is_integer()
    if node.op_type in ("Cast", *_ARITHMETIC) and (value.dtype is None or (is_integer and not _is_exact(node))):
        return None  # integers round
    if node.op_type in SIZES:
        if node.inputs[0].shape is None:
            return None
        dims = [dim if isinstance(dim, int) else math.nan for dim in node.inputs[0].shape]
        if node.op_type == "Size":
            return np.array(math.prod(dims))
        return np.array(dims[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(dims))])
    inputs = [_elements(each, found, distance + 1) for each in node.inputs]
    known = [each for each in inputs if each is not None]
    if len(known) < len(inputs):
        return None
    first, *others = known
    is_arithmetic = node.op_type in _ARITHMETIC
    if is_arithmetic and math.prod(np.broadcast_shapes(*(each.shape for each in known))) > LENGTHS.most:
        return None
    if node.op_type == "Div" and is_integer:
        return np.trunc(np.divide(*known))
    if is_arithmetic:
        return np.asarray(_ARITHMETIC[node.op_type](*known))
    if node.op_type == "Slice":
        start, end, axis, step = (
            int(each.reshape(-1)[0]) for each in (*others, *(np.zeros(1), np.ones(1))[len(others) - 2 :])
        )
        if any(each.size != 1 for each in others) or axis not in (0, -first.ndim):
            return None
        return first[_slice(start, end, step, len(first))]
    if node.op_type == "Reshape":
        return first.reshape(others[0].astype(np.int64)) if 0 not in others[0] else None
    if node.op_type == "Transpose":
        is_reversed = first.ndim == 2 and list(node.attributes.get_ints("perm", (1, 0))) == [1, 0]
        return first.T if is_reversed or first.ndim == 1 else None
    if node.op_type == "Gather":
        return first[others[0].astype(np.int64)] if first.ndim == 1 else None
    if node.op_type in AXES:
        return first.reshape(() if node.op_type == "Squeeze" else 1) if first.size == 1 else None
    return first


def _without_overflow(elements: npt.NDArray[np.float64], dtype: ir.DataType | None) -> npt.NDArray[np.float64]:
    """Returns computed elements, NaN for integers that wrap around at run time or that float64 rounds here."""
    if dtype is None or not dtype.is_integer():
        return elements
    wraps = 1 << (dtype.bitwidth - dtype.is_signed())
    low, high = (-wraps if dtype.is_signed() else 0), min(wraps, _INEXACT)
    return np.where((elements >= max(low, 1 - _INEXACT)) & (elements < high), elements, math.nan)


def _is_exact(node: ir.Node) -> bool:
    """Returns whether a node with an integer result computes it from integers, in a way that is known."""
    given = node.inputs[0]
    is_of_integers = given is not None and given.dtype is not None and given.dtype.is_integer()
    is_mod_of_floats = node.op_type == "Mod" and node.attributes.get_int("fmod", 0) != 0
    return is_of_integers and not is_mod_of_floats and node.op_type not in ROOTS | {"Pow"}


def _slice(start: int, end: int, step: int, length: int) -> slice:
    """Returns a slice of ONNX as one of Python. Its end may lie before the first element."""
    return slice(start, None if step < 0 and end < -length else end, step)


def _concatenated(node: ir.Node, found: _Found, distance: int) -> _Elements:
    """Returns the elements of a Concat of vectors; NaN for those that are not known.

    Raises:
        ValueError: The number of elements of an input is not known.
    """
    parts, length = list[npt.NDArray[np.float64]](), 0
    for value in node.inputs:
        elements = _elements(value, found, distance)
        if elements is None:
            if value is None or value.shape is None or len(value.shape) != 1 or not isinstance(value.shape[0], int):
                raise ValueError
            elements = np.broadcast_to(math.nan, value.shape[0])
        length += elements.size
        if length > LENGTHS.most:
            return None
        parts.append(np.atleast_1d(elements))
    return np.concatenate(parts)
