"""Pieces of function bodies, in the text syntax of ``onnx.parser``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .encodings import ScaleOrder


def integers(count: int) -> str:
    """Constants named ``i0``, ``i1``, ...: the integers below `count`. See :func:`integer`."""
    return "\n".join(f"{integer(value)} = Constant<value_int = {value}>()" for value in range(count))


def integer(value: int) -> str:
    """The name that :func:`integers` gives to the constant `value`, an integer or a member of an encoding."""
    return f"i{int(value)}"


def select(name: str, condition: str, then: str, otherwise: str, element: str = "float") -> str:
    """Sets `name`, a tensor of elements of type `element`, to one of two values.

    The operator is If, because ONNX Runtime's Where loses the sign of -0, and because the rewriter removes an If with
    a branch that is known.
    """

    def branch(which: str, value: str) -> str:
        return f"{which}_{name} () => ({element}[] {name}_{which}) {{ {name}_{which} = Identity({value}) }}"

    return f"""{name} = If({condition}) <
        then_branch = {branch("then", then)},
        else_branch = {branch("else", otherwise)}
    >"""


def largest(name: str, value: str, least: str, opset: int) -> str:
    """Sets `name` to the largest number along the last dimension of a value, at least `least`, a number.

    There may be none: ONNX Runtime's ReduceMax fails then. The body must define ``last``, the axis -1 as a vector, and
    ``one_behind``, the pads that put one number behind the last dimension.
    """
    attribute, axes = ("", ", last") if opset >= 18 else (", axes = [-1]", "")
    return f"""{name}_padded = Pad({value}, one_behind, {least})
    {name} = ReduceMax<keepdims = 1{attribute}>({name}_padded{axes})"""


def inverse(name: str, value: str) -> str:
    """Sets `name` to 1 / value. The body must define ``one``, 1.

    The Sum of one value is a copy. Without it, ONNX Runtime's optimizer makes y / value of y * (1 / value), which has
    other bits.
    """
    return f"""{name}_alone = Div(one, {value})
    {name} = Sum({name}_alone)"""


def product_of(name: str, dims: str) -> str:
    """Sets `name` to the product of dimensions, [1]; of none it is 1. The body must define ``n1``, 1 as a vector."""
    return f"""one_and_{dims} = Concat<axis = 0>(n1, {dims})
    {name} = ReduceProd<keepdims = 1>(one_and_{dims})"""


def stack_dims() -> str:
    """Sets the dimensions of a product with packed weights of rank 4, or a stack of them, as vectors.

    ``columns`` of the bias; ``stack`` and ``packed_dims``, the first and the last four dimensions of the weights;
    ``batch``, the leading dimensions of the activation that broadcast with the stack, and ``row_dims``, the others.
    The body must define ``lead``, all of these, ``n0``, ``n1``, ``minus_4``, ``last`` and ``end``.
    """
    return """bias_shape = Shape(bias)
    columns = Slice(bias_shape, last, end)
    weight_shape = Shape(weight)
    stack = Slice(weight_shape, n0, minus_4)
    packed_dims = Slice(weight_shape, minus_4, end)
    stack_rank = Shape(stack)
    has_stack = Greater(stack_rank, n0)
    lead_rank = Shape(lead)
    without_rows = Sub(lead_rank, n1)
    batch_rank = Where(has_stack, without_rows, n0)
    batch = Slice(lead, n0, batch_rank)
    row_dims = Slice(lead, batch_rank, end)"""


def parts_of_bytes() -> str:
    """Sets what makes codes of the bytes of packed weights, by the attribute ``bits``.

    Codes are (byte + ``offset``) mod ``byte_base`` / ``parts`` mod ``base``; ``parts`` is [1, 1, codes of a byte, 1,
    1]. Zero points are (their byte + ``offset``) mod ``zero_point_base``. The body must define ``n0`` and ``n2``.
    """
    return """pair_base = Constant<value = int32 {4}>()
    low_base = Constant<value = int32 {16}>()
    byte_base = Constant<value = int32 {256}>()
    half = Constant<value = int32 {128}>()
    part_bases = Constant<value = int32[1, 1, 4, 1, 1] {1, 16, 4, 64}>()
    nothing = Constant<value = int32 {0}>()
    bits = Constant<value_int: int = @bits>()
    two_bits = Constant<value_int = 2>()
    eight_bits = Constant<value_int = 8>()
    is_2bit = Equal(bits, two_bits)
    is_8bit = Equal(bits, eight_bits)
    offset = Where(is_8bit, half, nothing)
    zero_point_base = Where(is_8bit, byte_base, low_base)
    base = Where(is_2bit, pair_base, zero_point_base)
    parts_of_byte = Div(eight_bits, bits)
    part_count = Unsqueeze(parts_of_byte, n0)
    parts = Slice(part_bases, n0, part_count, n2)"""


def horner(x: str, to: str, coefficients: Sequence[float]) -> Iterator[str]:
    """The nodes of a polynomial. The coefficient of the highest power is the first one."""
    for i, number in enumerate(coefficients):
        name = to if i == len(coefficients) - 1 else f"{to}_{i}"
        if i == 0:
            yield f"{name} = Constant<value_float = {number}>()"
        else:
            yield f"{to}_m{i} = Mul({to}_{i - 1}, {x})"
            yield f"{to}_c{i} = Constant<value_float = {number}>()"
            yield f"{name} = Add({to}_m{i}, {to}_c{i})"


def cast_like(name: str, value: str, like: str, opset: int) -> str:
    """Sets `name` to a float32 value in the type of `like`: float32 before opset 15, which introduced CastLike."""
    return f"{name} = CastLike({value}, {like})" if opset >= 15 else f"{name} = Identity({value})"


def unsigned_codes(src: str, zero_points: str) -> str:
    """Sets ``codes_of_src`` to codes as uint8, and ``lowest`` to the int32 that was subtracted: -128 of int8, or 0.

    ONNX Runtime 1.20 has no MatMulInteger of int8 codes. The lowest code of a type is that of a large negative number.
    The body must define ``one``, the float32 number 1. `zero_points` is a vector; it may have no elements.
    """
    return f"""one_more = Constant<value = int64[2] {{0, 1}}>()
        minus_1 = Constant<value_ints = [-1]>()
        behind_all = Constant<value_ints = [{2**63 - 1}]>()
        below_all = Constant<value_float = -1000.0>()
        points_and_zero = Pad({zero_points}, one_more)
        zero_codes = Slice(points_and_zero, minus_1, behind_all)
        zero_code = Squeeze(zero_codes)
        lowest_code = QuantizeLinear(below_all, one, zero_code)
        lowest = Cast<to = 6>(lowest_code)
        wide_codes = Cast<to = 6>({src})
        codes_from_0 = Sub(wide_codes, lowest)
        codes_of_src = Cast<to = 2>(codes_from_0)"""


def scaled(value: str) -> str:
    """Sets ``scaled`` to a value times ``row`` and ``column``, in the order that ``scale_order`` selects.

    The body must define the integers up to 2 (:func:`integers`) and ``one``, the float32 number 1.
    """
    return f"""is_scales_first = Equal(scale_order, {integer(ScaleOrder.SCALES_FIRST)})
        is_row_first = Equal(scale_order, {integer(ScaleOrder.ROW_FIRST)})
        {select("first_of_two", "is_row_first", "row", "column")}
        {select("second_of_two", "is_row_first", "column", "row")}
        scaled = If(is_scales_first) <
            then_branch = by_both () => (float[] by_scales) {{
                scales = Mul(row, column)
                by_scales = Mul({value}, scales)
            }},
            else_branch = one_by_one () => (float[] by_second) {{
                by_first = Mul({value}, first_of_two)
                by_second = Mul(by_first, second_of_two)
            }}
        >"""


def rows(src: str, opset: int) -> str:
    """Sets ``rows`` to `src` as a matrix: each of its rows has one scale.

    A row consists of the elements along the dimensions from the attribute `axis` on, or of `block_size` elements.
    """
    return f"""flat = Flatten<axis: int = @axis>({src})
    flat_shape = Shape(flat)
    no_elements = Constant<value_int = 0>()
    block_size = Constant<value_int: int = @block_size>()
    has_blocks = Greater(block_size, no_elements)
    any_number = Constant<value_ints = [-1]>()
    first_axis = Constant<value_ints = [0]>()
    block_length = Unsqueeze(block_size, first_axis)
    blocks_shape = Concat<axis = 0>(any_number, block_length)
    {select("rows_shape", "has_blocks", "blocks_shape", "flat_shape", "int64")}
    rows = {reshape(opset)}(flat, rows_shape)"""


def parameter_shape(has_blocks: bool = False) -> str:
    """Sets ``parameter_shape`` to ``shape``, which the body must define, with 1 in place of the dimensions of a row.

    Args:
        has_blocks: Whether the operator has an attribute `block_size`. The body must contain :func:`rows`. If there are
            blocks, the last dimension is the number of blocks.
    """
    blocks = """one_element = Constant<value_int = 1>()
    divisor_of_length = Max(block_size, one_element)
    last = Constant<value_ints = [9223372036854775807]>()
    row_lengths = Slice(shape, axis_1d, last)
    counts = Div(row_lengths, divisor_of_length)
    """ + select("parameters_of_row", "has_blocks", "counts", "ones", "int64")
    return f"""start = Constant<value_ints = [0]>()
    axis = Constant<value_int: int = @axis>()
    axis_1d = Unsqueeze(axis, start)
    lead = Slice(shape, start, axis_1d)
    rank = Shape(shape)
    lead_rank = Shape(lead)
    row_rank = Sub(rank, lead_rank)
    ones = ConstantOfShape<value = int64[1] {{1}}>(row_rank)
    {blocks if has_blocks else ""}
    parameter_shape = Concat<axis = 0>(lead, {"parameters_of_row" if has_blocks else "ones"})"""


_LITERAL_RESHAPE = "LiteralReshape"
_FIRST_WITH_ALLOWZERO = 14


def reshape(opset: int) -> str:
    """A Reshape that takes a dimension of 0 literally; :func:`with_standard_reshapes` makes it one of standard ONNX."""
    return "Reshape<allowzero = 1>" if opset >= _FIRST_WITH_ALLOWZERO else _LITERAL_RESHAPE


def with_standard_reshapes(body: str) -> str:
    """A body in which nodes that every opset has take the place of each :func:`reshape` of an old opset.

    Before opset 14, a dimension of 0 copies the dimension of the input at this place. So an input without elements gets
    as many dimensions of 0 as the result has dimensions; one with elements gets dimensions of 1 there.
    """
    return re.sub(rf"(\w+) = {_LITERAL_RESHAPE}\((\w+), (\w+)\)", _literal_reshape, body)


def _literal_reshape(found: re.Match[str]) -> str:
    to, value, shape = found.groups()
    return f"""{to}_literal_row = Flatten<axis = 0>({value})
        {to}_literal_row_shape = Shape({to}_literal_row)
        {to}_literal_least = ReduceMin({to}_literal_row_shape)
        {to}_literal_rank = Shape({shape})
        {to}_literal_lead = Expand({to}_literal_least, {to}_literal_rank)
        {to}_literal_wide_shape = Concat<axis = 0>({to}_literal_lead, {to}_literal_row_shape)
        {to}_literal_wide = Expand({to}_literal_row, {to}_literal_wide_shape)
        {to} = Reshape({to}_literal_wide, {shape})"""
