"""The rule for rows that GatherND picks, as torch writes the tokens of an expert, ``x[mask]``.

GatherND(x, indices of one number each)     -> Gather(x, the same numbers)

Both have the same elements. Other rules know Gather: rows of codes keep their scales.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..codes.affine import AffineForms
from ..edit import Edit
from ..rule import Context, Rule


def _match(node: ir.Node, context: Context) -> ir.Value | None:
    """Returns the indices, [..., 1]."""
    if node.attributes.get_int("batch_dims", 0) > 0:
        return None
    data, indices = node.inputs
    if data is None or indices is None or data.shape is None or indices.shape is None:
        return None
    if len(data.shape) < 2 or not indices.shape or indices.shape[-1] != 1:
        return None
    return None if context.shared(AffineForms).of(data) is None else indices


def _build(indices: ir.Value, edit: Edit) -> None:
    node, result = edit.node, edit.node.outputs[0]
    axes = edit.add_constant(np.array([-1]), before=node)
    numbers = edit.insert(ir.node("Squeeze", [indices, axes]), before=node)
    assert indices.shape is not None
    edit.facts.note(numbers, ir.DataType.INT64, ir.Shape(list(indices.shape)[:-1]))
    rows = edit.insert_main(ir.node("Gather", [node.inputs[0], numbers], {"axis": 0}), before=node)
    edit.replace(result, rows)


RULE: Rule[ir.Value] = Rule("picked rows", 13, _match, _build, prepares=True, operators=("GatherND",))
