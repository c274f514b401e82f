"""The rule for attention that exporters write as products and Softmax: it becomes ONNX Runtime's MultiHeadAttention.

MatMul(q, k), scale, masks and biases, Softmax, [safe softmax], MatMul by v -> MultiHeadAttention | QuantizedAttention

QuantizedAttention has products of integers; MultiHeadAttention keeps floats. Both take query, key and value as
[B, S, H * D], [B, T, H * D] and [B, T, H * E]. An operand that is a view of other values (views.py) is read from the
one that has these axes, or gets one Transpose. The masks and biases of a layer become one sum; layers with the same
ones share it.

If -inf masks all keys of a row, Softmax gives NaN, as MultiHeadAttention does. torch's safe softmax, Where(IsNaN(p), 0,
p), gives 0. Then MultiHeadAttention gets this row without its masks, and the result is multiplied by 0, so that NaN in
v stays NaN. NaN in scores that a mask or the safe softmax of the model hides are visible after the rewrite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.inference import Facts
from ..analysis.nodes import is_standard, producer_of
from ..analysis.shape_arithmetic import known_lengths
from ..analysis.shapes import REDUCES_BY_INPUT, has_one_element, is_equal, is_unnamed
from ..analysis.values import Values
from ..edit import Edit, call
from ..rule import Context, Rule
from .score_steps import (
    Added,
    Masked,
    Scalar,
    Step,
    Steps,
    Tanh,
    factor_of,
    may_mask_rows,
    split_scalars,
    split_steps,
    sum_of,
    times,
)
from .scores import Attention, Source, attention_of, is_float_cast, shapes_of, sources_of
from .views import Axes, Axis, Dim, View, arranged, dims_of, has_lengths, leaves, length_of, shape_of

_FEWEST_SCORES = 64 * 64  # of a head; with a bias, fewer took up to 1.3 times as long in MultiHeadAttention (Zen 4)
_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class _Layout:
    """The factors of the axes of the operators: those of the batch, of heads, queries, keys, and of heads' elements."""

    batch: Axis
    heads: Axis
    queries: Axis
    keys: Axis
    size: Axis
    width: Axis

    @property
    def scores(self) -> Axes:
        return self.batch, self.heads, self.queries, self.keys

    def rows(self, tokens: Axis, size: Axis) -> Axes:
        """[B, S, H * D]."""
        return self.batch, tokens, (*self.heads, *size)

    def split_rows(self, tokens: Axis, size: Axis) -> Axes:
        """[B, S, H, D]."""
        return self.batch, tokens, self.heads, size

    def split(self, tokens: Axis, size: Axis) -> Axes:
        """[B, H, S, D]."""
        return self.batch, self.heads, tokens, size


@dataclass(frozen=True)
class _ExportedAttention:
    """Exported attention.

    Attributes:
        query, key, value: The values from which the operands are read.
        layout: The factors of their axes.
        factor: The product of the constant scalars.
        scalars: The scalars that are computed at run time.
        steps: The masks and biases, the innermost first.
        has_safe_rows: Whether there may be rows without keys, which are 0.
        product: The product by the value.
        result: The view that the new node replaces: its output, or one behind it.
        is_quantized: Whether products of integers take the place of the products.
        shapes: Nodes that read the shapes of values that nothing else reads then, each with its axes and the
            views whose values have their lengths.
    """

    query: View
    key: View
    value: View
    layout: _Layout
    factor: float
    scalars: tuple[Scalar, ...]
    steps: Steps
    has_safe_rows: bool
    product: ir.Node
    result: View
    is_quantized: bool
    shapes: tuple[tuple[ir.Node, Axes, tuple[View, ...]], ...]


def _match(node: ir.Node, context: Context, *, quantizes: bool = False) -> _ExportedAttention | None:
    found = attention_of(node) if context.fuse else None
    return None if found is None else _exported(found, context, quantizes=quantizes)


