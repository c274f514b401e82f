"""The rule for integer products by weights of several heads, as Keras and JAX write layers of attention.

Einsum btk,khd->bthd of codes in int32 or int64, [Cast]     -> MatMul, [Cast], Reshape
Einsum bthd,hdn->btn of codes in int32 or int64             -> Reshape, MatMul

The sums are the same integers. Einsums of floats stay, since sums of another order may have other last bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.evaluation import evaluate
from ..analysis.nodes import only_use
from ..analysis.types import WIDE_TYPES
from ..edit import Edit
from ..reasons import Unconverted
from ..rule import Context, Rule
from .einsum import Einsum, einsum_of


@dataclass(frozen=True)
class _EinsumOfHeads:
    """An Einsum of rows, and its weights, [K, N]."""

    einsum: Einsum
    weights: npt.NDArray[Any]


def _match(node: ir.Node, context: Context) -> _EinsumOfHeads | None:
    if len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None or a.dtype not in WIDE_TYPES or not context.facts.is_constant(b):
        return None
    try:
        found = einsum_of(node)
    except Unconverted:
        return None
    are_in_order = all(list(each) == sorted(each) for each in (found.order, found.of_result))
    if found.stack or not are_in_order or len(found.of_weights) < 3:  # a matrix: products read it as it stands
        return None
    elements = evaluate(b, context.facts)
    if elements is None or not elements.size:
        return None
    return _EinsumOfHeads(found, found.matrices(elements))


def _build(match: _EinsumOfHeads, edit: Edit) -> None:
    node, facts, einsum = edit.node, edit.facts, match.einsum
    a, old = node.inputs[0], node.outputs[0]
    assert a is not None
    assert a.shape is not None
    dtype = a.dtype or ir.DataType.INT32
    lead = list(a.shape)[: len(einsum.order) - len(einsum.depths)]
    depth, columns = match.weights.shape
    if einsum.rows_shape:
        shape = edit.add_constant(np.array(einsum.rows_shape), before=node)
        a = edit.insert(ir.node("Reshape", [a, shape]), before=node)
        facts.note(a, dtype, ir.Shape([*lead, depth]))
    weights = edit.add_constant(match.weights, before=node)
    result = edit.insert_main(ir.node("MatMul", [a, weights]), before=node)
    facts.note(result, dtype, ir.Shape([*lead, columns]))
    use, before = only_use(old), node
    if len(einsum.columns) > 1 and use is not None and use.node.op_type == "Cast":
        before, old = use.node, use.node.outputs[0]
        result = edit.insert(ir.node("Cast", [result], dict(before.attributes)), before=before)
        facts.note(result, old.dtype or ir.DataType.FLOAT, ir.Shape([*lead, columns]))
    edit.replace(old, einsum.result(result, edit, before))


RULE: Rule[_EinsumOfHeads] = Rule("Einsum of heads", 13, _match, _build, prepares=True, operators=("Einsum",))
