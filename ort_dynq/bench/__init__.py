"""Benchmarks against stock ONNX Runtime at its default optimization level, as `ort-dynq bench` has them.

Importing this package loads nothing else; each name loads what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..measuring.timing import Latency, Settings
    from .generation import GenerationBench, bench_generation
    from .models import ModelBench, ModelTiming, bench_folder, bench_model
    from .opening import Opening
    from .quantization import Case, Form, FormTiming, QuantizationBench, bench_quantization
else:
    _MODULES = {
        "Case": ".quantization",
        "Form": ".quantization",
        "FormTiming": ".quantization",
        "GenerationBench": ".generation",
        "Latency": "..measuring.timing",
        "ModelBench": ".models",
        "ModelTiming": ".models",
        "Opening": ".opening",
        "QuantizationBench": ".quantization",
        "Settings": "..measuring.timing",
        "bench_folder": ".models",
        "bench_generation": ".generation",
        "bench_model": ".models",
        "bench_quantization": ".quantization",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name], __name__), name)


__all__ = [
    "Case",
    "Form",
    "FormTiming",
    "GenerationBench",
    "Latency",
    "ModelBench",
    "ModelTiming",
    "Opening",
    "QuantizationBench",
    "Settings",
    "bench_folder",
    "bench_generation",
    "bench_model",
    "bench_quantization",
]
