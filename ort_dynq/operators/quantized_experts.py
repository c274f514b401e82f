"""QuantizedExperts: a mixture of experts with quantized weights, in one operator."""

from __future__ import annotations

from collections.abc import Sequence

from .function_text import cast_like, integers, reshape, select
from .program import parse
from .program_body import body_of, power, saturated
from .quantized_matmul import MAX_JOINED_LENGTH, TERM_RATIO
from .row_program import ROW_PROGRAM, selected
from .shapes import like_src
from .spec import FLOATS, Attribute, Family, Input, Operator, Signature, flag
from .two_term import terms_of

_IDENTITY = "dst = x"
_MIN_WEIGHT = 1e-8

QUANTIZATION = (
    "low = Clip(ReduceMin(x), -inf, 0.0); high = Clip(ReduceMax(x), 0.0, inf); "
    "step = Div(Sub(high, low), 255.0); s = Where(Equal(step, 0.0), 1.0, step); "
    "z = Uint8(Clip(Sub(0.0, Div(low, s)), 0.0, 255.0)); "
    "codes = Add(Round(Div(x, s)), z); scale = s; zero_point = z"
)
"""The formula of DynamicQuantizeLinear, for each row: how activations are quantized."""


def _product(number: str, value: str, to: str, opset: int) -> str:
    """Sets `to` to the product of a value, [rows, K], and the weights of the expert ``expert``, with the bias.

    Codes are [terms, groups, rows, K / groups] and weights [groups, K / groups, N], as doubles: sums are exact, also of
    both codes of an element in one number, which are one term then.
    """
    flat = reshape(opset)
    p = f"p{number}_"
    x = f"q{number}_"
    one_term, two_terms = f"{p}o_", f"{p}t_"
    return f"""
    {p}value_shape = Shape({value})
    {p}depth = Slice({p}value_shape, last, end)
    {select(f"{p}size", "has_groups", "given_size", f"{p}depth", "int64")}
    {p}groups = Div({p}depth, {p}size)
    {x}shape = Concat<axis = 0>(row_count, {p}groups, {p}size)
    {x}x = {flat}({value}, {x}shape)
    {x}row_count = Mul(row_count, {p}groups)
    {x}rows_shape = Concat<axis = 0>({x}row_count, {p}size)
    {x}parameter_shape = Concat<axis = 0>(row_count, {p}groups, n1)
    {p}codes, {p}scales, {p}zero_points = If(has_terms) <
        then_branch = {p}two () => (double[] {two_terms}codes, float[] {two_terms}scales, double[] {two_terms}zps) {{
            {terms_of(f"{x}x", two_terms, opset)}
            {two_terms}first = Unsqueeze({two_terms}code, n0)
            {two_terms}second = Unsqueeze({two_terms}remainder, n0)
            {two_terms}both = Concat<axis = 0>({two_terms}first, {two_terms}second)
            {two_terms}ratio = Constant<value_float = {TERM_RATIO}.0>()
            {two_terms}coarse_code = Mul({two_terms}first, {two_terms}ratio)
            {two_terms}joined = Add({two_terms}coarse_code, {two_terms}second)
            {select(f"{two_terms}words", "joins", f"{two_terms}joined", f"{two_terms}both")}
            {two_terms}codes = Cast<to = 11>({two_terms}words)
            {two_terms}coarse = Mul({two_terms}row_scale, {two_terms}ratio)
            {two_terms}coarse_1 = Unsqueeze({two_terms}coarse, n0)
            {two_terms}fine_1 = Unsqueeze({two_terms}row_scale, n0)
            {two_terms}both_scales = Concat<axis = 0>({two_terms}coarse_1, {two_terms}fine_1)
            {select(f"{two_terms}scales", "joins", f"{two_terms}fine_1", f"{two_terms}both_scales")}
            {two_terms}zps = Cast<to = 11>(zero)
        }},
        else_branch = {p}one () => (double[] {one_term}codes, float[] {one_term}scales, double[] {one_term}zps) {{
            {body_of(parse(QUANTIZATION), one_term, _outputs(one_term), opset, scope=x)}
            {chr(10).join(saturated(f"{one_term}real", f"{one_term}whole", "Cast<to = 11>", "0.0", "255.0"))}
            {one_term}codes = Unsqueeze({one_term}whole, n0)
            {one_term}scales = Unsqueeze({one_term}row_scale, n0)
            {one_term}wide = Cast<to = 11>({one_term}zp)
            {one_term}zps = Unsqueeze({one_term}wide, n0)
        }}
    >
    {p}centered = Sub({p}codes, {p}zero_points)
    {p}by_group = Transpose<perm = [0, 2, 1, 3]>({p}centered)

    {p}bias = Gather<axis = 0>(bias_{number}, expert)
    {p}columns = Shape({p}bias)
    {p}packed_int8 = Gather<axis = 0>(weight_{number}, expert)
    {p}packed = Cast<to = 6>({p}packed_int8)
    {p}quads = Unsqueeze({p}packed, n2)
    {p}shifted = Add({p}quads, byte_base)
    {p}bytes = Mod({p}shifted, byte_base)
    {p}low = Mod({p}bytes, low_base)
    {p}high = Div({p}bytes, low_base)
    {p}halves = Concat<axis = 2>({p}low, {p}high)
    {select(f"{p}parts", "is_4bit", f"{p}halves", f"{p}quads", "int32")}
    {p}by_depth = Transpose<perm = [1, 2, 4, 0, 3]>({p}parts)
    {p}parts_shape = Shape({p}by_depth)
    {p}depth_parts = Slice({p}parts_shape, n0, n3)
    {p}column_parts = Slice({p}parts_shape, n3, end)
    {p}padded_depth = ReduceProd<keepdims = 1>({p}depth_parts)
    {p}padded_columns = ReduceProd<keepdims = 1>({p}column_parts)
    {p}padded_shape = Concat<axis = 0>({p}padded_depth, {p}padded_columns)
    {p}padded = {flat}({p}by_depth, {p}padded_shape)
    {p}ends = Concat<axis = 0>({p}depth, {p}columns)
    {p}matrix = Slice({p}padded, starts, {p}ends)
    {p}groups_shape = Concat<axis = 0>({p}groups, {p}size, {p}columns)
    {p}codes_of_weights = {flat}({p}matrix, {p}groups_shape)
    {p}given_zps = Cast<to = 6>(weight_zero_point_{number})
    {p}low_zps = Mod({p}given_zps, low_base)
    {select(f"{p}all_zps", "is_4bit", f"{p}low_zps", f"{p}given_zps", "int32")}
    {p}zps_shape = Concat<axis = 0>(expert_count_1d, {p}groups, {p}columns)
    {p}expanded_zps = Expand({p}all_zps, {p}zps_shape)
    {p}zps = Gather<axis = 0>({p}expanded_zps, expert)
    {p}zps_of_groups = Unsqueeze({p}zps, n1)
    {p}centered_weights = Sub({p}codes_of_weights, {p}zps_of_groups)
    {p}weights = Cast<to = 11>({p}centered_weights)
    {p}exact = MatMul({p}by_group, {p}weights)
    {p}real = Cast<to = 1>({p}exact)
    {p}given_scales = Gather<axis = 0>(column_scale_{number}, expert)
    {p}wide_scales = Cast<to = 1>({p}given_scales)
    {p}column_scales = Unsqueeze({p}wide_scales, n1)
    {p}row_scales = Transpose<perm = [0, 2, 1, 3]>({p}scales)
    {p}by_column = Mul({p}real, {p}column_scales)
    {p}by_both = Mul({p}by_column, {p}row_scales)
    {p}running = CumSum({p}by_both, i1)
    {p}total = Gather<axis = 1>({p}running, i_last)
    {p}first_term = Gather<axis = 0>({p}total, i0)
    {p}last_term = Gather<axis = 0>({p}total, i_last)
    {p}both_terms = Add({p}first_term, {p}last_term)
    {select(f"{p}sum", "adds_terms", f"{p}both_terms", f"{p}first_term")}
    {to} = Add({p}sum, {p}bias)
    """


