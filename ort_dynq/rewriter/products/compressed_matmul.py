"""The rule for products of floats and dequantized matrices with scales that vary along the sums.

codes, DequantizeLinear, MatMul | Gemm | Einsum -> CompressedMatMul [, Add]

Each row of the matrix has a scale for each part of the columns, or one. The codes may be inputs of the model; ONNX
Runtime alone dequantizes them in every run, also constant ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...opsets import OPSET
from ..analysis.nodes import first_inputs, is_standard, producer_of
from ..analysis.shapes import same_shape
from ..analysis.standard import MATRIX_PRODUCTS
from ..edit import Edit, call
from ..policy.cost import is_tiny_compressed
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.matrix_product import MatrixProduct, matrix_product_of
from ..weights.nbits import FLOATS
from .provenance import note_activation

_CODES = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT4, ir.DataType.INT4)


@dataclass(frozen=True)
class _CompressedProduct:
    """A product.

    Attributes:
        product: Its factors.
        codes, scale, zero_point: The inputs of the DequantizeLinear.
        size: The columns of a part; 0: the scales are of whole rows.
    """

    product: MatrixProduct
    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    size: int


def _match(node: ir.Node, context: Context) -> _CompressedProduct | None:
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    cast = producer_of(node.inputs[1], "Cast")
    dequantizer = producer_of(node.inputs[1] if cast is None else cast.inputs[0], "DequantizeLinear")
    if dequantizer is None:
        return None
    try:
        product = matrix_product_of(node)
    except Unconverted:  # the rule for all dequantized products says why
        return None
    codes, scale, zero_point = first_inputs(dequantizer, 3)
    if product is None or codes is None or scale is None or codes.dtype not in _CODES:
        return None
    types = {product.a.dtype, product.b.dtype, dequantizer.outputs[0].dtype, scale.dtype}
    is_plain = not product.has_transposed_a and not product.has_transposed_b and product.alpha == product.beta == 1
    if not types <= {*FLOATS} or not is_plain or not _only_multiplies(dequantizer.outputs[0]):
        return None
    if codes.shape is None or scale.shape is None or not codes.shape.is_static() or not scale.shape.is_static():
        return None
    shape, of_scale = codes.shape.numpy(), scale.shape.numpy()
    axis, block = (dequantizer.attributes.get_int(name, default) for name, default in (("axis", 1), ("block_size", 0)))
    if len(shape) != 2 or (zero_point is not None and not same_shape(zero_point, scale)):
        return None
    depth, columns = shape
    if block == 0:
        is_of_rows = axis in (0, -2) and of_scale == (depth,)
    else:
        is_of_rows = axis in (1, -1) and columns % block == 0 and of_scale == (depth, columns // block)
    if not is_of_rows or is_tiny_compressed(
        depth, columns, block or columns, is_constant=context.facts.is_constant(codes)
    ):
        return None
    if context.options.exact:
        raise Unconverted(Reason.EXACT).then(Unconverted(Reason.MADE_DEQUANTIZATION))
    return _CompressedProduct(product, codes, scale, zero_point, block)


def _only_multiplies(value: ir.Value) -> bool:
    """Returns whether nothing but products reads numbers, as right factors, perhaps behind Casts."""
    return not value.is_graph_output() and all(
        (use.node.op_type in MATRIX_PRODUCTS and use.idx == 1)
        or (is_standard(use.node, "Cast") and _only_multiplies(use.node.outputs[0]))
        for use in value.uses()
    )


def _build(match: _CompressedProduct, edit: Edit) -> None:
    node, product = edit.node, match.product
    zero_point = match.zero_point
    if zero_point is None:
        assert match.codes.dtype is not None
        zero_point = edit.add_constant(np.zeros((), match.codes.dtype.numpy()), before=node)
    main = call("CompressedMatMul", [product.a, match.codes, match.scale, zero_point])
    result = edit.insert_main(main, before=node)
    if product.c is not None:
        result = edit.insert(ir.node("Add", [result, product.c]), before=node)
    edit.replace(node.outputs[0], result)
    note_activation(edit, product.a)
    assert match.codes.dtype is not None
    parts = f"each part of {match.size} columns" if match.size else "the rows"
    edit.note = f"{match.codes.dtype.name.lower()} codes; the activation times the scales of {parts} has 16 bits"
    edit.note += f"; {Unconverted(Reason.MADE_DEQUANTIZATION)}"


RULE: Rule[_CompressedProduct] = Rule(
    "product with scales along the sums", OPSET, _match, _build, operators=MATRIX_PRODUCTS
)
