"""The backends, and the mark that :func:`ort_dynq.register` leaves in session options."""

from __future__ import annotations

from typing import Literal, get_args

import onnxruntime as ort

from ..runtime import config_entry

Backend = Literal["native", "extensions"]
BACKENDS: tuple[str, ...] = get_args(Backend)

_REGISTERED = "ort_dynq.registered"


def registered(session_options: ort.SessionOptions) -> str:
    """The backend whose operators are registered in these options; empty if none are."""
    return config_entry(session_options, _REGISTERED)


def mark_registered(session_options: ort.SessionOptions, backend: Backend) -> None:
    """Notes in the options that the operators of `backend` are registered."""
    session_options.add_session_config_entry(_REGISTERED, backend)
