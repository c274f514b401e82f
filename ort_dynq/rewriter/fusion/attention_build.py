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
from ..views import Axes, Axis, Dim, View, arranged, dims_of, has_lengths, held, leaves, length_of, shape_of
from .score_steps import Added, Masked, Padding, Scalar, Step, Steps, sum_of, times

FLOAT = ir.DataType.FLOAT
_BIAS = 3  # the input of QuantizedAttention
FEW, _WITHOUT_KEYS = metadata.ALTERNATIVES  # names of graphs
MIN_QUERIES = 64  # over cached keys: 48 over 512 keys took 1.1 to 1.2 times as long as in floats, 64 as long (Zen 5)


@dataclass(frozen=True)
class Layout:
    """The factors of the axes of the operators: those of the batch, of heads, queries, keys, and of heads' elements.

    Attributes:
        batch, heads, queries, keys: The factors of the axes of scores.
        size, width: Those of the elements of a head of query and key, and of value.
        repeats: The last factors of heads that key and value do not have: heads of query share theirs.
    """

    batch: Axis
    heads: Axis
    queries: Axis
    keys: Axis
    size: Axis
    width: Axis
    repeats: Axis = ()

    @property
    def scores(self) -> Axes:
        """The axes of scores."""
        return self.batch, self.heads, self.queries, self.keys

    @property
    def key_heads(self) -> Axis:
        """The heads of key and value."""
        return self.heads[: len(self.heads) - len(self.repeats)]

    def axes(self, order: HeadLayout, tokens: Axis, size: Axis, heads: Axis) -> Axes:
        """Returns the axes of an operand."""
        if order == HeadLayout.TOKENS_FIRST:
            return self.batch, tokens, (*heads, *size)
        return self.batch, heads, *((tokens, size) if order == HeadLayout.HEADS_FIRST else (size, tokens))


@dataclass(frozen=True)
class Operand:
    """A value from which an operand is read, and the order of the axes in which the operator gets it."""

    view: View
    order: HeadLayout
    axes: Axes


@dataclass(frozen=True)
class Match:
    """Attention that becomes one operator.

    Attributes:
        query, key, value: The operands.
        layout: The factors of their axes.
        factor: The product of the constant scalars.
        scalars: The scalars that are computed at run time.
        softcap: The bound of the scores before the steps; 0: there is none.
        steps: The masks and biases, the innermost first.
        is_causal: Whether a query sees the keys up to its own number.
        window: The number of keys up to its own that a query sees; 0: all.
        is_exactly_masked: Whether all steps are masks with numbers that the operator puts in the place of scores.
        has_safe_rows: Whether there may be rows without keys, which are 0.
        product: The product by the value.
        result: The view that the new node replaces: its output, or one behind it. Its order is that of the operator.
        is_quantized: Whether products of integers take the place of the products.
        shapes: Nodes that read the shapes of values that nothing else reads then, each with its axes and the
            views with values of these lengths.
        few: What takes its place in runs with fewer queries than MIN_QUERIES; None: nothing does.
        later: The number by which the steps are known to hide all keys behind a query; None: they are not.
        ends_together: Whether the last query has the position of the last key, not the first that of the first one.
    """

    query: Operand
    key: Operand
    value: Operand
    layout: Layout
    factor: float
    scalars: tuple[Scalar, ...]
    softcap: float
    steps: Steps
    is_causal: bool
    window: int
    is_exactly_masked: bool
    has_safe_rows: bool
    product: ir.Node
    result: Operand
    is_quantized: bool
    shapes: tuple[tuple[ir.Node, Axes, tuple[View, ...]], ...]
    few: Match | None = None
    later: float | None = None
    ends_together: bool = False

    @property
    def views(self) -> tuple[View, View, View]:
        """The views of query, key and value."""
        return self.query.view, self.key.view, self.value.view


