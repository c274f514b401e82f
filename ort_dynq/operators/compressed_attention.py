"""CompressedAttention: attention over keys and values that are stored as codes of 8 or 4 bits.

More than 450 lines: one formula. Its parts share the names of its values.
"""

from __future__ import annotations

from .function_text import cast_like, largest, reshape, select
from .program_body import power
from .shapes import attention
from .spec import Family, Input, Operator, Signature, flag
from .word_text import BLOCK, word_constants, words

_POWER_UNIT = 2.0**23
_LOWEST = 126  # powers of 2 below 2^-126 are 0
CODE_TYPES = ("uint8", "int8", "uint4", "int4")
_FLOAT_TYPES = ("float32", "float16", "bfloat16")
_OPERAND_TYPES = (*CODE_TYPES, *_FLOAT_TYPES)


def _operand(name: str, size: str, opset: int) -> str:
    """Sets ``{name}_factors`` [B, K, T, groups, size], floats, and ``{name}_scales`` [B or 1, K or 1, groups, T].

    The body must define ``{name}_rows`` [B, K, T, size], and ``{name}_real_scale`` and ``{name}_real_zero_point``,
    with token groups and groups as their last dimensions.
    """
    flat = reshape(opset)
    return f"""{name}_scale_shape = Shape({name}_real_scale)
    {name}_groups = Slice({name}_scale_shape, n3, end)
    {name}_group_size = Div({size}, {name}_groups)
    {name}_shape = Concat<axis = 0>(key_lead, key_count, {name}_groups, {name}_group_size)
    {name}_grouped = {flat}({name}_rows, {name}_shape)
    {words(name, f"{name}_grouped", opset)}
    {_of_tokens(f"{name}_real_zero_point", f"{name}_whole_zero_point", opset)}
    {name}_zero_points = Unsqueeze({name}_whole_zero_point, n4)
    {name}_codes = Sub({name}_grouped, {name}_zero_points)
    {name}_float_flag = Constant<value_int: int = @float_{name}>()
    {name}_is_float = Cast<to = 9>({name}_float_flag)
    {name}_factors = Where({name}_is_float, {name}_words, {name}_codes)
    {name}_word_scale = Squeeze({name}_step, n4)
    {_of_tokens(f"{name}_real_scale", f"{name}_whole_scale", opset)}
    {name}_scale_chosen = Where({name}_is_float, {name}_word_scale, {name}_whole_scale)
    {name}_scales = Transpose<perm = [0, 1, 3, 2]>({name}_scale_chosen)"""


def _repeated(value: str, to: str, axis: int, times: str, opset: int) -> str:
    """Sets `to` to a value of four dimensions with each element along an axis, 2 or 3, repeated."""
    expansion = ["n1"] * 5
    expansion[axis + 1] = times
    return f"""{to}_5d = Unsqueeze({value}, n{axis + 1})
    {to}_expansion = Concat<axis = 0>({", ".join(expansion)})
    {to}_expanded = Expand({to}_5d, {to}_expansion)
    {to}_shape = Shape({value})
    {to}_lead = Slice({to}_shape, n0, n{axis})
    {to}_rest = Slice({to}_shape, n{axis + 1}, end)
    {to}_target = Concat<axis = 0>({to}_lead, last, {to}_rest)
    {to} = {reshape(opset)}({to}_expanded, {to}_target)"""


def _of_tokens(value: str, to: str, opset: int) -> str:
    """Sets `to` to parameters [.., token groups, groups], repeated for the tokens: [.., T, groups]."""
    return f"""{to}_given_shape = Shape({value})
    {to}_tokens = Slice({to}_given_shape, n2, n3)
    {to}_divisor = Max({to}_tokens, n1)
    {to}_times = Div(key_count, {to}_divisor)
    {_repeated(value, to, 2, f"{to}_times", opset)}"""


