"""Chooses types, shapes and values of a model's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import four_bits
from .errors import DynqError

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    f"tensor({name})": np.dtype(dtype)
    for name, dtype in (
        ("float16", np.float16),
        ("float", np.float32),
        ("double", np.float64),
        ("bool", np.bool_),
        *((kind, kind) for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
    )
} | four_bits.TYPES
"""The NumPy types of ONNX Runtime's tensor types that can be generated and compared."""
NAMED = {str(dtype): dtype for dtype in DTYPES.values()}
"""The NumPy types by name."""
_BATCH, ASSUMED = 2, 8  # the sizes that are assumed for dynamic dimensions: the batch, and others


@dataclass(frozen=True)
class Input:
    """An input of both models.

    Attributes:
        name, dtype, shape: Its name, NumPy type and shape.
        given: Whether its values were given; otherwise they are generated.
        assumed: The sizes of dynamic dimensions that were assumed, by the name of the dimension.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    given: bool
    assumed: Mapping[str, int]


@dataclass(frozen=True)
class Given:
    """What is given of a model's inputs; the rest is generated.

    Attributes:
        inputs: The values of some inputs, by name.
        shapes: The shapes of other inputs, by name.
    """

    inputs: Mapping[str, Array] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


def resolve_inputs(
    declared: Sequence[Any],
    given: Mapping[str, Array],
    shapes: Mapping[str, Sequence[int]],
    other: int = ASSUMED,
    batch: int = _BATCH,
) -> list[Input]:
    """Chooses the type and shape of every input: as given, or as the model declares it. Dynamic sizes are assumed.

    Dimensions with the same name get the same size. A name like "past + 1" gets the sum of its terms.

    Args:
        declared: The inputs of a session.
        given: The values of some inputs, by name.
        shapes: The shapes of other inputs, by name.
        other: The size that is assumed for dynamic dimensions other than the batch.
        batch: The size that is assumed for the batch.

    Raises:
        DynqError: A value or shape does not fit, or an input is not a tensor of a supported type.
    """
    types = {each.name: each.type for each in declared}
    for name in (*given, *shapes):
        if name not in types:
            raise DynqError(f"the model has no input {name}; it has {', '.join(types) or 'none'}")
    for name, array in given.items():
        if not isinstance(array, np.ndarray):
            raise DynqError(f"the input {name} is a {type(array).__name__}, expected a NumPy array")
    known: dict[str, int] = {}
    for each in declared:
        if each.type not in DTYPES:
            raise DynqError(f"the input {each.name} is of type {each.type}, which cannot be verified")
        if each.name in given and each.type in four_bits.TYPES:
            four_bits.checked(each.name, given[each.name], each.type)
        elif each.name in given and given[each.name].dtype != DTYPES[each.type]:
            raise DynqError(f"the input {each.name} is {given[each.name].dtype}, expected {DTYPES[each.type]}")
        shape = given[each.name].shape if each.name in given else shapes.get(each.name)
        if shape is not None:
            known = _sizes_by_name(each, shape) | known
    return [_resolve(each, given, shapes, known, other, batch) for each in declared]


def _sizes_by_name(declared: Any, shape: Sequence[int]) -> dict[str, int]:
    """Returns the sizes of named dimensions in a given shape.

    Raises:
        DynqError: The shape contradicts the declared one.
    """
    if not declared.shape:  # a scalar, or a shape that the model does not declare: ONNX Runtime checks it
        return {}
    fixed = [size if isinstance(size, int) else None for size in declared.shape]
    if len(shape) != len(fixed) or any(size not in (None, got) for size, got in zip(fixed, shape, strict=True)):
        expected = ", ".join(str(size or "?") for size in declared.shape)
        raise DynqError(f"the input {declared.name} has shape {list(shape)}, expected [{expected}]")
    pairs = [(size, got) for size, got in zip(declared.shape, shape, strict=True) if isinstance(size, str)]
    return dict(reversed(pairs))  # the first of two dimensions with the same name decides


def _resolve(
    declared: Any,
    given: Mapping[str, Array],
    shapes: Mapping[str, Sequence[int]],
    known: Mapping[str, int],
    other: int,
    batch: int,
) -> Input:
    name: str = declared.name
    assumed: dict[str, int] = {}

    def resolve_size(size: int | str | None) -> int:
        if isinstance(size, int):
            return size
        dimension = size or "?"
        if dimension in known:
            return known[dimension]
        if " + " in dimension:
            return sum(int(term) if term.isdecimal() else resolve_size(term) for term in dimension.split(" + "))
        assumed[dimension] = batch if "batch" in dimension.lower() else other
        return assumed[dimension]

    exact = given[name].shape if name in given else shapes.get(name)
    shape = tuple(map(resolve_size, declared.shape)) if exact is None else tuple(exact)
    return Input(name, str(DTYPES[declared.type]), shape, name in given, assumed)


def make_feeds(resolved: Sequence[Input], given: Mapping[str, Array], seed: int, zero_rows: bool) -> dict[str, Array]:
    """Returns the values of every input: the given ones, and seeded ones for the others.

    Args:
        resolved: The inputs.
        given: The values of the given inputs.
        seed: The seed of the generated values.
        zero_rows: Whether generated floats contain rows of zeros.

    Raises:
        DynqError: An input does not fit in memory.
    """
    rng = np.random.default_rng(seed)
    return {each.name: given[each.name] if each.given else _generate(each, rng, zero_rows) for each in resolved}


def _generate(each: Input, rng: np.random.Generator, zero_rows: bool) -> Array:
    dtype = NAMED[each.dtype]
    low, high = 0, 2  # indices, masks and flags: every model accepts 0 and 1
    if dtype in four_bits.LIMITS:
        low, high = four_bits.LIMITS[dtype][0], four_bits.LIMITS[dtype][1] + 1
    elif dtype.kind in "iu" and dtype.itemsize == 1:  # codes
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    elif dtype.kind in "iu" and math.prod(each.shape) == 1:  # a count
        low = 1
    try:
        if dtype.kind == "f":
            return _generate_floats(each.shape, rng, zero_rows).astype(dtype)
        return np.asarray(rng.integers(low, high, each.shape)).astype(dtype)
    except (MemoryError, ValueError) as error:
        raise DynqError(f"the input {each.name} cannot be generated: {error}") from error


def _generate_floats(shape: tuple[int, ...], rng: np.random.Generator, zero_rows: bool) -> Array:
    """Generates normal values. Of every eight rows, one has an outlier, one has ties and one is zero.

    The outlier is 127 * 2**-4. The row of ties holds multiples of 2**-5, and -127 * 2**-4. With a symmetric 8-bit
    scale, per row or per tensor, the quotients of these rows are exactly k or k + 1/2.
    """
    values = np.asarray(rng.standard_normal(shape))
    if values.ndim < 2 or values.size == 0:
        return values
    unit = 2.0**-4
    rows = values.reshape(-1, shape[-1])
    rows[0::8, 0] = 127 * unit
    rows[1::8] = rng.integers(-254, 255, rows[1::8].shape) * (unit / 2)
    rows[1::8, 0] = -127 * unit
    if zero_rows:
        rows[3::8] = 0
    return rows.reshape(shape)
