"""Builds the codes of quantized activations, which products multiply in place of the floats.

DynamicRangeFakeQuantize | AffineFakeQuantize | DynamicFakeQuantize     -> the same operator without dequantization
AffineDequantize | DynamicDequantize | Cast of codes                    -> the codes that it dequantizes
DynamicQuantizeDequantizeLinear                                         -> DynamicQuantizeLinear
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...operators.encodings import Scaling
from ..analysis.constants import constant_array
from ..analysis.inference import Facts
from ..analysis.shapes import has_one_element
from ..edit import Edit, call
from .activation import Activation, Source
from .unsigned_codes import UnsignedCodes


class Codes(NamedTuple):
    """The codes of an activation, with their scales and zero points.

    Attributes:
        codes: uint8, [..., M, K]; for a convolution uint8 or int8, [N, C, D1, ..., Dr].
        scale: One for each row, [..., M, 1], or for each group of a row, [..., M, K / group_size], or one for all; None
            if the codes are not scaled, or the product's tail has the scale.
        zero_point: Of the type of the codes, as many as there are scales, or one for all.
    """

    codes: ir.Value
    scale: ir.Value | None
    zero_point: ir.Value


class ActivationCodes:
    """The codes of the activations of one model; all products of an activation share its codes."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any codes."""
        self._facts = facts
        self._repeated: dict[tuple[object, ...], ir.Value] = {}
        self._codes: dict[ir.Node, Codes] = {}  # by dequantizer, or by the last Transpose or Reshape after it

    def of(self, activation: Activation, edit: Edit) -> Codes:
        """Returns the codes of an activation.

        Args:
            activation: The activation.
            edit: The edit of the product. It inserts the nodes, if there are no codes yet.
        """
        source, transposes, reshapes = activation.source, activation.transposes, activation.reshapes
        last = [source.node, *transposes, *reshapes][-1]
        if last not in self._codes:
            codes = self._of_source(source, edit)
            if transposes:
                codes = self._transposed(codes, activation, edit)
            if reshapes:
                codes = _reshaped(codes, activation, edit)
            self._codes[last] = codes
        found = self._codes[last]
        if activation.is_rounded and found.scale is not None:
            cast = ir.node("Cast", [found.scale], {"to": int(ir.DataType.FLOAT)})
            wide = edit.insert(cast, before=edit.node)
            self._facts.note(wide, ir.DataType.FLOAT, found.scale.shape)
            found = found._replace(scale=wide)
        return self._in_parts(found, activation, edit) if activation.parts > 1 else found

    def _of_source(self, source: Source, edit: Edit) -> Codes:
        if source.node not in self._codes:
            build = {
                "DynamicRangeFakeQuantize": self._of_range,
                "AffineFakeQuantize": self._of_affine,
                "DynamicFakeQuantize": self._of_dynamic,
                "DynamicQuantizeDequantizeLinear": self._of_linear,
                "Cast": self._of_cast,
            }.get(source.node.op_type, self._of_dequantize)
            self._codes[source.node] = build(source, edit.shared(UnsignedCodes), edit)
        return self._codes[source.node]

    def _of_range(self, source: Source, unsigned: UnsignedCodes, edit: Edit) -> Codes:
        node, (src, constants) = source.node, source.inputs(2)
        if source.constants is not None:
            constants = edit.add_constant(np.array(source.constants, np.float32), before=node, origin=node)
        like = edit.add_constant(np.zeros((), np.uint8), before=node, origin=node)
        new = call("DynamicRangeQuantize", [src, constants, like], **source.attributes)
        edit.insert(new, before=node, origin=node)
        codes, scale, zero_point = new.outputs
        self._facts.note(scale, ir.DataType.FLOAT, node.outputs[1].shape)
        self._facts.note(zero_point, ir.DataType.UINT8, node.outputs[2].shape)
        if source.attributes["inverse_scale"]:
            scale = edit.insert(ir.node("Reciprocal", [scale]), before=node, origin=node)
        return Codes(codes, scale, zero_point)

    def _of_affine(self, source: Source, unsigned: UnsignedCodes, edit: Edit) -> Codes:
        node, (src, scale, zero_point) = source.node, source.inputs(3)
        if source.zero_point is not None:
            zero_point = edit.add_constant(np.uint8(source.zero_point), before=node, origin=node)
        else:
            zero_point = unsigned.of(zero_point, edit)
        new = call("AffineQuantize", [src, scale, zero_point], **source.attributes)
        codes = edit.insert(new, before=node, origin=node)
        if source.attributes["scaling"] == Scaling.MULTIPLY:
            inverse = edit.insert(ir.node("Reciprocal", [scale]), before=node, origin=node)
            self._facts.note(inverse, ir.DataType.FLOAT, scale.shape)
            scale = inverse
        return Codes(codes, scale, zero_point)

    def _of_dynamic(self, source: Source, unsigned: UnsignedCodes, edit: Edit) -> Codes:
        src, scales, zps = source.inputs(3)
        scale, zero_point = _of_rows(source, unsigned, edit)
        new = call("DynamicQuantize", [src, scales, unsigned.of(zps, edit)], **source.attributes)
        return Codes(edit.insert(new, before=source.node, origin=source.node), scale, zero_point)

    def _of_linear(self, source: Source, unsigned: UnsignedCodes, edit: Edit) -> Codes:
        new = ir.node("DynamicQuantizeLinear", source.inputs(1), num_outputs=3)
        edit.insert(new, before=source.node, origin=source.node)
        codes, scale, zero_point = new.outputs
        self._facts.note(scale, ir.DataType.FLOAT, ir.Shape([]))
        self._facts.note(zero_point, ir.DataType.UINT8, ir.Shape([]))
        return Codes(codes, scale, zero_point)

    def _of_dequantize(self, source: Source, unsigned: UnsignedCodes, edit: Edit) -> Codes:
        codes, *_ = source.inputs(3)
        scale, zero_point = _of_rows(source, unsigned, edit)
        return Codes(unsigned.of(codes, edit), scale, zero_point)

    def _of_cast(self, source: Source, unsigned: UnsignedCodes, edit: Edit) -> Codes:
        (codes,) = source.inputs(1)
        zero = np.uint8(128 if codes.dtype == ir.DataType.INT8 else 0)
        zero_point = edit.add_constant(zero, before=source.node, origin=source.node)
        return Codes(unsigned.of(codes, edit), None, zero_point)

    def _transposed(self, of_source: Codes, activation: Activation, edit: Edit) -> Codes:
        """Returns codes after Transposes that keep their rows."""
        source, transposes = activation.source, activation.transposes

        def transposed(value: ir.Value) -> ir.Value:
            for transpose in transposes:
                perm, shape = transpose.attributes["perm"].as_ints(), value.shape
                new = ir.node("Transpose", [value], dict(transpose.attributes))
                value = edit.insert(new, before=transposes[-1], origin=source.node)
                if shape is not None:
                    value.shape = ir.Shape([shape[i] for i in perm])
            return value

        def of_rows(value: ir.Value) -> ir.Value:
            return value if source.has_one_scale or has_one_element(value) else transposed(value)

        codes, scale, zero_point = of_source
        return Codes(transposed(codes), None if scale is None else of_rows(scale), of_rows(zero_point))

    def _in_parts(self, of_groups: Codes, activation: Activation, edit: Edit) -> Codes:
        """Returns codes with a scale for each part of a group."""

        def repeated(value: ir.Value) -> ir.Value:
            if has_one_element(value):
                return value
            key = edit.node.graph, value, activation.parts
            if key not in self._repeated:
                indices = np.repeat(np.arange(activation.groups), activation.parts)
                gather = ir.node("Gather", [value, edit.add_constant(indices, before=edit.node)], {"axis": -1})
                self._repeated[key] = edit.insert(gather, before=edit.node)
            return self._repeated[key]

        codes, scale, zero_point = of_groups
        return Codes(codes, None if scale is None else repeated(scale), repeated(zero_point))


