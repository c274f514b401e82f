"""QuantizedAttention: attention with products of integers."""

from __future__ import annotations

from .encodings import HeadLayout
from .function_text import cast_like, integer, integers, largest, reshape, select
from .program_body import power, sigmoid
from .shapes import attention_in_layouts
from .spec import Attribute, Family, Input, Operator, Signature, flag

_TYPES = ("float32", "float16", "bfloat16")
_POWER = (627.170166015625, 3664.630859375, 15744.6220703125, 45423.734375, 65534.953125)
_LOWEST = 64  # differences of scores below -64 * log(2) count as that
_MIN_WEIGHT = 2.0**-90


def _codes(name: str, opset: int) -> str:
    """Sets ``{name}_codes``, doubles, and ``{name}_scale``. The numbers of a row share a scale.

    A NaN does not count in the largest magnitude, and has the code -128.
    """
    return f"""
    {name}_nan = IsNaN({name}_heads)
    {name}_known = Where({name}_nan, zero, {name}_heads)
    {name}_sizes = Abs({name}_known)
    {largest(f"{name}_peak", f"{name}_sizes", "zero", opset)}
    {name}_divided = Div({name}_peak, highest)
    {name}_is_zero = Equal({name}_divided, zero)
    {name}_scale = Where({name}_is_zero, one, {name}_divided)
    {name}_quotient = Div({name}_heads, {name}_scale)
    {name}_rounded = Round({name}_quotient)
    {name}_undefined = IsNaN({name}_rounded)
    {name}_defined = Where({name}_undefined, lowest, {name}_rounded)
    {name}_codes = Cast<to = 11>({name}_defined)
    """


def _heads(name: str, count: str, opset: int) -> str:
    """Sets ``{name}_heads`` to an operand as float32 [B, heads, tokens, elements]; `count` is the number of heads."""
    return f"""{name}_real = Cast<to = 1>({name})
    {name}_shape = Shape({name})
    {name}_lead = Slice({name}_shape, first, second)
    {name}_width = Slice({name}_shape, last, end)
    {name}_size = Div({name}_width, {count})
    {name}_split_shape = Concat<axis = 0>({name}_lead, {count}, {name}_size)
    {name}_layout = Constant<value_int: int = @{name}_layout>()
    {name}_has_tokens_first = Equal({name}_layout, {integer(HeadLayout.TOKENS_FIRST)})
    {name}_has_elements_first = Equal({name}_layout, {integer(HeadLayout.ELEMENTS_FIRST)})
    {select(f"{name}_shape_4d", f"{name}_has_tokens_first", f"{name}_split_shape", f"{name}_shape", "int64")}
    {name}_4d = {reshape(opset)}({name}_real, {name}_shape_4d)
    {name}_by_head = Transpose<perm = [0, 2, 1, 3]>({name}_4d)
    {name}_by_token = Transpose<perm = [0, 1, 3, 2]>({name}_4d)
    {select(f"{name}_whole", f"{name}_has_elements_first", f"{name}_by_token", f"{name}_4d")}
    {select(f"{name}_heads", f"{name}_has_tokens_first", f"{name}_by_head", f"{name}_whole")}"""


def _of_heads(name: str) -> str:
    """Sets ``{name}_of_heads`` to the codes and scales of a key or value for each head of query."""
    return f"""{name}_codes_of_heads = Gather<axis = 1>({name}_codes, key_head)
    {name}_scale_of_heads = Gather<axis = 1>({name}_scale, key_head)"""


# Sets ``scores`` to ``all_scores``, with -infinity for the keys that a row does not see.
_WINDOW = """before = Constant<value_int: int = @keys_before>()
    after = Constant<value_int: int = @keys_after>()
    sees_all_before = Less(before, i0)
    sees_all_after = Less(after, i0)
    sees_all = And(sees_all_before, sees_all_after)
    scores = If(sees_all) <
        then_branch = all_keys () => (float[] scores_of_all) { scores_of_all = Identity(all_scores) },
        else_branch = some_keys () => (float[] scores_of_some) {
            row_count = Squeeze(row_count_1d)
            key_count = Squeeze(key_count_1d)
            ends_together = Constant<value_int: int = @ends_together>()
            more_keys = Sub(key_count, row_count)
            first_position = Mul(ends_together, more_keys)
            row_numbers = Range(i0, row_count, i1)
            positions = Add(row_numbers, first_position)
            position_column = Unsqueeze(positions, one_axis)
            key_numbers = Range(i0, key_count, i1)
            distances = Sub(key_numbers, position_column)
            least_distance = Neg(before)
            is_far_before = Less(distances, least_distance)
            sees_before = Not(sees_all_before)
            is_before = And(is_far_before, sees_before)
            is_far_after = Greater(distances, after)
            sees_after = Not(sees_all_after)
            is_after = And(is_far_after, sees_after)
            is_hidden = Or(is_before, is_after)
            scores_of_some = Where(is_hidden, minus_infinity, all_scores)
        }
    >"""


