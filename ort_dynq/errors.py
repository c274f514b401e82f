"""The exception that this package raises for mistakes of the caller, errors as one line, and texts of models."""

from __future__ import annotations

import importlib.util
import re

TOOLS = ("onnx", "onnx-ir", "rich", "jinja2", "shtab")
"""The packages that are needed to change models and to describe them, not to run them."""


class DynqError(Exception):
    """An error that the caller can correct. The message says what was wrong, what was expected and what to do."""


class GateError(DynqError):
    """No quantized model reaches a limit of the accuracy."""


class ThreadError(DynqError):
    """The system lets this process start no thread."""


def without_thread(error: BaseException) -> ThreadError | None:
    """Returns the error to raise if another one says that a thread cannot be started; None if it says something else.

    Python, ONNX Runtime and OpenBLAS say so in texts of their own, if RLIMIT_NPROC or a container's pids.max is small.
    """
    if not any(text in str(error) for text in ("can't start new thread", "pthread_create failed")):
        return None
    return ThreadError(
        "the system lets this process start no thread: raise the limit (ulimit -u, or pids.max of the container), or "
        "ask for fewer threads with OPENBLAS_NUM_THREADS=1 and --threads 1"
    )


def with_advice_on_tools(error: ImportError) -> Exception:
    """Returns a DynqError that says what to install if a tool is missing; else the same error and who explains it."""
    module = error.name or ""
    package = module.replace("_", "-")
    kind = ModuleNotFoundError if isinstance(error, ModuleNotFoundError) else ImportError
    # A package that is there but cannot be imported is broken: to install it once more changes nothing.
    if kind is ImportError or package not in TOOLS or importlib.util.find_spec(module):
        advice = "`ort-dynq doctor` says which packages are missing or broken"
        return kind(f"{error}; {advice}", name=error.name, path=error.path)
    command = f"pip install {' '.join(TOOLS)}"
    return DynqError(f"{package} is not installed, and only rewritten models run without it: `{command}`")


def message(error: BaseException) -> str:
    """Returns an error of onnxruntime as one line of at most 400 characters, without its code."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)[:400]


def printable(text: str) -> str:
    """Escapes control characters, which a terminal or a browser would interpret: names in a model may have any.

    These are also characters that change the direction of writing, and bytes of a path that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
