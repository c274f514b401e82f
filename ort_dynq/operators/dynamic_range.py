"""Operators that compute scale and zero point from the range of each row, then quantize the row.

A row consists of the elements along the dimensions from `axis` on: axis -1 is per token, 0 is per tensor. With
`block_size`, each block of that many elements along the last dimension is a row.
"""

from __future__ import annotations

from collections.abc import Callable

from .affine_arithmetic import (
    CHOICES,
    CODE_OFFSET,
    CODES,
    TO_CODES,
    TO_FLOATS,
    codes_text,
    floats_text,
    rounded_text,
    stored_text,
)
from .encodings import AddedEpsilon, CodeType, InverseScale, RangeConstants, RangeKind, ZeroPointRule
from .function_text import cast_like, integer, integers, parameter_shape, reshape, rows, select
from .spec import FLOATS, Attribute, Family, Input, Operator, Signature, flag

AXIS = Attribute(
    "axis", -1, "The first of the dimensions that share a scale, -rank to rank - 1: -1 per token, 0 per tensor."
)
BLOCK_SIZE = Attribute(
    "block_size",
    0,
    "If it is not 0, each block of this many elements along the last dimension is a row. It divides that dimension; "
    "`axis` is -1.",
)
_RANGE = (
    AXIS,
    BLOCK_SIZE,
    Attribute("range_kind", RangeKind.ABS_MAX, "The range of a row.", RangeKind),
    Attribute(
        "inverse_scale",
        InverseScale.NONE,
        "1 or 2: the output `scale` is an inverse scale. They require `range_kind` 0.",
        InverseScale,
    ),
    Attribute("added_epsilon", AddedEpsilon.NONE, "How an epsilon is applied.", AddedEpsilon),
    Attribute(
        "zero_point_rule",
        ZeroPointRule.NONE,
        "How the zero point is computed. It is 0 for `range_kind` 0 and 3.",
        ZeroPointRule,
    ),
    flag(
        "zero_point_before_epsilon",
        0,
        "1: the zero point is computed from the scale before `lowest_scale`, `highest_scale` and `scale_of_zero` are "
        "applied to it.",
    ),
    Attribute(
        "zero_point_type",
        CodeType.FLOAT32,
        "The type that the zero point is cast to.",
        CodeType,
        (CodeType.FLOAT32, *CODES),
    ),
    flag("float16_range", 0, "1: the minimum and the maximum, or the largest magnitude, are rounded to float16."),
    flag("float16_scale", 0, "1: the scale is rounded to float16 before its bounds are applied to it."),
)
_SRC = Input("src", FLOATS, "Any shape.")
_CONSTANTS = Input(
    "constants", ("float32",), f"{len(RangeConstants._fields)} elements: [the input constants](#the-input-constants)."
)
SCALE = Input(
    "scale",
    ("float32",),
    "The shape of `src`, with 1 for the dimensions from `axis` on. With blocks: with the number of blocks as the last "
    "dimension.",
)


# Function bodies


def _gather(name: str) -> str:
    """A scalar from the input constants, under its name."""
    return f"{name} = Gather(constants, {integer(RangeConstants._fields.index(name))})"


def _bounded(name: str, where: AddedEpsilon) -> str:
    """Sets ``bounded_{name}`` to ``{name}_raw`` within its bounds; `where` adds the lower one instead."""
    return f"""
    adds_to_{name} = Equal(added_epsilon, {integer(where)})
    {name}_sum = Add({name}_raw, lowest_{name})
    {select(f"{name}_unclipped", f"adds_to_{name}", f"{name}_sum", f"{name}_raw")}
    {select(f"{name}_least", f"adds_to_{name}", "minus_infinity", f"lowest_{name}")}
    bounded_{name} = Clip({name}_unclipped, {name}_least, highest_{name})
    """


