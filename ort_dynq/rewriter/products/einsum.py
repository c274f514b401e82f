"""Einsums of an activation and constant weights as matrix products, as mixtures of experts and heads are written.

td,edf->tef       one matrix of all experts: MatMul, Reshape
td,edf->etf       stacked matrices, by which the activation is multiplied as in MatMul
tef,efd->ted      stacked matrices: Transpose of the codes, MatMul, Transpose
bthi,hio->btho    the same, with heads
bthi,hio->bto     a sum over heads, too: Reshape of the codes, MatMul
bhti,hio->bto     the same of an activation of floats: Transpose, Reshape, MatMul

nct,mc->nmt       a convolution of 1x1: Transpose of the codes, MatMul, Transpose
bkt,mk->bmt       a product of weights by an activation, as MatMul(weights, x): the same

The last two are read as Conv and MatMul, too. The weights may be the first factor. Labels of both factors and of the
result are a stack, those of both factors alone are K, and those of the weights and the result are columns.
matrix_product.py reads an Einsum that is a MatMul already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.einsums import labels_of_factors
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..analysis.nodes import first_inputs, is_standard
from ..codes.affine_form import Affine
from ..codes.terms import Param, lead, unsqueezed
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..weights.matrix_product import MatrixProduct, matrix_product_of
from .epilogue import Epilogue


@dataclass(frozen=True)
class Einsum:
    """An Einsum as a product of a matrix, or of stacked ones.

    Attributes:
        order: The axes of the activation in the order rows, stack, last row, K.
        of_weights: The axes of the weights in the order stack, K, columns.
        stack: The number of dimensions of the stack.
        depths: The lengths of the dimensions of K.
        columns: The lengths of the dimensions of a column.
        of_result: The axes of the product, with its columns in their dimensions, in the order of the result.
    """

    order: tuple[int, ...]
    of_weights: tuple[int, ...]
    stack: int
    depths: tuple[int, ...]
    columns: tuple[int, ...]
    of_result: tuple[int, ...]

    @property
    def moves_rows(self) -> bool:
        """Whether rows are in another order in the product than in the activation."""
        return list(self.order) != sorted(self.order)

    @property
    def depth(self) -> int:
        """The first axis of K in the activation, negative."""
        return self.order[-len(self.depths)] - len(self.order)

    @property
    def moves_depth(self) -> bool:
        """Whether K is elsewhere than in the last axes of the activation."""
        rows = len(self.order) - len(self.depths)
        return any(axis < rows for axis in self.order[rows:])

    @property
    def moves_both(self) -> bool:
        """Whether K is elsewhere than in the last axes, and the columns elsewhere than in those of the result."""
        return self.moves_depth and list(self.of_result) != sorted(self.of_result)

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """The shape to which codes in the order of rows are reshaped, as ONNX writes it; empty if they are not."""
        rows = len(self.order) - len(self.depths)
        return (*[0] * rows, math.prod(self.depths)) if len(self.depths) > 1 else ()

    @property
    def changes_rows(self) -> bool:
        """Whether the product has other rows than the activation, or has them in another order."""
        return self.moves_rows or bool(self.rows_shape)

    def matrices(self, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the weights as [stack..., K, N]."""
        ordered = weights.transpose(self.of_weights)
        shape = *ordered.shape[: self.stack], math.prod(self.depths), math.prod(self.columns)
        return np.ascontiguousarray(ordered.reshape(shape))

    def moved(self, form: Affine) -> Affine:
        """Returns the form of an activation with scales and zero points of the product's rows.

        Raises:
            Unconverted: They are not known to belong to rows, or to adjacent elements of them.
        """
        if not self.changes_rows:
            return form
        rank, rows = len(self.order), len(self.order) - len(self.depths)
        if self.order[-1] - self.order[rows] != rank - rows - 1:
            raise Unconverted(Reason.EINSUM)  # K stands in several places
        last = -2 if self.moves_rows else rows - rank - 1  # numbers of rows, or of parts of them

        def of_rows(_: str, param: Param) -> Param:
            if param.is_one:  # it may have no more axes than the codes
                fits = param.rank is not None and param.rank <= rows + 1
                return param if fits else replace(param.of("Reshape", np.array([1])), rank=1)
            shape = form.value.shape
            runs = self._transposed(param, shape) if self.moves_depth else param.as_runs(shape, form.codes, last)
            if runs is None or runs.rank != rank or (self.moves_rows and runs.axes != lead(rank, -1)):
                raise Unconverted(Reason.ACTIVATION_SCALES)
            if not runs.is_of_rows:
                raise Unconverted(Reason.ACTIVATION_CHANNELS)
            runs = runs.of("Transpose", perm=self.order) if self.moves_rows and not self.moves_depth else runs
            if not self.rows_shape:
                return runs
            last_axis = -2 if runs.axes is None else max(runs.axes)
            shared = runs.block or math.prod(self.depths[len(self.depths) + last_axis + 1 :])
            count = math.prod(self.depths) // shared
            runs = runs.of("Reshape", np.array([*self.rows_shape[:-1], count]))
            return replace(runs, axes=None, rank=rows + 1, block=shared if count > 1 else 0)

        return form.mapped(form.value, of_rows)

    def _transposed(self, param: Param, shape: ir.Shape | None) -> Param:
        """Returns numbers of an activation that has K elsewhere as those of rows.

        Raises:
            Unconverted: They vary along K, or are not known to have a number for each row.
        """
        rank = len(self.order)
        if shape is None or param.block or param.axes is None or param.rank is None or param.rank > rank:
            raise Unconverted(Reason.ACTIVATION_SCALES)
        if any(axis + rank in self.order[rank - len(self.depths) :] for axis in param.axes):
            raise Unconverted(Reason.ACTIVATION_CHANNELS)
        whole = unsqueezed(param, list(range(rank - param.rank))).of("Transpose", perm=self.order)
        axes = param.axes | {axis - rank for axis in self.order[: rank - len(self.depths)] if shape[axis] == 1}
        return replace(whole, axes=frozenset(self.order.index(axis + rank) - rank for axis in axes), rank=rank)

    def past_bias(self, epilogue: Epilogue, facts: Facts) -> Epilogue:
        """Returns the epilogue of the product up to the end of an Add of constants that do not vary along rows."""
        step, rank = epilogue.next_step(), len(self.of_result)
        is_sum = step is not None and step.node.op_type == "Add" and not step.moves and not self.stack
        value = step.operand if step is not None and is_sum else None
        elements = None if value is None or not facts.is_constant(value) else evaluate(value, facts)
        if step is None or elements is None or elements.dtype != np.float32 or elements.ndim > rank:
            return epilogue
        whole = elements.reshape((1,) * (rank - elements.ndim) + elements.shape).transpose(np.argsort(self.of_result))
        rows = whole.shape[: rank - len(self.columns)]
        if math.prod(rows) != 1:
            return epilogue
        return epilogue.past(step, bias=np.broadcast_to(whole, rows + self.columns).reshape(-1))

    def result(self, product: ir.Value, edit: Edit, before: ir.Node) -> ir.Value:
        """Returns the result of the Einsum after the product; new nodes are inserted before an old one."""
        rows = len(self.of_result) - len(self.columns)
        if len(self.columns) > 1:
            shape = edit.add_constant(np.array([0] * rows + list(self.columns)), before=before)
            product = edit.insert(ir.node("Reshape", [product, shape]), before=before)
        if list(self.of_result) != sorted(self.of_result):
            product = edit.insert(ir.node("Transpose", [product], {"perm": list(self.of_result)}), before=before)
        return product


