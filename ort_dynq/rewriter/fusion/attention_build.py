"""Builds QuantizedAttention and MultiHeadAttention in the place of attention that an exporter has written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...operators.encodings import HeadLayout
from .. import metadata
from ..analysis.nodes import producer_of
from ..analysis.shape_arithmetic import known_lengths
from ..analysis.shapes import has_one_element, is_equal, known_as
from ..edit import Edit, call
from ..views import Axes, Axis, Dim, Nodes, View, apart, dims_of, has_lengths, held, leaves, length_of, same_axes
from .score_steps import Added, Given, Masked, Padding, Scalar, Step, Steps, sum_of, times
from .scores import Attention, Part

FLOAT = ir.DataType.FLOAT
_BIAS = 3  # the input of QuantizedAttention
FEW, _WITHOUT_KEYS = metadata.ALTERNATIVES  # names of graphs
MIN_QUERIES = 64  # over cached keys: 48 over 512 keys took 1.1 to 1.2 times as long as in floats, 64 as long (Zen 5)


@dataclass(frozen=True)
class Operand:
    """A value from which an operand is read, its axes and their order in the operator, and its scalars."""

    view: View
    part: Part
    order: HeadLayout
    scalars: tuple[Scalar, ...] = ()

    @property
    def axes(self) -> Axes:
        """The axes in which the operator gets it."""
        return self.part.axes(self.order)


@dataclass(frozen=True)
class Match:
    """Attention that becomes one operator.

    Attributes:
        found: The attention; its scalars are computed at run time, and there may be rows without keys if it is safe.
        query, key, value: The operands. Key and value may lack the last heads of the query, which share theirs then.
        result: The view that the new node replaces: its output, or one behind it. Its order is that of the operator.
        is_quantized: Whether products of integers take the place of the products.
        shapes: Nodes that read the shapes of values that nothing else reads then, each with its axes and the
            views with values of these lengths.
        few: What takes its place in runs with fewer queries than MIN_QUERIES; None: nothing does.
        later: The number by which the steps are known to hide all keys behind a query; None: they are not.
        ends_together: Whether the last query has the position of the last key, not the first that of the first one.
    """

    found: Attention
    query: Operand
    key: Operand
    value: Operand
    result: Operand
    is_quantized: bool = True
    shapes: tuple[tuple[ir.Node, Axes, tuple[View, ...]], ...] = ()
    few: Match | None = None
    later: float | None = None
    ends_together: bool = False

    @property
    def views(self) -> tuple[View, View, View]:
        """The views of query, key and value."""
        return self.query.view, self.key.view, self.value.view

    @property
    def scores(self) -> Axes:
        """The axes of scores: batch, heads, queries, keys."""
        return *self.query.part[:3], self.key.part.tokens

    @property
    def is_exactly_masked(self) -> bool:
        """Whether all steps are masks with numbers that the operator puts in the place of scores."""
        steps = self.found.steps
        return self.is_quantized and bool(steps) and all(isinstance(step, Masked) for step in steps)


def build(match: Match, edit: Edit) -> None:
    """Records the new nodes of a match."""
    nodes = Nodes(edit, match.found.product, match.views)
    types = {each.value.dtype for each in (*match.views, match.result.view)}
    dtype = FLOAT if len(types) > 1 or not match.is_quantized else (types.pop() or FLOAT)
    main, keeps = operator_of(match, dtype, edit)
    edit.operator = main.op_type
    if match.few is not None:
        few, keeps = operator_of(match.few, dtype, edit)
        has_many = many_queries(match.query.part.tokens, nodes)
        main = chosen(has_many, ("many_queries", [main], main.outputs), (FEW, [few], few.outputs), dtype, edit)
    elif match.later is not None and match.later > -np.inf:
        main = _without_later_keys(main, match.later, dtype, nodes)
    y = View(edit.insert_main(main, before=nodes.before), match.result.axes)
    if keeps is not None:
        split = match.result.part.split
        y = View(nodes.add("Mul", Nodes(edit, nodes.before).arranged(y, split), keeps), split)
    for node, axes, views in match.shapes:
        edit.replace(node.outputs[0], Nodes(edit, node, views).shape(axes))
    _place(y, dtype, match, nodes)


def operator_of(match: Match, dtype: ir.DataType, edit: Edit) -> tuple[ir.Node, ir.Value | None]:
    """Returns the operator, which is not inserted yet, and factors of the rows of its result, if it needs any."""
    found, nodes = match.found, Nodes(edit, match.found.product, match.views)
    q, k, v = (
        nodes.cast(nodes.arranged(each.view, each.axes), dtype, each.view.value.dtype)
        for each in (match.query, match.key, match.value)
    )
    by_row = [each for each in found.scalars if not has_one_element(each.value, 3)]
    others = [each for each in found.scalars if each not in by_row]
    if by_row:
        q = _scaled(q, by_row, match.query, nodes)
    bias = keeps = None
    if found.steps:
        flags = {"is_exact": match.is_exactly_masked, "is_whole": not match.is_quantized}
        bias = bias_of(found.steps, match.scores, Nodes(edit, edit.node, match.views[:2]), **flags)
    heads, key_heads = (length_of(each.part.heads) for each in (match.query, match.key))
    assert heads is not None
    assert key_heads is not None
    if match.is_quantized:
        bias = nodes.constant(np.zeros((1, 1, 1, 1), np.float32)) if bias is None else bias
        numbers = [step.number for step in found.steps if isinstance(step, Masked)]
        least_added = max(numbers) / 2 if match.is_exactly_masked else -np.inf
        cap, least = (nodes.constant(np.float32(each)) for each in (found.softcap, least_added))
        operator = call(
            "QuantizedAttention",
            [q, k, v, bias, times(found.factor, others, nodes), cap, least],
            num_heads=heads,
            kv_num_heads=0 if key_heads == heads else key_heads,
            query_layout=int(match.query.order),
            key_layout=int(match.key.order),
            value_layout=int(match.value.order),
            dst_layout=int(match.result.order),
            keys_before=found.window - 1,
            keys_after=0 if found.is_causal else -1,
            ends_together=int(match.ends_together and (found.is_causal or found.window > 0)),
            zero_rows=int(found.is_safe),
        )
        return operator, None
    if found.is_safe and bias is not None:
        bias, keeps = _safe(bias, Nodes(edit, edit.node))
    if others:
        q = nodes.add("Mul", q, times(1, others, nodes))
    edit.facts.model.graph.opset_imports.setdefault(MICROSOFT, 1)
    inputs = [q, k, v, *([None, None, bias] if bias is not None else [])]
    attributes = {"num_heads": heads, "scale": found.factor}
    return ir.node("MultiHeadAttention", inputs, attributes, domain=MICROSOFT), keeps


def is_of_few_queries(node: ir.Node) -> bool:
    """Returns whether a node runs only for few queries, which floats take less time for."""
    return node.graph is not None and node.graph.name == FEW


def count_of(queries: Axis, nodes: Nodes) -> ir.Value:
    """Returns the number of queries, one element, read from the views of query and others. Layers share the nodes."""
    query = nodes.views[0].value
    key = query if len(queries) > 1 else known_as(queries[0].length, query)
    return nodes.edit.once(("queries", key), lambda: nodes.shape((queries,)))


def many_queries(queries: Axis, nodes: Nodes) -> ir.Value:
    """Returns whether there are at least MIN_QUERIES; the arguments are those of `count_of`."""
    count = count_of(queries, nodes)
    return nodes.edit.once(("many queries", count), lambda: nodes.add("Greater", count, [MIN_QUERIES - 1]))


Branch = tuple[str, Sequence[ir.Node], Sequence[ir.Value]]
"""The name, the nodes and the outputs of a branch."""


def chosen(condition: ir.Value, if_true: Branch, if_false: Branch, dtype: ir.DataType, edit: Edit) -> ir.Node:
    """Returns the node that runs one of two branches, with outputs of a type; it is not inserted yet."""
    graphs = [ir.Graph([], outputs, nodes=nodes, name=name) for name, nodes, outputs in (if_true, if_false)]
    branches = dict(zip(("then_branch", "else_branch"), graphs, strict=True))
    main = ir.node("If", [condition], branches, num_outputs=len(if_true[2]))
    for each in (*if_true[2], *if_false[2], *main.outputs):
        edit.facts.note(each, dtype, None)
    return main


def _without_later_keys(operator: ir.Node, number: float, dtype: ir.DataType, nodes: Nodes) -> ir.Node:
    """Returns what leaves out the keys behind each query, unless a row has no other keys; it is not inserted yet.

    `number`: what the bias of the operator hides these keys with. `dtype`: the type of its result.
    """
    attributes = {**operator.attributes, "keys_after": ir.AttrInt64("keys_after", 0)}
    causal = ir.node(operator.op_type, operator.inputs, attributes, domain=operator.domain)
    bias = operator.inputs[_BIAS]
    assert bias is not None

    def have_keys() -> ir.Value:
        return nodes.add("Greater", nodes.add("ReduceMin", _largest(bias, nodes), keepdims=0), np.float32(number / 2))

    condition = nodes.edit.once(("have keys", bias), have_keys)
    if_true, if_false = ((name, [node], node.outputs) for name, node in (("causal", causal), (_WITHOUT_KEYS, operator)))
    return chosen(condition, if_true, if_false, dtype, nodes.edit)


def _scaled(value: ir.Value, scalars: Sequence[Scalar], query: Operand, nodes: Nodes) -> ir.Value:
    """Returns a query [B, S, H * D] with rows that are multiplied or divided by numbers of heads or queries."""
    split = query.part.split
    q = nodes.arranged(View(value, query.axes), split)
    for scalar in scalars:
        factors = nodes.arranged(scalar.view, held(scalar.view, (*split[:3], ())))
        q = nodes.add("Div" if scalar.divides else "Mul", q, factors)
    return nodes.arranged(View(q, split), query.axes)


def _place(y: View, dtype: ir.DataType, match: Match, nodes: Nodes) -> None:
    """Puts the result of the new node, of a type, in the place of the model's."""
    edit, result, product = nodes.edit, match.result.view, match.found.product
    reshape = producer_of(result.value, "Reshape") if result.value is not product.outputs[0] else None
    if reshape is not None and len(y.axes) == 3 and _copies_same(reshape, y, result):
        # It stays, and hides shapes from ONNX Runtime as before: SkipLayerNormalization, which it would fuse if it knew
        # them, took three times as long as Add and LayerNormalization (1.32, Zen 4).
        edit.replace_input(reshape, 0, nodes.cast(y.value, result.value.dtype, dtype))
        return
    edit.replace(result.value, nodes.cast(nodes.arranged(y, result.axes), result.value.dtype, dtype))


