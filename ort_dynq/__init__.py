"""Fast, exact dynamic quantization for ONNX Runtime on CPUs.

Importing this package does not load onnxruntime or a graph library. Each name below loads what it needs on first use.
A rewritten model runs with numpy, ml_dtypes and onnxruntime alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import DynqError, with_advice_on_tools
from .version import __version__

if TYPE_CHECKING:
    from .backends.prepare import ready_for_extensions
    from .backends.register import register
    from .dequantizer import dequantize
    from .hook import install, installed, uninstall
    from .library import get_library_path
    from .rewriter import rewrite
    from .session import InferenceSession
    from .tools.quantization import quantize
    from .tools.verification.verification import verify
else:
    _MODULES = {
        "InferenceSession": "session",
        "dequantize": "dequantizer",
        "get_library_path": "library",
        "install": "hook",
        "installed": "hook",
        "quantize": "tools.quantization",
        "ready_for_extensions": "backends.prepare",
        "register": "backends.register",
        "rewrite": "rewriter",
        "uninstall": "hook",
        "verify": "tools.verification.verification",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f".{_MODULES[name]}", __name__)
        except ImportError as error:
            raise with_advice_on_tools(error) from error
        value = getattr(module, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "DynqError",
    "InferenceSession",
    "__version__",
    "dequantize",
    "get_library_path",
    "install",
    "installed",
    "quantize",
    "ready_for_extensions",
    "register",
    "rewrite",
    "uninstall",
    "verify",
]
