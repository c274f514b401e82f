"""The rule for GatherBlockQuantized of com.microsoft: an embedding with a table of 8, 4 or 2 bits.

GatherBlockQuantized    -> Gather of floats
"""

from __future__ import annotations

import functools

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
from ..rewriter.weights.nbits import unpacked

_RANK = 2


def _match(node: ir.Node, context: Context, form: str) -> npt.NDArray[np.generic] | None:
    """Returns the table as floats of the type of the scales, [rows, columns]."""
    if node.domain != MICROSOFT or node.op_type != "GatherBlockQuantized":
        return None
    codes, _, scale, zero_point = first_inputs(node, 4)
    number = node.attributes.get_int
    bits, size = number("bits", 4), number("block_size", 128)
    axes = number("gather_axis", 0), number("quantize_axis", 1) % _RANK
    is_plain = codes is not None and codes.dtype == ir.DataType.UINT8 and axes == (0, 1) and bits in (2, 4, 8)
    stored, scales, zeros = (evaluate_if_constant(each, context.facts) for each in (codes, scale, zero_point))
    if not is_plain or stored is None or scales is None or stored.ndim != _RANK or size <= 0:
        raise Unconverted(
            Reason.NO_FLOAT_FORM, what="its table is no constant matrix of bytes, in blocks of its columns"
        )
    if zero_point is not None and zeros is None:
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    numbers, blocks = unpacked(stored, bits).astype(np.int32), scales.shape[1]
    if zeros is None:
        zeros = np.full(scales.shape, 1 << (bits - 1))
    indices = np.arange(numbers.shape[1]) // size
    unpacked_zeros = zeros if zero_point is None else unpacked(zeros, bits)[:, :blocks]
    floats = (numbers - unpacked_zeros[:, indices].astype(np.int32)) * scales[:, indices].astype(np.float32)
    return np.asarray(floats, np.float32).astype(scales.dtype)


def _build(table: npt.NDArray[np.generic], edit: Edit) -> None:
    node = edit.node
    rows = edit.shared(SharedInitializers).of(table, edit)
    edit.replace(node.outputs[0], edit.insert_main(ir.node("Gather", [rows, node.inputs[1]], {"axis": 0}), before=node))


def rule(form: str) -> Rule[npt.NDArray[np.generic]]:
    """Returns the rule; its tables are floats in any form."""
    return Rule("embedding of few bits", 7, functools.partial(_match, form=form), _build)
