"""Pieces of function bodies, in the text syntax of ``onnx.parser``."""

from __future__ import annotations

from .encodings import ScaleOrder


def integers(count: int) -> str:
    """Constants named ``i0``, ``i1``, ...: the integers below `count`. See :func:`integer`."""
    return "\n".join(f"{integer(value)} = Constant<value_int = {value}>()" for value in range(count))


def integer(value: int) -> str:
    """The name that :func:`integers` gives to the constant `value`, an integer or a member of an encoding."""
    return f"i{int(value)}"


def select(name: str, condition: str, then: str, otherwise: str) -> str:
    """Sets `name`, a float32 tensor, to one of two values.

    The operator is If, because ONNX Runtime's Where loses the sign of -0.
    """

    def branch(which: str, value: str) -> str:
        return f"{which}_{name} () => (float[] {name}_{which}) {{ {name}_{which} = Identity({value}) }}"

    return f"""{name} = If({condition}) <
        then_branch = {branch("then", then)},
        else_branch = {branch("else", otherwise)}
    >"""


def cast_like(name: str, value: str, like: str, opset: int) -> str:
    """Sets `name` to a float32 value in the type of `like`: float32 before opset 15, which introduced CastLike."""
    return f"{name} = CastLike({value}, {like})" if opset >= 15 else f"{name} = Identity({value})"


def scaled(value: str) -> str:
    """Sets ``scaled`` to a value times ``row`` and ``column``, in the order that ``scale_order`` selects.

    The body must define the integers up to 2 (:func:`integers`) and ``one``, the float32 number 1.
    """
    return f"""is_scales_first = Equal(scale_order, {integer(ScaleOrder.SCALES_FIRST)})
        is_row_first = Equal(scale_order, {integer(ScaleOrder.ROW_FIRST)})
        scales = Mul(row, column)
        {select("first_of_two", "is_row_first", "row", "column")}
        {select("second_of_two", "is_row_first", "column", "row")}
        {select("first", "is_scales_first", "scales", "first_of_two")}
        {select("second", "is_scales_first", "one", "second_of_two")}
        scaled_once = Mul({value}, first)
        scaled = Mul(scaled_once, second)"""


def parameter_shape() -> str:
    """Sets ``parameter_shape`` to ``shape``, which the body must define, with 1 in place of the dimensions of a row."""
    return """start = Constant<value_ints = [0]>()
    axis = Constant<value_int: int = @axis>()
    axis_1d = Unsqueeze(axis, start)
    lead = Slice(shape, start, axis_1d)
    rank = Shape(shape)
    lead_rank = Shape(lead)
    row_rank = Sub(rank, lead_rank)
    ones = ConstantOfShape<value = int64[1] {1}>(row_rank)
    parameter_shape = Concat<axis = 0>(lead, ones)"""


def reshape(opset: int) -> str:
    """A Reshape that takes a dimension of 0 literally. Before opset 14, it copies the input's dimension instead."""
    return "Reshape<allowzero = 1>" if opset >= 14 else "Reshape"
