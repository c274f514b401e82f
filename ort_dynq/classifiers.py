"""Outputs of graphs that are the scores of a classifier."""

from __future__ import annotations

import onnx_ir as ir

from .graphs import STANDARD_DOMAINS
from .rewriter.analysis.standard import FUSIBLE_PRODUCTS, PASSING, RESHAPES, SOFTMAXES

_PROBABILITIES = SOFTMAXES | {"Sigmoid", "Softplus"}
_KEEPS_ORDER = RESHAPES | PASSING | {"GlobalAveragePool", "Relu"}


def is_classifier(output: ir.Value) -> bool:
    """Returns whether an output of a graph looks like a classifier's scores along its last axis.

    It does if it comes from a linear layer (MatMul or Gemm, with or without an Add of a bias, or Conv if the output has
    two dimensions), or from Softmax, LogSoftmax, Sigmoid or Softplus. Nodes after it must keep the order of the
    elements: Identity, Cast, Reshape and the like, Relu, GlobalAveragePool.
    """
    node = output.producer()
    has_two_dimensions = output.shape is not None and len(output.shape) == 2
    added = False
    while node is not None and node.domain in STANDARD_DOMAINS:
        if node.op_type in _PROBABILITIES:
            return True
        if node.op_type in FUSIBLE_PRODUCTS:
            return node.op_type != "Conv" or has_two_dimensions
        if node.op_type == "Add" and not added:
            added = True
            producers = [None if value is None else value.producer() for value in node.inputs]
            node = next((each for each in producers if each is not None and each.op_type in FUSIBLE_PRODUCTS), None)
        elif node.op_type in _KEEPS_ORDER and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        else:
            return False
    return False
