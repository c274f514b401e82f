"""The rules for quantization written with primitive operators: Div, Round, Add, Clip, Cast, Mul.

torch, torchao, compressed-tensors, BitNet and SmoothQuant export such chains.

range, scale, zero point, quantize                  -> DynamicRangeQuantize
range, scale, zero point, quantize, dequantize      -> DynamicRangeFakeQuantize
quantize                                            -> AffineQuantize
quantize, dequantize                                -> AffineFakeQuantize
dequantize                                          -> AffineDequantize

quantize     round(x / s) | round(x * (1 / s)) | round(x * s), + zero point before or after, clip before or after, cast
dequantize   (code - zero point) * s | code / s

The first two apply if the scale and the zero point are computed from the range of x (chains/range_chain.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...operators.encodings import CodeType, NanCode, RoundingOrder, Scaling
from ..analysis.bounds import Bounded, all_bounds_of, bounded_by, bounds_of
from ..analysis.inference import Facts
from ..analysis.shapes import broadcasts, is_elementwise_of, lines_up, same_shape
from ..analysis.values import (
    CODE_TYPES,
    cast_to,
    constant_scalar,
    does_not_grow,
    is_given_by_caller,
    is_zero,
    only_use,
    producer_of,
    rounded_to_float16,
    skip_identity,
    uncast,
)
from ..edit import Edit, call, constant
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .dynamic import unsupported
from .range_chain import recipe_of
from .range_operator import replace_range_chain

_OLDEST_OPSET = 13
_HALF = 128  # uint8 codes are int8 codes plus 128
_LARGEST_CODE = 1 << 24  # float32 represents all integers up to here


@dataclass
class Chain:
    """The arithmetic of one quantization.

    Attributes:
        x: The float32 tensor that is quantized.
        scale: Its scale, or an inverse scale (Scaling.MULTIPLY); broadcasts to x.
        zero_point: The float32 value that is added; None if none is.
        scaling, rounding_order: As in AffineQuantize.
        clip: The bounds of the codes; None if they are not clipped: integer codes are then the low byte.
        code_type: uint8 or int8 if the codes become integers, else float32.
        output_dtype: code_type, or uint8 if 128 is added to int8 codes.
        last: The result of the chain: codes, or floats if `is_fake`.
        is_fake: Whether the chain dequantizes its codes.
        round: The node that rounds.
    """

    x: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    scaling: Scaling
    rounding_order: RoundingOrder
    clip: tuple[int, int] | None
    code_type: ir.DataType
    output_dtype: ir.DataType
    last: ir.Value
    is_fake: bool
    round: ir.Node

    @property
    def bounds(self) -> tuple[int, int]:
        """The bounds of the codes: those of their type if they are not clipped."""
        return self.clip or ((0, 255) if self.code_type == ir.DataType.UINT8 else (-128, 127))

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes that the operators for chains share."""
        low, high = self.bounds
        return {
            "scaling": int(self.scaling),
            "rounding_order": int(self.rounding_order),
            "code_type": int(self.code_type),
            "output_dtype": int(self.output_dtype),
            "quant_min": low,
            "quant_max": high,
            "clip": int(self.clip is not None),
            "nan_code": int(NanCode.NAN if self.code_type == ir.DataType.FLOAT else NanCode.ZERO),
        }


def _apply_quantize(node: ir.Node, context: Context) -> Edit | None:
    if producer_of(node.outputs[0], "Round") is not node:
        return None
    chain = _chain(node, context.facts)
    if chain is None:
        return None
    try:
        return _replace_whole(chain, context)
    except Unconverted as why:
        if chain.clip is None and chain.code_type != ir.DataType.FLOAT:  # the operator for a range checks each row
            codes = chain.code_type.name.lower()
            raise Unconverted(Reason.CODES_NOT_CLIPPED, codes=codes).then(why) from None
        return _replace_affine(chain, context, why)


def _apply_dequantize(node: ir.Node, context: Context) -> Edit | None:
    """Recognizes (Cast(codes) [- Cast(zero point)]) * scale of codes that no other rule has converted."""
    if node.domain or node.op_type != "Mul":
        return None
    for i in (0, 1):
        real, scale = node.inputs[i], node.inputs[1 - i]
        if real is None or scale is None or context.facts.is_constant(scale) or scale.dtype != ir.DataType.FLOAT:
            continue
        zero: ir.Value | None = None
        inner = skip_identity(real)
        if (sub := producer_of(inner, "Sub")) is not None and only_use(inner) is not None:
            real, zero = sub.inputs[0], sub.inputs[1]
        codes = uncast(real)
        if codes is None or context.facts.is_constant(codes) or same_shape(codes, scale):
            continue
        assert codes.dtype is not None
        zero_codes = None if zero is None else uncast(zero)
        if zero is not None and (zero_codes is None or zero_codes.dtype != codes.dtype):
            continue
        if not broadcasts(scale, codes) or (zero_codes is not None and not same_shape(zero_codes, scale)):
            raise Unconverted(Reason.SCALE_BROADCAST_TO_CODES)
        edit = context.edit("AffineDequantize", node)
        if zero_codes is None:
            zero_codes = edit.insert(constant(np.zeros((), codes.dtype.numpy())), before=node)
        main = call("AffineDequantize", [codes, scale, zero_codes])
        edit.replace(node.outputs[0], edit.insert_main(main, before=node))
        return edit
    return None


