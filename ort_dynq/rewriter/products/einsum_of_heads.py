"""The rule for Einsums of integers that are products of matrices with axes in other places.

Einsum btk,khd->bthd of codes in int32 or int64, [Cast]     -> MatMul, [Cast], Reshape, as Keras and JAX write attention
Einsum bthd,hdn->btn of codes in int32 or int64             -> Reshape, MatMul
Einsum bqhd,bkhd->bhqk of two activations                   -> two Transposes, MatMul

The sums are the same integers. Einsums of floats stay, since sums of another order may have other last bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from ..analysis.einsums import labels_of
from ..analysis.evaluation import evaluate
from ..analysis.nodes import only_use
from ..analysis.shapes import is_equal
from ..analysis.types import WIDE_TYPES
from ..codes.wide_codes import wide_codes_of
from ..edit import Edit
from ..reasons import Unconverted
from ..rule import Context, Rule
from ..views import Axes, Nodes, View, apart, dims_of, leaves, length_of, operands_of
from ..weights.matrix_product import matrix_product_of
from .einsum import einsum_of


@dataclass(frozen=True)
class _EinsumOfHeads:
    """An Einsum. `weights`: those of rows of several heads, [K, N]; None: it is a product of two activations."""

    einsum: ir.Node
    weights: npt.NDArray[Any] | None = None


def _match(node: ir.Node, context: Context) -> _EinsumOfHeads | None:
    if len(node.inputs) != 2 or any(each is None or each.dtype not in WIDE_TYPES for each in node.inputs):
        return None
    a, b = node.inputs
    are_constant = [context.facts.is_constant(each) for each in (a, b)]
    if a is None or b is None or are_constant[0]:
        return None
    try:
        if not are_constant[1]:
            return _EinsumOfHeads(node) if _is_of_two(node, a, b) else None
        found = einsum_of(node)
    except Unconverted:
        return None
    are_in_order = all(list(each) == sorted(each) for each in (found.order, found.of_result))
    if found.stack or not are_in_order or len(found.of_weights) < 3:  # a matrix: products read it as it stands
        return None
    elements = evaluate(b, context.facts)
    return None if elements is None or not elements.size else _EinsumOfHeads(node, found.matrices(elements))


def _is_of_two(node: ir.Node, a: ir.Value, b: ir.Value) -> bool:
    """Returns whether an Einsum is a product of codes that no MatMul is, and does not repeat a dimension of 1.

    Raises:
        Unconverted: The zero point of a factor is not that of an integer product.
    """
    if (labels := labels_of(node)) is None or wide_codes_of(a) is None or wide_codes_of(b) is None:
        return False
    of_a, of_b = (dict(zip(each, dims_of(value), strict=True)) for each, value in zip(labels, (a, b), strict=False))
    if not all(is_equal(of_a[each], of_b[each]) for each in of_a.keys() & of_b.keys()):
        return False
    try:
        return matrix_product_of(node) is None
    except Unconverted:
        return True


def _build(match: _EinsumOfHeads, edit: Edit) -> None:
    node, old = match.einsum, match.einsum.outputs[0]
    (a, b), of_result = operands_of(node, {})
    held = [leaves(axes) for axes in (a.axes, b.axes, of_result)]
    inner = tuple(each for each in held[0] if each in held[1] and each not in held[2])
    stack = apart(each for each in held[0] if each in held[1] and each in held[2])
    rows = tuple(each for each in held[0] if each not in held[1])
    columns = tuple(each for each in held[1] if each not in held[0])
    lead: Axes = (*stack, rows) if match.weights is None else apart(rows)
    nodes = Nodes(edit, node, (a, b))
    left = _placed(a, (*lead, inner), nodes)
    right = _placed(b, (*stack, inner, columns), nodes) if match.weights is None else nodes.constant(match.weights)
    result = edit.insert_main(ir.node("MatMul", [left, right]), before=node)
    _note(result, old.dtype, (*lead, columns), edit)
    use = only_use(old)
    if len(columns) > 1 and use is not None and use.node.op_type == "Cast":
        old, nodes = use.node.outputs[0], replace(nodes, before=use.node)
        result = edit.insert(ir.node("Cast", [result], dict(use.node.attributes)), before=use.node)
        _note(result, old.dtype, (*lead, columns), edit)
    edit.replace(old, nodes.arranged(View(result, (*lead, columns)), of_result))


def _placed(factor: View, axes: Axes, nodes: Nodes) -> ir.Value:
    """Returns a factor with other axes, the shape and type of which are known."""
    value = nodes.arranged(factor, axes)
    if value is not factor.value:
        _note(value, factor.value.dtype, axes, nodes.edit)
    return value


def _note(value: ir.Value, dtype: ir.DataType | None, axes: Axes, edit: Edit) -> None:
    dims = [axis[0].length if len(axis) == 1 else length_of(axis) for axis in axes]
    edit.facts.note(value, dtype or ir.DataType.INT32, ir.Shape(dims))


RULE: Rule[_EinsumOfHeads] = Rule("Einsum of heads", 13, _match, _build, prepares=True, operators=("Einsum",))
