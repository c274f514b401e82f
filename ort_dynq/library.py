"""Finds and loads the shared library that holds the kernels and the native operators."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import sys
from pathlib import Path

from .errors import DynqError
from .version import __version__

_PACKAGE = Path(__file__).parent
_NAMES = {"darwin": "libort_dynq.dylib", "win32": "ort_dynq.dll"}


class Tensor(ctypes.Structure):
    """``ort_dynq_tensor`` of ops/c_api.h."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class AttributeOfCall(ctypes.Structure):
    """``ort_dynq_attribute`` of ops/c_api.h."""

    _fields_ = (("name", ctypes.c_char_p), ("text", ctypes.c_char_p), ("integer", ctypes.c_int64))


Allocate = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.c_int32
)


def get_library_path() -> str:
    """Returns the path of the native custom-op library, for ``SessionOptions.register_custom_ops_library``.

    The library is beside the package. A package that was imported from its source folder, for example in the root of a
    clone or after ``pip install -e .``, has no library beside it: the library of the installed distribution is used.
    The library is not loaded.

    Raises:
        DynqError: There is no library, or only libraries of installed distributions of other versions.
    """
    name = _NAMES.get(sys.platform, "libort_dynq.so")
    beside = _PACKAGE / name
    return str(beside) if beside.is_file() else _installed(name)


@functools.cache  # reading the metadata of a distribution takes as long as opening a small session
def _installed(name: str) -> str:
    """Returns the path of the library of an installed distribution."""
    others = []
    for distribution in importlib.metadata.distributions(name="ort_dynq"):
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if file.name == name and path.is_file():
                if distribution.version == __version__:
                    return str(path)
                others.append((distribution.version, path))
    for version, path in others:
        _check_version(version, path)
    raise DynqError(
        f"ort_dynq {__version__} was imported from {_PACKAGE}, which has no {name}, and no installed distribution of "
        "ort_dynq has one; run `pip install .` in the source folder"
    )


def _check_version(version: str, path: Path | str) -> None:
    if version != __version__:
        raise DynqError(
            f"ort_dynq {__version__} was imported from {_PACKAGE}, but the library {path} is of version {version}, "
            f"expected {__version__}; run `pip install .` in the source folder, or start Python outside of it"
        )


@functools.cache
def load() -> ctypes.CDLL:
    """Returns the library with its C interface (ops/c_api.h) declared.

    Raises:
        DynqError: The library is missing, cannot be loaded, or is of another version than the package.
    """
    path = get_library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise DynqError(f"{path} cannot be loaded: {error}") from error
    if not hasattr(library, "ort_dynq_version"):
        raise DynqError(f"{path} is not a library of ort_dynq {__version__}; run `pip install .` in the source folder")
    library.ort_dynq_version.restype = ctypes.c_char_p
    _check_version(library.ort_dynq_version().decode(), path)
    library.ort_dynq_run.argtypes = (
        ctypes.c_char_p,
        ctypes.POINTER(AttributeOfCall),
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
    for algorithm in ("winograd", "strassen", "conv_rows"):
        select = getattr(library, f"ort_dynq_select_{algorithm}")
        select.argtypes = (ctypes.c_int32,)
        select.restype = None
    return library


def exit_on_bus_error(message: str, status: int) -> None:
    """Makes this process end with a message on stderr if a file is cut off that it has mapped, instead of a crash.

    Args:
        message: The message, at most 255 bytes.
        status: The exit status.

    Raises:
        DynqError: See :func:`load`.
        AttributeError: The library is an older build, in a folder of sources.
    """
    function = load().ort_dynq_exit_on_bus_error
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_int32), None
    function(message.encode(), status)
