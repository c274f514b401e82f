"""The rule for attention that exporters write as products and Softmax: it becomes one operator.

MatMul(q, k), scale, masks and biases, Softmax, [safe softmax], MatMul by v -> QuantizedAttention | MultiHeadAttention

QuantizedAttention has products of integers, and takes any order of the axes. ONNX Runtime's MultiHeadAttention keeps
floats, and takes query, key and value as [B, S, H * D], [B, T, H * D] and [B, T, H * E], or key and value as
[B, H, T, D]. An operand that is a view of other values (views.py) is read from the one that has these axes, or gets
one Transpose. The masks and biases of a layer become one sum; layers with the same ones share it.

If -inf masks all keys of a row, Softmax gives NaN, as MultiHeadAttention does. torch's safe softmax, Where(IsNaN(p), 0,
p), gives 0. Then MultiHeadAttention gets this row without its masks, and the result is multiplied by 0, so that NaN in
v stays NaN. NaN in scores that a mask or the safe softmax of the model hides are visible after the rewrite.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from ...graphs import MICROSOFT
from ...operators.encodings import HeadLayout
from ...opsets import OPSET
from ..analysis.nodes import is_standard
from ..analysis.shapes import has_one_element, is_unnamed
from ..analysis.standard import ATTENTION, HEAD_MOVES
from ..analysis.values import Values
from ..metadata import RULE as RULE_OF_NODE
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..views import Axes, Axis, View, dims_of, has_lengths, leaves, length_of
from .attention_build import FLOAT, MIN_QUERIES, Match, Operand, build, can_be_placed, is_of_few_queries
from .attention_operators import is_attention, operator_attention
from .causal import number_of_later_keys
from .score_steps import MAX_NUMBER, Added, Masked, may_mask_rows, split_scalars
from .scores import Attention, Part, attention_of, shapes_of
from .sources import Source, sources_of

_Sources = tuple[list[Source], list[Source], list[Source]]  # of query, key and value
_Parts = tuple[Part, Part, Part, Part]  # of the result, too
_MOVES = HEAD_MOVES | {"Cast"}
_ORDERS, _TOKENS_FIRST = tuple(HeadLayout), (HeadLayout.TOKENS_FIRST,)
_MIN_SCORES = 64 * 64  # of a head; with a bias, fewer took up to 1.3 times as long in MultiHeadAttention (Zen 4)


def _match(node: ir.Node, context: Context, *, quantizes: bool = False) -> Match | None:
    if not context.options.fuse or is_of_few_queries(node):
        return None
    operator = operator_attention(node, context.facts.opset) if quantizes else None
    found = attention_of(node, context) if operator is None else operator
    if found is None:
        return None
    if isinstance(found, Unconverted):
        raise found
    if any(map(context.facts.is_constant, (found.key.value, found.value.value))):
        return None
    return _exported(found, context, quantizes=quantizes)


def _exported(found: Attention, context: Context, *, quantizes: bool, is_choice: bool = False) -> Match:
    """Returns how attention becomes one operator.

    Keys of earlier runs are quantized only for many queries. If their number is not known, each run chooses.

    Args:
        found: The attention.
        context: The model.
        quantizes: Whether products of integers may take the place of the products.
        is_choice: Whether the operator is used in some runs only, and need not be faster.

    Raises:
        Unconverted: It stays.
    """
    keys = sources_of(found.key, leaves(found.probabilities[-1:]), repeats=True)
    values = [each for each in sources_of(found.value, repeats=True) if not each.scalars]
    sources, results = (sources_of(found.query), keys, values), _results_of(found.result, found.product)
    parts = _parts_of(found, sources, results)
    if isinstance(parts, ir.Value):
        raise Unconverted(Reason.ATTENTION_AXES, value=parts.name)
    is_operator = found.product.op_type in ATTENTION
    if not is_operator:
        _check_lengths(found, sources, context)
    has_past, count = any(_has_past(each.view) for each in (keys[-1], values[-1])), length_of(parts[0].tokens)
    few: Match | None = None
    if quantizes and has_past and count is None:
        few = _exported(found, context, quantizes=False, is_choice=True)
    is_quantized = quantizes and (not has_past or few is not None or (count or 0) >= MIN_QUERIES)
    if not is_quantized and not is_choice and is_operator:
        raise Unconverted(Reason.ATTENTION_PAST)
    parts = _with_shared_heads(parts, keys, values) if is_quantized else parts
    query, key, value = _operands(parts, sources, is_quantized=is_quantized)
    factor, others = split_scalars([*query.scalars, *key.scalars, *found.scalars], found.factor)
    by_row = [each for each in others if not has_one_element(each.value, 3)]
    for each in by_row:
        if {*leaves(each.axes)} - {*leaves(parts[0][:3])} or each in found.steps:
            raise Unconverted(Reason.ATTENTION_SCORES, value=each.value.name)
    if by_row:
        query = _best(sources[0], parts[0], _TOKENS_FIRST)
    result = _result_of(results, parts[3], found.result, _ORDERS if is_quantized and few is None else _TOKENS_FIRST)
    tokens = leaves([query.part.tokens]), leaves([key.part.tokens])
    numbers = [number_of_later_keys(step, *tokens) for step in found.steps] if is_quantized else []
    later = min((each for each in numbers if each is not None), default=None)
    ends = query.view, key.view
    dropped_results = results[[each.value for each in results].index(result.view.value) + 1 :]
    of_ends = *found.shapes, *itertools.chain(*map(shapes_of, dropped_results))
    shapes: list[tuple[ir.Node, Axes, tuple[View, ...]]] = [(*each, ends) for each in of_ends]
    for dropped, last in zip(sources, (query, key, value), strict=True):
        for source in dropped[: [each.view for each in dropped].index(last.view)]:
            shapes += [(*each, (last.view,)) for each in shapes_of(source.view)]
    match = Match(
        replace(
            found,
            factor=factor,
            scalars=others,
            is_safe=found.is_safe and may_mask_rows(found.steps, context.shared(Values)),
            is_causal=found.is_causal or later == -math.inf,
        ),
        query,
        key,
        value,
        result,
        is_quantized,
        tuple((node, axes, views) for node, axes, views in shapes if has_lengths(axes, views)),
        few,
        later if few is None and not found.is_causal else None,
    )
    _check_steps(match)
    is_faster = is_choice or _is_faster(match, is_safe=found.is_safe)
    if not is_quantized and not (_has_operator(match) and is_faster):
        raise Unconverted(Reason.ATTENTION_PAST if quantizes or is_choice else Reason.ATTENTION_AS_FAST)
    return match


def _check_steps(match: Match) -> None:
    """Checks that operators compute what changes the scores.

    Raises:
        Unconverted: They do not.
    """
    found = match.found
    for step in found.steps:
        if isinstance(step, Added | Masked) and not can_be_placed(step, match.scores, match.views[:2]):
            raise Unconverted(Reason.ATTENTION_SCORES, value=step.value.name)
    if found.softcap is None or not math.isfinite(found.factor):
        raise Unconverted(Reason.ATTENTION_SCORES, value="a soft cap" if found.softcap is None else "a factor")
    for step in found.steps if not match.is_exactly_masked else ():
        if isinstance(step, Masked) and step.number > MAX_NUMBER:
            raise Unconverted(Reason.ATTENTION_SCORES, value=step.value.name)


def _has_operator(match: Match) -> bool:
    """Returns whether MultiHeadAttention computes a match, of floats. It takes a factor of 0 for its default."""
    found = match.found
    read = [*(view.value for view in match.views), *found.product.inputs, found.result.value]
    return not found.softcap and found.factor != 0 and all(each is not None and each.dtype == FLOAT for each in read)


def _check_lengths(found: Attention, operands: Iterable[list[Source]], context: Context) -> None:
    """Checks that no batch or head may be one that others share: the operators do not repeat it, as products do.

    Raises:
        Unconverted: Two operands have lengths in one place that inputs of the model declare under different names.
    """
    inputs = context.facts.model.graph.inputs
    declared = {dim for value in inputs for dim in dims_of(value) if isinstance(dim, int) or not is_unnamed(dim)}
    views = [[each.view for each in sources] for sources in operands]
    for factor in leaves(found.probabilities[:-2]):
        places = [[pair for each in own for pair in zip(each.axes, dims_of(each.value), strict=False)] for own in views]
        known = [{dim for axis, dim in each if leaves([axis]) == (factor,)} & declared for each in places]
        lengths = {min(each, key=str) for each in known if each}
        if lengths and not set.intersection(*filter(None, known)):
            raise Unconverted(Reason.ATTENTION_LENGTHS, lengths=", ".join(sorted(map(str, lengths))))


def _parts_of(found: Attention, sources: _Sources, results: list[View]) -> _Parts | ir.Value:
    """Returns the factors of the axes of all operands and the result; a value if its factors are not known.

    The factors before the tokens are the batch and those after them the heads, in as many operands as possible.
    """
    tokens = leaves(found.probabilities[-1:])
    rows = leaves(found.probabilities[-2:-1])
    lead = leaves(found.probabilities[:-2])
    query, key, value, result = found.query, found.key, found.value, found.result
    size = tuple(each for each in query.order if each not in (*lead, *rows))
    width = tuple(each for each in value.order if each not in (*lead, *tokens))
    parts = (query, rows, size), (key, tokens, size), (value, tokens, width), (result, rows, width)
    for view, *own in parts:
        shared = lead if view in (key, value) else ()  # heads that only the query has
        if {*view.order, *shared} != {*lead, *leaves(own)}:
            return view.value
    if not {*tokens, *size} <= {*key.order} or not _is_known(size):
        return key.value
    if not {*tokens} <= {*value.order} or not _is_known(width):
        return value.value
    views = *([source.view for source in each] for each in sources), results
    votes = [0] * (len(lead) + 1)
    for candidates, (_, t, d) in zip(views, parts, strict=True):
        for i in range(len(lead)):
            votes[i] += any(_has_heads(each, Part(lead[:i], lead[i:], t, d)) for each in candidates)
    at = max(range(len(votes)), key=lambda i: (votes[i], i))
    if not votes[at] and len(lead) > 1 and _is_known(lead[-1:]):
        at = len(lead) - 1
    if not _is_known(lead[at:]):
        at = next(i for i in range(len(lead) + 1) if _is_known(lead[i:]))
    query_part, key_part, value_part, result_part = (Part(lead[:at], lead[at:], t, d) for _, t, d in parts)
    return query_part, key_part, value_part, result_part


def _has_heads(view: View, part: Part) -> bool:
    """Returns whether a view has heads between tokens and elements, and the batch before them."""
    batch, heads = (tuple(each for each in axis if each in view.order) for axis in part[:2])
    return bool(heads) and view.order == (*batch, *part.tokens, *heads, *part.size)


def _is_known(factors: Axis) -> bool:
    return all(isinstance(each.length, int) for each in factors)


def _with_shared_heads(parts: _Parts, keys: list[Source], values: list[Source]) -> _Parts:
    """Returns the parts without the last heads that neither key nor value has before it is repeated."""
    query, key, value, result = parts
    own, of_value = (tuple(each for each in query.heads if each in last.view.order) for last in (keys[-1], values[-1]))
    if own != of_value or own != query.heads[: len(own)]:
        return parts
    return query, key._replace(heads=own), value._replace(heads=own), result


def _operands(parts: _Parts, sources: _Sources, *, is_quantized: bool) -> list[Operand]:
    """Returns the operands that need the fewest copies."""
    pairs = [*zip(sources, parts, strict=False)]
    query, *found = (_best(*pair, _ORDERS if is_quantized else _TOKENS_FIRST) for pair in pairs)
    if not is_quantized and length_of(parts[1].size) == length_of(parts[2].size):
        split = [_best(*pair, (HeadLayout.HEADS_FIRST,)) for pair in pairs[1:]]
        if any(_distance(a.view, a.axes) == 3 > _distance(b.view, b.axes) for a, b in zip(found, split, strict=True)):
            found = split
    return [query, *found]


def _best(sources: list[Source], part: Part, orders: Iterable[HeadLayout]) -> Operand:
    """Returns the value, and the order of axes among some, that need the fewest copies of the model and of ours."""
    needed = {*leaves(part)} & {*sources[0].view.order}
    best, least = None, math.inf
    for i, source in reversed(list(enumerate(sources))):
        if {*source.view.order} != needed:
            continue
        copies = sum(is_standard(node, "Transpose") for each in sources[i:] if (node := each.view.value.producer()))
        for order in orders:
            distance = _distance(source.view, part.axes(order))
            cost = 100 * (copies + (distance == 3)) + 10 * int(order) + distance
            if cost < least:
                best, least = Operand(source.view, part, order, source.scalars), cost
    assert best is not None
    return best


def _result_of(results: list[View], part: Part, product: View, orders: Iterable[HeadLayout]) -> Operand:
    """Returns the view that the operator computes, and the order of its axes; the product, if no view has an order."""
    fitting = [(view, order) for order in orders for view in results if view.order == leaves(part.axes(order))]
    view, order = (*fitting, (product, HeadLayout.TOKENS_FIRST))[0]
    return Operand(view, part, order)


def _distance(view: View, target: Axes) -> int:
    """Returns whether a view needs no node (0), a Reshape (1, 2), or Transpose (3) to have other axes."""
    mine, its = ([leaves([axis]) for axis in axes] for axes in (view.axes, target))
    if mine == its:
        return 0
    if view.order != leaves(target):
        return 3
    return 1 if mine[:2] == its[:2] else 2


def _results_of(result: View, product: ir.Node) -> list[View]:
    """Returns the views of the result that follow it, the last one first, each if nothing else reads the one before."""
    found = [result]
    while not found[0].value.is_graph_output():
        users = [node for node, _ in found[0].value.uses() if not is_standard(node, "Shape")]
        if len(users) != 1 or users[0].graph is not product.graph:
            break
        if (after := found[0].after(users[0])) is None:
            break
        found.insert(0, after)
    return found


def _has_past(view: View) -> bool:
    """Returns whether tokens are appended to those of earlier runs: quantizing all of them takes too long for a few.

    Those are inputs [B, H, T, D] of the graph. In a branch, the condition has been tested (attention_operands.py).
    """
    values = [view.value]
    for value in values:
        if value.is_graph_input() and value.graph is view.value.graph and len(dims_of(value)) == 4:
            return True
        node = value.producer()
        if node is not None and is_standard(node, *_MOVES):
            sources = node.inputs if node.op_type == "Concat" else node.inputs[:1]
            values += [each for each in sources if each is not None and each not in values]
    return False


def _is_faster(match: Match, *, is_safe: bool) -> bool:
    """Returns whether MultiHeadAttention is faster than the exported nodes, as ONNX Runtime fuses them.

    Without a bias it always is. A bias costs it as much as one Add costs them, and few scores gain nothing.
    """
    steps = match.found.steps
    if not steps:
        return True
    s, t = length_of(match.query.part.tokens), length_of(match.key.part.tokens)
    is_small = s is not None and t is not None and s * t < _MIN_SCORES
    return not is_small and (is_safe or len(steps) > 1 or isinstance(steps[0], Masked))


def _report(node: ir.Node, context: Context) -> Match | None:
    """Reports an operator of the model."""
    is_operator = is_attention(node) or (node.domain == MICROSOFT and node.op_type == "Attention")
    if context.options.fuse and is_operator and RULE_OF_NODE not in node.metadata_props:
        raise Unconverted(Reason.ATTENTION_OF_FLOATS)
    return None


RULE = Rule("attention", OPSET, _match, build, fuses=True)
OPERATORS = Rule("operator of attention", OPSET, _report, build, fuses=True)
QUANTIZE = Rule("quantized attention", OPSET, functools.partial(_match, quantizes=True), build, fuses=True)
