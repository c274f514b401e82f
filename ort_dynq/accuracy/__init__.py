"""How far a quantized model is from its float model."""

from .accuracy import Accuracy, measure
from .layers import LayerAccuracy
from .outputs import OutputAccuracy, measure_outputs, worst_snr
from .reference import Reference

__all__ = ["Accuracy", "LayerAccuracy", "OutputAccuracy", "Reference", "measure", "measure_outputs", "worst_snr"]