def build(match: Match, edit: Edit) -> None:
    """Records the new nodes of a match."""
    before = match.product
    types = {each.value.dtype for each in (*match.views, match.result.view)}
    dtype = FLOAT if len(types) > 1 or not match.is_quantized else (types.pop() or FLOAT)
    main, keeps = operator_of(match, dtype, edit)
    if match.few is not None:
        many, (few, keeps) = main, operator_of(match.few, dtype, edit)
        edit.operator = many.op_type
        for each in (many, few):
            edit.facts.note(each.outputs[0], dtype, None)
        has_many = many_queries(match.layout.queries, match.views, edit, before=before)
        main = chosen(has_many, ("many_queries", [many], many.outputs[:1]), (FEW, [few], few.outputs[:1]))
        edit.facts.note(main.outputs[0], dtype, None)
    elif match.later is not None and match.later > -np.inf:
        main = _without_later_keys(main, match.later, dtype, edit, before=before)
        edit.facts.note(main.outputs[0], dtype, None)
    y = View(edit.insert_main(main, before=before), match.result.axes)
    if keeps is not None:
        split = match.layout.batch, match.layout.queries, match.layout.heads, match.layout.width
        y = View(arranged(y, split, edit, before=before), split)
        y = View(edit.insert(ir.node("Mul", [y.value, keeps]), before=before), split)
    for node, axes, views in match.shapes:
        edit.replace(node.outputs[0], shape_of(axes, views, edit, before=node))
    _place(y, dtype, match, edit)


def operator_of(match: Match, dtype: ir.DataType, edit: Edit) -> tuple[ir.Node, ir.Value | None]:
    """Returns the operator, which is not inserted yet, and factors of the rows of its result, if it needs any."""
    before, layout, known = match.product, match.layout, match.views

    def placed(operand: Operand) -> ir.Value:
        value = arranged(operand.view, operand.axes, edit, before=before, lengths=known)
        return edit.cast(value, dtype, before=before, of=operand.view.value.dtype)

    q, k, v = map(placed, (match.query, match.key, match.value))
    by_row = [each for each in match.scalars if not has_one_element(each.value, 3)]
    others = tuple(each for each in match.scalars if each not in by_row)
    if by_row:
        q = _scaled(View(q, match.query.axes), by_row, match, edit)
    bias = keeps = None
    if match.steps:
        flags = {"is_exact": match.is_exactly_masked, "is_whole": not match.is_quantized}
        bias = bias_of(match.steps, layout.scores, known[:2], edit, **flags)
    heads, key_heads = length_of(layout.heads), length_of(layout.key_heads)
    assert heads is not None
    assert key_heads is not None
    if match.is_quantized:
        bias = edit.add_constant(np.zeros((1, 1, 1, 1), np.float32), before=before) if bias is None else bias
        numbers = [step.number for step in match.steps if isinstance(step, Masked)]
        least_added = max(numbers) / 2 if match.is_exactly_masked else -np.inf
        cap, least = (edit.add_constant(np.float32(each), before=before) for each in (match.softcap, least_added))
        operator = call(
            "QuantizedAttention",
            [q, k, v, bias, times(match.factor, others, edit, before), cap, least],
            num_heads=heads,
            kv_num_heads=key_heads if layout.repeats else 0,
            query_layout=int(match.query.order),
            key_layout=int(match.key.order),
            value_layout=int(match.value.order),
            dst_layout=int(match.result.order),
            keys_before=match.window - 1,
            keys_after=0 if match.is_causal else -1,
            ends_together=int(match.ends_together and (match.is_causal or match.window > 0)),
            zero_rows=int(match.has_safe_rows),
        )
        return operator, None
    if match.has_safe_rows and bias is not None:
        bias, keeps = _safe(bias, edit)
    if others:
        q = edit.insert(ir.node("Mul", [q, times(1, others, edit, before)]), before=before)
    edit.facts.model.graph.opset_imports.setdefault(MICROSOFT, 1)
    inputs = [q, k, v, *([None, None, bias] if bias is not None else [])]
    attributes = {"num_heads": heads, "scale": match.factor}
    return ir.node("MultiHeadAttention", inputs, attributes, domain=MICROSOFT), keeps


def is_of_few_queries(node: ir.Node) -> bool:
    """Returns whether a node runs only for few queries, which floats take less time for."""
    return node.graph is not None and node.graph.name == FEW