def _range_body(to_codes: bool) -> Callable[[int], str]:
    def body(opset: int) -> str:
        # From opset 18 on, axes are an input of ReduceMin and ReduceMax.
        attribute, axes = ("", ", axes") if opset >= 18 else (", axes = [1]", "")
        return f"""{{
    {integers(len(RangeConstants._fields))} {CHOICES} {CODE_OFFSET if to_codes else ""}
    axes = Constant<value_ints = [1]>()
    real_src = Cast<to = 1>(src)
    {rows("real_src", opset)}
    magnitudes = Abs(rows)
    float16_range = Constant<value_int: int = @float16_range>()
    rounds_range = Equal(float16_range, {integer(1)})
    abs_max_exact = ReduceMax<keepdims = 1{attribute}>(magnitudes{axes})
    minimum_exact = ReduceMin<keepdims = 1{attribute}>(rows{axes})
    maximum_exact = ReduceMax<keepdims = 1{attribute}>(rows{axes})
    {rounded_text("abs_max_exact", "rounds_range", "abs_max")}
    {rounded_text("minimum_exact", "rounds_range", "minimum")}
    {rounded_text("maximum_exact", "rounds_range", "maximum")}
    {_gather("lowest_minimum")}
    {_gather("highest_maximum")}
    minimum_with_zero = Clip(minimum, lowest_minimum, zero)
    maximum_with_zero = Clip(maximum, zero, highest_maximum)
    range_kind = Constant<value_int: int = @range_kind>()
    is_abs_max = Equal(range_kind, {integer(RangeKind.ABS_MAX)})
    has_zero = Equal(range_kind, {integer(RangeKind.MIN_MAX_WITH_ZERO)})
    {select("low", "has_zero", "minimum_with_zero", "minimum")}
    {select("high", "has_zero", "maximum_with_zero", "maximum")}
    width = Sub(high, low)
    above_zero = Div(high, highest_maximum)
    below_zero = Div(low, lowest_minimum)
    larger = Max(above_zero, below_zero)
    is_larger_side = Equal(range_kind, {integer(RangeKind.LARGER_SIDE)})
    {select("two_sided", "is_larger_side", "larger", "width")}
    {select("range_raw", "is_abs_max", "abs_max", "two_sided")}
    {_gather("lowest_range")}
    {_gather("highest_range")}
    {_gather("divisor")}
    {_gather("factor")}
    {_gather("lowest_scale")}
    {_gather("highest_scale")}
    {_gather("scale_of_zero")}
    added_epsilon = Constant<value_int: int = @added_epsilon>()
    {_bounded("range", AddedEpsilon.RANGE)}
    inverse_range = Reciprocal(bounded_range)
    inverse_scale = Constant<value_int: int = @inverse_scale>()
    inverts_range = Equal(inverse_scale, {integer(InverseScale.RECIPROCAL)})
    {select("base", "inverts_range", "inverse_range", "bounded_range")}
    divided = Div(base, divisor)
    is_quotient = Equal(inverse_scale, {integer(InverseScale.QUOTIENT)})
    multiplied = Mul(divided, factor)
    quotient = Div(factor, divided)
    {select("scale_exact", "is_quotient", "quotient", "multiplied")}
    float16_scale = Constant<value_int: int = @float16_scale>()
    rounds_scale = Equal(float16_scale, {integer(1)})
    {rounded_text("scale_exact", "rounds_scale", "scale_raw")}
    {_bounded("scale", AddedEpsilon.SCALE)}
    scale_is_zero = Equal(bounded_scale, zero)
    row_scale = Where(scale_is_zero, scale_of_zero, bounded_scale)
    before_epsilon = Constant<value_int: int = @zero_point_before_epsilon>()
    is_before_epsilon = Equal(before_epsilon, {integer(1)})
    {select("zero_point_scale", "is_before_epsilon", "scale_raw", "row_scale")}
    steps = Div(low, zero_point_scale)
    unclipped_1 = Sub(quant_min, steps)
    unrounded_1 = Clip(unclipped_1, quant_min, quant_max)
    round_clipped = Round(unrounded_1)
    rounded_2 = Round(steps)
    unclipped_2 = Sub(quant_min, rounded_2)
    subtract_rounded = Clip(unclipped_2, quant_min, quant_max)
    negated = Neg(low)
    steps_3 = Div(negated, zero_point_scale)
    rounded_3 = Round(steps_3)
    round_negated = Clip(rounded_3, quant_min, quant_max)
    below = Sub(zero, low)
    steps_4 = Div(below, zero_point_scale)
    floor_negated = Floor(steps_4)
    row_shape = Shape(row_scale)
    no_zero_point = Expand(zero, row_shape)
    rule = Constant<value_int: int = @zero_point_rule>()
    is_round_clipped = Equal(rule, {integer(ZeroPointRule.ROUND_CLIPPED)})
    is_subtract_rounded = Equal(rule, {integer(ZeroPointRule.SUBTRACT_ROUNDED)})
    is_round_negated = Equal(rule, {integer(ZeroPointRule.ROUND_NEGATED)})
    is_floor_negated = Equal(rule, {integer(ZeroPointRule.FLOOR_NEGATED)})
    {select("rule_4", "is_floor_negated", "floor_negated", "no_zero_point")}
    {select("rule_3", "is_round_negated", "round_negated", "rule_4")}
    {select("rule_2", "is_subtract_rounded", "subtract_rounded", "rule_3")}
    {select("uncast", "is_round_clipped", "round_clipped", "rule_2")}
    zero_point_type = Constant<value_int: int = @zero_point_type>()
    stays_float = Equal(zero_point_type, {integer(CodeType.FLOAT32)})
    uncast_is_nan = IsNaN(uncast)
    uncast_defined = Where(uncast_is_nan, zero, uncast)
    zero_point_code = Cast<to: int = @zero_point_type>(uncast_defined)
    zero_point_cast = Cast<to = 1>(zero_point_code)
    {select("row_zero_point", "stays_float", "uncast", "zero_point_cast")}
    {codes_text("rows", "row_scale", "row_zero_point")}
    {stored_text("code", "row_dst") if to_codes else floats_text("row_scale", "row_zero_point", "row_dst")}
    shape = Shape(src)
    {"dst" if to_codes else "real_dst"} = {reshape(opset)}(row_dst, shape)
    {"" if to_codes else cast_like("dst", "real_dst", "src", opset)}
    {parameter_shape(has_blocks=True)}
    scale = {reshape(opset)}(row_scale, parameter_shape)
    {_STORED_ZERO_POINT if to_codes else "stored_zero_point = Identity(row_zero_point)"}
    zero_point = {reshape(opset)}(stored_zero_point, parameter_shape)
}}"""

    return body


