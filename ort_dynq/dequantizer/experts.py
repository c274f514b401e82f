"""The rule for QMoE of com.microsoft: a mixture of experts with weights of 8, 4 or 2 bits.

QMoE    -> MoE of com.microsoft, with normalize_routing_weights

Its weights are floats in any form. Without router_weights, ONNX Runtime's kernel of QMoE for CPUs normalizes the scores
of the chosen experts whatever the attribute is; that of MoE does so only with it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import MICROSOFT
from ..rewriter.analysis.evaluation import evaluate_if_constant
from ..rewriter.analysis.inference import Facts
from ..rewriter.analysis.nodes import first_inputs
from ..rewriter.edit import Edit
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers
from ..rewriter.weights.nbits import unpacked

_OF_CODES = ("expert_weight_bits", "block_size")  # attributes
_INPUTS = 15


@dataclass(frozen=True)
class _Experts:
    """The weights of up to three layers, each [experts, N, K]; None if there is no third one."""

    weights: tuple[npt.NDArray[np.float32] | None, ...]


def _match(node: ir.Node, context: Context, form: str) -> _Experts | None:
    if node.domain != MICROSOFT or node.op_type != "QMoE":
        return None
    given = first_inputs(node, _INPUTS)
    bits = node.attributes.get_int("expert_weight_bits", 4)
    others = (name for name in ("quant_type", "weights_prepacked") if name in node.attributes)
    if given[-1] is not None or bits not in (2, 4, 8) or given[0] is None or any(others):
        raise Unconverted(Reason.NO_FLOAT_FORM, what="MoE has no such router, or its weights have another form")
    if given[0].dtype != ir.DataType.FLOAT:
        raise Unconverted(Reason.NO_FLOAT_FORM, what="its activation is not known to be float32")
    size = node.attributes.get_int("block_size", 0)
    layers = zip(given[2:11:3], given[3:11:3], given[11:14], strict=True)
    return _Experts(tuple(_floats(*layer, bits, size, context.facts) for layer in layers))


def _floats(
    codes: ir.Value | None, scale: ir.Value | None, zero_point: ir.Value | None, bits: int, size: int, facts: Facts
) -> npt.NDArray[np.float32] | None:
    """Returns (code - zero point) * scale of a layer, [experts, N, K]; None if there is no such layer.

    Raises:
        Unconverted: They are computed at run time.
    """
    if codes is None:
        return None
    stored, scales, zeros = (evaluate_if_constant(each, facts) for each in (codes, scale, zero_point))
    if stored is None or scales is None or (zero_point is not None and zeros is None):
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    experts, columns, _ = stored.shape
    rows = experts * columns
    numbers = unpacked(stored.reshape(rows, -1), bits).astype(np.int32)
    scales = scales.reshape(rows, -1).astype(np.float32)
    blocks = scales.shape[1]
    if zeros is None:
        zeros = np.full((rows, blocks), 1 << (bits - 1), np.int32)
    else:  # each row, or without blocks each expert, is rounded up to a byte
        zeros = unpacked(zeros.reshape(rows if size else experts, -1), bits)[:, : blocks if size else columns]
        zeros = zeros.astype(np.int32).reshape(rows, blocks)
    indices = np.arange(numbers.shape[1]) // (size or numbers.shape[1])
    floats = (numbers - zeros[:, indices]) * scales[:, indices]
    return np.asarray(floats, np.float32).reshape(experts, columns, -1)


def _build(match: _Experts, edit: Edit) -> None:
    node, shared = edit.node, edit.shared(SharedInitializers)
    x, router, *others = first_inputs(node, _INPUTS)
    inputs = [x, router]
    for weights, bias in zip(match.weights, others[2:9:3], strict=True):
        inputs += [None if weights is None else shared.of(weights, edit), bias]
    while inputs[-1] is None:
        inputs.pop()
    kept = {name: each for name, each in node.attributes.items() if name not in _OF_CODES}
    kept["normalize_routing_weights"] = ir.AttrInt64("normalize_routing_weights", 1)
    edit.replace(node.outputs[0], edit.insert_main(ir.node("MoE", inputs, kept, domain=MICROSOFT), before=node))


def rule(form: str) -> Rule[_Experts]:
    """Returns the rule; its weights are floats in any form."""
    return Rule("quantized experts", 7, functools.partial(_match, form=form), _build)
