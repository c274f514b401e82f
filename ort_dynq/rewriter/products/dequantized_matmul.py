"""The rule for products of a float activation and constant weights behind DequantizeLinear.

weights, DequantizeLinear, [Transpose | Reshape | Cast], MatMul | Gemm | Einsum
    -> TwoTermQuantize, QuantizedMatMul of two terms
    -> RowProgram in blocks, QuantizedMatMul             (`weights_only` "blocks")
    -> folded weights, MatMul | Gemm | Einsum            (QuantizedMatMul has no such weights, or they are few)

The model has float activations, so the product keeps them: with two terms within about 90 dB. ONNX Runtime alone makes
MatMulNBits of accuracy_level 4 of some of these products, which nobody asked for, and dequantizes the weights of all
others in every run (policy/dequantized_products.py).

A product that is little beside the model's convolutions stays: nothing would be gained.

A product of a quantized activation is left to other rules, and to ONNX Runtime if its scale is constant.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...opsets import OPSET
from ...rewrite_options import WEIGHTS_ONLY
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.limits import FOLDED
from ..analysis.standard import MATRIX_PRODUCTS
from ..codes.affine import AffineForms
from ..edit import Edit
from ..policy.cost import is_short_dequantized
from ..policy.dequantized_products import Convolutions, made_by_onnxruntime
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from ..weights.channels import Channels
from ..weights.dequantized_weights import Dequantizer, dequantized_weights_of, dequantizer_of, is_dequantized, source_of
from ..weights.matrix_product import MatrixProduct, matrix_product_of
from ..weights.nbits import FLOATS
from .provenance import note_activation
from .weights_only import WeightsOnlyProduct, build_weights_only


class _FoldedWeights:
    """The weights that are folded in one model."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._tensors: dict[tuple[Hashable, ...], ir.TensorProtocol] = {}

    def of(self, weights: ir.Value, source: tuple[Hashable, ...]) -> ir.TensorProtocol | None:
        """Returns a constant dequantized; None if ONNX Runtime cannot compute it, or its size is not known.

        Args:
            weights: The constant.
            source: What equal constants have in common.

        Raises:
            Unconverted: With it, the weights of the model would be too large.
        """
        if source in self._tensors:
            return self._tensors[source]
        shape, dtype = weights.shape, weights.dtype
        if shape is None or not shape.is_static() or dtype not in FLOATS:
            return None
        size = math.prod(shape.numpy()) * dtype.itemsize
        if sum(each.nbytes for each in self._tensors.values()) + size > FOLDED.most:
            raise Unconverted(Reason.DEQUANTIZED_TOO_LARGE)
        elements = evaluate(weights, self._facts)
        if elements is None:
            return None
        return self._tensors.setdefault(source, ir.tensor(elements))


class _Fates:
    """What ONNX Runtime makes of the products of each DequantizeLinear, before any of them is converted."""

    def __init__(self, facts: Facts) -> None:
        self._uses: dict[ir.Node, int] = {}
        self._readers: dict[ir.Value, int] = {}

    def of(self, product: ir.Node, dequantizer: Dequantizer) -> Reason:
        """Returns MADE_LEVEL_4 or MADE_DEQUANTIZATION."""
        uses = self._uses.setdefault(dequantizer.node, dequantizer.uses)
        constants = [value for value in dequantizer.node.inputs[:2] if value is not None]
        readers = max(self._readers.setdefault(value, len(value.uses())) for value in constants)
        return made_by_onnxruntime(product, dequantizer.node, dequantizer.moves, uses, readers)


@dataclass(frozen=True)
class FoldedProduct:
    """A product with weights that are dequantized in the model.

    Attributes:
        source: What the weights are read from: products of equal sources share their weights.
        folded: Their elements.
        note: The remark for the report.
    """

    source: tuple[Hashable, ...]
    folded: ir.TensorProtocol
    note: str


