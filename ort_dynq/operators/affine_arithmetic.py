"""The arithmetic from float32 to codes and back that the affine and the dynamic range operators share.

Exporters write it with Div, Round, Add, Clip and Cast, in several orders. Attributes select the order. Below are the
attributes and the text of function bodies; in C++ it is the class AffineArithmetic.
"""

from __future__ import annotations

from .encodings import CodeType, NanCode, RoundingOrder, Scaling
from .function_text import integer, select
from .spec import Attribute, flag

CODES = (CodeType.UINT8, CodeType.INT8)


def _attributes(code_type: CodeType, code_types: tuple[CodeType, ...], nan_code: NanCode) -> tuple[Attribute, ...]:
    return (
        Attribute("scaling", Scaling.DIVIDE, "How `src` is scaled.", Scaling),
        Attribute("rounding_order", RoundingOrder.ROUND_THEN_ADD, "Where the zero point is added.", RoundingOrder),
        Attribute("code_type", code_type, "The type that codes are cast to. The cast truncates.", CodeType, code_types),
        Attribute("quant_min", -128, "The lowest code: the lower bound of the Clip."),
        Attribute("quant_max", 127, "The highest code: the upper bound of the Clip."),
        flag(
            "clip",
            1,
            "1: codes are clipped. 0: they are not. An integer code is then the low byte of the rounded value, or 0 "
            "beyond int32, as from ONNX Runtime's Cast on x86.",
        ),
        Attribute("nan_code", nan_code, "The code of a NaN. It is 2 if and only if `code_type` is 1.", NanCode),
    )


TO_CODES = (
    *_attributes(CodeType.INT8, CODES, NanCode.ZERO),
    Attribute(
        "output_dtype",
        CodeType.INT8,
        "The type of codes and zero points in inputs and outputs. If it differs from `code_type`, stored values are "
        "shifted by 128: int8 codes can be stored as uint8, which ONNX Runtime multiplies faster.",
        CodeType,
        CODES,
    ),
)
TO_FLOATS = _attributes(CodeType.FLOAT32, (CodeType.FLOAT32, *CODES), NanCode.NAN)


# Text of function bodies. It uses the integers 0 to 2 of function_text.integers.

CHOICES = f"""
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    minus_one = Neg(one)
    minus_infinity = Div(minus_one, zero)
    infinity = Div(one, zero)
    scaling = Constant<value_int: int = @scaling>()
    rounding_order = Constant<value_int: int = @rounding_order>()
    clip = Constant<value_int: int = @clip>()
    nan_code = Constant<value_int: int = @nan_code>()
    quant_min_int = Constant<value_int: int = @quant_min>()
    quant_max_int = Constant<value_int: int = @quant_max>()
    quant_min = Cast<to = 1>(quant_min_int)
    quant_max = Cast<to = 1>(quant_max_int)
    is_unclipped = Equal(clip, {integer(0)})
    lowest = Where(is_unclipped, minus_infinity, quant_min)
    highest = Where(is_unclipped, infinity, quant_max)
    divides = Equal(scaling, {integer(Scaling.DIVIDE)})
    is_inverse = Equal(scaling, {integer(Scaling.MULTIPLY)})
    adds_exactly = Equal(rounding_order, {integer(RoundingOrder.ADD_THEN_ROUND)})
    rounds_sum = Equal(rounding_order, {integer(RoundingOrder.FLOAT16_SUM)})
    adds_first = Or(adds_exactly, rounds_sum)
    rounds_quotient = Equal(rounding_order, {integer(RoundingOrder.FLOAT16_QUOTIENT)})
    is_no_zero_point = Equal(rounding_order, {integer(RoundingOrder.NO_ZERO_POINT)})
    has_no_zero_point = Or(is_no_zero_point, rounds_quotient)
    keeps_nan = Equal(nan_code, {integer(NanCode.NAN)})
    nan_is_quant_min = Equal(nan_code, {integer(NanCode.QUANT_MIN)})
    nan_replacement = Where(nan_is_quant_min, lowest, zero)
"""
# The shift from code_type to output_dtype, int32: 128 if int8 codes are stored as uint8, -128 for the reverse, else 0.
CODE_OFFSET = """
    code_type = Constant<value_int: int = @code_type>()
    output_dtype = Constant<value_int: int = @output_dtype>()
    type_difference = Sub(code_type, output_dtype)
    half = Constant<value_int = 128>()
    offset_int = Mul(type_difference, half)
    offset = Cast<to = 6>(offset_int)
"""


def codes_text(src: str, scale: str, zero_point: str) -> str:
    """Computes ``code``, of code_type. All three arguments name float32 tensors.

    One body serves every chain: where a chain lacks a multiplication or division, the body uses a factor of one, which
    is exact.
    """
    return f"""
    reciprocal = Reciprocal({scale})
    {select("multiplier", "is_inverse", scale, "reciprocal")}
    {select("t_factor", "divides", "one", "multiplier")}
    {select("t_divisor", "divides", scale, "one")}
    t_scaled = Mul({src}, t_factor)
    t_exact = Div(t_scaled, t_divisor)
    {rounded_text("t_exact", "rounds_quotient", "t")}
    t_rounded = Round(t)
    {select("addend", "adds_first", "t", "t_rounded")}
    added_exactly = Add(addend, {zero_point})
    {rounded_text("added_exactly", "rounds_sum", "added")}
    {select("unclipped", "has_no_zero_point", "t_rounded", "added")}
    clipped = Clip(unclipped, lowest, highest)
    rounded_late = Round(clipped)
    {select("rounded", "adds_first", "rounded_late", "clipped")}
    is_nan = IsNaN(rounded)
    without_nan = Where(is_nan, nan_replacement, rounded)
    {select("defined", "keeps_nan", "rounded", "without_nan")}
    code = Cast<to: int = @code_type>(defined)
    """


def rounded_text(value: str, condition: str, name: str) -> str:
    """Computes `name`: float32 `value`, rounded to float16 if `condition` holds."""
    return f"""
    {name}_float16 = Cast<to = 10>({value})
    {name}_float32 = Cast<to = 1>({name}_float16)
    {select(name, condition, f"{name}_float32", value)}
    """


def floats_text(scale: str, zero_point: str, dst: str) -> str:
    """Computes `dst`, float32, from ``code``."""
    return f"""
    real = Cast<to = 1>(code)
    above_zero_point = Sub(real, {zero_point})
    {select("difference", "has_no_zero_point", "real", "above_zero_point")}
    {select("dst_factor", "is_inverse", "one", scale)}
    {select("dst_divisor", "is_inverse", scale, "one")}
    dst_scaled = Mul(difference, dst_factor)
    {dst} = Div(dst_scaled, dst_divisor)
    """


def stored_text(code: str, name: str) -> str:
    """Computes `name`, of output_dtype, from `code`, of code_type."""
    return f"""
    {name}_int = Cast<to = 6>({code})
    {name}_shifted = Add({name}_int, offset)
    {name} = Cast<to: int = @output_dtype>({name}_shifted)
    """
