"""Builds products of a float activation and quantized weights: MatMulNBits, or weights behind DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.encodings import ScaleOrder
from ..chains.quantize_linear import is_rounded, reads_rounded
from ..codes.float_activations import FloatActivations
from ..edit import Edit, call
from ..metadata import FLOAT_ACTIVATION, HAS_OFFSET, ROUNDED_WEIGHTS
from ..policy.cost import is_tiny_nbits
from ..reasons import Reason, Unconverted
from ..shared_initializers import SharedInitializers
from ..weights.nbits import NBits
from ..weights.tied_tables import TiedTable, TiedTables
from .provenance import note_activation


@dataclass(frozen=True)
class WeightsOnlyProduct:
    """A product of an activation that is quantized at run time.

    Attributes:
        activation: The left factor.
        weights: The weights.
        bias: The bias; None if there is none.
        terms: The codes that an element of the activation gets.
        dtype: The type of the result.
        source: What the weights are read from: products of equal sources share their weights.
        note: The remark for the report, before that on the activation.
        is_rounded: Whether the model rounds the weights to float16.
        alpha: What the scales have been multiplied by: products with another one share all but the scales.
        more: The remark after it; may be empty.
        has_sums: Whether zero points are no integers: then the sums of the activation over blocks have weights, too.
    """

    activation: ir.Value
    weights: NBits
    bias: ir.Value | npt.NDArray[np.generic] | None
    terms: int
    dtype: ir.DataType
    source: tuple[Hashable, ...]
    note: str
    is_rounded: bool = False
    alpha: float = 1.0
    more: str = ""
    has_sums: bool = False

    def check(self, *, of_any_size: bool = False) -> None:
        """Checks that the product can be converted, and gains from it.

        Args:
            of_any_size: Whether a small product may take longer than before.

        Raises:
            Unconverted: The rank of the activation is not known, or the product is too small.
        """
        if self.weights.padding and self.activation.shape is None:
            raise Unconverted(Reason.RANK_NOT_KNOWN)
        if not of_any_size and is_tiny_nbits(self.activation, self.weights.depth, self.weights.columns, self.terms):
            raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_GROUPS)


def build_weights_only(match: WeightsOnlyProduct, edit: Edit) -> None:
    """Puts the quantization of the activation and QuantizedMatMul in place of a product."""
    weights, node = match.weights, edit.node
    activations, shared = edit.shared(FloatActivations), edit.shared(SharedInitializers)
    group_size = weights.block_size if weights.blocks > 1 else 0
    activation, dtype = match.activation, match.dtype
    # An operator rounds float16 beside a node that ONNX Runtime computes in float32, and its function does not.
    if activation.dtype == ir.DataType.FLOAT16 and (weights.padding or not is_rounded(activation)):
        activation = activations.in_float32(activation, edit)
    if dtype == ir.DataType.FLOAT16 and not all(reads_rounded(use.node) for use in node.outputs[0].uses()):
        dtype = ir.DataType.FLOAT
    padded = activations.padded(activation, weights.padding, edit)
    quantize = activations.of_rows if match.terms == 1 else activations.of_two_terms
    codes = quantize(padded, edit, block_size=group_size)
    graph = weights.root.graph if weights.root.is_initializer() else node.graph
    assert isinstance(graph, ir.Graph)
    assert codes.scale is not None

    def stored(compute: Callable[[], ir.TensorProtocol], *more: Hashable) -> ir.Value:
        return shared.of_source((compute.__name__, *match.source, *more), compute, graph, edit)

    packed, zero_point = map(stored, (weights.packed, weights.weight_zero_point))
    column_scale = stored(weights.column_scale, match.alpha)
    columns = weights.columns
    edit.shared(TiedTables).found[weights.root] = TiedTable(columns, weights.bits, packed, zero_point, column_scale)
    # Without sums, QuantizedMatMul computes them: those of many blocks take as long to read.
    sums = shared.of(np.empty((0, columns), np.int32), edit) if group_size else stored(weights.column_sums)
    bias = np.full(columns, -0.0, dtype.numpy()) if match.bias is None else match.bias
    if dtype != match.dtype and match.bias is not None:
        bias = activations.in_float32(bias, edit) if isinstance(bias, ir.Value) else bias.astype(np.float32)
    inputs = [
        codes.codes,
        codes.scale,
        codes.zero_point,
        packed,
        zero_point,
        column_scale,
        sums,
        bias if isinstance(bias, ir.Value) else shared.of(bias, edit),
    ]
    main = call(
        "QuantizedMatMul",
        inputs,
        bits=weights.bits,
        group_size=group_size,
        terms=codes.terms,
        scale_order=int(ScaleOrder.COLUMN_FIRST),
    )
    result = edit.insert_main(main, before=node)
    if match.has_sums:
        edit.metadata[HAS_OFFSET] = "1"
        result = _add_sums(result, _sums_of_blocks(padded, weights, edit), stored(weights.weights_of_sums), edit)
    if dtype != match.dtype:
        result = edit.insert(ir.node("Cast", [result], {"to": int(match.dtype)}), before=node)
    edit.replace(node.outputs[0], result)
    note_activation(edit, match.activation)
    edit.metadata[FLOAT_ACTIVATION] = "1"
    if match.is_rounded:
        edit.metadata[ROUNDED_WEIGHTS] = "1"
    edit.note = f"{match.note}: {remark_on_codes(match.terms, group_size)}"
    if match.more:
        edit.note += f"; {match.more}"


def remark_on_codes(terms: int, block_size: int) -> str:
    """Returns how an activation is quantized, for the report; a `block_size` of 0 stands for whole rows."""
    size = f"in blocks of {block_size}" if block_size else "in rows"
    return f"activation of {'two terms' if terms == 2 else '8 bits'} {size}"


def _sums_of_blocks(activation: ir.Value, weights: NBits, edit: Edit) -> ir.Value:
    """Returns the sums of float32 [..., K] over blocks, [..., blocks]."""
    before = edit.node
    if weights.blocks > 1:
        assert activation.shape is not None
        shape = [0] * (activation.shape.rank() - 1) + [weights.blocks, weights.block_size]
        in_blocks = ir.node("Reshape", [activation, edit.add_constant(np.array(shape), before=before)])
        activation = edit.insert(in_blocks, before=before)
    axes = edit.add_constant(np.array([-1]), before=before)
    return edit.insert(ir.node("ReduceSum", [activation, axes], {"keepdims": int(weights.blocks == 1)}), before=before)


def _add_sums(product: ir.Value, sums: ir.Value, weights: ir.Value, edit: Edit) -> ir.Value:
    of_sums = edit.insert(ir.node("MatMul", [sums, weights]), before=edit.node)
    return edit.insert(ir.node("Add", [product, of_sums]), before=edit.node)
