"""Quantizes the activation of a product, so that its codes can be multiplied in place of its floats.

DynamicRangeFakeQuantize | AffineFakeQuantize | DynamicFakeQuantize     -> the same operator without dequantization
AffineDequantize | DynamicDequantize | Cast of codes                    -> the codes that it dequantizes
DynamicQuantizeDequantizeLinear                                         -> DynamicQuantizeLinear
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ...operators import DOMAIN
from ...operators.encodings import CodeType, NanCode, RangeConstants, Scaling, ZeroPointRule
from ...operators.quantized_matmul import GROUP_UNIT
from ..analysis.code_ranges import are_codes_int8
from ..analysis.inference import Facts
from ..analysis.shapes import is_shape_of_rows, reshapes_of, unreshaped
from ..analysis.values import (
    CODE_TYPES,
    attributes_of,
    cast_to,
    constant_array,
    constant_scalar,
    has_one_element,
    producer_of,
    skip_identity,
)
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context
from .unsigned_codes import UnsignedCodes

_FEWEST_INPUTS = {  # a model written by hand may omit optional ones; then its product stays
    "DynamicRangeFakeQuantize": 2,
    "AffineFakeQuantize": 3,
    "DynamicFakeQuantize": 3,
    "AffineDequantize": 3,
    "DynamicDequantize": 3,
    "DynamicQuantizeDequantizeLinear": 1,
}
_OTHER_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.UINT4, ir.DataType.INT4)


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


class Activation(NamedTuple):
    """A quantized activation.

    Attributes:
        codes: uint8, [..., M, K].
        scale: One for each row, [..., M, 1], or for each group of a row, [..., M, K / group_size], or one for all; None
            if the codes are not scaled.
        zero_point: uint8, as many as there are scales, or one for all.
    """

    codes: ir.Value
    scale: ir.Value | None
    zero_point: ir.Value


class Activations:
    """The quantized activations of one model; products that multiply the same activation share its codes."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any activation."""
        self._facts = facts
        self._repeated: dict[tuple[object, ...], ir.Value] = {}
        self._activations: dict[ir.Node, Activation] = {}  # by dequantizer, or by the last Reshape after it

    def of(self, value: ir.Value, source: ir.Node, groups: int, context: Context, edit: Edit) -> Activation:
        """Returns the codes of an activation.

        Args:
            value: The float activation, [..., M, K].
            source: Its dequantizer; see :func:`dequantizer_of`.
            groups: The number of scales for each row; see :func:`group_size_of`.
            context: The context of the product.
            edit: The edit that inserts the nodes, if there are no codes yet.

        Raises:
            Unconverted: The codes cannot be multiplied as uint8, or their scales are not those of rows or groups.
        """
        transposes, reshapes = _transposes_of(value), reshapes_of(value)
        last = [source, *transposes, *reshapes][-1]
        if last not in self._activations:
            if transposes and not _have_rank_of(transposes[0], source):
                raise Unconverted(Reason.ACTIVATION_TRANSPOSED)
            activation = self._of_source(source, context, edit)
            if transposes:
                activation = self._transposed(activation, source, transposes, edit)
            if reshapes:
                activation = _reshaped(activation, source, reshapes, groups, edit)
            self._activations[last] = activation
        return self._activations[last]

    def in_smaller_groups(self, activation: Activation, count: int, factor: int, edit: Edit) -> Activation:
        """Returns an activation whose groups are cut into `factor` equal parts.

        Args:
            activation: The activation, with a scale for each group of a row.
            count: The number of groups of a row.
            factor: The number of parts of a group.
            edit: The edit that inserts the nodes, before the product.
        """

        def repeated(value: ir.Value) -> ir.Value:
            if has_one_element(value):
                return value
            key = edit.node.graph, value, factor
            if key not in self._repeated:
                groups = edit.add_constant(np.repeat(np.arange(count), factor), before=edit.node)
                gather = ir.node("Gather", [value, groups], {"axis": -1})
                self._repeated[key] = edit.insert(gather, before=edit.node)
            return self._repeated[key]

        codes, scale, zero_point = activation
        return Activation(codes, None if scale is None else repeated(scale), repeated(zero_point))

    def _transposed(self, activation: Activation, source: ir.Node, transposes: list[ir.Node], edit: Edit) -> Activation:
        """Returns the activation after Transposes that keep its rows."""

        def transposed(value: ir.Value) -> ir.Value:
            for transpose in transposes:
                perm, shape = transpose.attributes["perm"].as_ints(), value.shape
                new = ir.node("Transpose", [value], dict(transpose.attributes))
                value = edit.insert(new, before=transposes[-1], origin=source)
                if shape is not None:
                    value.shape = ir.Shape([shape[i] for i in perm])
            return value

        def of_rows(value: ir.Value) -> ir.Value:
            return value if has_one_scale(source) or has_one_element(value) else transposed(value)

        codes, scale, zero_point = activation
        return Activation(transposed(codes), None if scale is None else of_rows(scale), of_rows(zero_point))

    def _of_source(self, source: ir.Node, context: Context, edit: Edit) -> Activation:
        if source not in self._activations:
            make = {
                "DynamicRangeFakeQuantize": self._of_range,
                "AffineFakeQuantize": self._of_affine,
                "DynamicFakeQuantize": self._of_dynamic,
                "DynamicQuantizeDequantizeLinear": self._of_linear,
                "Cast": self._of_codes,
            }.get(source.op_type, self._of_dequantize)
            self._activations[source] = make(source, context.shared(UnsignedCodes), edit)
        return self._activations[source]

    def _of_range(self, source: ir.Node, unsigned: UnsignedCodes, edit: Edit) -> Activation:
        attributes = attributes_of(source)
        src, constants = _inputs(source, 2)
        elements = constant_array(constants)
        is_known = elements is not None and elements.size == len(RangeConstants._fields)
        given = RangeConstants(*map(float, elements)) if elements is not None and is_known else None
        is_proven = not attributes["clip"] and given is not None and are_codes_int8(attributes, given)
        code_type = CodeType.INT8 if is_proven else _code_type(attributes)
        zero_point_type = attributes["zero_point_type"]
        if attributes["zero_point_rule"] == ZeroPointRule.FLOOR_NEGATED and zero_point_type != code_type:
            raise Unconverted(Reason.ZERO_POINT_NOT_CLIPPED)
        if zero_point_type not in (CodeType.FLOAT32, code_type):
            raise Unconverted(Reason.ZERO_POINT_TYPE)
        if attributes["nan_code"] == NanCode.NAN and given is not None:
            marked = given
            if given.scale_of_zero == 0:  # the floats of a row of zeros are NaN; codes cannot be NaN, but the scale can
                marked = marked._replace(scale_of_zero=float("nan"))
            if not attributes["clip"]:  # infinite floats stay infinite; so the scale of their row has to be infinite
                marked = marked._replace(highest_range=float("inf"))
            if marked != given:
                constants = edit.add_constant(np.array(marked, np.float32), before=source, origin=source)
        like = edit.add_constant(np.zeros((), np.uint8), before=source, origin=source)
        as_codes = _as_codes(attributes, code_type)
        if is_proven:
            as_codes |= {"quant_min": -128, "quant_max": 127, "clip": 1}
        new = call("DynamicRangeQuantize", [src, constants, like], **as_codes)
        edit.insert(new, before=source, origin=source)
        codes, scale, zero_point = new.outputs
        self._facts.note(scale, ir.DataType.FLOAT, source.outputs[1].shape)
        self._facts.note(zero_point, ir.DataType.UINT8, source.outputs[2].shape)
        if attributes["inverse_scale"]:
            scale = edit.insert(ir.node("Reciprocal", [scale]), before=source, origin=source)
        return Activation(codes, scale, zero_point)

    def _of_affine(self, source: ir.Node, unsigned: UnsignedCodes, edit: Edit) -> Activation:
        attributes = attributes_of(source)
        code_type = _code_type(attributes)
        src, scale, zero_point = _inputs(source, 3)
        if not is_shape_of_rows(scale, src):
            raise Unconverted(Reason.ACTIVATION_SCALES)
        number = constant_scalar(zero_point)
        if number is not None and number.is_integer():
            low = -128 if code_type == CodeType.INT8 else 0
            if not low <= number <= low + 255:
                raise Unconverted(Reason.ZERO_POINT_NO_CODE)
            zero_point = edit.add_constant(np.uint8(number - low), before=source, origin=source)
        elif zero_point.dtype == ir.DataType(code_type):
            zero_point = unsigned.of(zero_point, edit)
        else:
            raise Unconverted(Reason.ZERO_POINT_TYPE)
        new = call("AffineQuantize", [src, scale, zero_point], **_as_codes(attributes, code_type))
        codes = edit.insert(new, before=source, origin=source)
        if attributes["scaling"] == Scaling.MULTIPLY:
            inverse = edit.insert(ir.node("Reciprocal", [scale]), before=source, origin=source)
            self._facts.note(inverse, ir.DataType.FLOAT, scale.shape)
            scale = inverse
        return Activation(codes, scale, zero_point)

    def _of_dynamic(self, source: ir.Node, unsigned: UnsignedCodes, edit: Edit) -> Activation:
        src, scales, zps = _inputs(source, 3)
        scale, zero_point = self._of_rows(source, src, scales, zps, unsigned, edit)
        new = call("DynamicQuantize", [src, scales, unsigned.of(zps, edit)], **attributes_of(source))
        return Activation(edit.insert(new, before=source, origin=source), scale, zero_point)

    def _of_linear(self, source: ir.Node, unsigned: UnsignedCodes, edit: Edit) -> Activation:
        new = ir.node("DynamicQuantizeLinear", _inputs(source, 1), num_outputs=3)
        edit.insert(new, before=source, origin=source)
        codes, scale, zero_point = new.outputs
        self._facts.note(scale, ir.DataType.FLOAT, ir.Shape([]))
        self._facts.note(zero_point, ir.DataType.UINT8, ir.Shape([]))
        return Activation(codes, scale, zero_point)

    def _of_dequantize(self, source: ir.Node, unsigned: UnsignedCodes, edit: Edit) -> Activation:
        codes, scales, zps = _inputs(source, 3)
        if source.op_type == "DynamicDequantize":
            scale, zero_point = self._of_rows(source, codes, scales, zps, unsigned, edit)
        elif is_shape_of_rows(scales, codes):
            scale, zero_point = scales, unsigned.of(zps, edit)
        else:
            raise Unconverted(Reason.ACTIVATION_SCALES)
        return Activation(unsigned.of(codes, edit), scale, zero_point)

    def _of_codes(self, source: ir.Node, unsigned: UnsignedCodes, edit: Edit) -> Activation:
        (codes,) = _inputs(source, 1)
        zero = np.uint8(128 if codes.dtype == ir.DataType.INT8 else 0)
        return Activation(unsigned.of(codes, edit), None, edit.add_constant(zero, before=source, origin=source))

    def _of_rows(
        self, source: ir.Node, src: ir.Value, scales: ir.Value, zps: ir.Value, unsigned: UnsignedCodes, edit: Edit
    ) -> tuple[ir.Value, ir.Value]:
        """Returns scale and zero point (uint8) of the rows, from the inputs of a Dynamic... operator."""
        attributes = attributes_of(source)
        qtype, axis = attributes["qtype"], attributes["axis"]
        if qtype == "per_tensor" or (qtype == "per_group" and (_block(source) or is_shape_of_rows(scales, src))):
            return scales, unsigned.of(zps, edit)
        if qtype != "per_channel" or src.shape is None or len(src.shape) != 2 or axis not in (0, -2):
            raise Unconverted(Reason.ACTIVATION_SCALES)
        axes = edit.add_constant(np.array([1]), before=source, origin=source)
        zero_point, columns = unsigned.of(zps, edit), []
        for value in (scales, zero_point):
            if value is zero_point and has_one_element(value):
                columns.append(value)
            else:
                columns.append(edit.insert(ir.node("Unsqueeze", [value, axes]), before=source, origin=source))
        return columns[0], columns[1]


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