def _scores_of_groups(opset: int) -> str:
    """Sets ``scores_of_groups_all``: words of the query. Their sums are multiplied by the scales of each group."""
    flat = reshape(opset)
    return f"""queries_shape = Concat<axis = 0>(key_lead, row_count, key_groups, key_group_size)
    query_grouped = {flat}(query_rows, queries_shape)
    query_by_group = Transpose<perm = [0, 1, 3, 2, 4]>(query_grouped)
    {words("query", "query_by_group", opset)}
    query_factors = Cast<to = 11>(query_words)
    key_columns_real = Transpose<perm = [0, 1, 3, 4, 2]>(key_factors)
    key_columns = Cast<to = 11>(key_columns_real)
    exact_scores = MatMul(query_factors, key_columns)
    real_scores = Cast<to = 1>(exact_scores)
    scores_by_step = Mul(real_scores, query_step)
    key_scale_rows = Unsqueeze(key_scales, n3)
    scores_of_groups = Mul(scores_by_step, key_scale_rows)
    group_axis = Constant<value = int32 {{2}}>()
    cumulated = CumSum(scores_of_groups, group_axis)
    cumulated_all = Slice(cumulated, last, end, n2)
    {_of_tokens("key_real_offset", "key_whole_offset", opset)}
    key_used_offset = Where(key_is_float, zero, key_whole_offset)
    key_offset_columns = Transpose<perm = [0, 1, 3, 2]>(key_used_offset)
    key_offset_rows = Unsqueeze(key_offset_columns, n3)
    sums_of_words = ReduceSum<keepdims = 1>(query_factors, last)
    real_sums_of_words = Cast<to = 1>(sums_of_words)
    sums_by_step = Mul(real_sums_of_words, query_step)
    sums_and_offsets = Mul(sums_by_step, key_offset_rows)
    offset_is_0 = Equal(key_offset_rows, zero)
    offsets_of_groups = Where(offset_is_0, zero, sums_and_offsets)
    cumulated_offsets = CumSum(offsets_of_groups, group_axis)
    cumulated_offsets_all = Slice(cumulated_offsets, last, end, n2)
    with_offsets = Add(cumulated_all, cumulated_offsets_all)
    scores_of_groups_all = {flat}(with_offsets, scores_shape)"""


def _scores_of_channels(opset: int) -> str:
    """Sets ``scores_of_channels``: words of the query times the scales of each token group, [B, K, groups, rows, D]."""
    flat = reshape(opset)
    return f"""rows_shape = Concat<axis = 0>(key_lead, n1, row_count, query_size)
    rows_of_query = {flat}(query_rows, rows_shape)
    {_repeated("key_real_scale", "channel_scale", 3, "key_group_size", opset)}
    scale_rows = Unsqueeze(channel_scale, n3)
    scaled_query = Mul(rows_of_query, scale_rows)
    {words("scaled", "scaled_query", opset)}
    scaled_factors = Cast<to = 11>(scaled_words)
    key_channel_offset = Expand(key_real_offset, key_scale_shape)
    {_repeated("key_channel_offset", "channel_offset", 3, "key_group_size", opset)}
    offset_rows = Unsqueeze(channel_offset, n3)
    shifts = Mul(rows_of_query, offset_rows)
    {words("shift", "shifts", opset)}
    shift_factors = Cast<to = 11>(shift_words)
    shift_sums = ReduceSum<keepdims = 1>(shift_factors, last)
    shift_sums_real = Cast<to = 1>(shift_sums)
    offsets_of_blocks = Mul(shift_sums_real, shift_step)
    token_groups = Slice(key_scale_shape, n2, n3)
    token_divisor = Max(token_groups, n1)
    tokens_of_group = Div(key_count, token_divisor)
    blocks_shape = Concat<axis = 0>(key_lead, token_groups, tokens_of_group, query_size)
    key_blocks = {flat}(key_factors, blocks_shape)
    block_columns_real = Transpose<perm = [0, 1, 2, 4, 3]>(key_blocks)
    block_columns = Cast<to = 11>(block_columns_real)
    exact_of_blocks = MatMul(scaled_factors, block_columns)
    real_of_blocks = Cast<to = 1>(exact_of_blocks)
    products_of_blocks = Mul(real_of_blocks, scaled_step)
    scores_of_blocks = Add(products_of_blocks, offsets_of_blocks)
    scores_by_row = Transpose<perm = [0, 1, 3, 2, 4]>(scores_of_blocks)
    scores_of_channels = {flat}(scores_by_row, scores_shape)"""


