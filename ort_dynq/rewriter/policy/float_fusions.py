"""The elementwise nodes that ONNX Runtime fuses with others: activation functions, normalizations, biases.

Taken alone into a program, such a node leaves the others unfused. Only names and places are compared, so that a node
may stay that ONNX Runtime does not fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from ..analysis.inference import Facts
from ..analysis.nodes import is_standard, producer_of
from ..analysis.standard import ARITHMETIC, BENT, FUSIBLE_PRODUCTS, PASSING, POWERS, ROOTS, SIGMOIDS
from .ort_fusions import is_fused_with_neighbors

# Gelu, FastGelu, QuickGelu and the normalizations have one of these in their middle.
_MIDDLES = SIGMOIDS | POWERS | {"ReduceMean", "Softmax"}
WITHOUT_SIGMOID = _MIDDLES - {"Sigmoid"}
"""The middles after the rules for activation functions: a Sigmoid that they left is none."""
_MAX_STEPS = 5  # from the end of a normalization to its middle


def may_end_fusion(
    node: ir.Node, is_constant: Callable[[ir.Value | None], bool], middles: Collection[str] = _MIDDLES
) -> bool:
    """Returns whether ONNX Runtime may fuse an elementwise node with the nodes before it.

    Args:
        node: The node.
        is_constant: Facts.is_constant().
        middles: The operators in the middle of the functions and normalizations that it fuses.
    """
    if is_standard(node, *BENT, "HardSwish"):
        added = producer_of(node.inputs[0], "Add")
        normalized = producer_of(node.inputs[0], "BatchNormalization")  # which is folded into a Conv
        before = (*(added.inputs if added else ()), *(normalized.inputs[:1] if normalized else ()))
        return any(producer_of(each, *FUSIBLE_PRODUCTS) for each in (node.inputs[0], *before))
    values = [each for each in node.inputs if each is not None]
    if len(values) < 2:
        return False
    is_bias = is_standard(node, "Add") and any(map(is_constant, values))
    if is_bias and any(producer_of(each, *FUSIBLE_PRODUCTS) for each in values):
        return True
    for _ in range(_MAX_STEPS):
        producers = {producer for each in values if (producer := each.producer()) is not None}
        if any(is_standard(each, *middles) for each in producers):
            return True
        values = [each for producer in producers if _is_elementwise(producer) for each in producer.inputs if each]
    return False


def may_begin_fusion(node: ir.Node, middles: Collection[str] = _MIDDLES) -> bool:
    """Returns whether ONNX Runtime may fuse an elementwise node with the nodes after it; see :func:`may_end_fusion`."""
    return any(is_standard(use.node, *middles) for output in node.outputs for use in output.uses())


def is_left_alone(node: ir.Node, facts: Facts) -> bool:
    """Returns whether ONNX Runtime neither folds a node, nor fuses it with a product or a quantization."""
    is_bias = is_standard(node, "Add") and any(map(facts.is_constant, node.inputs))
    is_fused = is_bias and any(producer_of(each, *FUSIBLE_PRODUCTS) for each in node.inputs)
    return not (is_fused or facts.is_folded(node) or is_fused_with_neighbors(node, facts.is_constant))


def _is_elementwise(node: ir.Node) -> bool:
    return is_standard(node, *ARITHMETIC, *ROOTS, *PASSING)
