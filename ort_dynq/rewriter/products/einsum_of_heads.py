"""The rule for integer products by weights of several heads, as Keras and JAX write layers of attention.

Einsum btk,khd->bthd of codes in int32 or int64, [Cast]     -> MatMul, [Cast], Reshape
Einsum bthd,hdn->btn of codes in int32 or int64             -> Reshape, MatMul

The sums are the same integers. Einsums of floats stay, since sums of another order may have other last bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.evaluation import evaluate
from ..analysis.nodes import is_standard, only_use
from ..analysis.types import WIDE_TYPES
from ..edit import Edit
from ..reasons import Unconverted
from ..rule import Context, Rule
from .einsum import einsum_of


@dataclass(frozen=True)
class _EinsumOfHeads:
    """An Einsum of rows and weights.

    Attributes:
        weights: The weights, [K, N].
        rows: The number of dimensions of rows.
        joins: Whether K has several dimensions, which are the last ones of the activation.
        lengths: Those into which N is split.
    """

    weights: npt.NDArray[Any]
    rows: int
    joins: bool
    lengths: tuple[int, ...]


def _match(node: ir.Node, context: Context) -> _EinsumOfHeads | None:
    if not is_standard(node, "Einsum") or len(node.inputs) != 2:
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
    weights = elements.transpose(found.of_weights).reshape(math.prod(found.depths), -1)
    rows = len(found.order) - len(found.depths)
    return _EinsumOfHeads(weights, rows, len(found.depths) > 1, found.columns)


def _build(match: _EinsumOfHeads, edit: Edit) -> None:
    node, facts = edit.node, edit.facts
    a, old = node.inputs[0], node.outputs[0]
    assert a is not None
    assert a.shape is not None
    lead = list(a.shape)[: match.rows]
    depth, columns = match.weights.shape
    if match.joins:
        shape = edit.add_constant(np.array([0] * match.rows + [depth]), before=node)
        a = edit.insert(ir.node("Reshape", [a, shape]), before=node)
        assert node.inputs[0] is not None
        facts.note(a, node.inputs[0].dtype or ir.DataType.INT32, ir.Shape([*lead, depth]))
    weights = edit.add_constant(np.ascontiguousarray(match.weights), before=node)
    result = edit.insert_main(ir.node("MatMul", [a, weights]), before=node)
    facts.note(result, a.dtype or ir.DataType.INT32, ir.Shape([*lead, columns]))
    use, before = only_use(old), node
    if len(match.lengths) > 1:
        if use is not None and use.node.op_type == "Cast":
            before, old = use.node, use.node.outputs[0]
            result = edit.insert(ir.node("Cast", [result], dict(before.attributes)), before=before)
            facts.note(result, old.dtype or ir.DataType.FLOAT, ir.Shape([*lead, columns]))
        shape = edit.add_constant(np.array([0] * match.rows + list(match.lengths)), before=before)
        result = edit.insert(ir.node("Reshape", [result, shape]), before=before)
    edit.replace(old, result)


RULE: Rule[_EinsumOfHeads] = Rule("Einsum of heads", 13, _match, _build, prepares=True)
