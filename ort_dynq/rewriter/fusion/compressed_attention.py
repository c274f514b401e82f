"""The rule for attention over keys and values that the model stores as codes.

MatMul(q, dequantized k), scale, masks and biases, Softmax, MatMul by dequantized v -> CompressedAttention

Key, value or both are dequantized (dequantizations.py), with scales of all elements, of heads, of tokens and groups of
them, of channels and of groups along the head. They are views of the dequantized codes (views.py): groups may be a
dimension that a Reshape joins to its neighbor, and heads may be repeated for several heads of query (Expand). The codes
may be any tensor, such as a cache to which those of new tokens are appended. They are [B, H, T, D] or [B, H, D, T].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...graphs import operator_of
from ...operators.encodings import HeadLayout
from ...opsets import OPSET
from ..analysis.limits import CHAIN
from ..analysis.nodes import is_standard
from ..analysis.shapes import has_one_element, is_equal
from ..analysis.standard import ARITHMETIC, HEAD_MOVES, PASSING, SCATTERING, SOFTMAX_ENDS
from ..analysis.values import Values
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..views import FLOATS, Axes, Nodes, View, dims_of, leaves, length_of, same_axes
from .attention_build import Operand, bias_of, can_be_placed
from .dequantizations import DEQUANTIZERS, MIDDLES, Dequantization, codes_of_cast, dequantization_of
from .score_steps import MAX_NUMBER, Added, Masked, Scalar, Step, Steps, may_mask_rows, split_scalars, times
from .scores import Attention, Part, attention_of
from .sources import Source, sources_of

_WIDE = {ir.DataType.UINT4: ir.DataType.UINT8, ir.DataType.INT4: ir.DataType.INT8}
_MOVES = HEAD_MOVES - {"Flatten"} | PASSING
_MIN_GROUP = 8  # narrower groups of values take longer than floats; those of keys are scales of channels
_MAX_MASK_OF_FLOAT16 = -6e4  # such a number absorbs a score of float16, which is far from it
_LOWEST = -1e38  # takes the place of lower masks of float16: it absorbs scores of float32, too


@dataclass(frozen=True)
class _Operand(Operand):
    """A key or a value: codes, or floats.

    Attributes:
        codes: The dequantization of the codes. None: floats.
        of_parameters: The factors of the axes of its parameters.
        is_per_channel: Whether the scales vary along the head more than along the tokens.
    """

    codes: Dequantization | None = None
    of_parameters: dict[ir.Value, Axes] = field(default_factory=dict)
    is_per_channel: bool = False

    @property
    def is_transposed(self) -> bool:
        """Whether the tokens are the last axis."""
        return self.order == HeadLayout.ELEMENTS_FIRST


class _CompressedAttention(NamedTuple):
    """Attention, the scalars of which are computed at run time, and the operands of the operator."""

    found: Attention
    query: View
    key: _Operand
    value: _Operand


def _match(node: ir.Node, context: Context) -> _CompressedAttention | None:
    return _attention(node, context) if context.options.fuse else None


def _match_unfused(node: ir.Node, context: Context) -> None:
    """Reports attention over codes that are not of this run, such as those of a cache."""
    if context.options.fuse or context.options.exact:
        return
    try:
        found = _attention(node, context)
    except Unconverted:  # nobody has asked for a fusion
        return
    codes = [] if found is None else [each.view.value for each in (found.key, found.value) if each.codes is not None]
    makers = [each.producer() for each in codes]
    if any(maker is None or is_standard(maker, *_MOVES, *SCATTERING) for maker in makers):
        raise Unconverted(Reason.CODES_NEED_FUSE)


def _attention(node: ir.Node, context: Context) -> _CompressedAttention | None:
    """Returns attention over codes that ends in a Softmax; None if the node is no such Softmax.

    Raises:
        Unconverted: It is attention over codes in a form that the operator does not compute.
    """
    found = attention_of(node, context)
    if not isinstance(found, Attention) or len(found.probabilities) != 4 or not is_standard(found.product, "MatMul"):
        return None
    scores = found.probabilities
    query = [each for each in sources_of(found.query) if same_axes(each.view.axes, found.query.axes)][-1]
    if leaves(query.view.axes[-1:]) == leaves(scores[-2:-1]):  # the product transposes it
        return None
    keys = sources_of(found.key, repeats=True)
    value_sources = [each for each in sources_of(found.value, repeats=True) if not each.scalars]
    if not any(_dequantizes(each[-1].view.value) for each in (keys, value_sources)):
        return None
    if found.is_safe and may_mask_rows(found.steps, context.shared(Values)):
        raise Unconverted(Reason.CODES_SAFE_SOFTMAX)
    key, value = _operand("keys", keys, scores), _operand("values", value_sources, scores)
    if not _is_attention(found, key, value):
        raise Unconverted(Reason.CODES_HEADS)
    factor, others = split_scalars([*query.scalars, *key.scalars, *found.scalars], found.factor)
    are_numbers = all(has_one_element(each.value, 4) for each in others) and math.isfinite(factor)
    if not are_numbers or found.softcap != 0 or not all(_is_mask(step, scores) for step in found.steps):
        raise Unconverted(Reason.CODES_SCORES)
    return _CompressedAttention(replace(found, factor=factor, scalars=others), query.view, key, value)


def _least_bias(steps: Steps, values: Values) -> float | None:
    """Returns the number below which finite sums of the steps absorb scores, or must not stay; None: no sum is."""
    added = [step for step in steps if isinstance(step, Added)]
    lows = [-known.high if step.subtracts else known.low for step in added for known in [values.known(step.value)]]
    if any(step.is_half and low < _MAX_MASK_OF_FLOAT16 for step, low in zip(added, lows, strict=True)):
        return _MAX_MASK_OF_FLOAT16
    if not added:  # numbers of masks are constants
        return None
    low = [min(each, 0) for each in lows]
    low += [step.number for step in steps if isinstance(step, Masked) and math.isfinite(step.number)]
    return _LOWEST if sum(low) < _LOWEST else None


def _dequantizes(value: ir.Value | None, distance: int = 0) -> bool:
    """Returns whether a key or value is dequantized codes, perhaps moved, repeated or joined afterwards."""
    node = None if value is None else value.producer()
    if value is None or node is None or CHAIN.is_passed(distance):
        return False
    if operator_of(node) in DEQUANTIZERS:
        return True
    if is_standard(node, *ARITHMETIC - {"Add", "Div"}):
        return any(_dequantizes(each, distance + 1) for each in node.inputs)
    if is_standard(node, "Add"):
        found = dequantization_of(value)
        parts = [] if found is None or found.offset is None else dims_of(found.offset)
        return any(a == 1 != b for a, b in zip(parts, dims_of(value), strict=False))
    if is_standard(node, "Cast") and node.inputs[0] is not None and node.inputs[0].dtype in MIDDLES:
        return True
    return is_standard(node, *_MOVES) and _dequantizes(node.inputs[0], distance + 1)


def _is_mask(step: Step, scores: Axes) -> bool:
    """Returns whether a step is a mask or bias that can be added to scores."""
    if isinstance(step, Scalar) or (isinstance(step, Masked) and step.number > MAX_NUMBER):
        return False
    return can_be_placed(step, scores, ())


def _is_attention(found: Attention, key: _Operand, value: _Operand) -> bool:
    """Returns whether batches and heads do not broadcast, and the keys have heads of a known size.

    Heads of query share adjacent heads of keys.
    """
    q, k, v = (dims_of(each.value) for each in (found.query, found.key, found.value))
    if not len(q) == len(k) == len(v) == 4 or not is_equal(q[0], k[0]) or not is_equal(q[0], v[0]):
        return False
    heads, key_heads = leaves(found.probabilities[1:2]), key.part.heads
    is_shared = key_heads == value.part.heads == heads[: len(key_heads)]
    numbers = [length_of(axis) for axis in (heads, key_heads, key.part.size)]
    return is_shared and None not in numbers and 0 not in numbers and length_of(value.part.size) is not None


def _operand(what: str, sources: list[Source], scores: Axes) -> _Operand:
    """Returns keys or values, dequantized or floats.

    Raises:
        Unconverted: They are in no form of the operator's.
    """
    forms = [(each, dequantization_of(each.view.value)) for each in sources if not each.view.value.is_graph_output()]
    codes = [(source, form) for source, form in forms if form is not None]
    found = _of_codes(*codes[-1], scores) if codes else _of_floats(sources, scores)
    first = sources[-1].view.value
    if found is None or (found.codes is None and _dequantizes(first)):
        raise Unconverted(Reason.CODES_SCALES if codes_of_cast(first) is None else Reason.CODES_NOT_SCALED, what=what)
    # It takes longer to quantize keys of floats that are [B, H, D, T] than it saves.
    if found.is_transposed and (found.codes is None or what == "values"):
        raise Unconverted(Reason.CODES_SCALES, what=what)
    return found


def _of_floats(sources: list[Source], scores: Axes) -> _Operand | None:
    """Returns floats as an operand; None if they have no order of the operator's."""
    found = [_Operand(each.view, *order, each.scalars) for each in sources for order in _orders(each.view, scores)]
    whole = [each for each in found if same_axes(each.view.axes, each.axes)]
    plain = [each for each in whole if not each.is_transposed] or whole
    return plain[-1] if plain and plain[-1].view.value.dtype in FLOATS else None


