"""The rule for MatMul, Gemm and Einsum with constant float weights.

activation, MatMul | Gemm | Einsum, [Add bias]    -> quantization, QuantizedMatMul
                                                  -> WordMatMul

The axes of an Einsum may be those of heads or experts, and the weights may be the left factor of any of them: the
product is then between a Transpose or Reshape of the activation and of the result, where these are needed
(../rewriter/products/einsum.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..operators.quantized_matmul import GROUP_UNIT
from ..opsets import OPSET
from ..rewriter.analysis.inference import Facts
from ..rewriter.analysis.nodes import first_inputs, producer_of
from ..rewriter.analysis.standard import MATRIX_PRODUCTS, SHAPING
from ..rewriter.codes.float_activations import FloatActivations, check_activation
from ..rewriter.edit import Edit
from ..rewriter.policy.cost import is_tiny_matrix, is_tiny_row
from ..rewriter.products.einsum import Einsum, einsum_of, product_of_left_weights
from ..rewriter.products.epilogue import Epilogue
from ..rewriter.products.provenance import note_activation
from ..rewriter.products.quantized_matmul import build_quantized_matmul
from ..rewriter.products.word_matmul import build_word_matmul
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.weights.channels import columns_of
from ..rewriter.weights.grid import (
    WORD_BITS,
    QuantizedWeights,
    SharedGrids,
    check_length,
    check_sums,
    columns_of_stack,
    grid_of,
)
from ..rewriter.weights.matrix_product import MatrixProduct, bias_of, matrix_product_of, stack_beside, with_alpha
from .activations import codes_of, note_on, note_on_words
from .options import Options
from .weights import check_constant, check_stored, floats_of, grid_of_columns, grid_of_groups, release, words_of

_FACTORS = 2
_RANK = 2  # of a matrix


@dataclass(frozen=True)
class _FloatLayer:
    activation: ir.Value
    is_transposed: bool  # the activation
    grid: QuantizedWeights
    epilogue: Epilogue
    options: Options
    note: str
    einsum: Einsum | None


def _match(node: ir.Node, context: Context, options: Options) -> _FloatLayer | None:
    if node.op_type == "Einsum" and not _has_weights(node, context.facts):
        return None
    product, einsum = _product_of(node, context.facts)
    if product is None:
        return None
    options.check(node)
    facts, b = context.facts, product.b
    merged = None if product.has_transposed_a or einsum is not None else _before_merging(product.a)
    a = product.a if merged is None else merged
    check_constant(b, facts)
    check_activation(a)
    layout = product.has_transposed_b, einsum, options.has_words(node)
    search = functools.partial(_grid_of, b, *layout, options, facts)
    grid, note = context.shared(SharedGrids).of(b, layout, search)
    if grid.bits != WORD_BITS:
        check_length(grid)
    grid = replace(grid, stack=stack_beside(grid.stack, a))
    channels = columns_of(grid.codes.shape[1], grid.stack, a)
    depth, columns = len(grid.codes), channels.columns
    if is_tiny_row(a, depth, columns):
        raise Unconverted(Reason.WEIGHTS_TOO_FEW, depth=depth, columns=columns)
    if options.has_two_terms(node) and grid.bits != WORD_BITS and is_tiny_matrix(depth, columns, terms=2):
        raise Unconverted(Reason.WEIGHTS_TOO_FEW_FOR_TWO_TERMS, depth=depth, columns=columns)
    bias, grid = bias_of(product, channels, facts), with_alpha(grid, product)
    epilogue = Epilogue(node, channels, node.outputs[0], column=grid.scale, bias=bias)
    if bias is None:
        epilogue = epilogue.past_bias(facts) if einsum is None else einsum.past_bias(epilogue, facts)
    epilogue = replace(epilogue, merges_rows=merged is not None)
    return _FloatLayer(a, product.has_transposed_a, grid, epilogue, options, note, einsum)


def _product_of(node: ir.Node, facts: Facts) -> tuple[MatrixProduct | None, Einsum | None]:
    """Returns a matrix product, and the Einsum that it is part of, if that has more; None for other nodes.

    Raises:
        Unconverted: It is an Einsum that is no product of matrices, or the weights are the left factor, and what they
            multiply may be no matrix.
    """
    a, b = first_inputs(node, _FACTORS)
    if a is None or b is None:
        return None, None
    if node.domain in STANDARD_DOMAINS and facts.is_constant(a) and not facts.is_constant(b):
        return product_of_left_weights(node)
    try:
        return matrix_product_of(node), None
    except Unconverted:
        return MatrixProduct(a, b), einsum_of(node)


def _before_merging(a: ir.Value) -> ir.Value | None:
    """Returns the rows before a Reshape to a matrix, as before a Gemm; None if a graph input or a move has them.

    The product takes these rows, and its result gets the shape of the matrix. So a normalization or a function before
    the Reshape and the quantization can become one program.
    """
    reshape = producer_of(a, "Reshape")
    source = None if reshape is None else reshape.inputs[0]
    node = None if source is None else source.producer()
    if source is None or node is None or node.op_type in SHAPING or source.shape is None or a.shape is None:
        return None
    is_merged = len(a.shape) == _RANK < len(source.shape)
    keeps_rows = isinstance(a.shape[-1], int) and a.shape[-1] == source.shape[-1]
    return source if is_merged and keeps_rows else None


def _has_weights(einsum: ir.Node, facts: Facts) -> bool:
    """Returns whether an Einsum has two factors, one of them constant: others are sums, or products of activations."""
    return len(einsum.inputs) == _FACTORS and any(map(facts.is_constant, einsum.inputs))


def _build(match: _FloatLayer, edit: Edit) -> None:
    a = match.activation
    if match.is_transposed:
        a = edit.insert(ir.node("Transpose", [a], {"perm": [1, 0]}), before=edit.node)
    else:
        note_activation(edit, a)
    if match.einsum is not None:
        a = edit.shared(FloatActivations).moved(a, match.einsum.order, match.einsum.rows_shape, edit)
    if match.grid.bits == WORD_BITS:
        build_word_matmul(match.epilogue, a, match.grid, edit, match.einsum)
        edit.note = note_on_words(match.options)
        return
    codes = codes_of(a, edit, match.options)
    build_quantized_matmul(match.epilogue, codes, match.grid, edit, einsum=match.einsum)
    edit.note = "; ".join(filter(None, (match.note, note_on(codes, match.options))))


def rule(options: Options) -> Rule[_FloatLayer]:
    """Returns the rule with these options."""
    match = functools.partial(_match, options=options)
    return Rule("quantized matrix product", OPSET, match, _build, reports_opset=True, operators=MATRIX_PRODUCTS)


def _grid_of(
    b: ir.Value, is_transposed: bool, einsum: Einsum | None, has_words: bool, options: Options, facts: Facts
) -> tuple[QuantizedWeights, str]:
    """Returns constant weights, their transpose or those of an Einsum as codes, and a note if options say otherwise.

    Raises:
        Unconverted: They cannot become codes, or it does not pay.
    """
    weights = floats_of(b, facts)
    if weights.ndim < 2:
        raise Unconverted(Reason.WEIGHTS_RANK, rank=weights.ndim, expected=2)
    weights = weights if einsum is None else einsum.matrices(weights)
    depth, columns = weights.shape[-2:][:: -1 if is_transposed else 1]
    if is_tiny_matrix(depth, columns, is_transposed=einsum is not None and einsum.moves_both):
        raise Unconverted(Reason.WEIGHTS_TOO_FEW, depth=depth, columns=columns)
    check_stored(b, weights)
    matrix, stack = columns_of_stack(weights.swapaxes(-1, -2) if is_transposed else weights)
    grid, note = (words_of(matrix), "") if has_words else _grid(matrix, options)
    release(b)
    return replace(grid, stack=stack), note


def _grid(weights: npt.NDArray[np.float32], options: Options) -> tuple[QuantizedWeights, str]:
    """Returns weights, [K, N], as codes, and a note if they differ from the options.

    Weights that are the result of a dequantization keep its codes.
    """
    depth = len(weights)
    if (grid := grid_of(weights)) is not None and (grid.bits == 4 or options.weights == "int8"):
        return grid, ""
    if options.weights == "int4":
        size = options.group
        while size >= GROUP_UNIT and depth % size:
            size //= 2
        if size >= GROUP_UNIT:
            differs = size != options.group
            note = f"groups of {size}, since groups of {options.group} do not divide {depth} rows" if differs else ""
            return grid_of_groups(weights, size), note
        return _int8(weights), f"int8, since no group divides {depth} rows"
    return _int8(weights), ""


def _int8(weights: npt.NDArray[np.float32]) -> QuantizedWeights:
    check_sums(len(weights), np.zeros(1, np.int8))
    return grid_of_columns(weights)
