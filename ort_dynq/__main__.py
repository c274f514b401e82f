"""The program ``ort-dynq``, also ``python -m ort_dynq``: the command line. Its imports can be interrupted, too."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import FrameType, ModuleType

_INTERRUPTED = 130  # cli.command has it, too, but is not imported yet
_LATER = 0.02  # seconds


class _OnFirstUse(MetaPathFinder):
    """Finds sympy for onnx_ir, which computes with dimensions that have names; no command does."""

    NAMES = ("sympy", "onnx_ir._symbolic_shapes")

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in cls.NAMES else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def main() -> int:
    """Runs the command line and returns its exit status."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, or handled
    if is_ours:
        signal.signal(signal.SIGINT, _interrupt)
    if _OnFirstUse not in sys.meta_path:
        sys.meta_path.insert(0, _OnFirstUse)
    try:
        from .cli import main

        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but after the import of an extension module, which would make another error of it."""
    while frame is not None and frame.f_code is not main.__code__:
        if isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            later = threading.Timer(_LATER, _send, (number,))
            later.daemon = True
            # OpenBLAS sends this signal if it cannot start its threads. NumPy goes on without them, and would print a
            # traceback of an error here.
            with contextlib.suppress(RuntimeError):
                later.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _send(number: int) -> None:
    """Sends a signal to this process. On POSIX it also ends what the main thread waits for."""
    if os.name == "posix":
        os.kill(os.getpid(), number)
    else:
        signal.raise_signal(number)


if __name__ == "__main__":
    sys.exit(main())
