"""The rule for MatMulNBits. Its weights have few bits already, and stay as they are.

MatMulNBits    -> RowProgram in the blocks of the weights, QuantizedMatMul
               -> TwoTermQuantize in the blocks of the weights, QuantizedMatMul of two terms

It is the rewriter's rule with `weights_only` "blocks" or "two-term", for layers that are not excluded. QMoE stays, with
the advice to use `rewrite`.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import onnx_ir as ir

from ..graphs import MICROSOFT
from ..rewriter.analysis.standard import NBITS_PRODUCTS
from ..rewriter.products import matmul_nbits
from ..rewriter.products.weights_only import WeightsOnlyProduct
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from .options import Options

_RULE = matmul_nbits.RULE


def _match(node: ir.Node, context: Context, options: Options) -> WeightsOnlyProduct | None:
    if node.domain != MICROSOFT or node.op_type not in NBITS_PRODUCTS:
        return None
    options.check(node)
    if node.op_type == "QMoE":
        raise Unconverted(Reason.EXPERTS_IN_QUANTIZE)
    weights_only = "two-term" if options.has_two_terms(node) else "blocks"
    changed = replace(context.options, weights_only=weights_only)
    return _RULE.match(node, replace(context, options=changed))


def rule(options: Options) -> Rule[WeightsOnlyProduct]:
    """Returns the rule with these options."""
    return replace(_RULE, match=functools.partial(_match, options=options))
