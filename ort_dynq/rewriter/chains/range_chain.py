"""A chain that begins with the range of x, and the operator that takes its place.

range, scale, zero point, quantize                 -> DynamicRangeQuantize
range, scale, zero point, quantize, dequantize     -> DynamicRangeFakeQuantize
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...operators.encodings import CodeType
from ..analysis.nodes import skip_identity, uncast
from ..analysis.shapes import unreshaped
from ..edit import Edit, ExtraOutput, call, constant
from .range_scale import Recipe


@dataclass(frozen=True)
class RangeChain:
    """Everything from `x` to `last`.

    Attributes:
        x: The tensor that is quantized.
        scale: Its scale.
        zero_point: Its zero point; None if there is none.
        recipe: How scale and zero point are computed from x.
        attributes: The attributes of the operator that the recipe does not have.
        last: The result: codes, or floats if `dequantizes`.
        dequantizes: Whether the chain dequantizes its codes.
    """

    x: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    recipe: Recipe
    attributes: Mapping[str, int]
    last: ir.Value
    dequantizes: bool


def build_range_chain(match: RangeChain, edit: Edit) -> None:
    """Puts one operator in place of the chain. Its scale and zero point replace the model's at other uses, too."""
    recipe, attributes, dequantizes = match.recipe, match.attributes, match.dequantizes
    # The new node goes where the range is complete. A copy of x may be computed later, so x itself is used.
    x, start = skip_identity(match.x), recipe.start
    assert start is not None
    constants = [constant(np.array(recipe.constants, np.float32))]
    if not dequantizes:
        constants.append(constant(np.zeros((), ir.DataType(attributes["output_dtype"]).numpy())))
    inputs = [x, *(each.outputs[0] for each in constants)]
    operator = "DynamicRangeFakeQuantize" if dequantizes else "DynamicRangeQuantize"
    main = call(operator, inputs, **attributes, **recipe.attributes)
    edit.insert(*constants, before=start)
    edit.replace(match.last, edit.insert_main(main, before=start))
    scales = dict.fromkeys((match.scale, unreshaped(match.scale)))
    if not recipe.takes_magnitude:
        edit.add_extra_outputs(_extra_outputs(scales, main.outputs[1], ir.DataType.FLOAT, x))
    # DynamicRangeQuantize has integer zero points. A zero point that stays a float may be NaN, so it is not replaced.
    has_zero_points = recipe.zero_point.type != CodeType.FLOAT32 or (dequantizes and not recipe.zero_point.is_int32)
    if match.zero_point is not None and has_zero_points and attributes["output_dtype"] == attributes["code_type"]:
        integers = uncast(match.zero_point) or skip_identity(match.zero_point)
        dtype = ir.DataType.FLOAT if dequantizes else ir.DataType(attributes["code_type"])
        forms = dict.fromkeys((match.zero_point, integers, unreshaped(integers)))
        edit.add_extra_outputs(_extra_outputs(forms, main.outputs[2], dtype, x))


def _extra_outputs(forms: dict[ir.Value, None], new: ir.Value, dtype: ir.DataType, x: ir.Value) -> list[ExtraOutput]:
    """Returns extra outputs for the forms of a scale or zero point whose type and rank are known."""
    extra_outputs = []
    for old in forms:
        if old.shape is not None and x.shape is not None and old.dtype is not None:
            missing = len(x.shape) - len(old.shape)
            if missing >= 0:
                extra_outputs.append(ExtraOutput(old, new, dtype, missing))
    return extra_outputs
