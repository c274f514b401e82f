"""The backends: their names and types, and the entry of session options that records a registration."""

from __future__ import annotations

from typing import Literal, get_args

import onnxruntime as ort

from ..runtime import config_entry

Backend = Literal["native", "extensions"]
BACKENDS: tuple[str, ...] = get_args(Backend)

CARRIED = frozenset(("float32", "uint8", "int8", "int16", "int32", "int64"))
"""The types that the backend ``extensions`` has."""
NOT_CARRIED = "onnxruntime-extensions does not support float16, bfloat16, int4 and uint4"

_REGISTERED = "ort_dynq.registered"


def registered(session_options: ort.SessionOptions) -> str:
    """The backend that is registered in these options; an empty string if none is."""
    return config_entry(session_options, _REGISTERED)


def mark_registered(session_options: ort.SessionOptions, backend: Backend) -> None:
    """Records in the options that `backend` is registered."""
    session_options.add_session_config_entry(_REGISTERED, backend)
