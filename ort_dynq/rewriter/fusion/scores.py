"""The scores of exported attention: a product, multiplied by numbers, and changed by masks and biases.

Example: Where(mask, MatMul(q, k) * 0.125 + b, -inf) has the scalar 0.125 and two steps: the bias b, then the mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.nodes import input_of, is_standard, only_use, producer_of
from ..analysis.shape_arithmetic import known_number
from ..analysis.shapes import does_not_grow, has_one_element
from ..analysis.values import Values
from ..edit import Edit
from .heads import Heads, dims_of, heads_by_token, heads_of

LARGEST_MASK = -1e20  # such a number or a lower one absorbs a score that it is added to
LARGEST_MASK_OF_FLOAT16 = -6e4  # likewise: scores of float16 are far from it
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FARTHEST = 16  # nodes between the product and Softmax


@dataclass(frozen=True)
class Scalar:
    """A number of one element by which scores are multiplied or divided."""

    value: ir.Value
    divides: bool


@dataclass(frozen=True)
class Added:
    """A bias that is added to scores.

    Attributes:
        value: The bias.
        is_half: Whether the sums become float16.
    """

    value: ir.Value
    is_half: bool = False


@dataclass(frozen=True)
class Masked:
    """A condition: scores stay where it is `keeps`, and become `number` elsewhere."""

    value: ir.Value
    keeps: bool
    number: float


Steps = tuple[Added | Masked, ...]


@dataclass
class Scores:
    """Scores: MatMul(query, key), multiplied by scalars and then changed by steps, the innermost first.

    Attributes:
        query: [B, H, S, D].
        key: [B, H, D, T].
    """

    query: ir.Value
    key: ir.Value
    scalars: list[Scalar] = field(default_factory=list)
    steps: list[Added | Masked] = field(default_factory=list)


def attention_of(softmax: ir.Node, *, through_casts: bool = False) -> tuple[Scores, ir.Node, bool] | None:
    """Returns the scores, MatMul(probabilities, value), and whether the softmax is safe; None if it is no attention.

    With `through_casts`, Casts from floats to floats may stand between the nodes, as in float16 models.
    """
    p = softmax.outputs[0]
    if not is_standard(softmax, "Softmax") or len(dims_of(p)) != 4:
        return None
    if softmax.attributes.get_int("axis", -1) not in (-1, 3):
        return None
    scores, found = scores_of(softmax, through_casts=through_casts), product_of(softmax, through_casts=through_casts)
    return None if scores is None or found is None else (scores, *found)


def scores_of(
    user: ir.Node, index: int = 0, distance: int = 0, *, through_casts: bool = False, is_half: bool = False
) -> Scores | None:
    """Returns the scores that Softmax, or a node before it, reads as one of its inputs, if nothing else uses them.

    `is_half`: whether they become float16 later.
    """
    value = user.inputs[index]
    node = None if value is None else value.producer()
    if value is None or node is None or node.graph is not user.graph or distance > _FARTHEST:
        return None
    if value.is_graph_output() or not all(_serves(user, index, *use) for use in value.uses()):
        return None
    is_half = is_half or value.dtype == ir.DataType.FLOAT16

    def before(at: int) -> Scores | None:
        assert node is not None
        return scores_of(node, at, distance + 1, through_casts=through_casts, is_half=is_half)

    if through_casts and is_float_cast(node):
        return before(0)
    if is_standard(node, "MatMul"):
        query, key = node.inputs
        return None if query is None or key is None else Scores(query, key)
    if not is_standard(node, "Add", "Mul", "Div", "Where"):
        return None
    for i, other in _operands(node):
        if (scores := before(i)) is not None:
            return scores if other is not None and _apply(node, i, other, scores, is_half=is_half) else None
    return None


def is_float_cast(node: ir.Node) -> bool:
    """Returns whether a node is a Cast from floats to floats."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    return source is not None and source.dtype in _FLOATS and node.outputs[0].dtype in _FLOATS


