"""The rule for operators of attention whose keys and values are appended to those of earlier runs.

Attention (opset 23, 24), MultiHeadAttention, with past keys and values and the present ones as outputs
  -> If(queries < 48) then the operator, else Concat of keys, Concat of values, Attention without past

The rule for attention (attention.py) then makes integer products of the second branch: all keys become codes there,
which takes longer than a few queries take in floats. GroupQueryAttention stays whole: its past and present keys may
share their memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.nodes import input_of, is_standard
from ..edit import Edit, constant
from ..rule import Context, Rule
from .attention_build import FEW, FLOAT, chosen, has_many_queries, is_of_few_queries
from .views import Dim, dims_of

_ATTENTION = {"past": 4, "mask": 3}  # the first input of past keys and values, and that of the mask or bias
_MULTI_HEAD = {"past": 6, "mask": 5}
_SWAPPED = [0, 2, 1, 3]
_OUTPUTS = 3


@dataclass(frozen=True)
class _Cached:
    """An operator with past keys and values.

    Attributes:
        operands: Query, key and value.
        past: The past keys and values, [B, heads, P, elements].
        mask: The mask or bias, or None.
        heads: The numbers of heads of query, key and value.
    """

    operands: tuple[ir.Value, ir.Value, ir.Value]
    past: tuple[ir.Value, ir.Value]
    mask: ir.Value | None
    heads: tuple[int, int, int]


def _match(node: ir.Node, context: Context) -> _Cached | None:
    is_attention = is_standard(node, "Attention")
    is_multi_head = node.domain == MICROSOFT and node.op_type == "MultiHeadAttention"
    if not context.options.fuse or not (is_attention or is_multi_head) or is_of_few_queries(node):
        return None
    at = _ATTENTION if is_attention else _MULTI_HEAD
    past = tuple(each for each in (input_of(node, at["past"] + i) for i in (0, 1)) if each is not None)
    given = tuple(each for each in node.inputs[:3] if each is not None)
    others = {*range(3, len(node.inputs))} - {at["mask"], at["past"], at["past"] + 1}
    if len(past) != 2 or len(given) != 3 or any(node.inputs[i] is not None for i in others):
        return None
    if len(node.outputs) != _OUTPUTS:
        return None
    if any(each.dtype != FLOAT for each in (*given, *past)) or any(len(dims_of(each)) != 4 for each in past):
        return None
    if any(node.attributes.get_int(name, 0) for name in ("is_causal", "unidirectional", "qk_matmul_output_mode")):
        return None  # the first query would have another position
    ranks = {len(dims_of(each)) for each in given}
    if ranks not in ({3}, {4}) or (is_multi_head and ranks != {3}) or isinstance(dims_of(given[0])[-2], int):
        return None
    counts = [dims_of(given[0])[1], *(dims_of(each)[1] for each in past)]
    if ranks == {3}:
        counts[0] = node.attributes.get_int("q_num_heads" if is_attention else "num_heads", 0)
    sizes = [dims_of(each)[-1] for each in (*given, *past)]
    numbers = [each for each in counts if isinstance(each, int) and each > 0]
    if len(numbers) != len(counts) or not all(isinstance(each, int) for each in sizes):
        return None
    q, k, v = numbers
    return _Cached((given[0], given[1], given[2]), (past[0], past[1]), input_of(node, at["mask"]), (q, k, v))


class _Branch:
    """The nodes of a branch."""

    def __init__(self, edit: Edit) -> None:
        """Starts without any."""
        self.nodes: list[ir.Node] = []
        self._edit = edit

    def add(self, node: ir.Node, dims: list[Dim]) -> ir.Value:
        """Appends a node of floats; returns its output."""
        self.nodes.append(node)
        self._edit.facts.note(node.outputs[0], FLOAT, ir.Shape(dims))
        return node.outputs[0]

    def reshaped(self, value: ir.Value, shape: list[int], dims: list[Dim]) -> ir.Value:
        """Appends a Reshape."""
        self.nodes.append(constant(np.array(shape)))
        return self.add(ir.node("Reshape", [value, self.nodes[-1].outputs[0]]), dims)

    def split(self, value: ir.Value, heads: int) -> ir.Value:
        """Appends what makes [B, heads, S, elements] of [B, S, heads * elements]."""
        if len(dims_of(value)) == 4:
            return value
        batch, tokens, width = dims_of(value)
        assert isinstance(width, int)
        size = width // heads
        by_token = self.reshaped(value, [0, 0, heads, size], [batch, tokens, heads, size])
        return self.swapped(by_token)

    def swapped(self, value: ir.Value) -> ir.Value:
        """Appends a Transpose of heads and tokens."""
        dims = dims_of(value)
        return self.add(ir.node("Transpose", [value], {"perm": _SWAPPED}), [dims[i] for i in _SWAPPED])


def _build(match: _Cached, edit: Edit) -> None:
    node, is_attention = edit.node, edit.node.domain != MICROSOFT
    few = ir.node(node.op_type, node.inputs, dict(node.attributes), domain=node.domain, num_outputs=_OUTPUTS)
    many, query = _Branch(edit), match.operands[0]
    present = []
    for past, value, heads, output in zip(
        match.past, match.operands[1:], match.heads[1:], node.outputs[1:], strict=True
    ):
        dims, total = dims_of(past), [*dims_of(output), *[ir.SymbolicDim(None)] * 3][2]
        joined = ir.node("Concat", [past, many.split(value, heads)], {"axis": 2})
        present.append(many.add(joined, [*dims[:2], total, dims[3]]))
    kept = {name: each for name, each in node.attributes.items() if name not in ("q_num_heads", "kv_num_heads")}
    size = dims_of(present[1])[3]
    assert isinstance(size, int)
    width = match.heads[0] * size
    if is_attention:
        q = many.split(query, match.heads[0])
        y = many.add(ir.node("Attention", [q, *present, match.mask], kept), [*dims_of(q)[:3], size])
        if len(dims_of(query)) == 3:
            y = many.reshaped(many.swapped(y), [0, 0, width], [*dims_of(query)[:2], width])
    else:
        inputs = [query, *present, None, None, match.mask]
        y = many.add(ir.node("MultiHeadAttention", inputs, kept, domain=MICROSOFT), [*dims_of(query)[:2], width])
    shape = edit.insert(ir.node("Shape", [query]), before=node)
    axis = edit.add_constant(np.array([len(dims_of(query)) - 2]), before=node)
    count = edit.insert(ir.node("Gather", [shape, axis]), before=node)
    for new in few.outputs:
        edit.facts.note(new, FLOAT, None)
    edit.operator = "QuantizedAttention"
    branches = ("many_queries", many.nodes, [y, *present]), (FEW, [few], few.outputs)
    main = chosen(has_many_queries(count, edit, before=node), *branches)
    edit.insert_main(main, before=node)
    for old, new in zip(node.outputs, main.outputs, strict=True):
        edit.replace(old, new)


RULE: Rule[_Cached] = Rule("attention with past keys", OPSET, _match, _build, fuses=True, prepares=True)
