"""QuantizedMatMul: codes of an activation times packed weights of 8, 4 or 2 bits, to float32, in one operator.

DynamicQuantizedMatMul has the activation itself, and makes its codes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from .encodings import ScaleOrder
from .function_text import (
    cast_like,
    integers,
    parts_of_bytes,
    product_of,
    reshape,
    scaled,
    select,
    stack_dims,
    unsigned_codes,
)
from .gather_dequantize import GATHER_DEQUANTIZE
from .row_program import tail_text, with_program
from .shapes import product
from .spec import FLOATS, Attribute, Family, Input, Operator, Signature

GROUP_UNIT = 16
TERM_RATIO = 254  # of the scales of both terms
# The longest sums that cannot overflow int32: codes minus zero points are within 255, and so are weights minus zero
# points, or within 128 if 8-bit weights have no zero points. ops/core/sums.h has the same bounds.
MAX_SUM_LENGTH = (2**31 - 1) // (255 * 255)
MAX_SYMMETRIC_SUM_LENGTH = (2**31 - 1) // (255 * 128)
MAX_JOINED_LENGTH = 128  # of sums of two terms that are added as int32: they are within MAX_SUM_LENGTH / 255


def _body(opset: int, programs: Sequence[str] = (), *, quantizes: bool = False) -> str:
    # Weights are uint8, since ONNX Runtime's sums of uint8 and int8 products saturate on some CPUs. If K is 0,
    # MatMulInteger crashes on zero points, and without them leaves its output unset (ONNX Runtime 1.31).
    flat = reshape(opset)
    # From opset 13 on, axes are an input of ReduceSum.
    attribute, axes = ("", ", minus_2") if opset >= 13 else (", axes = [-2]", "")
    sum_of_weights = f"ReduceSum<keepdims = 0{attribute}>(centered_weights{axes})"
    # No If between the packed weights and their codes: ONNX Runtime, which inlines an If, would not fold what follows,
    # and each call without the plugin would unpack constant weights again.
    # The shapes below are [..., groups, M * terms, K / groups] and [..., groups, K / groups, N]: MatMulInteger
    # broadcasts the matrices of the activation and of stacked weights, if there is a stack.
    vectors = "\n".join(f"n{i} = Constant<value_ints = [{i}]>()" for i in range(5))
    codes, quantization, terms = "src", "", "value_int: int = @terms"
    if quantizes:
        codes, terms = "quantized_src", "value_int = 1"
        quantization = """real_src = Cast<to = 1>(src)
        quantized_src, scale, zero_point = DynamicQuantizeLinear(real_src)"""
    return f"""{{
        {quantization}
        {integers(3)}
        {vectors}
        last = Constant<value_ints = [-1]>()
        minus_2 = Constant<value_ints = [-2]>()
        minus_3 = Constant<value_ints = [-3]>()
        minus_4 = Constant<value_ints = [-4]>()
        matrix_axes = Constant<value_ints = [1, 2]>()
        end = Constant<value_ints = [{2**63 - 1}]>()
        one = Constant<value_float = 1.0>()
        no_sum = Constant<value_float = -0.0>()
        one_code = Constant<value = uint8 {{1}}>()
        term_ratio = Constant<value_float = {TERM_RATIO}.0>()
        joined_ratio = Constant<value = int32 {{{TERM_RATIO}}}>()
        longest_joined = Constant<value_int = {MAX_JOINED_LENGTH}>()
        terms = Constant<{terms}>()
        given_size = Constant<value_int: int = @group_size>()
        scale_order = Constant<value_int: int = @scale_order>()

        src_shape = Shape(src)
        lead = Slice(src_shape, n0, last)
        depth_of_terms = Slice(src_shape, last, end)
        term_count = Unsqueeze(terms, n0)
        depth = Div(depth_of_terms, term_count)
        {stack_dims()}
        {product_of("stacked", "stack")}
        {product_of("rows_of_src", "lead")}
        {product_of("matrices", "batch")}
        {product_of("rows_of_matrix", "row_dims")}
        rows = Mul(rows_of_matrix, term_count)
        has_terms = Equal(terms, i2)
        given_sizes = Unsqueeze(given_size, n0)
        has_groups = Greater(given_sizes, n0)
        is_long = Greater(given_size, longest_joined)
        is_short = Not(is_long)
        has_short_groups = And(has_groups, is_short)
        joins_1 = And(has_terms, has_short_groups)
        joins = Squeeze(joins_1)
        adds = Not(joins)
        adds_terms = And(has_terms, adds)
        {select("step", "joins", "n2", "n1", "int64")}
        last_start = Sub(step, n1)
        {select("terms_left", "joins", "n1", "term_count", "int64")}
        {select("rows_left", "joins", "rows_of_matrix", "rows", "int64")}
        {select("size", "has_groups", "given_sizes", "depth", "int64")}
        divisor = Max(size, n1)
        quotient = Div(depth, divisor)
        {select("groups", "has_groups", "quotient", "n1", "int64")}

        {parts_of_bytes()}
        stacked_matrices = Concat<axis = 0>(stacked, packed_dims)
        packed_weight = {flat}(weight, stacked_matrices)
        packed = Cast<to = 6>(packed_weight)
        shifted = Add(packed, offset)
        bytes = Mod(shifted, byte_base)
        byte_quads = Unsqueeze(bytes, n3)
        quads = Div(byte_quads, parts)
        codes = Mod(quads, base)
        by_depth = Transpose<perm = [0, 2, 3, 5, 1, 4]>(codes)
        codes_shape = Shape(by_depth)
        depth_parts = Slice(codes_shape, n1, n4)
        column_parts = Slice(codes_shape, n4, end)
        padded_depth = ReduceProd<keepdims = 1>(depth_parts)
        padded_columns = ReduceProd<keepdims = 1>(column_parts)
        padded_shape = Concat<axis = 0>(stacked, padded_depth, padded_columns)
        padded = {flat}(by_depth, padded_shape)
        starts = Concat<axis = 0>(n0, n0)
        ends = Concat<axis = 0>(depth, columns)
        matrix = Slice(padded, starts, ends, matrix_axes)
        matrix_codes = Cast<to = 2>(matrix)
        groups_shape = Concat<axis = 0>(stack, groups, size, columns)
        weights = {flat}(matrix_codes, groups_shape)
        signed_zero_points = Cast<to = 6>(weight_zero_point)
        unbounded_zero_points = Add(signed_zero_points, offset)
        zero_points = Mod(unbounded_zero_points, zero_point_base)
        per_column = Concat<axis = 0>(stack, groups, columns)
        expanded_zero_points = Expand(zero_points, per_column)
        per_group_and_column = Concat<axis = 0>(stack, groups, n1, columns)
        weights_zero_points = {flat}(expanded_zero_points, per_group_and_column)

        rows_shape = Concat<axis = 0>(matrices, rows, groups, size)
        zero_point_vector = {flat}(zero_point, last)
        {unsigned_codes(codes, "zero_point_vector")}
        src_rows = {flat}(codes_of_src, rows_shape)
        src_by_group = Transpose<perm = [0, 2, 1, 3]>(src_rows)
        src_groups_shape = Concat<axis = 0>(batch, groups, rows, size)
        src_groups = {flat}(src_by_group, src_groups_shape)
        products = MatMulInteger(src_groups, weights)
        products_shape = Shape(products)
        dst_batch = Slice(products_shape, n0, minus_3)
        column_of_ones = Concat<axis = 0>(groups, size, n1)
        ones = Expand(one_code, column_of_ones)
        sums_of_rows = MatMulInteger(src_groups, ones)
        correction_of_rows = Mul(sums_of_rows, weights_zero_points)
        corrected = Sub(products, correction_of_rows)
        has_products = Greater(depth, n0)
        centered = Where(has_products, corrected, nothing)
        {_per_row(flat, "scale", "scale")}
        given_zero_point_int = Cast<to = 6>(zero_point)
        zero_point_int = Sub(given_zero_point_int, lowest)
        {_per_row(flat, "zero_point", "zero_point_int")}
        signed_codes = Cast<to = 6>(weights)
        centered_weights = Sub(signed_codes, weights_zero_points)
        computed_sums = {sum_of_weights}
        given_and_computed = Concat<axis = -2>(column_sum, computed_sums)
        sums = Slice(given_and_computed, n0, groups, minus_2)
        sums_of_columns = Unsqueeze(sums, minus_2)
        correction = Mul(zero_point_groups, sums_of_columns)
        of_terms = Sub(centered, correction)
        first_terms = Slice(of_terms, n0, end, minus_2, step)
        last_terms = Slice(of_terms, last_start, end, minus_2, step)
        coarse_terms = Mul(first_terms, joined_ratio)
        joined = Add(coarse_terms, last_terms)
        {select("exact", "joins", "joined", "of_terms", "int32")}
        row_scales = Slice(scale_groups, last_start, end, minus_2, step)
        {select("row_scale_groups", "joins", "row_scales", "scale_groups")}
        real = Cast<to = 1>(exact)

        real_column_scale = Cast<to = 1>(column_scale)
        column_groups = Unsqueeze(real_column_scale, minus_2)
        columns_shape = Shape(column_groups)
        column_group_count = Slice(columns_shape, minus_3, minus_2)
        row_group_count = Slice(scale_groups_shape, minus_3, minus_2)
        has_column_groups = Greater(column_group_count, n1)
        has_row_groups = Greater(row_group_count, n1)
        columns_vary = And(has_groups, has_column_groups)
        rows_vary_1 = And(has_groups, has_row_groups)
        one_varies_1 = Or(columns_vary, rows_vary_1)
        one_varies = Squeeze(one_varies_1)
        rows_vary = Squeeze(rows_vary_1)
        first_column_group = Slice(column_groups, n0, n1, minus_3)
        first_row_group = Slice(row_scale_groups, n0, n1, minus_3)
        total_column = Squeeze(first_column_group, minus_3)
        total_row = Squeeze(first_row_group, minus_3)
        {select("column_in_groups", "one_varies", "column_groups", "one")}
        {select("row_in_groups", "rows_vary", "row_scale_groups", "one")}
        {select("column", "one_varies", "one", "total_column")}
        {select("row", "rows_vary", "one", "total_row")}
        scaled_sums = Mul(real, column_in_groups)
        products_of_groups = Mul(scaled_sums, row_in_groups)
        total_shape = Concat<axis = 0>(dst_batch, rows_left, columns)
        no_sums = Expand(no_sum, total_shape)
        group_count = Squeeze(groups)
        always = Equal(group_count, group_count)
        total = Loop(group_count, always, no_sums) <
            body = add_group (int64 group, bool goes_on, float[] before) => (bool still, float[] after) {{
                still = Identity(goes_on)
                term = Gather<axis = -3>(products_of_groups, group)
                after = Add(before, term)
            }}
        >

        {scaled("total")}
        {product_of("dst_matrices", "dst_batch")}
        rows_of_dst = Mul(dst_matrices, rows_of_matrix)
        terms_shape = Concat<axis = 0>(rows_of_dst, terms_left, columns)
        scaled_terms = {flat}(scaled, terms_shape)
        first_term = Gather<axis = 1>(scaled_terms, i0)
        last_index = Constant<value_int = -1>()
        last_term = Gather<axis = 1>(scaled_terms, last_index)
        both_terms = Add(first_term, last_term)
        {select("sum_of_terms", "adds_terms", "both_terms", "first_term")}
        matrices_shape = Concat<axis = 0>(dst_batch, rows_of_matrix, columns)
        dst_of_matrices = {flat}(sum_of_terms, matrices_shape)
        real_bias = Cast<to = 1>(bias)
        bias_of_rows = Unsqueeze(real_bias, minus_2)
        biased = Add(dst_of_matrices, bias_of_rows)
        dst_shape = Concat<axis = 0>(dst_batch, row_dims, columns)
        x = {flat}(biased, dst_shape)
        {"zero = Constant<value_float = 0.0>()" + tail_text(programs, opset) if programs else ""}
        real_dst = Identity({"dst_real" if programs else "x"})
        {cast_like("dst", "real_dst", "bias", opset)}
    }}"""


def _per_row(flat: str, name: str, value: str) -> str:
    """Sets `name`_groups to a value of rows as [..., 1 or groups, rows, 1], and `name`_groups_shape to its shape.

    Each term of a row is a row here. The scale of the first of two terms is multiplied by their ratio.
    """
    is_scale = name == "scale"
    return f"""
        {name}_lead = Concat<axis = 0>(lead, n1)
        {name}_rows = Expand({value}, {name}_lead)
        {name}_shape = Shape({name}_rows)
        {name}_count = Slice({name}_shape, last, end)
        {name}_terms_shape = Concat<axis = 0>(rows_of_src, n1, {name}_count)
        {name}_last = {flat}({name}_rows, {name}_terms_shape)
        {f"{name}_first = Mul({name}_last, term_ratio)" if is_scale else f"{name}_first = Identity({name}_last)"}
        {name}_both = Concat<axis = 1>({name}_first, {name}_last)
        {select(f"{name}_of_terms", "has_terms", f"{name}_both", f"{name}_last", "float" if is_scale else "int32")}
        {name}_matrix_shape = Concat<axis = 0>(matrices, rows, {name}_count)
        {name}_matrix = {flat}({name}_of_terms, {name}_matrix_shape)
        {name}_by_group = Transpose<perm = [0, 2, 1]>({name}_matrix)
        {name}_batch_shape = Concat<axis = 0>(batch, {name}_count, rows, n1)
        {name}_groups = {flat}({name}_by_group, {name}_batch_shape)
        {name}_groups_shape = Shape({name}_groups)
    """


_INPUTS = (
    Input(
        "src",
        ("uint8", "int8"),
        "The codes of the activation: any shape of rank 1 or more, [..., M, K]; with two terms [..., M, 2 * K]. With "
        "stacked weights, of rank 2 or more; the leading dimensions broadcast.",
    ),
    Input(
        "scale",
        ("float32",),
        "The row scales: the leading dimensions of `src`, then ones; or one element; or, for activations in groups, "
        "the leading dimensions of `src`, then the number of groups.",
    ),
    Input("zero_point", ("uint8", "int8"), "The row zero points, of src's type: the shape of `scale`, or one element."),
    Input(
        "weight",
        ("int8",),
        "The packed weights. 8 bits: [ceil(N / 16), ceil(K / 4), 16, 4], where weight[n / 16, k / 4, n % 16, k % 4] is "
        "the code of row k and column n; unsigned codes and their zero points are stored 128 smaller. 4 bits: "
        "[ceil(N / 16), ceil(K / 8), 16, 4]; the low half of a byte is the code (0 to 15) of one of the first four k "
        "of eight, the high half that of the k 4 later. 2 bits: [ceil(N / 16), ceil(K / 16), 16, 4]; bits 0 and 1, 4 "
        "and 5, 2 and 3, 6 and 7 of a byte are the codes (0 to 3) of one of the first four k of sixteen, and of the k "
        "4, 8 and 12 later. Padding is 0. Stacked weights have the dimensions of the stack before these: [..., ceil(N "
        "/ 16), ceil(K / 4), 16, 4].",
    ),
    Input(
        "weight_zero_point",
        ("int8",),
        "The zero points of the weights: one element, or one for each group and column, [groups, N]. 4 and 2 bits: 0 "
        "to 15; only the low 4 bits are used.",
    ),
    Input(
        "column_scale",
        FLOATS,
        "The scales of the weights: [1, N] for one scale for each column, or [groups, N].",
    ),
    Input(
        "column_sum",
        ("int32",),
        "[groups, N]: the sum of the weights of each group and column after their zero point is subtracted. "
        "`zero_point` times it is subtracted from the sums of `src`, so other numbers can act as a bias of int32. "
        "[0, N]: the sums are computed from the weights.",
    ),
    Input("bias", FLOATS, "[N]; -0.0 leaves the result unchanged."),
)

QUANTIZED_MATMUL = Operator(
    "QuantizedMatMul",
    "Multiplies codes by packed weights. The integer sums are exact: a sum so long that int32 might overflow "
    f"is an error (K or group_size over {MAX_SUM_LENGTH}; over {MAX_SYMMETRIC_SUM_LENGTH} for 8-bit weights without "
    "zero points). With `group_size`, K is cut into groups, and the groups' sums are added as float32, in "
    "ascending order. If `scale` varies by group, both scales multiply the sum of each group. If only "
    "`column_scale` does, `scale` multiplies the total. If no scale varies by group, both multiply the total, "
    "and `scale_order` is the order of the multiplications. With two `terms`, each row of `src` has K codes, then K "
    "codes of what they leave, as [TwoTermQuantize](#twotermquantize) writes them. They are two rows of the product "
    f"with the scales {TERM_RATIO} * `scale` and `scale`; their results are added before the bias. But in groups of up "
    f"to {MAX_JOINED_LENGTH}, their integer sums are added, {TERM_RATIO} * the first + the second, and become one "
    "float with the scale `scale`: they fit int32, and wrap only with a `column_sum` of other numbers. Weights may be "
    "a stack of matrices, as of heads or experts: `weight`, `column_scale`, `column_sum`, `bias`, and zero points of "
    "columns then begin with the dimensions of the stack, which broadcast with the leading dimensions of `src` as in "
    "MatMul.",
    "exact[g] = sum over k of group g: (src - zero_point) * (weight - weight_zero_point)\n"
    "dst = (sum over g: float32(exact[g]) * column_scale[g] * scale[g]) + bias",
    _INPUTS,
    (Input("dst", FLOATS, "[..., M, N], of the type of `bias`; float16 is rounded once.", shape=product(7)),),
    (
        Attribute("bits", 8, "The bits of a weight.", choices=(8, 4, 2)),
        Attribute("group_size", 0, "0: one group. Otherwise a multiple of 16 that divides K."),
        Attribute("terms", 1, "The codes of an element of the activation.", choices=(1, 2)),
        Attribute(
            "scale_order",
            ScaleOrder.SCALES_FIRST,
            "The order of the multiplications by both scales; column first if there are groups.",
            ScaleOrder,
        ),
    ),
    tuple(
        Signature((code, "float32", code, "int8", "int8", column_scale, "int32", bias), (bias,))
        for bias in FLOATS
        for column_scale in FLOATS
        for code in ("uint8", "int8")
    ),
    _body,
)
_WEIGHTS = QUANTIZED_MATMUL.inputs[3:]
_dynamic_body = functools.partial(_body, quantizes=True)
_DYNAMIC = Operator(
    "DynamicQuantizedMatMul",
    "Quantizes a tensor as [DynamicQuantizeLinear](#dynamicquantizelinear) does, and multiplies the codes as "
    "[QuantizedMatMul](#quantizedmatmul) does, with one term. Small products take most of their time for nodes and "
    "tensors: this is one node.",
    "codes, scale, zero_point = DynamicQuantizeLinear(src)\n"
    "dst = QuantizedMatMul(codes, scale, zero_point, weight, ...)",
    (
        Input("src", FLOATS, "Any shape of rank 1 or more, [..., M, K]; with stacked weights, of rank 2 or more."),
        *_WEIGHTS,
    ),
    (Input("dst", FLOATS, "[..., M, N], of the type of `src` and `bias`.", shape=product(5)),),
    tuple(each for each in QUANTIZED_MATMUL.attributes if each.name != "terms"),
    tuple(
        Signature((real, "int8", "int8", column_scale, "int32", real), (real,))
        for real in FLOATS
        for column_scale in FLOATS
    ),
    _dynamic_body,
)


def _with_program(operator: Operator, body: Callable[[int, Sequence[str]], str]) -> Operator:
    of_floats = tuple(each for each in operator.signatures if each.outputs == ("float32",))
    operator = dataclasses.replace(operator, signatures=of_floats)
    return with_program(operator, body, "A row has the N columns. `bias` is float32.")


FAMILY = Family(
    "Matrix products",
    "`scale` and `zero_point` belong to the rows, which are the activation; the inputs with the prefixes `weight` and "
    "`column` belong to the weights.",
    (
        QUANTIZED_MATMUL,
        _with_program(QUANTIZED_MATMUL, _body),
        _DYNAMIC,
        _with_program(_DYNAMIC, _dynamic_body),
        GATHER_DEQUANTIZE,
    ),
)
