"""The operators of the native library on NumPy arrays, without a session."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from . import library
from .errors import DynqError
from .operators import OPERATORS

Array = npt.NDArray[Any]

# The element types of the operators, by ONNX's numbers (TensorProto.DataType).
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    5: np.dtype(np.int16),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    10: np.dtype(np.float16),
    16: np.dtype(ml_dtypes.bfloat16),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_FOUR_BITS = (21, 22)
_MESSAGE_SIZE = 1024


def run(operator: str, inputs: Sequence[Array | None], **attributes: str | int | Sequence[int]) -> list[Array]:
    """Runs one operator of :data:`ort_dynq.operators.OPERATORS` on the calling thread.

    Args:
        operator: Its name.
        inputs: Its inputs; None for an optional input that is absent.
        attributes: Its attributes, integers, strings or lists of integers. Absent attributes have their defaults.

    Returns:
        Its outputs.

    Raises:
        DynqError: The operator is unknown, or a type, shape or attribute is not valid.
    """
    native = library.load()
    arrays = [array if array is None else np.asarray(array, order="C") for array in inputs]
    stored = [array if array is None else _stored(array) for array in arrays]
    tensors = (library.Tensor * len(arrays))(*map(_tensor, arrays, stored))
    lists = {
        name: tuple(value)
        for name, value in attributes.items()
        if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    }
    given = _attributes(operator, tuple((attributes | lists).items()))
    outputs: dict[int, tuple[Array, Array]] = {}
    too_large: list[str] = []  # with no elements, the library needs no memory

    def allocate(_user: int, index: int, number: int, dims: Any, rank: int) -> int:
        try:
            output = np.empty(dims[:rank], _DTYPES[number])
            outputs[index] = output, _stored(output)
        except (MemoryError, ValueError):  # the library reports null; an exception would return an undefined address
            too_large.append(f"output {index} has shape {'x'.join(map(str, dims[:rank]))}")
            return 0
        return _address(outputs[index][1])

    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    failed = native.ort_dynq_run(
        operator.encode(),
        given,
        len(given),
        tensors,
        len(tensors),
        library.Allocate(allocate),
        None,
        message,
        _MESSAGE_SIZE,
    )
    if failed:
        raise DynqError(message.value.decode())
    if too_large:
        raise DynqError(f"{operator}: {too_large[0]}, expected one that an array may have")
    for output, bytes_ in outputs.values():
        if _is_packed(output):
            codes = np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(-1)[: output.size]
            output[...] = codes.astype(output.dtype).reshape(output.shape)
    return [outputs[index][0] for index in sorted(outputs)]


def supported_isas() -> list[str]:
    """The instruction sets that this CPU and this build support, best first; the last is ``portable``."""
    native = library.load()
    names: list[str] = []
    while (name := native.ort_dynq_supported_isa(len(names))) is not None:
        names.append(name.decode())
    return names


def isa() -> str:
    """The instruction set in use.

    Raises:
        DynqError: The environment variable ``ORT_DYNQ_ISA`` names an unknown or unsupported instruction set.
    """
    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    name = library.load().ort_dynq_isa(message, _MESSAGE_SIZE)
    if name is None:
        raise DynqError(message.value.decode())
    return str(name.decode())


@contextlib.contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Selects an instruction set within the block, for the whole process and all of its sessions.

    Raises:
        DynqError: This CPU or this build does not support it.
    """
    before = isa()
    if name == before:  # virtual machines take 0.1 ms to say what the CPU supports
        yield
        return
    _select_isa(name)
    try:
        yield
    finally:
        _select_isa(before)


@contextlib.contextmanager
def use_algorithm(
    name: Literal["winograd", "strassen", "conv_rows"], use: Literal["always", "never"]
) -> Iterator[None]:
    """Within the block, an algorithm computes products and convolutions wherever it can, or never.

    For tests and measurements: results are the same. Holds for the whole process and all of its sessions. Without it,
    an algorithm is used where it is faster.

    Args:
        name: Winograd's, for convolutions of 3x3 and stride 1; Strassen's, for matrix products; or matrix products of
            the codes of each position, for convolutions of one group.
        use: When it is used.
    """
    select: Callable[[int], None] = getattr(library.load(), f"ort_dynq_select_{name}")
    select({"always": 1, "never": 2}[use])
    try:
        yield
    finally:
        select(0)


def _select_isa(name: str) -> None:
    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    if library.load().ort_dynq_select_isa(name.encode(), message, _MESSAGE_SIZE):
        raise DynqError(message.value.decode())


def _tensor(array: Array | None, stored: Array | None) -> library.Tensor:
    if array is None or stored is None:
        return library.Tensor()
    dims = (ctypes.c_int64 * array.ndim)(*array.shape)
    return library.Tensor(_NUMBERS[array.dtype], array.ndim, dims, _address(stored))


def _stored(array: Array) -> Array:
    """The array as tensors are stored: two codes of 4 bits in a byte, the first in the low half.

    bfloat16 is viewed as uint16, because ctypes accepts only NumPy's own types.
    """
    if array.dtype not in _NUMBERS:
        raise DynqError(f"an input is {array.dtype}, expected one of {', '.join(map(str, _NUMBERS))}")
    if _is_packed(array):
        codes = array.reshape(-1).view(np.uint8) & 15
        return codes[::2] | np.append(codes[1::2], np.zeros(codes.size % 2, np.uint8)) << 4
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint16)


def _is_packed(array: Array) -> bool:
    return _NUMBERS[array.dtype] in _FOUR_BITS


def _address(array: Array) -> int:
    """The address of a contiguous array.

    If the array is writable and not empty, this takes a third of the time of array.ctypes.data.
    """
    if array.flags.writeable and array.size:
        buffer: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return int(array.ctypes.data)


@functools.lru_cache
def _attributes(
    operator: str, given: tuple[tuple[str, str | int | tuple[int, ...]], ...]
) -> ctypes.Array[library.AttributeOfCall]:
    """The attributes for the C interface. They are cached, since a node passes the same ones in every run."""
    for name, value in given if operator in OPERATORS else ():
        if not OPERATORS[operator].attribute(name).is_list and isinstance(value, tuple):
            raise DynqError(f"{operator}: {name} is a list, expected one value")
    single = [(name, each) for name, value in given for each in (value if isinstance(value, tuple) else (value,))]
    for name, value in single:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:  # ctypes would wrap it
            raise DynqError(f"{name} is {value}, expected an integer of 64 bits")
    return (library.AttributeOfCall * len(single))(
        *(
            library.AttributeOfCall(name.encode(), value.encode(), 0)
            if isinstance(value, str)
            else library.AttributeOfCall(name.encode(), None, value)
            for name, value in single
        )
    )
