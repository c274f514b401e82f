"""Benchmarks against stock ONNX Runtime at its default optimization level, as `ort-dynq bench` has them.

Importing this module loads nothing else; each name loads what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tools.bench.generation import GenerationBench, bench_generation
    from .tools.bench.models import ModelBench, ModelTiming, bench_folder, bench_model
    from .tools.bench.networks import NETWORKS
    from .tools.bench.opening import Opening
    from .tools.bench.quantization import Case, Form, FormTiming, QuantizationBench, bench_quantization
    from .tools.measuring.timing import Latency, Settings
else:
    _MODULES = {
        "Case": ".tools.bench.quantization",
        "Form": ".tools.bench.quantization",
        "FormTiming": ".tools.bench.quantization",
        "GenerationBench": ".tools.bench.generation",
        "NETWORKS": ".tools.bench.networks",
        "Latency": ".tools.measuring.timing",
        "ModelBench": ".tools.bench.models",
        "ModelTiming": ".tools.bench.models",
        "Opening": ".tools.bench.opening",
        "QuantizationBench": ".tools.bench.quantization",
        "Settings": ".tools.measuring.timing",
        "bench_folder": ".tools.bench.models",
        "bench_generation": ".tools.bench.generation",
        "bench_model": ".tools.bench.models",
        "bench_quantization": ".tools.bench.quantization",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name], __package__), name)


__all__ = [
    "NETWORKS",
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