QUANTIZE = Rule("decomposed quantization", _OLDEST_OPSET, _apply_quantize, reports_opset=True)
DEQUANTIZE = Rule("decomposed dequantization", _OLDEST_OPSET, _apply_dequantize)


def _chain(node: ir.Node, facts: Facts) -> Chain | None:
    """Returns the quantization that a Round is part of; None if it rounds something else."""
    order, clip, zero = RoundingOrder.NO_ZERO_POINT, None, None
    t = skip_identity(_required(node.inputs[0]))
    bounded = all_bounds_of(t)
    if (clip := _clip(bounded)) is not None:
        order, t = RoundingOrder.ADD_THEN_ROUND, bounded.value
    exact = rounded_to_float16(t)
    t = t if exact is None else skip_identity(exact)
    if (add := producer_of(t, "Add")) is not None and (parts := _quotient_and(add, facts)) is not None:
        order, (t, zero) = RoundingOrder.ADD_THEN_ROUND, parts
    quotient = _quotient(t, facts)
    if quotient is None and (cast := producer_of(t, "Cast")) is not None and cast.inputs[0] is not None:
        quotient = _quotient(skip_identity(cast.inputs[0]), facts)  # x is of another type than float32
    if quotient is None:
        return None
    x, scale, scaling = quotient
    is_clipped_early = clip is not None
    if zero is None:
        order = RoundingOrder.NO_ZERO_POINT if exact is None else RoundingOrder.FLOAT16_QUOTIENT
        # with integer bounds, clipping before rounding equals clipping after it
    elif exact is not None:
        order = RoundingOrder.FLOAT16_SUM
    if same_shape(x, scale) or is_elementwise_of(scale, _skip_neg(x)):
        return None  # the Round of a zero point
    if x.dtype != ir.DataType.FLOAT:
        raise unsupported("x", x.dtype, "expected float32", x)
    last = node.outputs[0]

    if (
        order == RoundingOrder.NO_ZERO_POINT
        and clip is None
        and (use := only_use(last)) is not None
        and use.node.op_type == "Add"
    ):
        other = use.node.inputs[1 - use.idx]
        if other is not None:
            order, zero, last = RoundingOrder.ROUND_THEN_ADD, other, use.node.outputs[0]
    if clip is None and (use := only_use(last)) is not None and use.node.op_type == "Clip" and use.idx == 0:
        if any(map(is_given_by_caller, use.node.inputs[1:])):
            raise Unconverted(Reason.CODE_BOUNDS_GIVEN_BY_CALLER)
        if bounds_of(use.node.outputs[0]) is None:
            raise Unconverted(Reason.CODES_NOT_CLIPPED_TO_INTEGERS)
    if clip is None and (late := bounded_by(last)) is not None:
        last, bounded = late
        if (clip := _clip(bounded)) is None:
            raise Unconverted(Reason.CODES_NOT_CLIPPED_TO_INTEGERS)
    if zero is not None and constant_scalar(zero) is not None and not (does_not_grow(zero, x) or broadcasts(zero, x)):
        raise Unconverted(Reason.ZERO_POINT_BROADCAST_TO_X)

    codes = _integers(last)
    chain = Chain(x, scale, zero, scaling, order, clip, ir.DataType.FLOAT, ir.DataType.FLOAT, last, False, node)
    shifted = _shifted_to_uint8(codes or last) if codes is None or _type_of(codes) == ir.DataType.INT8 else None
    if codes is not None or shifted is not None:
        chain.code_type = ir.DataType.INT8 if shifted is not None else _type_of(_required(codes))
        chain.last = _required(shifted or codes)
        chain.output_dtype = _type_of(chain.last)
        low, high = (0, 255) if chain.code_type == ir.DataType.UINT8 else (-128, 127)
        if clip is not None and (clip[0] < low or clip[1] > high):
            raise Unconverted(Reason.CODES_NOT_CLIPPED, codes=chain.code_type.name.lower())
    elif clip is not None and not bounded.keeps_negative_zero:
        raise Unconverted(Reason.SIGN_OF_ZERO_LOST)
    elif clip is not None and 0 in clip and is_clipped_early != order.adds_first:
        raise Unconverted(Reason.SIGN_OF_ZERO_DEPENDS)
    fake = _fake(chain) if shifted is None else None
    if fake is not None:
        chain.last, chain.is_fake = fake, True
    elif codes is None and shifted is None:
        raise Unconverted(Reason.CODES_STAY_FLOATS)
    return chain


