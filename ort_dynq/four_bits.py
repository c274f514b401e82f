"""Tensors of 4-bit integers as inputs and outputs of sessions, which NumPy and ONNX Runtime's Python interface lack.

An array has the type int4 or uint4 of ml_dtypes, or another type of integers. A tensor has two elements in a byte.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from .errors import DynqError

TYPES: dict[str, np.dtype[Any]] = {
    "tensor(uint4)": np.dtype(ml_dtypes.uint4),
    "tensor(int4)": np.dtype(ml_dtypes.int4),
}
"""The NumPy types of ONNX Runtime's tensor types."""
LIMITS = {TYPES["tensor(uint4)"]: (0, 15), TYPES["tensor(int4)"]: (-8, 7)}
"""The smallest and the largest element of each type."""
_NUMBERS = {"tensor(uint4)": 21, "tensor(int4)": 22}  # of ONNX

Array = npt.NDArray[Any]


class RunMethod(Protocol):
    """``onnxruntime.InferenceSession.run`` of one session."""

    def __call__(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Runs the session."""


def has_four_bits(session: ort.InferenceSession) -> bool:
    """Returns whether an input or an output of a session has 4-bit elements."""
    return any(each.type in TYPES for each in (*session.get_inputs(), *session.get_outputs()))


def run_of(session: ort.InferenceSession) -> RunMethod:
    """Returns what runs a session; 4-bit inputs and outputs are arrays, if it has any.

    It raises DynqError if an array has no integers, or one that 4 bits cannot represent.
    """
    inputs, outputs = (
        {each.name: each.type for each in values if each.type in TYPES}
        for values in (session.get_inputs(), session.get_outputs())
    )
    run: RunMethod = session.run
    return _FourBits(session, inputs, outputs) if inputs or outputs else run


class _FourBits(NamedTuple):
    """A session, and the types of its inputs and outputs of 4-bit elements, by name."""

    session: ort.InferenceSession
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __call__(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Runs the session."""
        given = dict(input_feed)
        for name in self.inputs.keys() & given.keys():
            if not isinstance(given[name], ort.OrtValue):
                given[name] = ort_value(name, given[name], self.inputs[name])
        wanted = [each.name for each in self.session.get_outputs()] if output_names is None else [*output_names]
        if self.outputs.keys().isdisjoint(wanted):
            return list(ort.InferenceSession.run(self.session, output_names, given, run_options))
        values = {
            name: each if isinstance(each, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(np.asarray(each))
            for name, each in given.items()
        }
        results = self.session.run_with_ort_values(wanted, values, run_options)
        return [
            _elements(each, TYPES[self.outputs[name]]) if name in self.outputs else each.numpy()
            for name, each in zip(wanted, results, strict=True)
        ]


def ort_value(name: str, array: Array, kind: str) -> ort.OrtValue:
    """Returns the tensor of an array.

    Args:
        name: The name of the input, for messages.
        array: The array.
        kind: The type of the tensor, such as "tensor(int4)".

    Raises:
        DynqError: The array has no integers, or one that the type cannot represent.
    """
    codes = checked(name, np.asarray(array), kind).astype(np.int8).view(np.uint8).ravel() & 15
    pairs = np.zeros(2 * -(-codes.size // 2), np.uint8)
    pairs[: codes.size] = codes
    packed = np.ascontiguousarray(pairs[::2] | pairs[1::2] << 4)
    result = ort.OrtValue.ortvalue_from_shape_and_type(list(np.shape(array)), _NUMBERS[kind])
    if packed.size:
        ctypes.memmove(result.data_ptr(), packed.ctypes.data, packed.size)
    return result


def checked(name: str, array: Array, kind: str) -> Array:
    """Returns an array as 4-bit integers.

    Raises:
        DynqError: See :func:`ort_value`.
    """
    dtype = TYPES[kind]
    if array.dtype == dtype:
        return array
    low, high = LIMITS[dtype]
    if array.dtype.kind not in "iu":
        raise DynqError(f"the input {name} is {array.dtype}, expected integers from {low} to {high}")
    if array.size and not low <= array.min() <= array.max() <= high:
        found = f"{array.min()} to {array.max()}"
        raise DynqError(f"the input {name} has integers from {found}, which {dtype} cannot represent")
    return array.astype(dtype)


def _elements(value: ort.OrtValue, dtype: np.dtype[Any]) -> Array:
    """Returns the elements of a tensor."""
    shape = value.shape()
    count = int(np.prod(shape))
    packed = np.frombuffer(ctypes.string_at(value.data_ptr(), -(-count // 2)) if count else b"", np.uint8)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(-1)[:count]
    if dtype == np.dtype(ml_dtypes.int4):
        codes = (codes ^ 8).astype(np.int8) - 8
    return np.asarray(codes.astype(dtype).reshape(shape))
