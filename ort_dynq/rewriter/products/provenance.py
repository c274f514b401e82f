"""Notes where an integer product comes from: the float activation, and roundings to float16 that it does not have.

A float16 model rounds dequantized activations and weights. An integer product has their codes and scales, without these
roundings. Verification reads the metadata.
"""

from __future__ import annotations

import onnx_ir as ir

from ..codes.activation import Activation
from ..edit import Edit
from ..metadata import ACTIVATION, NEAR, ROUNDED_ACTIVATION, ROUNDED_WEIGHTS
from ..weights.grid import QuantizedWeights


def note_activation(edit: Edit, value: ir.Value) -> None:
    """Notes the float activation that the product of an edit multiplied."""
    if value.name is not None:
        edit.metadata[ACTIVATION] = value.name


def note_roundings(edit: Edit, activation: Activation, grid: QuantizedWeights) -> None:
    """Notes which roundings of the model the product of an edit does not have."""
    notes = []
    if activation.is_rounded:
        edit.metadata[ROUNDED_ACTIVATION] = "1"
        notes.append("uses the activation before it is rounded to float16")
    if grid.is_rounded:
        edit.metadata[ROUNDED_WEIGHTS] = NEAR if grid.is_near else "1"
        notes.append(f"uses the weights before they are rounded{'' if grid.is_near else ' to float16'}")
    edit.note = "; ".join(notes)