def _match(node: ir.Node, context: Context) -> WeightsOnlyProduct | FoldedProduct | None:
    if node.op_type not in MATRIX_PRODUCTS or len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    dequantizer = dequantizer_of(node.inputs[1], context.facts)
    forms = context.shared(AffineForms)
    if dequantizer is None or is_dequantized(node.inputs[0]) or forms.of(node.inputs[0]) is not None:
        return None
    fate = Unconverted(context.shared(_Fates).of(node, dequantizer))
    if (lost := forms.lost(node.inputs[0])) is not None:  # its activation was codes before
        fate = fate.then(lost)
    if context.options.exact:
        raise Unconverted(Reason.EXACT).then(fate)
    little = context.shared(Convolutions).outweigh(node.inputs[0], node.inputs[1])
    if little is not None and context.options.weights_only == WEIGHTS_ONLY[0]:
        raise little.then(fate)
    if dequantizer.other_type:
        raise Unconverted(Reason.DEQUANTIZED_TYPE, dtype=dequantizer.other_type.name.lower()).then(fate)
    try:
        product = matrix_product_of(node)
        return None if product is None else _integer_match(product, dequantizer, context, str(fate))
    except Unconverted as why:
        if why.reason == Reason.DEQUANTIZED_SHARED:
            raise why.then(fate) from None
        return _folded_match(node.inputs[1], source_of(dequantizer), why, fate, context)


def _integer_match(product: MatrixProduct, dequantizer: Dequantizer, context: Context, fate: str) -> WeightsOnlyProduct:
    """Returns the match of a product that gets a quantized activation.

    Raises:
        Unconverted: There is no such product.
    """
    if product.a.dtype not in FLOATS:
        reason = Reason.ACTIVATION_TYPE_NOT_KNOWN if product.a.dtype is None else Reason.ACTIVATION_TYPE
        raise Unconverted(reason, dtype="" if product.a.dtype is None else product.a.dtype.name.lower())
    if product.has_transposed_a or (product.alpha != 1 and dequantizer.is_rounded):
        raise Unconverted(Reason.GEMM_ATTRIBUTES)
    terms = 1 if context.options.weights_only == "blocks" else 2
    weights, source = dequantized_weights_of(product, dequantizer, context.facts, split=terms == 1)
    match = WeightsOnlyProduct(
        product.a,
        weights,
        _bias_of(product, weights.columns, context.facts),
        terms,
        product.a.dtype,
        source,
        note=f"weights of {weights.bits} bits behind DequantizeLinear",
        is_rounded=dequantizer.is_rounded,
        alpha=product.alpha,
        more=fate,
    )
    match.check()
    if is_short_dequantized(weights.depth, terms):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_GROUPS)
    return match


def _bias_of(product: MatrixProduct, columns: int, facts: Facts) -> ir.Value | npt.NDArray[np.generic] | None:
    """Returns beta * C, [N], of the type of the activation; None if nothing is added.

    Raises:
        Unconverted: It is not one number for each column, or C is computed at run time and beta is not 1.
    """
    c = product.c
    if c is None:
        return None
    if product.beta == 1 and c.dtype == product.a.dtype and c.shape is not None and c.shape == (columns,):
        return c
    numbers = Channels(columns, rank=2).vector(c, None, facts)
    if numbers is None:
        raise Unconverted(Reason.BIAS)
    return (numbers * numbers.dtype.type(product.beta)) if product.beta != 1 else numbers


def _folded_match(
    weights: ir.Value, source: tuple[Hashable, ...], why: Unconverted, fate: Unconverted, context: Context
) -> FoldedProduct:
    """Returns the match of a product with weights that are folded.

    Args:
        weights: The weights.
        source: What they are read from.
        why: Why its activation is not quantized.
        fate: What ONNX Runtime makes of it.
        context: The data of the rewrite.

    Raises:
        Unconverted: They would be too large, or ONNX Runtime cannot compute them.
    """
    try:
        folded = context.shared(_FoldedWeights).of(weights, source)
    except Unconverted as too_large:
        raise why.then(too_large.then(fate)) from None
    if folded is None:
        raise why.then(fate) from None
    return FoldedProduct(source, folded, f"weights dequantized once, as floats, since {why}; {fate}")


def _build(match: WeightsOnlyProduct | FoldedProduct, edit: Edit) -> None:
    if isinstance(match, WeightsOnlyProduct):
        build_weights_only(match, edit)
        return
    node, graph = edit.node, edit.facts.model.graph
    shared = edit.shared(SharedInitializers)
    folded = shared.of_source(("folded", *match.source), lambda: match.folded, graph, edit)
    activation, _, *others = node.inputs
    main = ir.node(node.op_type, [activation, folded, *others], dict(node.attributes))
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))
    assert activation is not None
    note_activation(edit, activation)
    edit.note = match.note


RULE: Rule[WeightsOnlyProduct | FoldedProduct] = Rule(
    "product of dequantized weights", OPSET, _match, _build, reports_opset=True
)
