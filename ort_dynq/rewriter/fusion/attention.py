"""The rule for attention that exporters write as products and Softmax: it becomes ONNX Runtime's MultiHeadAttention.

MatMul(q, k), scale, masks and biases, Softmax, [safe softmax], MatMul by v -> MultiHeadAttention

Query, key and value have the shapes [B, H, S, D], [B, H, T, D] and [B, H, T, E]. The masks and biases of a layer become
one sum; layers with the same ones share it.

If -inf masks all keys of a row, Softmax gives NaN, as MultiHeadAttention does. torch's safe softmax, Where(IsNaN(p), 0,
p), gives 0. Then MultiHeadAttention gets this row without its masks, and the result is multiplied by 0, so that NaN in
v stays NaN. NaN in scores that a mask or the safe softmax of the model hides are visible after the rewrite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...opsets import OPSET
from ..analysis.constants import constant_array, constant_scalar, is_number
from ..analysis.inference import Facts
from ..analysis.nodes import is_standard, only_use, producer_of, skip_identity
from ..analysis.shapes import does_not_grow, has_one_element
from ..analysis.values import Values
from ..edit import Edit
from ..rule import Context, Rule

_DOMAIN = "com.microsoft"
_LARGEST_MASK = -1e20  # such a number or a lower one absorbs a score that it is added to
_FARTHEST = 16  # nodes between the product and Softmax
_FEWEST_SCORES = 64 * 64  # of a head; with a bias, fewer took up to 1.3 times as long in MultiHeadAttention (Zen 4)
_HEADS_FIRST = [0, 2, 1, 3]  # from [B, S, H, D] to [B, H, S, D], and back
_REDUCES_BY_INPUT = 18  # the first opset in which the axes of ReduceMax are an input
_SLICE_WITHOUT_STEPS = 3  # inputs after the data: starts, ends, axes
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
}

_Dim = int | ir.SymbolicDim


@dataclass(frozen=True)
class _Scalar:
    """A number of one element by which scores are multiplied or divided."""

    value: ir.Value
    divides: bool


@dataclass(frozen=True)
class _Added:
    """A bias that is added to scores."""

    value: ir.Value


@dataclass(frozen=True)
class _Masked:
    """A condition: scores stay where it is `keeps`, and become `number` elsewhere."""

    value: ir.Value
    keeps: bool
    number: float


_Steps = tuple[_Added | _Masked, ...]


@dataclass
class _Scores:
    """Scores: MatMul(query, key), multiplied by scalars and then changed by steps, the innermost first.

    Attributes:
        query: [B, H, S, D].
        key: [B, H, D, T].
    """

    query: ir.Value
    key: ir.Value
    scalars: list[_Scalar] = field(default_factory=list)
    steps: list[_Added | _Masked] = field(default_factory=list)


@dataclass(frozen=True)
class _Heads:
    """A query, a key or a value.

    Attributes:
        value: [B, S, H * D], [B, S, H, D] or, if `is_split_first`, [B, H, S, D].
        batch, heads, length, size: B, H, S and D.
        is_split_first: Whether the heads stand before the tokens.
    """

    value: ir.Value
    batch: _Dim
    heads: int
    length: _Dim
    size: int
    is_split_first: bool

    def joined(self, edit: Edit, before: ir.Node) -> ir.Value:
        """Returns the value as [B, S, H * D]."""
        if len(_dims(self.value)) == 3:
            return self.value
        by_token = _swapped(self.value, edit, before) if self.is_split_first else self.value
        return _reshaped(by_token, [0, 0, self.heads * self.size], edit, before)

    def split(self, edit: Edit, before: ir.Node) -> ir.Value:
        """Returns the value as [B, H, S, D]."""
        if self.is_split_first:
            return self.value
        shape = [0, 0, self.heads, self.size]
        by_token = _reshaped(self.value, shape, edit, before) if len(_dims(self.value)) == 3 else self.value
        return _swapped(by_token, edit, before)


@dataclass(frozen=True)
class _Result:
    """The value that the new node replaces.

    Attributes:
        value: [B, H, S, E] if `is_split_first`, else [B, S, H, E].
        reshape: Its only use, if that is a Reshape to [B, S, H * E].
    """

    value: ir.Value
    is_split_first: bool = False
    reshape: ir.Node | None = None


@dataclass(frozen=True)
class _Match:
    """Exported attention.

    Attributes:
        query, key, value: The operands.
        factor: The product of the constant scalars.
        scalars: The scalars that are computed at run time.
        steps: The masks and biases, the innermost first.
        has_safe_rows: Whether there may be rows without keys, which are 0.
        product: MatMul(probabilities, value).
        result: The value to replace.
    """

    query: _Heads
    key: _Heads
    value: _Heads
    factor: float
    scalars: tuple[_Scalar, ...]
    steps: _Steps
    has_safe_rows: bool
    product: ir.Node
    result: _Result


def _match(node: ir.Node, context: Context) -> _Match | None:
    if not context.fuse or not is_standard(node, "Softmax"):
        return None
    p = node.outputs[0]
    if len(_dims(p)) != 4 or node.attributes.get_int("axis", -1) not in (-1, 3):
        return None
    scores, found = _scores_of(node), _product_of(node)
    if scores is None or found is None:
        return None
    product, is_safe = found
    query, value = _heads_of(_unscaled(scores.query, scores.scalars)), _heads_of(product.inputs[1])
    key = _transposed_key(scores)
    if query is None or key is None or value is None or not _is_attention(query, key, value, p):
        return None
    if not _is_faster(scores.steps, query.length, key.length, is_safe=is_safe):
        return None
    constants, scalars = _split_scalars(scores.scalars)
    if not all(has_one_element(each.value, 3) for each in scalars):  # they multiply [B, S, H * D]
        return None
    with np.errstate(over="ignore", under="ignore"):
        factor = float(np.float32(math.prod(constants)))
    if factor == 0 or not math.isfinite(factor):  # MultiHeadAttention takes 0 for its default
        return None
    has_safe_rows = is_safe and _may_mask_rows(scores.steps, context.shared(Values))
    result = _result_of(product, value)
    return _Match(query, key, value, factor, scalars, tuple(scores.steps), has_safe_rows, product, result)


def _build(match: _Match, edit: Edit) -> None:
    before, query, value = match.product, match.query, match.value
    edit.facts.model.graph.opset_imports.setdefault(_DOMAIN, 1)
    q = query.joined(edit, before)
    if match.scalars:
        scale = edit.add_constant(np.float32(1), before=before)
        for scalar in match.scalars:
            scale = edit.insert(ir.node("Div" if scalar.divides else "Mul", [scale, scalar.value]), before=before)
        q = edit.insert(ir.node("Mul", [q, scale]), before=before)
    is_split = match.key.size == value.size and (match.key.is_split_first or value.is_split_first)
    k, v = (each.split(edit, before) if is_split else each.joined(edit, before) for each in (match.key, value))
    biases = edit.shared(_Biases)
    bias = biases.of(match, edit) if match.steps else None
    keeps = None
    if match.has_safe_rows and bias is not None:
        bias, keeps = biases.safe(bias, edit)
    inputs = [q, k, v, *([None, None, bias] if bias is not None else [])]
    attributes = {"num_heads": query.heads, "scale": match.factor}
    main = ir.node("MultiHeadAttention", inputs, attributes, domain=_DOMAIN)
    y = edit.insert_main(main, before=before)
    if match.result.reshape is not None and keeps is None:
        # It stays, and hides shapes from ONNX Runtime as before: SkipLayerNormalization, which it would fuse if it knew
        # them, took three times as long as Add and LayerNormalization (1.32, Zen 4).
        edit.replace_input(match.result.reshape, 0, y)
        return
    y = _reshaped(y, [0, 0, value.heads, value.size], edit, before)
    if keeps is not None:
        y = edit.insert(ir.node("Mul", [y, keeps]), before=before)
    edit.replace(match.result.value, _swapped(y, edit, before) if match.result.is_split_first else y)


RULE = Rule("attention", OPSET, _match, _build, fuses=True)


class _Biases:
    """The sums of masks and biases of one model. Layers with the same ones share their nodes."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any bias."""
        self._biases: dict[object, ir.Value] = {}
        self._safe: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def of(self, match: _Match, edit: Edit) -> ir.Value:
        """Returns the sum of the steps of a match, whose last two dimensions are S and T.

        The nodes stand before Softmax: it comes before the Softmax of each further layer, but not before each product.
        """
        ends = {2: match.query, 3: match.key}
        is_whole = all(any(_has_length(step.value, i, end.length) for step in match.steps) for i, end in ends.items())
        lengths = [end.value if _is_unknown(end.length) else end.length for end in ends.values()]
        key = edit.node.graph, match.steps, *(lengths if not is_whole else ())
        if key not in self._biases:
            total = _sum(match.steps, edit)
            if not is_whole:
                s, t = (_length(end, edit) for end in ends.values())
                ones = edit.add_constant(np.ones(2, np.int64), before=edit.node)
                shape = edit.insert(ir.node("Concat", [ones, s, t], {"axis": 0}), before=edit.node)
                total = edit.insert(ir.node("Expand", [total, shape]), before=edit.node)
            self._biases[key] = total
        return self._biases[key]

    def safe(self, bias: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
        """Returns a bias with 0 in rows of -inf, and the factors of the rows: 0 for these, [B or 1, S, H or 1, 1]."""
        if bias not in self._safe:
            before = edit.node
            by_input = edit.facts.opset >= _REDUCES_BY_INPUT
            axes = [edit.add_constant(np.array([-1]), before=before)] if by_input else []
            largest = edit.insert(
                ir.node("ReduceMax", [bias, *axes], {} if by_input else {"axes": [-1]}), before=before
            )
            lowest = edit.add_constant(np.float32(-np.inf), before=before)
            has_keys = edit.insert(ir.node("Greater", [largest, lowest]), before=before)
            zero = edit.add_constant(np.float32(0), before=before)
            finite = edit.insert(ir.node("Where", [has_keys, bias, zero]), before=before)
            factors = edit.insert(ir.node("Cast", [has_keys], {"to": int(ir.DataType.FLOAT)}), before=before)
            self._safe[bias] = finite, _swapped(factors, edit, before)
        return self._safe[bias]


def _sum(steps: _Steps, edit: Edit) -> ir.Value:
    """Returns what the steps make of scores of 0."""
    total: ir.Value | None = None
    for step in steps:
        if isinstance(step, _Masked):
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


def _length(heads: _Heads, edit: Edit) -> ir.Value:
    """Returns the number of tokens as a vector of one element."""
    shape = edit.insert(ir.node("Shape", [heads.value]), before=edit.node)
    axis = edit.add_constant(np.array([2 if heads.is_split_first else 1]), before=edit.node)
    return edit.insert(ir.node("Gather", [shape, axis]), before=edit.node)


def _reshaped(value: ir.Value, shape: list[int], edit: Edit, before: ir.Node) -> ir.Value:
    return edit.insert(ir.node("Reshape", [value, edit.add_constant(np.array(shape), before=before)]), before=before)


def _swapped(value: ir.Value, edit: Edit, before: ir.Node) -> ir.Value:
    """Returns a value with its middle dimensions swapped."""
    return edit.insert(ir.node("Transpose", [value], {"perm": _HEADS_FIRST}), before=before)


def _scores_of(user: ir.Node, index: int = 0, distance: int = 0) -> _Scores | None:
    """Returns the scores that Softmax, or a node before it, reads as one of its inputs, if nothing else uses them."""
    value = user.inputs[index]
    node = None if value is None else value.producer()
    if value is None or node is None or node.graph is not user.graph or distance > _FARTHEST:
        return None
    if value.is_graph_output() or not all(_serves(user, index, *use) for use in value.uses()):
        return None
    if skip_identity(value) is not value:
        return _scores_of(node, 0, distance + 1)
    if is_standard(node, "MatMul"):
        query, key = node.inputs
        return None if query is None or key is None else _Scores(query, key)
    if not is_standard(node, "Add", "Mul", "Div", "Where"):
        return None
    for i, other in _operands(node):
        if (scores := _scores_of(node, i, distance + 1)) is not None:
            return scores if other is not None and _apply(node, i, other, scores) else None
    return None


def _serves(user: ir.Node, index: int, node: ir.Node, at: int) -> bool:
    """Returns whether a use of scores is that of a user, or expands another input of the user to their shape."""
    if node is user:
        return at == index
    shape = only_use(node.outputs[0]) if is_standard(node, "Shape") else None
    expanded = only_use(shape.node.outputs[0]) if shape is not None and is_standard(shape.node, "Expand") else None
    return expanded is not None and expanded.node is user


def _apply(node: ir.Node, index: int, other: ir.Value, scores: _Scores) -> bool:
    """Adds a node that reads scores to what is done to them; returns whether that is possible."""
    value = node.inputs[index]
    assert value is not None
    if node.op_type == "Add":
        scores.steps.append(_Added(_unexpanded(other, value)))
        return True
    if node.op_type == "Where":
        number, condition = constant_scalar(other), node.inputs[0]
        if condition is None or number is None or number > _LARGEST_MASK:
            return False
        scores.steps.append(_Masked(_unexpanded(condition, value), index == 1, number))
        return does_not_grow(_unexpanded(other, value), value)
    scores.scalars.append(_Scalar(other, node.op_type == "Div"))
    return not scores.steps


def _unexpanded(value: ir.Value, scores: ir.Value) -> ir.Value:
    """Returns the input of an Expand to the shape of scores: the operation with the scores expands it by itself."""
    expand = producer_of(skip_identity(value), "Expand")
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


def _unscaled(value: ir.Value, scalars: list[_Scalar], *, at_run_time: bool = False) -> ir.Value:
    """Returns a value before its scaling, and adds the scalars to a list.

    A product with a scalar that is computed at run time may be a dequantization. It stays, unless it is asked for.
    """
    while (node := producer_of(skip_identity(value), "Mul", "Div")) is not None:
        found = [
            (node.inputs[i], other) for i, other in _operands(node) if other is not None and has_one_element(other, 4)
        ]
        if not found or found[0][0] is None or not (at_run_time or _number(found[0][1]) is not None):
            break
        value = found[0][0]
        scalars.append(_Scalar(found[0][1], node.op_type == "Div"))
    return skip_identity(value)


def _transposed_key(scores: _Scores) -> _Heads | None:
    """Returns the key before it is transposed to [B, H, D, T]; the scalars are added to those of the scores."""
    node = producer_of(_unscaled(scores.key, scores.scalars, at_run_time=True), "Transpose")
    source = None if node is None else node.inputs[0]
    if node is None or source is None:
        return None
    perm = list(node.attributes.get_ints("perm", []))
    if perm == [0, 1, 3, 2]:
        return _heads_of(_unscaled(source, scores.scalars))
    return _heads_by_token(source) if perm == [0, 2, 3, 1] else None


def _split_scalars(scalars: list[_Scalar]) -> tuple[list[float], tuple[_Scalar, ...]]:
    """Returns the factors that are known before run time, and the other scalars."""
    constants, others = [], []
    for scalar in scalars:
        number = _number(scalar.value)
        if number is None:
            others.append(scalar)
        elif scalar.divides:
            constants.append(1 / number if number else math.inf)
        else:
            constants.append(number)
    return constants, tuple(others)


def _number(value: ir.Value) -> float | None:
    """Returns a number that is known before run time, or None."""
    elements = _elements(value)
    number = math.nan if elements is None or elements.size != 1 else float(elements.reshape(()))
    return None if math.isnan(number) else number


def _elements(value: ir.Value | None, distance: int = 0) -> npt.NDArray[np.float64] | None:
    """Returns the elements of a number or a shape as exporters compute them; NaN for a length that is not known.

    torch computes the scale from the shape of q, whose last dimension is known, also if others are not.
    """
    if value is None or distance > _FARTHEST:
        return None
    if (elements := constant_array(value)) is not None:
        return elements.astype(np.float64) if is_number(elements.dtype) else None
    node = producer_of(value, "Shape", "Identity", "Cast", "Slice", "Gather", "Squeeze", "Unsqueeze", *_ARITHMETIC)
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type in ("Cast", *_ARITHMETIC) and (value.dtype is None or not value.dtype.is_floating_point()):
        return None  # integers round
    if node.op_type == "Shape":
        if node.inputs[0].shape is None:
            return None
        dims = [dim if isinstance(dim, int) else math.nan for dim in _dims(node.inputs[0])]
        return np.array(dims[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(dims))])
    inputs = [_elements(each, distance + 1) for each in node.inputs]
    known = [each for each in inputs if each is not None]
    if len(known) < len(inputs):
        return None
    first, *others = known
    if node.op_type in _ARITHMETIC:
        with np.errstate(all="ignore"):
            return np.asarray(_ARITHMETIC[node.op_type](*known))
    if node.op_type == "Slice":
        start, end = (int(each.reshape(-1)[0]) for each in others[:2])
        return first[start:end] if first.ndim == 1 and len(others) <= _SLICE_WITHOUT_STEPS else None
    if node.op_type == "Gather":
        return first[others[0].astype(np.int64)] if first.ndim == 1 else None
    if node.op_type in ("Squeeze", "Unsqueeze"):
        return first.reshape(()) if first.size == 1 else None
    return first


