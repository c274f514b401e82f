"""Recognizes the arithmetic of one quantization with primitive operators: Div, Round, Add, Clip, Cast, Mul.

quantize     round(x / s) | round(x * (1 / s)) | round(x * s), + zero point before or after, clip before or after, cast
dequantize   (code - zero point) * s | code / s

The scale and the zero point may be computed in any way; range_scale.py recognizes how.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from ...operators.encodings import NanCode, RoundingOrder, Scaling
from ..analysis.bounds import Bounded, all_bounds_of, bounded_by, bounds_of
from ..analysis.constants import constant_scalar, is_zero
from ..analysis.inference import Facts
from ..analysis.nodes import (
    cast_to,
    only_use,
    operand,
    producer_of,
    rounded_to_float16,
    skip_identity,
    uncast,
)
from ..analysis.shapes import broadcasts, does_not_grow, is_elementwise_of, same_shape
from ..analysis.types import CODE_TYPES, check_type
from ..reasons import Reason, Unconverted

UINT8_OFFSET = 128  # uint8 codes are int8 codes plus 128
_LARGEST_CODE = 1 << 24  # float32 represents all integers up to here


@dataclass(frozen=True)
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
        last: The result of the chain: codes, or floats if it dequantizes.
        dequantizes: Whether the chain dequantizes its codes.
    """

    x: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    scaling: Scaling
    rounding_order: RoundingOrder
    clip: tuple[int, int] | None
    last: ir.Value
    code_type: ir.DataType = ir.DataType.FLOAT
    output_dtype: ir.DataType = ir.DataType.FLOAT
    dequantizes: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """The bounds of the codes; if they are not clipped, the bounds of their type."""
        return self.clip or ((0, 255) if self.code_type == ir.DataType.UINT8 else (-128, 127))

    @property
    def nonzero_zero_point(self) -> ir.Value | None:
        """The zero point; None if it is the constant 0."""
        return None if is_zero(constant_scalar(self.zero_point)) else self.zero_point

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


def chain_of(node: ir.Node, facts: Facts) -> Chain | None:
    """Returns the quantization that a Round is part of; None if it rounds something else.

    Raises:
        Unconverted: It is a quantization that no operator computes.
    """
    before = _before_round(node, facts)
    if before is None:
        return None
    chain, bounded = before
    check_type("x", chain.x, (ir.DataType.FLOAT,))
    is_clipped_early = chain.clip is not None
    if not is_clipped_early:
        chain, bounded = _after_round(chain)
    x, zero = chain.x, chain.zero_point
    if zero is not None and constant_scalar(zero) is not None and not (does_not_grow(zero, x) or broadcasts(zero, x)):
        raise Unconverted(Reason.ZERO_POINT_BROADCAST_TO_X)
    integers, shifted = _codes(chain.last)
    if integers is not None:
        chain = _as_integers(chain, integers, is_shifted=shifted)
    elif chain.clip is not None:
        if not bounded.keeps_negative_zero:
            raise Unconverted(Reason.SIGN_OF_ZERO_LOST)
        if 0 in chain.clip and is_clipped_early != chain.rounding_order.adds_first:
            raise Unconverted(Reason.SIGN_OF_ZERO_DEPENDS)
    floats = None if shifted else _dequantized(chain)
    if floats is not None:
        return replace(chain, last=floats, dequantizes=True)
    if integers is None:
        raise Unconverted(Reason.CODES_STAY_FLOATS)
    return chain


def _before_round(node: ir.Node, facts: Facts) -> tuple[Chain, Bounded] | None:
    """Returns the chain up to a Round, and the bounds of its input; None if it rounds no quotient."""
    rounded = operand(node)
    bounded = all_bounds_of(rounded)
    clip = _clip(bounded)  # with integer bounds, clipping before rounding equals clipping after it
    t = rounded if clip is None else bounded.value
    exact = rounded_to_float16(t)
    t, zero = t if exact is None else skip_identity(exact), None
    if (parts := _quotient_and_zero_point(t, facts)) is not None:
        t, zero = parts
    quotient = _quotient(t, facts)
    if quotient is None and (cast := producer_of(t, "Cast")) is not None and cast.inputs[0] is not None:
        quotient = _quotient(skip_identity(cast.inputs[0]), facts)  # x is of another type than float32
    if quotient is None:
        return None
    x, scale, scaling = quotient
    if same_shape(x, scale) or is_elementwise_of(scale, _skip_neg(x)):
        return None  # the Round of a zero point
    if zero is None:
        order = RoundingOrder.NO_ZERO_POINT if exact is None else RoundingOrder.FLOAT16_QUOTIENT
    else:
        order = RoundingOrder.ADD_THEN_ROUND if exact is None else RoundingOrder.FLOAT16_SUM
    return Chain(x, scale, zero, scaling, order, clip, node.outputs[0]), bounded


