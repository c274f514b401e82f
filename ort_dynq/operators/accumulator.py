"""AccumulatorDequantize: from the int32 result of an integer matrix product to float32."""

from __future__ import annotations

import numpy as np

from ..errors import DynqError
from .encodings import ScaleOrder
from .function_text import integer, integers, select
from .reference_ops import Array, Attributes, check_zero_point, shape_text
from .spec import Attribute, Family, Input, Operator, Signature


def _body(opset: int) -> str:
    return f"""{{
        {integers(2)}
        one = Constant<value_float = 1.0>()
        scale_order = Constant<value_int: int = @scale_order>()
        is_scales_first = Equal(scale_order, {integer(ScaleOrder.SCALES_FIRST.value)})
        is_row_first = Equal(scale_order, {integer(ScaleOrder.ROW_FIRST.value)})
        zero_point_int = Cast<to = 6>(zero_point)
        correction = Mul(zero_point_int, column_sum)
        exact = Sub(src, correction)
        real = Cast<to = 1>(exact)
        scales = Mul(scale, column_scale)
        {select("first_of_two", "is_row_first", "scale", "column_scale")}
        {select("second_of_two", "is_row_first", "column_scale", "scale")}
        {select("first", "is_scales_first", "scales", "first_of_two")}
        {select("second", "is_scales_first", "one", "second_of_two")}
        scaled_once = Mul(real, first)
        scaled = Mul(scaled_once, second)
        dst = Add(scaled, bias)
    }}"""


def _reference(
    given: Attributes,
    src: Array,
    scale: Array,
    zero_point: Array,
    column_scale: Array,
    column_sum: Array,
    bias: Array,
) -> list[Array]:
    if src.ndim == 0:
        raise DynqError("src is a scalar, expected rank 1 or more")
    _check_scale(src, scale)
    check_zero_point("zero_point", zero_point, "scale", scale)
    for name, column in (("column_scale", column_scale), ("column_sum", column_sum), ("bias", bias)):
        if column.shape != src.shape[-1:]:
            raise DynqError(
                f"{name} has shape {shape_text(column.shape)}, expected {src.shape[-1]}, one element for each column "
                "of src"
            )
    row_scale = scale.reshape(()) if scale.size == 1 else scale
    row_zero_point = (zero_point.reshape(()) if zero_point.size == 1 else zero_point).astype(np.int32)
    exact = np.asarray(src - row_zero_point * column_sum).astype(np.float32)
    if given["scale_order"] == ScaleOrder.SCALES_FIRST:
        scaled = exact * (row_scale * column_scale)
    elif given["scale_order"] == ScaleOrder.ROW_FIRST:
        scaled = exact * row_scale * column_scale
    else:
        scaled = exact * column_scale * row_scale
    return [np.asarray(scaled + bias)]


def _check_scale(src: Array, scale: Array) -> None:
    """Checks that scale has one element, or the leading dimensions of src and then ones."""
    if scale.size == 1 and scale.ndim <= src.ndim:
        return
    full = (*src.shape[:-1], 1)
    lead = next((i for i, (ours, its) in enumerate(zip(scale.shape, full, strict=False)) if ours != its), src.ndim)
    if scale.ndim != src.ndim or any(length != 1 for length in scale.shape[lead:]):
        raise DynqError(
            f"scale has shape {shape_text(scale.shape)}, src {shape_text(src.shape)}: expected src's leading "
            "dimensions, then ones, or one element"
        )


FAMILY = Family(
    "Accumulators",
    "An integer matrix product of codes gives int32 sums. `scale` and `zero_point` belong to the rows, which are the "
    "activation; the inputs with the prefix `column` belong to the columns, which are the weights.",
    (
        Operator(
            "AccumulatorDequantize",
            "Dequantizes the sums of an integer matrix product whose row zero points were not subtracted. `exact` is "
            "int32, which wraps, and is then rounded to float32.",
            "exact = src - zero_point * column_sum\ndst = exact * (scale * column_scale) + bias    scale_order = 0",
            (
                Input(
                    "src",
                    ("int32",),
                    "Sums of products: any shape of rank 1 or more. The last dimension is the columns.",
                ),
                Input(
                    "scale", ("float32",), "The row scales: the leading dimensions of `src`, then ones; or one element."
                ),
                Input("zero_point", ("uint8", "int8"), "The row zero points: the shape of `scale`, or one element."),
                Input("column_scale", ("float32",), "The column scales: one element for each column."),
                Input(
                    "column_sum",
                    ("int32",),
                    "For each column, the sum of its weights after their zero point is subtracted.",
                ),
                Input("bias", ("float32",), "One element for each column; -0.0 leaves the result unchanged."),
            ),
            (Input("dst", ("float32",), "The shape of `src`."),),
            (
                Attribute(
                    "scale_order",
                    ScaleOrder.SCALES_FIRST,
                    "The order of the multiplications by both scales.",
                    ScaleOrder,
                ),
            ),
            tuple(
                Signature(("int32", "float32", code, "float32", "int32", "float32"), ("float32",))
                for code in ("uint8", "int8")
            ),
            _body,
            _reference,
        ),
    ),
)