def _heads_of(value: ir.Value | None) -> _Heads | None:
    """Returns a value [B, H, S, D] as heads; None if H or D is not known."""
    if value is None or len(dims := _dims(value)) != 4 or value.dtype != ir.DataType.FLOAT:
        return None
    batch, heads, length, size = dims
    if not isinstance(heads, int) or not isinstance(size, int):
        return None
    node = producer_of(skip_identity(value), "Transpose")
    if node is not None and list(node.attributes.get_ints("perm", [])) == _HEADS_FIRST:
        return _heads_by_token(node.inputs[0])
    return _Heads(value, batch, heads, length, size, True)


def _heads_by_token(value: ir.Value | None) -> _Heads | None:
    """Returns a value [B, S, H, D] as heads; None if H or D is not known."""
    if value is None or len(dims := _dims(value)) != 4 or value.dtype != ir.DataType.FLOAT:
        return None
    batch, length, heads, size = dims
    if not isinstance(heads, int) or not isinstance(size, int):
        return None
    node = producer_of(skip_identity(value), "Reshape")
    rows = None if node is None else node.inputs[0]
    if node is not None and rows is not None and _splits_rows(node, rows, value, heads * size):
        length = _dims(rows)[1] if _is_unknown(length) else length
        return _Heads(rows, batch, heads, length, size, False)
    return _Heads(value, batch, heads, length, size, False)


