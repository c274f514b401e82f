"""What a Python process of `ort-dynq run` does before it imports onnxruntime: see startup/sitecustomize.py."""

from __future__ import annotations

import logging

from . import patch
from .installation import installation
from .options import ProcessOptions
from .sessions import Sessions


def begin() -> None:
    """Installs what `ort-dynq run` says, unless the program itself has installed something."""
    told = ProcessOptions.of()
    if told is None or patch.active() is not None:
        return
    if told.verbosity:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger = logging.getLogger("ort_dynq")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if told.verbosity == 1 else logging.DEBUG)
    patch.activate(installation(told.options, Sessions(told.record)))
