"""What a float16 model rounds before a product: dequantized activations, weights that are codes times scales.

An integer product has the codes and scales, without these roundings. The metadata of its node say which ones, for the
verification.
"""

from __future__ import annotations

import onnx_ir as ir

from ...operators import DOMAIN
from ..analysis.inference import Facts
from ..analysis.values import CODE_TYPES, cast_to, producer_of
from ..edit import Edit
from ..metadata import ROUNDED_ACTIVATION, ROUNDED_WEIGHTS
from .activations import Activation
from .grid import Grid


def rounded_dequantizer_of(value: ir.Value | None) -> ir.Node | None:
    """Returns the DynamicDequantize to float16 whose output `value` is, cast to float32, or None."""
    cast = None if value is None else producer_of(value, "Cast")
    if cast is None or cast_to(cast) != ir.DataType.FLOAT or (half := cast.inputs[0]) is None:
        return None
    node = half.producer()
    if node is None or (node.domain, node.op_type) != (DOMAIN, "DynamicDequantize") or len(node.inputs) < 3:
        return None
    codes, scales, zps = (None if each is None else each.dtype for each in node.inputs[:3])
    has_types = scales == ir.DataType.FLOAT16 and codes in CODE_TYPES and zps in CODE_TYPES
    return node if has_types else None


def with_float32_scale(activation: Activation, facts: Facts, edit: Edit) -> Activation:
    """Returns the activation of a DynamicDequantize to float16 with its scale as float32, if it has one."""
    if activation.scale is None:
        return activation
    cast = ir.node("Cast", [activation.scale], {"to": int(ir.DataType.FLOAT)})
    wide = edit.insert(cast, before=edit.node)
    facts.note(wide, ir.DataType.FLOAT, activation.scale.shape)
    return activation._replace(scale=wide)


def note_roundings(edit: Edit, grid: Grid, *, of_activation: bool) -> None:
    """Writes the metadata and the note of an edit: which roundings of the model the product does not have.

    Args:
        edit: The edit of the product.
        grid: The weights.
        of_activation: Whether the model rounds the activation.
    """
    notes = []
    if of_activation:
        edit.metadata[ROUNDED_ACTIVATION] = "1"
        notes.append("the activation is that before the model rounds it to float16")
    if grid.is_rounded:
        edit.metadata[ROUNDED_WEIGHTS] = "1"
        notes.append("the weights are multiples of their scales before the model rounds them to float16")
    edit.note = "; ".join(notes)
