"""The rule for CastLike, as onnxscript's functions and other translators write a Cast.

CastLike of a value to a known type     -> Cast

ONNX Runtime expands CastLike to the same Cast.
"""

from __future__ import annotations

import onnx_ir as ir

from ..analysis.nodes import input_of
from ..edit import Edit
from ..rule import Context, Rule


def _match(node: ir.Node, context: Context) -> ir.DataType | None:
    """Returns the type of the second input."""
    like = input_of(node, 1)
    return None if like is None else like.dtype


def _build(dtype: ir.DataType, edit: Edit) -> None:
    node = edit.node
    cast = ir.node("Cast", node.inputs[:1], {**node.attributes, "to": ir.AttrInt64("to", int(dtype))})
    result = edit.insert_main(cast, before=node)
    edit.facts.note(result, dtype, node.outputs[0].shape)
    edit.replace(node.outputs[0], result)


RULE: Rule[ir.DataType] = Rule("CastLike", 15, _match, _build, prepares=True, operators=("CastLike",))
