"""What each operator stands for in standard ONNX: the bodies of the functions that rewritten models call.

In ``onnx.parser``'s syntax, without a head. One body serves every chain that its operator can be: it chooses by the
attributes' values, and multiplies or divides by one where a chain does neither, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable


def standard(op_type: str, attributes: str) -> Callable[[int], str]:
    """The body of an operator that stands for one standard operator with inputs src, scales and zps.

    Zero points are spread out to the scales' shape, which the standard operators insist on.
    """

    def body(opset: int) -> str:
        return f"""{{
            shape = Shape(scales)
            each = Expand(zps, shape)
            dst = {op_type}{_granularity(opset, attributes)}(src, scales, each)
        }}"""

    return body


def quantize_dequantize(opset: int) -> str:
    """QuantizeLinear, then DequantizeLinear."""
    return f"""{{
        shape = Shape(scales)
        each = Expand(zps, shape)
        codes = QuantizeLinear{_granularity(opset)}(src, scales, each)
        dst = DequantizeLinear{_granularity(opset)}(codes, scales, each)
    }}"""


def dynamic_quantize_dequantize(opset: int) -> str:
    """DynamicQuantizeLinear, then DequantizeLinear."""
    return """{
        codes, scale, zero_point = DynamicQuantizeLinear(src)
        dst = DequantizeLinear(codes, scale, zero_point)
    }"""


def reduction(is_magnitude: bool) -> Callable[[int], str]:
    """ReduceMax(Abs(src)), or ReduceMin(src) and ReduceMax(src), of src as a tensor of three dimensions.

    The second of them is the run that is reduced, or that is kept while the others are reduced.
    """

    def body(opset: int) -> str:
        reshape = "Reshape<allowzero = 1>" if opset >= 14 else "Reshape"  # of nothing, too

        def reduce(op_type: str, x: str, name: str) -> str:
            def branch(which: str, axes: str) -> str:
                attribute, of = (", axes = " + axes, x) if opset < 18 else ("", f"{x}, axes_{which}_{name}")
                constant = "" if opset < 18 else f"axes_{which}_{name} = Constant<value_ints = {axes}>()"
                return (
                    f"{which}_{name} () => (float[] {name}_{which}) "
                    f"{{ {constant} {name}_{which} = {op_type}<keepdims = 1{attribute}>({of}) }}"
                )

            return f"""
        {name}_view = If(is_kept) <then_branch = {branch("reduce_others", "[0, 2]")}, else_branch = {branch("gone", "[1]")}>
        {name} = {reshape}({name}_view, dst_shape)"""

        if is_magnitude:
            reductions = "magnitudes = Abs(view)" + reduce("ReduceMax", "magnitudes", "magnitude")
        else:
            reductions = reduce("ReduceMin", "view", "minimum") + reduce("ReduceMax", "view", "maximum")
        return f"""{{
        start = Constant<value_ints = [0]>()
        one = Constant<value_ints = [1]>()
        axis_int = Constant<value_int: int = @axis>()
        count_int = Constant<value_int: int = @count>()
        kept_int = Constant<value_int: int = @reduce_others>()
        keepdims_int = Constant<value_int: int = @keepdims>()
        axis = Unsqueeze(axis_int, start)
        count = Unsqueeze(count_int, start)
        is_kept = Cast<to = 9>(kept_int)
        shape = Shape(src)
        rank = Shape(shape)
        is_from_end = Less(axis, start)
        from_end = Add(axis, rank)
        begin = Where(is_from_end, from_end, axis)
        end = Add(begin, count)
        before = Slice(shape, start, begin)
        run = Slice(shape, begin, end)
        behind = Slice(shape, end, rank)
        before_one = Concat<axis = 0>(before, one)
        run_one = Concat<axis = 0>(run, one)
        behind_one = Concat<axis = 0>(behind, one)
        before_size = ReduceProd<keepdims = 1>(before_one)
        run_size = ReduceProd<keepdims = 1>(run_one)
        behind_size = ReduceProd<keepdims = 1>(behind_one)
        sizes = Concat<axis = 0>(before_size, run_size, behind_size)
        view = {reshape}(src, sizes)
        ones_left = Mul(rank, keepdims_int)
        ones = ConstantOfShape<value = int64[1] {{1}}>(rank)
        ones_of_keepdims = Slice(ones, start, ones_left)
        before_rank = Shape(before)
        run_rank = Shape(run)
        behind_rank = Shape(behind)
        before_gone = Slice(ones_of_keepdims, start, before_rank)
        run_gone = Slice(ones_of_keepdims, start, run_rank)
        behind_gone = Slice(ones_of_keepdims, start, behind_rank)
        dst_shape = If(is_kept) <
            then_branch = kept_shape () => (int64[] shape_kept) {{
                shape_kept = Concat<axis = 0>(before_gone, run, behind_gone)
            }},
            else_branch = gone_shape () => (int64[] shape_gone) {{
                shape_gone = Concat<axis = 0>(before, run_gone, behind)
            }}
        >
        {reductions}
    }}"""

    return body


def _granularity(opset: int, further: str = "") -> str:
    """The attributes of QuantizeLinear and DequantizeLinear, as far as the opset has them."""
    if opset < 13:
        return ""
    return f"<axis: int = @axis{', block_size: int = @block_size' + further if opset >= 21 else ''}>"


_CHOICES = """
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    i0 = Constant<value_int = 0>()
    i1 = Constant<value_int = 1>()
    i2 = Constant<value_int = 2>()
    minus_infinity_of = Neg(one)
    minus_infinity = Div(minus_infinity_of, zero)
    infinity = Div(one, zero)
    quotient = Constant<value_int: int = @scaling>()
    order = Constant<value_int: int = @rounding_order>()
    clips = Constant<value_int: int = @clip>()
    nan = Constant<value_int: int = @nan_code>()
    min_int = Constant<value_int: int = @quant_min>()
    max_int = Constant<value_int: int = @quant_max>()
    min_float = Cast<to = 1>(min_int)
    max_float = Cast<to = 1>(max_int)
    is_unclipped = Equal(clips, i0)
    lowest = Where(is_unclipped, minus_infinity, min_float)
    highest = Where(is_unclipped, infinity, max_float)
    divides = Equal(quotient, i0)
    is_inverse = Equal(quotient, i2)
    adds_first = Equal(order, i1)
    adds_nothing = Equal(order, i2)
    keeps_nan = Equal(nan, i2)
    nan_is_lowest = Equal(nan, i1)
    nan_code = Where(nan_is_lowest, lowest, zero)