def _value_factors(opset: int) -> str:
    """Sets what the values and the sums of their products are multiplied by.

    ``weights`` and ``offset_weights`` [B, K, groups, rows, T] are powers times scales and offsets, which have the shape
    [1, 1, 1, 1] in ``sum_scales`` and ``sum_offsets`` [.., token groups, E]; or powers, if those have all of them.
    ``value_parts`` is [B, K, groups, T, elements of a group].
    """
    flat = reshape(opset)
    return f"""value_channel_flag = Constant<value_int: int = @scale_result>()
    value_is_of_channels = Cast<to = 9>(value_channel_flag)
    weights, offset_weights, value_parts, sum_scales, sum_offsets = If(value_is_of_channels) <
        then_branch = value_of_channels () =>
            (float[] powers_1, float[] powers_2, float[] values_1, float[] scales_1, float[] offsets_1) {{
            powers_1 = Identity(powers)
            powers_2 = Identity(powers)
            values_shape = Concat<axis = 0>(key_lead, n1, key_count, value_size)
            values_1 = {flat}(value_factors, values_shape)
            {_repeated("value_real_scale", "scales_1", 3, "value_group_size", opset)}
            value_whole_offset = Expand(value_real_offset, value_scale_shape)
            {_repeated("value_whole_offset", "offsets_1", 3, "value_group_size", opset)}
        }},
        else_branch = value_of_groups () =>
            (float[] weights_0, float[] weights_1, float[] values_0, float[] scales_0, float[] offsets_0) {{
            value_scale_rows = Unsqueeze(value_scales, n3)
            weights_0 = Mul(powers, value_scale_rows)
            {_of_tokens("value_real_offset", "value_token_offset", opset)}
            value_used_offset = Where(value_is_float, zero, value_token_offset)
            value_offset_columns = Transpose<perm = [0, 1, 3, 2]>(value_used_offset)
            value_offset_rows = Unsqueeze(value_offset_columns, n3)
            some_groups = Mul(powers, value_offset_rows)
            weights_shape = Shape(weights_0)
            weights_1 = Expand(some_groups, weights_shape)
            values_0 = Transpose<perm = [0, 1, 3, 2, 4]>(value_factors)
            one_4d = Constant<value_ints = [1, 1, 1, 1]>()
            scales_0 = Expand(one, one_4d)
            offsets_0 = Expand(one, one_4d)
        }}
    >
    weight_groups_shape = Shape(weights)
    weight_groups = Slice(weight_groups_shape, n2, n3)
    value_part_shape = Shape(value_parts)
    value_part_size = Slice(value_part_shape, n4, end)
    sum_scales_shape = Shape(sum_scales)
    value_token_groups = Slice(sum_scales_shape, n2, n3)
    value_tokens = Div(key_count, value_token_groups)"""


def _words_of_blocks(name: str, weights: str, opset: int) -> str:
    """Sets ``{name}_factors`` [B, K, groups, blocks, rows, block], doubles, and ``{name}_steps_by_block``."""
    flat = reshape(opset)
    return f"""{name}_by_part = {flat}({weights}, parts_of_rows_shape)
    {name}_padded = Pad({name}_by_part, pads_of_weights, zero)
    {name}_of_rows = {flat}({name}_padded, blocks_of_rows_shape)
    {name}_by_block = Transpose<perm = [0, 1, 2, 4, 3, 5]>({name}_of_rows)
    {name}_merged = {flat}({name}_by_block, merged_shape)
    {words(name, f"{name}_merged", opset)}
    {name}_apart = {flat}({name}_words, words_shape)
    {name}_factors = Cast<to = 11>({name}_apart)
    {name}_steps_by_block = {flat}({name}_step, steps_shape)"""


