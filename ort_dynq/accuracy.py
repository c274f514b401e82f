"""How far a quantized model is from its float model. The public names of `ort_dynq/tools/accuracy`."""

from __future__ import annotations

from .tools import packages  # noqa: F401
from .tools.accuracy.accuracy import Accuracy, compare, measure
from .tools.accuracy.gates import Gate, Gates
from .tools.accuracy.layers import LayerAccuracy
from .tools.accuracy.outputs import OutputAccuracy, compare_outputs, is_compared, measure_outputs, results_of, worst_snr
from .tools.accuracy.reference import Reference

__all__ = [
    "Accuracy",
    "Gate",
    "Gates",
    "LayerAccuracy",
    "OutputAccuracy",
    "Reference",
    "compare",
    "compare_outputs",
    "is_compared",
    "measure",
    "measure_outputs",
    "results_of",
    "worst_snr",
]
