"""QuantizedConv: a convolution of codes by packed 8-bit weights, to float32 or float16, in one operator."""

from __future__ import annotations

from collections.abc import Sequence

from .conv_text import CONSTANTS, geometry, patches
from .encodings import AutoPad, QuadAxis, ScaleOrder
from .function_text import cast_like, integer, integers, reshape, scaled, select, unsigned_codes
from .quantized_matmul import MAX_SUM_LENGTH, MAX_SYMMETRIC_SUM_LENGTH, TERM_RATIO
from .row_program import tail_text, with_program
from .shapes import convolution
from .spec import FLOATS, Attribute, Family, Input, Operator, Signature


def _body(opset: int, programs: Sequence[str] = ()) -> str:
    # ConvInteger has no zero points per channel, and ONNX Runtime 1.20.1 rejects int8 codes and weights. So patches are
    # multiplied. Weights are uint8, since ONNX Runtime's sums of uint8 and int8 products saturate on some CPUs.
    flat = reshape(opset)
    return f"""{{
        {integers(5)}
        {CONSTANTS}
        end = Constant<value_ints = [{2**63 - 1}]>()
        zero = Constant<value_float = 0.0>()
        one = Constant<value_float = 1.0>()
        one_code = Constant<value = uint8 {{1}}>()
        half = Constant<value = int32 {{128}}>()
        quad_axis = Constant<value_int: int = @quad_axis>()
        scale_order = Constant<value_int: int = @scale_order>()
        terms = Constant<value_int: int = @terms>()
        term_count = Unsqueeze(terms, n0)

        src_shape = Shape(src)
        samples = Slice(src_shape, n0, n1)
        batch = Mul(samples, term_count)
        channels_of_terms = Slice(src_shape, n1, n2)
        channels = Div(channels_of_terms, term_count)
        {geometry()}

        zero_point_size = Size(zero_point)
        zero_point_count = Unsqueeze(zero_point_size, n0)
        zero_points = {flat}(zero_point, zero_point_count)
        {unsigned_codes("src", "zero_points")}
        given_zero_points_int = Cast<to = 6>(zero_points)
        some_zero_points_int = Sub(given_zero_points_int, lowest)
        terms_and_samples = Concat<axis = 0>(term_count, samples)
        zero_points_int = Expand(some_zero_points_int, terms_and_samples)
        padding_codes = Cast<to = 2>(zero_points_int)
        padding_shape = Concat<axis = 0>(batch, n1, n1, n1, n1, n1)
        padding = {flat}(padding_codes, padding_shape)
        image_shape = Concat<axis = 0>(channels, lengths)
        image_size = ReduceProd<keepdims = 1>(image_shape)
        by_sample_shape = Concat<axis = 0>(samples, term_count, image_size)
        by_sample = {flat}(codes_of_src, by_sample_shape)
        by_term = Transpose<perm = [1, 0, 2]>(by_sample)
        src_3d_shape = Concat<axis = 0>(batch, groups, group_channels, lengths)
        src_3d = {flat}(by_term, src_3d_shape)
        no_pads = Concat<axis = 0>(n0, n0, n0)
        pads = Concat<axis = 0>(no_pads, begin, no_pads, behind)
        codes_and_zeros = Pad(src_3d, pads)
        inside_shape = Concat<axis = 0>(n1, n1, n1, lengths)
        inside_src = Expand(one_code, inside_shape)
        inside_codes = Pad(inside_src, pads)
        is_inside = Cast<to = 9>(inside_codes)
        padded_0 = Where(is_inside, codes_and_zeros, padding)
        {patches("batch", opset)}

        is_channels = Equal(quad_axis, {integer(QuadAxis.CHANNELS)})
        width = Slice(kernel, n2, end)
        {select("inner", "is_channels", "group_channels", "width", "int64")}
        outer = Div(depth, inner)
        inner_and_3 = Add(inner, n3)
        quads = Div(inner_and_3, n4)
        padded_inner = Mul(quads, n4)
        packed = Cast<to = 6>(weight)
        unsigned = Add(packed, half)
        by_depth = Transpose<perm = [1, 3, 0, 2]>(unsigned)
        packed_shape = Shape(by_depth)
        column_parts = Slice(packed_shape, n2, end)
        padded_columns = ReduceProd<keepdims = 1>(column_parts)
        padded_shape = Concat<axis = 0>(outer, padded_inner, padded_columns)
        padded_weights = {flat}(by_depth, padded_shape)
        starts = Concat<axis = 0>(n0, n0)
        ends = Concat<axis = 0>(inner, outputs)
        axes = Concat<axis = 0>(n1, n2)
        matrix = Slice(padded_weights, starts, ends, axes)
        matrix_codes = Cast<to = 2>(matrix)
        matrix_of_channels = Transpose<perm = [1, 0, 2]>(matrix_codes)
        {select("channels_first", "is_channels", "matrix_of_channels", "matrix_codes", "uint8")}
        columns_shape = Concat<axis = 0>(depth, groups, group_outputs)
        columns = {flat}(channels_first, columns_shape)
        weights = Transpose<perm = [1, 0, 2]>(columns)
        signed_zero_points = Cast<to = 6>(weight_zero_point)
        unsigned_zero_points = Add(signed_zero_points, half)
        channel_zero_points = Expand(unsigned_zero_points, outputs)
        per_output = Concat<axis = 0>(groups, n1, group_outputs)
        weights_zero_points = {flat}(channel_zero_points, per_output)

        products = MatMulInteger(patches, weights)
        ones_shape = Concat<axis = 0>(groups, depth, n1)
        ones = Expand(one_code, ones_shape)
        sums_of_patches = MatMulInteger(patches, ones)
        correction_of_patches = Mul(sums_of_patches, weights_zero_points)
        centered = Sub(products, correction_of_patches)
        split_shape = Concat<axis = 0>(groups, batch, count, group_outputs)
        split = {flat}(centered, split_shape)
        per_group = Concat<axis = 0>(groups, n1, n1, group_outputs)
        sums_of_channels = {flat}(channel_sum, per_group)
        per_image = Concat<axis = 0>(batch, n1, n1)
        zero_points_of_images = {flat}(zero_points_int, per_image)
        correction = Mul(zero_points_of_images, sums_of_channels)
        exact = Sub(split, correction)
        by_batch = Transpose<perm = [1, 0, 3, 2]>(exact)
        images_shape = Concat<axis = 0>(batch, outputs, count)
        images = {flat}(by_batch, images_shape)
        real = Cast<to = 1>(images)

        scale_size = Size(scale)
        scale_count = Unsqueeze(scale_size, n0)
        last_scales_shape = Concat<axis = 0>(n1, scale_count, n1, n1)
        last_scales = {flat}(scale, last_scales_shape)
        term_ratio = Constant<value_float = {TERM_RATIO}.0>()
        first_scales = Mul(last_scales, term_ratio)
        both_scales = Concat<axis = 0>(first_scales, last_scales)
        first_of_terms = Sub(n2, term_count)
        row = Slice(both_scales, first_of_terms, n2)
        column = Unsqueeze(channel_scale, n1)
        real_bias = Cast<to = 1>(bias)
        channel_bias = Unsqueeze(real_bias, n1)
        terms_shape = Concat<axis = 0>(term_count, samples, outputs, count)
        real_terms = {flat}(real, terms_shape)
        {scaled("real_terms")}
        first_term = Gather<axis = 0>(scaled, {integer(0)})
        last_index = Sub(terms, {integer(1)})
        last_term = Gather<axis = 0>(scaled, last_index)
        both_terms = Add(first_term, last_term)
        has_terms = Equal(terms, {integer(2)})
        {select("sum_of_terms", "has_terms", "both_terms", "first_term")}
        biased = Add(sum_of_terms, channel_bias)
        dst_counts = Slice(counts, lacking, end)
        dst_shape = Concat<axis = 0>(samples, outputs, dst_counts)
        images_of_sums = {flat}(biased, dst_shape)
        x = Identity(images_of_sums)
        {tail_text(programs, opset) if programs else ""}
        real_dst = Identity({"dst_real" if programs else "x"})
        {cast_like("dst", "real_dst", "bias", opset)}
    }}"""