def _sums_of_blocks(opset: int) -> str:
    """Sets ``sums_of_blocks``: of products of words of the weights with the values, of all blocks, in their order."""
    flat = reshape(opset)
    return f"""most_of_block = Constant<value_ints = [{BLOCK}]>()
    block = Min(most_of_block, value_tokens)
    before_block = Sub(block, n1)
    most_tokens = Add(value_tokens, before_block)
    blocks_of_part = Div(most_tokens, block)
    blocks = Mul(blocks_of_part, value_token_groups)
    tokens_of_blocks = Mul(blocks_of_part, block)
    padding = Sub(tokens_of_blocks, value_tokens)
    one_behind_6d = Constant<value = int64[12] {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}>()
    pads_of_weights = Mul(one_behind_6d, padding)
    parts_of_rows_shape = Concat<axis = 0>(key_lead, weight_groups, row_count, value_token_groups, value_tokens)
    blocks_of_rows_shape = Concat<axis = 0>(key_lead, weight_groups, row_count, blocks, block)
    rows_and_blocks = Mul(row_count, blocks)
    merged_shape = Concat<axis = 0>(key_lead, weight_groups, rows_and_blocks, block)
    words_shape = Concat<axis = 0>(key_lead, weight_groups, blocks, row_count, block)
    steps_shape = Concat<axis = 0>(key_lead, weight_groups, blocks, row_count, n1)
    {_words_of_blocks("weight", "weights", opset)}
    {_words_of_blocks("offset", "offset_weights", opset)}
    parts_shape = Concat<axis = 0>(key_lead, weight_groups, value_token_groups, value_tokens, value_part_size)
    values_of_parts = {flat}(value_parts, parts_shape)
    one_below_6d = Constant<value = int64[12] {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}}>()
    pads_of_values = Mul(one_below_6d, padding)
    padded_values = Pad(values_of_parts, pads_of_values, zero)
    value_blocks_shape = Concat<axis = 0>(key_lead, weight_groups, blocks, block, value_part_size)
    value_blocks = {flat}(padded_values, value_blocks_shape)
    value_columns = Cast<to = 11>(value_blocks)
    axes_of_blocks = Constant<value_ints = [2, 4]>()
    {_repeated("sum_scales", "scales_by_block", 2, "blocks_of_part", opset)}
    block_scales = Unsqueeze(scales_by_block, axes_of_blocks)
    {_repeated("sum_offsets", "offsets_by_block", 2, "blocks_of_part", opset)}
    block_offsets = Unsqueeze(offsets_by_block, axes_of_blocks)
    exact_result = MatMul(weight_factors, value_columns)
    real_result = Cast<to = 1>(exact_result)
    result_by_step = Mul(real_result, weight_steps_by_block)
    scaled_result = Mul(result_by_step, block_scales)
    block_axis = Constant<value = int32 {{3}}>()
    cumulated_blocks = CumSum(scaled_result, block_axis)
    last_block = Slice(cumulated_blocks, last, end, n3)
    exact_offsets = ReduceSum<keepdims = 1>(offset_factors, last)
    real_offsets = Cast<to = 1>(exact_offsets)
    offsets_by_step = Mul(real_offsets, offset_steps_by_block)
    scaled_offsets = Mul(offsets_by_step, block_offsets)
    cumulated_block_offsets = CumSum(scaled_offsets, block_axis)
    last_offsets = Slice(cumulated_block_offsets, last, end, n3)
    all_blocks = Add(last_block, last_offsets)
    sums_shape = Concat<axis = 0>(key_lead, weight_groups, row_count, value_part_size)
    sums_of_blocks = {flat}(all_blocks, sums_shape)"""


