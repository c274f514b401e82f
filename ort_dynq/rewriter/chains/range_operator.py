"""Builds the edit of a chain that begins with the range of x.

range, scale, zero point, quantize                 -> DynamicRangeQuantize
range, scale, zero point, quantize, dequantize     -> DynamicRangeFakeQuantize
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...operators.encodings import CodeType
from ..analysis.shapes import unreshaped
from ..analysis.values import skip_identity, uncast
from ..edit import Edit, ExtraOutput, call, constant
from ..reasons import Reason, Unconverted
from ..rule import Context
from .range_chain import Recipe


def replace_range_chain(
    node: ir.Node,
    context: Context,
    recipe: Recipe,
    attributes: dict[str, int],
    *,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    last: ir.Value,
    is_fake: bool,
) -> Edit:
    """Returns the edit that replaces everything between `x` and `last` by one operator.

    Args:
        node: The node that quantizes.
        context: The context of the node.
        recipe: How scale and zero point are computed from x.
        attributes: The attributes of the operator that the recipe does not have.
        x: The tensor that is quantized.
        scale: The scale.
        zero_point: The zero point; None if there is none.
        last: The result of the chain: codes, or floats if `is_fake`.
        is_fake: Whether the chain dequantizes its codes.

    Raises:
        Unconverted: The range is computed in another graph than that of `node`.
    """
    start = None if recipe.start is None else recipe.start.producer()
    if start is None or start.graph is not node.graph:
        raise Unconverted(Reason.RANGE_IN_ANOTHER_GRAPH)
    # The new node goes where the range is complete. A copy of x may be computed later, so x itself is used.
    x = skip_identity(x)
    edit = context.edit("DynamicRangeFakeQuantize" if is_fake else "DynamicRangeQuantize", node)
    constants = [constant(np.array(recipe.constants, np.float32))]
    if not is_fake:
        constants.append(constant(np.zeros((), ir.DataType(attributes["output_dtype"]).numpy())))
    inputs = [x, *(each.outputs[0] for each in constants)]
    main = call(edit.operator, inputs, **attributes, **recipe.attributes)
    edit.insert(*constants, before=start)
    edit.replace(last, edit.insert_main(main, before=start))
    scales = dict.fromkeys((scale, unreshaped(scale)))
    if not recipe.takes_magnitude:
        edit.add_extra_outputs(_extra_outputs(scales, main.outputs[1], ir.DataType.FLOAT, x))
    # DynamicRangeQuantize has integer zero points. A zero point that stays a float may be NaN, so it is not replaced.
    has_zero_points = recipe.zero_point_type != CodeType.FLOAT32 or (is_fake and not recipe.is_int32)
    if zero_point is not None and has_zero_points and attributes["output_dtype"] == attributes["code_type"]:
        integers = uncast(zero_point) or skip_identity(zero_point)
        dtype = ir.DataType.FLOAT if is_fake else ir.DataType(attributes["code_type"])
        forms = dict.fromkeys((zero_point, integers, unreshaped(integers)))
        edit.add_extra_outputs(_extra_outputs(forms, main.outputs[2], dtype, x))
    return edit


def _extra_outputs(forms: dict[ir.Value, None], new: ir.Value, dtype: ir.DataType, x: ir.Value) -> list[ExtraOutput]:
    """Returns extra outputs for the forms of a scale or zero point whose type and rank are known."""
    extra_outputs = []
    for old in forms:
        if old.shape is not None and x.shape is not None and old.dtype is not None:
            missing = len(x.shape) - len(old.shape)
            if missing >= 0:
                extra_outputs.append(ExtraOutput(old, new, dtype, missing))
    return extra_outputs
