"""Recognizes the fake quantizations of ort_dynq, whose codes can be multiplied as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...operators import DOMAIN
from ...operators.encodings import CodeType, NanCode, RangeConstants, RoundingOrder, Scaling, ZeroPointRule
from ..analysis.code_ranges import are_codes_int8, may_be_infinite
from ..analysis.constants import constant_array, constant_scalar
from ..analysis.nodes import attributes_of
from ..analysis.shapes import has_one_element
from ..analysis.values import Values
from ..reasons import Reason, Unconverted

_FEWEST_INPUTS = {  # a hand-written model may omit optional inputs; its product then stays
    "DynamicRangeFakeQuantize": 2,
    "AffineFakeQuantize": 3,
    "DynamicFakeQuantize": 3,
    "DynamicQuantizeDequantizeLinear": 1,
}
_OTHER_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.UINT4, ir.DataType.INT4)


@dataclass(frozen=True)
class Source:
    """A fake quantization, and the parameters of its codes.

    Attributes:
        node: The node.
        has_one_scale: Whether it is known to have one scale for all elements.
        attributes: The attributes of the operator that quantizes to uint8 in its place.
        constants: The constants of a DynamicRangeFakeQuantize; None if the new operator reads those of the node.
        zero_point: The zero point of an AffineFakeQuantize as a uint8 code; None if it is not a constant.
        adds_zero_point: Whether other nodes add the zero point of an AffineFakeQuantize, which may be no code.
        is_nan_by_infinity: Whether the floats of a row are NaN if its inverse scale is infinite, as that of zeros is.
    """

    node: ir.Node
    has_one_scale: bool
    attributes: Mapping[str, Any]
    constants: RangeConstants | None = None
    zero_point: int | None = None
    adds_zero_point: bool = False
    is_nan_by_infinity: bool = False

    @property
    def is_unsigned(self) -> bool:
        """Whether the model's codes are uint8."""
        zero_point = self.node.inputs[2]
        is_unsigned = zero_point is not None and zero_point.dtype == ir.DataType.UINT8
        return bool(self.attributes.get("code_type", CodeType.UINT8 if is_unsigned else None) == CodeType.UINT8)

    def inputs(self, count: int) -> list[ir.Value]:
        """Returns the first inputs of the node; none of them is absent."""
        found = [value for value in self.node.inputs[:count] if value is not None]
        assert len(found) == count
        return found


def source_of(node: ir.Node, values: Values) -> Source | None:
    """Returns a fake quantization with the parameters of its codes; None for other nodes.

    Raises:
        Unconverted: The codes cannot be multiplied as uint8.
    """
    has_other_types = any(value is None or value.dtype in _OTHER_TYPES for value in node.inputs)
    fewest = _FEWEST_INPUTS.get(node.op_type)
    if node.domain != DOMAIN or has_other_types or fewest is None or len(node.inputs) < fewest:
        return None
    if node.op_type == "DynamicRangeFakeQuantize":
        return None if attributes_of(node)["block_size"] else _range_source(node)
    if node.op_type == "AffineFakeQuantize":
        return _affine_source(node, values)
    return Source(node, _has_one_scale(node), attributes_of(node))


def _has_one_scale(node: ir.Node) -> bool:
    if node.op_type == "DynamicQuantizeDequantizeLinear":
        return True
    attributes, (x, scale) = attributes_of(node), node.inputs[:2]
    assert x is not None
    assert scale is not None
    if node.op_type == "DynamicRangeFakeQuantize":
        axis = attributes["axis"]
        return axis == 0 or (x.shape is not None and axis < 0 and all(dim == 1 for dim in x.shape[:axis]))
    return attributes.get("qtype") == "per_tensor" or has_one_element(scale)


def range_constants_of(node: ir.Node) -> RangeConstants | None:
    """Returns the constants of a DynamicRangeQuantize or DynamicRangeFakeQuantize; None if they are not known."""
    elements = constant_array(node.inputs[1])
    if elements is None or elements.size != len(RangeConstants._fields):
        return None
    return RangeConstants(*map(float, elements))