def _copies_same(reshape: ir.Node, y: View, result: View) -> bool:
    """Returns whether a Reshape, before its result, copies lengths that y has in the same places."""
    shape = known_lengths(reshape.inputs[1]) or [0] * len(result.axes)
    copied = [i for i, length in enumerate(shape) if length == 0]
    return all(i < 2 and leaves([y.axes[i]]) == leaves([result.axes[i]]) for i in copied)


def bias_of(steps: Steps, scores: Axes, nodes: Nodes, *, is_exact: bool = False, is_whole: bool = False) -> ir.Value:
    """Returns the sum of masks and biases, of four dimensions. Layers with the same ones share it.

    Args:
        steps: The masks and biases.
        scores: The factors of the axes of scores.
        nodes: The new nodes, with views of query and key. They stand before Softmax: it comes before the Softmax of
            each further layer, but not before each product.
        is_exact: Whether numbers of masks take the place of scores, and need not absorb them.
        is_whole: Whether the last two dimensions of the sum are S and T, also where it has one number for all.
    """
    dims = [_placed_dims(step, scores) for step in steps]
    lengths = _lengths_of(scores)[2:]
    whole = [
        any(len(each) == 4 and (each[i] is n or is_equal(each[i], n)) for each in dims)
        for i, n in enumerate(lengths, 2)
    ]
    expands, missing = is_whole and not all(whole), 4 - max(map(len, dims))
    unique = () if all(_is_direct(step, scores) for step in steps) else (nodes.before,)
    read = [known_as(n, end.value) for end, n in zip(nodes.views, lengths, strict=True)] if expands else []

    def total() -> ir.Value:
        found = sum_of(tuple(_placed(step, scores, nodes) for step in steps), nodes, is_exact=is_exact)
        if expands:
            return nodes.add("Expand", found, nodes.shape(((), (), *scores[2:])))
        return nodes.add("Unsqueeze", found, np.arange(missing)) if missing else found

    return nodes.edit.once(("bias", steps, is_exact, *unique, *read), total)


