"""Finds and loads the shared library that holds the kernels and the native operators."""

from __future__ import annotations

import ctypes
import functools
import sys
from importlib import resources
from pathlib import Path

from .errors import DynqError

_NAMES = {"darwin": "libort_dynq.dylib", "win32": "ort_dynq.dll"}


class Tensor(ctypes.Structure):
    """``ort_dynq_tensor`` of ops/c_api.h."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class Attribute(ctypes.Structure):
    """``ort_dynq_attribute`` of ops/c_api.h."""

    _fields_ = (("name", ctypes.c_char_p), ("text", ctypes.c_char_p), ("integer", ctypes.c_int64))


Allocate = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.c_int32
)


def get_library_path() -> str:
    """The path of the native custom-op library, for ``SessionOptions.register_custom_ops_library`` in any language.

    Raises:
        DynqError: The package was installed without its library.
    """
    name = _NAMES.get(sys.platform, "libort_dynq.so")
    path = Path(str(resources.files(__package__).joinpath(name)))
    if not path.is_file():
        raise DynqError(f"the native library {name} is not in {path.parent}; install the package with `pip install .`")
    return str(path)


@functools.cache
def load() -> ctypes.CDLL:
    """The library with its C interface (ops/c_api.h) declared.

    Raises:
        DynqError: The library is missing or cannot be loaded.
    """
    path = get_library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise DynqError(f"{path} cannot be loaded: {error}") from error
    library.ort_dynq_run.argtypes = (
        ctypes.c_char_p,
        ctypes.POINTER(Attribute),
        ctypes.c_int32,
        ctypes.POINTER(Tensor),
        ctypes.c_int32,
        Allocate,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    library.ort_dynq_run.restype = ctypes.c_int
    library.ort_dynq_operator.argtypes = (ctypes.c_size_t,)
    library.ort_dynq_operator.restype = ctypes.c_char_p
    library.ort_dynq_supported_isa.argtypes = (ctypes.c_size_t,)
    library.ort_dynq_supported_isa.restype = ctypes.c_char_p
    library.ort_dynq_isa.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    library.ort_dynq_isa.restype = ctypes.c_char_p
    library.ort_dynq_select_isa.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    library.ort_dynq_select_isa.restype = ctypes.c_int
    return library