def _of_rows(source: Source, unsigned: UnsignedCodes, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """Returns the scales and the zero points (uint8) that a node reads, with the dimensions of its rows."""
    _, scales, zps = source.inputs(3)
    zero_point = unsigned.of(zps, edit)
    if not source.has_scale_vector:
        return scales, zero_point
    axes = edit.add_constant(np.array([1]), before=source.node, origin=source.node)

    def column(value: ir.Value) -> ir.Value:
        return edit.insert(ir.node("Unsqueeze", [value, axes]), before=source.node, origin=source.node)

    return column(scales), zero_point if has_one_element(zero_point) else column(zero_point)


def _reshaped(of_source: Codes, activation: Activation, edit: Edit) -> Codes:
    """Returns codes after Reshapes and the like to [..., M, K], their scales as [..., M, groups] or [1]."""
    source, last = activation.source, activation.reshapes[-1]
    value, count = last.outputs[0], activation.groups

    def insert(node: ir.Node) -> ir.Value:
        return edit.insert(node, before=last, origin=source.node)

    def constant_of(numbers: list[int]) -> ir.Value:
        return edit.add_constant(np.array(numbers), before=last, origin=source.node)

    def shape_of_rows() -> ir.Value:
        lengths = constant_array(last.inputs[1]) if last.op_type == "Reshape" else None
        if source.has_one_scale:
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
        to = constant_of([1]) if has_one_element(each) and not source.has_one_scale else rows
        return insert(ir.node("Reshape", [each, to], dict(last.attributes) if last.op_type == "Reshape" else {}))

    codes = of_source.codes
    for reshape in activation.reshapes:
        codes = insert(ir.node(reshape.op_type, [codes, *reshape.inputs[1:]], dict(reshape.attributes)))
    rows = shape_of_rows()
    scale = None if of_source.scale is None else of_rows(of_source.scale)
    return Codes(codes, scale, of_rows(of_source.zero_point))