def _orders(view: View, scores: Axes) -> list[tuple[Part, HeadLayout]]:
    """Returns the factors of a view, and the order, [B, H, T, D] or [B, H, D, T], of its elements; none for others."""
    part, orders = Part.of(view, scores), (HeadLayout.HEADS_FIRST, HeadLayout.ELEMENTS_FIRST)
    return [(part, each) for each in orders if leaves(part.axes(each)) == view.order][:1]


def _of_codes(source: Source, codes: Dequantization, scores: Axes) -> _Operand | None:
    """Returns codes as an operand if their scales are of heads, of tokens or groups of them, and of groups of the head.

    Groups are parts of tokens or of heads that the scales do not have: adjacent ones share a scale.
    """
    view = View(codes.codes, source.view.axes)
    found = {each: codes.axes_of(each, view.axes, scores[3]) for each in codes.parameters}
    known = {each: axes for each, axes in found.items() if axes is not None}
    orders = _orders(view, scores)
    if len(known) < len(found) or not orders:
        return None
    ((part, order),), of_scale = orders, {*leaves(known[codes.scale])}
    shared = Part(*(tuple(each for each in axis if each not in of_scale) for axis in part))
    are_whole = all(each in ((), axis) for each, axis in zip(shared[:2], part, strict=False))
    are_last = all(axis[len(axis) - len(each) :] == each for each, axis in zip(shared, part, strict=True))
    if not are_whole or not are_last or not all({*leaves(axes)} <= of_scale for axes in known.values()):
        return None
    width, group, count = length_of(part.size), length_of(shared.size), length_of(shared.tokens)
    if width is None or group is None:
        return None
    is_per_channel = group < min(_MIN_GROUP, width)
    if is_per_channel and shared.tokens != part.tokens and (count is None or count < _MIN_GROUP):
        return None
    return _Operand(view, part, order, source.scalars, codes, known, is_per_channel)


