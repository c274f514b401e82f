"""DequantizeLinear(constant codes) -> DynamicDequantize, at products whose other factor a rule has turned into floats.

ONNX Runtime makes MatMulNBits of a float factor and a constant 8-bit one behind a DequantizeLinear, and quantizes the
float factor again, to 8 bits of its own choice (1.31: outputs move by 3% of their standard deviation). Where both
factors came from a DequantizeLinear it does not; nor must it after one of them has become ours.
"""

from __future__ import annotations

import onnx_ir as ir

from ..operators import DOMAIN
from .analysis import STANDARD_DOMAINS, Facts, label
from .constants import op
from .qdq import dequantize_any
from .replacement import Replacement, describe
from .report import Finding

RULE = "weights of a float product"
_RULES_OF_DEQUANTIZED = ("QuantizeLinear", "DequantizeLinear")


def convert(graph: ir.Graph | ir.Function, path: str, facts: Facts) -> list[Finding]:
    """Converts such weights in one graph; returns what was done. Other uses of the same weights stay as they are."""
    findings = []
    for node in list(graph):
        if node.domain != DOMAIN or node.metadata_props.get("ort_dynq.rule") not in _RULES_OF_DEQUANTIZED:
            continue
        for use in list(node.outputs[0].uses()):
            product = use.node
            if product.domain not in STANDARD_DOMAINS or product.op_type not in ("MatMul", "Gemm") or use.idx > 1:
                continue
            weights = op(product.inputs[1 - use.idx], "DequantizeLinear")
            if weights is None or not all(map(facts.is_constant, weights.inputs)):
                continue
            outcome = dequantize_any(weights)
            if not isinstance(outcome, Replacement):
                continue
            for added in outcome.nodes:
                describe(added, weights, RULE, facts)
            assert product.graph is not None
            product.graph.insert_before(product, outcome.nodes)
            product.replace_input_with(1 - use.idx, outcome.nodes[-1].outputs[0])
            findings.append(Finding(label(weights), weights.op_type, path, RULE, outcome.operator))
            if not weights.outputs[0].uses() and not weights.outputs[0].is_graph_output() and weights.graph is not None:
                weights.graph.remove([weights], safe=True)
    return findings
