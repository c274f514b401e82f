"""Recognizes the quantized activation of a float product: its dequantizer, and the nodes that move its rows after it.

DynamicRangeFakeQuantize | AffineFakeQuantize | DynamicFakeQuantize | DynamicQuantizeDequantizeLinear
    | AffineDequantize | DynamicDequantize | Cast of codes, [Transpose], [Reshape | Squeeze | ...]

codes.py builds the codes of such an activation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...operators import DOMAIN
from ...operators.encodings import CodeType, NanCode, RangeConstants, ZeroPointRule
from ...operators.quantized_matmul import GROUP_UNIT
from ..analysis.code_ranges import are_codes_int8
from ..analysis.constants import constant_array, constant_scalar
from ..analysis.nodes import attributes_of, cast_to, producer_of, skip_identity
from ..analysis.shapes import has_one_element, is_shape_of_rows, reshapes_of, unreshaped
from ..analysis.types import CODE_TYPES
from ..reasons import Reason, Unconverted

_FEWEST_INPUTS = {  # a hand-written model may omit optional inputs; its product then stays
    "DynamicRangeFakeQuantize": 2,
    "AffineFakeQuantize": 3,
    "DynamicFakeQuantize": 3,
    "AffineDequantize": 3,
    "DynamicDequantize": 3,
    "DynamicQuantizeDequantizeLinear": 1,
}
_OTHER_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.UINT4, ir.DataType.INT4)


@dataclass(frozen=True)
class Source:
    """The node that dequantizes an activation, and the parameters of its codes.

    Attributes:
        node: The node; see :func:`dequantizer_of`.
        has_one_scale: Whether it is known to have one scale for all elements, or none.
        attributes: The attributes of the operator that quantizes to uint8 in place of a fake quantization.
        constants: The constants of a DynamicRangeFakeQuantize; None if the new operator reads those of the node.
        zero_point: The zero point of an AffineFakeQuantize as a uint8 code; None if it is not a constant.
        has_scale_vector: Whether the scales are [M] and not [M, 1].
    """

    node: ir.Node
    has_one_scale: bool
    attributes: Mapping[str, Any]
    constants: RangeConstants | None = None
    zero_point: int | None = None
    has_scale_vector: bool = False

    def inputs(self, count: int) -> list[ir.Value]:
        """Returns the first inputs of the node; none of them is absent."""
        return _inputs(self.node, count)


@dataclass(frozen=True)
class Activation:
    """A quantized activation.

    Attributes:
        value: The float activation, [..., M, K].
        source: Its dequantizer.
        transposes: The Transposes after the source, which keep the rows, the first one first.
        reshapes: The Reshapes and the like after them.
        groups: The number of scales for each row.
        parts: The number of equal parts into which the product cuts each group.
        is_rounded: Whether the model rounds it to float16 after the source. The product does not have this rounding.
    """

    value: ir.Value
    source: Source
    transposes: tuple[ir.Node, ...]
    reshapes: tuple[ir.Node, ...]
    groups: int = 1
    parts: int = 1
    is_rounded: bool = False

    @property
    def is_scaled(self) -> bool:
        """Whether it is codes times a scale; otherwise it is only the codes, minus a zero point or not."""
        return self.source.node.op_type != "Cast"


def dequantizer_of(value: ir.Value) -> ir.Node | None:
    """Returns the node that dequantizes `value`, before any Transpose that keeps rows, Reshape and the like, or None.

    It is an operator of ort_dynq whose output is float, or a Cast of the codes of one, which may be reshaped.
    """
    transposes = _transposes_of(value)
    value = unreshaped(value)
    if transposes and transposes[0].inputs[0] is not None:
        value = skip_identity(transposes[0].inputs[0])
    node = value.producer()
    if node is None or value is not node.outputs[0]:
        return None
    if node.domain == DOMAIN:
        has_inputs = len(node.inputs) >= _FEWEST_INPUTS.get(node.op_type, 0) and None not in node.inputs
        has_other_types = any(value is not None and value.dtype in _OTHER_TYPES for value in node.inputs)
        return node if has_inputs and node.op_type in _FEWEST_INPUTS and not has_other_types else None
    if producer_of(value, "Cast") is None or cast_to(node) != ir.DataType.FLOAT:
        return None
    codes = node.inputs[0]
    if codes is None or codes.dtype not in CODE_TYPES or (quantizer := unreshaped(codes).producer()) is None:
        return None
    return node if quantizer.domain == DOMAIN else None


def rounded_dequantizer_of(value: ir.Value) -> ir.Node | None:
    """Returns the DynamicDequantize to float16 whose output, cast to float32, is `value`, or None."""
    cast = producer_of(value, "Cast")
    if cast is None or cast_to(cast) != ir.DataType.FLOAT or (half := cast.inputs[0]) is None:
        return None
    node = half.producer()
    if node is None or (node.domain, node.op_type) != (DOMAIN, "DynamicDequantize") or len(node.inputs) < 3:
        return None
    codes, scales, zps = (None if each is None else each.dtype for each in node.inputs[:3])
    has_types = scales == ir.DataType.FLOAT16 and codes in CODE_TYPES and zps in CODE_TYPES
    return node if has_types else None


def activation_of(value: ir.Value, node: ir.Node, *, groups: int = 1, parts: int = 1) -> Activation:
    """Returns `value` as an activation.

    Args:
        value: The float activation, [..., M, K].
        node: Its dequantizer; see :func:`dequantizer_of` and :func:`rounded_dequantizer_of`.
        groups: The number of scales for each row; see :func:`group_size_of`.
        parts: The number of equal parts into which the product cuts each group.

    Raises:
        Unconverted: The codes cannot be multiplied as uint8, or the scales are not known to belong to rows or groups.
    """
    transposes, reshapes = _transposes_of(value), reshapes_of(value)
    if transposes and not _have_rank_of(transposes[0], node):
        raise Unconverted(Reason.ACTIVATION_TRANSPOSED)
    is_rounded = any(each is not None and each.dtype == ir.DataType.FLOAT16 for each in node.inputs)
    return Activation(value, _source(node), tuple(transposes), tuple(reshapes), groups, parts, is_rounded)


def group_size_of(value: ir.Value, node: ir.Node, depth: int) -> int:
    """Returns the number of adjacent elements of a row that share a scale; 0 if all elements of a row do.

    Args:
        value: The float activation, [..., depth].
        node: Its dequantizer.
        depth: The length of a row.

    Raises:
        Unconverted: The groups do not divide a row, or are not known, or QuantizedMatMul has no groups of this size.
    """
    block = _block(node)
    if not reshapes_of(value):
        return _checked_group(block, depth)
    if has_one_scale(node):
        return 0
    before = node.outputs[0]
    length = before.shape[-1] if before.shape else None
    if not isinstance(length, int) or length < 1 or (block and length != depth):
        raise Unconverted(Reason.ACTIVATION_RESHAPED_ROWS)
    if block:
        return _checked_group(block, depth)
    if not _has_scale_of_each_row(node):
        raise Unconverted(Reason.ACTIVATION_RESHAPED_SCALES)
    return _checked_group(length, depth)


def has_one_scale(node: ir.Node) -> bool:
    """Returns whether a dequantizer is known to have one scale for all elements, or none."""
    if node.op_type in ("Cast", "DynamicQuantizeDequantizeLinear"):
        return True
    attributes, (x, scale) = attributes_of(node), _inputs(node, 2)
    if node.op_type == "DynamicRangeFakeQuantize":
        return attributes["axis"] == 0 or (x.shape is not None and attributes["axis"] == -len(x.shape))
    return attributes.get("qtype") == "per_tensor" or has_one_element(scale)


def _source(node: ir.Node) -> Source:
    """Returns a dequantizer with the parameters of its codes.

    Raises:
        Unconverted: They cannot be multiplied as uint8, or the scales are not known to belong to rows or groups.
    """
    recognize = {
        "DynamicRangeFakeQuantize": _range_source,
        "AffineFakeQuantize": _affine_source,
        "AffineDequantize": _affine_dequantize_source,
        "DynamicFakeQuantize": _dynamic_source,
        "DynamicDequantize": _dynamic_source,
    }.get(node.op_type)
    return Source(node, has_one_scale(node), {}) if recognize is None else recognize(node)


def _range_source(node: ir.Node) -> Source:
    attributes = attributes_of(node)
    elements = constant_array(node.inputs[1])
    is_known = elements is not None and elements.size == len(RangeConstants._fields)
    given = RangeConstants(*map(float, elements)) if elements is not None and is_known else None
    is_proven = not attributes["clip"] and given is not None and are_codes_int8(attributes, given)
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
    if is_proven:
        new |= {"quant_min": -128, "quant_max": 127, "clip": 1}
    return Source(node, has_one_scale(node), new, None if marked == given else marked)


def _affine_source(node: ir.Node) -> Source:
    attributes = attributes_of(node)
    code_type = _code_type(attributes)
    src, scale, zero_point = _inputs(node, 3)
    if not is_shape_of_rows(scale, src):
        raise Unconverted(Reason.ACTIVATION_SCALES)
    number, code = constant_scalar(zero_point), None
    if number is not None and number.is_integer():
        code = int(number) + (128 if code_type == CodeType.INT8 else 0)
        if not 0 <= code <= 255:
            raise Unconverted(Reason.ZERO_POINT_NO_CODE)
    elif zero_point.dtype != ir.DataType(code_type):
        raise Unconverted(Reason.ZERO_POINT_TYPE)
    return Source(node, has_one_scale(node), _as_codes(attributes, code_type), zero_point=code)


def _affine_dequantize_source(node: ir.Node) -> Source:
    codes, scales = _inputs(node, 2)
    if not is_shape_of_rows(scales, codes):
        raise Unconverted(Reason.ACTIVATION_SCALES)
    return Source(node, has_one_scale(node), {})


def _dynamic_source(node: ir.Node) -> Source:
    attributes, (src, scales) = attributes_of(node), _inputs(node, 2)
    qtype, axis = attributes["qtype"], attributes["axis"]
    is_vector = not (
        qtype == "per_tensor" or (qtype == "per_group" and (_block(node) or is_shape_of_rows(scales, src)))
    )
    if is_vector and (qtype != "per_channel" or src.shape is None or len(src.shape) != 2 or axis not in (0, -2)):
        raise Unconverted(Reason.ACTIVATION_SCALES)
    return Source(node, has_one_scale(node), attributes, has_scale_vector=is_vector)


def _transposes_of(value: ir.Value) -> list[ir.Node]:
    """Returns the Transposes that keep the last axis in place, before any Reshape and the like, the first one first."""
    nodes: list[ir.Node] = []
    value = unreshaped(value)
    while (node := producer_of(value, "Transpose")) is not None and node.inputs[0] is not None:
        perm = node.attributes.get("perm")
        if perm is None or perm.is_ref() or list(perm.as_ints())[-1] != len(perm.as_ints()) - 1:
            break
        nodes.insert(0, node)
        value = skip_identity(node.inputs[0])
    return nodes


def _have_rank_of(transpose: ir.Node, node: ir.Node) -> bool:
    """Returns whether scales and zero points of a dequantizer are known to be transposed as its output is."""
    if has_one_scale(node) and node.op_type not in ("AffineFakeQuantize", "AffineDequantize"):
        return True
    inputs = node.inputs[:1] if node.op_type == "DynamicRangeFakeQuantize" else node.inputs[1:3]
    ranks = [None if each.shape is None else len(each.shape) for each in inputs if each and not has_one_element(each)]
    return all(rank == len(transpose.attributes["perm"].as_ints()) for rank in ranks)


def _checked_group(group_size: int, depth: int) -> int:
    if group_size in (0, depth):
        return 0
    if depth % group_size:
        raise Unconverted(Reason.GROUPS_DO_NOT_DIVIDE, group_size=group_size, depth=depth)
    if group_size < 0 or group_size % GROUP_UNIT:
        raise Unconverted(Reason.GROUPS_UNIT, group_size=group_size, unit=GROUP_UNIT)
    return group_size


def _block(node: ir.Node) -> int:
    """Returns the block size of an operator with a scale for each block of a row, or 0."""
    if node.op_type not in ("DynamicFakeQuantize", "DynamicDequantize"):
        return 0
    attributes, (src, scales) = attributes_of(node), _inputs(node, 2)
    is_last = attributes["axis"] == -1 or (src.shape is not None and attributes["axis"] == len(src.shape) - 1)
    is_grouped = attributes["qtype"] == "per_group" and is_last and not is_shape_of_rows(scales, src)
    return int(attributes["block_size"]) if is_grouped else 0


def _has_scale_of_each_row(node: ir.Node) -> bool:
    """Returns whether a dequantizer is known to have one scale for each row, or one for all.

    Otherwise several rows may share a scale, such as the rows of one matrix. Such scales cannot be reshaped as the rows
    are.
    """
    if node.op_type in ("Cast", "DynamicQuantizeDequantizeLinear"):  # no scale, or one for all
        return True
    x, attributes = node.inputs[0], attributes_of(node)
    if attributes.get("qtype") == "per_tensor":
        return True
    rank = None if x is None or x.shape is None else len(x.shape)
    if node.op_type == "DynamicRangeFakeQuantize":
        return attributes["axis"] in (-1, 0) or (rank is not None and attributes["axis"] in (-rank, rank - 1))
    scale = node.inputs[1]
    if x is None or scale is None:
        return False
    return rank == 2 or is_shape_of_rows(scale, x, is_shared=False)


def _inputs(node: ir.Node, count: int) -> list[ir.Value]:
    """Returns the first inputs of a node; none of them is absent."""
    found = [value for value in node.inputs[:count] if value is not None]
    assert len(found) == count
    return found


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
