"""WordConv: a convolution of floats by weights of 12 bits, with exact sums."""

from __future__ import annotations

from collections.abc import Sequence

from .conv_text import CONSTANTS, geometry, patches
from .function_text import integers, reshape
from .quantized_conv import AUTO_PAD, GEOMETRY, GROUP, OUTPUT_LENGTH
from .row_program import tail_text, with_program
from .shapes import convolution
from .spec import Family, Input, Operator, Signature
from .word_matmul import MAX_SRC_WORD, MAX_WEIGHT_WORD
from .word_text import BLOCK, whole_blocks, word_constants, words


def _body(opset: int, programs: Sequence[str] = ()) -> str:
    # Sums of words are exact in doubles. The products below are of [groups, blocks, positions of all samples, 256] and
    # [groups, blocks, 256, outputs of a group].
    flat = reshape(opset)
    return f"""{{
        {integers(5)}
        {CONSTANTS}
        {word_constants(MAX_SRC_WORD)}
        src_shape = Shape(src)
        samples = Slice(src_shape, n0, n1)
        channels = Slice(src_shape, n1, n2)
        {geometry()}

        image_shape = Concat<axis = 0>(channels, lengths)
        image_size = ReduceProd<keepdims = 1>(image_shape)
        by_sample_shape = Concat<axis = 0>(samples, n1, n1, n1, image_size)
        by_sample = {flat}(src, by_sample_shape)
        {words("sample", "by_sample", opset)}
        src_3d_shape = Concat<axis = 0>(samples, groups, group_channels, lengths)
        src_3d = {flat}(sample_words, src_3d_shape)
        no_pads = Concat<axis = 0>(n0, n0, n0)
        pads = Concat<axis = 0>(no_pads, begin, no_pads, behind)
        padded_0 = Pad(src_3d, pads, zero)
        {patches("samples", opset)}

        {whole_blocks()}
        block_pads = Concat<axis = 0>(n0, n0, n0, n0, n0, padding)
        whole_patches = Pad(patches, block_pads, zero)
        patch_blocks_shape = Concat<axis = 0>(groups, rows, blocks, block)
        patch_blocks = {flat}(whole_patches, patch_blocks_shape)
        factors = Transpose<perm = [0, 2, 1, 3]>(patch_blocks)
        left = Cast<to = 11>(factors)
        real_weights = Cast<to = 1>(weight)
        weights_shape = Concat<axis = 0>(groups, group_outputs, depth)
        weights = {flat}(real_weights, weights_shape)
        whole_weights = Pad(weights, block_pads, zero)
        weight_blocks_shape = Concat<axis = 0>(groups, group_outputs, blocks, block)
        weight_blocks = {flat}(whole_weights, weight_blocks_shape)
        columns = Transpose<perm = [0, 2, 3, 1]>(weight_blocks)
        right = Cast<to = 11>(columns)
        exact = MatMul(left, right)
        real_sums = Cast<to = 1>(exact)

        split_shape = Concat<axis = 0>(groups, blocks, samples, count, group_outputs)
        split = {flat}(real_sums, split_shape)
        by_channel = Transpose<perm = [2, 1, 0, 4, 3]>(split)
        sums_shape = Concat<axis = 0>(samples, blocks, outputs, count)
        sums = {flat}(by_channel, sums_shape)
        scale_of_channels = Unsqueeze(channel_scale, n1)
        by_scale = Mul(sums, scale_of_channels)
        step_shape = Concat<axis = 0>(samples, n1, n1, n1)
        step_of_samples = {flat}(sample_step, step_shape)
        terms = Mul(by_scale, step_of_samples)
        bias_of_channels = Unsqueeze(bias, n1)
        first_shape = Concat<axis = 0>(samples, n1, outputs, count)
        first = Expand(bias_of_channels, first_shape)
        all_terms = Concat<axis = 1>(first, terms)
        block_axis = Constant<value = int32 {{1}}>()
        cumulated = CumSum(all_terms, block_axis)
        total = Slice(cumulated, last, end, n1)
        dst_counts = Slice(counts, lacking, end)
        dst_shape = Concat<axis = 0>(samples, outputs, dst_counts)
        x = {flat}(total, dst_shape)
        {tail_text(programs, opset) if programs else ""}
        dst = Identity({"dst_real" if programs else "x"})
    }}"""


_OPERATOR = Operator(
    "WordConv",
    "A convolution of floats by weights of 12 bits. Each sample of `src` becomes words of 13 bits, with a step of its "
    f"own. The integer sums of each {BLOCK} weights of an output channel are exact. So results depend neither on other "
    "samples nor on how many there are. The kernel must fit in src with its pads.",
    f"{OUTPUT_LENGTH}\n"
    "For each sample x of src and each output channel c; its weights, those of the input channels of its group, "
    f"row-major, are in blocks of {BLOCK}:\n"
    f"words(x) = round(x * (1 / step(x))), where step(x) = max(2^-126, the largest |x| / {MAX_SRC_WORD})\n"
    "exact_b = sum over the weights in b of weight * words(x) there, or 0 in the padding\n"
    "dst = bias[c] + sum over b, in order, of float32(exact_b) * channel_scale[c] * step(x)",
    (
        Input("src", ("float32",), "[N, C, D1, ..., Dr] with r = 1, 2 or 3."),
        Input(
            "weight",
            ("int16",),
            f"[M, C / group, k1, ..., kr], from -{MAX_WEIGHT_WORD} to {MAX_WEIGHT_WORD}; others are an error.",
        ),
        Input("channel_scale", ("float32",), "[M], the scales of the weights."),
        Input("bias", ("float32",), "[M]; -0.0 leaves the result unchanged."),
        GEOMETRY,
    ),
    (
        Input(
            "dst",
            ("float32",),
            "[N, M, O1, ..., Or]. NaN if an element of the sample is NaN or infinite.",
            shape=convolution(3),
        ),
    ),
    (GROUP, AUTO_PAD),
    (Signature(("float32", "int16", "float32", "float32", "int32"), ("float32",)),),
    _body,
)

FAMILY = Family(
    "Convolutions of words",
    "As [products of words](#products-of-words), for convolutions.",
    (_OPERATOR, with_program(_OPERATOR, _body, "A row is one channel: `row1` is [M, 1, ..., 1].")),
)
