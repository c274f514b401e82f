"""Builds the RowProgram that takes the place of a region."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ...operators.program import OPERANDS, OUTPUTS
from ..edit import Edit, call, constant
from .region import Region
from .rows import Kind, Rows


def build(match: tuple[Region, Rows], edit: Edit) -> None:
    """Records the operator, and what gives its outputs the shapes and types of the values that they replace."""
    region, rows = match
    before, missing = region.before, OPERANDS - len(region.operands)
    like = edit.add_constant(np.zeros((), region.code_type.numpy()), before=before)
    nothing = [edit.add_constant(np.zeros(1, np.float32), before=before)] * missing if missing else []
    main = call(
        "RowProgram",
        [region.src, like, *region.operands, *nothing],
        program=str(region.program),
        axis=rows.axis,
        code_type=int(region.code_type),
    )
    edit.insert_main(main, before=before)
    replaced = set[str]()
    for old, output in region.outputs.items():
        new = main.outputs[list(OUTPUTS).index(output)]
        nodes = list(_conversion(new, old, rows))
        if not nodes and output in replaced:
            nodes = [ir.node("Identity", [new])]
        edit.replace(old, edit.insert(*nodes, before=before) if nodes else new)
        replaced.add(output)


def _conversion(new: ir.Value, old: ir.Value, rows: Rows) -> Iterator[ir.Node]:
    """Yields the nodes that give an output of RowProgram the shape and the type of the value that it replaces."""
    if rows.kind(old) == Kind.SQUEEZED:
        assert old.shape is not None
        assert rows.x.shape is not None
        axes = constant(np.arange(len(old.shape) - len(rows.x.shape), 0))
        squeeze = ir.node("Squeeze", [new, axes.outputs[0]])
        yield from (axes, squeeze)
        new = squeeze.outputs[0]
    if old.dtype == ir.DataType.FLOAT16:
        yield ir.node("Cast", [new], {"to": int(ir.DataType.FLOAT16)})
