"""The rule for MatMulNBits of com.microsoft.

MatMulNBits    -> MatMul, [Add bias]
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import MICROSOFT
from ..rewriter.analysis.evaluation import evaluate_if_constant
from ..rewriter.analysis.nodes import first_inputs
from ..rewriter.edit import Edit
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers
from ..rewriter.weights.nbits import FLOATS, unpacked
from .stored import StoredWeights


@dataclass(frozen=True)
class _NBitsProduct:
    weights: StoredWeights | npt.NDArray[np.float32]
    dtype: ir.DataType
    form: str


def _match(node: ir.Node, context: Context, form: str) -> _NBitsProduct | None:
    if node.domain != MICROSOFT or node.op_type != "MatMulNBits":
        return None
    x, codes, scales, zero_points, g_idx, _ = first_inputs(node, 6)
    depth, columns, bits, block_size = (
        node.attributes.get_int(name, default) for name, default in (("K", 0), ("N", 0), ("bits", 4), ("block_size", 0))
    )
    if g_idx is not None or node.attributes.get_int("weight_prepacked", 0) != 0 or 8 % bits:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its weights are reordered, packed or of other bits")
    if x is None or x.dtype not in FLOATS:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its activation is not known to be float32 or float16")
    blocks = -(-depth // block_size)
    stored, of_blocks, zeros = (evaluate_if_constant(each, context.facts) for each in (codes, scales, zero_points))
    if stored is None or of_blocks is None or (zero_points is not None and zeros is None):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    rows = np.ascontiguousarray(unpacked(stored.reshape(columns, -1), bits)[:, :depth].T)
    scale = np.array(of_blocks.reshape(columns, blocks).T, np.float32, order="C")
    if zeros is None:
        zero_point = np.full(scale.shape, 1 << (bits - 1), np.uint8)
    elif zeros.dtype == np.uint8:
        zero_point = np.ascontiguousarray(unpacked(zeros.reshape(columns, -1), bits)[:, :blocks].T)
    else:
        indices = np.arange(depth) // block_size
        reals = zeros.reshape(columns, blocks).T.astype(np.float32)
        return _NBitsProduct((rows.astype(np.float32) - reals[indices]) * scale[indices], x.dtype, form)
    return _NBitsProduct(StoredWeights(rows, zero_point, scale, 0, block_size, bits), x.dtype, form)


def _build(match: _NBitsProduct, edit: Edit) -> None:
    node, shared = edit.node, edit.shared(SharedInitializers)
    x, bias = node.inputs[0], (first_inputs(node, 6)[5])
    assert x is not None
    is_half = match.dtype == ir.DataType.FLOAT16
    if isinstance(match.weights, StoredWeights) and not is_half:
        weights = match.weights.insert(match.form, node, edit)
    else:
        numbers = match.weights.floats() if isinstance(match.weights, StoredWeights) else match.weights
        weights = shared.of(numbers.astype(match.dtype.numpy()), edit)
    result = edit.insert_main(ir.node("MatMul", [x, weights]), before=node)
    if bias is not None:
        result = edit.insert(ir.node("Add", [result, bias]), before=node)
    edit.replace(node.outputs[0], result)


def rule(form: str) -> Rule[_NBitsProduct]:
    """Returns the rule for weights of a form."""
    return Rule("weights of few bits", 7, functools.partial(_match, form=form), _build)