def _outputs(prefix: str) -> dict[str, str]:
    return {"codes": f"{prefix}real", "scale": f"{prefix}row_scale", "zero_point": f"{prefix}zp"}


def _body(opset: int, programs: Sequence[str] = (_IDENTITY,)) -> str:
    flat = reshape(opset)
    gated = ", ".join(str(int("tensor1" in program)) for program in programs)
    vectors = "\n".join(f"n{i} = Constant<value_ints = [{i}]>()" for i in range(4))
    return f"""{{
    {integers(2)}
    {vectors}
    i_last = Constant<value_int = -1>()
    last = Constant<value_ints = [-1]>()
    end = Constant<value_ints = [{2**63 - 1}]>()
    before_all = Constant<value_ints = [{-(2**63) + 1}]>()
    starts = Constant<value_ints = [0, 0]>()
    axes = Constant<value_ints = [1]>()
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    minus_one = Neg(one)
    infinity = Div(one, zero)
    minus_infinity = Div(minus_one, zero)
    low_base = Constant<value = int32 {{16}}>()
    byte_base = Constant<value = int32 {{256}}>()
    least = Constant<value_float = {_MIN_WEIGHT}>()
    bits = Constant<value_int: int = @bits>()
    four = Constant<value_int = 4>()
    is_4bit = Equal(bits, four)
    terms = Constant<value_int: int = @terms>()
    two = Constant<value_int = 2>()
    has_terms = Equal(terms, two)
    group_size = Constant<value_int: int = @group_size>()
    has_groups = Greater(group_size, i0)
    given_size = Unsqueeze(group_size, n0)
    longest_joined = Constant<value_int = {MAX_JOINED_LENGTH}>()
    is_long = Greater(group_size, longest_joined)
    is_short = Not(is_long)
    has_short_groups = And(has_groups, is_short)
    joins = And(has_terms, has_short_groups)
    adds = Not(joins)
    adds_terms = And(has_terms, adds)
    normalize = Constant<value_int: int = @normalize>()
    k = Constant<value_int: int = @k>()
    k_1d = Unsqueeze(k, n0)
    branch = Constant<value_int: int = @branch>()
    gated = Constant<value_ints = [{gated}]>()
    is_gated = Gather(gated, branch)
    is_gated_1d = Unsqueeze(is_gated, n0)
    parts = Add(is_gated_1d, n1)

    src_shape = Shape(src)
    hidden = Slice(src_shape, last, end)
    real_src = Cast<to = 1>(src)
    tokens_shape = Concat<axis = 0>(last, hidden)
    tokens = Reshape(real_src, tokens_shape)
    router_shape = Shape(router)
    expert_count_1d = Slice(router_shape, last, end)
    routes_shape = Concat<axis = 0>(last, expert_count_1d)
    real_router = Cast<to = 1>(router)
    given_scores = Reshape(real_router, routes_shape)
    is_no_score = IsNaN(given_scores)
    scores = Where(is_no_score, minus_infinity, given_scores)
    scores_from_end = Slice(scores, last, before_all, axes, last)
    top_scores, from_end = TopK<axis = -1, largest = 1, sorted = 1>(scores_from_end, k_1d)
    last_expert = Sub(expert_count_1d, n1)
    chosen = Sub(last_expert, from_end)
    highest = Slice(top_scores, n0, n1, axes)
    below = Sub(top_scores, highest)
    log2e = Constant<value_float = 1.44269502162933349609375>()
    lowest_power = Constant<value_float = -126.0>()
    powers = Mul(below, log2e)
    y = Clip(powers, lowest_power, zero)
    {chr(10).join(power("y", "e"))}
    weight_shape = Shape(router_weight)
    weight_count = ReduceProd<keepdims = 0>(weight_shape)
    has_weights = Greater(weight_count, i0)
    unscaled = If(has_weights) <
        then_branch = given () => (float[] given_weights) {{
            real_weight = Cast<to = 1>(router_weight)
            weight_rows = Reshape(real_weight, routes_shape)
            given_weights = GatherElements<axis = 1>(weight_rows, chosen)
        }},
        else_branch = computed () => (float[] softmax_weights) {{ softmax_weights = Identity(e) }}
    >
    running = CumSum(unscaled, i1)
    weight_sum = Slice(running, last, end, axes)
    weight_sum_is_zero = Equal(weight_sum, zero)
    inverse_of_sum = Div(one, weight_sum)
    inverse = Where(weight_sum_is_zero, zero, inverse_of_sum)
    has_no_weights = Not(has_weights)
    normalizes = Equal(normalize, i1)
    is_divided = Or(has_no_weights, normalizes)
    factor = Where(is_divided, inverse, one)
    route_weights = Mul(unscaled, factor)
    scores_shape = Shape(scores)
    no_weights = Expand(zero, scores_shape)
    all_weights = ScatterElements<axis = 1>(no_weights, chosen, route_weights)
    by_expert = Transpose<perm = [1, 0]>(all_weights)

    rows_shape = Shape(tokens)
    nothing = Expand(zero, rows_shape)
    expert_count = Squeeze(expert_count_1d)
    always = Equal(expert_count, expert_count)
    results = Loop(expert_count, always, nothing) <
        body = one_expert (int64 expert, bool goes_on, float[] before) => (bool still, float[] after) {{
            still = Identity(goes_on)
            expert_weights = Gather<axis = 0>(by_expert, expert)
            is_chosen = Greater(expert_weights, least)
            places = NonZero(is_chosen)
            numbers = Squeeze(places, n0)
            row_count = Shape(numbers)
            has_rows_1d = Greater(row_count, n0)
            has_rows = Squeeze(has_rows_1d)
            after = If(has_rows) <
                then_branch = some_rows () => (float[] changed) {{
                    src_rows = Gather<axis = 0>(tokens, numbers)
                    {_product("1", "src_rows", "gates", opset)}
                    inner = Div(p1_columns, parts)
                    from_second = Sub(p1_columns, inner)
                    a_x = Slice(gates, n0, inner, axes)
                    operand_1 = Slice(gates, from_second, p1_columns, axes)
                    a_shape = Shape(a_x)
                    {selected(programs, {"dst": "activated"}, opset, "a", operand_count=1, scope="a_")}
                    {_product("2", "activated", "outputs", opset)}
                    row_weights = Gather<axis = 0>(expert_weights, numbers)
                    row_weights_2d = Unsqueeze(row_weights, n1)
                    weighted = Mul(outputs, row_weights_2d)
                    old_rows = Gather<axis = 0>(before, numbers)
                    new_rows = Add(old_rows, weighted)
                    row_numbers = Unsqueeze(numbers, n1)
                    changed = ScatterND(before, row_numbers, new_rows)
                }},
                else_branch = no_rows () => (float[] kept) {{ kept = Identity(before) }}
            >
        }}
    >
    dst_real = {flat}(results, src_shape)
    {cast_like("dst", "dst_real", "src", opset)}
}}"""


