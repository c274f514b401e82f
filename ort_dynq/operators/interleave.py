"""Interleave: channels that are the phases of an image, side by side."""

from __future__ import annotations

from .function_text import reshape
from .shapes import interleaved
from .spec import FLOATS, Attribute, Family, Input, Operator, Signature

_AXES = 3


def _body(opset: int) -> str:
    # Images get three axes, and the phases of each are beside it: [N, C, s1, s2, s3, d1, d2, d3].
    flat = reshape(opset)
    strides = "\n".join(
        f"stride_int_{i} = Constant<value_int: int = @stride_{i}>()\nlone_{i} = Unsqueeze(stride_int_{i}, zero)"
        for i in range(1, _AXES + 1)
    )
    return f"""{{
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    two = Constant<value_ints = [2]>()
    axes = Constant<value_ints = [{_AXES}]>()
    behind_last = Constant<value_ints = [{2**63 - 1}]>()
    {strides}
    strides = Concat<axis = 0>({", ".join(f"lone_{i}" for i in range(1, _AXES + 1))})
    shape = Shape(src)
    samples = Slice(shape, zero, one)
    all_channels = Slice(shape, one, two)
    lengths = Slice(shape, two, behind_last)
    rank = Shape(lengths)
    missing = Sub(axes, rank)
    ones = Expand(one, missing)
    all_lengths = Concat<axis = 0>(lengths, ones)
    phases = ReduceProd<keepdims = 1>(strides)
    channels = Div(all_channels, phases)
    phases_shape = Concat<axis = 0>(samples, channels, strides, all_lengths)
    by_phase = {flat}(src, phases_shape)
    moved = Transpose<perm = [0, 1, 5, 2, 6, 3, 7, 4]>(by_phase)
    all_dst_lengths = Mul(all_lengths, strides)
    dst_lengths = Slice(all_dst_lengths, zero, rank)
    dst_shape = Concat<axis = 0>(samples, channels, dst_lengths)
    dst = {flat}(moved, dst_shape)
}}"""


INTERLEAVE = Operator(
    "Interleave",
    "Puts channels that are phases of an image side by side. A convolution of the phases and this operator are a "
    "transposed convolution.",
    "dst[n, c, q1 * s1 + r1, ...] = src[n, (c * s1 + r1) * s2 + ..., q1, ...]",
    (Input("src", FLOATS, "[N, C * s1 * ... * sr, d1, ..., dr], where r is 1 to 3."),),
    (Input("dst", FLOATS, "[N, C, d1 * s1, ..., dr * sr].", shape=interleaved),),
    tuple(
        Attribute(f"stride_{i}", 1, f"s{i}, 1 to 65536{'' if i == 1 else '; 1 if the image has fewer axes'}.")
        for i in range(1, _AXES + 1)
    ),
    tuple(Signature((each,), (each,)) for each in FLOATS),
    _body,
)

FAMILY = Family("Transposed convolutions", "What a transposed convolution has behind its products.", (INTERLEAVE,))