_STORED_ZERO_POINT = f"""
    zero_point_of_code_type = Cast<to: int = @code_type>(row_zero_point)
    {stored_text("zero_point_of_code_type", "stored_zero_point")}
"""


def _quantize_linear_body(opset: int) -> str:
    return """{
        real_src = Cast<to = 1>(src)
        dst, scale, zero_point = DynamicQuantizeLinear(real_src)
    }"""


def _linear_body(opset: int) -> str:
    return f"""{{
        real_src = Cast<to = 1>(src)
        codes, scale, zero_point = DynamicQuantizeLinear(real_src)
        real_dst = DequantizeLinear(codes, scale, zero_point)
        {cast_like("dst", "real_dst", "src", opset)}
    }}"""


_DOC = """\
The range of each row gives its scale and zero point, with which the row is quantized. A row consists of the elements
along the dimensions from `axis` on, or of `block_size` elements along the last dimension. Every step is float32; a
float16 `dst` is rounded once.

```
range      = see range_kind, which also defines low; see float16_range
range      = clip(range, lowest_range, highest_range)    see added_epsilon
scale      = range / divisor * factor           see inverse_scale for the other forms; see float16_scale
scale      = clip(scale, lowest_scale, highest_scale)    see added_epsilon; scale_of_zero if the result is 0
zero_point = see zero_point_rule; then a cast to zero_point_type
```

The codes follow from `src`, `scale` and `zero_point` as in [AffineQuantize](#affinequantize). If the first element of a
row is NaN, its range is NaN; a NaN elsewhere in a row is ignored.
"""

_LINEAR = """\
low = min(min(src), 0); high = max(max(src), 0)
scale = (high - low) / 255; 1 if high = low
zero_point = round(clip(0 - low / scale, 0, 255))
code = clip(round(src / scale) + zero_point, 0, 255)
"""

FAMILY = Family(
    "Dynamic range",
    _DOC,
    (
        Operator(
            "DynamicRangeQuantize",
            "Computes the range, scale and zero point of each row, and quantizes the row to 8-bit codes.",
            "",
            (
                _SRC,
                _CONSTANTS,
                Input("like", ("int8", "uint8"), "Any tensor of type `output_dtype`; its value is not used."),
            ),
            (
                Input("dst", ("int8", "uint8"), "The shape of `src`."),
                SCALE,
                Input("zero_point", ("int8", "uint8"), "The shape of `scale`."),
            ),
            (*_RANGE, *TO_CODES),
            tuple(
                Signature((src, "float32", code), (code, "float32", code))
                for src in FLOATS
                for code in ("int8", "uint8")
            ),
            _range_body(to_codes=True),
        ),
        Operator(
            "DynamicRangeFakeQuantize",
            "Computes the range, scale and zero point of each row, quantizes the row and dequantizes it, as "
            "[AffineFakeQuantize](#affinefakequantize) does.",
            "",
            (_SRC, _CONSTANTS),
            (
                Input("dst", FLOATS, "The shape and the type of `src`."),
                SCALE,
                Input("zero_point", ("float32",), "The shape of `scale`."),
            ),
            (*_RANGE, *TO_FLOATS),
            tuple(Signature((src, "float32"), (src, "float32", "float32")) for src in FLOATS),
            _range_body(to_codes=False),
        ),
        Operator(
            "DynamicQuantizeLinear",
            "ONNX's DynamicQuantizeLinear: per tensor, to uint8.",
            f"{_LINEAR}dst = code",
            (_SRC,),
            (
                Input("dst", ("uint8",), "The shape of `src`."),
                Input("scale", ("float32",), "No dimensions."),
                Input("zero_point", ("uint8",), "No dimensions."),
            ),
            (),
            tuple(Signature((src,), ("uint8", "float32", "uint8")) for src in FLOATS),
            _quantize_linear_body,
        ),
        Operator(
            "DynamicQuantizeDequantizeLinear",
            "ONNX's DynamicQuantizeLinear, then DequantizeLinear, in one pass: per tensor, through uint8.",
            f"{_LINEAR}dst = (code - zero_point) * scale",
            (_SRC,),
            (Input("dst", FLOATS, "The shape and the type of `src`."),),
            (),
            tuple(Signature((src,), (src,)) for src in FLOATS),
            _linear_body,
        ),
    ),
)