def _capped() -> str:
    """Sets ``capped`` to ``by_both``, or to softcap * tanh(by_both / softcap)."""
    return f"""cap = Reshape(softcap, one_element)
    has_cap = Greater(cap, zero)
    capped = If(has_cap) <
        then_branch = with_cap () => (float[] capped_scores) {{
            two = Constant<value_float = 2.0>()
            inner = Div(two, cap)
            outer = Mul(two, cap)
            argument = Mul(by_both, inner)
            {chr(10).join(sigmoid("argument", "of_cap"))}
            wide_cap = Mul(of_cap, outer)
            capped_scores = Sub(wide_cap, cap)
        }},
        else_branch = without_cap () => (float[] other_scores) {{ other_scores = Identity(by_both) }}
    >"""


def _laid_out(opset: int) -> str:
    """Sets ``dst_real`` to ``result`` [B, H, S, E] in the layout of the result."""
    flat = reshape(opset)
    return f"""dst_layout = Constant<value_int: int = @dst_layout>()
    dst_has_tokens_first = Equal(dst_layout, {integer(HeadLayout.TOKENS_FIRST)})
    dst_has_elements_first = Equal(dst_layout, {integer(HeadLayout.ELEMENTS_FIRST)})
    by_token = Transpose<perm = [0, 2, 1, 3]>(result)
    by_element = Transpose<perm = [0, 1, 3, 2]>(result)
    {select("whole_result", "dst_has_elements_first", "by_element", "result")}
    {select("dst_4d", "dst_has_tokens_first", "by_token", "whole_result")}
    dst_shape_4d = Shape(dst_4d)
    dst_lead = Slice(dst_shape_4d, first, second)
    dst_heads = Slice(dst_shape_4d, second, last)
    dst_size = Slice(dst_shape_4d, last, end)
    dst_width = Mul(dst_heads, dst_size)
    joined_shape = Concat<axis = 0>(dst_lead, dst_width)
    {select("dst_shape", "dst_has_tokens_first", "joined_shape", "dst_shape_4d", "int64")}
    dst_real = {flat}(dst_4d, dst_shape)"""


