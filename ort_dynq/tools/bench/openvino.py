"""OpenVINO as a contender: weights in 8 bits, and activations that its CPU plugin quantizes while the model runs.

nncf compresses the weights. The plugin quantizes the activation of a MatMul with such weights in groups along its rows,
if a group divides the row; otherwise it converts the weights and multiplies floats, as it does for Conv. It is compiled
once for each shape: OpenVINO 2026.4 gives wrong outputs if the first run of a compiled model has one token and a later
one has more.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DynqError, message
from ...inputs import Array
from ...signals import Cosines, Noise
from ..measuring.timing import Contender, ContenderError, aligned

if TYPE_CHECKING:
    from ..accuracy.reference import Reference

_DEFAULT_GROUP = 32
_VECTOR = 16  # a group is a multiple of it


@dataclass(frozen=True)
class _Options:
    """How a model is compiled: the type of what is not quantized, and whether groups are as wide as possible."""

    precision: str
    widest_groups: bool


FORMS = {
    "OpenVINO int8": _Options("f32", widest_groups=False),
    "OpenVINO int8, widest groups": _Options("f32", widest_groups=True),
    "OpenVINO int8, bfloat16": _Options("bf16", widest_groups=True),
}


def forms() -> list[str]:
    """Returns the names of the contenders: none without OpenVINO, and no bfloat16 if the CPU does not have it."""
    if importlib.util.find_spec("openvino") is None:
        return []
    has_bfloat16 = "BF16" in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [name for name, options in FORMS.items() if options.precision == "f32" or has_bfloat16]


def write(source: Path, target: Path) -> None:
    """Compresses the weights of a float ONNX model and writes it as target.xml and target.bin.

    Raises:
        DynqError: There is no nncf, or the model has no matrix product with constant weights.
        Exception: OpenVINO or nncf cannot convert the model.
    """
    os.environ.setdefault("NNCF_CI", "1")  # or nncf reports its use over the network
    try:
        nncf: Any = importlib.import_module("nncf")
    except ImportError as error:
        raise DynqError(f"it needs nncf, which `pip install nncf` adds: {error}") from error
    model = _openvino().Core().read_model(source)
    if not _rows(model):
        raise DynqError("it quantizes no activation of this model")
    compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    _openvino().save_model(compressed, target, compress_to_fp16=False)


def size(path: Path) -> int:
    """Returns the bytes of a model's two files."""
    return path.stat().st_size + path.with_suffix(".bin").stat().st_size


def contender(name: str, path: Path, feeds: Mapping[str, Array], threads: int) -> Contender:
    """Compiles a model, binds its inputs and runs it once.

    Args:
        name: One of :data:`FORMS`.
        path: The model that :func:`write` wrote, or a float ONNX model.
        feeds: Its inputs.
        threads: The number of threads.

    Raises:
        ContenderError: OpenVINO does not load or run the model.
    """
    with _running(name):
        request = _request(name, path, threads)
        _bind(request, feeds)
        run = functools.partial(request.infer, share_outputs=True)
        run()
    return Contender(run, list(feeds.values()), has_threads=True)


def measure(name: str, path: Path, reference: Reference) -> tuple[float, float | None]:
    """Returns the smallest signal-to-noise ratio of an output in decibels, and the smallest cosine of a row.

    They are infinite and None without outputs of floats. Arguments are the same as for :func:`contender`.

    Raises:
        ContenderError: OpenVINO does not load or run the model, or an output has another type or shape than float's.
    """
    noises = [Noise() for _ in reference.names]
    cosines = Cosines()
    request: Any = None
    compiled_for: list[tuple[int, ...]] | None = None
    for feeds, expected in zip(reference.data.sets, reference.outputs, strict=True):
        with _running(name):
            shapes = [array.shape for array in feeds.values()]
            if shapes != compiled_for:
                request, compiled_for = _request(name, path, threads=0), shapes
            arrays = {key: aligned(array) for key, array in feeds.items()}
            _bind(request, arrays)
            results = request.infer()
            for output, a, noise in zip(reference.names, expected, noises, strict=True):
                if isinstance(a, np.ndarray) and a.dtype.kind == "f":
                    b = results[output]
                    if (a.shape, a.dtype) != (b.shape, b.dtype):
                        raise DynqError(f"{output} is {b.dtype} {list(b.shape)}, not {a.dtype} {list(a.shape)}")
                    noise.add(a, b)
                    cosines.add(a, b)
    ratios = [noise.decibels for noise in noises if noise.decibels is not None]
    return min(ratios, default=math.inf), cosines.worst if cosines.rows else None


@contextlib.contextmanager
def _running(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ContenderError(f"{name} does not run: {message(error)}") from error


def _openvino() -> Any:
    return importlib.import_module("openvino")


def _request(name: str, path: Path, threads: int) -> Any:
    """Returns a request of the compiled model; 0 threads are as many as the machine has."""
    core, options = _openvino().Core(), FORMS[name]
    model = core.read_model(path)
    settings = {
        "INFERENCE_PRECISION_HINT": options.precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _widest_group(model) if options.widest_groups else _DEFAULT_GROUP,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    return core.compile_model(model, "CPU", settings).create_infer_request()


def _bind(request: Any, feeds: Mapping[str, Array]) -> None:
    """Lets a request read arrays, which it does not keep alive."""
    for name, array in feeds.items():
        request.set_tensor(name, _openvino().Tensor(array, shared_memory=True))


def _widest_group(model: Any) -> int:
    """Returns the widest group that divides the rows of all weights."""
    divisor = math.gcd(*_rows(model))
    return _DEFAULT_GROUP if divisor % _VECTOR else divisor


def _rows(model: Any) -> list[int]:
    """Returns the number of rows of the weights of each matrix product."""
    found = []
    for node in model.get_ops():
        if node.get_type_name() == "MatMul":
            shape = node.input(1).get_partial_shape()
            if shape.is_static and len(shape) == 2:
                found.append(shape[1 if node.get_attributes()["transpose_b"] else 0].get_length())
    return found
