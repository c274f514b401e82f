"""Constant weights behind a DequantizeLinear, at products whose other factor a rule has turned into floats.

ONNX Runtime does not fold a DequantizeLinear: it runs at every inference. Worse, of a float factor and a constant 8-bit
one behind a DequantizeLinear, transposed or not, it makes MatMulNBits and quantizes the float factor again, to 8 bits
of its own choice (1.31: outputs move by 1 to 3% of their standard deviation). Where both factors came from a
DequantizeLinear it does not; nor must it after one of them has become ours.

They are folded, which exact=True does not allow: ONNX Runtime adds up products with constant weights, which it packs
beforehand, in another order in some shapes. Then, and where folded ones would take too much room, they become
DynamicDequantize's.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS, label
from ..edit import Replacement, remove_unused, replace, stored
from ..facts.grid import evaluate
from ..facts.inference import Facts
from ..facts.values import op
from ..report import Finding
from .integer_matmul import source_of
from .qdq import dequantize_any

RULE = "weights of a float product"
_RULES_OF_DEQUANTIZED = ("QuantizeLinear", "DequantizeLinear")
_MOST_BYTES = 1 << 30  # of a model's folded weights, which take four times the room


class FloatWeights:
    """The conversions of such weights in one model."""

    def __init__(self, facts: Facts, exact: bool) -> None:
        self._facts = facts
        self._exact = exact
        self._folded: dict[ir.Value, ir.Value] = {}
        self._bytes = 0

    def convert(self, graph: ir.Graph | ir.Function, path: str) -> list[Finding]:
        """Converts the weights of one graph's products; returns what was done."""
        findings = []
        for product in list(graph):
            if product.domain not in STANDARD_DOMAINS or product.op_type not in ("MatMul", "Gemm", "Conv"):
                continue
            for i in (0, 1):
                factor, weights = product.inputs[i], product.inputs[1 - i]
                source = None if factor is None else source_of(factor)
                if weights is None or source is None:
                    continue
                dq = _dequantizer(weights)
                is_ours = source.metadata_props.get("ort_dynq.rule") in _RULES_OF_DEQUANTIZED
                if dq is None or not is_ours or not all(map(self._facts.is_constant, dq.inputs)):
                    continue
                operator = self._fold(product, 1 - i, weights) or self._dequantize(dq)
                if operator is not None:
                    findings.append(Finding(label(dq), dq.op_type, path, RULE, operator))
                    remove_unused([weights.producer()])
        return findings

    def _fold(self, product: ir.Node, position: int, weights: ir.Value) -> str | None:
        if self._exact:
            return None
        if weights not in self._folded:
            shape = weights.shape
            size = math.prod(shape.numpy()) * 4 if shape is not None and shape.is_static() else _MOST_BYTES
            if self._bytes + size > _MOST_BYTES:
                return None
            elements = evaluate(weights, self._facts.opset)
            if elements is None:
                return None
            self._bytes += elements.nbytes
            self._folded[weights] = stored(elements, product, RULE, self._facts)
        product.replace_input_with(position, self._folded[weights])
        return "Constant"

    def _dequantize(self, dq: ir.Node) -> str | None:
        outcome = dequantize_any(dq)
        if not isinstance(outcome, Replacement) or dq.graph is None:
            return None
        replace(dq, dq.graph, outcome, RULE, self._facts)
        return outcome.operator


def _dequantizer(weights: ir.Value) -> ir.Node | None:
    transpose = op(weights, "Transpose")
    return op(weights if transpose is None else transpose.inputs[0], "DequantizeLinear")
