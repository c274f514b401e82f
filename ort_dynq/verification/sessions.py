"""Opening and running models in ONNX Runtime for verification and timing, on inputs that are given or generated."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from ..backends.register import register
from ..errors import DynqError
from ..runtime import openable

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..runtime import Model

Array = npt.NDArray[Any]

_DTYPES: dict[str, np.dtype[Any]] = {
    f"tensor({name})": np.dtype(dtype)
    for name, dtype in (
        ("float16", np.float16),
        ("float", np.float32),
        ("double", np.float64),
        ("bool", np.bool_),
        *((kind, kind) for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
    )
}
_BATCH, _OTHER = 2, 8  # the sizes assumed of dimensions that are not fixed

# What onnxruntime says of files that are no models; anything else that it refuses is a model that does not work.
_NOT_A_MODEL = ("NoSuchFile", "InvalidProtobuf")


@dataclass(frozen=True)
class Input:
    """An input of the comparison.

    Attributes:
        given: Whether its values were given; otherwise they were generated.
        assumed: The sizes that were assumed in its shape, by dimension: the model fixes none and nobody gave any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    given: bool
    assumed: Mapping[str, int]


class Failure(Exception):
    """onnxruntime does not load or run a model."""


def open_session(
    model: Model, role: str, *, backend: Backend | None = None, optimised: bool = False
) -> ort.InferenceSession:
    """A session on the CPU.

    Args:
        model: The model.
        role: Who it is, in messages.
        backend: How it gets ort_dynq's operators; None: stock ONNX Runtime.
        optimised: Whether at the default optimisation level; otherwise all optimisations are off.

    Raises:
        DynqError: It is no model, or stock ONNX Runtime does not load it.
        Failure: ONNX Runtime with the operators does not load it.
    """
    what = f"{role} ({os.fspath(model)})" if isinstance(model, str | os.PathLike) else role
    if isinstance(model, str | os.PathLike) and (not os.path.isfile(model) or not os.path.getsize(model)):
        raise DynqError(f"{what} is {'empty' if os.path.isfile(model) else 'not a file'}")
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised; it need not be on the terminal too
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if backend:
        register(options, backend)
    with openable(model, options) as source:
        try:
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except Exception as error:
            if type(error).__name__ in _NOT_A_MODEL:
                raise DynqError(f"{what} is not an ONNX model: {message(error)}") from error
            if backend is None:
                raise DynqError(f"{what} does not load in stock ONNX Runtime: {message(error)}") from error
            raise Failure(message(error)) from error