def _by_row(name: str, value: str) -> str:
    """Sets `name` to a value as float32, with the last dimensions swapped if the keys are transposed."""
    return f"""{name}_given = Cast<to = 1>({value})
    {name}_swapped = Transpose<perm = [0, 1, 3, 2]>({name}_given)
    {select(name, "is_transposed", f"{name}_swapped", f"{name}_given")}"""


def _result(opset: int) -> str:
    """Sets ``dst_real``. Empty tensors have a branch: no Reshape takes a dimension of 0 before opset 14."""
    return f"""all_sizes = Concat<axis = 0>(dst_shape, key_lead, key_count)
    least_size = ReduceMin<keepdims = 0>(all_sizes)
    has_elements = Cast<to = 9>(least_size)
    dst_real = If(has_elements) <
        then_branch = filled () => (float[] dst_computed) {{ {_filled_result("dst_computed", opset)} }},
        else_branch = without_elements () => (float[] dst_of_zeros) {{ dst_of_zeros = Expand(zero, dst_shape) }}
    >"""


def _filled_result(result: str, opset: int) -> str:
    """Sets `result` to the result as float32."""
    flat = reshape(opset)
    return f"""{_operand("key", "query_size", opset)}
    {_operand("value", "value_size", opset)}

    heads = Slice(query_shape, n1, n2)
    key_heads = Slice(value_shape_whole, n1, n2)
    least_heads = Max(key_heads, n1)
    repeats = Div(heads, least_heads)
    length = Slice(query_shape, n2, n3)
    row_count = Mul(repeats, length)
    scores_shape = Concat<axis = 0>(query_lead, key_count)
    channel_flag = Constant<value_int: int = @scale_query>()
    is_of_channels = Cast<to = 9>(channel_flag)
    all_scores = If(is_of_channels) <
        then_branch = of_channels () => (float[] scores_of_channels) {{ {_scores_of_channels(opset)} }},
        else_branch = of_groups () => (float[] scores_of_groups_all) {{ {_scores_of_groups(opset)} }}
    >
    one_element = Constant<value_ints = [1]>()
    factor_1d = Reshape(scale, one_element)
    scaled = Mul(all_scores, factor_1d)
    scores_4d = Add(scaled, bias)
    scores = Unsqueeze(scores_4d, n0)
    score_is_nan = IsNaN(scores)
    comparable = Where(score_is_nan, minus_infinity, scores)
    {largest("peak", "comparable", "minus_infinity", opset)}
    below = Sub(scores, peak)
    below_as_power = Mul(below, log2e)
    lowest = Constant<value_float = -{_LOWEST}.0>()
    y = Clip(below_as_power, lowest, zero)
    {chr(10).join(power("y", "power_or_least"))}
    is_seen = Greater(y, lowest)
    seen = Cast<to = 1>(is_seen)
    power = Mul(power_or_least, seen)
    unit = Constant<value_float = {_POWER_UNIT}>()
    power_units = Mul(power, unit)
    power_code = Round(power_units)
    power_wide = Cast<to = 11>(power_code)
    power_sum = ReduceSum<keepdims = 1>(power_wide, last)
    power_sum_real = Cast<to = 1>(power_sum)
    part = Constant<value_float = {1 / _POWER_UNIT!r}>()
    divisor = Mul(power_sum_real, part)
    inverse_of_rows = Div(one, divisor)
    inverse_shape = Concat<axis = 0>(key_lead, n1, row_count, n1)
    inverse = {flat}(inverse_of_rows, inverse_shape)
    powers_shape = Concat<axis = 0>(key_lead, n1, row_count, key_count)
    powers = {flat}(power, powers_shape)
    {_value_factors(opset)}
    {_sums_of_blocks(opset)}
    result = Mul(sums_of_blocks, inverse)
    by_row = Transpose<perm = [0, 1, 3, 2, 4]>(result)
    {result} = {flat}(by_row, dst_shape)"""