def _after_round(chain: Chain) -> tuple[Chain, Bounded]:
    """Continues a chain that is not clipped before its Round: a zero point is added, then the codes are clipped.

    Returns:
        The chain, and the bounds of the codes.
    """
    use = only_use(chain.last)
    if chain.rounding_order == RoundingOrder.NO_ZERO_POINT and use is not None and use.node.op_type == "Add":
        zero, total = use.node.inputs[1 - use.idx], use.node.outputs[0]
        if zero is not None:
            chain = replace(chain, rounding_order=RoundingOrder.ROUND_THEN_ADD, zero_point=zero, last=total)
    use = only_use(chain.last)
    if use is not None and use.node.op_type == "Clip" and use.idx == 0 and bounds_of(use.node.outputs[0]) is None:
        raise Unconverted(Reason.CODES_NOT_CLIPPED_TO_INTEGERS)
    found = bounded_by(chain.last)
    if found is None:
        return chain, Bounded(chain.last)
    last, bounded = found
    if (clip := _clip(bounded)) is None:
        raise Unconverted(Reason.CODES_NOT_CLIPPED_TO_INTEGERS)
    return replace(chain, clip=clip, last=last), bounded


def _as_integers(chain: Chain, integers: ir.Value, *, is_shifted: bool) -> Chain:
    """Continues a chain whose codes are cast to integers, with 128 added if `is_shifted`."""
    output = _type_of(integers)
    codes = ir.DataType.INT8 if is_shifted else output
    low, high = (0, 255) if codes == ir.DataType.UINT8 else (-128, 127)
    if chain.clip is not None and (chain.clip[0] < low or chain.clip[1] > high):
        raise Unconverted(Reason.CODES_NOT_CLIPPED, codes=codes.name.lower())
    return replace(chain, code_type=codes, output_dtype=output, last=integers)


def _codes(value: ir.Value) -> tuple[ir.Value | None, bool]:
    """Returns the integer codes that `value` becomes, or None, and whether 128 is added to them."""
    codes = _integers(value)
    if codes is None or _type_of(codes) == ir.DataType.INT8:
        shifted = _shifted_to_uint8(codes or value)
        if shifted is not None:
            return shifted, True
    return codes, False


def _skip_neg(value: ir.Value) -> ir.Value:
    """Returns the value before a Neg, or `value`."""
    node = producer_of(skip_identity(value), "Neg")
    return value if node is None or node.inputs[0] is None else node.inputs[0]


def _operands(value: ir.Value, op_type: str) -> tuple[ir.Value, ir.Value] | None:
    """Returns both inputs of the binary node that computes `value`; None if it has another type, or one is absent."""
    node = producer_of(value, op_type)
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    return node.inputs[0], node.inputs[1]


def _clip(bounded: Bounded) -> tuple[int, int] | None:
    """Returns bounds that are integers, or None."""
    low, high = bounded.least, bounded.most
    if max(-low, high) > _LARGEST_CODE or not (low.is_integer() and high.is_integer() and low <= high):
        return None
    return None if any(bound == 0 and not is_zero(bound) for bound in (low, high)) else (int(low), int(high))


def _quotient_and_zero_point(total: ir.Value, facts: Facts) -> tuple[ir.Value, ir.Value] | None:
    """Returns the quotient and the zero point whose sum is `total`, or None."""
    terms = _operands(total, "Add")
    for t, zero in (terms, terms[::-1]) if terms is not None else ():
        if _quotient(skip_identity(t), facts) is not None:
            return skip_identity(t), zero
    return None


def _quotient(t: ir.Value, facts: Facts) -> tuple[ir.Value, ir.Value, Scaling] | None:
    """Returns x, the scale and the scaling of a quotient, or None."""
    if (inputs := _operands(t, "Div")) is not None:
        x, scale = inputs
        return None if facts.is_constant(scale) or constant_scalar(x) is not None else (x, scale, Scaling.DIVIDE)
    if (inputs := _operands(t, "Mul")) is None:
        return None
    for x, factor in (inputs, inputs[::-1]):
        if facts.is_constant(factor):
            return None
        inverted = _inverse_of(skip_identity(factor))
        if inverted is not None and not same_shape(x, factor):
            return x, inverted, Scaling.MULTIPLY_BY_THE_RECIPROCAL
    for x, factor in (inputs, inputs[::-1]):
        if not same_shape(x, factor) and broadcasts(factor, x):
            return x, factor, Scaling.MULTIPLY
    return None


def _inverse_of(value: ir.Value) -> ir.Value | None:
    """Returns s of Reciprocal(s) and of 1 / s, or None."""
    if (node := producer_of(value, "Reciprocal")) is not None:
        return node.inputs[0]
    inputs = _operands(value, "Div")
    return inputs[1] if inputs is not None and constant_scalar(inputs[0]) == 1 and does_not_grow(*inputs) else None


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
    if add is None or add.node.op_type != "Add" or constant_scalar(add.node.inputs[1 - add.idx]) != UINT8_OFFSET:
        return None
    cast = only_use(add.node.outputs[0])
    if cast is None or cast.node.op_type != "Cast" or cast_to(cast.node) != ir.DataType.UINT8:
        return None
    return cast.node.outputs[0] if does_not_grow(add.node.inputs[1 - add.idx], value) else None


def _type_of(codes: ir.Value) -> ir.DataType:
    cast = codes.producer()
    assert cast is not None
    return cast_to(cast)


def _dequantized(chain: Chain) -> ir.Value | None:
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
    """Returns the integers before a Cast, or the value before any Identity."""
    return uncast(value) or skip_identity(value)