def _have_rank_of(transpose: ir.Node, source: ir.Node) -> bool:
    """Returns whether scales and zero points of a dequantizer are known to be transposed as its output is."""
    if has_one_scale(source) and source.op_type not in ("AffineFakeQuantize", "AffineDequantize"):
        return True
    inputs = source.inputs[:1] if source.op_type == "DynamicRangeFakeQuantize" else source.inputs[1:3]
    ranks = [None if each.shape is None else len(each.shape) for each in inputs if each and not has_one_element(each)]
    return all(rank == len(transpose.attributes["perm"].as_ints()) for rank in ranks)


def group_size_of(value: ir.Value, source: ir.Node, depth: int) -> int:
    """Returns the number of adjacent elements of a row that share a scale; 0 if all elements of a row do.

    Args:
        value: The float activation, [..., depth].
        source: Its dequantizer; see :func:`dequantizer_of`.
        depth: The length of a row.

    Raises:
        Unconverted: The groups do not divide a row, or are not known, or QuantizedMatMul has no groups of this size.
    """
    block = _block(source)
    if not reshapes_of(value):
        return _checked_group(block, depth)
    if has_one_scale(source):
        return 0
    before = source.outputs[0]
    length = before.shape[-1] if before.shape else None
    if not isinstance(length, int) or length < 1 or (block and length != depth):
        raise Unconverted(Reason.ACTIVATION_RESHAPED_ROWS)
    if block:
        return _checked_group(block, depth)
    if not _has_scale_of_each_row(source):
        raise Unconverted(Reason.ACTIVATION_RESHAPED_SCALES)
    return _checked_group(length, depth)