def count_of(queries: Axis, views: Sequence[View], edit: Edit, *, before: ir.Node) -> ir.Value:
    """Returns the number of queries, one element. Layers with as many share the nodes.

    Args:
        queries: The factors of the axis.
        views: Views from which it may be read: that of the query, and others.
        edit: Records the new nodes.
        before: The old node before which they are inserted.
    """
    key = views[0].value if len(queries) > 1 else known_as(queries[0].length, views[0].value)
    return edit.once(("queries", key), lambda: shape_of((queries,), views, edit, before=before))


def many_queries(queries: Axis, views: Sequence[View], edit: Edit, *, before: ir.Node) -> ir.Value:
    """Returns whether there are at least MIN_QUERIES; the arguments are those of `count_of`."""
    count = count_of(queries, views, edit, before=before)

    def are_many() -> ir.Value:
        fewest = edit.add_constant(np.array([MIN_QUERIES - 1]), before=before)
        return edit.insert(ir.node("Greater", [count, fewest]), before=before)

    return edit.once(("many queries", count), are_many)


Branch = tuple[str, Sequence[ir.Node], Sequence[ir.Value]]
"""The name, the nodes and the outputs of a branch."""


def chosen(condition: ir.Value, if_true: Branch, if_false: Branch) -> ir.Node:
    """Returns the node that runs one of two branches; it is not inserted yet."""
    graphs = [ir.Graph([], outputs, nodes=nodes, name=name) for name, nodes, outputs in (if_true, if_false)]
    branches = dict(zip(("then_branch", "else_branch"), graphs, strict=True))
    return ir.node("If", [condition], branches, num_outputs=len(if_true[2]))


def _without_later_keys(
    operator: ir.Node, number: float, dtype: ir.DataType, edit: Edit, *, before: ir.Node
) -> ir.Node:
    """Returns what leaves out the keys behind each query, unless a row has no other keys; it is not inserted yet.

    `number`: what the bias of the operator hides these keys with. `dtype`: the type of its result.
    """
    attributes = {**operator.attributes, "keys_after": ir.AttrInt64("keys_after", 0)}
    causal = ir.node(operator.op_type, operator.inputs, attributes, domain=operator.domain)
    bias = operator.inputs[_BIAS]
    assert bias is not None
    for each in (operator, causal):
        edit.facts.note(each.outputs[0], dtype, None)
    edit.operator = operator.op_type
    condition = _have_keys(bias, number, edit, before=before)
    branches = [(name, [node], node.outputs) for name, node in (("causal", causal), (_WITHOUT_KEYS, operator))]
    return chosen(condition, *branches)


def _scaled(query: View, scalars: Sequence[Scalar], match: Match, edit: Edit) -> ir.Value:
    """Returns a query [B, S, H * D] with rows that are multiplied or divided by numbers of heads or queries."""
    layout, before = match.layout, match.product
    split = layout.batch, layout.queries, layout.heads, layout.size
    q = arranged(query, split, edit, before=before, lengths=match.views)
    for scalar in scalars:
        view = _view_of(scalar)
        factors = arranged(view, held(view, (*split[:3], ())), edit, before=before, lengths=match.views)
        q = edit.insert(ir.node("Div" if scalar.divides else "Mul", [q, factors]), before=before)
    return arranged(View(q, split), query.axes, edit, before=before, lengths=match.views)


def _place(y: View, dtype: ir.DataType, match: Match, edit: Edit) -> None:
    """Puts the result of the new node, of a type, in the place of the model's."""
    before, result = match.product, match.result.view
    reshape = producer_of(result.value, "Reshape") if result.value is not match.product.outputs[0] else None
    if reshape is not None and len(y.axes) == 3 and _copies_same(reshape, y, result):
        # It stays, and hides shapes from ONNX Runtime as before: SkipLayerNormalization, which it would fuse if it knew
        # them, took three times as long as Add and LayerNormalization (1.32, Zen 4).
        edit.replace_input(reshape, 0, edit.cast(y.value, result.value.dtype, before=before, of=dtype))
        return
    value = arranged(y, result.axes, edit, before=before, lengths=match.views)
    edit.replace(result.value, edit.cast(value, result.value.dtype, before=before, of=dtype))