def _range_source(node: ir.Node) -> Source:
    attributes = attributes_of(node)
    given = range_constants_of(node)
    may_be_signed = not attributes["clip"] and attributes["code_type"] != CodeType.UINT8  # a Cast to uint8 wraps around
    is_proven = may_be_signed and given is not None and are_codes_int8(attributes, given)
    code_type = CodeType.INT8 if is_proven else _code_type(attributes)
    zero_point_type = attributes["zero_point_type"]
    if attributes["zero_point_rule"] == ZeroPointRule.FLOOR_NEGATED and zero_point_type != code_type:
        raise Unconverted(Reason.ZERO_POINT_NOT_CLIPPED)
    if zero_point_type not in (CodeType.FLOAT32, code_type):
        raise Unconverted(Reason.ZERO_POINT_TYPE)
    marked = given
    if attributes["nan_code"] == NanCode.NAN and marked is not None:
        if marked.scale_of_zero == 0:  # the floats of a row of zeros are NaN; codes cannot be NaN, but the scale can
            marked = marked._replace(scale_of_zero=float("nan"))
        if not attributes["clip"]:  # infinite floats stay infinite, so the scale of their row has to be infinite
            marked = marked._replace(highest_range=float("inf"))
    new = _as_codes(attributes, code_type)
    if is_proven and attributes["code_type"] == CodeType.FLOAT32:  # integers wrap around, as the model's do
        new |= {"quant_min": -128, "quant_max": 127, "clip": 1}
    has_nan = attributes["nan_code"] == NanCode.NAN and given is not None and may_be_infinite(attributes, given)
    constants = None if marked == given else marked
    return Source(node, _has_one_scale(node), new, constants, is_nan_by_infinity=has_nan)


def _affine_source(node: ir.Node, values: Values) -> Source:
    attributes = attributes_of(node)
    code_type = _code_type(attributes)
    zero_point = node.inputs[2]
    assert zero_point is not None
    number, code = constant_scalar(zero_point), None
    if number is not None and number.is_integer():
        code = int(number) + (128 if code_type == CodeType.INT8 else 0)
        if not 0 <= code <= 255:
            raise Unconverted(Reason.ZERO_POINT_NO_CODE)
    new = _as_codes(attributes, code_type)
    if code is None and zero_point.dtype != ir.DataType(code_type):
        known, order = values.known(zero_point), attributes["rounding_order"]
        is_code = known.fits(-128, 127) if code_type == CodeType.INT8 else known.fits(0, 255)
        is_sum = order == RoundingOrder.ADD_THEN_ROUND or (order == RoundingOrder.ROUND_THEN_ADD and known.is_integer)
        if not is_code and not is_sum:
            raise Unconverted(Reason.ZERO_POINT_TYPE)
        if not is_code:
            new |= {"scaling": int(Scaling.DIVIDE), "rounding_order": int(RoundingOrder.ROUND_THEN_ADD)}
        return Source(node, _has_one_scale(node), new, adds_zero_point=not is_code)
    return Source(node, _has_one_scale(node), new, zero_point=code)


def _as_codes(attributes: Mapping[str, Any], code_type: CodeType) -> dict[str, Any]:
    """Returns the attributes of the quantization to uint8 codes that replaces a fake quantization."""
    return {
        **attributes,
        "code_type": int(code_type),
        "output_dtype": int(CodeType.UINT8),
        "nan_code": int(NanCode.ZERO),
    }


def _code_type(attributes: Mapping[str, Any]) -> CodeType:
    """Returns the 8-bit type of a chain's codes, or the type that holds codes that stay floats.

    Raises:
        Unconverted: The codes need more than 8 bits.
    """
    low, high = attributes["quant_min"], attributes["quant_max"]
    if attributes["code_type"] != CodeType.FLOAT32:
        return CodeType(attributes["code_type"])
    if not attributes["clip"]:
        raise Unconverted(Reason.CODES_NOT_PROVEN)
    if low < -128 or high > (127 if low < 0 else 255):
        raise Unconverted(Reason.CODES_TOO_WIDE)
    return CodeType.INT8 if low < 0 else CodeType.UINT8