def _skip_neg(value: ir.Value) -> ir.Value:
    """Returns the value that `value` is the negative of, or `value`."""
    node = producer_of(skip_identity(value), "Neg")
    return value if node is None or node.inputs[0] is None else node.inputs[0]


def _required(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise Unconverted(Reason.INPUT_MISSING)
    return value


def _clip(bounded: Bounded) -> tuple[int, int] | None:
    """Returns bounds that are integers, or None."""
    low, high = bounded.least, bounded.most
    if max(-low, high) > _LARGEST_CODE or not (low.is_integer() and high.is_integer() and low <= high):
        return None
    return None if any(bound == 0 and not is_zero(bound) for bound in (low, high)) else (int(low), int(high))


def _quotient_and(add: ir.Node, facts: Facts) -> tuple[ir.Value, ir.Value] | None:
    """Returns the quotient and the zero point of an Add, or None."""
    for i in (0, 1):
        t, zero = add.inputs[i], add.inputs[1 - i]
        if t is not None and zero is not None and _quotient(skip_identity(t), facts) is not None:
            return skip_identity(t), zero
    return None


def _quotient(t: ir.Value, facts: Facts) -> tuple[ir.Value, ir.Value, Scaling] | None:
    """Returns x, the scale and the scaling of a quotient, or None."""
    if (node := producer_of(t, "Div")) is not None and None not in node.inputs:
        x, scale = _required(node.inputs[0]), _required(node.inputs[1])
        return None if facts.is_constant(scale) or constant_scalar(x) is not None else (x, scale, Scaling.DIVIDE)
    if (node := producer_of(t, "Mul")) is None:
        return None
    for i in (1, 0):
        x, factor = _required(node.inputs[1 - i]), _required(node.inputs[i])
        if facts.is_constant(factor):
            return None
        inverted = _inverse_of(skip_identity(factor))
        if inverted is not None and not same_shape(x, factor):
            return x, inverted, Scaling.MULTIPLY_BY_THE_RECIPROCAL
    for i in (1, 0):
        x, factor = _required(node.inputs[1 - i]), _required(node.inputs[i])
        if not same_shape(x, factor) and broadcasts(factor, x):
            return x, factor, Scaling.MULTIPLY
    return None


def _inverse_of(value: ir.Value) -> ir.Value | None:
    """Returns s of Reciprocal(s) and of 1 / s, or None."""
    if (node := producer_of(value, "Reciprocal")) is not None:
        return _required(node.inputs[0])
    node = producer_of(value, "Div")
    is_inverse = node is not None and constant_scalar(node.inputs[0]) == 1 and does_not_grow(*node.inputs)
    return _required(node.inputs[1]) if node is not None and is_inverse else None


def _integers(value: ir.Value) -> ir.Value | None:
    """Returns the 8-bit integers that the only use of `value` casts it to, directly or through int32, or None."""
    use = only_use(value)
    if use is None or use.node.op_type != "Cast":
        return None
    to = cast_to(use.node)
    if to in CODE_TYPES:
        return use.node.outputs[0]
    return _integers(use.node.outputs[0]) if to == ir.DataType.INT32 else None


def _shifted_to_uint8(value: ir.Value) -> ir.Value | None:
    """Returns the uint8 codes Cast(Cast(value to int32) + 128), or None."""
    use = only_use(value)
    if use is None or use.node.op_type != "Cast" or cast_to(use.node) != ir.DataType.INT32:
        return None
    add = only_use(use.node.outputs[0])
    if add is None or add.node.op_type != "Add" or constant_scalar(add.node.inputs[1 - add.idx]) != _HALF:
        return None
    cast = only_use(add.node.outputs[0])
    if cast is None or cast.node.op_type != "Cast" or cast_to(cast.node) != ir.DataType.UINT8:
        return None
    return cast.node.outputs[0] if does_not_grow(add.node.inputs[1 - add.idx], value) else None


def _type_of(codes: ir.Value) -> ir.DataType:
    cast = codes.producer()
    assert cast is not None
    return cast_to(cast)


def _fake(chain: Chain) -> ir.Value | None:
    """Returns the floats that the codes become by the same scale and zero point, if that is their only use, or None."""
    value = chain.last
    if chain.code_type != ir.DataType.FLOAT:
        use = only_use(value)
        if use is None or use.node.op_type != "Cast" or cast_to(use.node) != ir.DataType.FLOAT:
            return None
        value = use.node.outputs[0]
    if chain.zero_point is not None:
        use = only_use(value)
        if use is None or use.node.op_type != "Sub" or use.idx != 0:
            return None
        if not _is_same_number(use.node.inputs[1], chain.zero_point, chain.x):
            return None
        value = use.node.outputs[0]
    use = only_use(value)
    if use is None or use.node.op_type != ("Div" if chain.scaling == Scaling.MULTIPLY else "Mul"):
        return None
    if chain.scaling == Scaling.MULTIPLY and use.idx != 0:
        return None
    factor = use.node.inputs[1 - use.idx]
    return use.node.outputs[0] if factor is not None and skip_identity(factor) is skip_identity(chain.scale) else None


def _is_same_number(value: ir.Value | None, zero: ir.Value, x: ir.Value) -> bool:
    """Returns whether `value` equals the zero point, sign of zero included, and keeps the shape of x."""
    if value is None:
        return False
    number = constant_scalar(value)
    if number is not None and number == constant_scalar(zero):
        return (number != 0 or is_zero(number) == is_zero(constant_scalar(zero))) and does_not_grow(value, x)
    return _root(value) is _root(zero)


def _root(value: ir.Value) -> ir.Value:
    """Returns the integers that a value is a Cast of, or the value that it is a copy of."""
    return uncast(value) or skip_identity(value)


def _replace_whole(chain: Chain, context: Context) -> Edit:
    """Returns the edit of the chain from the range of x on.

    Raises:
        Unconverted: The scale or the zero point is not computed from the range of x.
    """
    zero = None if is_zero(constant_scalar(chain.zero_point)) else chain.zero_point
    recipe = recipe_of(chain.x, chain.scale, zero, *chain.bounds)
    if bool(recipe.inverse_scale) != (chain.scaling == Scaling.MULTIPLY):
        raise Unconverted(Reason.INVERSE_SCALE_DIVIDES)
    if not chain.is_fake and recipe.zero_point_type not in (CodeType.FLOAT32, int(chain.code_type)):
        raise Unconverted(Reason.ZERO_POINT_TYPE)
    for each in (chain.scale, zero):
        if each is not None and not lines_up(each, chain.x, recipe.axis, recipe.keepdims):
            raise Unconverted(Reason.SHAPES_OF_RANGE)
    return replace_range_chain(
        chain.round,
        context,
        recipe,
        chain.attributes,
        x=chain.x,
        scale=chain.scale,
        zero_point=zero,
        last=chain.last,
        is_fake=chain.is_fake,
    )


def _replace_affine(chain: Chain, context: Context, why: Unconverted) -> Edit:
    """Returns the edit of the chain with its scale and zero point as the model computes them.

    Args:
        chain: The chain.
        context: The context of its Round.
        why: Why the range of x is not part of the chain.

    Raises:
        Unconverted: The shapes or types do not fit.
    """
    if not broadcasts(chain.scale, chain.x):
        raise why.then(Unconverted(Reason.SCALE_BROADCAST_TO_X))
    zero = None if is_zero(constant_scalar(chain.zero_point)) else chain.zero_point
    if zero is not None and not (
        same_shape(zero, chain.scale) if constant_scalar(zero) is None else does_not_grow(zero, chain.scale)
    ):
        raise why.then(Unconverted(Reason.ZERO_POINT_SHAPE))
    zero_point = None if zero is None else uncast(zero)
    if zero is not None and chain.is_fake:
        zero_point = zero_point or zero
    elif zero is not None and (
        zero_point is None or zero_point.dtype != chain.output_dtype or chain.output_dtype != chain.code_type
    ):
        raise why.then(Unconverted(Reason.ZERO_POINT_TYPE))
    last = chain.last.producer()
    assert last is not None
    edit = context.edit("AffineFakeQuantize" if chain.is_fake else "AffineQuantize", chain.round)
    if zero_point is None:
        number = _HALF if chain.output_dtype != chain.code_type else 0
        dtype = np.float32 if chain.is_fake else chain.output_dtype.numpy()
        zero_point = edit.insert(constant(np.array(number, dtype)), before=last)
    main = call(edit.operator, [chain.x, chain.scale, zero_point], **chain.attributes)
    edit.replace(chain.last, edit.insert_main(main, before=last))
    return edit
