"""The integer products of ONNX Runtime that saturate on some CPUs, and operators with other last bits on some CPUs.

On x86 CPUs without VNNI, ONNX Runtime multiplies uint8 by int8 codes with vpmaddubsw, which adds pairs of products in
int16. A pair with large weights exceeds int16 and is cut off, so the result is wrong
(onnxruntime/core/mlas/lib/qgemm_kernel_avx2.cpp). All other types are exact on every CPU. So are depthwise QLinearConv,
which have kernels of their own.

Example: 255 * 64 + 255 * 64 = 32640 fits int16, and 255 * 65 + 255 * 65 = 33150 does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import MICROSOFT, RUNTIME_DOMAINS, STANDARD_DOMAINS, graphs, label
from ..analysis.evaluation import evaluate_if_constant
from ..analysis.inference import Facts
from ..analysis.nodes import input_of
from ..analysis.standard import (
    ADDING,
    ADDING_POOLS,
    ATTENTION,
    FLOAT_PRODUCTS,
    FUNCTIONS,
    MADE_PRODUCTS,
    NBITS_PRODUCTS,
    NORMALIZATIONS,
    RECURRENT,
)
from .ort_fusions import saturating_weights

_MAX_WEIGHT = 64  # 2 * 255 * 64 = 32640 fits int16


class Operands(NamedTuple):
    """The inputs of an integer product, by position.

    Attributes:
        signed: The input that is int8 if the product saturates, usually the weights.
        zero_point: Its zero point, which may be absent.
        unsigned: The input that is uint8 then; None if the operator makes these codes itself.
    """

    signed: int
    zero_point: int
    unsigned: int | None


OPERANDS = {
    ("", "MatMulInteger"): Operands(1, 3, 0),
    ("", "ConvInteger"): Operands(0, 2, 1),  # a product of the weights by the input, in this order
    ("", "QLinearMatMul"): Operands(3, 5, 0),
    ("", "QLinearConv"): Operands(3, 5, 0),
    (MICROSOFT, "QLinearConv"): Operands(3, 5, 0),
    (MICROSOFT, "MatMulIntegerToFloat"): Operands(1, 5, 0),
    (MICROSOFT, "DynamicQuantizeMatMul"): Operands(1, 3, None),
    (MICROSOFT, "QAttention"): Operands(1, 7, 0),
    (MICROSOFT, "QGemm"): Operands(3, 5, 0),
}
"""The integer products that saturate, by domain and operator. DynamicQuantizeLSTM, which has two, is not among them."""

_LSTM = (MICROSOFT, "DynamicQuantizeLSTM")
WEIGHTS_OF_LSTM: tuple[tuple[int, int], ...] = ((1, 9), (2, 11))
"""The weights of a DynamicQuantizeLSTM, and their zero points."""

_ROUNDING = FLOAT_PRODUCTS | MADE_PRODUCTS | NBITS_PRODUCTS | RECURRENT | ATTENTION | {"QAttention"}
_ROUNDING |= NORMALIZATIONS | ADDING | ADDING_POOLS | FUNCTIONS
"""Operators of ONNX Runtime that add floats or compute functions, each with other kernels on other CPUs."""


def may_saturate(weights: npt.NDArray[Any]) -> bool:
    """Returns whether a pair of products of uint8 codes by these int8 weights may exceed int16."""
    return bool(np.abs(weights.astype(np.int32)).max(initial=0) > _MAX_WEIGHT)


def key_of(node: ir.Node) -> tuple[str, str]:
    """Returns the domain of a node, "" for a standard one, and its operator."""
    return "" if node.domain in STANDARD_DOMAINS else node.domain, node.op_type


class SaturatingProduct(NamedTuple):
    """An integer product of ONNX Runtime that is wrong on x86 CPUs without VNNI, where its sums saturate.

    Attributes:
        node: The name of the node, or of its first output if it has none.
        op_type: Its operator. A MatMul, Gemm or Conv is one of floats that ONNX Runtime computes with integers.
        graph: The path of its graph.
    """

    node: str
    op_type: str
    graph: str


class CpuDependence(NamedTuple):
    """What of a model's results depends on the CPU.

    Attributes:
        saturating: The products that saturate.
        rounding: The number of nodes of each operator of ONNX Runtime that rounds floats in an order of its own on each
            CPU: their last bits may differ.
    """

    saturating: tuple[SaturatingProduct, ...] = ()
    rounding: Mapping[str, int] = {}


def cpu_dependence(model: ir.Model, facts: Facts) -> CpuDependence:
    """Returns what of a model's results depends on the CPU; the nodes that constant folding removes are left out."""
    saturating, rounding = [], Counter[str]()
    for path, graph in graphs(model):
        for node in graph:
            if facts.is_folded(node):
                continue
            if _saturates(node, facts):
                saturating.append(SaturatingProduct(label(node), node.op_type, path))
            elif node.domain in RUNTIME_DOMAINS and node.op_type in _ROUNDING and _is_float(node):
                rounding[node.op_type] += 1
    return CpuDependence(tuple(saturating), rounding)


