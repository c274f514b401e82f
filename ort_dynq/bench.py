"""Benchmarks against stock ONNX Runtime's default optimization level. The public names of `ort_dynq/tools/bench`."""

from __future__ import annotations

from .tools import packages  # noqa: F401
from .tools.bench.generation import GenerationBench, bench_generation
from .tools.bench.models import ModelBench, ModelTiming, bench_folder, bench_model
from .tools.bench.networks import NETWORKS
from .tools.bench.opening import Opening
from .tools.bench.quantization import Case, Form, FormTiming, QuantizationBench, bench_quantization
from .tools.measuring.timing import Latency, Settings

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
