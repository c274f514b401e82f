"""WordMatMul: floats times packed weights of 12 bits, with exact sums."""

from __future__ import annotations

from collections.abc import Sequence

from .function_text import product_of, reshape, stack_dims
from .row_program import tail_text, with_program
from .shapes import product
from .spec import Family, Input, Operator, Signature
from .word_text import BLOCK, whole_blocks, word_constants, words

MAX_SRC_WORD = 4095
MAX_WEIGHT_WORD = 2047
"""The largest magnitudes; ops/operators/word_matmul.cc has the same."""
assert MAX_SRC_WORD * MAX_WEIGHT_WORD * BLOCK < 2**31, "sums of a block are exact in int32"


def _body(opset: int, programs: Sequence[str] = ()) -> str:
    # Sums of words are exact in doubles. The shapes below are [..., blocks, M, 256] and [..., blocks, 256, N]: MatMul
    # broadcasts the matrices of the activation and of stacked weights, if there is a stack.
    vectors = "\n".join(f"n{i} = Constant<value_ints = [{i}]>()" for i in range(3))
    return f"""{{
    {vectors}
    minus_2 = Constant<value_ints = [-2]>()
    minus_4 = Constant<value_ints = [-4]>()
    {word_constants(MAX_SRC_WORD)}
    src_shape = Shape(src)
    lead = Slice(src_shape, n0, last)
    depth = Slice(src_shape, last, end)
    {stack_dims()}
    zeros_of_batch = Expand(zero, batch)
    zeros_of_stack = Expand(zero, stack)
    zeros_of_dst = Add(zeros_of_batch, zeros_of_stack)
    dst_batch = Shape(zeros_of_dst)
    dst_shape = Concat<axis = 0>(dst_batch, row_dims, columns)
    all_sizes = Concat<axis = 0>(dst_shape, depth)
    least_size = ReduceMin<keepdims = 0>(all_sizes)
    has_products = Cast<to = 9>(least_size)
    bias_of_rows = Unsqueeze(bias, minus_2)
    x = If(has_products) <
        then_branch = filled () => (float[] sums) {{ {_product("sums", opset)} }},
        else_branch = without_products () => (float[] biases) {{
            expanded = Expand(bias_of_rows, dst_shape)
            biases = {reshape(opset)}(expanded, dst_shape)
        }}
    >
    {tail_text(programs, opset) if programs else ""}
    dst = Identity({"dst_real" if programs else "x"})
}}"""


