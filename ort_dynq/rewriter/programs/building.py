"""Builds the RowProgram that takes the place of a region."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ...operators.program import OUTPUTS
from ..analysis.nodes import Use, is_standard
from ..analysis.standard import BYTE_PRODUCTS, RESHAPES
from ..edit import Edit, constant
from ..metadata import DEQUANTIZES
from .region import Region
from .rows import Kind, Rows


def build(match: tuple[Region, Rows], edit: Edit) -> None:
    """Records the operator, and what gives its outputs the shapes and types of the values that they replace."""
    region, rows = match
    before = region.before
    main = edit.add_row_program(
        region.src,
        str(region.program),
        before=before,
        operands=[_repeated(each, region, rows, edit) for each in region.operands],
        code_type=region.code_type,
        axis=rows.axis,
    )
    edit.insert_main(main, before=before)
    if any((node := old.producer()) is not None and is_standard(node, "DequantizeLinear") for old in region.outputs):
        edit.metadata[DEQUANTIZES] = "1"
    replaced = set[str]()
    for old, output in region.outputs.items():
        new = main.outputs[list(OUTPUTS).index(output)]
        if products := _products_of_one_number(old, region, rows):
            for use in products:
                edit.replace_input(use.node, use.idx, new)
            continue
        nodes = list(_conversion(new, old, rows))
        if not nodes and output in replaced:
            nodes = [ir.node("Identity", [new])]
        edit.replace(old, edit.insert(*nodes, before=before) if nodes else new)
        replaced.add(output)


def _repeated(operand: ir.Value, region: Region, rows: Rows, edit: Edit) -> ir.Value:
    """Returns an operand; a number of rows that are not adjacent as one for each row."""
    if not rows.is_apart(operand):
        return operand
    assert rows.x.shape is not None
    before, ones = region.before, -rows.axis or len(rows.x.shape)
    lead = list(rows.x.shape)[: len(rows.x.shape) - ones]

    def constant_of(*numbers: int) -> ir.Value:
        return edit.add_constant(np.array(numbers, np.int64), before=before)

    if all(isinstance(dim, int) for dim in lead):
        lengths = constant_of(*(dim for dim in lead if isinstance(dim, int)), *[1] * ones)
    else:
        is_computed = rows.x.producer() in region.nodes  # by the operator itself, from a tensor of the same shape
        shape = edit.insert(ir.node("Shape", [region.src if is_computed else rows.x]), before=before)
        dims = edit.insert(ir.node("Slice", [shape, constant_of(0), constant_of(len(lead))]), before=before)
        lengths = edit.insert(ir.node("Concat", [dims, constant_of(*[1] * ones)], {"axis": 0}), before=before)
    return edit.insert(ir.node("Expand", [operand, lengths]), before=before)


def _products_of_one_number(value: ir.Value, region: Region, rows: Rows) -> list[Use]:
    """Returns the uses of a number for all of x, if these are products of the rank of x: they take any shape of it."""
    uses = [use for use in map(Use._make, value.uses()) if use.node not in region.nodes]
    x = rows.x.shape
    if rows.kind(value) != Kind.SQUEEZED or rows.axis != 0 or x is None or value.is_graph_output():
        return []
    for use in uses:
        shape = use.node.outputs[0].shape
        if use.node.op_type.removesuffix("Program") not in BYTE_PRODUCTS or shape is None or len(shape) < len(x):
            return []
    return uses


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
        cast = ir.node("Cast", [new], {"to": int(ir.DataType.FLOAT16)})
        yield cast
        if (node := old.producer()) is not None and is_standard(node, *RESHAPES):
            yield ir.node("Identity", [cast.outputs[0]])  # ONNX Runtime would leave out a Cast before another one
