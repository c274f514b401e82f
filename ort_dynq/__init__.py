"""Fast, exact dynamic quantization for ONNX Runtime on CPUs."""

from .errors import DynqError
from .library import get_library_path
from .session import register

__all__ = ["DynqError", "get_library_path", "register"]