def _build(match: _CompressedAttention, edit: Edit) -> None:
    query, result, operands = match.query, match.found.result.value, (match.key, match.value)
    nodes = Nodes(edit, match.found.product)
    given = [each.codes for each in operands if each.codes is not None]
    types = {query.value.dtype, result.dtype, *(each.scale.dtype for each in given)}
    has_offsets = any(each.has_offset for each in given)  # sums in float32
    float_type = query.value.dtype if len(types) == 1 and not has_offsets else ir.DataType.FLOAT
    assert float_type is not None
    scale = times(match.found.factor, match.found.scalars, nodes)
    (*key, key_offset), (*value, value_offset) = (
        _inputs(each, float_type, replace(nodes, views=(each.view, query))) for each in operands
    )
    inputs = [nodes.cast(query.value, float_type), *key, *value, _bias(match, edit), scale, key_offset, value_offset]
    main = call(
        "CompressedAttention",
        inputs,
        transposed_key=int(match.key.is_transposed),
        float_key=int(match.key.codes is None),
        float_value=int(match.value.codes is None),
        scale_query=int(match.key.is_per_channel),
        scale_result=int(match.value.is_per_channel),
    )
    dst = edit.insert_main(main, before=nodes.before)
    edit.replace(result, nodes.cast(dst, result.dtype, float_type))


