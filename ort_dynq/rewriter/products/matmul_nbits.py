"""The rule for MatMulNBits, ONNX Runtime's product of a float activation and weights of few bits in blocks.

MatMulNBits    -> RowProgram in blocks, QuantizedMatMul
               -> TwoTermQuantize in blocks, QuantizedMatMul of two terms
               -> and Reshape, ReduceSum, MatMul, Add, if zero points of the weights are no integers

With accuracy_level 4, ONNX Runtime itself quantizes the activation at run time: each block to codes of -127 to 127 (on
x86; on ARM each row). Here each block gets 256 codes from min(x, 0) to max(x, 0), whose steps are never larger. All
other levels compute with the activation as floats: these products stay, unless `weights_only` says how to quantize
them. If zero points of the weights are floats, ONNX Runtime ignores level 4 and dequantizes the weights in every run:
then two terms replace level 4, too, unless `weights_only` is "blocks".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...operators.encodings import ScaleOrder
from ...opsets import OPSET
from ..edit import Edit, call
from ..policy.cost import is_tiny_nbits
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from .float_activations import FloatActivations
from .nbits import NBits, nbits_of
from .provenance import note_activation

_QUANTIZED_LEVEL = 4  # accuracy_level of int8 activations
_BIAS = 5


@dataclass(frozen=True)
class NBitsProduct:
    """A product that is converted.

    Attributes:
        activation: The left factor.
        weights: The weights.
        bias: The bias; None if there is none.
        level: The attribute accuracy_level.
        terms: The codes that an element of the activation gets.
        has_sums: Whether zero points are no integers: then the sums of the activation over blocks have weights, too.
    """

    activation: ir.Value
    weights: NBits
    bias: ir.Value | None
    level: int
    terms: int
    has_sums: bool


def _match(node: ir.Node, context: Context) -> NBitsProduct | None:
    if node.domain != MICROSOFT or node.op_type != "MatMulNBits":
        return None
    level = node.attributes.get_int("accuracy_level", 0)
    if level != _QUANTIZED_LEVEL and context.weights_only == "keep":
        raise Unconverted(Reason.NBITS_FLOAT_ACTIVATION, level=level)
    if context.exact:
        raise Unconverted(Reason.EXACT)
    activation = node.inputs[0]
    if activation is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=0)
    weights = nbits_of(node, context.facts)
    if weights.padding and activation.shape is None:
        raise Unconverted(Reason.RANK_NOT_KNOWN)
    is_float_in_stock = level != _QUANTIZED_LEVEL or weights.has_real_zero_points
    terms = 2 if is_float_in_stock and context.weights_only != "blocks" else 1
    if is_tiny_nbits(activation, weights.depth, weights.columns, terms):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_GROUPS)
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    has_sums = weights.has_weights_of_sums
    if has_sums and (activation.shape is None or activation.dtype != ir.DataType.FLOAT):
        is_float = activation.dtype == ir.DataType.FLOAT
        raise Unconverted(Reason.RANK_NOT_KNOWN if is_float else Reason.NBITS_REAL_ZERO_POINTS)
    return NBitsProduct(activation, weights, bias, level, terms, has_sums)


def _build(match: NBitsProduct, edit: Edit) -> None:
    weights, node = match.weights, edit.node
    activations, shared = edit.shared(FloatActivations), edit.shared(SharedInitializers)
    group_size = weights.block_size if weights.blocks > 1 else 0
    padded = activations.padded(match.activation, weights.padding, edit)
    quantize = activations.of_rows if match.terms == 1 else activations.of_two_terms
    codes = quantize(padded, edit, block_size=group_size)
    graph = weights.root.graph if weights.root.is_initializer() else node.graph
    assert isinstance(graph, ir.Graph)
    assert codes.scale is not None
    source = weights.root, *node.inputs[2:4]
    packed, zero_point, column_scale = (
        shared.of_source((compute.__name__, *source), compute, graph, edit)
        for compute in (weights.packed, weights.weight_zero_point, weights.column_scale)
    )
    columns = weights.columns
    bias = match.bias or shared.of(np.full(columns, -0.0, weights.scales.dtype.numpy()), edit)
    computed_sums = shared.of(np.empty((0, columns), np.int32), edit)
    inputs = [codes.codes, codes.scale, codes.zero_point, packed, zero_point, column_scale, computed_sums, bias]
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
        of_sums = shared.of_source(("weights_of_sums", *source), weights.weights_of_sums, graph, edit)
        result = _add_sums(result, _sums_of_blocks(padded, weights, edit), of_sums, edit)
    edit.replace(node.outputs[0], result)
    note_activation(edit, match.activation)
    size = f"in blocks of {group_size}" if group_size else "in rows"
    edit.note = f"accuracy_level {match.level}: activation of {'two terms' if match.terms == 2 else '8 bits'} {size}"


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


RULE = Rule("MatMulNBits", OPSET, _match, _build, reports_opset=True)