def _body(opset: int) -> str:
    vectors = "\n".join(f"n{i} = Constant<value_ints = [{i}]>()" for i in range(5))
    return f"""{{
    {vectors}
    {word_constants()}
    minus_one = Neg(one)
    minus_infinity = Div(minus_one, zero)
    log2e = Constant<value_float = 1.44269502162933349609375>()
    transposed_flag = Constant<value_int: int = @transposed_key>()
    is_transposed = Cast<to = 9>(transposed_flag)
    {_by_row("key_rows", "key")}
    {_by_row("key_real_scale", "key_scale")}
    {_by_row("key_real_zero_point", "key_zero_point")}
    value_rows = Cast<to = 1>(value)
    value_real_scale = Cast<to = 1>(value_scale)
    value_real_zero_point = Cast<to = 1>(value_zero_point)
    {_by_row("key_real_offset", "key_offset")}
    value_real_offset = Cast<to = 1>(value_offset)
    bias_shape = Shape(bias)
    bias_rows = Slice(bias_shape, n2, n3)
    shape_of_rows = Concat<axis = 0>(n1, n1, bias_rows, n1)
    query_given = Cast<to = 1>(query)
    query_rows = Expand(query_given, shape_of_rows)
    query_shape = Shape(query_rows)
    query_lead = Slice(query_shape, n0, n3)
    query_size = Slice(query_shape, n3, end)
    value_shape_whole = Shape(value_rows)
    value_size = Slice(value_shape_whole, n3, end)
    key_lead = Slice(value_shape_whole, n0, n2)
    key_count = Slice(value_shape_whole, n2, n3)
    dst_shape = Concat<axis = 0>(query_lead, value_size)
    {_result(opset)}
    {cast_like("dst", "dst_real", "query", opset)}
}}"""