def _copies_same(reshape: ir.Node, y: View, result: View) -> bool:
    """Returns whether a Reshape, before its result, copies lengths that y has in the same places."""
    shape = known_lengths(reshape.inputs[1]) or [0] * len(result.axes)
    copied = [i for i, length in enumerate(shape) if length == 0]
    return all(i < 2 and leaves([y.axes[i]]) == leaves([result.axes[i]]) for i in copied)


def bias_of(
    steps: Steps, scores: Axes, ends: Sequence[View], edit: Edit, *, is_exact: bool = False, is_whole: bool = False
) -> ir.Value:
    """Returns the sum of masks and biases, of four dimensions. Layers with the same ones share it.

    The nodes stand before Softmax: it comes before the Softmax of each further layer, but not before each product.

    Args:
        steps: The masks and biases.
        scores: The factors of the axes of scores.
        ends: Views of query and key, from which lengths may be read at run time.
        edit: Records the new nodes.
        is_exact: Whether numbers of masks take the place of scores, and need not absorb them.
        is_whole: Whether the last two dimensions of the sum are S and T, also where it has one number for all.
    """
    lengths = [length_of(axis) or axis[0].length for axis in scores[2:]]
    expands = is_whole and not all(
        any(_has_length(step, i, n, scores) for step in steps) for i, n in enumerate(lengths, 2)
    )
    unique = () if all(_is_direct(step, scores) for step in steps) else (edit.node,)
    read = [known_as(n, end.value) for end, n in zip(ends, lengths, strict=True)] if expands else []

    def total() -> ir.Value:
        found = sum_of(tuple(placed(step, scores, ends, edit) for step in steps), edit, is_exact=is_exact)
        missing = len(scores) - max(rank_of(step, scores) for step in steps)
        if expands:
            shape = shape_of(((), (), *scores[2:]), ends, edit, before=edit.node)
            return edit.insert(ir.node("Expand", [found, shape]), before=edit.node)
        if not missing:
            return found
        axes = edit.add_constant(np.arange(missing), before=edit.node)
        return edit.insert(ir.node("Unsqueeze", [found, axes]), before=edit.node)

    return edit.once(("bias", steps, is_exact, *unique, *read), total)


def _have_keys(bias: ir.Value, number: float, edit: Edit, *, before: ir.Node) -> ir.Value:
    """Returns whether each row of a bias has a key that is not hidden by a number."""

    def least_of_rows() -> ir.Value:
        largest = edit.insert(edit.reduction("ReduceMax", bias, [-1], before=before), before=before)
        least = edit.insert(ir.node("ReduceMin", [largest], {"keepdims": 0}), before=before)
        bound = edit.add_constant(np.float32(number / 2), before=before)
        return edit.insert(ir.node("Greater", [least, bound]), before=before)

    return edit.once(("have keys", bias), least_of_rows)


