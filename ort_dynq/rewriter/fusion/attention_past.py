"""The rule for operators of attention whose keys and values are appended to those of earlier runs.

Attention (opset 23, 24), MultiHeadAttention, GroupQueryAttention, with past keys and values, and outputs of all
  -> If(queries < 48) then the operator, else Concat of keys, Concat of values, QuantizedAttention

All keys become codes in the second branch, which takes longer than a few queries take in floats. A query sees the keys
up to its own position if the operator is causal: the last query has the position of the last key.

Past and present keys of GroupQueryAttention may share their memory, and its past keys may be longer than they are
valid. It stays for these runs, too: the second branch takes runs whose past and new tokens are all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...operators.encodings import HeadLayout
from ...opsets import OPSET
from ..analysis.inference import Facts
from ..analysis.nodes import input_of
from ..analysis.shapes import is_unnamed
from ..analysis.values import Values
from ..edit import Branch, Edit
from ..reasons import Unconverted
from ..rule import Context, Rule
from .attention_build import (
    FEW,
    FLOAT,
    Layout,
    Match,
    Operand,
    chosen,
    has_many_queries,
    is_of_few_queries,
    operator_of,
)
from .attention_operators import (
    POSITIONS,
    TOTAL,
    by_head,
    heads_of,
    is_attention,
    noted,
    operands_of,
    operator_attention,
    past_of,
    rotates,
    size_of_heads,
)
from .score_steps import Masked, may_mask_rows
from .scores import Attention
from .views import View, dims_of

_OUTPUTS = 3


@dataclass(frozen=True)
class _Cached:
    """An operator with past keys and values.

    Attributes:
        found: The attention of all keys. The values of its views of query, key and value are not those of the model.
        heads: The numbers of heads of query, key and value.
        size: The elements of a head of GroupQueryAttention, whose operands may be packed or rotated; 0: of others.
        has_safe_rows: Whether there may be rows without keys, which are 0.
    """

    found: Attention
    heads: tuple[int, int, int]
    size: int
    has_safe_rows: bool


def _match(node: ir.Node, context: Context) -> _Cached | None:
    if not context.options.fuse or not is_attention(node) or is_of_few_queries(node):
        return None
    past = past_of(node)
    if len(past) != 2 or len(node.outputs) != _OUTPUTS or any(len(dims_of(each)) != 4 for each in past):
        return None
    is_group, size = node.op_type == "GroupQueryAttention", 0
    given = [node.inputs[0]] if is_group else node.inputs[:3]
    values = [each for each in given if each is not None]
    if len(values) != len(given) or any(each.dtype != FLOAT for each in (*values, *past)):
        return None
    ranks = {len(dims_of(each)) for each in values}
    if len(ranks) != 1 or not ranks <= {3, 4} or isinstance(dims_of(values[0])[-2], int):
        return None
    counts = dims_of(values[0])[1] if ranks == {4} else heads_of(node)[0], dims_of(past[0])[1], dims_of(past[1])[1]
    numbers = [each for each in counts if isinstance(each, int) and each > 0]
    if len(numbers) != len(counts) or numbers[0] % numbers[1]:
        return None
    if is_group:
        size = size_of_heads(node) or 0
        if not size or input_of(node, TOTAL) is None or heads_of(node)[1] != numbers[1]:
            return None
    found = _attention_of(node, context.facts.opset, values[0], past, numbers[0] * size)
    if found is None or not math.isfinite(found.factor) or not math.isfinite(found.softcap):
        return None
    is_safe = found.is_safe and may_mask_rows(found.scores.steps, context.shared(Values))
    return _Cached(found, (numbers[0], numbers[1], numbers[2]), size, is_safe)


def _attention_of(node: ir.Node, opset: int, query: ir.Value, past: list[ir.Value], width: int) -> Attention | None:
    """Returns the attention over all keys; None if no other operator computes it: the rule for attention reports it.

    `width`: the elements of a row of query behind the projections of GroupQueryAttention, whose query may be packed.
    """
    total = [*dims_of(node.outputs[1]), *[ir.SymbolicDim(None)] * 3][2]
    dims = [*dims_of(query)[:2], width] if width else dims_of(query)
    shapes = dims, *([*dims_of(each)[:2], total, dims_of(each)[3]] for each in past)
    try:
        return operator_attention(node, opset, [ir.Value(shape=ir.Shape(each)) for each in shapes])
    except Unconverted:
        return None


def _build(match: _Cached, edit: Edit) -> None:
    node, many = edit.node, Branch(edit)
    few = ir.node(node.op_type, node.inputs, dict(node.attributes), domain=node.domain, num_outputs=_OUTPUTS)
    y, *present = _many(match, many)
    for new in (y, *few.outputs):
        edit.facts.note(new, FLOAT, None)
    edit.operator = "QuantizedAttention"
    branches = ("many_queries", many.nodes, [y, *present]), (FEW, [few], few.outputs)
    main = chosen(edit.shared(_Conditions).of(node, edit), *branches)
    edit.insert_main(main, before=node)
    for old, new in zip(node.outputs, main.outputs, strict=True):
        edit.replace(old, new)


def _many(match: _Cached, edit: Branch) -> list[ir.Value]:
    """Returns the result, and present keys and values, of many queries."""
    node, found, past = edit.node, match.found, past_of(edit.node)
    if match.size:
        offset = _length(past[0], 2, edit) if rotates(node) and input_of(node, POSITIONS) is None else None
        operands = operands_of(node, match.heads, match.size, edit, offset)
    else:
        operands = [each for each in node.inputs[:3] if each is not None]
    query, *views = found.scores.query, found.scores.key, found.value
    present = []
    for given, value, count, view in zip(past, operands[1:], match.heads[1:], views, strict=True):
        joined = ir.node("Concat", [given, by_head(value, count, edit)], {"axis": 2})
        present.append(noted(edit.insert(joined, before=node), given, dims_of(view.value), edit))
    k, v = (View(each, view.axes) for view, each in zip(views, present, strict=True))
    batch, heads, queries, keys = found.probabilities
    size, width = ((*view.axes[3],) for view in (k, v))
    repeats = tuple(each for each in heads if each not in k.order)
    layout = Layout(batch, heads, queries, keys, size, width, repeats)
    masks = [step for step in found.scores.steps if isinstance(step, Masked)]
    operator, _ = operator_of(
        Match(
            _operand(View(operands[0], query.axes)),
            _operand(k),
            _operand(v),
            layout,
            found.factor,
            (),
            found.softcap,
            tuple(found.scores.steps),
            found.is_causal,
            found.window,
            bool(masks) and len(masks) == len(found.scores.steps),
            match.has_safe_rows,
            node,
            _operand(found.result),
            is_quantized=True,
            shapes=(),
            ends_together=True,
        ),
        FLOAT,
        edit,
    )
    return [edit.insert(operator, before=node), *present]


def _operand(view: View) -> Operand:
    order = HeadLayout.TOKENS_FIRST if len(view.axes) == 3 else HeadLayout.HEADS_FIRST
    return Operand(view, order, view.axes)


class _Conditions:
    """Whether there are many queries, and GroupQueryAttention has no room for more keys. Layers share the nodes."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any."""
        self._found: dict[object, ir.Value] = {}

    def of(self, node: ir.Node, edit: Edit) -> ir.Value:
        """Returns the condition of a node."""
        query, past = node.inputs[0], past_of(node)[0]
        assert query is not None
        tokens = len(dims_of(query)) - 2
        total = input_of(node, TOTAL) if node.op_type == "GroupQueryAttention" else None
        is_first = total is not None and rotates(node) and input_of(node, POSITIONS) is not None
        lengths = dims_of(query)[tokens], *([] if total is None else [dims_of(past)[2]])
        read = [value if is_unnamed(dim) else dim for value, dim in zip((query, past), lengths, strict=False)]
        key = node.graph, total, is_first, *read
        if key not in self._found:
            count = _length(query, tokens, edit)
            conditions = [has_many_queries(count, edit, before=node)]
            if total is not None:
                room, given = _length(past, 2, edit), edit.cast(total, ir.DataType.INT64, before=node)
                both = edit.insert(ir.node("Add", [room, count]), before=node)
                conditions.append(edit.insert(ir.node("Equal", [both, given]), before=node))
                if is_first:  # positions behind past keys need not be adjacent
                    none = edit.add_constant(np.zeros(1, np.int64), before=node)
                    conditions.append(edit.insert(ir.node("Equal", [room, none]), before=node))
            found, *others = conditions
            for other in others:
                found = edit.insert(ir.node("And", [found, other]), before=node)
            self._found[key] = found
        return self._found[key]


def _length(value: ir.Value, axis: int, edit: Edit) -> ir.Value:
    """Returns a length of a value, a vector of one element."""
    shape = edit.insert(ir.node("Shape", [value]), before=edit.node)
    index = edit.add_constant(np.array([axis]), before=edit.node)
    return edit.insert(ir.node("Gather", [shape, index]), before=edit.node)


RULE: Rule[_Cached] = Rule("attention with past keys", OPSET, _match, _build, fuses=True)