def _exported(found: Attention, context: Context, *, quantizes: bool) -> _ExportedAttention | None:
    queries = sources_of(found.scores.query)
    keys = sources_of(found.scores.key, leaves(found.probabilities[-1:]))
    values = [each for each in sources_of(found.value) if not each.scalars]
    results = _results_of(found.result, found.product)
    layout = _layout_of(found, queries, keys, values, results)
    if layout is None:
        return None
    query = _best(queries, layout.rows(layout.queries, layout.size))
    key = _best(keys, layout.rows(layout.keys, layout.size))
    value = _best(values, layout.rows(layout.keys, layout.width))
    known = (query.view, key.view, value.view)
    read = [*(view.value for view in known), *found.product.inputs, found.result.value]
    is_float = all(value is not None and value.dtype == _FLOAT for value in read)
    is_quantized = quantizes and not any(_has_past(each, layout.keys) for each in known[1:])
    scalars, steps = split_steps(found.scores.steps)
    if any(isinstance(step, Tanh) for step in steps) or (not is_quantized and not is_float):
        return None
    if not is_quantized and not _is_faster(steps, layout, is_safe=found.is_safe):
        return None
    if not all(_can_be_placed(step, layout, known[:2]) for step in steps):
        return None
    constants, others = split_scalars([*query.scalars, *key.scalars, *scalars])
    by_row = [each for each in others if not has_one_element(each.value, 3)]  # others multiply [B, S, H * D]
    if any(set(leaves(each.axes)) - {*leaves(layout.scores[:3])} or each in steps for each in by_row):
        return None
    factor = factor_of(constants)
    if factor == 0 or not math.isfinite(factor):  # MultiHeadAttention takes 0 for its default
        return None
    has_safe_rows = found.is_safe and may_mask_rows(steps, context.shared(Values))
    result = next((each for each in results if each.order == leaves(layout.rows(layout.queries, layout.width))), None)
    result = found.result if result is None else result
    shapes = [(*each, known[:2]) for view in results[results.index(result) + 1 :] for each in shapes_of(view)]
    shapes += [(*each, known[:2]) for each in found.shapes]
    for dropped, last in ((queries, query), (keys, key), (values, value)):
        for source in dropped[: dropped.index(last)]:
            shapes += [(*each, (last.view, last.view)) for each in shapes_of(source.view)]
    shapes = [(node, axes, views) for node, axes, views in shapes if has_lengths(leaves(axes), views)]
    return _ExportedAttention(
        *known, layout, factor, others, steps, has_safe_rows, found.product, result, is_quantized, tuple(shapes)
    )


def _layout_of(
    found: Attention, queries: list[Source], keys: list[Source], values: list[Source], results: list[View]
) -> _Layout | None:
    """Returns which factors are the batch, the heads, the tokens and the elements of heads; None if it is no attention.

    The factors before the tokens are the batch and those after them the heads, in as many operands as possible.
    """
    tokens = leaves(found.probabilities[-1:])
    rows = leaves(found.probabilities[-2:-1])
    lead = leaves(found.probabilities[:-2])
    q, k, v, y = (each.order for each in (found.scores.query, found.scores.key, found.value, found.result))
    size = tuple(each for each in q if each not in (*lead, *rows))
    width = tuple(each for each in v if each not in (*lead, *tokens))
    if set(q) != {*lead, *rows, *size} or {*k, *lead} != {*lead, *tokens, *size}:
        return None
    if {*v, *lead} != {*lead, *tokens, *width} or set(y) != {*lead, *rows, *width}:
        return None
    if not {*tokens, *size} <= {*k} or not {*tokens} <= {*v} or not all(map(_is_known, (size, width))):
        return None
    operands = ((queries, rows, size), (keys, tokens, size), (values, tokens, width))
    views = [([source.view for source in sources], t, d) for sources, t, d in operands]
    votes = [0] * (len(lead) + 1)
    for candidates, t, d in (*views, (results, rows, width)):
        for i in range(len(lead)):
            votes[i] += any(view.order == (*lead[:i], *t, *lead[i:], *d) for view in candidates)
    at = max(range(len(votes)), key=lambda i: (votes[i], i))
    if not votes[at] and len(lead) > 1 and _is_known(lead[-1:]):
        at = len(lead) - 1
    if not _is_known(lead[at:]):
        at = next(i for i in range(len(lead) + 1) if _is_known(lead[i:]))
    return _Layout(lead[:at], lead[at:], rows, tokens, size, width)


def _is_known(factors: Axis) -> bool:
    return all(isinstance(each.length, int) for each in factors)


def _best(sources: list[Source], target: Axes) -> Source:
    """Returns the value that needs the fewest nodes to become one with these axes."""
    return min(reversed(sources), key=lambda each: _distance(each.view, target))


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
        cast = View(users[0].outputs[0], found[0].axes) if is_float_cast(users[0]) else None
        if (after := cast or found[0].after(users[0])) is None:
            break
        found.insert(0, after)
    return found


def _has_past(view: View, tokens: Axis) -> bool:
    """Returns whether tokens are appended to those of earlier runs: quantizing all of them takes too long for a few."""
    value = view.value
    for _ in range(8):
        if (concat := producer_of(value, "Concat")) is not None:
            return any(each is not None and each.is_graph_input() for each in concat.inputs)
        node = producer_of(value, "Expand", "Reshape", "Unsqueeze", "Transpose", "Cast")
        if node is None or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value.is_graph_input() and len(view.axes) == 4