def _safe(bias: ir.Value, nodes: Nodes) -> tuple[ir.Value, ir.Value]:
    """Returns a bias with 0 in rows of -inf, and the factors of the rows: 0 for these, [B or 1, S, H or 1, 1]."""

    def safe() -> tuple[ir.Value, ir.Value]:
        has_keys = nodes.add("Greater", _largest(bias, nodes), np.float32(-np.inf))
        finite = nodes.add("Where", has_keys, bias, np.float32(0))
        factors = nodes.add("Cast", has_keys, to=int(FLOAT))
        return finite, nodes.add("Transpose", factors, perm=[0, 2, 1, 3])

    return nodes.edit.once(("safe", bias), safe)


def _largest(bias: ir.Value, nodes: Nodes) -> ir.Value:
    """Returns the largest number of each row of a bias."""
    return nodes.edit.insert(nodes.edit.reduction("ReduceMax", bias, [-1], before=nodes.before), before=nodes.before)


def _is_direct(step: Step, scores: Axes) -> bool:
    """Returns whether a step broadcasts to [B, H, S, T] as it is."""
    if not isinstance(step, Added | Masked):
        return True
    missing = len(scores) - len(step.axes)
    return missing >= 0 and same_axes(((),) * missing + step.axes, held(step.view, scores))


