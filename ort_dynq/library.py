"""Finds and loads the shared library that holds the kernels and the native operators."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
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

    The library is beside the package. Where the package was imported from its source folder, which has no library, it
    is that of the installed distribution.

    Raises:
        DynqError: No library was found, or the installed distribution is of another version than the package.
    """
    name = _NAMES.get(sys.platform, "libort_dynq.so")
    package = Path(str(resources.files(__package__)))
    beside = package / name
    if beside.is_file():
        return str(beside)
    installed = _installed_library(name)
    if installed is None:
        raise DynqError(
            f"ort_dynq was imported from {package}, which has no {name}, and no installed distribution has one; "
            "run `pip install .` in the source folder"
        )
    return str(installed)


def _installed_library(name: str) -> Path | None:
    for distribution in importlib.metadata.distributions(name="ort_dynq"):
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if file.name == name and path.is_file():
                return path
    return None


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
