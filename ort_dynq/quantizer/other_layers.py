"""The rule for layers with weights that have no integer form here: it gives the reason why they stay in float."""

from __future__ import annotations

import onnx_ir as ir

from ..rewriter.edit import Edit
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context
from .options import OF_OPTIMIZER, WITHOUT_INTEGERS, Options, is_layer


def apply(node: ir.Node, context: Context, options: Options) -> Edit | None:
    """Raises Unconverted for a layer whose weights are constant; see :class:`ort_dynq.rewriter.rule.Rule`."""
    if not is_layer(node) or node.op_type not in WITHOUT_INTEGERS + OF_OPTIMIZER:
        return None
    if len(node.inputs) < 2 or not context.facts.is_constant(node.inputs[1]):
        return None
    options.check(node)
    if node.op_type in WITHOUT_INTEGERS:
        raise Unconverted(Reason.NO_INTEGER_LAYER, operator=node.op_type)
    raise Unconverted(Reason.MADE_BY_OPTIMIZER)
