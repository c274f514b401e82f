"""The exception that this package raises for mistakes of the caller, and errors as one line."""

import re


class DynqError(Exception):
    """An error that the caller can correct. The message says what was wrong, what was expected and what to do."""


def message(error: BaseException) -> str:
    """Returns an error of onnxruntime as one line of at most 400 characters, without its code."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)[:400]