def saturating_inputs(node: ir.Node, facts: Facts) -> tuple[tuple[int, int], ...]:
    """Returns the int8 inputs with which the sums of an integer product may saturate, each with its zero point.

    Weights that are known to be small are left out, and so are depthwise convolutions.

    Args:
        node: A node of any operator.
        facts: What is known of the model.
    """
    return tuple(pair for pair in _signed_inputs(node) if not _is_small(node.inputs[pair[0]], facts))


def has_small_weights(node: ir.Node, facts: Facts) -> bool:
    """Returns whether an integer product of uint8 by int8 has only weights that are known to be small.

    Not if it has none (K = 0): ONNX Runtime returns memory that it did not write, where the sums are 0.

    Args:
        node: A node of any operator.
        facts: What is known of the model.
    """
    signed = [node.inputs[position] for position, _ in _signed_inputs(node)]
    has_none = any(each is not None and each.shape is not None and 0 in each.shape for each in signed)
    return bool(signed) and not has_none and not saturating_inputs(node, facts)


def saturating_codes(node: ir.Node, facts: Facts) -> ir.Value | None:
    """Returns the int8 weights of a float product that ONNX Runtime makes one of integers, if its sums may saturate.

    Args:
        node: A node of any operator, also one with constant scales.
        facts: What is known of the model.
    """
    weights = saturating_weights(node, facts.is_constant)
    return None if _is_small(weights, facts) else weights


def _saturates(node: ir.Node, facts: Facts) -> bool:
    """Returns whether ONNX Runtime's sums of a node may saturate: not if its int8 weights are known to be small."""
    return bool(saturating_inputs(node, facts)) or saturating_codes(node, facts) is not None


def _signed_inputs(node: ir.Node) -> tuple[tuple[int, int], ...]:
    """Returns the int8 inputs that an integer product multiplies by uint8 codes, each with its zero point."""
    pairs: tuple[tuple[int, int], ...]
    if (operands := OPERANDS.get(key_of(node))) is not None:
        unsigned, pairs = operands.unsigned, ((operands.signed, operands.zero_point),)
        if unsigned is not None and not _has_type(input_of(node, unsigned), ir.DataType.UINT8):
            return ()
    else:
        pairs = WEIGHTS_OF_LSTM if key_of(node) == _LSTM else ()
    if node.op_type == "QLinearConv" and _is_depthwise(node):
        return ()
    return tuple(pair for pair in pairs if _has_type(input_of(node, pair[0]), ir.DataType.INT8))


def _has_type(value: ir.Value | None, dtype: ir.DataType) -> bool:
    return value is not None and value.dtype == dtype


def _is_small(weights: ir.Value | None, facts: Facts) -> bool:
    """Returns whether int8 weights are known to be so small that no sum saturates."""
    elements = evaluate_if_constant(weights, facts)
    return elements is not None and not may_saturate(elements)


def _is_depthwise(node: ir.Node) -> bool:
    weights = input_of(node, 3)
    return weights is not None and weights.shape is not None and len(weights.shape) > 1 and weights.shape[1] == 1


def _is_float(node: ir.Node) -> bool:
    """Returns whether an output is of floats, or its type is not known."""
    types = [output.dtype for output in node.outputs]
    return any(dtype is None or dtype.is_floating_point() for dtype in types)
