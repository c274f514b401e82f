"""Decoders whose activations are floats: what the greedy tokens of models with quantized weights are compared with."""

from __future__ import annotations

import os

import onnx_ir as ir

from ...graphs import MICROSOFT, STANDARD_DOMAINS, graphs
from ...operators import DOMAIN
from ...storage import load

FLOAT_WEIGHTS = {"session.qdq_matmulnbits_accuracy_level": "0"}
"""Options of a session that does not quantize the activations of products of weights behind DequantizeLinear."""

_QUANTIZE = (
    *("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"),
    "Round",  # of the chains that exporters decompose; other nodes of decoders do not round
)
_QUANTIZE_OF_MICROSOFT = ("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulIntegerToFloat", "QAttention")


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
    if node.domain == MICROSOFT:
        number = node.attributes.get_int
        is_of_8_bits = number("expert_weight_bits", 4) > 4 and number("block_size", 0) > 0
        return node.op_type in _QUANTIZE_OF_MICROSOFT or (node.op_type == "QMoE" and is_of_8_bits)
    return node.domain == DOMAIN or (node.domain in STANDARD_DOMAINS and node.op_type in _QUANTIZE)
