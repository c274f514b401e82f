"""The rule for attention over keys and values that the model stores as codes.

MatMul(q, dequantized k), scale, masks and biases, Softmax, MatMul by dequantized v -> CompressedAttention

Key, value or both are dequantized: DequantizeLinear, DynamicDequantize, or (Cast(codes) [- zero]) * scale [+ offset],
with scales of all elements, of heads, of tokens and groups of them, of channels and of groups along the head. Groups
may be a dimension that a Reshape joins to its neighbor. The codes may be any tensor, such as a cache to which those of
new tokens are appended. Heads may be repeated for several heads of query (Expand). The key is [B, H, T, D] before a
Transpose, or [B, H, D, T].

More than 450 lines: the forms of keys and values are one match, and nothing else uses its parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ...opsets import OPSET
from ..analysis.constants import constant_array
from ..analysis.limits import CHAIN
from ..analysis.nodes import is_standard, operand, producer_of
from ..analysis.shapes import has_one_element, is_equal, is_unnamed
from ..analysis.standard import ARITHMETIC, HEAD_MOVES, PASSING, SCATTERING, SOFTMAX_ENDS, SUMS
from ..analysis.values import Values
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .attention_build import bias_of, can_be_placed
from .score_steps import (
    MAX_NUMBER,
    Added,
    Masked,
    Scalar,
    Step,
    Steps,
    factor_of,
    may_mask_rows,
    split_scalars,
    split_steps,
    times,
)
from .scores import Attention, attention_of
from .sources import Source, sources_of
from .views import Axes, Dim, View, dims_of, leaves, skip_casts

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_WIDE = {ir.DataType.UINT4: ir.DataType.UINT8, ir.DataType.INT4: ir.DataType.INT8}
_MIDDLES = {ir.DataType.UINT8: 128, ir.DataType.INT8: 0, ir.DataType.UINT4: 8, ir.DataType.INT4: 0}  # of the codes
_MOVES = HEAD_MOVES - {"Flatten"} | PASSING
_CODES = tuple(_MIDDLES)
_MIN_GROUP = 8  # narrower groups of values take longer than floats; those of keys are scales of channels
_MAX_MASK_OF_FLOAT16 = -6e4  # such a number absorbs a score of float16, which is far from it
_LOWEST = -1e38  # takes the place of lower masks of float16: it absorbs scores of float32, too


@dataclass(frozen=True)
class _Codes:
    """Codes and what makes numbers of them: (codes - zero point - zero) * scale + offset.

    Attributes:
        value, scale: The codes, and their scales.
        zero_point: Zero points of the type of the codes, or None.
        zero: Zero points of another type, such as floats, or None.
        offset: What is added to the products, or None.
        is_subtracted: Whether the offset is subtracted instead.
    """

    value: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None = None
    zero: ir.Value | None = None
    offset: ir.Value | None = None
    is_subtracted: bool = False

    @property
    def has_offset(self) -> bool:
        return self.zero is not None or self.offset is not None

    @property
    def points(self) -> list[ir.Value]:
        """The parameters besides the scales."""
        return [each for each in (self.zero_point, self.zero, self.offset) if each is not None]


@dataclass(frozen=True)
class _Operand:
    """A key or a value.

    Attributes:
        value: The codes, or floats; of four dimensions.
        codes: The codes and their parameters. None: floats.
        move: The operator that gives the parameters four dimensions, and its shape or axes; None: they have four.
        code_shape: The shape that the codes are reshaped to; None: they have four dimensions.
        groups: The number of groups of a head, if codes and parameters have a row for each group; otherwise None.
        is_per_channel: Whether the scales vary along the head more than along the tokens.
    """

    value: ir.Value
    codes: _Codes | None = None
    move: tuple[str, tuple[int, ...]] | None = None
    code_shape: ir.Value | None = None
    groups: int | None = None
    is_per_channel: bool = False


@dataclass(frozen=True)
class _CompressedAttention:
    """Attention: see the operator for the operands.

    Attributes:
        query, key, value: The operands.
        is_transposed: Whether the key is [B, H, D, T].
        factor, scalars: The numbers by which scores are multiplied.
        steps: The masks and biases, the innermost first.
        scores: The factors of the axes of scores.
        least_bias: The number below which a finite sum of biases absorbs scores; None if no sum is below it.
        product: MatMul(probabilities, value).
    """

    query: ir.Value
    key: _Operand
    value: _Operand
    is_transposed: bool
    factor: float
    scalars: tuple[Scalar, ...]
    steps: Steps
    scores: Axes
    least_bias: float | None
    product: ir.Node


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
    codes = [] if found is None else [each.value for each in (found.key, found.value) if each.codes is not None]
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
    product, values = found.product, context.shared(Values)
    given_query = _unscaled(found.scores.query)
    given_key = _unscaled(found.scores.key, is_key=True)
    query = given_query.view.value
    is_transposed = leaves(given_key.view.axes[-1:]) == leaves(found.probabilities[-1:])
    if leaves(given_query.view.axes[-1:]) == leaves(found.probabilities[-2:-1]):  # the product transposes it
        return None
    key_value = _unrepeated(given_key.view)
    value_value = _unrepeated(View(skip_casts(found.value.value), found.value.axes))
    if not (_dequantizes(key_value) or _dequantizes(value_value)):
        return None
    scalars, softcap, steps = split_steps(found.scores.steps)
    if found.is_safe and may_mask_rows(steps, values):
        raise Unconverted(Reason.CODES_SAFE_SOFTMAX)
    key, value = _operand(key_value, 3 if is_transposed else 2), _operand(value_value, 2)
    for what, given, each in (("keys", key_value, key), ("values", value_value, value)):
        if each is None or (each.codes is None and _dequantizes(given)):
            is_scaled = _uncast(given) is None
            raise Unconverted(Reason.CODES_SCALES if is_scaled else Reason.CODES_NOT_SCALED, what=what)
    assert key is not None
    assert value is not None
    if key.codes is None and is_transposed:  # it takes longer to quantize such keys than it saves
        raise Unconverted(Reason.CODES_SCALES, what="keys")
    if not _is_attention(query, key_value, value_value, is_transposed):
        raise Unconverted(Reason.CODES_HEADS)
    constants, others = split_scalars([*given_query.scalars, *given_key.scalars, *scalars])
    factor = factor_of([*constants, found.scores.factor])
    are_numbers = all(has_one_element(each.value, 4) for each in others) and math.isfinite(factor)
    if not are_numbers or softcap != 0 or not all(_is_mask(step, found.probabilities) for step in steps):
        raise Unconverted(Reason.CODES_SCORES)
    least = _least_bias(steps, values)
    return _CompressedAttention(
        query, key, value, is_transposed, factor, others, steps, found.probabilities, least, product
    )


def _unscaled(operand: View, *, is_key: bool = False) -> Source:
    """Returns an operand before its scaling; a key also before it is transposed."""
    found, *sources = sources_of(operand)
    transposed = (*operand.axes[:-2], *operand.axes[:-3:-1]) if is_key else operand.axes
    for each in sources:
        if each.view.axes not in (found.view.axes, transposed):
            break
        found = each
    return found


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
    if node is None or CHAIN.is_passed(distance):
        return False
    if node.op_type == "DequantizeLinear" or (node.op_type == "DynamicDequantize" and node.domain == DOMAIN):
        return True
    if is_standard(node, *ARITHMETIC - {"Add", "Div"}):
        return any(_dequantizes(each, distance + 1) for each in node.inputs)
    if is_standard(node, "Add"):
        found = _codes_of(node)
        parts = None if found is None or found.offset is None else dims_of(found.offset)
        return parts is not None and any(a == 1 != b for a, b in zip(parts, dims_of(node.outputs[0]), strict=False))
    if is_standard(node, "Cast") and node.inputs[0] is not None and node.inputs[0].dtype in _CODES:
        return True
    return is_standard(node, *_MOVES) and _dequantizes(node.inputs[0], distance + 1)


def _is_mask(step: Step, scores: Axes) -> bool:
    """Returns whether a step is a mask or bias that can be added to scores."""
    if isinstance(step, Scalar) or (isinstance(step, Masked) and step.number > MAX_NUMBER):
        return False
    return can_be_placed(step, scores, ())


def _is_attention(query: ir.Value, key: ir.Value, value: ir.Value, is_transposed: bool) -> bool:
    """Returns whether batches and heads do not broadcast, and the keys have heads of a known size."""
    q, k, v = dims_of(query), dims_of(key), dims_of(value)
    if not len(q) == len(k) == len(v) == 4 or q[3] == 0 or not isinstance(q[3], int):
        return False
    if k[2 if is_transposed else 3] != q[3] or not isinstance(v[3], int):
        return False
    heads, key_heads = q[1], k[1]
    if not isinstance(heads, int) or not isinstance(key_heads, int) or key_heads != v[1] or key_heads == 0:
        return False
    return heads % key_heads == 0 and is_equal(q[0], k[0]) and is_equal(q[0], v[0])


def _unrepeated(operand: View) -> ir.Value:
    """Returns the key or value before an Expand repeats its heads, or itself: heads of query share adjacent ones."""
    first, *sources = (each.view for each in sources_of(operand, repeats=True))
    whole = [leaves([axis]) for axis in first.axes]
    for view in reversed(sources):
        axes = [leaves([axis]) for axis in view.axes]
        if (
            len(axes) == 4
            and axes[1] == whole[1][: len(axes[1])] != whole[1]
            and [*axes[:1], *axes[2:]] == [*whole[:1], *whole[2:]]
        ):
            return view.value
    return first.value


def _operand(value: ir.Value | None, axis: int) -> _Operand | None:
    """Returns a key or value, dequantized or floats; None if it is neither. `axis`: the one of the tokens."""
    if value is None:
        return None
    node = value.producer()
    found = None
    if node is not None and value.dtype in _FLOATS and not value.is_graph_output():
        if (node.op_type == "DequantizeLinear" and node.domain in STANDARD_DOMAINS) or (
            node.op_type == "DynamicDequantize" and node.domain == DOMAIN
        ):
            found = _of_linear(node, axis)
        elif is_standard(node, *SUMS, "Mul"):
            codes = _codes_of(node)
            found = None if codes is None else _grouped(codes, axis)
        elif is_standard(node, "Reshape"):
            found = _of_blocks(node, axis)
    if found is not None:
        return found
    return _Operand(value) if value.dtype in _FLOATS and len(dims_of(value)) == 4 else None


def _of_linear(node: ir.Node, axis: int) -> _Operand | None:
    """Returns the operand that DequantizeLinear or DynamicDequantize makes; None if its scales are of other groups."""
    value, scale, *rest = node.inputs
    codes = None if value is None or scale is None else _with_zero(_Codes(value, scale), rest[0] if rest else None)
    if value is None or codes is None or len(dims_of(value)) != 4:
        return None
    if node.attributes.get_int("output_dtype", 0) not in (0, *map(int, _FLOATS)):
        return None
    parameters = [codes.scale, *codes.points]
    if any(each.shape is None for each in parameters):
        return None
    if all(has_one_element(each, 1) for each in parameters):
        return _Operand(value, codes, ("Reshape", (1, 1, 1, 1)))
    if all(len(dims_of(each)) == 1 for each in parameters):  # per channel
        channel = node.attributes.get_int("axis", 1) % 4
        if node.attributes.get_string("qtype", "per_channel") == "per_tensor" or channel == 0:
            return None
        shape = tuple(-1 if i == channel else 1 for i in range(4))
        return _Operand(value, codes, ("Reshape", shape), is_per_channel=channel == 5 - axis)
    found, block = _grouped(codes, axis), node.attributes.get_int("block_size", 0)
    if found is None or block == 0:
        return found
    along = node.attributes.get_int("axis", 1) % 4
    size, groups = dims_of(value)[along], dims_of(codes.scale)[along]
    is_whole = isinstance(size, int) and isinstance(groups, int) and block * groups == size
    return found if is_whole and along in (2, 3) else None


def _codes_of(node: ir.Node) -> _Codes | None:
    """Returns the codes of a node that ends (Cast(codes) [- zero]) * scale [+ offset]; None if it is no such node."""
    if is_standard(node, "Mul"):
        return _product_of_codes(node)
    for i in (0, 1) if is_standard(node, "Add") else (0,):
        product, offset = node.inputs[i], node.inputs[1 - i]
        mul = None if product is None else producer_of(skip_casts(product), "Mul")
        found = None if mul is None else _product_of_codes(mul)
        if found is not None and offset is not None and offset.dtype in _FLOATS:
            return replace(found, offset=skip_casts(offset), is_subtracted=is_standard(node, "Sub"))
    return None


def _product_of_codes(node: ir.Node) -> _Codes | None:
    """Returns the codes of (Cast(codes) [- zero]) * scale."""
    for codes_index in (0, 1):
        difference, scale = node.inputs[codes_index], node.inputs[1 - codes_index]
        if difference is None or scale is None:
            continue
        zero = None
        sub = producer_of(skip_casts(difference), "Sub")
        if sub is not None:
            difference, zero = sub.inputs
            zero = zero if zero is None else _uncast(zero) or skip_casts(zero)
        codes = _uncast(difference)
        found = None if codes is None else _with_zero(_Codes(codes, skip_casts(scale)), zero)
        if found is not None:
            return found
    return None


def _with_zero(codes: _Codes, zero: ir.Value | None) -> _Codes | None:
    """Returns codes with a zero point, if one is given; None if the types are those of no codes or of no scale."""
    if codes.value.dtype not in _CODES or codes.scale.dtype not in _FLOATS:
        return None
    if zero is None or zero.dtype == codes.value.dtype:
        return replace(codes, zero_point=zero)
    return replace(codes, zero=zero) if zero.dtype in (*_CODES, *_FLOATS, ir.DataType.INT32) else None


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """Returns the codes if a value is their Cast to floats; None if it is none."""
    cast = None if value is None else producer_of(skip_casts(value), "Cast")
    codes = None if cast is None else cast.inputs[0]
    return codes if codes is not None and codes.dtype in _CODES else None


def _of_blocks(node: ir.Node, axis: int) -> _Operand | None:
    """Returns the operand of a Reshape that joins groups of tokens, or along the head, after their dequantization.

    [B, H, groups, tokens of a group, D], [B, H, T, groups, elements of a group] or [all groups, elements of a group]
    become [B, H, T, D].
    """
    last, target = producer_of(skip_casts(operand(node)), *SUMS, "Mul"), node.inputs[1]
    codes = None if last is None else _codes_of(last)
    if codes is None or target is None:
        return None
    whole, blocks, parts = dims_of(node.outputs[0]), dims_of(codes.value), dims_of(codes.scale)
    points = [dims_of(each) for each in codes.points]
    if len(whole) == 4 and all(len(each) == 2 for each in (blocks, parts, *points)):
        width, size, shape = blocks[1], whole[3], constant_array(target)
        if axis != 2 or not isinstance(width, int) or not isinstance(size, int) or width < 1 or size % width:
            return None
        has_rows = all(each[1] == 1 and _is_length(each[0], blocks[0]) for each in (parts, *points))
        copies = shape is not None and not shape.all()  # a dimension of the rows
        if not has_rows or copies or width < min(_MIN_GROUP, size):
            return None
        return _Operand(codes.value, codes, code_shape=target, groups=size // width)
    if len(whole) != 4 or not all(len(each) == 5 for each in (blocks, parts, *points)):
        return None
    for at in (2, 3):  # the dimension of groups; the next one is that of their elements
        size = blocks[at + 1]
        if not isinstance(size, int) or size < 1 or any(each[at + 1] != 1 for each in (parts, *points)):
            continue
        kept = [i for i in range(4) if i != at]
        if not all(_is_length(blocks[i + (i > at)], whole[i]) for i in kept):
            continue
        is_per_channel = _is_per_channel(
            whole,
            [*parts[: at + 1], *parts[at + 2 :]],
            [[*each[: at + 1], *each[at + 2 :]] for each in points],
            axis,
            blocks[at] if at == axis and size >= _MIN_GROUP else None,
        )
        if is_per_channel is not None:
            return _Operand(codes.value, codes, ("Squeeze", (at + 1,)), target, is_per_channel=is_per_channel)
    return None


def _grouped(codes: _Codes, axis: int) -> _Operand | None:
    """Returns the operand if scales are of heads, of tokens or groups of them, and of groups that divide the head."""
    whole, points = dims_of(codes.value), [dims_of(each) for each in codes.points]
    is_per_channel = _is_per_channel(whole, dims_of(codes.scale), points, axis)
    return None if is_per_channel is None else _Operand(codes.value, codes, is_per_channel=is_per_channel)


def _is_per_channel(
    whole: list[Dim], parts: list[Dim], points: list[list[Dim]], axis: int, token_groups: Dim | None = None
) -> bool | None:
    """Returns whether scales are rather of channels than of tokens; None if the operator does not take them.

    Args:
        whole: The dimensions of the codes.
        parts, points: Those of scales, and of the other parameters.
        axis: The one of the tokens.
        token_groups: The number of groups of tokens, if they are known to have the same size, of 8 or more.
    """
    head = 5 - axis
    if not all(len(each) == 4 for each in (whole, parts, *points)):
        return None
    size, groups = whole[head], parts[head]
    if not isinstance(size, int) or not isinstance(groups, int) or groups < 1 or size % groups:
        return None
    is_of_groups = token_groups is not None and is_equal(parts[axis], token_groups)
    tokens = _MIN_GROUP if is_of_groups else _tokens_of_group(parts[axis], whole[axis])
    if tokens is None or not all(is_equal(parts[i], whole[i]) or parts[i] == 1 for i in (0, 1)):
        return None
    if not all(
        a == 1 or is_equal(a, b) or (i == axis and _is_length(a, b))
        for each in points
        for i, (a, b) in enumerate(zip(each, parts, strict=True))
    ):
        return None
    if size // groups >= min(_MIN_GROUP, size):
        return False
    return True if tokens >= _MIN_GROUP else None


def _tokens_of_group(groups: Dim, tokens: Dim) -> float | None:
    """Returns how many tokens share a scale: many if all do; None if that is not known, or groups have other sizes."""
    if groups == 1:
        return math.inf
    if isinstance(groups, int) and isinstance(tokens, int) and groups > 0 and tokens % groups == 0:
        return tokens // groups
    return 1 if _is_length(groups, tokens) else None


def _is_length(a: Dim, b: Dim) -> bool:
    """Returns whether two numbers of tokens are equal, or not known to differ: of a cache, both may be computed."""
    return is_equal(a, b) or (
        not isinstance(a, int) and not isinstance(b, int) and (_is_computed(a) or _is_computed(b))
    )


def _is_computed(dim: Dim) -> bool:
    """Returns whether a dimension has no name, or one that shape inference has made."""
    return is_unnamed(dim) or str(dim).startswith("unk__")


def _build(match: _CompressedAttention, edit: Edit) -> None:
    before, result = match.product, match.product.outputs[0]
    operands = (match.key, match.value)
    types = {match.query.dtype, result.dtype, *(each.codes.scale.dtype for each in operands if each.codes is not None)}
    has_offsets = any(each.codes is not None and each.codes.has_offset for each in operands)  # sums in float32
    float_type = match.query.dtype if len(types) == 1 and not has_offsets else ir.DataType.FLOAT
    scale = times(match.factor, match.scalars, edit, before)
    (*key, key_offset), (*value, value_offset) = (_inputs(each, float_type, edit, before) for each in operands)
    main = call(
        "CompressedAttention",
        [
            edit.cast(match.query, float_type, before=before),
            *key,
            *value,
            _bias(match, edit),
            scale,
            key_offset,
            value_offset,
        ],
        transposed_key=int(match.is_transposed),
        float_key=int(match.key.codes is None),
        float_value=int(match.value.codes is None),
        scale_query=int(match.key.is_per_channel),
        scale_result=int(match.value.is_per_channel),
    )
    dst = edit.insert_main(main, before=before)
    edit.replace(result, edit.cast(dst, result.dtype, before=before, of=float_type))


def _inputs(operand: _Operand, float_type: ir.DataType | None, edit: Edit, before: ir.Node) -> list[ir.Value]:
    """Returns the codes or floats, the scales, the zero points and the offsets; floats of a type."""

    def number(value: float, dtype: ir.DataType | None) -> ir.Value:
        assert dtype is not None
        if dtype in _CODES:
            return edit.add_constant(np.full((1, 1, 1, 1), value).astype(dtype.numpy()), before=before)
        return edit.cast(
            edit.add_constant(np.full((1, 1, 1, 1), value, np.float32), before=before), dtype, before=before
        )

    given = operand.codes
    if given is None:
        return [
            edit.cast(operand.value, float_type, before=before),
            *(number(each, float_type) for each in (1, 0, 0)),
        ]

    def moved(value: ir.Value, op_type: str, argument: ir.Value) -> ir.Value:
        """ONNX Runtime moves no elements of 4 bits, but casts them."""
        if value.dtype in _WIDE:
            value = edit.cast(value, _WIDE[value.dtype], before=before)
        return edit.insert(ir.node(op_type, [value, argument]), before=before)

    def of_rank_4(parameter: ir.Value) -> ir.Value:
        if operand.groups is not None:
            assert operand.code_shape is not None
            ends = [edit.add_constant(np.array([each]), before=before) for each in (0, 3)]
            lead = edit.insert(ir.node("Slice", [operand.code_shape, *ends]), before=before)
            groups = edit.add_constant(np.array([operand.groups]), before=before)
            shape = edit.insert(ir.node("Concat", [lead, groups], {"axis": 0}), before=before)
            return moved(parameter, "Reshape", shape)
        if operand.move is None:
            return parameter
        op_type, argument = operand.move
        return moved(parameter, op_type, edit.add_constant(np.array(argument), before=before))

    assert given.value.dtype is not None
    codes, type_ = given.value, given.value.dtype
    if operand.code_shape is not None:
        codes = moved(codes, "Reshape", operand.code_shape)
        type_ = _WIDE.get(type_, type_)
    middle = _MIDDLES[given.value.dtype] if given.has_offset and given.zero_point is None else 0
    if given.zero_point is None:
        zero_point = number(middle, type_)
    else:
        zero_point, given_type = of_rank_4(given.zero_point), given.value.dtype
        is_wide = zero_point is not given.zero_point and given_type in _WIDE
        zero_point = edit.cast(zero_point, type_, before=before, of=_WIDE[given_type] if is_wide else given_type)
    offset = of_rank_4(_offset(given, middle, edit, before)) if given.has_offset else number(0, float_type)
    scale = of_rank_4(edit.cast(given.scale, float_type, before=before))
    return [codes, scale, zero_point, offset]


def _offset(codes: _Codes, middle: int, edit: Edit, before: ir.Node) -> ir.Value:
    """Returns what is added to (codes - middle) * scale, as float32.

    The words of queries and weights are rounded: their errors are smaller with codes of a mean of about 0.
    """

    def binary(op_type: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return edit.insert(ir.node(op_type, [a, b]), before=before)

    if codes.zero is None and middle == 0 and codes.offset is not None and not codes.is_subtracted:
        return edit.cast(codes.offset, ir.DataType.FLOAT, before=before)
    # With fewer dimensions, ONNX Runtime takes 60 times as long for parameters with a last dimension of 1.
    total = edit.add_constant(np.full((1, 1, 1, 1), middle, np.float32), before=before)
    if codes.zero is not None:
        total = binary("Sub", total, edit.cast(codes.zero, ir.DataType.FLOAT, before=before))
    total = binary("Mul", total, edit.cast(codes.scale, ir.DataType.FLOAT, before=before))
    if codes.offset is None:
        return total
    offset = edit.cast(codes.offset, ir.DataType.FLOAT, before=before)
    return binary("Sub" if codes.is_subtracted else "Add", total, offset)


def _bias(match: _CompressedAttention, edit: Edit) -> ir.Value:
    """Returns the sum of the masks and biases, of four dimensions; numbers that absorb scores stay finite."""
    node, least = edit.node, match.least_bias
    if not match.steps:
        return edit.add_constant(np.zeros((1, 1, 1, 1), np.float32), before=node)
    total = bias_of(match.steps, match.scores, (), edit)
    if least is None:
        return total

    def absorbing() -> ir.Value:
        bound, lowest = (edit.add_constant(np.float32(each), before=node) for each in (least, _LOWEST))
        is_low = edit.insert(ir.node("Less", [total, bound]), before=node)
        higher = edit.insert(ir.node("Where", [is_low, lowest, total]), before=node)
        infinite = edit.insert(ir.node("IsInf", [total]), before=node)
        return edit.insert(ir.node("Where", [infinite, total, higher]), before=node)

    return edit.once(("absorbing", total, least), absorbing)


RULE = Rule("attention over codes", OPSET, _match, _build, fuses=True, operators=SOFTMAX_ENDS)
UNFUSED: Rule[None] = Rule("attention over codes that is not fused", OPSET, _match_unfused, operators=SOFTMAX_ENDS)