def can_be_placed(step: Step, scores: Axes, ends: Sequence[View]) -> bool:
    """Returns whether a step broadcasts to [B, H, S, T], or can be reshaped and repeated to do so."""
    if not isinstance(step, Added | Masked) or _is_direct(step, scores):
        return True
    sources = [step.view, *ends] if step.is_proven else ends
    return {*leaves(step.axes)} <= {*leaves(scores)} and has_lengths(apart(leaves(scores)), sources)


def _placed(step: Step, scores: Axes, nodes: Nodes) -> Step:
    """Returns a step with a value that is float32, or a condition, and broadcasts to [B, H, S, T]."""
    if isinstance(step, Padding):
        return Added(_padding(step, scores, nodes), scores)
    if not isinstance(step, Given):
        return step
    view = step.view
    if not _is_direct(step, scores):
        if not step.is_proven:
            view = View(nodes.add("Expand", view.value, nodes.shape(view.axes)), view.axes)
        view = View(nodes.arranged(view, held(view, scores)), scores)
    dtype = ir.DataType.BOOL if isinstance(step, Masked) else FLOAT
    return replace(step, value=nodes.cast(view.value, dtype, step.value.dtype))


def _padding(step: Padding, scores: Axes, nodes: Nodes) -> ir.Value:
    """Returns what is added to the scores of keys that are padding, and 0 for others: [B or 1, 1, S or 1, T]."""
    if step.more is None:
        view = View(nodes.cast(step.value, ir.DataType.BOOL), step.axes)
        keeps = nodes.arranged(view, held(view, scores))
    else:
        zero, one, more, column = (nodes.constant(number) for number in (0, 1, step.more, [-1, 1, 1, 1]))
        scalar = nodes.constant(np.zeros(0, np.int64))
        keys = nodes.add("Range", zero, nodes.add("Reshape", nodes.shape(scores[3:]), scalar), one)
        counts = nodes.add("Add", nodes.cast(step.value, ir.DataType.INT64), more)
        keeps = nodes.add("Less", keys, nodes.add("Reshape", counts, column))
    return nodes.add("Where", keeps, np.float32(0), np.float32(step.number))


def _placed_dims(step: Step, scores: Axes) -> list[Dim]:
    """Returns the lengths of the value of a step after it is placed."""
    if not isinstance(step, Added | Masked | Padding):
        return []
    if not isinstance(step, Padding) and _is_direct(step, scores):
        return dims_of(step.value)
    lengths, held_axes = _lengths_of(scores), held(step.view, scores)
    return [n if axis else 1 for axis, n in zip(held_axes, lengths, strict=True)]


def _lengths_of(scores: Axes) -> list[Dim]:
    return [length_of(axis) or axis[0].length for axis in scores]
