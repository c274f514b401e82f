"""CompressedMatMul: floats times a matrix of codes of 8 or 4 bits. Its scales vary along the sums."""

from __future__ import annotations

from .compressed_attention import CODE_TYPES
from .function_text import cast_like, reshape
from .shapes import matrix_product
from .spec import FLOATS, Family, Input, Operator, Signature
from .word_text import whole_blocks, word_constants, words


def _body(opset: int) -> str:
    flat = reshape(opset)
    vectors = "\n".join(f"n{i} = Constant<value_ints = [{i}]>()" for i in range(4))
    return f"""{{
    {vectors}
    {word_constants()}
    src_shape = Shape(src)
    lead = Slice(src_shape, n0, last)
    depth = Slice(src_shape, last, end)
    weight_real = Cast<to = 1>(weight)
    weight_shape = Shape(weight_real)
    columns = Slice(weight_shape, n1, n2)
    dst_shape = Concat<axis = 0>(lead, columns)
    all_sizes = Concat<axis = 0>(dst_shape, depth)
    least_size = ReduceMin<keepdims = 0>(all_sizes)
    has_elements = Cast<to = 9>(least_size)
    dst_real = If(has_elements) <
        then_branch = filled () => (float[] dst_computed) {{ {_product("dst_computed", opset, flat)} }},
        else_branch = without_elements () => (float[] dst_of_zeros) {{ dst_of_zeros = Expand(zero, dst_shape) }}
    >
    {cast_like("dst", "dst_real", "src", opset)}
}}"""


def _product(result: str, opset: int, flat: str) -> str:
    """Sets `result`, float32, to the product, which has elements."""
    return f"""{whole_blocks()}
    one_behind_3d = Constant<value = int64[6] {{0, 0, 0, 0, 0, 1}}>()
    one_below_3d = Constant<value = int64[6] {{0, 0, 0, 1, 0, 0}}>()
    pads_behind = Mul(one_behind_3d, padding)
    pads_below = Mul(one_below_3d, padding)

    src_real = Cast<to = 1>(src)
    rows_shape = Concat<axis = 0>(last, depth)
    rows = {flat}(src_real, rows_shape)
    given_scale = Cast<to = 1>(scale)
    parts_shape = Concat<axis = 0>(depth, last)
    scale_real = {flat}(given_scale, parts_shape)
    scale_shape = Shape(scale_real)
    parts = Slice(scale_shape, n1, n2)
    size = Div(columns, parts)
    scale_by_part = Transpose<perm = [1, 0]>(scale_real)
    part_scales = Unsqueeze(scale_by_part, n1)
    products_of_scales = Mul(rows, part_scales)
    padded_rows = Pad(products_of_scales, pads_behind, zero)
    blocks_of_rows = Concat<axis = 0>(n1, parts, last, blocks, block)
    by_row = {flat}(padded_rows, blocks_of_rows)
    by_block = Transpose<perm = [0, 1, 3, 2, 4]>(by_row)
    {words("row", "by_block", opset)}
    row_factors = Cast<to = 11>(row_words)

    weight_parts_shape = Concat<axis = 0>(depth, parts, size)
    weight_parts = {flat}(weight_real, weight_parts_shape)
    zero_point_real = Cast<to = 1>(zero_point)
    given_shape = Shape(scale)
    given_zero_points = Expand(zero_point_real, given_shape)
    zero_points = {flat}(given_zero_points, scale_shape)
    part_zero_points = Unsqueeze(zero_points, n2)
    centered = Sub(weight_parts, part_zero_points)
    padded_weight = Pad(centered, pads_below, zero)
    weight_blocks_shape = Concat<axis = 0>(n1, blocks, block, parts, size)
    weight_blocks = {flat}(padded_weight, weight_blocks_shape)
    weight_by_part = Transpose<perm = [0, 3, 1, 2, 4]>(weight_blocks)
    weight_factors = Cast<to = 11>(weight_by_part)

    exact = MatMul(row_factors, weight_factors)
    real = Cast<to = 1>(exact)
    by_step = Mul(real, row_step)
    block_axis = Constant<value = int32 {{2}}>()
    cumulated = CumSum(by_step, block_axis)
    all_blocks = Slice(cumulated, last, end, n2)
    parts_of_rows = Transpose<perm = [0, 2, 3, 1, 4]>(all_blocks)
    {result} = {flat}(parts_of_rows, dst_shape)"""


_OPERATOR = Operator(
    "CompressedMatMul",
    "Multiplies floats by a matrix of codes. Its rows have a scale and a zero point for each part of the columns. "
    "The scales vary along the sums, so each part has its own left factor, `src` times its scales, which become words "
    "of 16 bits as in [CompressedAttention](#compressedattention). Sums are exact, so results depend neither on other "
    "rows nor on how many there are.",
    "For each row i of src, part g of the columns, and column c of it:\n"
    "z_k = src[i, k] * scale[k, g]; z_b are those of block b, k from 256 * b to 256 * b + 255\n"
    "words(x) = round(x * (1 / step(x))), where step(x) = max(2^-126, the largest |x| / 32512)\n"
    "exact_b = sum over k in b of words(z_b)[k] * (weight[k, c] - zero_point[k, g])\n"
    "dst = sum over b, in order, of float32(exact_b) * step(z_b)",
    (
        Input("src", FLOATS, "Any shape of rank 1 or more, [..., M, K]."),
        Input("weight", CODE_TYPES, "[K, N]."),
        Input("scale", FLOATS, "[K, parts]; the number of parts, adjacent columns, divides N. [K]: one part."),
        Input("zero_point", CODE_TYPES, "The type of `weight`; the shape of `scale`, or one element."),
    ),
    (
        Input(
            "dst",
            FLOATS,
            "[..., M, N], of the type of `src`, rounded once. NaN in a part of a row if a product of the row and a "
            "scale of the part is NaN or infinite. 0 if K is 0.",
            shape=matrix_product,
        ),
    ),
    (),
    tuple(Signature((src, codes, scale, codes), (src,)) for src in FLOATS for scale in FLOATS for codes in CODE_TYPES),
    _body,
)

FAMILY = Family(
    "Products with compressed matrices",
    "float16 is converted to float32, exactly.",
    (_OPERATOR,),
)
