"""Float16 models. The entry of a rewrite is :func:`with_casts`.

ONNX Runtime computes most nodes of a float16 model in float32. casts.py writes ONNX Runtime's Casts into the model, so
that the rules find float32 chains. Models without float16 chains stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ..analysis.standard import ROUNDING
from ..metadata import FLOAT16_CASTS
from .casts import has_float16_node, has_node, mentions_float16, widen, write_casts
from .graph import restore_zeros

_ENDS = ROUNDING | {"DequantizeLinear"}  # of chains; they or the products after them may be of float16


def with_casts(model: ir.Model, layers: Collection[str], others: Collection[str]) -> ir.Model | None:
    """Returns a copy with the Casts; None if it has no node that may need them, or if they cannot be written."""
    if not mentions_float16(model) or not (has_float16_node(model, layers) if layers else has_node(model, _ENDS)):
        return None
    copy = model.clone()
    has_casts = write_casts(copy)
    if layers:
        widen(copy, (*layers, *others))
    return copy if has_casts or layers else None


def has_chain_of_float16(model: ir.Model) -> bool:
    """Returns whether the end of a chain is of float16."""
    return has_float16_node(model, _ENDS)


def write_casts_as_converted(original: ir.Model, converted: ir.Model) -> None:
    """Writes the Casts of a converted model into its original, so that the values of both models correspond."""
    if converted.metadata_props.get(FLOAT16_CASTS) == "1" and write_casts(original):
        restore_zeros(original)