def _body(opset: int) -> str:
    return f"""{{
    {integers(3)}
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    lowest = Constant<value_float = -128.0>()
    highest = Constant<value_float = 127.0>()
    minus_one = Neg(one)
    minus_infinity = Div(minus_one, zero)
    least = Constant<value_float = -{_LOWEST}.0>()
    log2e = Constant<value_float = 1.44269502162933349609375>()
    infinity = Neg(minus_infinity)
    nan = Sub(infinity, infinity)
    byte = Constant<value_float = 256.0>()
    part = Constant<value_float = 0.00390625>()
    unit = Constant<value_float = {2.0**-16!r}>()
    largest_code = Constant<value_float = 65535.0>()
    least_weight = Constant<value_float = {_MIN_WEIGHT!r}>()
    last = Constant<value_ints = [-1]>()
    end = Constant<value_ints = [{2**63 - 1}]>()
    one_behind = Constant<value = int64[8] {{0, 0, 0, 0, 0, 0, 0, 1}}>()
    first = Constant<value_ints = [0]>()
    second = Constant<value_ints = [2]>()
    one_axis = Constant<value_ints = [1]>()
    one_element = Constant<value_ints = [1]>()
    head_count = Constant<value_int: int = @num_heads>()
    given_key_heads = Constant<value_int: int = @kv_num_heads>()
    has_own_heads = Equal(given_key_heads, i0)
    key_head_count = Where(has_own_heads, head_count, given_key_heads)
    query_count = Unsqueeze(head_count, first)
    key_count_of_heads = Unsqueeze(key_head_count, first)
    {_heads("query", "query_count", opset)}
    {_heads("key", "key_count_of_heads", opset)}
    {_heads("value", "key_count_of_heads", opset)}
    query_heads_shape = Shape(query_heads)
    key_heads_shape = Shape(key_heads)
    row_count_1d = Slice(query_heads_shape, second, last)
    key_count_1d = Slice(key_heads_shape, second, last)
    {_codes("query", opset)}
    {_codes("key", opset)}
    {_codes("value", opset)}
    repeats = Div(head_count, key_head_count)
    head_numbers = Range(i0, head_count, i1)
    key_head = Div(head_numbers, repeats)
    {_of_heads("key")}
    {_of_heads("value")}
    keys = Transpose<perm = [0, 1, 3, 2]>(key_codes_of_heads)
    exact = MatMul(query_codes, keys)
    real = Cast<to = 1>(exact)
    factor_1d = Reshape(scale, one_element)
    row_scale = Mul(query_scale, factor_1d)
    column_scale = Transpose<perm = [0, 1, 3, 2]>(key_scale_of_heads)
    by_row = Mul(real, row_scale)
    by_both = Mul(by_row, column_scale)
    {_capped()}
    added = Add(capped, bias)
    least_added_1d = Reshape(least_added, one_element)
    is_replaced = Less(bias, least_added_1d)
    all_scores = Where(is_replaced, bias, added)
    {_WINDOW}
    score_is_nan = IsNaN(scores)
    comparable = Where(score_is_nan, minus_infinity, scores)
    {largest("peak", "comparable", "minus_infinity", opset)}
    below = Sub(scores, peak)
    below_as_power = Mul(below, log2e)
    y = Clip(below_as_power, least, zero)
    {chr(10).join(power("y", "e", _POWER))}
    any_code = Round(e)
    y_is_nan = IsNaN(y)
    y_nans = Cast<to = 1>(y_is_nan)
    {largest("row_nans", "y_nans", "zero", opset)}
    zero_rows_flag = Constant<value_int: int = @zero_rows>()
    zero_rows = Cast<to = 9>(zero_rows_flag)
    row_has_nan = Greater(row_nans, zero)
    has_no_keys = Equal(peak, minus_infinity)
    is_undefined = Or(row_has_nan, has_no_keys)
    is_zero_row = And(is_undefined, zero_rows)
    code = Where(is_zero_row, zero, any_code)
    code_wide = Cast<to = 11>(code)
    code_sum = ReduceSum<keepdims = 1>(code_wide, last)
    divisor = Cast<to = 1>(code_sum)
    value_row = Transpose<perm = [0, 1, 3, 2]>(value_scale_of_heads)
    factors = Mul(value_row, unit)
    weight = Mul(code, factors)
    weight_is_nan = IsNaN(weight)
    weight_or_infinity = Where(weight_is_nan, infinity, weight)
    {largest("top", "weight_or_infinity", "least_weight", opset)}
    inverse = Div(largest_code, top)
    weight_steps = Mul(weight, inverse)
    weight_rounded = Round(weight_steps)
    weight_undefined = IsNaN(weight_rounded)
    weight_code = Where(weight_undefined, zero, weight_rounded)
    high_part = Mul(weight_code, part)
    high = Floor(high_part)
    high_whole = Mul(high, byte)
    low = Sub(weight_code, high_whole)
    high_real = Cast<to = 11>(high)
    low_real = Cast<to = 11>(low)
    high_exact = MatMul(high_real, value_codes_of_heads)
    low_exact = MatMul(low_real, value_codes_of_heads)
    high_total = Cast<to = 1>(high_exact)
    low_total = Cast<to = 1>(low_exact)
    high_total_whole = Mul(high_total, byte)
    total = Add(high_total_whole, low_total)
    top_is_infinite = IsInf(top)
    known_top = Where(top_is_infinite, nan, top)
    step = Div(known_top, largest_code)
    divisor_unit = Mul(divisor, unit)
    row_factor = Div(step, divisor_unit)
    any_result = Mul(total, row_factor)
    is_known = Not(top_is_infinite)
    is_zero = And(is_zero_row, is_known)
    result = Where(is_zero, zero, any_result)
    {_laid_out(opset)}
    {cast_like("dst", "dst_real", "query", opset)}
}}"""


