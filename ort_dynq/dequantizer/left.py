"""The rule that reports quantized operators without a float form. It changes nothing."""

from __future__ import annotations

import onnx_ir as ir

from ..graphs import MICROSOFT, RUNTIME_DOMAINS
from ..rewriter.analysis.nodes import is_standard
from ..rewriter.analysis.standard import CODE_PRODUCTS, FLOAT_PRODUCTS, INTEGER_LAYERS, NBITS_PRODUCTS, QUANTIZERS
from ..rewriter.codes.affine import AffineForms
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule

_OTHERS = INTEGER_LAYERS | {"GatherBlockQuantized", "QEmbedLayerNormalization"}
_LEFT = CODE_PRODUCTS | NBITS_PRODUCTS | QUANTIZERS | _OTHERS


def _match(node: ir.Node, context: Context) -> None:
    if node in context.reported or node.domain not in RUNTIME_DOMAINS:
        return
    if is_standard(node, *FLOAT_PRODUCTS):
        forms = context.shared(AffineForms)
        for value in node.inputs[:2]:
            if forms.of(value) is not None or forms.lost(value) is not None:
                raise Unconverted(Reason.NO_FLOAT_FORM, what="the floats before its quantization are not known")
        return
    if node.op_type in _LEFT or (node.domain == MICROSOFT and node.op_type.startswith("QLinear")):
        raise Unconverted(Reason.NO_FLOAT_FORM, what="nothing is known of it, or it computes codes that others read")


RULE: Rule[None] = Rule("quantized operator that stays", 0, _match)
