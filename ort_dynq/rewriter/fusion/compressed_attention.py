"""The rule for attention over keys and values that the model stores as codes.

MatMul(q, dequantized k), scale, masks and biases, Softmax, MatMul by dequantized v -> CompressedAttention

Key, value or both are dequantized: DequantizeLinear, DynamicDequantize, or (Cast(codes) [- zero point]) * scale, with
scales of all elements, of each token, or of groups along the head. The codes may be any tensor, such as a cache
to which those of new tokens are appended. The key is [B, H, T, D] before a Transpose, or [B, H, D, T].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ...opsets import OPSET
from ..analysis.nodes import is_standard, producer_of, skip_identity, uncast
from ..analysis.shapes import has_one_element
from ..analysis.values import Values
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .heads import Dim, dims_of, is_dynamic, is_equal, is_unknown
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
    unscaled,
)

_CODES = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT4, ir.DataType.INT4)
_SCALES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_MOVES = ("Cast", "Concat", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_FARTHEST = 8  # nodes between a dequantization and its product
_LOWEST = -1e38  # a finite bias below it would become -inf as a multiple of log(2)


@dataclass(frozen=True)
class _Operand:
    """A key or a value.

    Attributes:
        value: The codes, or floats; of four dimensions.
        scale, zero_point: Of the codes. None: of floats, or no zero point.
        shape: The shape that scale and zero point are reshaped to; None: they have four dimensions.
    """

    value: ir.Value
    scale: ir.Value | None = None
    zero_point: ir.Value | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Match:
    """Attention: see the operator for the operands.

    Attributes:
        query, key, value: The operands.
        is_transposed: Whether the key is [B, H, D, T].
        factor, scalars: The numbers by which scores are multiplied.
        steps: The masks and biases, the innermost first.
        lowers_biases: Whether a bias may be finite and lower than the operator takes.
        product: MatMul(probabilities, value).
    """

    query: ir.Value
    key: _Operand
    value: _Operand
    is_transposed: bool
    factor: float
    scalars: tuple[Scalar, ...]
    steps: Steps
    lowers_biases: bool
    product: ir.Node


def _match(node: ir.Node, context: Context) -> _Match | None:
    return _attention(node, context) if context.fuse else None


def _match_unfused(node: ir.Node, context: Context) -> None:
    """Reports attention over codes that are not of this run, such as those of a cache."""
    if context.fuse or context.exact:
        return
    try:
        found = _attention(node, context)
    except Unconverted:  # nobody has asked for a fusion
        return
    codes = [] if found is None else [each.value for each in (found.key, found.value) if each.scale is not None]
    makers = [each.producer() for each in codes]
    if any(maker is None or is_standard(maker, *_MOVES) for maker in makers):
        raise Unconverted(Reason.CODES_NEED_FUSE)


def _attention(node: ir.Node, context: Context) -> _Match | None:
    """Returns attention over codes that ends in a Softmax; None if the node is no such Softmax.

    Raises:
        Unconverted: It is attention over codes in a form that the operator does not compute.
    """
    found = attention_of(node)
    if found is None:
        return None
    scores, product, is_safe = found
    p = node.outputs[0]
    values = context.shared(Values)
    query = unscaled(scores.query, scores.scalars)
    key_value = unscaled(scores.key, scores.scalars)
    transpose = producer_of(key_value, "Transpose")
    is_transposed = transpose is None or list(transpose.attributes.get_ints("perm", [])) != [0, 1, 3, 2]
    if transpose is not None and not is_transposed:
        key_value = unscaled(skip_identity(_first(transpose)), scores.scalars)
    value_value = None if product.inputs[1] is None else skip_identity(product.inputs[1])
    if value_value is None or not (_dequantizes(key_value) or _dequantizes(value_value)):
        return None
    if is_safe and may_mask_rows(scores.steps, values):
        raise Unconverted(Reason.CODES_SAFE_SOFTMAX)
    key, value = _operand(key_value, 3 if is_transposed else 2), _operand(value_value, 2)
    for what, given, operand in (("keys", key_value, key), ("values", value_value, value)):
        if operand is None or (operand.scale is None and _dequantizes(given)):
            raise Unconverted(Reason.CODES_SCALES, what=what)
    assert key is not None
    assert value is not None
    if query.dtype != ir.DataType.FLOAT:
        raise Unconverted(Reason.CODES_QUERY, dtype=query.dtype)
    if not _is_attention(query, key.value, value.value, is_transposed):
        raise Unconverted(Reason.CODES_HEADS)
    constants, scalars = split_scalars(scores.scalars)
    factor = factor_of(constants)
    are_numbers = all(has_one_element(each.value, 4) for each in scalars) and math.isfinite(factor)
    if not are_numbers or not all(_fits(step, p) for step in scores.steps):
        raise Unconverted(Reason.CODES_SCORES)
    lowers = any(isinstance(step, Added) and values.known(step.value).low < _LOWEST for step in scores.steps)
    return _Match(query, key, value, is_transposed, factor, scalars, tuple(scores.steps), lowers, product)


def _dequantizes(value: ir.Value | None, distance: int = 0) -> bool:
    """Returns whether a key or value is dequantized codes, perhaps moved, repeated or joined afterwards."""
    node = None if value is None else value.producer()
    if node is None or distance > _FARTHEST:
        return False
    if node.op_type == "DequantizeLinear" or (node.op_type == "DynamicDequantize" and node.domain == DOMAIN):
        return True
    if is_standard(node, "Mul", "Sub"):
        return any(_dequantizes(each, distance + 1) for each in node.inputs)
    if is_standard(node, "Cast") and node.inputs[0] is not None and node.inputs[0].dtype in _CODES:
        return True
    return is_standard(node, *_MOVES) and _dequantizes(node.inputs[0], distance + 1)


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _fits(step: Added | Masked, p: ir.Value) -> bool:
    """Returns whether a mask or bias broadcasts to the scores, as far as dimensions are known."""
    dims = dims_of(step.value)
    return (
        step.value.shape is not None
        and all(
            each == 1 or each == of_scores or is_dynamic(each) or is_dynamic(of_scores)
            for each, of_scores in zip(reversed(dims), reversed(dims_of(p)), strict=False)
        )
        and len(dims) <= 4
    )


def _is_attention(query: ir.Value, key: ir.Value, value: ir.Value, is_transposed: bool) -> bool:
    """Returns whether batches and heads do not broadcast, and the keys have heads of a known size."""
    q, k, v = dims_of(query), dims_of(key), dims_of(value)
    if not len(q) == len(k) == len(v) == 4 or q[3] == 0 or not isinstance(q[3], int):
        return False
    if k[2 if is_transposed else 3] != q[3] or not isinstance(v[3], int):
        return False
    heads = (q[1], k[1], v[1])
    return all(isinstance(each, int) for each in heads) and len({*heads}) == 1 and _same(q[0], k[0], v[0])


def _same(*dims: Dim) -> bool:
    return all(is_equal(dims[0], each) for each in dims[1:])


def _operand(value: ir.Value | None, axis: int) -> _Operand | None:
    """Returns a key or value, dequantized or float32; None if it is neither. `axis`: the one of the tokens."""
    if value is None:
        return None
    node = value.producer()
    found = None
    if node is not None and value.dtype == ir.DataType.FLOAT and not value.is_graph_output():
        if (node.op_type == "DequantizeLinear" and node.domain in STANDARD_DOMAINS) or (
            node.op_type == "DynamicDequantize" and node.domain == DOMAIN
        ):
            found = _of_linear(node, axis)
        elif is_standard(node, "Mul"):
            found = _of_product(node, axis)
    if found is not None:
        return found
    return _Operand(value) if value.dtype == ir.DataType.FLOAT and len(dims_of(value)) == 4 else None


def _of_linear(node: ir.Node, axis: int) -> _Operand | None:
    """Returns the operand that DequantizeLinear or DynamicDequantize makes; None if its scales are of other groups."""
    codes, scale, *rest = node.inputs
    zero_point = rest[0] if rest else None
    if codes is None or scale is None or not _are_codes(codes, scale, zero_point):
        return None
    if node.attributes.get_int("output_dtype", 0) not in (0, int(ir.DataType.FLOAT)):
        return None
    if scale.shape is None or (zero_point is not None and zero_point.shape is None):
        return None
    if all(has_one_element(each, 1) for each in (scale, zero_point) if each is not None):
        return _Operand(codes, scale, zero_point, (1, 1, 1, 1))
    if len(scale.shape) == 1 and (zero_point is None or len(zero_point.shape or ()) == 1):  # per channel
        channel = node.attributes.get_int("axis", 1) % 4
        if node.attributes.get_string("qtype", "per_channel") == "per_tensor" or channel not in (1, axis):
            return None
        return _Operand(codes, scale, zero_point, tuple(-1 if i == channel else 1 for i in range(4)))
    found, block = _grouped(codes, scale, zero_point, axis), node.attributes.get_int("block_size", 0)
    if found is None or block == 0:
        return found
    head = 5 - axis
    size, groups = dims_of(codes)[head], dims_of(scale)[head]
    is_whole = isinstance(size, int) and isinstance(groups, int) and block * groups == size
    return found if is_whole and node.attributes.get_int("axis", 1) % 4 == head else None


def _of_product(node: ir.Node, axis: int) -> _Operand | None:
    """Returns the operand that (Cast(codes) [- zero point]) * scale makes."""
    for codes_index in (0, 1):
        difference, scale = node.inputs[codes_index], node.inputs[1 - codes_index]
        if difference is None or scale is None:
            continue
        zero_point = None
        sub = producer_of(skip_identity(difference), "Sub")
        if sub is not None:
            difference, zero_point = sub.inputs[0], uncast(sub.inputs[1])
            if zero_point is None:
                continue
        codes = uncast(difference)
        if codes is None or codes is difference or not _are_codes(codes, scale, zero_point):
            continue
        if dims_of(scale)[-1:] == [1] and (found := _grouped(codes, scale, zero_point, axis)) is not None:
            return found
    return None


def _are_codes(codes: ir.Value, scale: ir.Value, zero_point: ir.Value | None) -> bool:
    has_types = codes.dtype in _CODES and scale.dtype in _SCALES and len(dims_of(codes)) == 4
    return has_types and (zero_point is None or zero_point.dtype == codes.dtype)


def _grouped(codes: ir.Value, scale: ir.Value, zero_point: ir.Value | None, axis: int) -> _Operand | None:
    """Returns the operand if scales are of heads or tokens, and of groups along the head that divide it."""
    whole, parts = dims_of(codes), dims_of(scale)
    head = 5 - axis
    if len(parts) != 4 or any(dims[head] is None or is_dynamic(dims[head]) for dims in (whole, parts)):
        return None
    size, groups = whole[head], parts[head]
    assert isinstance(size, int)
    assert isinstance(groups, int)
    is_of_tokens = _is_length(parts[axis], whole[axis])
    if groups < 1 or size % groups or not (is_of_tokens or parts[axis] == 1):
        return None
    if not all(is_equal(parts[i], whole[i]) or parts[i] == 1 for i in (0, 1)):
        return None
    points = parts if zero_point is None else dims_of(zero_point)
    if len(points) != 4 or not all(
        a == 1 or is_equal(a, b) or (i == axis and _is_length(a, b))
        for i, (a, b) in enumerate(zip(points, parts, strict=True))
    ):
        return None
    return _Operand(codes, scale, zero_point)


def _is_length(a: Dim, b: Dim) -> bool:
    """Returns whether two numbers of tokens are equal, or not known to differ: of a cache, both may be computed."""
    return is_equal(a, b) or (is_dynamic(a) and is_dynamic(b) and (_is_computed(a) or _is_computed(b)))


def _is_computed(dim: Dim) -> bool:
    """Returns whether a dimension has no name, or one that shape inference has made."""
    return is_unknown(dim) or str(dim).startswith("unk__")


def _build(match: _Match, edit: Edit) -> None:
    before = match.product
    scale = times(match.factor, match.scalars, edit, before)
    main = call(
        "CompressedAttention",
        [
            match.query,
            *_inputs(match.key, edit, before),
            *_inputs(match.value, edit, before),
            _bias(match, edit),
            scale,
        ],
        transposed_key=int(match.is_transposed),
        float_key=int(match.key.scale is None),
        float_value=int(match.value.scale is None),
    )
    edit.replace(match.product.outputs[0], edit.insert_main(main, before=before))


def _inputs(operand: _Operand, edit: Edit, before: ir.Node) -> list[ir.Value]:
    """Returns the codes or floats, the scale as float32, and the zero point."""
    dtype = operand.value.dtype
    assert dtype is not None
    if operand.scale is None:
        one = edit.add_constant(np.ones((1, 1, 1, 1), np.float32), before=before)
        return [operand.value, one, edit.add_constant(np.zeros((1, 1, 1, 1), np.float32), before=before)]
    scale, zero_point = operand.scale, operand.zero_point
    if scale.dtype != ir.DataType.FLOAT:
        scale = edit.insert(ir.node("Cast", [scale], {"to": int(ir.DataType.FLOAT)}), before=before)
    if operand.shape is not None:
        shape = edit.add_constant(np.array(operand.shape), before=before)
        scale = edit.insert(ir.node("Reshape", [scale, shape]), before=before)
        if zero_point is not None:
            zero_point = edit.insert(ir.node("Reshape", [zero_point, shape]), before=before)
    if zero_point is None:
        zero_point = edit.add_constant(np.zeros((1, 1, 1, 1), dtype.numpy()), before=before)
    return [operand.value, scale, zero_point]


def _bias(match: _Match, edit: Edit) -> ir.Value:
    """Returns the sum of the masks and biases, of four dimensions."""
    node = edit.node
    if not match.steps:
        return edit.add_constant(np.zeros((1, 1, 1, 1), np.float32), before=node)
    steps: Steps = tuple(
        Masked(step.value, step.keeps, max(step.number, _LOWEST) if math.isfinite(step.number) else step.number)
        if isinstance(step, Masked)
        else step
        for step in match.steps
    )
    total = sum_of(steps, edit)
    rank = max(len(dims_of(step.value)) for step in match.steps)
    if rank < 4:
        axes = edit.add_constant(np.arange(4 - rank), before=node)
        total = edit.insert(ir.node("Unsqueeze", [total, axes]), before=node)
    if match.lowers_biases:
        lowest = edit.add_constant(np.float32(_LOWEST), before=node)
        higher = edit.insert(ir.node("Max", [total, lowest]), before=node)
        infinite = edit.insert(ir.node("IsInf", [total]), before=node)
        total = edit.insert(ir.node("Where", [infinite, total, higher]), before=node)
    return total


RULE = Rule("attention over codes", OPSET, _match, _build, fuses=True)
UNFUSED: Rule[None] = Rule("attention over codes that is not fused", OPSET, _match_unfused)