def _product(result: str, opset: int) -> str:
    """Sets `result`, float32, to the product, which has elements and a depth."""
    flat = reshape(opset)
    return f"""{whole_blocks()}
        one_behind_3d = Constant<value = int64[6] {{0, 0, 0, 0, 0, 1}}>()
        one_below_3d = Constant<value = int64[6] {{0, 0, 0, 0, 1, 0}}>()
        pads_behind = Mul(one_behind_3d, padding)
        pads_below = Mul(one_below_3d, padding)

        {product_of("matrices", "batch")}
        {product_of("rows", "row_dims")}
        src_matrices_shape = Concat<axis = 0>(matrices, rows, depth)
        src_matrices = {flat}(src, src_matrices_shape)
        padded_src = Pad(src_matrices, pads_behind, zero)
        src_blocks_shape = Concat<axis = 0>(n1, matrices, rows, blocks, block)
        src_blocks = {flat}(padded_src, src_blocks_shape)
        {words("row", "src_blocks", opset)}
        by_block = Transpose<perm = [0, 1, 3, 2, 4]>(row_words)
        factors_shape = Concat<axis = 0>(batch, blocks, rows, block)
        factors = {flat}(by_block, factors_shape)
        left = Cast<to = 11>(factors)
        steps_by_block = Transpose<perm = [0, 1, 3, 2, 4]>(row_step)
        steps_shape = Concat<axis = 0>(batch, blocks, rows, n1)
        steps = {flat}(steps_by_block, steps_shape)

        {product_of("weight_count", "stack")}
        packed_shape = Concat<axis = 0>(weight_count, packed_dims)
        packed = {flat}(weight, packed_shape)
        real_packed = Cast<to = 1>(packed)
        by_depth = Transpose<perm = [0, 2, 4, 1, 3]>(real_packed)
        pairs = Slice(packed_dims, n1, n2)
        two = Constant<value_ints = [2]>()
        padded_depth = Mul(pairs, two)
        panels = Slice(packed_dims, n0, n1)
        panel_columns = Slice(packed_dims, n2, last)
        padded_columns = Mul(panels, panel_columns)
        padded_shape = Concat<axis = 0>(weight_count, padded_depth, padded_columns)
        padded_weights = {flat}(by_depth, padded_shape)
        starts = Concat<axis = 0>(n0, n0)
        ends = Concat<axis = 0>(depth, columns)
        matrix_axes = Constant<value_ints = [1, 2]>()
        weights = Slice(padded_weights, starts, ends, matrix_axes)
        whole_weights = Pad(weights, pads_below, zero)
        weight_blocks_shape = Concat<axis = 0>(stack, blocks, block, columns)
        weight_blocks = {flat}(whole_weights, weight_blocks_shape)
        right = Cast<to = 11>(weight_blocks)

        exact = MatMul(left, right)
        real_sums = Cast<to = 1>(exact)
        scale_of_rows = Unsqueeze(column_scale, minus_2)
        scale_of_blocks = Unsqueeze(scale_of_rows, minus_2)
        by_scale = Mul(real_sums, scale_of_blocks)
        terms = Mul(by_scale, steps)
        total_shape = Concat<axis = 0>(dst_batch, n1, rows, columns)
        bias_of_blocks = Unsqueeze(bias_of_rows, minus_2)
        first = Expand(bias_of_blocks, total_shape)
        all_terms = Concat<axis = -3>(first, terms)
        block_axis = Constant<value = int32 {{-3}}>()
        cumulated = CumSum(all_terms, block_axis)
        minus_3 = Constant<value_ints = [-3]>()
        total = Slice(cumulated, last, end, minus_3)
        {result} = {flat}(total, dst_shape)"""


_OPERATOR = Operator(
    "WordMatMul",
    "Multiplies floats by weights of 12 bits. Each block of 256 elements of a row of `src` becomes words of 13 bits, "
    "with a step of its own. The integer sums of a block are exact. So results depend neither on other rows nor on how "
    "many there are. Weights may be a stack of matrices: `weight`, `column_scale` and `bias` then begin with the "
    "dimensions of the stack, which broadcast with the leading dimensions of `src` as in MatMul.",
    "For each row i of src and each column c; x_b are the elements of block b, k from 256 * b to 256 * b + 255:\n"
    f"words(x) = round(x * (1 / step(x))), where step(x) = max(2^-126, the largest |x| / {MAX_SRC_WORD})\n"
    "exact_b = sum over k in b of words(x_b)[k] * weight[k, c]\n"
    "dst = bias[c] + sum over b, in order, of float32(exact_b) * column_scale[c] * step(x_b)",
    (
        Input(
            "src", ("float32",), "Any shape of rank 1 or more, [..., M, K]. With stacked weights, of rank 2 or more."
        ),
        Input(
            "weight",
            ("int16",),
            f"The packed weights, from -{MAX_WEIGHT_WORD} to {MAX_WEIGHT_WORD}; others are an error. "
            "[ceil(N / 32), ceil(K / 2), 32, 2], where weight[n / 32, k / 2, n % 32, k % 2] is the word of row k and "
            "column n. Padding is 0. Stacked weights have the dimensions of the stack before these.",
        ),
        Input("column_scale", ("float32",), "[N], the scales of the weights."),
        Input("bias", ("float32",), "[N]; -0.0 leaves the result unchanged. Of rank 13 or less, with the stack."),
    ),
    (
        Input(
            "dst",
            ("float32",),
            "[..., M, N]. NaN if an element of the row is NaN or infinite. `bias` if K is 0.",
            shape=product(3),
        ),
    ),
    (),
    (Signature(("float32", "int16", "float32", "float32"), ("float32",)),),
    _body,
)

FAMILY = Family(
    "Products of words",
    "Words are integers of 12 or 13 bits: 8 bits lose too much of some networks, and products of words are faster than "
    "those of floats. [Numerics](numerics.md#words) has the bounds of errors.",
    (_OPERATOR, with_program(_OPERATOR, _body, "A row has the N columns.")),
)
