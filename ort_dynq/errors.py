"""The exception that this package raises for mistakes of the caller, errors as one line, and texts of models."""

import re

_TOOLS = {"onnx": "onnx", "onnx_ir": "onnx-ir", "rich": "rich", "jinja2": "jinja2", "shtab": "shtab"}
"""The modules and packages that are needed to change models and to describe them, not to run them."""


class DynqError(Exception):
    """An error that the caller can correct. The message says what was wrong, what was expected and what to do."""


def with_advice_on_tools(error: ImportError) -> Exception:
    """Returns a DynqError that says what to install if a tool is missing, or else the error itself."""
    package = _TOOLS.get((error.name or "").partition(".")[0])
    if package is None:
        return error
    command = f"pip install {' '.join(_TOOLS.values())}"
    return DynqError(f"{package} is not installed, and only rewritten models run without it: `{command}`")


def message(error: BaseException) -> str:
    """Returns an error of onnxruntime as one line of at most 400 characters, without its code."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)[:400]


def printable(text: str) -> str:
    """Escapes control characters, which a terminal or a browser would interpret: names in a model may have any.

    These are also characters that change the direction of writing, and bytes of a path that are not UTF-8.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
