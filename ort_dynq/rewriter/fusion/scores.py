"""Attention as exporters write it: two products of activations, and between them scores, which steps change.

The values are views (views.py) of which only the factors of their axes count: Softmax is over those that only the key
has.

Example: Where(mask, MatMul(q, k) * 0.125 + b, -inf) has three steps: the scalar 0.125, the bias b, and the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from ...operators.encodings import HeadLayout
from ..analysis.constants import constant_scalar, is_idle_dropout
from ..analysis.einsums import labels_of
from ..analysis.limits import CHAIN
from ..analysis.nodes import is_standard, only_use, producer_of
from ..analysis.shape_arithmetic import factors_of
from ..analysis.shapes import axes_of as reduced_axes
from ..analysis.shapes import does_not_grow, is_equal, unexpanded
from ..analysis.standard import ARITHMETIC, BENT, COMMUTATIVE, FUNCTIONS, SCALING, STACKED_PRODUCTS, SUMS
from ..analysis.values import Values
from ..reasons import Reason, Unconverted
from ..rule import Context
from ..views import Axes, Axis, View, axes_of, broadcast, dims_of, leaves, operands_of, rename
from .score_steps import MAX_NUMBER, Added, Floor, Masked, Scalar, Step, Steps, Tanh, split_steps


class Part(NamedTuple):
    """The factors of the axes of an operand or of the result."""

    batch: Axis
    heads: Axis
    tokens: Axis
    size: Axis

    @classmethod
    def of(cls, view: View, scores: Axes) -> Part:
        """Returns that of the view of an operand or result; `scores`: the axes [B, H, S, T] of its scores."""
        batch, heads, queries, keys = (tuple(each for each in leaves([axis]) if each in view.order) for axis in scores)
        return cls(batch, heads, queries or keys, tuple(each for each in view.order if each not in leaves(scores)))

    @property
    def split(self) -> Axes:
        """The axes with tokens first, and heads apart from their elements."""
        return self.batch, self.tokens, self.heads, self.size

    def axes(self, order: HeadLayout) -> Axes:
        """Returns the axes in an order."""
        if order == HeadLayout.TOKENS_FIRST:
            return self.batch, self.tokens, (*self.heads, *self.size)
        last = (self.tokens, self.size) if order == HeadLayout.HEADS_FIRST else (self.size, self.tokens)
        return self.batch, self.heads, *last


@dataclass(frozen=True)
class Attention:
    """Two products with a softmax between them.

    Attributes:
        query, key, value: The factors of the products.
        probabilities: The factors of the axes of the softmax, which is over the last one.
        product: The second product.
        result: Its output.
        is_safe: Whether NaN of the softmax becomes 0.
        shapes: The nodes that read the shapes of scores and probabilities, each with its axes.
        factor: A number by which the first product is multiplied before the steps.
        scalars: Other numbers by which it is multiplied or divided.
        softcap: The bound of the scores before the steps; 0: there is none; None: it is no number.
        steps: The masks and biases, the innermost first.
        is_causal: Whether a query sees the keys up to its own number.
        window: The number of keys up to its own that a query sees; 0: all.
    """

    query: View
    key: View
    value: View
    probabilities: Axes
    product: ir.Node
    result: View
    is_safe: bool = True
    shapes: tuple[tuple[ir.Node, Axes], ...] = ()
    factor: float = 1.0
    scalars: tuple[Scalar, ...] = ()
    softcap: float | None = 0.0
    steps: Steps = ()
    is_causal: bool = False
    window: int = 0


@dataclass
class _Scores:
    """The product of query and key, a number by which it is multiplied, and what changes it, the innermost first."""

    query: View
    key: View
    factor: float
    steps: list[Step] = field(default_factory=list)


@dataclass
class _Walk:
    """What a walk from the softmax to the first product has found.

    Attributes:
        context: The model.
        axes: The factors of the axes of scores.
        shapes: The nodes that read shapes, each with its axes.
        lost: The value that is farthest from the softmax.
        distance: The number of nodes between the two.
        is_mixed: Whether a product by a constant makes it.
    """

    context: Context
    axes: Axes
    shapes: list[tuple[ir.Node, Axes]] = field(default_factory=list)
    lost: ir.Value | None = None
    distance: int = -1
    is_mixed: bool = False


def attention_of(node: ir.Node, context: Context) -> Attention | Unconverted | None:
    """Returns the attention with a softmax that ends in a node, or why it has no form of these; None for other nodes.

    Casts from floats to floats may stand between the nodes, as in float16 models. Attention without a softmax is lost
    in its second product.
    """
    users = _softmax_of(node)
    p = node.outputs[0] if node.outputs else None
    if p is None or not users:
        return _without_softmax(node, context)
    if p.shape is None:
        return _lost(p, Reason.ATTENTION_AXES) if _is_factor(p, context) else None
    if len(p.shape) < 2:
        return None
    axes = axes_of(p.shape)
    walk = _Walk(context, axes)
    scores = _scores_of(users, 0, axes, walk)
    after = _product_of(node, axes, walk)  # it knows the lengths of scores then
    if isinstance(after, ir.Value) and not _is_factor(p, context):
        return None
    if scores is None:
        lost = walk.lost
        is_attention = lost is not None and not (walk.is_mixed and _product_before(lost, context, mixed=True) is None)
        return _lost(lost, Reason.ATTENTION_SCORES) if lost is not None and is_attention else None
    if isinstance(after, ir.Value):
        return _lost(after, Reason.ATTENTION_WEIGHTS)
    query, key = scores.query, scores.key
    if {*leaves(axes[-1:])} & {*query.order}:
        query, key = key, query
    product, index, view, is_safe = after
    operands, result = operands_of(product, {index: view.axes})
    value, y, shapes = operands[1 - index], View(product.outputs[0], result), tuple(walk.shapes)
    steps = split_steps(scores.steps)
    return Attention(query, key, value, axes, product, y, is_safe, shapes, scores.factor, *steps)


def _lost(value: ir.Value, reason: Reason) -> Unconverted:
    return Unconverted(reason, value=value.name)


def _softmax_of(node: ir.Node) -> tuple[ir.Node, ...]:
    """Returns the nodes that read the scores of a softmax over the last axis that ends in a node; none for others."""
    rank = len(dims_of(node.outputs[0])) if node.outputs else 0
    if is_standard(node, "Softmax"):
        return (node,) if not rank or node.attributes.get_int("axis", -1) in (-1, rank - 1) else ()
    e = node.inputs[0] if is_standard(node, "Div") else None
    total, exp = (producer_of(node.inputs[1], "ReduceSum"), producer_of(e, "Exp")) if e is not None else (None, None)
    sub = None if exp is None else producer_of(exp.inputs[0], "Sub")
    largest = None if sub is None else producer_of(sub.inputs[1], "ReduceMax")
    if e is None or total is None or sub is None or largest is None or largest.inputs[0] is not sub.inputs[0]:
        return ()
    reductions = (total, e), (largest, sub.inputs[0])
    for reduction, source in reductions:
        if reduction.inputs[0] is not source or reduction.attributes.get_int("keepdims", 1) != 1:
            return ()
        if reduced_axes(reduction) not in ([-1], [rank - 1]):
            return ()
    are_used = {*e.consumers()} == {node, total} and not e.is_graph_output()
    return (sub, largest) if are_used and only_use(sub.outputs[0]) and only_use(largest.outputs[0]) else ()


def _scores_of(
    users: Sequence[ir.Node], index: int, axes: Axes, walk: _Walk, distance: int = 0, *, is_half: bool = False
) -> _Scores | None:
    """Returns the scores that nodes read as one of their inputs, if nothing else uses them.

    Args:
        users: The nodes.
        index: The input.
        axes: The factors of their axes.
        walk: Gets what is found.
        distance: The number of nodes between them and Softmax.
        is_half: Whether they become float16 later.
    """
    value = users[0].inputs[index]
    if distance > walk.distance and value is not None and constant_scalar(value) is None:
        walk.lost, walk.distance = value, distance
    node = None if value is None else value.producer()
    if value is None or node is None or node.graph is not users[0].graph or CHAIN.is_passed(distance):
        return None
    if value.is_graph_output() or not all(_serves(users, index, *use) for use in value.uses()):
        return None
    walk.shapes += shapes_of(View(value, axes))
    dims = dims_of(value)
    if len(dims) != len(axes) or any(dim == 1 and axis for dim, axis in zip(dims, axes, strict=True)):
        return None
    rename(axes, value)
    is_half = is_half or value.dtype == ir.DataType.FLOAT16
    if labels_of(node) is not None:
        (a, b), _ = operands_of(node, {2: axes})
        walk.is_mixed = _mixes_heads(a, walk) or _mixes_heads(b, walk)
        if walk.is_mixed:
            return None
        return _Scores(a, b, node.attributes.get_float("alpha", 1.0))
    if (source := View(value, axes).before()) is not None:
        return _scores_of((node,), 0, source.axes, walk, distance + 1, is_half=is_half)
    for i in _indices(node):
        scores = _scores_of((node,), i, axes, walk, distance + 1, is_half=is_half)
        if scores is not None:
            step = _step_of(node, i, axes, is_half=is_half)
            if step is None:
                return None
            mask = _mask_of(scores.steps[-1:], step, walk.context)
            scores.steps[len(scores.steps) - (mask is not None) :] = [mask or step]
            return scores
    return None


def _serves(users: Sequence[ir.Node], index: int, node: ir.Node, at: int) -> bool:
    """Returns whether a use of scores is that of a user, or reads their shape."""
    return at == index if node in users else is_standard(node, "Shape") and node.graph is users[0].graph


def shapes_of(view: View) -> list[tuple[ir.Node, Axes]]:
    """Returns the nodes that read the shape of a view, or a part of it, each with its axes."""
    shapes = [node for node, _ in view.value.uses() if is_standard(node, "Shape")]
    ends = [(node.attributes.get_int("start", 0), node.attributes.get_int("end", len(view.axes))) for node in shapes]
    return [(node, view.axes[start:end]) for node, (start, end) in zip(shapes, ends, strict=True)]


def _indices(node: ir.Node) -> tuple[int, ...]:
    """Returns the inputs of a step that may be scores."""
    if is_standard(node, *COMMUTATIVE, "Max") and len(node.inputs) == 2:
        return (0, 1)
    if is_standard(node, "Where"):
        return (1, 2)
    return (0,) if is_standard(node, *ARITHMETIC - COMMUTATIVE, "Tanh") else ()


def _step_of(node: ir.Node, index: int, axes: Axes, *, is_half: bool) -> Step | None:
    """Returns the step that a node is for one of its inputs; None if it is none.

    Args:
        node: The node.
        index: The input that are scores.
        axes: The factors of their axes.
        is_half: Whether its output becomes float16.
    """
    value = node.inputs[index]
    assert value is not None
    if node.op_type == "Tanh":
        return Tanh()
    other = node.inputs[3 - index if node.op_type == "Where" else 1 - index]
    if other is None:
        return None
    if node.op_type in SUMS:
        other = unexpanded(other, value) or other
        found = _broadcast(other, value, axes)
        return None if found is None else Added(other, *found, is_half, node.op_type == "Sub")
    if node.op_type in SCALING:
        found = _broadcast(other, value, axes)
        return None if found is None else Scalar(other, *found, node.op_type == "Div")
    number = constant_scalar(other)
    if number is None or not number < 0 or not does_not_grow(unexpanded(other, value) or other, value):
        return None
    if node.op_type == "Max":
        return Floor(number) if number <= MAX_NUMBER else None
    condition = None if node.inputs[0] is None else unexpanded(node.inputs[0], value) or node.inputs[0]
    found = None if condition is None else _broadcast(condition, value, axes)
    return None if condition is None or found is None else Masked(condition, *found, index == 1, number)


def _mask_of(before: list[Step], step: Step, context: Context) -> Masked | None:
    """Returns the mask that two steps are: scores * b + (1 - b) * number, where b is 0 or 1; None if they are none."""
    mul = producer_of(step.value, "Mul") if isinstance(step, Added) and not step.subtracts else None
    if mul is None or not before or not isinstance(scalar := before[0], Scalar) or scalar.divides:
        return None
    known = context.shared(Values).known(scalar.value)
    for i in (0, 1):
        sub, number = producer_of(mul.inputs[i], "Sub"), constant_scalar(mul.inputs[1 - i])
        if sub is None or number is None or constant_scalar(sub.inputs[0]) != 1 or sub.inputs[1] is not scalar.value:
            continue
        if known.is_integer and 0 <= known.low <= known.high <= 1 and number <= MAX_NUMBER:
            return Masked(scalar.value, scalar.axes, number=number)
    return None


def _broadcast(value: ir.Value, scores: ir.Value, axes: Axes) -> tuple[Axes, bool] | None:
    """Returns the factors of the axes of a value that is broadcast to scores, and whether their lengths are known."""
    found, dims = broadcast(value, axes), dims_of(value)
    pairs = zip(reversed(dims), reversed(dims_of(scores)), strict=False)
    return None if found is None else (found.axes, all(a == 1 or is_equal(a, b) for a, b in pairs))


def _product_of(softmax: ir.Node, axes: Axes, walk: _Walk) -> tuple[ir.Node, int, View, bool] | ir.Value:
    """Returns the product by the value; the index and the view of the probabilities; and whether the softmax is safe.

    Returns:
        Only the value that the model uses elsewhere, or what it makes of the probabilities before their product.
    """
    view, is_safe = View(softmax.outputs[0], axes), False
    while not view.value.is_graph_output():
        uses = [(node, at) for node, at in view.value.uses() if not is_standard(node, "Shape")]
        users = list(dict.fromkeys(node for node, _ in uses))
        if any(node.graph is not softmax.graph for node, _ in view.value.uses()):
            break
        walk.shapes += shapes_of(view)
        if len(users) == 2 and (result := _without_nan(view.value, users)) is not None:
            view, is_safe = View(result, view.axes), True
            continue
        if len(uses) != 1:
            break
        node = users[0]
        if _is_of_activations(node, walk.context) and node.attributes.get_float("alpha", 1.0) == 1:
            return node, list(node.inputs).index(view.value), view, is_safe
        if is_idle_dropout(node) and not any(each.uses() or each.is_graph_output() for each in node.outputs[1:]):
            view = View(node.outputs[0], view.axes)
        elif (after := view.after(node)) is not None:
            view = after
        else:
            return node.outputs[0]
    return view.value


def _is_factor(value: ir.Value, context: Context) -> bool:
    """Returns whether what a model makes of a value is a factor of a product of two activations."""
    values = [value]
    for each in values:
        for node, _ in each.uses():
            if is_standard(node, *STACKED_PRODUCTS) and not any(map(context.facts.is_constant, node.inputs)):
                return True
            values += [output for output in node.outputs if output not in values]
        if CHAIN.is_passed(len(values)):
            break
    return False


def _mixes_heads(factor: View, walk: _Walk) -> bool:
    """Returns whether a factor of a product is a constant that has neither queries nor keys."""
    return walk.context.facts.is_constant(factor.value) and not {*leaves(walk.axes[-2:])} & {*leaves(factor.axes)}


def _is_of_activations(node: ir.Node, context: Context) -> bool:
    """Returns whether a node is a product of two activations."""
    return labels_of(node) is not None and not any(map(context.facts.is_constant, node.inputs))


def _without_softmax(product: ir.Node, context: Context) -> Unconverted | None:
    """Returns the weights of attention that are made of scores by other functions than a softmax over the keys."""
    if not _is_of_activations(product, context):
        return None
    for weights in product.inputs:
        if weights is not None and _product_before(weights, context, mixed=False) is not None:
            return _lost(weights, Reason.ATTENTION_SOFTMAX)
    return None


def _product_before(value: ir.Value, context: Context, *, mixed: bool) -> ir.Node | None:
    """Returns the product of two activations that a value is made of, one element of each; None if there is none.

    `mixed`: whether also products by constants may make it, as heads are mixed; otherwise functions do, but no softmax
    over the last axis.
    """
    values, is_function, count = [value], mixed, factors_of(dims_of(value))
    for each in values:
        node = each.producer()
        if node is None or count is None or CHAIN.is_passed(len(values)):
            continue
        if _is_of_activations(node, context):
            return node if is_function else None
        if not mixed and (_softmax_of(node) or labels_of(node) is not None):
            return None
        is_function |= is_standard(node, *FUNCTIONS, *BENT)
        sources = [source for source in node.inputs if source is not None and source not in values]
        values += [source for source in sources if factors_of(dims_of(source)) == count]
    return None


def _without_nan(value: ir.Value, users: list[ir.Node]) -> ir.Value | None:
    """Returns Where(IsNaN(value), 0, value), or None."""
    where, test = sorted(users, key=lambda node: node.op_type != "Where")
    if not is_standard(where, "Where") or not is_standard(test, "IsNaN"):
        return None
    zero, use = where.inputs[1], only_use(test.outputs[0])
    if use is None or use.node is not where or use.idx != 0 or where.inputs[2] is not value:
        return None
    return where.outputs[0] if constant_scalar(zero) == 0 and does_not_grow(zero, value) else None