def _safe(bias: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """Returns a bias with 0 in rows of -inf, and the factors of the rows: 0 for these, [B or 1, S, H or 1, 1]."""

    def safe() -> tuple[ir.Value, ir.Value]:
        before = edit.node
        largest = edit.insert(edit.reduction("ReduceMax", bias, [-1], before=before), before=before)
        lowest = edit.add_constant(np.float32(-np.inf), before=before)
        has_keys = edit.insert(ir.node("Greater", [largest, lowest]), before=before)
        zero = edit.add_constant(np.float32(0), before=before)
        finite = edit.insert(ir.node("Where", [has_keys, bias, zero]), before=before)
        factors = edit.insert(ir.node("Cast", [has_keys], {"to": int(FLOAT)}), before=before)
        return finite, edit.insert(ir.node("Transpose", [factors], {"perm": [0, 2, 1, 3]}), before=before)

    return edit.once(("safe", bias), safe)


def rank_of(step: Step, scores: Axes) -> int:
    """Returns the rank of the value of a step after it is placed."""
    if isinstance(step, Added | Masked):
        return len(dims_of(step.value)) if _is_direct(step, scores) else len(scores)
    return len(scores) if isinstance(step, Padding) else 0


def _is_direct(step: Step, scores: Axes) -> bool:
    """Returns whether a step broadcasts to [B, H, S, T] as it is."""
    if not isinstance(step, Added | Masked):
        return True
    axes = [leaves([axis]) for axis in ((),) * (4 - len(step.axes)) + step.axes]
    rank = len(dims_of(step.value))
    return (
        rank <= 4
        and all(a in ((), leaves([b])) for a, b in zip(axes[-rank:] if rank else (), scores[4 - rank :], strict=True))
        and not any(axes[: len(axes) - rank])
    )


def can_be_placed(step: Step, scores: Axes, ends: Sequence[View]) -> bool:
    """Returns whether a step broadcasts to [B, H, S, T], or can be reshaped and repeated to do so."""
    if _is_direct(step, scores):
        return True
    assert isinstance(step, Added | Masked)
    is_known = set(leaves(step.axes)) <= set(leaves(scores))
    sources = [_view_of(step), *ends] if step.is_proven else ends
    return is_known and has_lengths([(each,) for each in leaves(scores)], sources)


def _view_of(step: Added | Masked | Scalar) -> View:
    return View(step.value, step.axes[len(step.axes) - len(dims_of(step.value)) :])


def placed(step: Step, scores: Axes, ends: Sequence[View], edit: Edit) -> Step:
    """Returns a step with a value that is float32, or a condition, and broadcasts to [B, H, S, T]."""
    if isinstance(step, Padding):
        return Added(_padding(step, scores, ends, edit), scores)
    if not isinstance(step, Added | Masked | Scalar):
        return step
    value = step.value
    if isinstance(step, Added | Masked) and not _is_direct(step, scores):
        view = _view_of(step)
        if not step.is_proven:
            shape = shape_of(view.axes, ends, edit, before=edit.node)
            view = View(edit.insert(ir.node("Expand", [value, shape]), before=edit.node), view.axes)
        value = arranged(view, held(view, scores), edit, before=edit.node, lengths=ends)
    dtype = ir.DataType.BOOL if isinstance(step, Masked) else FLOAT
    return replace(step, value=edit.cast(value, dtype, before=edit.node, of=step.value.dtype))


def _padding(step: Padding, scores: Axes, ends: Sequence[View], edit: Edit) -> ir.Value:
    """Returns what is added to the scores of keys that are padding, and 0 for others: [B or 1, 1, S or 1, T]."""
    before = edit.node
    if step.more is None:
        view = View(edit.cast(step.value, ir.DataType.BOOL, before=before, of=step.value.dtype), step.axes)
        keeps = arranged(view, held(view, scores), edit, before=before, lengths=ends)
    else:
        numbers = [edit.add_constant(np.array(number), before=before) for number in (0, 1, step.more, [-1, 1, 1, 1])]
        zero, one, more, column = numbers
        scalar = edit.add_constant(np.zeros(0, np.int64), before=before)
        tokens = shape_of(scores[3:], ends, edit, before=before)
        length = edit.insert(ir.node("Reshape", [tokens, scalar]), before=before)
        keys = edit.insert(ir.node("Range", [zero, length, one]), before=before)
        counts = edit.cast(step.value, ir.DataType.INT64, before=before, of=step.value.dtype)
        counts = edit.insert(ir.node("Add", [counts, more]), before=before)
        counts = edit.insert(ir.node("Reshape", [counts, column]), before=before)
        keeps = edit.insert(ir.node("Less", [keys, counts]), before=before)
    nought, number = (edit.add_constant(np.float32(each), before=before) for each in (0, step.number))
    return edit.insert(ir.node("Where", [keeps, nought, number]), before=before)


def _has_length(step: Step, axis: int, length: Dim, scores: Axes) -> bool:
    """Returns whether the value of a step, [B, H, S, T], is known to have a length along an axis."""
    if isinstance(step, Padding):
        return axis == len(scores) - 1 or bool(set(leaves(step.axes)) & set(leaves([scores[axis]])))
    if not isinstance(step, Added | Masked):
        return False
    if not _is_direct(step, scores):
        return bool(set(leaves(step.axes)) & set(leaves([scores[axis]])))
    dims = dims_of(step.value)
    return len(dims) == 4 and is_equal(dims[axis], length)
