"""The rule for attention that exporters write as products and Softmax: it becomes ONNX Runtime's MultiHeadAttention.

MatMul(q, k), scale, masks and biases, Softmax, [safe softmax], MatMul by v -> MultiHeadAttention | QuantizedAttention

QuantizedAttention has products of integers. It needs key and value as [B, T, H * D]; others keep floats.
Query, key and value have the shapes [B, H, S, D], [B, H, T, D] and [B, H, T, E]. The masks and biases of a layer become
one sum; layers with the same ones share it.

If -inf masks all keys of a row, Softmax gives NaN, as MultiHeadAttention does. torch's safe softmax, Where(IsNaN(p), 0,
p), gives 0. Then MultiHeadAttention gets this row without its masks, and the result is multiplied by 0, so that NaN in
v stays NaN. NaN in scores that a mask or the safe softmax of the model hides are visible after the rewrite.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.inference import Facts
from ..analysis.nodes import is_standard, only_use
from ..analysis.shapes import REDUCES_BY_INPUT, has_one_element, is_equal, is_unnamed
from ..analysis.values import Values
from ..edit import Edit, call
from ..rule import Context, Rule
from .heads import (
    HEADS_FIRST,
    Dim,
    Heads,
    dims_of,
    heads_of,
    is_dynamic,
    reshaped,
    splits_rows,
    swapped,
)
from .scores import (
    Added,
    Masked,
    Scalar,
    Steps,
    attention_of,
    factor_of,
    may_mask_rows,
    split_scalars,
    sum_of,
    times,
    transposed_key,
    unscaled,
)

_FEWEST_SCORES = 64 * 64  # of a head; with a bias, fewer took up to 1.3 times as long in MultiHeadAttention (Zen 4)


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
class _ExportedAttention:
    """Exported attention.

    Attributes:
        query, key, value: The operands.
        factor: The product of the constant scalars.
        scalars: The scalars that are computed at run time.
        steps: The masks and biases, the innermost first.
        has_safe_rows: Whether there may be rows without keys, which are 0.
        product: MatMul(probabilities, value).
        result: The value to replace.
        is_quantized: Whether products of integers take the place of the products.
    """

    query: Heads
    key: Heads
    value: Heads
    factor: float
    scalars: tuple[Scalar, ...]
    steps: Steps
    has_safe_rows: bool
    product: ir.Node
    result: _Result
    is_quantized: bool


def _match(node: ir.Node, context: Context, *, quantizes: bool = False) -> _ExportedAttention | None:
    found = attention_of(node) if context.fuse else None
    if found is None:
        return None
    scores, product, is_safe = found
    p = node.outputs[0]
    query, value = heads_of(unscaled(scores.query, scores.scalars)), heads_of(product.inputs[1])
    key = transposed_key(scores)
    if query is None or key is None or value is None or not _is_attention(query, key, value, p):
        return None
    is_quantized = quantizes and not (key.is_split_first or value.is_split_first)
    if not is_quantized and not _is_faster(scores.steps, query.length, key.length, is_safe=is_safe):
        return None
    constants, scalars = split_scalars(scores.scalars)
    if not all(has_one_element(each.value, 3) for each in scalars):  # they multiply [B, S, H * D]
        return None
    factor = factor_of(constants)
    if factor == 0 or not math.isfinite(factor):  # MultiHeadAttention takes 0 for its default
        return None
    has_safe_rows = is_safe and may_mask_rows(scores.steps, context.shared(Values))
    result = _result_of(product, value)
    return _ExportedAttention(
        query, key, value, factor, scalars, tuple(scores.steps), has_safe_rows, product, result, is_quantized
    )


def _build(match: _ExportedAttention, edit: Edit) -> None:
    before, query, value = match.product, match.query, match.value
    q = query.joined(edit, before)
    if match.scalars:
        q = edit.insert(ir.node("Mul", [q, times(1, match.scalars, edit, before)]), before=before)
    is_split = match.key.size == value.size and (match.key.is_split_first or value.is_split_first)
    k, v = (each.split(edit, before) if is_split else each.joined(edit, before) for each in (match.key, value))
    biases = edit.shared(_Biases)
    bias = biases.of(match, edit) if match.steps else None
    keeps = None
    if match.has_safe_rows and bias is not None:
        bias, keeps = biases.safe(bias, edit)
    if match.is_quantized:
        bias = edit.add_constant(np.zeros((1, 1, 1, 1), np.float32), before=before) if bias is None else bias
        factor = edit.add_constant(np.float32(match.factor), before=before)
        cap, least_added = (edit.add_constant(np.float32(each), before=before) for each in (0, -np.inf))
        main = call("QuantizedAttention", [q, k, v, bias, factor, cap, least_added], num_heads=query.heads)
    else:
        edit.facts.model.graph.opset_imports.setdefault(MICROSOFT, 1)
        inputs = [q, k, v, *([None, None, bias] if bias is not None else [])]
        attributes = {"num_heads": query.heads, "scale": match.factor}
        main = ir.node("MultiHeadAttention", inputs, attributes, domain=MICROSOFT)
    y = edit.insert_main(main, before=before)
    if match.result.reshape is not None and keeps is None:
        # It stays, and hides shapes from ONNX Runtime as before: SkipLayerNormalization, which it would fuse if it knew
        # them, took three times as long as Add and LayerNormalization (1.32, Zen 4).
        edit.replace_input(match.result.reshape, 0, y)
        return
    y = reshaped(y, [0, 0, value.heads, value.size], edit, before)
    if keeps is not None:
        y = edit.insert(ir.node("Mul", [y, keeps]), before=before)
    edit.replace(match.result.value, swapped(y, edit, before) if match.result.is_split_first else y)


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
        ends = {2: match.query, 3: match.key}
        is_whole = all(any(_has_length(step.value, i, end.length) for step in match.steps) for i, end in ends.items())
        lengths = [end.value if is_unnamed(end.length) else end.length for end in ends.values()]
        key = edit.node.graph, match.steps, *(lengths if not is_whole else ())
        if key not in self._biases:
            total = sum_of(match.steps, edit)
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
            by_input = edit.facts.opset >= REDUCES_BY_INPUT
            axes = [edit.add_constant(np.array([-1]), before=before)] if by_input else []
            largest = edit.insert(
                ir.node("ReduceMax", [bias, *axes], {} if by_input else {"axes": [-1]}), before=before
            )
            lowest = edit.add_constant(np.float32(-np.inf), before=before)
            has_keys = edit.insert(ir.node("Greater", [largest, lowest]), before=before)
            zero = edit.add_constant(np.float32(0), before=before)
            finite = edit.insert(ir.node("Where", [has_keys, bias, zero]), before=before)
            factors = edit.insert(ir.node("Cast", [has_keys], {"to": int(ir.DataType.FLOAT)}), before=before)
            self._safe[bias] = finite, swapped(factors, edit, before)
        return self._safe[bias]


def _length(heads: Heads, edit: Edit) -> ir.Value:
    """Returns the number of tokens as a vector of one element."""
    shape = edit.insert(ir.node("Shape", [heads.value]), before=edit.node)
    axis = edit.add_constant(np.array([2 if heads.is_split_first else 1]), before=edit.node)
    return edit.insert(ir.node("Gather", [shape, axis]), before=edit.node)


def _is_attention(query: Heads, key: Heads, value: Heads, probabilities: ir.Value) -> bool:
    """Returns whether the shapes are those of MultiHeadAttention: nothing broadcasts except the steps."""
    all_heads = query, key, value
    whole = query.batch, query.heads, query.length, key.length
    return (
        len({each.heads for each in all_heads}) == 1
        and len({each.batch == 1 for each in all_heads}) == 1
        and all(a == b or is_dynamic(a) or is_dynamic(b) for a, b in zip(whole, dims_of(probabilities), strict=True))
    )


def _is_faster(steps: list[Added | Masked], s: Dim, t: Dim, *, is_safe: bool) -> bool:
    """Returns whether MultiHeadAttention is faster than the exported nodes, as ONNX Runtime fuses them.

    Without a bias it always is. A bias costs it as much as one Add costs them, and few scores gain nothing.
    """
    if not steps:
        return True
    is_small = isinstance(s, int) and isinstance(t, int) and s * t < _FEWEST_SCORES
    return not is_small and (is_safe or len(steps) > 1 or isinstance(steps[0], Masked))


def _result_of(product: ir.Node, value: Heads) -> _Result:
    """Returns the value after the product whose nodes the new node replaces."""
    found = product.outputs[0]
    use = only_use(found)
    if use is None or not is_standard(use.node, "Transpose"):
        return _Result(found, is_split_first=True)
    if list(use.node.attributes.get_ints("perm", [])) != HEADS_FIRST:
        return _Result(found, is_split_first=True)
    found = use.node.outputs[0]
    use = only_use(found)
    if use is not None and is_standard(use.node, "Reshape") and use.idx == 0:
        is_joined = splits_rows(use.node, use.node.outputs[0], found, value.heads * value.size)
        return _Result(found, reshape=use.node if is_joined else None)
    return _Result(found)


def _has_length(value: ir.Value, axis: int, length: Dim) -> bool:
    """Returns whether a value [B, H, S, T] is known to have a length along an axis."""
    dims = dims_of(value)
    return len(dims) == 4 and is_equal(dims[axis], length)
