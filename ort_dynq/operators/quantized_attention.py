"""QuantizedAttention: attention with products of integers."""

from __future__ import annotations

from .function_text import largest, reshape
from .program_body import power
from .spec import Attribute, Family, Input, Operator, Signature

_POWER = (627.170166015625, 3664.630859375, 15744.6220703125, 45423.734375, 65534.953125)
_LOWEST = 64  # differences of scores below -64 * log(2) count as that
_LEAST_WEIGHT = 2.0**-90


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


def _body(opset: int) -> str:
    flat = reshape(opset)
    heads = "\n".join(
        f"""{name}_shape = Shape({name})
        {name}_lead = Slice({name}_shape, first, last)
        {name}_width = Slice({name}_shape, last, end)
        {name}_size = Div({name}_width, count_1d)
        {name}_heads_shape = Concat<axis = 0>({name}_lead, count_1d, {name}_size)
        {name}_split = {flat}({name}, {name}_heads_shape)
        {name}_heads = Transpose<perm = [0, 2, 1, 3]>({name}_split)"""
        for name in ("query", "key", "value")
    )
    return f"""{{
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
    least_weight = Constant<value_float = {_LEAST_WEIGHT!r}>()
    last = Constant<value_ints = [-1]>()
    end = Constant<value_ints = [{2**63 - 1}]>()
    one_behind = Constant<value = int64[8] {{0, 0, 0, 0, 0, 0, 0, 1}}>()
    count = Constant<value_int: int = @num_heads>()
    first = Constant<value_ints = [0]>()
    count_1d = Unsqueeze(count, first)
    {heads}
    {_codes("query", opset)}
    {_codes("key", opset)}
    {_codes("value", opset)}
    keys = Transpose<perm = [0, 1, 3, 2]>(key_codes)
    exact = MatMul(query_codes, keys)
    real = Cast<to = 1>(exact)
    one_element = Constant<value_ints = [1]>()
    factor_1d = Reshape(scale, one_element)
    row_scale = Mul(query_scale, factor_1d)
    column_scale = Transpose<perm = [0, 1, 3, 2]>(key_scale)
    by_row = Mul(real, row_scale)
    by_both = Mul(by_row, column_scale)
    scores = Add(by_both, bias)
    score_is_nan = IsNaN(scores)
    comparable = Where(score_is_nan, minus_infinity, scores)
    {largest("peak", "comparable", "minus_infinity", opset)}
    below = Sub(scores, peak)
    below_as_power = Mul(below, log2e)
    y = Clip(below_as_power, least, zero)
    {chr(10).join(power("y", "e", _POWER))}
    code = Round(e)
    code_wide = Cast<to = 11>(code)
    code_sum = ReduceSum<keepdims = 1>(code_wide, last)
    divisor = Cast<to = 1>(code_sum)
    value_row = Transpose<perm = [0, 1, 3, 2]>(value_scale)
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
    high_exact = MatMul(high_real, value_codes)
    low_exact = MatMul(low_real, value_codes)
    high_total = Cast<to = 1>(high_exact)
    low_total = Cast<to = 1>(low_exact)
    high_total_whole = Mul(high_total, byte)
    total = Add(high_total_whole, low_total)
    top_is_infinite = IsInf(top)
    known_top = Where(top_is_infinite, nan, top)
    step = Div(known_top, largest_code)
    divisor_unit = Mul(divisor, unit)
    row_factor = Div(step, divisor_unit)
    result = Mul(total, row_factor)
    by_token = Transpose<perm = [0, 2, 1, 3]>(result)
    dst_shape = Concat<axis = 0>(query_lead, value_width)
    dst = {flat}(by_token, dst_shape)
}}"""


_OPERATOR = Operator(
    "QuantizedAttention",
    "softmax(query * key^T * scale + bias) * value for each head, with products of integers.",
    "For each batch and head, where i is a row of query, j one of key and value, and c a column of value:\n"
    "s_i = max over d of |query[i, d]| / 127, or 1 if that is 0; t_j likewise of key, u_j of value\n"
    "exact = sum over d of round(query[i, d] / s_i) * round(key[j, d] / t_j)\n"
    "score = float32(exact) * (s_i * scale) * t_j + bias\n"
    "y = max((score - max over j of score) * log2(e), -64); n = round(y); r = y - n\n"
    "code_j = round(P(r) * 2^n), where P(r) is a polynomial of degree 4 for 65535 * 2^r\n"
    "weight_j = code_j * (u_j * 2^-16); top = max(2^-90, max over j of weight_j)\n"
    "weight_code_j = round(weight_j * (65535 / top))\n"
    "high_j = floor(weight_code_j / 256); low_j = weight_code_j - 256 * high_j\n"
    "total = 256 * float32(sum over j of high_j * round(value[j, c] / u_j)) + float32(the same with low_j)\n"
    "dst = total * (top / 65535 / (2^-16 * float32(sum over j of code_j)))",
    (
        Input("query", ("float32",), "[B, S, H * D]."),
        Input("key", ("float32",), "[B, T, H * D]; T is at most 65536."),
        Input("value", ("float32",), "[B, T, H * E]."),
        Input("bias", ("float32",), "[B or 1, H or 1, S or 1, T or 1], added to the scores: masks have -infinity."),
        Input("scale", ("float32",), "One element, by which the products are multiplied."),
    ),
    (
        Input(
            "dst",
            ("float32",),
            "[B, S, H * E]. NaN in rows in which every score is -infinity or one is NaN, and in all rows of a head "
            "whose value has an infinity.",
        ),
    ),
    (Attribute("num_heads", 1, "H."),),
    (Signature(("float32",) * 5, ("float32",)),),
    _body,
)

FAMILY = Family(
    "Attention",
    "Attention of floats, as ONNX Runtime's MultiHeadAttention, but with products of integers. A NaN does not count in "
    "the largest magnitude, and has the code -128. Each row of key and value has a scale, and a row that a bias hides "
    "has the weight 0: so it changes no bit of the result.",
    (_OPERATOR,),
)
