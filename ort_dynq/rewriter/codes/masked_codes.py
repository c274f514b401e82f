"""Affine forms of values after a Where that leaves out rows or elements, as masks of tokens do.

So Where(mask, s * (q - 3), 0) with a mask for each row has the scale Where(mask, s, 0); with a mask for each
element it has the codes Where(mask, q, 3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.shapes import same_shape
from ..analysis.values import Values
from .affine_form import Affine, Rearrangement
from .terms import ZERO, Op, Param, combined, dtype_of, interval_of, number_of


def masked_form(
    node: ir.Node,
    value: ir.Value,
    form_of: Callable[[ir.Value | None], Affine | None],
    param_of: Callable[[ir.Value, ir.Value], Param | None],
    values: Values,
) -> Affine | None:
    """Returns the form of Where(condition, y, 0), or Where(condition, 0, y); None if it is not known.

    A condition for each row chooses the numbers of the row: a scale of 0. One for each element chooses the codes: the
    zero point, which has to be a number. A row with NaN is NaN, also if the NaN is left out.

    Args:
        node: The Where.
        value: Its output.
        form_of: Returns the form of a value.
        param_of: Returns a value as a number for rows of another value, or for all of it.
        values: The bounds of the model's values.
    """
    condition = node.inputs[0]
    for i in (1, 2):
        data, form = node.inputs[i], form_of(node.inputs[i])
        if condition is None or data is None or form is None or constant_scalar(node.inputs[3 - i]) != 0:
            continue
        if form.is_rounded or value.dtype != ir.DataType.FLOAT or not same_shape(value, data):
            continue
        if (mask := param_of(condition, data)) is not None and mask.is_of_rows and form.divisor is None:
            scaled = form if form.scale is not None else replace(form, scale=Param(np.ones((), np.float32)))
            return scaled.mapped(value, functools.partial(_chosen, mask, i == 1, values))
        zero = 0.0 if form.zero_point is None else number_of(form.zero_point.term)
        if form.scale is None or form.offset is not None or zero is None or not zero.is_integer():
            continue
        if form.may_have_nan_codes(values):  # a row of NaN would not be 0 where all of it is left out
            continue
        low, high = min(form.low, int(zero)), max(form.high, int(zero))
        if high - low <= 255 and (low < 0) == (form.low < 0):
            moves = (*form.moves, Rearrangement(node, 0, data=i, other=int(zero)))
            return replace(form, value=value, low=low, high=high, moves=moves)
    return None


def _chosen(mask: Param, is_then: bool, values: Values, name: str, param: Param) -> Param:
    """Returns a number of rows where a condition holds, else 0; a zero point that is finite stays."""
    is_float = dtype_of(param.term) == ir.DataType.FLOAT
    if name == "zero_point" and not (is_float and not interval_of(param.term, values).is_regular):
        return param
    both = combined("Mul", param, mask)  # of the axes of both
    pair = (param.term, ZERO) if is_then else (ZERO, param.term)
    return replace(both, term=Op("Where", (mask.term, *pair), ir.DataType.FLOAT))
