"""Copies of session options, and which initializers of a model they override: also of one that was rewritten.

onnxruntime offers neither. But a session has a copy of the options that it was created with. And options refuse an
initializer of a name that they have already.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import _pybind_state

# y = Identity(x) of floats, opset 17, serialized: the model need not be opened with the package onnx.
_ANY_MODEL = (
    b'\x08\x08:1\n\x12\n\x01x\x12\x01y"\x08Identity:\x00\x12\x01gZ\x0b\n\x01x\x12\x06\n\x04\x08\x01\x12\x00'
    b"b\x0b\n\x01y\x12\x06\n\x04\x08\x01\x12\x00B\x04\n\x00\x10\x11"
)


INITIALIZERS = "ort_dynq.initializers"
"""In the metadata of a model that was rewritten or quantized: the names, as a JSON array, of the initializers that
became part of other weights, of programs or of attributes. Options that override them change nothing there, or not
all."""


def taken(metadata: Mapping[str, str]) -> list[str]:
    """Returns the names of the initializers that gave a rewritten model their values; none of another model."""
    try:
        names = json.loads(metadata.get(INITIALIZERS, "[]"))
    except (ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def copied(options: ort.SessionOptions | None) -> ort.SessionOptions:
    """Returns a copy of session options, without the providers and the custom-op libraries that they have.

    Args:
        options: The options, which are not changed; None for onnxruntime's default.
    """
    given = _pybind_state.get_default_session_options() if options is None else options
    session = _pybind_state.InferenceSession(given, _ANY_MODEL, False, False)
    if given.enable_profiling:
        with contextlib.suppress(OSError):
            os.remove(session.end_profiling())
    return session.session_options


def overridden(options: ort.SessionOptions, names: Iterable[str]) -> list[str]:
    """Returns those of some initializers that session options override.

    These are the ones that `add_initializer` and `add_external_initializers` have given to the options.

    Args:
        options: The options, which are not changed.
        names: The names of a model's initializers.
    """
    names = list(names)
    if not names:
        return []
    trial = copied(options)
    value = ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))
    return [name for name in names if not _accepts(trial, name, value)]


def _accepts(options: ort.SessionOptions, name: str, value: ort.OrtValue) -> bool:
    """Gives options an initializer, and returns whether they had none of this name in either of their two lists."""
    try:
        options.add_initializer(name, value)
        options.add_external_initializers([name], [value])
    except RuntimeError:
        return False
    return True
