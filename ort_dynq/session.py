"""Sessions: registering the operators, and rewriting and opening a model in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from . import kernels, library
from .errors import DynqError

OLDEST_ONNXRUNTIME = (1, 20)


def register(session_options: ort.SessionOptions) -> ort.SessionOptions:
    """Makes the operators of ort_dynq known to every session made with these options.

    Returns:
        The same options, so that ``ort.InferenceSession(path, ort_dynq.register(ort.SessionOptions()))`` reads well.

    Raises:
        DynqError: onnxruntime is too old, the native library is missing, or it refuses (an unknown ORT_DYNQ_ISA).
    """
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    if version < OLDEST_ONNXRUNTIME:
        raise DynqError(
            f"onnxruntime {ort.__version__} is too old for ort_dynq, which needs "
            f"{'.'.join(map(str, OLDEST_ONNXRUNTIME))} or newer; `pip install -U onnxruntime`"
        )
    kernels.isa()
    try:
        session_options.register_custom_ops_library(library.get_library_path())
    except Exception as error:
        raise DynqError(f"onnxruntime {ort.__version__} refused the operators: {error}") from error
    return session_options
