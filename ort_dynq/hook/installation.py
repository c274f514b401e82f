"""Makes what is installed: its modules load onnxruntime, so they are imported when it creates its first session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .options import HookOptions
from .patch import Installation
from .sessions import Sessions


def installation(options: HookOptions, sessions: Sessions) -> Installation:
    """Returns what :func:`ort_dynq.hook.patch.activate` installs.

    Args:
        options: What is done with models.
        sessions: The record of the sessions.
    """
    return Installation(options, sessions, _create)


def _create(session: Any, original: Callable[[], None], args: tuple[Any, ...], installed: Installation) -> None:
    from .opening import create

    create(session, original, args, installed)