def _build(match: _ExportedAttention, edit: Edit) -> None:
    before, layout = match.product, match.layout
    known = (match.query, match.key, match.value)

    def placed(view: View, target: Axes) -> ir.Value:
        value = arranged(view, target, edit, before=before, lengths=known)
        return value if view.value.dtype == _FLOAT else _cast(value, _FLOAT, edit, before)

    q = placed(match.query, layout.rows(layout.queries, layout.size))
    by_row = [each for each in match.scalars if not has_one_element(each.value, 3)]
    if by_row:
        split, rows = layout.split_rows(layout.queries, layout.size), layout.rows(layout.queries, layout.size)
        q = arranged(View(q, rows), split, edit, before=before)
        for scalar in by_row:
            view = View(scalar.value, scalar.axes[len(scalar.axes) - len(dims_of(scalar.value)) :])
            target = tuple(axis if set(leaves([axis])) & set(view.order) else () for axis in (*split[:3], ()))
            factors = arranged(view, target, edit, before=before, lengths=known)
            q = edit.insert(ir.node("Div" if scalar.divides else "Mul", [q, factors]), before=before)
        q = arranged(View(q, split), rows, edit, before=before)
    if len(match.scalars) > len(by_row):
        scale = times(1, tuple(each for each in match.scalars if each not in by_row), edit, before)
        q = edit.insert(ir.node("Mul", [q, scale]), before=before)
    operands = ((match.key, layout.size), (match.value, layout.width))
    is_split = length_of(layout.size) == length_of(layout.width) and not match.is_quantized
    is_split = is_split and any(
        _distance(view, layout.rows(layout.keys, size)) == 3 > _distance(view, layout.split(layout.keys, size))
        for view, size in operands
    )
    shape = layout.split if is_split else layout.rows
    k, v = (placed(view, shape(layout.keys, size)) for view, size in operands)
    biases = edit.shared(_Biases)
    bias = biases.of(match, edit) if match.steps else None
    keeps = None
    if match.has_safe_rows and bias is not None:
        bias, keeps = biases.safe(bias, edit)
    heads = length_of(layout.heads)
    assert heads is not None
    if match.is_quantized:
        bias = edit.add_constant(np.zeros((1, 1, 1, 1), np.float32), before=before) if bias is None else bias
        factor = edit.add_constant(np.float32(match.factor), before=before)
        cap, least_added = (edit.add_constant(np.float32(each), before=before) for each in (0, -np.inf))
        main = call("QuantizedAttention", [q, k, v, bias, factor, cap, least_added], num_heads=heads)
    else:
        edit.facts.model.graph.opset_imports.setdefault(MICROSOFT, 1)
        inputs = [q, k, v, *([None, None, bias] if bias is not None else [])]
        main = ir.node("MultiHeadAttention", inputs, {"num_heads": heads, "scale": match.factor}, domain=MICROSOFT)
    y = edit.insert_main(main, before=before)
    rows = layout.rows(layout.queries, layout.width)
    if keeps is not None:
        split = layout.split_rows(layout.queries, layout.width)
        y = arranged(View(y, rows), split, edit, before=before)
        y, rows = edit.insert(ir.node("Mul", [y, keeps]), before=before), split
    for node, axes, views in match.shapes:
        edit.replace(node.outputs[0], shape_of(axes, views, edit, before=node))
    _place(View(y, rows), match, edit)


def _place(y: View, match: _ExportedAttention, edit: Edit) -> None:
    """Puts the result of the new node in the place of the model's."""
    before, result = match.product, match.result
    value, dtype = y.value, result.value.dtype
    reshape = producer_of(result.value, "Reshape") if result.value is not match.product.outputs[0] else None
    is_float = dtype == _FLOAT
    if reshape is not None and len(y.axes) == 3 and 0 not in (known_lengths(reshape.inputs[1]) or [0] * 3)[2:]:
        # It stays, and hides shapes from ONNX Runtime as before: SkipLayerNormalization, which it would fuse if it knew
        # them, took three times as long as Add and LayerNormalization (1.32, Zen 4).
        edit.replace_input(reshape, 0, value if is_float else _cast(value, dtype, edit, before))
        return
    value = arranged(y, result.axes, edit, before=before, lengths=(match.query, match.key, match.value))
    edit.replace(result.value, value if is_float else _cast(value, dtype, edit, before))


def _cast(value: ir.Value, dtype: ir.DataType | None, edit: Edit, before: ir.Node) -> ir.Value:
    assert dtype is not None
    return edit.insert(ir.node("Cast", [value], {"to": int(dtype)}), before=before)


RULE = Rule("attention", OPSET, _match, _build, fuses=True)
QUANTIZE = Rule("quantized attention", OPSET, functools.partial(_match, quantizes=True), _build, fuses=True)


