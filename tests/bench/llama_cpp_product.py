"""llama.cpp as a contender: its product of weights of 4 bits, from the library in the package llama-cpp-python.

Weights are Q4_0: blocks of 32 codes with one float16 scale. The CPU backend reorders them for its own kernels if it has
such a buffer. The activation is float32, and llama.cpp quantizes it itself. Functions and structures are those of
ggml.h, ggml-backend.h and ggml-cpu.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.tools.measuring.timing import Contender

BLOCK_SIZE = 32
_FLOAT32, _Q4_0 = 0, 2  # ggml_type
_POINTER = ctypes.c_void_p
_NODE_BYTES = 1024  # at least those of a tensor or a node, in a context without data


class _InitParameters(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _POINTER), ("no_alloc", ctypes.c_bool))


def q4_0(codes: Array, scales: Array) -> Array:
    """Returns weights in the layout Q4_0, uint8 [N, K / 32, 18].

    Args:
        codes: int8, [K, N], -8 to 7.
        scales: [K / 32, N]; they become float16.
    """
    depth, columns = codes.shape
    unsigned = (codes.T + np.int8(8)).astype(np.uint8).reshape(columns, depth // BLOCK_SIZE, BLOCK_SIZE)
    halves = np.ascontiguousarray(scales.T.astype(np.float16))[..., None].view(np.uint8)
    low, high = np.split(unsigned, 2, axis=-1)
    return np.concatenate([halves, low | high << 4], axis=-1)


def llama_cpp_contender(weights: Sequence[Array], x: Array, threads: int) -> tuple[Contender, Array]:
    """Returns a contender that multiplies an activation by several weights, and the result of the first ones, [M, N].

    Args:
        weights: As :func:`q4_0` returns them, all of one shape.
        x: float32, [M, K].
        threads: The number of threads.

    Raises:
        DynqError: llama-cpp-python is not installed, or its library is not as expected.
    """
    folder = _library_folder()
    try:
        with _quiet():
            return _contender(_Library(folder), weights, x, threads)
    except (OSError, AttributeError) as error:  # another version has other files or functions
        raise DynqError(f"the library of llama-cpp-python is not as expected: {error}") from error


def _library_folder() -> Path:
    found = importlib.util.find_spec("llama_cpp")
    if found is None or not found.submodule_search_locations:
        raise DynqError("llama-cpp-python is not installed: pip install llama-cpp-python")
    return Path(found.submodule_search_locations[0]) / "lib"


class _Library:
    """The functions of ggml by their names; each returns a pointer unless it has another type here."""

    _RESULTS: dict[str, Any] = {  # noqa: RUF012
        "ggml_build_forward_expand": None,
        "ggml_backend_cpu_set_n_threads": None,
        "ggml_backend_tensor_set": None,
        "ggml_backend_tensor_get": None,
        "ggml_backend_graph_compute": ctypes.c_int,
    }

    def __init__(self, folder: Path) -> None:
        self._libraries = [
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in ("libggml-base.so", "libggml-cpu.so")
        ]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        library = next((each for each in self._libraries if hasattr(each, name)), None)
        if library is None:
            raise AttributeError(f"it has no {name}")
        function = getattr(library, name)
        function.restype = self._RESULTS.get(name, _POINTER)
        return lambda *arguments: function(*map(_as_c, arguments))

    def reordering_buffer(self) -> Any:
        """The type of buffer that reorders weights; None if the backend has none."""
        registry = self.ggml_backend_cpu_reg()
        address = self.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if not address:
            return None
        buffers = ctypes.CFUNCTYPE(ctypes.POINTER(_POINTER), _POINTER)(address)(
            self.ggml_backend_reg_dev_get(registry, 0)
        )
        found = None
        for i in range(16):
            if not buffers[i]:
                break
            found = buffers[i]
        return found


def _as_c(argument: Any) -> Any:
    """Returns an argument of a function of ggml: pointers and sizes are integers of Python."""
    if isinstance(argument, np.ndarray):
        return _POINTER(argument.ctypes.data)
    return ctypes.c_int64(argument) if isinstance(argument, int) and not isinstance(argument, bool) else argument


def _contender(ggml: _Library, weights: Sequence[Array], x: Array, threads: int) -> tuple[Contender, Array]:
    (rows, depth), columns, count = x.shape, len(weights[0]), len(weights)
    backend = ggml.ggml_backend_cpu_init()
    ggml.ggml_backend_cpu_set_n_threads(backend, threads)

    def context() -> Any:
        size = (2 * count + 16) * _NODE_BYTES
        return ggml.ggml_init(_InitParameters(size, None, True))

    of_weights, of_values = context(), context()
    stored = [ggml.ggml_new_tensor_2d(of_weights, _Q4_0, depth, columns) for _ in weights]
    buffer = ggml.reordering_buffer()
    if buffer is None or not ggml.ggml_backend_alloc_ctx_tensors_from_buft(of_weights, buffer):
        ggml.ggml_backend_alloc_ctx_tensors(of_weights, backend)
    for tensor, each in zip(stored, weights, strict=True):
        contiguous = np.ascontiguousarray(each)
        ggml.ggml_backend_tensor_set(tensor, contiguous, 0, contiguous.nbytes)
    activation = ggml.ggml_new_tensor_2d(of_values, _FLOAT32, depth, rows)
    graph = ggml.ggml_new_graph_custom(of_values, 2 * count + 16, False)
    products = [ggml.ggml_mul_mat(of_values, tensor, activation) for tensor in stored]
    for product in products:
        ggml.ggml_build_forward_expand(graph, product)
    if not ggml.ggml_backend_alloc_ctx_tensors(of_values, backend):
        raise DynqError("llama.cpp has no memory for the products")
    ggml.ggml_backend_tensor_set(activation, np.ascontiguousarray(x), 0, x.nbytes)

    def run() -> None:
        if ggml.ggml_backend_graph_compute(backend, graph) != 0:
            raise DynqError("llama.cpp does not compute the products")

    run()
    result = np.empty((rows, columns), np.float32)
    ggml.ggml_backend_tensor_get(products[0], result, 0, result.nbytes)
    return Contender(run, [], count), result


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """ggml writes a line to the error output for each tensor that it reorders."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