def _inputs(operand: _Operand, float_type: ir.DataType, nodes: Nodes) -> list[ir.Value]:
    """Returns the codes or floats, the scales, the zero points and the offsets; floats of a type."""

    def number(value: float, dtype: ir.DataType) -> ir.Value:
        is_code = dtype in MIDDLES
        held = nodes.constant(np.full((1, 1, 1, 1), value).astype(dtype.numpy() if is_code else np.float32))
        return held if is_code else nodes.cast(held, dtype)

    given = operand.codes
    if given is None:
        return [nodes.cast(operand.view.value, float_type), *(number(each, float_type) for each in (1, 0, 0))]

    def moved(value: ir.Value, dtype: ir.DataType, axes: Axes) -> tuple[ir.Value, ir.DataType]:
        """Returns codes or a parameter of a type in the order of the operand, and its type.

        ONNX Runtime moves no elements of 4 bits, but casts them.
        """
        target = tuple(tuple(each for each in leaves([axis]) if each in leaves(axes)) for axis in operand.axes)
        if value.dtype in _WIDE and not same_axes(axes, target):
            dtype = _WIDE[value.dtype]
        return nodes.arranged(View(nodes.cast(value, dtype, value.dtype or dtype), axes), target), dtype

    assert given.codes.dtype is not None
    codes, dtype = moved(given.codes, given.codes.dtype, operand.view.axes)
    middle = MIDDLES[given.codes.dtype] if given.has_offset and given.zero_point is None else 0
    if given.zero_point is None:
        zero_point = number(middle, dtype)
    else:
        zero_point, of = moved(given.zero_point, given.codes.dtype, operand.of_parameters[given.zero_point])
        zero_point = nodes.cast(zero_point, dtype, of)
    offset = number(0, float_type)
    if given.has_offset:
        offset, _ = moved(*_offset(given, middle, operand.of_parameters, nodes))
    scale, _ = moved(given.scale, float_type, operand.of_parameters[given.scale])
    return [codes, scale, zero_point, offset]


def _offset(
    given: Dequantization, middle: int, of_parameters: dict[ir.Value, Axes], nodes: Nodes
) -> tuple[ir.Value, ir.DataType, Axes]:
    """Returns what is added to (codes - middle) * scale, as float32, and the factors of its axes.

    The words of queries and weights are rounded: their errors are smaller with codes of a mean of about 0.
    """
    dtype = ir.DataType.FLOAT
    if given.zero is None and middle == 0 and given.offset is not None and not given.is_subtracted:
        return given.offset, dtype, of_parameters[given.offset]
    # With fewer dimensions, ONNX Runtime takes 60 times as long for parameters with a last dimension of 1.
    total = nodes.constant(np.full((1, 1, 1, 1), middle, np.float32))
    axes, rank = of_parameters[given.scale], max(4, *(len(dims_of(each)) for each in given.parameters))
    if given.zero is not None:
        total = nodes.add("Sub", total, nodes.cast(given.zero, dtype))
    total = nodes.add("Mul", total, nodes.cast(given.scale, dtype))
    if given.offset is not None:
        total = nodes.add("Sub" if given.is_subtracted else "Add", total, nodes.cast(given.offset, dtype))
    return total, dtype, ((),) * (rank - len(axes)) + axes


def _bias(match: _CompressedAttention, edit: Edit) -> ir.Value:
    """Returns the sum of the masks and biases, of four dimensions; numbers that absorb scores stay finite."""
    nodes, steps = Nodes(edit, edit.node), match.found.steps
    if not steps:
        return nodes.constant(np.zeros((1, 1, 1, 1), np.float32))
    total, least = bias_of(steps, match.found.probabilities, nodes), _least_bias(steps, edit.shared(Values))
    if least is None:
        return total

    def absorbing() -> ir.Value:
        bound, lowest = (nodes.constant(np.float32(each)) for each in (least, _LOWEST))
        higher = nodes.add("Where", nodes.add("Less", total, bound), lowest, total)
        return nodes.add("Where", nodes.add("IsInf", total), total, higher)

    return edit.once(("absorbing", total, least), absorbing)


RULE = Rule("attention over codes", OPSET, _match, _build, fuses=True, operators=SOFTMAX_ENDS)
UNFUSED: Rule[None] = Rule("attention over codes that is not fused", OPSET, _match_unfused, operators=SOFTMAX_ENDS)