def _splits_rows(reshape: ir.Node, joined: ir.Value, split: ir.Value, length: int) -> bool:
    """Returns whether a Reshape from one of two values to the other only splits or joins rows of a length."""
    narrow, wide = _dims(joined), _dims(split)
    if len(narrow) != 3 or len(wide) != 4 or narrow[2] != length:
        return False
    target = constant_array(reshape.inputs[1])
    is_copied = target is not None and 0 in target[:2] and not reshape.attributes.get_int("allowzero", 0)
    return is_copied or any(map(_is_equal, narrow[:2], wide[:2]))  # the number of elements shows the other one


def _is_attention(query: _Heads, key: _Heads, value: _Heads, probabilities: ir.Value) -> bool:
    """Returns whether the shapes are those of MultiHeadAttention: nothing broadcasts except the steps."""
    all_heads = query, key, value
    whole = query.batch, query.heads, query.length, key.length
    return (
        len({each.heads for each in all_heads}) == 1
        and len({each.batch == 1 for each in all_heads}) == 1
        and all(a == b or _is_dynamic(a) or _is_dynamic(b) for a, b in zip(whole, _dims(probabilities), strict=True))
    )


def _is_faster(steps: list[_Added | _Masked], s: _Dim, t: _Dim, *, is_safe: bool) -> bool:
    """Returns whether MultiHeadAttention is faster than the exported nodes, as ONNX Runtime fuses them.

    Without a bias it always is. A bias costs it as much as one Add costs them, and few scores gain nothing.
    """
    if not steps:
        return True
    is_small = isinstance(s, int) and isinstance(t, int) and s * t < _FEWEST_SCORES
    return not is_small and (is_safe or len(steps) > 1 or isinstance(steps[0], _Masked))