GEOMETRY = Input(
    "geometry",
    ("int32",),
    "[5, r]; the rows are the kernel shape, strides, dilations, leading pads and trailing pads. It is an input, since "
    "onnxruntime-extensions has no attributes with lists.",
)
GROUP = Attribute("group", 1, "The number of groups of channels; 1 or more.")
AUTO_PAD = Attribute("auto_pad", AutoPad.EXPLICIT, "How the pads are determined.", AutoPad)
OUTPUT_LENGTH = "O = floor((D + begin + end - dilation * (k - 1) - 1) / stride) + 1"

_INPUTS = (
    Input(
        "src",
        ("uint8", "int8"),
        "The codes of the activation: [N, C, D1, ..., Dr] with r = 1, 2 or 3; with two terms [N, 2 * C, D1, ..., Dr].",
    ),
    Input("scale", ("float32",), "The scale of the activation: one element, or one for each sample, [N, 1, ..., 1]."),
    Input(
        "zero_point",
        ("uint8", "int8"),
        "The zero point of the activation, of src's type: one element, or one for each sample, [N, 1, ..., 1]. It is "
        "also the value of the padding.",
    ),
    Input(
        "weight",
        ("int8",),
        "The packed weights of [M, C / group, k1, ..., kr]: a matrix of K rows and M columns, packed as for "
        "[QuantizedMatMul](#quantizedmatmul), [ceil(M / 16), K / 4, 16, 4]. `quad_axis` 0: the rows are the kernel "
        "positions, row-major, then the input channels of a group, padded with 0 to a multiple of 4. `quad_axis` 1: "
        "the input channels, the kernel axes but the last, then the last one, padded likewise. Unsigned codes and "
        "their zero points are stored 128 smaller.",
    ),
    Input("weight_zero_point", ("int8",), "The zero points of the weights: one element, or [M]."),
    Input("channel_scale", ("float32",), "[M]: the scales of the weights of each output channel."),
    Input(
        "channel_sum",
        ("int32",),
        "[M]: the sum of the weights of each output channel after their zero point is subtracted.",
    ),
    Input("bias", FLOATS, "[M]; -0.0 leaves the result unchanged."),
    GEOMETRY,
)

