"""Builds the nodes that quantize the float activations of products at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...operators.program import OUTPUTS, parse
from ...operators.quantized_experts import QUANTIZATION
from ..analysis.inference import Facts
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from .codes import Codes

_ASYMMETRIC = str(parse(QUANTIZATION))
"""The formula of DynamicQuantizeLinear, for each row."""
_SYMMETRIC = str(
    parse(
        "step = Div(ReduceMax(Abs(x)), 127.0); s = Where(Equal(step, 0.0), 1.0, step); "
        "codes = Add(Int8(Clip(Round(Div(x, s)), -127.0, 127.0)), 128.0); scale = s; zero_point = 128.0"
    )
)


def check_activation(value: ir.Value) -> None:
    """Checks that a value can be quantized.

    Raises:
        Unconverted: Its type is not known to be float32.
    """
    if value.dtype is None:
        raise Unconverted(Reason.ACTIVATION_TYPE_NOT_KNOWN)
    if value.dtype != ir.DataType.FLOAT:
        raise Unconverted(Reason.ACTIVATION_TYPE, dtype=value.dtype.name.lower())


class FloatActivations:
    """The codes of the float activations of one model; all products of an activation share its codes."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any codes."""
        self._facts = facts
        self._codes: dict[tuple[object, ...], Codes] = {}
        self._padded: dict[tuple[object, ...], ir.Value] = {}
        self._moved: dict[tuple[object, ...], ir.Value] = {}
        self._in_float32: dict[tuple[object, ...], ir.Value] = {}

    def of_rows(
        self, value: ir.Value, edit: Edit, *, axis: int = -1, symmetric: bool = False, block_size: int = 0
    ) -> Codes:
        """Returns the codes of a tensor, with a scale and a zero point for each row, or for each block of a row.

        Args:
            value: float32 or float16, [..., K], or [N, C, D1, ..., Dr].
            edit: The edit of the product, before which new nodes are inserted.
            axis: -1: a row has K elements; 1: it is a sample.
            symmetric: Whether the zero point is the code 0.
            block_size: The size of the blocks, which divides K; 0: a row is one block.
        """
        key = edit.node.graph, value, axis, symmetric, block_size
        if key not in self._codes:
            program = _SYMMETRIC if symmetric else _ASYMMETRIC
            quantizer = edit.add_row_program(value, program, before=edit.node, axis=axis, block_size=block_size)
            edit.insert(quantizer, before=edit.node)
            outputs = dict(zip(OUTPUTS, quantizer.outputs, strict=True))
            found = Codes(outputs["codes"], outputs["scale"], outputs["zero_point"])
            self._note(key, found, value, _shape_of_scales(value, axis, block_size))
        return self._codes[key]

    def of_two_terms(self, value: ir.Value, edit: Edit, *, axis: int = -1, block_size: int = 0) -> Codes:
        """Returns the codes of a tensor and the codes of what these leave, one after the other along an axis.

        Args:
            value: float32 or float16, [..., K], or [N, C, D1, ..., Dr].
            edit: The edit of the product, before which new nodes are inserted.
            axis: -1: a row has K elements; 1: it is a sample.
            block_size: The size of the blocks, which divides K; 0: a row is one block.
        """
        key = edit.node.graph, value, "two terms", axis, block_size
        if key not in self._codes:
            quantizer = call("TwoTermQuantize", [value], axis=axis, block_size=block_size)
            edit.insert(quantizer, before=edit.node)
            codes, scale = quantizer.outputs
            self._facts.note(codes, ir.DataType.INT8, None)
            self._facts.note(scale, ir.DataType.FLOAT, _shape_of_scales(value, axis, block_size))
            zero_point = edit.add_constant(np.zeros((), np.int8), before=edit.node)
            self._codes[key] = Codes(codes, scale, zero_point, terms=2)
        return self._codes[key]

    def of_tensor(self, value: ir.Value, edit: Edit) -> Codes:
        """Returns the codes of a tensor with one scale and one zero point for all elements.

        Args:
            value: float32, any shape.
            edit: The edit of the product, before which new nodes are inserted.
        """
        key = edit.node.graph, value
        if key not in self._codes:
            quantizer = call("DynamicQuantizeLinear", [value])
            edit.insert(quantizer, before=edit.node)
            codes, scale, zero_point = quantizer.outputs
            self._note(key, Codes(codes, scale, zero_point), value, ir.Shape([]))
        return self._codes[key]

    def in_float32(self, value: ir.Value, edit: Edit) -> ir.Value:
        """Returns a float16 value in float32: ONNX Runtime may not have rounded it, and then it leaves out the Cast.

        Args:
            value: float16.
            edit: The edit of the product, before which new nodes are inserted.
        """
        key = edit.node.graph, value
        if key not in self._in_float32:
            cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)})
            self._in_float32[key] = edit.insert(cast, before=edit.node)
            self._facts.note(cast.outputs[0], ir.DataType.FLOAT, value.shape)
        return self._in_float32[key]

    def padded(self, value: ir.Value, count: int, edit: Edit) -> ir.Value:
        """Returns a matrix with zeros at the end of each row.

        Args:
            value: float32 or float16, [..., K]; its rank is known.
            count: The number of zeros.
            edit: The edit of the product, before which new nodes are inserted.
        """
        if not count:
            return value
        key = edit.node.graph, value, count
        if key not in self._padded:
            assert value.shape is not None
            *lead, depth = value.shape
            amounts = np.array([0] * (2 * len(lead) + 1) + [count])
            padded = edit.insert(
                ir.node("Pad", [value, edit.add_constant(amounts, before=edit.node)]), before=edit.node
            )
            if value.dtype is not None:
                length = depth + count if isinstance(depth, int) else ir.SymbolicDim(None)
                self._facts.note(padded, value.dtype, ir.Shape([*lead, length]))
            self._padded[key] = padded
        return self._padded[key]

    def moved(self, value: ir.Value, order: Sequence[int], shape: Sequence[int], edit: Edit) -> ir.Value:
        """Returns a value with its axes in another order, and then in another shape.

        Args:
            value: float32; its rank is known.
            order: The order of the axes; that of the value for none.
            shape: The shape, as Reshape reads it; its last number is not 0. Empty for none.
            edit: The edit of the product, before which new nodes are inserted.
        """
        key = edit.node.graph, value, tuple(order), tuple(shape)
        if key not in self._moved:
            assert value.shape is not None
            moved, dims = value, [value.shape[axis] for axis in order]
            if list(order) != sorted(order):
                moved = edit.insert(ir.node("Transpose", [moved], {"perm": list(order)}), before=edit.node)
                self._facts.note(moved, ir.DataType.FLOAT, ir.Shape(dims))
            if shape:
                target = edit.add_constant(np.array(shape), before=edit.node)
                moved = edit.insert(ir.node("Reshape", [moved, target]), before=edit.node)
                self._facts.note(moved, ir.DataType.FLOAT, ir.Shape([*dims[: len(shape) - 1], shape[-1]]))
            self._moved[key] = moved
        return self._moved[key]

    def _note(self, key: tuple[object, ...], codes: Codes, value: ir.Value, scales: ir.Shape | None) -> None:
        assert codes.scale is not None
        self._facts.note(codes.codes, ir.DataType.UINT8, value.shape)
        self._facts.note(codes.scale, ir.DataType.FLOAT, scales)
        self._facts.note(codes.zero_point, ir.DataType.UINT8, scales)
        self._codes[key] = codes


def _shape_of_scales(value: ir.Value, axis: int, block_size: int) -> ir.Shape | None:
    """Returns the shape of the scales of rows, or of their blocks if `block_size` is not 0; None if it is not known."""
    if value.shape is None:
        return None
    lead, row = value.shape[:axis], value.shape[axis:]
    depth = row[-1]
    blocks = 1 if not block_size else depth // block_size if isinstance(depth, int) else ir.SymbolicDim(None)
    return ir.Shape([*lead, *(1 for _ in row[1:]), blocks])