def _product_of(softmax: ir.Node) -> tuple[ir.Node, bool] | None:
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
        result = node.outputs[0]
        if skip_identity(result) is result and not _is_idle_dropout(node):
            return None
        value = result
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
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is None or constant_scalar(training) == 0


def _may_mask_rows(steps: list[_Added | _Masked], values: Values) -> bool:
    """Returns whether the sum of the steps may be -inf."""
    low = np.float32(0)
    with np.errstate(over="ignore"):
        for step in steps:
            if isinstance(step, _Masked):
                low = min(low, np.float32(step.number))
            else:
                low = np.float32(low + np.float32(values.known(step.value).low))
    return bool(np.isneginf(low))


def _result_of(product: ir.Node, value: _Heads) -> _Result:
    """Returns the value after the product whose nodes the new node replaces."""
    found = product.outputs[0]
    use = only_use(found)
    if use is None or not is_standard(use.node, "Transpose"):
        return _Result(found, is_split_first=True)
    if list(use.node.attributes.get_ints("perm", [])) != _HEADS_FIRST:
        return _Result(found, is_split_first=True)
    found = use.node.outputs[0]
    use = only_use(found)
    if use is not None and is_standard(use.node, "Reshape") and use.idx == 0:
        is_joined = _splits_rows(use.node, use.node.outputs[0], found, value.heads * value.size)
        return _Result(found, reshape=use.node if is_joined else None)
    return _Result(found)


def _has_length(value: ir.Value, axis: int, length: _Dim) -> bool:
    """Returns whether a value [B, H, S, T] is known to have a length along an axis."""
    dims = _dims(value)
    return len(dims) == 4 and _is_equal(dims[axis], length)


def _dims(value: ir.Value) -> list[_Dim]:
    """Returns the dimensions of a value; none if its rank is not known."""
    return [] if value.shape is None else list(value.shape)


def _is_equal(a: _Dim, b: _Dim) -> bool:
    return a == b and not _is_unknown(a)


def _is_dynamic(dim: _Dim) -> bool:
    return not isinstance(dim, int)


def _is_unknown(dim: _Dim) -> bool:
    """Returns whether a dimension has neither a length nor a name."""
    return isinstance(dim, ir.SymbolicDim) and dim.value is None