"""


def _select(name: str, condition: str, then: str, otherwise: str) -> str:
    """`name`, a float32 tensor, is one of two values. Not by Where, which in ONNX Runtime loses the sign of -0."""

    def branch(which: str, value: str) -> str:
        return f"{which}_{name} () => (float[] {name}_{which}) {{ {name}_{which} = Identity({value}) }}"

    return f"{name} = If({condition}) <then_branch = {branch('then', then)}, else_branch = {branch('else', otherwise)}>"


def _codes(src: str, scale: str, zp: str, cast_to: str) -> str:
    """From floats to `code` (of the type that `cast_to` names), given `scale` and the float32 zero point `zp`."""
    return f"""
    reciprocal = Reciprocal({scale})
    {_select("product", "is_inverse", scale, "reciprocal")}
    {_select("t_factor", "divides", "one", "product")}
    {_select("t_divisor", "divides", scale, "one")}
    t_scaled = Mul({src}, t_factor)
    t = Div(t_scaled, t_divisor)
    t_rounded = Round(t)
    {_select("addend", "adds_first", "t", "t_rounded")}
    added = Add(addend, {zp})
    {_select("unclipped", "adds_nothing", "t_rounded", "added")}
    clipped = Clip(unclipped, lowest, highest)
    rounded_late = Round(clipped)
    {_select("rounded", "adds_first", "rounded_late", "clipped")}
    is_nan = IsNaN(rounded)
    without_nan = Where(is_nan, nan_code, rounded)
    {_select("defined", "keeps_nan", "rounded", "without_nan")}
    code = Cast<to: int = @{cast_to}>(defined)
    """


def _floats(scale: str, zp: str, dst: str) -> str:
    """From `code` back to floats."""
    return f"""
    real = Cast<to = 1>(code)
    above = Sub(real, {zp})
    {_select("difference", "adds_nothing", "real", "above")}
    {_select("y_factor", "is_inverse", "one", scale)}
    {_select("y_divisor", "is_inverse", scale, "one")}
    y_scaled = Mul(difference, y_factor)
    {dst} = Div(y_scaled, y_divisor)
    """


# Codes of output_dtype are those of code_type and `offset`.
_OFFSET = """
    code_type_int = Constant<value_int: int = @code_type>()
    output_dtype_int = Constant<value_int: int = @output_dtype>()
    types_between = Sub(code_type_int, output_dtype_int)
    half = Constant<value_int = 128>()
    offset_int = Mul(types_between, half)
    offset = Cast<to = 6>(offset_int)
