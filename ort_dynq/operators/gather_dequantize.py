"""GatherDequantize: columns of packed weights as rows of floats, for a table that is the weights of a product."""

from __future__ import annotations

from .function_text import cast_like, parts_of_bytes, reshape
from .packing import BLOCK_COLUMNS, QUAD
from .shapes import gathered
from .spec import FLOATS, Attribute, Input, Operator, Signature


def _body(opset: int) -> str:
    # The first Gather checks the ids, and counts those below 0 from the end.
    flat = reshape(opset)
    return f"""{{
        n0 = Constant<value_ints = [0]>()
        n1 = Constant<value_ints = [1]>()
        n2 = Constant<value_ints = [2]>()
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        lanes = Constant<value_int = {BLOCK_COLUMNS}>()
        quads_shape = Constant<value_ints = [-1, 1, {QUAD}, 1]>()
        {parts_of_bytes()}

        scale_shape = Shape(column_scale)
        groups = Slice(scale_shape, n0, n1)
        column_counts = Slice(scale_shape, n1, n2)
        column_count = Squeeze(column_counts)
        all_columns = Range(zero, column_count, one)
        ids_row = Flatten<axis = 0>(ids)
        column_row = Gather(all_columns, ids_row)
        columns = Squeeze(column_row, n0)
        count = Shape(columns)

        weight_shape = Shape(weight)
        line_counts = Slice(weight_shape, n1, n2)
        line_count = Squeeze(line_counts)
        block_quads = Mul(line_count, lanes)
        blocks = Div(columns, lanes)
        lane = Mod(columns, lanes)
        block_starts = Mul(blocks, block_quads)
        starts = Add(block_starts, lane)
        starts_column = Unsqueeze(starts, n1)
        lines = Range(zero, block_quads, lanes)
        places = Add(starts_column, lines)
        quads = {flat}(weight, quads_shape)
        gathered_quads = Gather(quads, places)
        packed = Cast<to = 6>(gathered_quads)
        shifted = Add(packed, offset)
        bytes = Mod(shifted, byte_base)
        quotients = Div(bytes, parts)
        codes = Mod(quotients, base)

        codes_row = Flatten<axis = 1>(codes)
        row_shape = Shape(codes_row)
        depth = Slice(row_shape, n1, n2)
        size = Div(depth, groups)
        groups_shape = Concat<axis = 0>(count, groups, size)
        codes_of_groups = {flat}(codes, groups_shape)
        expanded_zero_points = Expand(weight_zero_point, scale_shape)
        all_zero_points = {flat}(expanded_zero_points, scale_shape)
        stored_zero_points = Gather<axis = 1>(all_zero_points, columns)
        wide_zero_points = Cast<to = 6>(stored_zero_points)
        shifted_zero_points = Add(wide_zero_points, offset)
        zero_points = Mod(shifted_zero_points, zero_point_base)
        row_zero_points = Transpose<perm = [1, 0]>(zero_points)
        zero_points_of_groups = Unsqueeze(row_zero_points, n2)
        centered = Sub(codes_of_groups, zero_points_of_groups)
        real = Cast<to = 1>(centered)
        stored_scales = Gather<axis = 1>(column_scale, columns)
        scales = Cast<to = 1>(stored_scales)
        row_scales = Transpose<perm = [1, 0]>(scales)
        scales_of_groups = Unsqueeze(row_scales, n2)
        products = Mul(real, scales_of_groups)
        ids_shape = Shape(ids)
        dst_shape = Concat<axis = 0>(ids_shape, depth)
        {cast_like("rows", "products", "column_scale", opset)}
        dst = {flat}(rows, dst_shape)
    }}"""


GATHER_DEQUANTIZE = Operator(
    "GatherDequantize",
    "Gathers columns of the packed weights of a product as rows, and dequantizes them. So a table of embeddings that "
    "the last layer of a language model multiplies by is stored once.",
    "dst[..., k] = (weight[k, ids[...]] - weight_zero_point[g, ids[...]]) * column_scale[g, ids[...]], k in group g",
    (
        Input("ids", ("int64", "int32"), "The columns, any shape: -N to N - 1; those below 0 count from the end."),
        Input("weight", ("int8",), "As in [QuantizedMatMul](#quantizedmatmul), of rank 4 and without padding of K."),
        Input("weight_zero_point", ("int8",), "As in QuantizedMatMul: one element, or [groups, N]."),
        Input("column_scale", FLOATS, "[groups, N]. The groups divide K."),
    ),
    (Input("dst", FLOATS, "[..., K], of the type of `column_scale`; float16 is rounded once.", shape=gathered),),
    (Attribute("bits", 8, "The bits of a weight.", choices=(8, 4, 2)),),
    tuple(Signature((ids, "int8", "int8", scale), (scale,)) for scale in FLOATS for ids in ("int64", "int32")),
    _body,
)
