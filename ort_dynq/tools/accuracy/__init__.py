"""How far a quantized model is from its float model."""

from .accuracy import Accuracy, compare, measure
from .gates import Gate, Gates
from .layers import LayerAccuracy
from .outputs import OutputAccuracy, compare_outputs, is_compared, measure_outputs, results_of, worst_snr
from .reference import Reference

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