"""


def _stored(code: str, name: str) -> str:
    """`name`, of output_dtype, from `code`, of code_type."""
    return f"""
    {name}_int = Cast<to = 6>({code})
    {name}_moved = Add({name}_int, offset)
    {name} = Cast<to: int = @output_dtype>({name}_moved)
    """


def affine_quantize(opset: int) -> str:
    return f"""{{ {_CHOICES} {_OFFSET}
        zp_stored = Cast<to = 6>(zero_point)
        zp_int = Sub(zp_stored, offset)
        zp = Cast<to = 1>(zp_int)
        {_codes("src", "scale", "zp", "code_type")}
        {_stored("code", "dst")}
    }}"""


def affine_fake_quantize(opset: int) -> str:
    return (
        f"{{ {_CHOICES} zp = Cast<to = 1>(zero_point) {_codes('src', 'scale', 'zp', 'code_type')} "
        f"{_floats('scale', 'zp', 'dst')} }}"
    )


def affine_dequantize(opset: int) -> str:
    return """{
        real = Cast<to = 1>(src)
        zp = Cast<to = 1>(zero_point)
        difference = Sub(real, zp)
        dst = Mul(difference, scale)
    }"""


def range_chain(to_codes: bool) -> Callable[[int], str]:
    """The body of a whole chain: `src` flattened to rows, the range of each, its scale and zero point, and codes."""

    def body(opset: int) -> str:
        reduced = "(flat, axes)" if opset >= 18 else "(flat)"
        axes = "" if opset >= 18 else ", axes = [1]"
        reshape = "Reshape<allowzero = 1>" if opset >= 14 else "Reshape"  # of nothing, too
        magnitudes = reduced.replace("flat", "magnitudes")
        return f"""{{ {_CHOICES} {_OFFSET if to_codes else ""}
    i3 = Constant<value_int = 3>()
    i4 = Constant<value_int = 4>()
    i5 = Constant<value_int = 5>()
    i6 = Constant<value_int = 6>()
    i7 = Constant<value_int = 7>()
    i8 = Constant<value_int = 8>()
    axes = Constant<value_ints = [1]>()
    flat = Flatten<axis: int = @axis>(src)
    magnitudes = Abs(flat)
    magnitude = ReduceMax<keepdims = 1{axes}>{magnitudes}
    minimum = ReduceMin<keepdims = 1{axes}>{reduced}
    maximum = ReduceMax<keepdims = 1{axes}>{reduced}
    lowest_minimum = Gather(constants, i0)
    highest_maximum = Gather(constants, i1)
    minimum_zero = Clip(minimum, lowest_minimum, zero)
    maximum_zero = Clip(maximum, zero, highest_maximum)
    range = Constant<value_int: int = @range_kind>()
    is_magnitude = Equal(range, i0)
    has_zero = Equal(range, i2)
    {_select("low", "has_zero", "minimum_zero", "minimum")}
    {_select("high", "has_zero", "maximum_zero", "maximum")}
    width = Sub(high, low)
    above_zero = Div(high, highest_maximum)
    below_zero = Div(low, lowest_minimum)
    larger = Max(above_zero, below_zero)
    is_larger_side = Equal(range, i3)
    {_select("two_sided", "is_larger_side", "larger", "width")}
    {_select("span_raw", "is_magnitude", "magnitude", "two_sided")}
    least_range = Gather(constants, i2)
    most_range = Gather(constants, i3)
    divisor = Gather(constants, i4)
    factor = Gather(constants, i5)
    least_scale = Gather(constants, i6)
    most_scale = Gather(constants, i7)
    scale_of_zero = Gather(constants, i8)
    span = Clip(span_raw, least_range, most_range)
    inverse_span = Reciprocal(span)
    inverse = Constant<value_int: int = @inverse_scale>()
    inverts = Equal(inverse, i1)
    {_select("base", "inverts", "inverse_span", "span")}
    divided = Div(base, divisor)
    before = Mul(divided, factor)
    after = Clip(before, least_scale, most_scale)
    is_zero = Equal(after, zero)
    s = Where(is_zero, scale_of_zero, after)
    early = Constant<value_int: int = @zero_point_before_epsilon>()
    is_early = Equal(early, i1)
    {_select("sz", "is_early", "before", "s")}
    steps = Div(low, sz)
    offset1 = Sub(min_float, steps)
    clipped1 = Clip(offset1, min_float, max_float)
    z1 = Round(clipped1)
    rounded2 = Round(steps)
    offset2 = Sub(min_float, rounded2)
    z2 = Clip(offset2, min_float, max_float)
    negated = Neg(low)
    steps3 = Div(negated, sz)
    rounded3 = Round(steps3)
    z3 = Clip(rounded3, min_float, max_float)
    below = Sub(zero, low)
    steps4 = Div(below, sz)
    z4 = Floor(steps4)
    s_shape = Shape(s)
    none = Expand(zero, s_shape)
    form = Constant<value_int: int = @zero_point_rule>()
    is1 = Equal(form, i1)
    is2 = Equal(form, i2)
    is3 = Equal(form, i3)
    is4 = Equal(form, i4)
    {_select("from4", "is4", "z4", "none")}
    {_select("from3", "is3", "z3", "from4")}
    {_select("from2", "is2", "z2", "from3")}
    {_select("z_float", "is1", "z1", "from2")}
    z_type = Constant<value_int: int = @zero_point_type>()
    z_stays = Equal(z_type, i1)
    z_nan = IsNaN(z_float)
    z_defined = Where(z_nan, zero, z_float)
    z_code = Cast<to: int = @zero_point_type>(z_defined)
    z_real = Cast<to = 1>(z_code)
    {_select("z", "z_stays", "z_float", "z_real")}
    {_codes("flat", "s", "z", "code_type")}
    {_stored("code", "stored") if to_codes else _floats("s", "z", "fake")}
    shape = Shape(src)
    dst = {reshape}({"stored" if to_codes else "fake"}, shape)
    start = Constant<value_ints = [0]>()
    axis_int = Constant<value_int: int = @axis>()
    end = Unsqueeze(axis_int, start)
    lead = Slice(shape, start, end)
    rank = Shape(shape)
    lead_rank = Shape(lead)
    missing = Sub(rank, lead_rank)
    ones = ConstantOfShape<value = int64[1] {{1}}>(missing)
    each = Concat<axis = 0>(lead, ones)
    scale = {reshape}(s, each)
    {"z_of_code = Cast<to: int = @code_type>(z)" + _stored("z_of_code", "z_out") if to_codes else "z_out = Identity(z)"}
    zero_point = {reshape}(z_out, each)
}}"""

    return body


def accumulator_dequantize(opset: int) -> str:
    return f"""{{
        i0 = Constant<value_int = 0>()
        i1 = Constant<value_int = 1>()
        one = Constant<value_float = 1.0>()
        order = Constant<value_int: int = @scale_order>()
        is_scales_first = Equal(order, i0)
        is_row_first = Equal(order, i1)
        zp = Cast<to = 6>(zero_point)
        correction = Mul(zp, column_sum)
        exact = Sub(src, correction)
        real = Cast<to = 1>(exact)
        scales = Mul(scale, column_scale)
        {_select("first_if_column", "is_row_first", "scale", "column_scale")}
        {_select("second_if_column", "is_row_first", "column_scale", "scale")}
        {_select("first", "is_scales_first", "scales", "first_if_column")}
        {_select("second", "is_scales_first", "one", "second_if_column")}
        scaled_once = Mul(real, first)
        scaled = Mul(scaled_once, second)
        dst = Add(scaled, bias)
    }}"""