QUANTIZED_CONV = Operator(
    "QuantizedConv",
    "A convolution of codes by packed weights. The integer sums are exact: a sum so long that int32 might "
    f"overflow is an error (C / group * k1 * ... * kr over {MAX_SUM_LENGTH}; over {MAX_SYMMETRIC_SUM_LENGTH} for "
    "weights without zero points). The kernel must fit in src with its pads. The formula is for one output "
    "channel; its group has C / group input channels. With two `terms`, each sample of `src` has C channels of codes, "
    "then C channels of codes of what they leave, as [TwoTermQuantize](#twotermquantize) writes them for `axis` 1. "
    f"`dst` is the sum of both results, then the bias; the scale of the first one is `scale * {TERM_RATIO}`.",
    f"{OUTPUT_LENGTH}\n"
    "exact = sum over input channels of the group and kernel positions:\n"
    "        (src - zero_point) * (weight - weight_zero_point)\n"
    "dst = float32(exact) * channel_scale * scale + bias; scale_order is the order of the multiplications",
    _INPUTS,
    (
        Input(
            "dst", FLOATS, "[N, M, O1, ..., Or], of the type of `bias`; float16 is rounded once.", shape=convolution(7)
        ),
    ),
    (
        GROUP,
        AUTO_PAD,
        Attribute("quad_axis", QuadAxis.CHANNELS, "The layout of the packed weights.", QuadAxis),
        Attribute(
            "scale_order",
            ScaleOrder.SCALES_FIRST,
            "The order of the multiplications by both scales, where `column_scale` means `channel_scale`.",
            ScaleOrder,
        ),
        Attribute("terms", 1, "The codes of an element of the activation.", choices=(1, 2)),
    ),
    tuple(
        Signature((code, "float32", code, "int8", "int8", "float32", "int32", bias, "int32"), (bias,))
        for bias in FLOATS
        for code in ("uint8", "int8")
    ),
    _body,
)

FAMILY = Family(
    "Convolutions",
    "`scale` and `zero_point` belong to the activation; the inputs with the prefixes `weight` and `channel` belong to "
    "the weights.",
    (
        QUANTIZED_CONV,
        with_program(
            QUANTIZED_CONV,
            _body,
            "A row is one channel: `row1` is [M, 1, ..., 1]. If `bias` is float16, the program is one Clip.",
        ),
    ),
)
