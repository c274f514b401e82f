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

from ...graphs import STANDARD_DOMAINS
from ..analysis.evaluation import evaluate
from ..analysis.nodes import only_use
from ..analysis.types import WIDE_TYPES
from ..edit import Edit
from ..rule import Context, Rule


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
    if node.domain not in STANDARD_DOMAINS or node.op_type != "Einsum" or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None or a.dtype not in WIDE_TYPES or not context.facts.is_constant(b):
        return None
    equation = (node.attributes.get_string("equation", "") or "").replace(" ", "")
    left, arrow, out = equation.partition("->")
    labels, comma, of_weights = left.partition(",")
    if (
        not arrow
        or not comma
        or "." in equation
        or any(len({*each}) != len(each) for each in (labels, of_weights, out))
    ):
        return None
    inner = [label for label in of_weights if label in labels]
    rows = labels[: len(labels) - len(inner)]
    inner = list(labels[len(rows) :])  # in the order of the activation
    columns = out[len(rows) :]
    if sorted(inner + list(columns)) != sorted(of_weights) or out != rows + columns or not rows or not columns:
        return None
    if not inner or len(inner) + len(columns) < 3:  # a matrix: products read it as it stands
        return None
    elements = evaluate(b, context.facts)
    if elements is None or elements.ndim != len(of_weights) or not elements.size:
        return None
    ordered = elements.transpose([of_weights.index(label) for label in (*inner, *columns)])
    depths, lengths = ordered.shape[: len(inner)], ordered.shape[len(inner) :]
    if a.shape is None or list(a.shape)[len(rows) :] != list(depths):  # Einsum repeats a dimension of 1
        return None
    return _EinsumOfHeads(ordered.reshape(int(np.prod(depths)), -1), len(rows), len(inner) > 1, lengths)


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
