"""Matrix products of quantized activations and constant weights: MatMulInteger and AccumulatorDequantize.

After the other rules have run, what quantizes an activation is one of ort_dynq's operators.

MatMulInteger of int8 codes: the codes become uint8, 128 larger, and so does their zero point: ONNX Runtime multiplies
u8 x s8 13 to 160 times faster than s8 x s8 on x86. What makes floats of the sums becomes one operator:

    MatMulInteger [Sub] Cast, Mul by the rows' scale and by the weights' in whatever order, [Add bias]
        -> MatMulInteger, AccumulatorDequantize                        exact, bit for bit

Those of ConvInteger do, too.

MatMul and Gemm of an activation that was quantized and is a float again, or of codes cast to floats, with weights that
are an 8-bit grid in every output channel (grid.py):

    DynamicRangeFakeQuantize | DynamicFakeQuantize | AffineFakeQuantize | ...Dequantize | Cast of codes
    MatMul | Gemm, [Mul by the rows' scale], [Add bias]
        -> DynamicRangeQuantize | ..., MatMulInteger, AccumulatorDequantize   the sum is exact, its last bits differ
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS, label
from ...operators import DOMAIN
from ..edit import call, constant, describe, remove_unused, stored, take_over
from ..facts.grid import Grid, evaluate, grid_of
from ..facts.inference import Facts
from ..facts.shapes import is_shape_of_rows
from ..facts.values import array, cast_to, integer, op, same, scalar
from ..report import Finding
from .decomposed import only_use

RULE = "integer matrix product"
ACTIVATION = "ort_dynq.activation"
"""A key of an AccumulatorDequantize's metadata, for verification: the name, in the original model, of the float
activation that was multiplied."""

OLDEST_OPSET = 13
_LARGEST_CODE = 255
_FEWEST_PRODUCTS = 4096
_LARGEST_SUM = (1 << 31) - 1
# Pairs of products of codes and weights up to this fit the int16 that x86 without VNNI adds them in.
_LARGEST_UNSATURATED_WEIGHT = 64
_SCALES_FIRST, _ROW_FIRST, _COLUMN_FIRST = range(3)  # AccumulatorDequantize's `order`
_MULTIPLY = 2  # `quotient`: the scale is an inverse one
_FLOOR = 4  # `zero_point_rule`
_KEEPS_NAN = 2  # `nan`
_CODES = (ir.DataType.UINT8, ir.DataType.INT8)
_SOURCES = (
    "DynamicRangeFakeQuantize",
    "AffineFakeQuantize",
    "DynamicFakeQuantize",
    "AffineDequantize",
    "DynamicDequantize",
)
_MOVES = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose")


class _Left(Exception):
    """Why a product stays as it is."""


class _Activation(NamedTuple):
    """uint8 codes of shape [..., M, K] and what their rows stand for; without a scale, for the codes themselves."""

    codes: ir.Value
    scale: ir.Value | None
    zero_point: ir.Value


@dataclass
class _Tail:
    """What follows a product's sums, up to the float value `last`.

    Attributes:
        last: The value that AccumulatorDequantize takes the place of.
        row: A scale for each row.
        column: A scale for each column.
        order: How they are multiplied, as AccumulatorDequantize has it.
        bias: One number for each column, or for all.
        subtracted: Of the sums, before anything else: one integer for each column.
    """

    last: ir.Value
    row: ir.Value | None = None
    column: npt.NDArray[np.float32] | None = None
    order: int = _COLUMN_FIRST
    bias: ir.Value | None = None
    subtracted: npt.NDArray[np.int32] | None = None


class IntegerProducts:
    """The conversions of products in one model; what several products share is quantized once.

    Args:
        facts: What is known of the model.
        exact: Whether results must stay bit for bit: products of floats stay, then.
    """

    def __init__(self, facts: Facts, exact: bool) -> None:
        self._facts = facts
        self._exact = exact
        self._flips: dict[ir.Value, ir.Value] = {}
        self._moved: dict[ir.Value, ir.Value] = {}  # scales, of the operators whose codes were flipped
        self._activations: dict[ir.Node, _Activation] = {}

    def convert(self, graph: ir.Graph | ir.Function, path: str) -> list[Finding]:
        """Converts the products of one graph; returns what was done, and what was left and why."""
        rules: dict[str, Callable[[ir.Node], str | None]] = {
            "MatMulInteger": self._integer,
            "ConvInteger": self._integer,
            "MatMul": self._float,
            "Gemm": self._float,
            "Conv": self._convolution,
        }
        findings = []
        for node in list(graph):
            if node.domain not in STANDARD_DOMAINS or node.op_type not in rules or node.graph is None:
                continue
            name, operator, reason = label(node), None, ""
            try:
                operator = rules[node.op_type](node)
            except _Left as left:
                reason = str(left)
            if operator or reason:
                findings.append(Finding(name, node.op_type, path, RULE, operator, reason))
        return findings

    # MatMulInteger and ConvInteger

    def _integer(self, node: ir.Node) -> str | None:
        codes, weights, zero_point, weights_zero_point = _inputs(node, 4)
        if codes is None or weights is None or self._is_static(codes) or _is_fused_by_onnxruntime(codes):
            return None
        is_signed = codes.dtype == ir.DataType.INT8
        tail = self._integer_tail(node, codes, weights) if node.op_type == "MatMulInteger" else None
        if not is_signed and tail is None:
            return None
        if is_signed:
            if self._exact and weights.dtype == ir.DataType.INT8:
                weights, weights_zero_point = self._unsaturated(node, weights, weights_zero_point)
            zero_point = self._constant(node, np.uint8(128)) if zero_point is None else self._flipped(zero_point)
            codes = self._flipped(codes)
        product = _multiply(node, codes, weights, zero_point, weights_zero_point)
        if tail is None:
            self._insert(node, product, node)
            self._replace(node.outputs[0], product.outputs[0])
            return product.op_type
        self._insert(_producer(tail.last), product, node)
        columns = _columns(weights)
        correction = (0, np.zeros(columns, np.int32)) if tail.subtracted is None else (1, tail.subtracted)
        self._finish(node, product.outputs[0], tail, self._constant(node, np.uint8(correction[0])), correction[1])
        return "AccumulatorDequantize"

    def _is_static(self, codes: ir.Value) -> bool:
        """Whether they are constants, or quantized with constant parameters: not this package's matter."""
        quantizer = op(same(codes), "QuantizeLinear")
        return self._facts.is_constant(codes) or (
            quantizer is not None and all(map(self._facts.is_constant, quantizer.inputs[1:]))
        )

    def _unsaturated(
        self, node: ir.Node, weights: ir.Value, zero_point: ir.Value | None
    ) -> tuple[ir.Value, ir.Value | None]:
        """Weights whose products with uint8 codes are exact on every CPU.

        On x86 without VNNI, ONNX Runtime adds pairs of u8 x s8 products in int16, which saturates. Those of u8 x u8 do
        not, but take longer.
        """
        elements = evaluate(weights, self._facts.opset) if self._facts.is_constant(weights) else None
        if elements is None:
            raise _Left("exact: sums of uint8 codes and int8 weights that are not known may saturate on older CPUs")
        if np.abs(elements.astype(np.int32)).max(initial=0) <= _LARGEST_UNSATURATED_WEIGHT:
            return weights, zero_point
        moved = self._constant(node, np.uint8(128)) if zero_point is None else self._flipped(zero_point)
        return self._weights(node, elements.view(np.uint8) ^ np.uint8(0x80)), moved

    def _integer_tail(self, node: ir.Node, codes: ir.Value, weights: ir.Value) -> _Tail | None:
        """From sums to floats: a Cast, and Muls by the rows' scale, the columns', or the two's product."""
        columns, tail = _columns(weights), _Tail(node.outputs[0])
        use = only_use(tail.last)
        if use is not None and use.node.op_type == "Sub" and use.idx == 0:
            tail.subtracted = self._vector(use.node.inputs[1], columns, np.int32)
            use = None if tail.subtracted is None else only_use(use.node.outputs[0])
        if not columns or use is None or use.node.op_type != "Cast" or cast_to(use.node) != ir.DataType.FLOAT:
            return None
        tail.last = use.node.outputs[0]
        while (use := only_use(tail.last)) is not None and use.node.op_type == "Mul":
            factor = use.node.inputs[1 - use.idx]
            is_first = tail.row is None and tail.column is None
            column = self._vector(factor, columns, np.float32)
            if column is not None and tail.column is None:
                tail.column, tail.order = column, _COLUMN_FIRST if is_first else _ROW_FIRST
            elif column is None and tail.row is None and self._is_row(factor, codes):
                tail.row, tail.order = factor, _ROW_FIRST if is_first else _COLUMN_FIRST
            elif is_first and (scales := self._scales_of(factor, codes, columns)) is not None:
                (tail.row, tail.column), tail.order = scales, _SCALES_FIRST
            else:
                break
            tail.last = use.node.outputs[0]
        if tail.row is None and tail.column is None:
            return None
        self._take_bias(tail, columns)
        return tail

    def _scales_of(
        self, value: ir.Value | None, codes: ir.Value, columns: int
    ) -> tuple[ir.Value, npt.NDArray[np.float32]] | None:
        """The scales of rows and of columns that `value` is the product of."""
        product = None if value is None else op(same(value), "Mul")
        if product is None:
            return None
        for row, column in (tuple(product.inputs), tuple(reversed(product.inputs))):
            vector = self._vector(column, columns, np.float32)
            if vector is not None and row is not None and self._is_row(row, codes):
                return row, vector
        return None

    # MatMul and Gemm

    def _float(self, node: ir.Node) -> str | None:
        a, b, bias = _inputs(node, 3)
        source = None if a is None else source_of(a)
        if a is None or b is None or source is None:
            return None
        if self._exact:
            raise _Left("exact: an integer product changes the last bits")
        grid = self._grid(node, b)
        columns = grid.scale.size
        if bias is not None and not self._is_bias(bias, columns):
            raise _Left("the bias is not one number for each output channel")
        if _is_small_for_its_rows(source, columns):
            raise _Left("the product is so small that the rows' scales cost more than it saves")
        activation = self._activation(a, source, len(grid.codes))
        # By the columns' scales first: the product of two scales may be too small for a float.
        tail = _Tail(node.outputs[0], activation.scale, grid.scale, _COLUMN_FIRST, bias)
        takes_scales = activation.scale is None and bias is None  # of codes as they are, the scale follows
        while takes_scales and (use := only_use(tail.last)) is not None and use.node.op_type == "Mul":
            factor = use.node.inputs[1 - use.idx]
            column = self._vector(factor, columns, np.float32)
            if column is not None:
                tail.column = np.asarray(tail.column * column)
            elif tail.row is None and self._is_row(factor, a):
                tail.row = factor
            else:
                break
            tail.last = use.node.outputs[0]
        if bias is None:
            self._take_bias(tail, columns)
        none = offset = None
        if grid.zero_point is not None:
            none, offset = self._constant(node, np.uint8(0)), self._weights(node, grid.zero_point)
        product = _multiply(None, activation.codes, self._weights(node, grid.codes), none, offset)
        self._insert(_producer(tail.last), product, node)
        sums = grid.sums.astype(np.int32)
        self._finish(node, product.outputs[0], tail, activation.zero_point, sums, {ACTIVATION: a.name})
        return "AccumulatorDequantize"

    def _grid(self, node: ir.Node, b: ir.Value) -> Grid:
        if not self._facts.is_constant(b):
            raise _Left("the weights are computed at run time")
        weights = evaluate(b, self._facts.opset)
        if node.op_type == "Gemm":
            alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
            if integer(node, "transA", 0) != 0 or alpha != 1 or beta != 1:
                raise _Left("Gemm transposes or scales what it multiplies")
            if weights is not None and integer(node, "transB", 0) != 0:
                weights = weights.T
        grid = None if weights is None else grid_of(weights)
        if grid is None:
            raise _Left("the weights are not an 8-bit grid in each output channel")
        if grid.largest_sum * _LARGEST_CODE > _LARGEST_SUM:
            raise _Left(f"sums of {len(grid.codes)} products may overflow int32")
        return grid

    def _convolution(self, node: ir.Node) -> str | None:
        a = _inputs(node, 1)[0]
        if a is not None and source_of(a) is not None:
            raise _Left("ONNX Runtime's ConvInteger is 3 to 20 times slower than its Conv of floats")
        return None

    # Activations

    def _activation(self, a: ir.Value, source: ir.Node, depth: int) -> _Activation:
        """The codes of what is multiplied, which `source` made floats of, `depth` of them in a row."""
        reshape = op(same(a), "Reshape")
        if reshape is None:
            return self._quantized(source)
        # Rows stay rows where the last dimension stays.
        lengths = [value.shape[-1] if value is not None and value.shape else None for value in (reshape.inputs[0], a)]
        if a.shape is None or len(a.shape) != 2 or lengths != [depth, depth]:
            raise _Left("the activation is reshaped otherwise than from rows to rows")
        codes, scale, zero_point = self._quantized(source)
        rows = constant(np.array([-1, 1]))
        self._insert(reshape, rows, source)

        def reshaped(value: ir.Value, shape: ir.Value | None) -> ir.Value:
            node = ir.node("Reshape", [value, shape], dict(reshape.attributes))
            self._insert(reshape, node, source)
            return node.outputs[0]

        def rows_of(value: ir.Value) -> ir.Value:
            is_scalar = value.shape is not None and len(value.shape) == 0
            return value if is_scalar else reshaped(value, rows.outputs[0])

        return _Activation(
            reshaped(codes, reshape.inputs[1]), None if scale is None else rows_of(scale), rows_of(zero_point)
        )

    def _quantized(self, source: ir.Node) -> _Activation:
        """The codes, scale and zero point that `source` made floats of, without making floats of them."""
        if source not in self._activations:
            make = {
                "DynamicRangeFakeQuantize": self._of_range,
                "AffineFakeQuantize": self._of_affine,
                "DynamicFakeQuantize": self._of_dynamic,
                "Cast": self._of_codes,
            }.get(source.op_type, self._of_dequantized)
            self._activations[source] = make(source)
        return self._activations[source]

    def _of_range(self, source: ir.Node) -> _Activation:
        attributes = _attributes(source)
        code_type = _code_type(attributes)
        if attributes["zero_point_rule"] == _FLOOR and attributes["zero_point_type"] != code_type:
            raise _Left("the zero point is not clipped to the codes' range")
        if attributes["zero_point_type"] not in (ir.DataType.FLOAT, code_type):
            raise _Left("the zero point is of another type than the codes")
        src, constants = _inputs(source, 2)
        assert src is not None
        assert constants is not None
        numbers = array(constants)
        if attributes["nan_code"] == _KEEPS_NAN and numbers is not None and numbers[-1] == 0:
            # A row of zeros without an epsilon is NaN, which codes cannot be: its scale is.
            without_zero = constant(np.append(numbers[:-1], np.float32(np.nan)))
            self._insert(source, without_zero, source)
            constants = without_zero.outputs[0]
        attributes |= {"code_type": code_type, "output_dtype": int(ir.DataType.UINT8), "nan_code": 0}
        like = constant(np.zeros((), np.uint8))
        self._insert(source, like, source)
        new = call("DynamicRangeQuantize", [src, constants, like.outputs[0]], **attributes)
        self._insert(source, new, source)
        codes, scale, zero_point = new.outputs
        for old, value in zip(source.outputs[1:], (scale, zero_point), strict=True):
            self._facts.note(value, ir.DataType.FLOAT if value is scale else ir.DataType.UINT8, old.shape)
        if attributes["inverse_scale"]:
            inverse = ir.node("Reciprocal", [scale])
            self._insert(source, inverse, source)
            scale = inverse.outputs[0]
        return _Activation(codes, scale, zero_point)

    def _of_affine(self, source: ir.Node) -> _Activation:
        attributes = _attributes(source)
        code_type = _code_type(attributes)
        src, scale, zero_point = _inputs(source, 3)
        assert src is not None
        assert scale is not None
        assert zero_point is not None
        if not is_shape_of_rows(scale, src):
            raise _Left("the scale is not known to be one for each row of the activation")
        number = scalar(zero_point)
        if number is not None and number.is_integer():
            low = -128 if code_type == ir.DataType.INT8 else 0
            if not low <= number <= low + 255:
                raise _Left("the zero point is not one of the codes")
            zero_point = self._constant(source, np.uint8(number - low))
        elif zero_point.dtype == code_type:
            zero_point = self._flipped(zero_point) if code_type == ir.DataType.INT8 else zero_point
        else:
            raise _Left("the zero point is of another type than the codes")
        attributes |= {"code_type": code_type, "output_dtype": int(ir.DataType.UINT8), "nan_code": 0}
        new = call("AffineQuantize", [src, scale, zero_point], **attributes)
        self._insert(source, new, source)
        if attributes["scaling"] == _MULTIPLY:
            inverse = ir.node("Reciprocal", [scale])
            self._insert(source, inverse, source)
            self._facts.note(inverse.outputs[0], ir.DataType.FLOAT, scale.shape)
            scale = inverse.outputs[0]
        return _Activation(new.outputs[0], scale, zero_point)

    def _of_dynamic(self, source: ir.Node) -> _Activation:
        src, scales, zps = _inputs(source, 3)
        assert src is not None
        assert scales is not None
        assert zps is not None
        rows = self._rows_of(source, src, scales, zps)
        codes_zps = self._flipped(zps) if zps.dtype == ir.DataType.INT8 else zps
        new = call("DynamicQuantize", [src, scales, codes_zps], **_attributes(source))
        self._insert(source, new, source)
        return _Activation(new.outputs[0], *rows)

    def _of_dequantized(self, source: ir.Node) -> _Activation:
        codes, scales, zps = _inputs(source, 3)
        assert codes is not None
        assert scales is not None
        assert zps is not None
        if source.op_type == "DynamicDequantize":
            scale, zero_point = self._rows_of(source, codes, scales, zps)
        elif is_shape_of_rows(scales, codes):
            scale, zero_point = scales, self._unsigned(zps)
        else:
            raise _Left("the scale is not known to be one for each row of the activation")
        return _Activation(self._unsigned(codes), scale, zero_point)

    def _of_codes(self, source: ir.Node) -> _Activation:
        codes = _inputs(source, 1)[0]
        assert codes is not None
        zero = 128 if codes.dtype == ir.DataType.INT8 else 0
        return _Activation(self._unsigned(codes), None, self._constant(source, np.uint8(zero)))

    def _rows_of(self, source: ir.Node, src: ir.Value, scales: ir.Value, zps: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point (uint8) of the rows, from those that Dynamic... operators take."""
        attributes = _attributes(source)
        qtype, axis = attributes["qtype"], attributes["axis"]
        if qtype == "per_tensor" or (qtype == "per_group" and is_shape_of_rows(scales, src)):
            return scales, self._unsigned(zps)
        if qtype == "per_channel" and src.shape is not None and len(src.shape) == 2 and axis in (0, -2):
            axes = constant(np.array([1]))
            self._insert(source, axes, source)
            zero_point, columns = self._unsigned(zps), []
            for value in (scales, zero_point):
                if value is not scales and _is_one(value):
                    columns.append(value)
                    continue
                column = ir.node("Unsqueeze", [value, axes.outputs[0]])
                self._insert(source, column, source)
                columns.append(column.outputs[0])
            return columns[0], columns[1]
        raise _Left("the scale is not known to be one for each row of the activation")

    # int8 codes as uint8 ones, 128 larger

    def _unsigned(self, value: ir.Value) -> ir.Value:
        return self._flipped(value) if value.dtype == ir.DataType.INT8 else value

    def _flipped(self, value: ir.Value) -> ir.Value:
        """The uint8 form of int8 codes or zero points, once for all of their uses."""
        if value not in self._flips:
            self._flip(value)
        new = self._flips[value]
        self._facts.note(new, ir.DataType.UINT8, value.shape)
        return new

    def _flip(self, value: ir.Value) -> None:
        node = value.producer()
        elements = array(value)
        if elements is not None and node is not None:
            self._flips[value] = self._constant(node, elements.view(np.uint8) ^ np.uint8(0x80))
        elif node is not None and node.domain == DOMAIN and _is_signed_quantizer(node):
            inputs, attributes = [each for each in node.inputs if each is not None], _attributes(node)
            if node.op_type == "DynamicRangeQuantize":
                like = constant(np.zeros((), np.uint8))
                self._insert(node, like, node)
                inputs[2] = like.outputs[0]
            else:
                inputs[2] = self._flipped(inputs[2])
            attributes |= {"output_dtype": int(ir.DataType.UINT8)}
            new = call(node.op_type, inputs, **attributes)
            self._insert(node, new, node)
            for i, (old, output) in enumerate(zip(node.outputs, new.outputs, strict=True)):
                if i == 1:  # the scale
                    take_over(old, output, self._facts)
                    old.name = self._facts.new_name()
                    self._moved[old] = output
                else:
                    self._flips[old] = output
        elif node is not None and node.domain in STANDARD_DOMAINS and node.op_type in _MOVES:
            source = node.inputs[0]
            assert source is not None
            moved = ir.node(node.op_type, [self._flipped(source), *node.inputs[1:]], dict(node.attributes))
            self._insert(node, moved, node)
            self._flips[value] = moved.outputs[0]
        else:
            self._flip_any(value)

    def _flip_any(self, value: ir.Value) -> None:
        """By primitive operators, wherever the codes come from."""
        half = constant(np.array(128, np.int32))
        wide = ir.node("Cast", [value], {"to": int(ir.DataType.INT32)})
        raised = ir.node("Add", [wide.outputs[0], half.outputs[0]])
        unsigned = ir.node("Cast", [raised.outputs[0]], {"to": int(ir.DataType.UINT8)})
        nodes, producer, graph = [half, wide, raised, unsigned], value.producer(), value.graph
        assert graph is not None
        for node in nodes:
            describe(node, producer or graph[0], RULE, self._facts)
        if producer is not None:
            graph.insert_after(producer, nodes)
        else:
            graph.insert_before(graph[0], nodes)
        self._flips[value] = unsigned.outputs[0]

    # Constants, and what surrounds a product

    def _take_bias(self, tail: _Tail, columns: int) -> None:
        use = only_use(tail.last)
        if use is None or use.node.op_type != "Add":
            return
        bias = use.node.inputs[1 - use.idx]
        if bias is not None and self._is_bias(bias, columns):
            tail.bias, tail.last = bias, use.node.outputs[0]

    def _is_bias(self, value: ir.Value, columns: int) -> bool:
        is_vector = value.dtype == ir.DataType.FLOAT and value.shape is not None and list(value.shape) == [columns]
        return is_vector or self._vector(value, columns, np.float32) is not None

    def _vector(self, value: ir.Value | None, columns: int, dtype: type[np.generic]) -> npt.NDArray[Any] | None:
        """A constant's number for each column, be it one for all."""
        if value is None or not self._facts.is_constant(value) or value.shape is None or len(value.shape) > 1:
            return None
        elements = evaluate(value, self._facts.opset)
        if elements is None or elements.dtype != dtype or elements.size not in (1, columns):
            return None
        return np.array(np.broadcast_to(elements, columns))

    def _is_row(self, value: ir.Value | None, codes: ir.Value) -> bool:
        """Whether `value` surely holds float32 scales of the rows of `codes`, as AccumulatorDequantize takes them."""
        if value is None or value.dtype != ir.DataType.FLOAT:
            return False
        quantizer = same(value).producer()
        if quantizer is not None and quantizer.domain == DOMAIN and same(value) in quantizer.outputs[1:2]:
            source = op(codes, "Cast")
            of = codes if source is None or source.inputs[0] is None else source.inputs[0]
            if of.producer() is quantizer and quantizer.attributes["axis"].as_int() <= 0:
                return True
        return is_shape_of_rows(value, codes)

    def _finish(
        self,
        node: ir.Node,
        sums: ir.Value,
        tail: _Tail,
        zero_point: ir.Value,
        column_sums: npt.NDArray[np.int32],
        names: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        """Puts AccumulatorDequantize in the place of everything up to the tail's end."""
        columns, anchor = column_sums.size, _producer(tail.last)
        bias = tail.bias
        if bias is None or bias.shape is None or list(bias.shape) != [columns]:
            vector = None if bias is None else self._vector(bias, columns, np.float32)
            bias = self._weights(node, np.full(columns, -0.0, np.float32) if vector is None else vector)
        column = np.ones(columns, np.float32) if tail.column is None else tail.column
        main = call(
            "AccumulatorDequantize",
            [
                sums,
                self._constant(node, np.float32(1)) if tail.row is None else self._moved.get(tail.row, tail.row),
                zero_point,
                self._weights(node, column),
                self._weights(node, column_sums),
                bias,
            ],
            scale_order=tail.order,
        )
        self._insert(anchor, main, node)
        main.name, main.doc_string = node.name, node.doc_string
        main.metadata_props.update({key: name for key, name in names.items() if name is not None})
        self._replace(tail.last, main.outputs[0])

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        take_over(old, new, self._facts)
        remove_unused([old.producer()])

    def _insert(self, anchor: ir.Node, node: ir.Node, origin: ir.Node) -> None:
        assert anchor.graph is not None
        describe(node, origin, RULE, self._facts)
        anchor.graph.insert_before(anchor, node)

    def _constant(self, anchor: ir.Node, elements: npt.ArrayLike) -> ir.Value:
        node = constant(np.asarray(elements))
        self._insert(anchor, node, anchor)
        return node.outputs[0]

    def _weights(self, node: ir.Node, elements: npt.NDArray[Any]) -> ir.Value:
        return stored(elements, node, RULE, self._facts)


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * count][:count]


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def source_of(a: ir.Value) -> ir.Node | None:
    """What made floats of codes that `a` is, or its rows: an operator of ort_dynq, or a Cast."""
    value = same(a)
    if (reshape := op(value, "Reshape")) is not None and reshape.inputs[0] is not None:
        value = same(reshape.inputs[0])
    node = value.producer()
    if node is None or value is not node.outputs[0]:
        return None
    if node.domain == DOMAIN:
        return node if node.op_type in _SOURCES else None
    if op(value, "Cast") is None or cast_to(node) != ir.DataType.FLOAT:
        return None
    codes = node.inputs[0]
    is_quantized = codes is not None and codes.dtype in _CODES and _quantizer(codes) is not None
    return node if is_quantized else None


def _quantizer(codes: ir.Value) -> ir.Node | None:
    """The operator of ort_dynq that made these codes."""
    node = codes.producer()
    return node if node is not None and node.domain == DOMAIN else None


def _is_fused_by_onnxruntime(codes: ir.Value) -> bool:
    """DynamicQuantizeLinear, MatMulInteger, Cast, Mul become DynamicQuantizeMatMul."""
    return op(same(codes), "DynamicQuantizeLinear") is not None


def _is_signed_quantizer(node: ir.Node) -> bool:
    return node.op_type in ("DynamicRangeQuantize", "AffineQuantize", "DynamicQuantize") and (
        node.op_type != "DynamicQuantize" or (len(node.inputs) > 2 and node.inputs[2] is not None)
    )


def _multiply(like: ir.Node | None, *inputs: ir.Value | None) -> ir.Node:
    """An integer product such as `like`, or a MatMulInteger, of codes, weights and the zero points of both."""
    given = [*inputs]
    while given[-1] is None:
        given.pop()
    return ir.node("MatMulInteger", given) if like is None else ir.node(like.op_type, given, dict(like.attributes))


def _is_small_for_its_rows(source: ir.Node, columns: int) -> bool:
    """Whether scales of rank 1 take nodes of their own to become those of rows, for a product known to be tiny."""
    src = source.inputs[0]
    if source.op_type != "DynamicFakeQuantize" or _attributes(source)["qtype"] != "per_channel":
        return False
    if src is None or src.shape is None or not src.shape.is_static():
        return False
    return math.prod(src.shape.numpy()) * columns < _FEWEST_PRODUCTS


def _columns(weights: ir.Value) -> int:
    """The number of output channels of weights [K, N]; 0 if it is not known."""
    shape = weights.shape
    return shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else 0


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {
        name: attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.as_int()
        for name, attribute in node.attributes.items()
    }


def _code_type(attributes: Mapping[str, Any]) -> int:
    """The 8-bit type that a chain's codes fit, be they floats or not."""
    low, high = attributes["quant_min"], attributes["quant_max"]
    if attributes["code_type"] != ir.DataType.FLOAT:
        return int(attributes["code_type"])
    if not attributes["clip"] or low < -128 or high > (127 if low < 0 else 255):
        raise _Left("the codes do not fit 8 bits")
    return int(ir.DataType.INT8 if low < 0 else ir.DataType.UINT8)


def _is_one(value: ir.Value) -> bool:
    """Whether it surely has one element."""
    elements = array(value)
    if elements is not None:
        return elements.size == 1
    return value.shape is not None and all(dim == 1 for dim in value.shape)