def skip_casts(value: ir.Value) -> ir.Value:
    """Returns the value before any Cast from floats to floats."""
    while (node := value.producer()) is not None and is_float_cast(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _serves(user: ir.Node, index: int, node: ir.Node, at: int) -> bool:
    """Returns whether a use of scores is that of a user, or expands another input of the user to their shape."""
    if node is user:
        return at == index
    shape = only_use(node.outputs[0]) if is_standard(node, "Shape") else None
    expanded = only_use(shape.node.outputs[0]) if shape is not None and is_standard(shape.node, "Expand") else None
    return expanded is not None and expanded.node is user


def _apply(node: ir.Node, index: int, other: ir.Value, scores: Scores, *, is_half: bool) -> bool:
    """Adds a node that reads scores to what is done to them; returns whether that is possible.

    `is_half`: whether its output becomes float16.
    """
    value = node.inputs[index]
    assert value is not None
    if node.op_type == "Add":
        scores.steps.append(Added(_unexpanded(other, value), is_half))
        return True
    if node.op_type == "Where":
        number, condition = constant_scalar(other), node.inputs[0]
        limit = LARGEST_MASK_OF_FLOAT16 if is_half else LARGEST_MASK
        if condition is None or number is None or number > limit:
            return False
        scores.steps.append(Masked(_unexpanded(condition, value), index == 1, number))
        return does_not_grow(_unexpanded(other, value), value)
    scores.scalars.append(Scalar(other, node.op_type == "Div"))
    return not scores.steps


def _unexpanded(value: ir.Value, scores: ir.Value) -> ir.Value:
    """Returns the input of an Expand to the shape of scores: the operation with the scores expands it by itself."""
    expand = producer_of(value, "Expand")
    shape = None if expand is None else producer_of(expand.inputs[1], "Shape")
    if expand is None or shape is None or shape.inputs[0] is not scores:
        return value
    if "end" in shape.attributes or shape.attributes.get_int("start", 0) != 0:
        return value
    return value if expand.inputs[0] is None else expand.inputs[0]


def _operands(node: ir.Node) -> list[tuple[int, ir.Value | None]]:
    """Returns the indices of the inputs of a node that may be scores, each with the other input."""
    if node.op_type == "Where":
        return [(1, node.inputs[2]), (2, node.inputs[1])]
    return [(0, node.inputs[1]), *([(1, node.inputs[0])] if node.op_type != "Div" else [])]


def unscaled(value: ir.Value, scalars: list[Scalar], *, at_run_time: bool = False) -> ir.Value:
    """Returns a value before its scaling, and adds the scalars to a list.

    A product with a scalar that is computed at run time may be a dequantization. It stays, unless it is asked for.
    """
    while (node := producer_of(value, "Mul", "Div")) is not None:
        found = [
            (node.inputs[i], other) for i, other in _operands(node) if other is not None and has_one_element(other, 4)
        ]
        if not found or found[0][0] is None or not (at_run_time or known_number(found[0][1]) is not None):
            break
        value = found[0][0]
        scalars.append(Scalar(found[0][1], node.op_type == "Div"))
    return value


def transposed_key(scores: Scores) -> Heads | None:
    """Returns the key before it is transposed to [B, H, D, T]; the scalars are added to those of the scores."""
    node = producer_of(unscaled(scores.key, scores.scalars, at_run_time=True), "Transpose")
    source = None if node is None else node.inputs[0]
    if node is None or source is None:
        return None
    perm = list(node.attributes.get_ints("perm", []))
    if perm == [0, 1, 3, 2]:
        return heads_of(unscaled(source, scores.scalars))
    return heads_by_token(source) if perm == [0, 2, 3, 1] else None


def split_scalars(scalars: list[Scalar]) -> tuple[list[float], tuple[Scalar, ...]]:
    """Returns the factors that are known before run time, and the other scalars."""
    constants, others = [], []
    for scalar in scalars:
        number = known_number(scalar.value)
        if number is None:
            others.append(scalar)
        elif scalar.divides:
            constants.append(1 / number if number else math.inf)
        else:
            constants.append(number)
    return constants, tuple(others)


def factor_of(constants: list[float]) -> float:
    """Returns the product of factors as float32."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(math.prod(constants)))


def times(number: float, scalars: tuple[Scalar, ...], edit: Edit, before: ir.Node) -> ir.Value:
    """Returns a number, multiplied or divided by the scalars that are computed at run time; float32."""
    scale = edit.add_constant(np.float32(number), before=before)
    for scalar in scalars:
        value = scalar.value
        if value.dtype != ir.DataType.FLOAT:
            value = edit.insert(ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}), before=before)
        scale = edit.insert(ir.node("Div" if scalar.divides else "Mul", [scale, value]), before=before)
    return scale


def may_mask_rows(steps: list[Added | Masked], values: Values) -> bool:
    """Returns whether the sum of the steps may be -inf."""
    low = np.float32(0)
    with np.errstate(over="ignore"):
        for step in steps:
            if isinstance(step, Masked):
                low = min(low, np.float32(step.number))
            else:
                low = np.float32(low + np.float32(values.known(step.value).low))
    return bool(np.isneginf(low))


def product_of(softmax: ir.Node, *, through_casts: bool = False) -> tuple[ir.Node, bool] | None:
    """Returns MatMul(probabilities, value), and whether the softmax is safe; None if the model uses them elsewhere."""
    value, is_safe = softmax.outputs[0], False
    while not value.is_graph_output():
        users = list(dict.fromkeys(node for node, _ in value.uses()))
        if any(user.graph is not softmax.graph for user in users):
            return None
        if len(users) == 2 and (result := _without_nan(value, users)) is not None:
            value, is_safe = result, True
            continue
        if len(value.uses()) != 1:
            return None
        node = users[0]
        if is_standard(node, "MatMul"):
            return (node, is_safe) if node.inputs[0] is value else None
        if not (through_casts and is_float_cast(node)) and not _is_idle_dropout(node):
            return None
        value = node.outputs[0]
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


def _is_idle_dropout(node: ir.Node) -> bool:
    """Returns whether a node is a Dropout that does nothing."""
    if not is_standard(node, "Dropout") or any(each.uses() or each.is_graph_output() for each in node.outputs[1:]):
        return False
    training = input_of(node, 2)
    return training is None or constant_scalar(training) == 0


def sum_of(steps: Steps, edit: Edit) -> ir.Value:
    """Returns what the steps make of scores of 0."""
    total: ir.Value | None = None
    for step in steps:
        if isinstance(step, Masked):
            scores = edit.add_constant(np.float32(0), before=edit.node) if total is None else total
            masked = edit.add_constant(np.float32(step.number), before=edit.node)
            choices = [scores, masked] if step.keeps else [masked, scores]
            total = edit.insert(ir.node("Where", [step.value, *choices]), before=edit.node)
        elif total is None:
            total = step.value
        else:
            total = edit.insert(ir.node("Add", [total, step.value]), before=edit.node)
    assert total is not None
    return total