def _checked_group(group_size: int, depth: int) -> int:
    if group_size in (0, depth):
        return 0
    if depth % group_size:
        raise Unconverted(Reason.GROUPS_DO_NOT_DIVIDE, group_size=group_size, depth=depth)
    if group_size < 0 or group_size % GROUP_UNIT:
        raise Unconverted(Reason.GROUPS_UNIT, group_size=group_size, unit=GROUP_UNIT)
    return group_size


def _block(source: ir.Node) -> int:
    """Returns the block size of an operator with a scale for each block of a row, or 0."""
    if source.op_type not in ("DynamicFakeQuantize", "DynamicDequantize"):
        return 0
    attributes, (src, scales) = attributes_of(source), _inputs(source, 2)
    is_last = attributes["axis"] == -1 or (src.shape is not None and attributes["axis"] == len(src.shape) - 1)
    is_grouped = attributes["qtype"] == "per_group" and is_last and not is_shape_of_rows(scales, src)
    return int(attributes["block_size"]) if is_grouped else 0


def _reshaped(activation: Activation, source: ir.Node, reshapes: list[ir.Node], count: int, edit: Edit) -> Activation:
    """Returns the activation after Reshapes and the like to [..., M, K], its scales as [..., M, count], or as [1]."""
    last = reshapes[-1]
    value, is_one_scale = last.outputs[0], has_one_scale(source)

    def insert(node: ir.Node) -> ir.Value:
        return edit.insert(node, before=last, origin=source)

    def constant_of(numbers: list[int]) -> ir.Value:
        return edit.add_constant(np.array(numbers), before=last, origin=source)

    def shape_of_rows() -> ir.Value:
        lengths = constant_array(last.inputs[1]) if last.op_type == "Reshape" else None
        if is_one_scale:
            return constant_of([1])
        if value.shape is not None and len(value.shape) == 2:
            return constant_of([-1, count])
        if lengths is not None and 0 not in lengths:
            return constant_of([*lengths[:-1].tolist(), count])
        actual = insert(ir.node("Shape", [codes]))
        lead = insert(ir.node("Slice", [actual, constant_of([0]), constant_of([-1])]))
        return insert(ir.node("Concat", [lead, constant_of([count])], {"axis": 0}))

    def of_rows(each: ir.Value) -> ir.Value:
        if each.shape is not None and len(each.shape) == 0:
            return each
        to = constant_of([1]) if has_one_element(each) and not is_one_scale else rows
        return insert(ir.node("Reshape", [each, to], dict(last.attributes) if last.op_type == "Reshape" else {}))

    codes = activation.codes
    for reshape in reshapes:
        codes = insert(ir.node(reshape.op_type, [codes, *reshape.inputs[1:]], dict(reshape.attributes)))
    rows = shape_of_rows()
    scale = None if activation.scale is None else of_rows(activation.scale)
    return Activation(codes, scale, of_rows(activation.zero_point))


