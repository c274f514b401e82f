"""Decoders with float activations: what the greedy tokens of models with quantized weights are compared with."""

from __future__ import annotations

import os

import onnx_ir as ir

from ...graphs import MICROSOFT, RUNTIME_DOMAINS, graphs
from ...operators import DOMAIN
from ...rewriter.analysis.standard import CODE_PRODUCTS, INTEGER_LAYERS, QUANTIZERS
from ...storage import load

FLOAT_WEIGHTS = {"session.qdq_matmulnbits_accuracy_level": "0"}
"""Options of a session that does not quantize the activations of products of weights behind DequantizeLinear."""

# Round: of the chains that exporters decompose; other nodes of decoders do not round.
_QUANTIZE = QUANTIZERS | CODE_PRODUCTS | INTEGER_LAYERS | {"Round"}


def with_float_activations(path: str | os.PathLike[str]) -> ir.Model | None:
    """Returns a model with accuracy_level 0, for a session with FLOAT_WEIGHTS; None if it quantizes activations anyway.

    Args:
        path: The model.

    Raises:
        DynqError: It cannot be read.
    """
    model = load(path)
    for _, graph in graphs(model):
        for node in graph:
            if _quantizes(node):
                return None
            if node.domain == MICROSOFT and "accuracy_level" in node.attributes:
                node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 0)
    return model


def _quantizes(node: ir.Node) -> bool:
    """Returns whether a node quantizes an activation, or multiplies a quantized one, whatever its accuracy_level is."""
    if node.domain == MICROSOFT and node.op_type == "QMoE":
        number = node.attributes.get_int
        return number("expert_weight_bits", 4) > 4 and number("block_size", 0) > 0
    return node.domain == DOMAIN or (node.domain in RUNTIME_DOMAINS and node.op_type in _QUANTIZE)
