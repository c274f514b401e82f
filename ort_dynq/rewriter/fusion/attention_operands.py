"""The rule for operators of attention that make their operands: they append them to past ones, unpack or rotate them.

Attention (opset 23, 24), MultiHeadAttention, GroupQueryAttention, with past keys and values, and outputs of all
  -> If(queries < 64) then the operator, else [operands,] Concat of keys, Concat of values, QuantizedAttention
GroupQueryAttention without past keys
  -> [Split of packed operands,] [RotaryEmbedding of query and key,] QuantizedAttention, [outputs of key and value]

All keys become codes in a run with past ones, which takes longer than a few queries take in floats. A query sees the
keys up to its own position if the operator is causal: the last query has the position of the last key.

Past and present keys of GroupQueryAttention may share their memory, and its past keys may be longer than they are
valid, in each sample by another length. It stays for these runs, too: the second branch takes runs in which past
and new tokens are all, and without past keys samples with padding at their end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.nodes import input_of, operand
from ..analysis.shapes import known_as
from ..analysis.values import Values
from ..edit import Branch, Edit
from ..reasons import Unconverted
from ..rule import Context, Rule
from ..views import Nodes, View, axes_of, dims_of
from .attention_build import FEW, FLOAT, Match, Operand, chosen, count_of, is_of_few_queries, many_queries, operator_of
from .attention_operators import LAST, heads_of, is_attention, is_used, operator_attention, order_of, past_of, rotates
from .score_steps import may_mask_rows
from .scores import Attention, Part

_OUTPUTS = 3
_TOTAL, _COS, _SIN, _POSITIONS = 6, 7, 8, 9  # inputs of GroupQueryAttention
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # of RotaryEmbedding


@dataclass(frozen=True)
class _Made:
    """An operator that makes its operands.

    Attributes:
        found: The attention of all keys. The values of its views of query, key and value are not those of the model. It
            is safe if there may be rows without keys, which are 0.
        heads: The numbers of heads of query, key and value.
        size: The elements of a head of GroupQueryAttention: its operands may be packed or rotated; 0: of others.
    """

    found: Attention
    heads: tuple[int, int, int]
    size: int


def _match(node: ir.Node, context: Context) -> _Made | None:
    if not context.options.fuse or not is_attention(node) or is_of_few_queries(node):
        return None
    past, is_group = past_of(node), node.op_type == "GroupQueryAttention"
    values = [each for each in node.inputs[: 1 if is_group else 3] if each is not None]
    ranks = {len(dims_of(each)) for each in values}
    if len(values) != (1 if is_group else 3) or len(ranks) != 1 or not ranks <= {3, 4}:
        return None
    count, key_count = heads_of(node)
    counts = [dims_of(values[0])[1] if ranks == {4} else count, *(dims_of(each)[1] for each in past if each.shape)]
    counts += [] if past else [key_count, key_count]
    numbers = [each for each in counts if isinstance(each, int) and each > 0]
    size = (_size_of_heads(node) or 0) if is_group else 0
    if len(numbers) != 3 or numbers[0] % numbers[1] or (is_group and not (size and key_count == numbers[1])):
        return None
    if not (_has_cache(node, past, values) if past else is_group and _makes_operands(node)):
        return None
    heads = numbers[0], numbers[1], numbers[2]
    found = _attention_of(node, context.facts.opset, values[0], heads, size)
    if found is None or not math.isfinite(found.factor) or not math.isfinite(found.softcap or 0):
        return None
    is_safe = found.is_safe and may_mask_rows(found.steps, context.shared(Values))
    return _Made(replace(found, is_safe=is_safe), heads, size)


def _size_of_heads(node: ir.Node) -> int | None:
    """Returns the elements of a head of GroupQueryAttention; None if they, or those that it rotates, are not known."""
    heads, key_heads = heads_of(node)
    query, cos, sin = node.inputs[0], input_of(node, _COS), input_of(node, _SIN)
    dims = [] if query is None else dims_of(query)
    all_heads = heads + 2 * key_heads if input_of(node, 1) is None else heads
    if query is None or query.dtype not in _FLOATS or len(dims) != 3 or min(heads, key_heads) < 1:
        return None
    if rotates(node) and (cos is None or sin is None or not isinstance([None, *dims_of(cos)][-1], int)):
        return None
    width = dims[-1]
    return width // all_heads if isinstance(width, int) and not width % all_heads else None


def _has_cache(node: ir.Node, past: list[ir.Value], values: list[ir.Value]) -> bool:
    """Returns whether past keys and values are floats, the outputs all of them, and the number of queries not known."""
    if len(past) != 2 or len(node.outputs) != _OUTPUTS or any(len(dims_of(each)) != 4 for each in past):
        return False
    is_counted = node.op_type != "GroupQueryAttention" or input_of(node, _TOTAL) is not None
    are_floats = all(each.dtype == FLOAT for each in (*values, *past))
    return is_counted and are_floats and not isinstance(dims_of(values[0])[-2], int)


def _makes_operands(node: ir.Node) -> bool:
    """Returns whether GroupQueryAttention unpacks or rotates its operands, or has outputs of key and value."""
    return input_of(node, 1) is None or rotates(node) or any(map(is_used, node.outputs[1:]))


def _attention_of(
    node: ir.Node, opset: int, query: ir.Value, heads: tuple[int, int, int], size: int
) -> Attention | None:
    """Returns the attention of all keys; None if no other operator computes it: the rule for attention reports it.

    `size`: the elements of a head of GroupQueryAttention: its query may be packed; 0: of others.
    """
    batch, tokens = dims_of(query)[:2]
    total = [*dims_of(node.outputs[1]), *[ir.SymbolicDim(None)] * 3][2] if len(node.outputs) > 1 else tokens
    shapes = [[*dims_of(each)[:2], total, dims_of(each)[3]] for each in past_of(node)]
    shapes = shapes or [[batch, tokens, each * size] for each in heads[1:]]
    shapes.insert(0, [batch, tokens, heads[0] * size] if size else dims_of(query))
    try:
        return operator_attention(node, opset, [ir.Value(shape=ir.Shape(each)) for each in shapes])
    except Unconverted:
        return None


def _build(match: _Made, edit: Edit) -> None:
    node = edit.node
    if not past_of(node):
        main, operands = _made(match, edit)
        edit.replace(node.outputs[0], edit.insert_main(main, before=node))
        for output, value in zip(node.outputs[1:], operands, strict=False):
            if is_used(output):
                edit.replace(output, _by_head(value, match.heads[1], Nodes(edit, node)))
        return
    many = Branch(edit)
    few = ir.node(node.op_type, node.inputs, dict(node.attributes), domain=node.domain, num_outputs=_OUTPUTS)
    operator, present = _made(match, many)
    y = many.insert(operator, before=node)
    edit.operator = operator.op_type
    main = chosen(
        _condition(Nodes(edit, node)),
        ("many_queries", many.nodes, [y, *present]),
        (FEW, [few], few.outputs),
        FLOAT,
        edit,
    )
    edit.insert_main(main, before=node)
    for old, new in zip(node.outputs, main.outputs, strict=True):
        edit.replace(old, new)


def _made(match: _Made, edit: Edit) -> tuple[ir.Node, list[ir.Value]]:
    """Returns QuantizedAttention, which is not inserted yet, and all keys and values."""
    node, nodes, found, past = edit.node, Nodes(edit, edit.node), match.found, past_of(edit.node)
    operands = [each for each in node.inputs[:3] if each is not None]
    first = None
    if past and rotates(node) and input_of(node, _POSITIONS) is None:
        first = _length(past[0], 2, nodes)
    if match.size and input_of(node, 1) is None:
        operands = _unpacked(match, nodes)
    if rotates(node):
        for i in (0, 1):
            operands[i] = _rotated(operands[i], match.heads[i], match.size, first, nodes)
    views = found.query, found.key, found.value, found.result
    for i, given in enumerate(past, 1):
        joined = nodes.add("Concat", given, _by_head(operands[i], match.heads[i], nodes), axis=2)
        operands[i] = nodes.noted(joined, given, dims_of(views[i].value))
    made = [View(value, view.axes) for value, view in zip((*operands, found.result.value), views, strict=True)]
    q, k, v, y = (Operand(each, Part.of(each, found.probabilities), order_of(each.axes)) for each in made)
    operator, _ = operator_of(Match(found, q, k, v, y, ends_together=bool(past)), operands[0].dtype or FLOAT, edit)
    return operator, operands[1:]


def _unpacked(match: _Made, nodes: Nodes) -> list[ir.Value]:
    """Returns query, key and value that the first input of GroupQueryAttention has."""
    packed, widths = operand(nodes.before), [n * match.size for n in match.heads]
    split = ir.node("Split", [packed, nodes.constant(widths)], {"axis": -1}, num_outputs=len(widths))
    nodes.edit.insert(split, before=nodes.before)
    pairs = zip(split.outputs, widths, strict=True)
    return [nodes.noted(each, packed, [*dims_of(packed)[:2], width]) for each, width in pairs]


def _rotated(value: ir.Value, heads: int, size: int, first: ir.Value | None, nodes: Nodes) -> ir.Value:
    """Returns a query or key [B, S, heads * size] with its positions.

    `first`: the position of the first token, a vector of one element, if the operator is not given any; None: 0.
    """
    node = nodes.before
    positions, cos, sin = input_of(node, _POSITIONS), operand(node, _COS), operand(node, _SIN)
    half = dims_of(cos)[-1]
    assert isinstance(half, int)
    first = nodes.constant([0]) if first is None else first
    # The operator uses the first element alone in a prompt.
    positions = first if positions is None else nodes.add("Gather", nodes.add("Reshape", positions, [-1]), first)
    attributes = {"num_heads": heads, "interleaved": node.attributes.get_int("rotary_interleaved", 0)}
    if half * 2 != size:
        attributes["rotary_embedding_dim"] = half * 2
    rotary = ir.node("RotaryEmbedding", [value, positions, cos, sin], attributes, domain=MICROSOFT)
    return nodes.noted(nodes.edit.insert(rotary, before=node), value, dims_of(value))


def _by_head(value: ir.Value, heads: int, nodes: Nodes) -> ir.Value:
    """Returns [B, heads, S, elements] of [B, S, heads * elements], or of itself."""
    dims = dims_of(value)
    if len(dims) == 4:
        return value
    batch, tokens, width = dims
    size = width // heads if isinstance(width, int) else -1
    swapped = nodes.add("Transpose", nodes.add("Reshape", value, [0, 0, heads, size]), perm=[0, 2, 1, 3])
    return nodes.noted(swapped, value, [batch, heads, tokens, size])


def _condition(nodes: Nodes) -> ir.Value:
    """Returns whether there are many queries, and GroupQueryAttention has no room for more keys.

    Layers share the nodes.
    """
    node, past = nodes.before, past_of(nodes.before)[0]
    query = operand(node)
    view = View(query, axes_of(dims_of(query)))
    queries, nodes = view.axes[-2], replace(nodes, views=(view,))
    many = many_queries(queries, nodes)
    total = input_of(node, _TOTAL) if node.op_type == "GroupQueryAttention" else None
    if total is None:
        return many
    is_first, last = rotates(node) and input_of(node, _POSITIONS) is not None, input_of(node, LAST)

    def has_no_room() -> ir.Value:
        room, given = _length(past, 2, nodes), nodes.cast(total, ir.DataType.INT64)
        is_full = nodes.add("Equal", nodes.add("Add", room, count_of(queries, nodes)), given)
        are_all = nodes.add("Equal", room, [0])
        # Positions behind past keys need not be adjacent. New keys follow those of each sample.
        if not is_first and last is not None:
            least = nodes.add("ReduceMin", nodes.cast(last, ir.DataType.INT64), keepdims=0)
            are_whole = nodes.add("Equal", nodes.add("Add", least, 1), given)
            are_all = nodes.add("Or", are_all, are_whole)
        return nodes.add("And", nodes.add("And", many, is_full), are_all)

    key = "no room", many, total, last, is_first, known_as(dims_of(past)[2], past)
    return nodes.edit.once(key, has_no_room)


def _length(value: ir.Value, axis: int, nodes: Nodes) -> ir.Value:
    """Returns a length of a value, a vector of one element."""
    view = View(value, axes_of(dims_of(value)))
    return replace(nodes, views=(view,)).shape(view.axes[axis : axis + 1])


RULE: Rule[_Made] = Rule("operands of attention", OPSET, _match, _build, fuses=True)
