"""The rule for layers with weights that have no integer form here: it gives the reason why they stay float."""

from __future__ import annotations

import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..rewriter.edit import Edit
from ..rewriter.report import Left
from ..rewriter.rule import Context
from .options import Options

_STANDARD = ("ConvTranspose", "LSTM", "GRU", "RNN")
_OF_OPTIMIZER = ("FusedMatMul", "FusedGemm", "FusedConv", "Attention")


def apply(node: ir.Node, context: Context, options: Options) -> Edit | None:
    """Raises Left for a layer whose weights are constant; see :class:`ort_dynq.rewriter.rule.Rule`."""
    is_standard = node.domain in STANDARD_DOMAINS and node.op_type in _STANDARD
    is_of_optimizer = node.domain == "com.microsoft" and node.op_type in _OF_OPTIMIZER
    if not (is_standard or is_of_optimizer) or len(node.inputs) < 2 or not context.facts.is_constant(node.inputs[1]):
        return None
    options.check(node)
    if is_standard:
        raise Left(f"ort_dynq has no integer {node.op_type}")
    raise Left("ONNX Runtime's optimizer made this operator; quantize the model before it is optimized")
