"""The rule for layers that no other rule converts: it gives the reason why they stay in float.

They are attention, and layers and tables of embeddings that ONNX Runtime's optimizer made.
"""

from __future__ import annotations

import functools

import onnx_ir as ir

from ..graphs import MICROSOFT, NCHWC, STANDARD_DOMAINS
from ..opsets import OPSET
from ..rewriter.analysis.standard import ATTENTION
from ..rewriter.metadata import RULE
from ..rewriter.policy.cost import is_small_table
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from .options import OF_OPTIMIZER, RANK_OF_TABLE, Options, is_layer
from .packed_attention import is_packed_attention, parts_of

_FIRST_TABLE, _END_OF_TABLES = 2, 5  # inputs of EmbedLayerNormalization


def _match(node: ir.Node, context: Context, options: Options) -> None:
    """Reports attention, and a layer with constant weights."""
    if _is_attention(node) and RULE not in node.metadata_props and context.reported.get(node) is None:
        raise Unconverted(Reason.ATTENTION_OF_FLOATS)
    if _has_tables(node, options):
        raise Unconverted(Reason.TABLES_OF_OPTIMIZER)
    if is_packed_attention(node):
        parts_of(node, context, options)
    if not is_layer(node) or node.domain in STANDARD_DOMAINS or node.op_type not in OF_OPTIMIZER | {"Conv"}:
        return
    if len(node.inputs) < 2 or not context.facts.is_constant(node.inputs[1]):
        return
    options.check(node)
    raise Unconverted(Reason.NCHWC if node.domain == NCHWC else Reason.MADE_BY_OPTIMIZER)


def _has_tables(node: ir.Node, options: Options) -> bool:
    """Returns whether a node has tables of embeddings that another operator would have in 8 bits."""
    if node.domain != MICROSOFT or node.op_type != "EmbedLayerNormalization" or options.embeddings == "keep":
        return False
    tables = (ir.convenience.get_const_tensor(value) for value in node.inputs[_FIRST_TABLE:_END_OF_TABLES] if value)
    shapes = (table.shape.numpy() for table in tables if table is not None)
    return any(not is_small_table(*shape) for shape in shapes if len(shape) == RANK_OF_TABLE)


def _is_attention(node: ir.Node) -> bool:
    if node.domain == MICROSOFT:
        return node.op_type in ATTENTION - {"Attention"}
    return node.domain in STANDARD_DOMAINS and node.op_type == "Attention"


def rule(options: Options) -> Rule[None]:
    """Returns the rule with these options."""
    return Rule("other layer", OPSET, functools.partial(_match, options=options), reports_opset=True)
