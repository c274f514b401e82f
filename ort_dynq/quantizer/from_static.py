"""The rule for models with constant scales, as quantize_static writes them: their activations become floats again.

x, QuantizeLinear, DequantizeLinear    -> Clip to the range of the codes

The bounds stay: ONNX Runtime's quantizer removes a Relu or Clip before a QuantizeLinear if its range does the same. The
other rules then quantize the activation at run time, and find the codes of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..opsets import OPSET
from ..rewriter.analysis.constants import constant_scalar
from ..rewriter.analysis.nodes import input_of, is_standard, producer_of
from ..rewriter.analysis.standard import MOVES
from ..rewriter.edit import Edit
from ..rewriter.rule import Context, Rule

_CODES = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16)
# They keep the numbers of input 0 within bounds.
_SELECTING = MOVES - {"Concat"} | {"Relu"}
_ZERO_POINT = 2  # the index of the input


class _CodeBounds(NamedTuple):
    """The smallest and the largest number of the codes of a QuantizeLinear."""

    low: np.float32
    high: np.float32


class _StaticQuantization(NamedTuple):
    x: ir.Value
    quantizer: ir.Node
    bounds: _CodeBounds


class _Clipped:
    """The clipped activations of one model; several DequantizeLinear may read one QuantizeLinear."""

    def __init__(self, _: object) -> None:
        self.of_quantizer: dict[ir.Node, ir.Value] = {}
        self.bounds: dict[ir.Value, _CodeBounds] = {}

    def are_within(self, value: ir.Value, bounds: _CodeBounds) -> bool:
        """Returns whether numbers are within bounds already: they are selected from a clipped activation."""
        while value not in self.bounds and (node := producer_of(value, *_SELECTING)) is not None:
            if node.inputs[0] is None:
                return False
            value = node.inputs[0]
        low, high = self.bounds.get(value, (np.float32(-np.inf), np.float32(np.inf)))
        return bool(bounds.low <= low and high <= bounds.high)


def bounds_of(quantizer: ir.Node) -> _CodeBounds | None:
    """Returns the bounds of a QuantizeLinear of float32 with one constant scale; None for another node."""
    x, scale = quantizer.inputs[0], constant_scalar(quantizer.inputs[1])
    zero_point = input_of(quantizer, _ZERO_POINT)
    number = 0.0 if zero_point is None else constant_scalar(zero_point)
    dtype = quantizer.outputs[0].dtype
    if x is None or x.dtype != ir.DataType.FLOAT or scale is None or number is None or dtype not in _CODES:
        return None
    limits = np.iinfo(dtype.numpy())
    low, high = (np.float32(np.float32(each - int(number)) * np.float32(scale)) for each in (limits.min, limits.max))
    return _CodeBounds(low, high)


def _match(node: ir.Node, _: Context) -> _StaticQuantization | None:
    if not is_standard(node, "DequantizeLinear") or node.inputs[0] is None:
        return None
    quantizer = producer_of(node.inputs[0], "QuantizeLinear")
    if quantizer is None or quantizer.inputs[0] is None or quantizer.graph is not node.graph:
        return None
    bounds = bounds_of(quantizer)
    pairs = list(zip(quantizer.inputs[1:], node.inputs[1:], strict=False))
    is_same = len(quantizer.inputs) == len(node.inputs) and all(_are_equal(a, b) for a, b in pairs)
    return _StaticQuantization(quantizer.inputs[0], quantizer, bounds) if bounds is not None and is_same else None


def _build(match: _StaticQuantization, edit: Edit) -> None:
    clipped, quantizer, old = edit.shared(_Clipped), match.quantizer, edit.node.outputs[0]
    x = clipped.of_quantizer.get(quantizer)
    if x is None and not clipped.are_within(match.x, match.bounds):
        bounds = [edit.add_constant(each, before=quantizer, origin=quantizer) for each in match.bounds]
        x = edit.insert(ir.node("Clip", [match.x, *bounds]), before=quantizer, origin=quantizer)
        clipped.of_quantizer[quantizer], clipped.bounds[x] = x, match.bounds
        edit.replace(old, x)
        return
    clipped.of_quantizer[quantizer] = x = match.x if x is None else x
    for node, index in old.uses():
        edit.replace_input(node, index, x)
    if old.is_graph_output():
        edit.replace(old, edit.insert(ir.node("Identity", [x]), before=edit.node))


def _are_equal(a: ir.Value | None, b: ir.Value | None) -> bool:
    return a is b or (constant_scalar(a) is not None and constant_scalar(a) == constant_scalar(b))


RULE = Rule("static quantization", OPSET, _match, _build)
