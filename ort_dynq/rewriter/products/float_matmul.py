"""The rule for float products of an activation that is quantized at run time and constant weights.

fake quantization | dequantization, MatMul | Gemm | Einsum, [Mul by the rows' scale], [Add bias]
    -> quantization, QuantizedMatMul
Add of two fake quantizations or dequantizations, MatMul | Gemm | Einsum
    -> two quantizations, a QuantizedMatMul of each, Add
fake quantization | dequantization, Conv of 1x1 with a scale for each position    -> the same, between Transposes
MatMul of constant weights by fake quantization | dequantization                  -> the same, between Transposes

The weights must be an 8-bit grid in every output channel, or in groups of it (grid.py), also one with zero points that
are no codes (float_zero_points.py): the sums of the codes over groups, times what these leave, are added. The
activation may have a scale for each group, too. The integer sums are exact where a sum of floats is rounded, so the
last bits differ: the rule does not apply if results must be exact. The weights may be a grid that was rounded to
float16, as exporters of float16 models store them, and the activation may be rounded to float16 after it is
dequantized. The product then uses the codes and scales, without that rounding.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs, producer_of
from ..analysis.shapes import same_shape
from ..analysis.standard import MATRIX_PRODUCTS
from ..analysis.types import WIDE_TYPES
from ..codes.activation import Activation, activation_of, group_size_of
from ..codes.affine import AffineForms
from ..codes.affine_form import Affine
from ..codes.codes import ActivationCodes
from ..edit import Edit
from ..policy.cost import (
    is_tiny_product_of_float_zero_points,
    is_tiny_product_of_groups,
    is_tiny_product_of_rows,
    is_tiny_sum,
    is_tiny_transposed_product,
)
from ..policy.ort_fusions import check_fused
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.channels import columns_of
from ..weights.float_zero_points import grid_of_float_zero_points
from ..weights.grid import QuantizedWeights, SharedGrids, check_length, columns_of_stack, grid_of
from ..weights.matrix_product import MatrixProduct, bias_of, matrix_product_of, stack_beside, with_alpha
from .einsum import Einsum, einsum_of, pointwise, product_of_left_weights
from .epilogue import Epilogue
from .provenance import note_activation, note_roundings
from .quantized_matmul import build_quantized_matmul, quantized_matmul


@dataclass(frozen=True)
class _FloatMatMul:
    activation: Activation
    grid: QuantizedWeights
    epilogue: Epilogue
    einsum: Einsum | None = None


@dataclass(frozen=True)
class _FloatMatMulParts:
    """The products of the terms of an activation; most have one. The results are added.

    Attributes:
        parts: The products. The first one has the bias.
        value: The activation.
    """

    parts: tuple[_FloatMatMul, ...]
    value: ir.Value


def _match(node: ir.Node, context: Context) -> _FloatMatMulParts | None:
    forms = context.shared(AffineForms)
    product, einsum = _product_of(node, forms, context.facts)
    if product is None:
        return None
    form = forms.of(product.a)
    terms = [form] if form is not None else _terms_of(product.a, forms)
    if not terms:
        return None
    check_fused(node, context)
    if context.options.exact:
        if product.a.dtype in WIDE_TYPES:
            raise Unconverted(Reason.EXACT_WIDE_CODES, dtype=product.a.dtype.name.lower())
        raise Unconverted(Reason.EXACT)
    if form is not None and product.a.dtype not in (ir.DataType.FLOAT, None):
        activation_of(form, forms.values)  # says what is wrong with it
    grid = _grid(product, einsum, context)
    if len(terms) == 1:
        return _FloatMatMulParts((_part_of(node, product, grid, einsum, terms[0], context, is_whole=True),), product.a)
    if is_tiny_sum(grid.codes.size):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_A_SUM)
    products = (product, replace(product, c=None))
    parts = tuple(
        _part_of(node, each, grid, einsum, term, context, is_whole=False)
        for each, term in zip(products, terms, strict=True)
    )
    if grid.offset is not None or any(part.activation.has_offset for part in parts):
        raise forms.lost(product.a) or Unconverted(Reason.ACTIVATION_SCALES)
    return _FloatMatMulParts(parts, product.a)


def _terms_of(a: ir.Value, forms: AffineForms) -> list[Affine]:
    """Returns the forms of the terms of a sum, as of q(x) + q(x - q(x)); none if these are no codes times a scale."""
    node = producer_of(a, "Add")
    if node is None or a.dtype != ir.DataType.FLOAT:
        return []
    found = [form for each in node.inputs if each is not None and (form := forms.of(each)) is not None]
    is_sum = len(found) == 2 and all(same_shape(form.value, a) and not form.is_rounded for form in found)
    return found if is_sum else []


def _part_of(
    node: ir.Node,
    product: MatrixProduct,
    grid: QuantizedWeights,
    einsum: Einsum | None,
    form: Affine,
    context: Context,
    *,
    is_whole: bool,
) -> _FloatMatMul:
    """Returns a product of an activation, or of one of its terms.

    Args:
        node: The node of the model.
        product: The factors, and the bias of this product.
        grid: The weights.
        einsum: The Einsum that it is part of, if it is one.
        form: The form of the activation, or of the term.
        context: The data of the rewrite.
        is_whole: Whether the form is that of the activation, so that scales and a bias after the product belong to it.

    Raises:
        Unconverted: It has to stay.
    """
    forms = context.shared(AffineForms)
    a, facts = product.a, context.facts
    form = form if einsum is None else einsum.moved(form)
    channels = columns_of(grid.codes.shape[1], grid.stack, a)
    depth, columns = len(grid.codes), channels.columns
    bias = bias_of(product, channels, facts)
    if is_tiny_product_of_rows(form.root.producer(), columns):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_ROWS)
    if einsum is not None and einsum.moves_depth and is_tiny_transposed_product(depth, columns):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_TO_TRANSPOSE)
    group_size = group_size_of(form, depth)
    common = math.gcd(group_size, grid.group_size)  # a multiple of 16, as both are; 0 stands for one group
    if (group_size or grid.group_size) and is_tiny_product_of_groups(a, columns):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_GROUPS)
    if grid.offset is not None and is_tiny_product_of_float_zero_points(a, depth, columns):
        raise Unconverted(Reason.PRODUCT_TOO_SMALL_FOR_SUMS)
    if group_size:
        grid = grid.split(common)
    check_length(grid)
    groups, parts = (depth // group_size, group_size // common) if group_size else (1, 1)
    depth_axis = -1 if einsum is None or not einsum.moves_depth else einsum.depth
    activation = activation_of(form, forms.values, groups=groups, parts=parts, depth=depth_axis)
    epilogue = Epilogue(node, channels, node.outputs[0], column=grid.scale, bias=bias)
    if einsum is not None:
        if einsum.changes_rows and activation.quotient is not None:  # it has the marks of the activation's rows
            raise Unconverted(Reason.NAN_CODES)
        if einsum.moves_rows and (activation.has_offset or activation.is_rounded or grid.is_rounded):
            raise Unconverted(Reason.EINSUM_ROWS)
        order = einsum.order if einsum.moves_rows else ()
        activation = replace(activation, order=order, shape=einsum.rows_shape)
        return _FloatMatMul(activation, grid, epilogue, einsum)
    if activation.has_offset or grid.offset is not None or not is_whole:
        return _FloatMatMul(activation, grid, epilogue)
    if not activation.is_scaled and bias is None:  # a scale may follow
        epilogue = (epilogue.past_casts() if grid.has_int32_sums else epilogue).past_scales(a, facts)
    return _FloatMatMul(activation, grid, epilogue if bias is not None else epilogue.past_bias(facts))


def _build(match: _FloatMatMulParts, edit: Edit) -> None:
    codes_of, first = edit.shared(ActivationCodes), match.parts[0]
    if len(match.parts) == 1:
        codes = codes_of.of(first.activation, edit)
        build_quantized_matmul(first.epilogue, codes, first.grid, edit, einsum=first.einsum)
    else:
        results = list[ir.Value]()
        for part in match.parts:
            node = quantized_matmul(part.epilogue, codes_of.of(part.activation, edit), part.grid, edit)
            result = edit.insert_main(node, before=edit.node)
            results.append(result if part.einsum is None else part.einsum.result(result, edit, edit.node))
        edit.replace(first.epilogue.last, edit.insert(ir.node("Add", results), before=edit.node))
    note_activation(edit, match.value)
    for part in match.parts:
        note_roundings(edit, part.activation, part.grid)


RULE = Rule("float matrix product", 13, _match, _build, operators=MATRIX_PRODUCTS | {"Conv"})


def _product_of(node: ir.Node, forms: AffineForms, facts: Facts) -> tuple[MatrixProduct | None, Einsum | None]:
    """Returns a matrix product, and the Einsum that it is part of, if that has more; None for other nodes.

    Raises:
        Unconverted: It is an Einsum that is no product of matrices.
    """
    a, b, c = first_inputs(node, 3)
    if a is None or b is None:
        return None, None
    form = forms.of(a)
    if form is None and not _terms_of(a, forms):
        has_left_weights = forms.of(b) is not None and facts.is_constant(a)
        return product_of_left_weights(node) if has_left_weights else (None, None)
    if node.op_type == "Conv":
        if form is None:
            return None, None
        is_image = all(param.is_of_samples(a.shape) for param in form.params)
        einsum = None if is_image else pointwise(node)
        return (None, None) if einsum is None else (MatrixProduct(a, b, c), einsum)
    try:
        return matrix_product_of(node), None
    except Unconverted:
        return MatrixProduct(a, b), einsum_of(node)


def _grid(product: MatrixProduct, einsum: Einsum | None, context: Context) -> QuantizedWeights:
    """Returns the grid of alpha times the weights.

    Raises:
        Unconverted: They are computed at run time, not known or not a grid.
    """
    b, is_transposed = product.b, product.has_transposed_b
    if not context.facts.is_constant(b):
        is_activation = context.shared(AffineForms).of(b) is not None
        raise Unconverted(Reason.TWO_QUANTIZED_ACTIVATIONS if is_activation else Reason.WEIGHTS_AT_RUN_TIME)
    if product.has_transposed_a:
        raise Unconverted(Reason.GEMM_ATTRIBUTES)
    search = functools.partial(_grid_of, b, is_transposed, einsum, context.facts)
    grid = context.shared(SharedGrids).of(b, is_transposed if einsum is None else einsum, search)
    if grid is None:  # also weights that are divided by the scales that the activation has along K
        form = context.shared(AffineForms).of(product.a)
        is_of_rows = form is None or all(param.is_of_rows for param in form.params)
        raise Unconverted(Reason.WEIGHTS_NOT_A_GRID if is_of_rows else Reason.ACTIVATION_CHANNELS)
    return replace(with_alpha(grid, product), stack=stack_beside(grid.stack, product.a))


def _grid_of(b: ir.Value, is_transposed: bool, einsum: Einsum | None, facts: Facts) -> QuantizedWeights | None:
    """Returns the grid of constant weights, of their transpose, or of those of an Einsum; None if they are not a grid.

    Raises:
        Unconverted: They are not known.
    """
    weights = evaluate(b, facts)
    if weights is None:
        raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
    if weights.ndim < 2:
        return None
    weights = weights if einsum is None else einsum.matrices(weights)
    matrix, stack = columns_of_stack(weights.swapaxes(-1, -2) if is_transposed else weights)
    grid = grid_of(matrix, may_be_rounded=True)
    if grid is None and einsum is None and not stack:
        return grid_of_float_zero_points(matrix)
    return None if grid is None else replace(grid, stack=stack)