def has_one_scale(source: ir.Node) -> bool:
    """Returns whether a dequantizer is known to have one scale for all elements, or none."""
    if source.op_type in ("Cast", "DynamicQuantizeDequantizeLinear"):
        return True
    attributes, (x, scale) = attributes_of(source), _inputs(source, 2)
    if source.op_type == "DynamicRangeFakeQuantize":
        return attributes["axis"] == 0 or (x.shape is not None and attributes["axis"] == -len(x.shape))
    return attributes.get("qtype") == "per_tensor" or has_one_element(scale)


def _has_scale_of_each_row(source: ir.Node) -> bool:
    """Returns whether a dequantizer is known to have one scale for each row, or one for all.

    Otherwise several rows may share one, as those of a matrix do. Its scales cannot be reshaped as its rows are.
    """
    if source.op_type in ("Cast", "DynamicQuantizeDequantizeLinear"):  # without a scale, or with one for all
        return True
    x, attributes = source.inputs[0], attributes_of(source)
    if attributes.get("qtype") == "per_tensor":
        return True
    rank = None if x is None or x.shape is None else len(x.shape)
    if source.op_type == "DynamicRangeFakeQuantize":
        return attributes["axis"] in (-1, 0) or (rank is not None and attributes["axis"] in (-rank, rank - 1))
    scale = source.inputs[1]
    if x is None or scale is None:
        return False
    return rank == 2 or is_shape_of_rows(scale, x, is_shared=False)


def _inputs(node: ir.Node, count: int) -> list[ir.Value]:
    """Returns the first inputs of a node, which has them all."""
    found = [value for value in node.inputs[:count] if value is not None]
    assert len(found) == count
    return found


def _as_codes(attributes: Mapping[str, Any], code_type: CodeType) -> dict[str, Any]:
    """Returns the attributes of a fake quantization as those of the quantization to uint8 codes."""
    return {
        **attributes,
        "code_type": int(code_type),
        "output_dtype": int(CodeType.UINT8),
        "nan_code": int(NanCode.ZERO),
    }


def _code_type(attributes: Mapping[str, Any]) -> CodeType:
    """Returns the 8-bit type of a chain's codes, or the one that holds codes that stay floats.

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
