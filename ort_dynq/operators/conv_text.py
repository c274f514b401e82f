"""Pieces of function bodies for convolutions. Their image has three spatial dimensions.

Missing dimensions have length 1 and come first. A body must have :data:`CONSTANTS`, :func:`integers` up to 4, and
``end``, beyond every dimension. Patches are gathered: the attributes of standard convolutions cannot come from an
input.
"""

from __future__ import annotations

from .encodings import AutoPad
from .function_text import integer, reshape, select

CONSTANTS = "\n".join(f"n{i} = Constant<value_ints = [{i}]>()" for i in range(6))
"""Sets ``n0``, ``n1``, ..., ``n5`` to vectors of these numbers."""


def geometry() -> str:
    """Sets the geometry of a convolution, as vectors of three elements or one.

    ``lengths`` of the image, ``kernel``, ``stride``, ``dilation`` and ``span`` of the kernels, the pads ``begin`` and
    ``behind``, ``groups``, ``group_channels``, ``outputs`` and ``group_outputs``. The body must define ``src_shape``
    and ``channels``.
    """
    return f"""ones_3 = Constant<value_ints = [1, 1, 1]>()
        no_geometry = Constant<value = int64[5, 3] {{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0}}>()
        group = Constant<value_int: int = @group>()
        auto_pad = Constant<value_int: int = @auto_pad>()
        rank = Shape(src_shape)
        lacking = Sub(n5, rank)
        given_lengths = Slice(src_shape, n2, end)
        lacking_ones = Slice(ones_3, n0, lacking)
        lengths = Concat<axis = 0>(lacking_ones, given_lengths)
        given_geometry = Cast<to = 7>(geometry)
        lacking_geometry = Slice(no_geometry, n0, lacking, n1)
        full_geometry = Concat<axis = 1>(lacking_geometry, given_geometry)
        kernel = Gather(full_geometry, {integer(0)})
        stride = Gather(full_geometry, {integer(1)})
        dilation = Gather(full_geometry, {integer(2)})
        given_begin = Gather(full_geometry, {integer(3)})
        given_end = Gather(full_geometry, {integer(4)})
        groups = Unsqueeze(group, n0)
        group_channels = Div(channels, groups)
        outputs = Shape(bias)
        group_outputs = Div(outputs, groups)

        kernel_less_1 = Sub(kernel, n1)
        dilated_less_1 = Mul(kernel_less_1, dilation)
        span = Add(dilated_less_1, n1)
        rounding = Sub(stride, n1)
        rounded_lengths = Add(lengths, rounding)
        same_counts = Div(rounded_lengths, stride)
        same_less_1 = Sub(same_counts, n1)
        last_patch = Mul(same_less_1, stride)
        covered = Add(last_patch, span)
        not_in_src = Sub(covered, lengths)
        same_pads = Max(not_in_src, n0)
        smaller_pads = Div(same_pads, n2)
        larger_pads = Sub(same_pads, smaller_pads)
        is_explicit = Equal(auto_pad, {integer(AutoPad.EXPLICIT)})
        is_lower = Equal(auto_pad, {integer(AutoPad.SAME_LOWER)})
        same_begin = Where(is_lower, larger_pads, smaller_pads)
        same_end = Where(is_lower, smaller_pads, larger_pads)
        {select("begin", "is_explicit", "given_begin", "same_begin", "int64")}
        {select("behind", "is_explicit", "given_end", "same_end", "int64")}"""


def patches(images: str, opset: int) -> str:
    """Sets ``patches``, [groups, images * positions, depth], of padded images, ``padded_0``.

    They are [images, groups, channels of a group, the padded lengths]. Sets ``counts``, ``count`` and ``rows``, the
    positions of an image along each dimension and in all, and those of all images; ``depth``, the elements of a patch;
    and ``positions``, those of a kernel. The body must contain :func:`geometry`.

    Args:
        images: The number of images, a vector.
        opset: The version of the standard operators.
    """
    gathered = "\n".join(_indices(axis) for axis in range(3))
    return f"""begin_and_length = Add(lengths, begin)
        padded_lengths = Add(begin_and_length, behind)
        room = Sub(padded_lengths, span)
        steps = Div(room, stride)
        counts = Add(steps, n1)
        {gathered}
        by_group = Transpose<perm = [1, 0, 3, 5, 7, 2, 4, 6, 8]>(padded_3)
        count = ReduceProd<keepdims = 1>(counts)
        rows = Mul({images}, count)
        positions = ReduceProd<keepdims = 1>(kernel)
        depth = Mul(group_channels, positions)
        patches_shape = Concat<axis = 0>(groups, rows, depth)
        patches = {reshape(opset)}(by_group, patches_shape)"""


def _indices(axis: int) -> str:
    """Sets padded_`axis + 1`: padded_`axis` with its spatial dimension `axis` split into [positions, kernel]."""
    return f"""
        count_{axis} = Gather(counts, {integer(axis)})
        kernel_{axis} = Gather(kernel, {integer(axis)})
        stride_{axis} = Gather(stride, {integer(axis)})
        dilation_{axis} = Gather(dilation, {integer(axis)})
        starts_{axis} = Range({integer(0)}, count_{axis}, {integer(1)})
        first_{axis} = Mul(starts_{axis}, stride_{axis})
        column_{axis} = Unsqueeze(first_{axis}, n1)
        taps_{axis} = Range({integer(0)}, kernel_{axis}, {integer(1)})
        distance_{axis} = Mul(taps_{axis}, dilation_{axis})
        index_{axis} = Add(column_{axis}, distance_{axis})
        padded_{axis + 1} = Gather<axis = {3 + 2 * axis}>(padded_{axis}, index_{axis})
    """