def run(session: ort.InferenceSession, names: list[str], feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of these names.

    Raises:
        Failure: It does not run.
        DynqError: An output is not a tensor of numbers that NumPy has.
    """
    try:
        outputs: list[Array] = session.run(names, dict(feeds))
    except Exception as error:
        raise Failure(message(error)) from error
    for name, output in zip(names, outputs, strict=True):
        if not isinstance(output, np.ndarray) or output.dtype not in _DTYPES.values():
            kind = output.dtype if isinstance(output, np.ndarray) else type(output).__name__
            raise DynqError(f"the output {name} is of type {kind}, which cannot be verified")
    return outputs


def run_original(
    session: ort.InferenceSession, names: list[str], feeds: Mapping[str, Array], resolved: Sequence[Input]
) -> list[Array]:
    """As :func:`run`, of the model that everything else is compared with.

    Raises:
        DynqError: It does not run; the message names the sizes that were assumed.
    """
    try:
        return run(session, names, feeds)
    except Failure as error:
        assumed = [f"--shape {each.name}={'x'.join(map(str, each.shape))}" for each in resolved if each.assumed]
        advice = f" (assumed {' '.join(assumed)}; give other shapes so)" if assumed else ""
        raise DynqError(f"A does not run in stock ONNX Runtime{advice}: {error}") from error


def resolve_inputs(
    declared: Sequence[Any], given: Mapping[str, Array], shapes: Mapping[str, Sequence[int]]
) -> list[Input]:
    """The type and shape of every input: as given, else as the model fixes it, else assumed.

    Args:
        declared: The session's inputs.
        given: Values of some of them.
        shapes: Shapes of others.

    Raises:
        DynqError: What is given does not fit, or an input is not a tensor of numbers that NumPy has.
    """
    types = {each.name: each.type for each in declared}
    for name in (*given, *shapes):
        if name not in types:
            raise DynqError(f"the model has no input {name}; it has {', '.join(types) or 'none'}")
    known: dict[str, int] = {}
    for each in declared:
        if each.type not in _DTYPES:
            raise DynqError(f"the input {each.name} is of type {each.type}, which cannot be verified")
        if each.name in given and given[each.name].dtype != _DTYPES[each.type]:
            raise DynqError(f"the input {each.name} is {given[each.name].dtype}, expected {_DTYPES[each.type]}")
        shape = given[each.name].shape if each.name in given else shapes.get(each.name)
        if shape is None:
            continue
        fixed = [size if isinstance(size, int) else None for size in each.shape]
        if len(shape) != len(fixed) or any(size not in (None, got) for size, got in zip(fixed, shape, strict=True)):
            wanted = ", ".join(str(size or "?") for size in each.shape)
            raise DynqError(f"the input {each.name} has shape {list(shape)}, expected [{wanted}]")
        for size, got in zip(each.shape, shape, strict=True):
            if isinstance(size, str):
                known.setdefault(size, got)

    def resolve(each: Any) -> Input:
        assumed: dict[str, int] = {}

        def sized(size: int | str | None) -> int:
            if isinstance(size, int):
                return size
            if size in known:
                return known[size]
            if size and " + " in size:
                return sum(int(term) if term.isdecimal() else sized(term) for term in size.split(" + "))
            assumed[size or "?"] = _BATCH if "batch" in (size or "").lower() else _OTHER
            return assumed[size or "?"]

        exact = given[each.name].shape if each.name in given else shapes.get(each.name)
        shape = tuple(map(sized, each.shape)) if exact is None else tuple(exact)
        return Input(each.name, str(_DTYPES[each.type]), shape, each.name in given, assumed)

    return [resolve(each) for each in declared]


def make_feeds(resolved: Sequence[Input], given: Mapping[str, Array], seed: int, zero_rows: bool) -> dict[str, Array]:
    """The values of every input: those given, and seeded ones, with or without rows of zeros.

    Raises:
        DynqError: One is too large for the memory.
    """
    rng = np.random.default_rng(seed)
    return {each.name: given[each.name] if each.given else _generate(each, rng, zero_rows) for each in resolved}


def _generate(each: Input, rng: np.random.Generator, zero_rows: bool) -> Array:
    dtype = np.dtype(each.dtype)
    low, high = 0, 2  # indices, masks, flags: the values that every model takes
    if dtype.kind in "iu" and dtype.itemsize == 1:  # codes
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    elif dtype.kind in "iu" and math.prod(each.shape) == 1:  # a count
        low = 1
    try:
        if dtype.kind == "f":
            return _floats(each.shape, rng, zero_rows).astype(dtype)
        return np.asarray(rng.integers(low, high, each.shape)).astype(dtype)
    except (MemoryError, ValueError) as error:
        raise DynqError(f"the input {each.name} cannot be generated: {error}") from error


def _floats(shape: tuple[int, ...], rng: np.random.Generator, zero_rows: bool) -> Array:
    """Normal values; of every eight rows one has outliers, one is made for ties and one is zero.

    Outliers are +-127 units of 2**-4, and the row of ties holds multiples of half a unit: with a symmetric 8-bit scale,
    be it the row's or the tensor's, the quotients are exactly k or k + 1/2.
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


def message(error: BaseException) -> str:
    """An error of onnxruntime on one line, without its number."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)[:400]