class _Biases:
    """The sums of masks and biases of one model. Layers with the same ones share their nodes."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any bias."""
        self._biases: dict[object, ir.Value] = {}
        self._safe: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def of(self, match: _ExportedAttention, edit: Edit) -> ir.Value:
        """Returns the sum of the steps of a match, whose last two dimensions are S and T.

        The nodes stand before Softmax: it comes before the Softmax of each further layer, but not before each product.
        """
        scores, ends = match.layout.scores, (match.query, match.key)
        lengths = [length_of(axis) or axis[0].length for axis in scores[2:]]
        is_whole = all(any(_has_length(step, i, n, scores) for step in match.steps) for i, n in enumerate(lengths, 2))
        unique = () if all(_is_direct(step, scores) for step in match.steps) else (match.product,)
        read = [end.value if is_unnamed(n) else n for end, n in zip(ends, lengths, strict=True)]
        key = edit.node.graph, match.steps, unique, *(read if not is_whole else ())
        if key not in self._biases:
            total = sum_of(tuple(_placed(step, scores, ends, edit) for step in match.steps), edit)
            if not is_whole:
                shape = shape_of(((), (), *scores[2:]), ends, edit, before=edit.node)
                total = edit.insert(ir.node("Expand", [total, shape]), before=edit.node)
            self._biases[key] = total
        return self._biases[key]

    def safe(self, bias: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
        """Returns a bias with 0 in rows of -inf, and the factors of the rows: 0 for these, [B or 1, S, H or 1, 1]."""
        if bias not in self._safe:
            before = edit.node
            by_input = edit.facts.opset >= REDUCES_BY_INPUT
            axes = [edit.add_constant(np.array([-1]), before=before)] if by_input else []
            largest = edit.insert(
                ir.node("ReduceMax", [bias, *axes], {} if by_input else {"axes": [-1]}), before=before
            )
            lowest = edit.add_constant(np.float32(-np.inf), before=before)
            has_keys = edit.insert(ir.node("Greater", [largest, lowest]), before=before)
            zero = edit.add_constant(np.float32(0), before=before)
            finite = edit.insert(ir.node("Where", [has_keys, bias, zero]), before=before)
            factors = edit.insert(ir.node("Cast", [has_keys], {"to": int(_FLOAT)}), before=before)
            swapped = edit.insert(ir.node("Transpose", [factors], {"perm": [0, 2, 1, 3]}), before=before)
            self._safe[bias] = finite, swapped
        return self._safe[bias]


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


def _can_be_placed(step: Step, layout: _Layout, ends: Sequence[View]) -> bool:
    """Returns whether a step broadcasts to [B, H, S, T], or can be reshaped and repeated to do so."""
    if _is_direct(step, layout.scores):
        return True
    assert isinstance(step, Added | Masked)
    is_known = step.is_proven and set(leaves(step.axes)) <= set(leaves(layout.scores))
    return is_known and all(has_lengths(axis, ends) for axis in layout.scores)


def _placed(step: Step, scores: Axes, ends: Sequence[View], edit: Edit) -> Step:
    """Returns a step whose value is float32, or a condition, and broadcasts to [B, H, S, T]."""
    if not isinstance(step, Added | Masked | Scalar):
        return step
    value = step.value
    if isinstance(step, Added | Masked) and not _is_direct(step, scores):
        view = View(value, step.axes[len(step.axes) - len(dims_of(value)) :])
        target = tuple(axis if set(leaves([axis])) & set(view.order) else () for axis in scores)
        value = arranged(view, target, edit, before=edit.node, lengths=ends)
    if step.value.dtype not in (_FLOAT, ir.DataType.BOOL):
        value = _cast(value, _FLOAT, edit, edit.node)
    return replace(step, value=value)


def _has_length(step: Step, axis: int, length: Dim, scores: Axes) -> bool:
    """Returns whether the value of a step, [B, H, S, T], is known to have a length along an axis."""
    if not isinstance(step, Added | Masked):
        return False
    if not _is_direct(step, scores):
        return bool(set(leaves(step.axes)) & set(leaves([scores[axis]])))
    dims = dims_of(step.value)
    return len(dims) == 4 and is_equal(dims[axis], length)


def _is_faster(steps: Steps, layout: _Layout, *, is_safe: bool) -> bool:
    """Returns whether MultiHeadAttention is faster than the exported nodes, as ONNX Runtime fuses them.

    Without a bias it always is. A bias costs it as much as one Add costs them, and few scores gain nothing.
    """
    if not steps:
        return True
    s, t = length_of(layout.queries), length_of(layout.keys)
    is_small = s is not None and t is not None and s * t < _FEWEST_SCORES
    return not is_small and (is_safe or len(steps) > 1 or isinstance(steps[0], Masked))