_OPERATOR = Operator(
    "CompressedAttention",
    "softmax(query * key^T * scale + bias) * value, where key, value or both are codes with scales of groups.",
    "For each row i of query, j of key and value, group g along the head, and column c of value in group g:\n"
    "words(x) = round(x * (1 / step(x))), where step(x) = max(2^-126, the largest |x| / 32512)\n"
    "exact_g = sum over d in g of words(query[i, g])[d] * (key[j, d] - key_zero_point[j, g])\n"
    "score = (sum over g, in order, of float32(exact_g) * step(query[i, g]) * key_scale[j, g])\n"
    "    + (sum over g, in order, of float32(sum of words(query[i, g])) * step(query[i, g]) * key_offset[j, g],\n"
    "        0 if key_offset[j, g] is 0)\n"
    "    or, if scale_query, with z[d] = query[i, d] * key_scale[j, d] and o[d] = query[i, d] * key_offset[j, d]:\n"
    "    float32(sum over d of words(z)[d] * (key[j, d] - key_zero_point[j, d])) * step(z)\n"
    "    + float32(sum of words(o)) * step(o)\n"
    "s_j = score * scale + bias[i, j]\n"
    "y_j = max((s_j - max over j of s_j) * log2(e), -126); power_j = 0 if y_j = -126, else P(r) * 2^n, where\n"
    "    n = round(y_j), r = y_j - n,\n"
    "    and P is the polynomial of Sigmoid in programs, for 2^r\n"
    "w_j = power_j * value_scale[j, g]; w_b are those of keys j in block b, from 256 * b to 256 * b + 255\n"
    "o_j = power_j * value_offset[j, g]; o_b likewise\n"
    "exact_b = sum over j in b of words(w_b)[j] * (value[j, c] - value_zero_point[j, g])\n"
    "sum = (sum over b, in order, of float32(exact_b) * step(w_b))\n"
    "    + (sum over b, in order, of float32(sum of words(o_b)) * step(o_b))\n"
    "    or, if scale_result, with w_j = o_j = power_j, and blocks of 256 keys of each token group:\n"
    "    (sum over b, in order, of float32(exact_b) * step(w_b) * value_scale[b, c])\n"
    "    + (sum over b, in order, of float32(sum of words(w_b)) * step(w_b) * value_offset[b, c])\n"
    "dst = sum * (1 / float32(2^-23 * sum over j of round(2^23 * power_j)))",
    (
        Input("query", _FLOAT_TYPES, "[B, H, S, D]. The kernels take at most 2^22 for T, D and E."),
        Input(
            "key",
            _OPERAND_TYPES,
            "[B, K, T, D], or [B, K, D, T] if transposed_key. K divides H: adjacent heads of "
            "query share a head of key and value. Floats have the type of `query`.",
        ),
        Input(
            "key_scale",
            _FLOAT_TYPES,
            "[B or 1, K or 1, token groups, groups], or [.., groups, token groups] if transposed_key. "
            "The number of token groups divides T, that of groups divides D. The type of `query`. For keys of floats: "
            "a number, not read, of shape [1, 1, 1, 1].",
        ),
        Input(
            "key_zero_point",
            _OPERAND_TYPES,
            "The type of `key`; the dimensions of key_scale, or 1. Not read for keys of floats.",
        ),
        Input("value", _OPERAND_TYPES, "[B, K, T, E]. Floats have the type of `query`."),
        Input("value_scale", _FLOAT_TYPES, "As key_scale, [B or 1, K or 1, token groups, groups]."),
        Input("value_zero_point", _OPERAND_TYPES, "As key_zero_point."),
        Input("bias", ("float32",), "[B or 1, H or 1, S or 1, T or 1], added to scores. S = 1 broadcasts to its rows."),
        Input("scale", ("float32",), "One element, by which the products are multiplied."),
        Input(
            "key_offset",
            _FLOAT_TYPES,
            "The type of `query`; the dimensions of key_scale, or 1. Not read for keys of floats.",
        ),
        Input("value_offset", _FLOAT_TYPES, "As key_offset."),
    ),
    (
        Input(
            "dst",
            _FLOAT_TYPES,
            "[B, H, S, E], of the type of `query`, rounded once. NaN in rows in which every score is -infinity, one is "
            "NaN or infinity, or the query has a NaN or infinity; and in a group of columns if the scale of any row "
            "or the offset, also of a hidden one, is NaN or infinity. 0 if T is 0.",
            shape=attention(4, bias=7),
        ),
    ),
    (
        flag("transposed_key", 0, "1: `key` is [B, K, D, T]."),
        flag("float_key", 0, "1: `key` has floats. Each row becomes words, which take the place of the codes."),
        flag("float_value", 0, "1: `value` has floats, likewise."),
        flag(
            "scale_query",
            0,
            "1: the query is multiplied by the scales of the keys, for each token group, before it becomes words: for "
            "scales of channels, which vary along the head and hardly along the tokens.",
        ),
        flag(
            "scale_result",
            0,
            "1: the sums over each token group are multiplied by the scales of the values, instead of the weights: for "
            "scales of channels.",
        ),
    ),
    tuple(
        Signature((type_, key, type_, key, value, type_, value, "float32", "float32", type_, type_), (type_,))
        for type_ in _FLOAT_TYPES
        for key in (*CODE_TYPES, type_)
        for value in (*CODE_TYPES, type_)
        if (key, value) != (type_, type_)
    ),
    _body,
)

FAMILY = Family(
    "Attention over compressed keys and values",
    "Keys and values, such as those of a cache, are codes of 8 or 4 bits with scales, zero points and offsets of "
    "groups along the head, and of groups of tokens: (code - zero point) * scale + offset. Queries, and the powers of "
    "softmax times the scales of values, become "
    'integers of 16 bits, "words". Sums are exact, so results do not depend on the layout, on other rows, or on how '
    "many queries there are. A row that a bias of -infinity hides has the weight 0. float16 and bfloat16 are converted "
    "to float32, exactly.",
    (_OPERATOR,),
)
