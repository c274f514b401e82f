"""Registration of the operators in session options."""

from __future__ import annotations

import logging

import onnxruntime as ort

from .. import kernels, library, runtime
from ..errors import DynqError
from .options import BACKENDS, Backend, mark_registered, registered

_LOG = logging.getLogger(__name__)


def register(session_options: ort.SessionOptions, backend: Backend = "native") -> ort.SessionOptions:
    """Registers ort_dynq's operators for every session that uses these options; a second call changes nothing.

    Args:
        session_options: The options.
        backend: ``native``: the operators of the native library. ``extensions``: Python operators on the same kernels,
            run by onnxruntime-extensions. This call registers the library of onnxruntime-extensions as well: do not
            register it again. After the first such call, every session of the process that registers that library has
            the operators. The call also replaces the methods of ``onnxruntime.InferenceSession`` that run a model, for
            the whole process: they raise the errors of these operators, which would end the process otherwise.

    Returns:
        The same options, so that ``ort.InferenceSession(path, ort_dynq.register(ort.SessionOptions()))`` works.

    Raises:
        DynqError: onnxruntime is too old; a library is missing, or onnxruntime does not accept it; ORT_DYNQ_ISA names
            an unknown instruction set; the backend is unknown; the options already have the other backend.
    """
    if runtime.version() < runtime.OLDEST_ONNXRUNTIME:
        raise DynqError(
            f"onnxruntime {ort.__version__} is too old for ort_dynq, expected "
            f"{'.'.join(map(str, runtime.OLDEST_ONNXRUNTIME))} or newer; `pip install -U onnxruntime`"
        )
    if backend not in BACKENDS:
        raise DynqError(f"there is no backend {backend!r}, expected one of {', '.join(BACKENDS)}")
    present = registered(session_options)
    if present and present != backend:
        raise DynqError(
            f"the session options have the backend {present} already, and one session cannot have both; "
            f"create other session options for {backend}"
        )
    if not present:
        _register_library(session_options, backend)
        mark_registered(session_options, backend)
        _LOG.debug("operators registered: backend %s, instruction set %s", backend, kernels.isa())
    return session_options


def _register_library(options: ort.SessionOptions, backend: Backend) -> None:
    kernels.isa()  # raises an error if the library is missing or ORT_DYNQ_ISA is wrong; later ones would be longer
    if backend == "native":
        path = library.get_library_path()
    else:
        from . import extensions

        path = extensions.define()
    try:
        options.register_custom_ops_library(path)
    except Exception as error:
        raise DynqError(f"onnxruntime {ort.__version__} refused the operators: {error}") from error
