"""Compares what an integer product of B reads with A's operands, where both have the same bits.

The bound of a product's error is a few units in the last place, and errors of that size in a scale would pass. But
integers times a scale are rounded once in A, and codes times the same scale, rounded to float32, have the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ...inputs import Array
from ...rewriter.analysis.standard import FUSIBLE_PRODUCTS, STACKED_PRODUCTS
from .float64 import FloatProduct
from .layers import name_of
from .rounded import PackedWeights, dequantized, rounded_weights_of, stored_weights_of

_MAX_DISTANCE = 4  # units in the last place


def changed_operand(
    of_a: FloatProduct, node: ir.Node, values: list[ir.Value], known: Mapping[str, Array], of_b: Mapping[str, Array]
) -> str:
    """Returns what is wrong with the operands of a product; empty if nothing is, or if A computes them otherwise.

    Args:
        of_a: The product of A.
        node: The product of B.
        values: Its codes, scale and zero point.
        known: A's values.
        of_b: B's values.
    """
    for name in map(name_of, values[1:]):
        if name in known and name in of_b and not _same(of_b[name], known[name]):
            return f"{name}, which it reads, is not A's"
    if len(values) < 3 or not of_a.is_rounded_once(known):
        return ""
    x, activation = known[name_of(of_a.activation)], dequantized(node, values, of_b)
    if activation is None or activation.shape != x.shape:
        return ""
    # Steps of a few denormal numbers are rounded, see MIN_VALUE in products.py.
    with np.errstate(all="ignore"):
        differs = np.isfinite(x) & np.isfinite(activation) & (activation.astype(np.float32) != x)
        if (differs & (np.abs(activation - x) > 2.0**-142)).any():
            return "its codes times their scale are not A's activation"
    weights = known[name_of(of_a.weights)]
    stored = None if rounded_weights_of(node) is not None else stored_weights_of(node)
    is_factor = of_a.node.attributes.get_float("alpha", 1.0) != 1 or any(step == "Mul" for step, _ in of_a.steps)
    is_compared = of_a.node.op_type in FUSIBLE_PRODUCTS | STACKED_PRODUCTS and weights.dtype == np.float32
    if stored is None or is_factor or not is_compared:
        return ""
    return "its weights are not A's" if _has_wrong_scale(stored, weights, of_a) else ""


def _has_wrong_scale(stored: PackedWeights, weights: Array, of_a: FloatProduct) -> bool:
    """Returns whether another scale, a few units in the last place away, gives A's weights where B's does not.

    Weights that A does not have from one rounding are given by no scale.
    """

    def equal(scale: Array) -> Array:
        """Returns in which groups of which columns the weights are A's."""
        found = replace(stored, scale=scale).like(weights, of_a, np.float32)
        same = found == weights
        if stored.node.op_type == "QuantizedConv":
            return np.asarray(same.reshape(len(same), -1).all(1))
        rows = same.transpose(of_a.axes(same.ndim, same.ndim - 2))
        size = stored.node.attributes.get_int("group_size", 0) or rows.shape[-2]
        return np.asarray(np.logical_and.reduceat(rows, range(0, rows.shape[-2], size), -2))

    if stored.like(weights, of_a, np.float32).shape != weights.shape:
        return False
    wrong = ~equal(stored.scale)
    lower = higher = stored.scale
    for _ in range(_MAX_DISTANCE if wrong.any() else 0):
        lower, higher = np.nextafter(lower, np.float32(-np.inf)), np.nextafter(higher, np.float32(np.inf))
        if (wrong & (equal(lower) | equal(higher))).any():
            return True
    return False


def changed_constant(a: ir.Model, b: ir.Model) -> str:
    """Returns the name of a constant of B's main graph that has other bits in A; empty if there is none."""
    of_a = dict(a.graph.initializers.items())
    of_a |= {name_of(each): each for node in a.graph if node.op_type == "Constant" for each in node.outputs}
    for name, value in b.graph.initializers.items():
        same = of_a.get(name)
        tensors = [None if each is None else ir.convenience.get_const_tensor(each) for each in (value, same)]
        if None not in tensors and not _same(*(tensor.numpy() for tensor in tensors if tensor is not None)):
            return name
    return ""


def _same(a: Array, b: Array) -> bool:
    """Returns whether arrays of one type have the same bits; arrays of other types or shapes are not compared."""
    return a.dtype != b.dtype or a.shape != b.shape or a.tobytes() == b.tobytes()
