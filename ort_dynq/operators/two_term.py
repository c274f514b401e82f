"""TwoTermQuantize: symmetric dynamic quantization to two int8 codes for each element, the second for what is left."""

from __future__ import annotations

from .function_text import parameter_shape, reshape, rows
from .rows import AXIS, BLOCK_SIZE, SCALE
from .shapes import two_terms
from .spec import FLOATS, Family, Input, Operator, Signature


def _body(opset: int) -> str:
    return f"""{{
    zero = Constant<value_float = 0.0>()
    real_src = Cast<to = 1>(src)
    {rows("real_src", opset)}
    {terms_of("rows", "", opset)}
    codes_int8 = Cast<to = 3>(code)
    remainders_int8 = Cast<to = 3>(remainder)
    codes = {reshape(opset)}(codes_int8, flat_shape)
    remainders = {reshape(opset)}(remainders_int8, flat_shape)
    both = Concat<axis = 1>(codes, remainders)
    shape = Shape(src)
    {parameter_shape(has_blocks=True)}
    scale = {reshape(opset)}(row_scale, parameter_shape)
    two = Constant<value_ints = [2]>()
    second = Constant<value_ints = [1]>()
    further_ones = Slice(ones, second, last)
    factors = Concat<axis = 0>(two, further_ones)
    doubled = Mul(row_lengths, factors)
    dst_shape = Concat<axis = 0>(lead, doubled)
    dst = {reshape(opset)}(both, dst_shape)
}}"""


def terms_of(rows: str, prefix: str, opset: int) -> str:
    """Sets ``code``, ``remainder`` and ``row_scale``, with a prefix, to those of rows along the last dimension.

    The body must define ``zero``, the float32 number 0.
    """
    # From opset 18 on, axes are an input of ReduceMax.
    attribute, axes = ("", f", {prefix}row_axis") if opset >= 18 else (", axes = [-1]", "")
    p = prefix
    return f"""{p}row_axis = Constant<value_ints = [-1]>()
    {p}highest = Constant<value_float = 127.0>()
    {p}lowest = Constant<value_float = -127.0>()
    {p}fine_steps = Constant<value_float = 254.0>()
    {p}is_nan = IsNaN({rows})
    {p}numbers = Where({p}is_nan, zero, {rows})
    {p}magnitudes = Abs({p}numbers)
    {p}largest = ReduceMax<keepdims = 1{attribute}>({p}magnitudes{axes})
    {p}abs_max = Max({p}largest, zero)
    {p}inverse = Div({p}highest, {p}abs_max)
    {p}scaled = Mul({p}numbers, {p}inverse)
    {p}is_undefined = IsNaN({p}scaled)
    {p}t = Where({p}is_undefined, zero, {p}scaled)
    {p}rounded = Round({p}t)
    {p}code = Clip({p}rounded, {p}lowest, {p}highest)
    {p}rest = Sub({p}t, {p}code)
    {p}fine_rest = Mul({p}rest, {p}fine_steps)
    {p}rounded_rest = Round({p}fine_rest)
    {p}remainder = Clip({p}rounded_rest, {p}lowest, {p}highest)
    {p}coarse_step = Div({p}abs_max, {p}highest)
    {p}fine_step = Div({p}coarse_step, {p}fine_steps)
    {p}nan_count = Cast<to = 1>({p}is_nan)
    {p}any_count = ReduceMax<keepdims = 1{attribute}>({p}nan_count{axes})
    {p}any_nan = Greater({p}any_count, zero)
    {p}nan = Constant<value_float = nan>()
    {p}row_scale = Where({p}any_nan, {p}nan, {p}fine_step)"""


FAMILY = Family(
    "Two terms",
    "Quantization to 8 bits keeps an error of up to half a step. `TwoTermQuantize` quantizes this error, too, so that "
    "two integer products together are nearly as exact as a float product. A row consists of the elements along the "
    "dimensions from `axis` on, or of `block_size` elements along the last dimension.",
    (
        Operator(
            "TwoTermQuantize",
            "Quantizes floats to int8 codes, and what the codes leave to further int8 codes. Every step is float32. A "
            "NaN in `src` has codes of 0, and the scale of its row is NaN.",
            "abs_max = max(abs(src))\n"
            "t = src * (127 / abs_max); 0 if that is NaN\n"
            "code = clip(round(t), -127, 127)\n"
            "remainder = clip(round((t - code) * 254), -127, 127)\n"
            "scale = abs_max / 127 / 254; NaN if src has a NaN\n"
            "src = scale * (254 * code + remainder), nearly",
            (Input("src", FLOATS, "At least one dimension."),),
            (
                Input(
                    "dst",
                    ("int8",),
                    "The shape of `src`, with twice the length along `axis`: along the dimensions from `axis` on, all "
                    "codes, then all remainders. With blocks, too: `[..., K]` becomes `[..., 2 * K]`, K codes and then "
                    "K remainders.",
                    shape=two_terms,
                ),
                SCALE,
            ),
            (AXIS, BLOCK_SIZE),
            tuple(Signature((src,), ("int8", "float32")) for src in FLOATS),
            _body,
        ),
    ),
)
