"""The rule for constant 8-bit weights of float products.

DequantizeLinear of constants, [Transpose], MatMul | Gemm | Conv     -> the folded weights, MatMul | Gemm | Conv
DequantizeLinear of constants                                        -> DynamicDequantize

The rule applies if the other factor of the product came from a DequantizeLinear that another rule has replaced. ONNX
Runtime does not fold a DequantizeLinear, which then runs at every inference. If one factor is a DequantizeLinear of a
constant, transposed or not, and the other one is float, ONNX Runtime even fuses the product into MatMulNBits, which
quantizes the float factor again (1.31: outputs move by 1 to 3% of their standard deviation). It does not do so if both
factors come from a DequantizeLinear, as in the original model.

Weights are not folded if results must be exact: ONNX Runtime packs constant weights and adds up some products in
another order. The weights then become DynamicDequantize, as they do if they are too large to fold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.limits import FOLDED
from ..analysis.nodes import Use, is_standard, producer_of
from ..analysis.standard import FUSIBLE_PRODUCTS, REARRANGING, RESHAPES
from ..analysis.types import CODE_TYPES, check_type
from ..chains.quantize_linear import LinearNode, build_linear, dequantize_linear, inputs_of
from ..edit import Edit
from ..metadata import DEQUANTIZES
from ..rule import Context, Rule

_MOVES = REARRANGING | {"Cast"}  # between an activation and its product


class _FoldedBytes:
    """The number of bytes of weights that have been folded in one model."""

    def __init__(self, facts: Facts) -> None:
        self.count = 0


@dataclass(frozen=True)
class _Folded:
    """Weights of products, folded.

    Attributes:
        weights: The elements of each form of the weights (the output of the DequantizeLinear, or of a Transpose), and
            the products that use it.
        size: The number of bytes that they take at most.
    """

    weights: tuple[tuple[npt.NDArray[Any], list[Use]], ...]
    size: int


def _match(node: ir.Node, context: Context) -> _Folded | LinearNode | None:
    if not all(map(context.facts.is_constant, node.inputs)):
        return None
    products = {value: uses for value in _forms(node) if (uses := _products(value))}
    if not products:
        return None
    if not context.options.exact and (folded := _fold(products, context)) is not None:
        return folded
    check_type("the codes", inputs_of(node)[0], CODE_TYPES)
    return dequantize_linear(node)


def _build(match: _Folded | LinearNode, edit: Edit) -> None:
    if isinstance(match, LinearNode):
        build_linear(match, edit)
        return
    edit.operator = "Constant"
    edit.shared(_FoldedBytes).count += match.size
    for elements, uses in match.weights:
        value = edit.add_initializer(elements, edit.facts.model.graph)
        for use in uses:
            edit.replace_input(use.node, use.idx, value)


RULE: Rule[_Folded | LinearNode] = Rule(
    "weights of a float product", 10, _match, _build, operators=("DequantizeLinear",)
)


def _forms(dq: ir.Node) -> list[ir.Value]:
    """Returns the output of a DequantizeLinear, and what a Transpose or a Cast makes of it.

    A Cast to float16 need not round: ONNX Runtime removes it if the product has no kernel for float16.
    """
    output = dq.outputs[0]
    moved = [use.node.outputs[0] for use in output.uses() if is_standard(use.node, *_MOVES - RESHAPES)]
    return [output, *(each for each in moved if each.dtype == output.dtype or each.dtype == ir.DataType.FLOAT)]


def _products(weights: ir.Value) -> list[Use]:
    """Returns the uses of weights by products with a factor that came from a DequantizeLinear."""
    found = []
    for use in map(Use._make, weights.uses()):
        if use.node.domain not in STANDARD_DOMAINS or use.node.op_type not in FUSIBLE_PRODUCTS or use.idx > 1:
            continue
        factor = use.node.inputs[1 - use.idx]
        while (move := producer_of(factor, *_MOVES)) is not None:
            factor = move.inputs[0]
        source = None if factor is None else factor.producer()
        if source is not None and source.metadata_props.get(DEQUANTIZES) == "1":
            found.append(use)
    return found


def _fold(products: dict[ir.Value, list[Use]], context: Context) -> _Folded | None:
    """Returns the folded weights of products; None if they are too large or not known."""
    size, weights = 0, []
    for value in products:
        shape = value.shape
        size += math.prod(shape.numpy()) * 4 if shape is not None and shape.is_static() else FOLDED.most
    if context.shared(_FoldedBytes).count + size > FOLDED.most:
        return None
    for value, uses in products.items():
        elements = evaluate(value, context.facts)
        if elements is None:
            return None
        weights.append((elements, uses))
    return _Folded(tuple(weights), size)