def _weights(number: str, depth: str, columns: str) -> tuple[Input, ...]:
    return (
        Input(
            f"weight_{number}",
            ("int8",),
            f"The packed weights of each expert's {'first' if number == '1' else 'second'} product, {depth} x {columns}"
            ": a stack of [QuantizedMatMul](#quantizedmatmul)'s `weight`.",
        ),
        Input(
            f"weight_zero_point_{number}",
            ("int8",),
            f"Their zero points, stored as QuantizedMatMul's: [experts, groups, {columns}], or one element.",
        ),
        Input(f"column_scale_{number}", FLOATS, f"Their scales, [experts, groups, {columns}]."),
        Input(f"bias_{number}", ("float32",), f"[experts, {columns}]; -0.0 leaves the result unchanged."),
    )


_OPERATOR = Operator(
    "QuantizedExperts",
    "Sends each token through the k experts that its router chooses, and adds their results. An expert is a product, "
    "[a program](#programs), and another product. Both products quantize their activation at run time: each token, or "
    "with `group_size` each group of it, has a scale and a zero point; with two `terms`, it is quantized as "
    "TwoTermQuantize does. They have the arithmetic of QuantizedMatMul with the order `COLUMN_FIRST`. The program has "
    "no reductions. If it reads `tensor1`, `x` is the first half of the columns of the first product, and `tensor1` "
    "the second half; otherwise `x` has all columns. Experts that no token chooses are not read. Every step is "
    "float32.",
    "Of each token, the k experts with the highest `router` are chosen; of equal ones, the last. NaN counts as "
    "-infinity.\n"
    "weight = router_weight; with `normalize`, divided by the sum of the k weights; without router_weight, the softmax "
    "of the k scores\n"
    f"Experts with a weight that is not above {_MIN_WEIGHT} are left out.\n"
    "y = program(quantize(src) * weight_1 + bias_1)\n"
    "dst = 0 + weight * (quantize(y) * weight_2 + bias_2) + ..., in the order of the experts",
    (
        Input("src", FLOATS, "Any shape of rank 1 or more, [..., H]: a row for each token."),
        Input("router", FLOATS, "[..., experts]: as many rows as tokens."),
        Input("router_weight", FLOATS, "The shape of `router`, or no elements."),
        *_weights("1", "H", "N"),
        *_weights("2", "I", "H"),
    ),
    (Input("dst", FLOATS, "The shape and the type of `src`.", shape=like_src),),
    (
        *ROW_PROGRAM.attributes[:2],
        Attribute("k", 1, "The number of experts that a token goes through."),
        flag("normalize", 0, "1: the chosen `router_weight` are divided by their sum."),
        Attribute("bits", 8, "The bits of a packed weight.", choices=(8, 4)),
        Attribute(
            "group_size",
            0,
            "The size of the groups of H and of I, a multiple of 16 that divides both; 0: a row is one group.",
        ),
        Attribute("terms", 1, "The codes for each element of an activation.", choices=(1, 2)),
    ),
    tuple(
        Signature((src, src, src, *(("int8", "int8", scale, "float32") * 2)), (src,))
        for src in FLOATS
        for scale in FLOATS
    ),
    _body,
    _body,
)

FAMILY = Family(
    "Mixtures of experts",
    "The feed-forward part of a transformer that has many experts, of which each token uses a few.",
    (_OPERATOR,),
)