def pointwise(node: ir.Node) -> Einsum | None:
    """Returns a convolution of 1x1 of an image of any rank as a product; None for other nodes.

    Its activation may then have a scale for each position. A convolution takes one for each sample.
    """
    weights = node.inputs[1] if is_standard(node, "Conv") and len(node.inputs) > 1 else None
    if weights is None or weights.shape is None or not weights.shape.is_static():
        return None
    columns, depth, *kernel = weights.shape.numpy()
    strides, pads = (node.attributes.get_ints(name, ()) for name in ("strides", "pads"))
    is_plain = node.attributes.get_int("group", 1) == 1 and {*kernel, *(strides or (1,))} == {1} and not any(pads or ())
    if not is_plain or (node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET") not in ("NOTSET", "VALID"):
        return None
    rank = len(kernel) + 2
    order, of_result = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    return Einsum(order, (1, 0, *range(2, rank)), 0, (depth,), (columns,), of_result)


def einsum_of(node: ir.Node, weights: int = 1) -> Einsum:
    """Returns an Einsum, MatMul or Gemm as a product by matrices; `weights`: the index of the factor that they are.

    Raises:
        Unconverted: It is none, or its lengths are not known.
    """
    reason = Reason.EINSUM if node.op_type == "Einsum" else Reason.WEIGHTS_LEFT
    if (labels := labels_of_factors(node)) is None:
        raise Unconverted(reason)
    a, of_weights, result = labels[1 - weights], labels[weights], labels[2]
    stack = [x for x in a if x in of_weights and x in result]
    inner = [x for x in a if x in of_weights and x not in result]
    rows = [x for x in a if x not in of_weights]
    columns = [x for x in result if x not in a]
    is_product = inner and rows and columns
    if not is_product or {*result} != {*rows, *stack, *columns} or {*of_weights} != {*stack, *inner, *columns}:
        raise Unconverted(reason)
    shapes = (each.shape if each is not None and each.shape is not None else () for each in node.inputs[:2])
    known = [dict(zip(letters, shape, strict=True)) for letters, shape in zip(labels, shapes, strict=False)]
    of_a, lengths = known[1 - weights], known[weights]
    if any(not isinstance(lengths[x], int) for x in of_weights) or any(of_a[x] != lengths[x] for x in (*stack, *inner)):
        raise Unconverted(reason)  # Einsum repeats a dimension of 1
    before = [x for x in columns if result.index(x) < result.index(rows[0])]
    if not stack and len(rows) == 1 and len(before) < len(columns):  # the matrices broadcast
        ordered, order = [*before, *rows], rows
        stack, columns = before, columns[len(before) :]
    else:
        ordered = order = [*rows[:-1], *stack, rows[-1]]
    depths, of_columns = (
        tuple(each for each in map(lengths.get, letters) if isinstance(each, int)) for letters in (inner, columns)
    )
    return Einsum(
        tuple(map(a.index, (*order, *inner))),
        tuple(map(of_weights.index, (*stack, *inner, *columns))),
        len(stack),
        depths,
        of_columns,
        tuple(map([*ordered, *columns].index, result)),
    )


def product_of_left_weights(node: ir.Node) -> tuple[MatrixProduct, Einsum]:
    """Returns a product that has weights as the left factor as one of the activation by them, and how that is made.

    Raises:
        Unconverted: It is no product by matrices.
    """
    einsum, (a, b) = einsum_of(node, 0), first_inputs(node, 2)
    assert a is not None
    assert b is not None
    product = None if node.op_type == "Einsum" else matrix_product_of(node)
    if product is None:
        return MatrixProduct(b, a), einsum
    return replace(product, a=b, b=a, has_transposed_a=False, has_transposed_b=False, is_swapped=True), einsum