_OPERATOR = Operator(
    "QuantizedAttention",
    "softmax(query * key^T * scale + bias) * value for each head, with products of integers.",
    "For each batch and head, where i is a row of query, j one of key and value, and c a column of value:\n"
    "s_i = max over d of |query[i, d]| / 127, or 1 if that is 0; t_j likewise of key, u_j of value\n"
    "exact = sum over d of round(query[i, d] / s_i) * round(key[j, d] / t_j)\n"
    "product = float32(exact) * (s_i * scale) * t_j\n"
    "capped = Sigmoid(product * (2 / softcap)) * (2 * softcap) - softcap, or product if softcap is 0\n"
    "score = -infinity for a key that a row does not see, else bias if bias < least_added, else capped + bias\n"
    "y = max((score - max over j of score) * log2(e), -64); n = round(y); r = y - n\n"
    "code_j = round(P(r) * 2^n), where P(r) is a polynomial of degree 4 for 65535 * 2^r\n"
    "weight_j = code_j * (u_j * 2^-16); top = max(2^-90, max over j of weight_j)\n"
    "weight_code_j = round(weight_j * (65535 / top))\n"
    "high_j = floor(weight_code_j / 256); low_j = weight_code_j - 256 * high_j\n"
    "total = 256 * float32(sum over j of high_j * round(value[j, c] / u_j)) + float32(the same with low_j)\n"
    "dst = total * (top / 65535 / (2^-16 * float32(sum over j of code_j)))",
    (
        Input("query", _TYPES, "S rows of D elements of H heads, in the layout `query_layout`."),
        Input("key", _TYPES, "T rows of D elements of `kv_num_heads` heads; T is at most 65536. The type of `query`."),
        Input("value", _TYPES, "T rows of E elements of `kv_num_heads` heads. The type of `query`."),
        Input("bias", ("float32",), "[B or 1, H or 1, S or 1, T or 1], added to the scores: masks have -infinity."),
        Input("scale", ("float32",), "One element, by which the products are multiplied."),
        Input("softcap", ("float32",), "One element: the scores before the bias are less than it. 0: there is none."),
        Input(
            "least_added",
            ("float32",),
            "One element: a lower bias takes the place of the score, as in Where(mask, score, -1e9). -infinity: every "
            "bias is added.",
        ),
    ),
    (
        Input(
            "dst",
            _TYPES,
            "S rows of E elements of H heads, of the type of `query`. NaN in rows in which every score is -infinity or "
            "one is NaN, unless `zero_rows`, and in all rows of a head if its value has an infinity.",
            shape=attention_in_layouts,
        ),
    ),
    (
        Attribute("num_heads", 1, "H, the heads of `query`."),
        Attribute(
            "kv_num_heads",
            0,
            "The heads of `key` and `value`, a divisor of H: adjacent heads of `query` share one. 0: H.",
        ),
        *(
            Attribute(f"{name}_layout", int(HeadLayout.TOKENS_FIRST), f"The order of the axes of `{name}`.", HeadLayout)
            for name in ("query", "key", "value", "dst")
        ),
        Attribute(
            "keys_before",
            -1,
            "Row i sees keys from number i - keys_before on. -1: all before it.",
        ),
        Attribute(
            "keys_after",
            -1,
            "Row i sees keys up to number i + keys_after: 0 is causal attention. -1: all after it.",
        ),
        flag("ends_together", 0, "1: the last row is that of the last key, so that row i counts as i + T - S."),
        flag("zero_rows", 0, "1: rows in which every score is -infinity or one is NaN are 0, as after a safe softmax."),
    ),
    tuple(Signature((type_,) * 3 + ("float32",) * 4, (type_,)) for type_ in _TYPES),
    _body,
)

FAMILY = Family(
    "Attention",
    "Attention of floats, as ONNX Runtime's MultiHeadAttention, but with products of integers. A NaN does not count in "
    "the largest magnitude, and has the code -128. Each row of key and value has a scale, and a row that a bias hides "
    "has the weight 0: so it changes no bit of the result.",
    (_OPERATOR,),
)
