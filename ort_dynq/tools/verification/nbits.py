"""Verifies products of MatMulNBits. Their activation becomes codes in B, and in A if accuracy_level is 4.

Rounding an activation to codes is noise, which one model may have and the other not: A's codes are exact for integers
up to 127, B's for integers up to 255. So A's own error is no bound, not even with a factor. There are two checks:

1. Each element of B's activation, dequantized, is at most half a step from A's activation. A step is the largest
   magnitude of the block, divided by 127: that of accuracy_level 4. B's steps are never larger, since they divide
   max(x, 0) - min(x, 0) by 255. With two terms, the step is 254 times smaller: 2**-15 of the largest magnitude. The
   roundings of float32 are added.
2. B's result is the float64 product of this activation and A's weights, except for float32 roundings: a few, and one
   for each block.

If zero points are floats, B multiplies the activation by codes minus the nearest codes of zero points, and adds the
product of A's activation, in float32, and what these leave.

Together they bound each element of B's result as accuracy_level 4 does. A third check is for the reference itself: A's
result is its product, except for noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ...inputs import Array
from ...operators.quantized_matmul import TERM_RATIO
from ...rewriter.analysis.nodes import first_inputs
from .layers import name_of

_MAX_WEIGHTS = 1 << 22  # that are dequantized at a time
_MAX_CODE = 127
_ROUNDING = 1.02  # quotient, scale and remainder have float32 roundings: with two terms, 2**-7 of a step
_MAX_NOISE = 0.25  # of A's result: the mean square, relative to that of a sum of independent terms
_MIN_VALUE = 2.0**-142  # half the distance of denormal scales, times the largest code
_MIN_INVERTIBLE = _MAX_CODE / float(np.finfo(np.float32).max)  # below, 127 / max|x| is infinite


def products_of(
    node: ir.Node, known: Mapping[str, Array], *factors: tuple[Array, Callable[[Array], Array]]
) -> list[Array]:
    """Returns products of activations and the weights of a MatMulNBits, float64, [..., N].

    Only a few columns of the weights are dequantized at a time: all columns of a last layer would take gigabytes.

    Args:
        node: The MatMulNBits.
        known: A's values.
        factors: Activations, [..., K], each with a function that is applied to the weights first.
    """
    depth, columns = (node.attributes.get_int(name, 0) for name in ("K", "N"))
    step = max(1, _MAX_WEIGHTS // depth)
    parts: list[list[Array]] = [[] for _ in factors]
    for first in range(0, columns, step):
        weights = _weights_of(node, known, slice(first, first + step))
        for (x, function), products in zip(factors, parts, strict=True):
            products.append(x @ function(weights))
    return [np.concatenate(products, -1) for products in parts]


def _weights_of(node: ir.Node, known: Mapping[str, Array], part: slice) -> Array:
    """Returns some columns of the weights, float64, [K, columns], as the specification of MatMulNBits defines them.

    It does not use the rewriter's code, so the check is independent.
    """
    depth, columns = (node.attributes.get_int(name, 0) for name in ("K", "N"))
    bits, size = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
    blocks = -(-depth // size)

    def rows(value: ir.Value | None) -> Array:
        assert value is not None
        return known[name_of(value)].reshape(columns, -1)[part]

    def codes(value: ir.Value | None) -> Array:
        stored = rows(value)
        return np.stack([stored >> shift & (2**bits - 1) for shift in range(0, 8, bits)], -1).reshape(len(stored), -1)

    _, packed, scales, zero_points = first_inputs(node, 4)
    weights = codes(packed).reshape(-1, blocks, size).astype(np.float64)
    if zero_points is None:
        weights -= 2 ** (bits - 1)
    else:
        is_real = known[name_of(zero_points)].dtype.kind == "f"
        weights -= (rows(zero_points) if is_real else codes(zero_points)[:, :blocks])[:, :, None]
    weights *= rows(scales).astype(np.float64)[:, :, None]
    return np.asarray(weights.reshape(len(weights), -1)[:, :depth].T)


def add_rest(
    node: ir.Node, known: Mapping[str, Array], x: Array, activation: Array, product: Array, magnitude: Array
) -> int:
    """Adds to a product of B's activation what B computes with A's, if zero points are floats.

    Args:
        node: The MatMulNBits.
        known: A's values.
        x, activation: A's activation and B's, float64, [..., K].
        product: The product of B's activation, float64, [..., N].
        magnitude: The sums of the magnitudes of its terms.

    Returns:
        How many more roundings of float32 an element of B's result has.
    """
    _, _, scales, zero_points = first_inputs(node, 4)
    if zero_points is None or known[name_of(zero_points)].dtype.kind != "f":
        return 0
    assert scales is not None
    columns, size = (node.attributes.get_int(name, 0) for name in ("N", "block_size"))
    reals, factors = (known[name_of(value)].astype(np.float64).reshape(columns, -1) for value in (zero_points, scales))
    nearest = np.clip(np.rint(reals), 0, 2 ** node.attributes.get_int("bits", 4) - 1)
    rest = np.repeat((nearest - reals) * factors, size, 1)[:, : x.shape[-1]].T
    product += (x - activation) @ rest
    magnitude += np.abs(x) @ np.abs(rest)
    return size + reals.shape[1]


def half_step(largest: Array, terms: int) -> Array:
    """Returns the most that rounding to codes changes an element of a block, with the roundings of float32.

    With two terms, the scale is denormal where max|x| is below 4e-34, and the codes may be any where 127 / max|x| is
    infinite.

    Args:
        largest: max|x| of each block, float64.
        terms: The codes of an element.
    """
    finer = TERM_RATIO ** (terms - 1)
    allowed = _ROUNDING * largest / _MAX_CODE / finer / 2 + _MIN_VALUE * finer
    if terms == 1:
        return np.asarray(allowed)
    of_any_codes = largest * (1 + 1 / TERM_RATIO) + _MIN_VALUE * finer
    return np.asarray(np.where(largest <= _MIN_INVERTIBLE, of_any_codes, allowed))


def is_within_steps(activation: Array, x: Array, block_size: int, terms: int, rounding: Array | float = 0.0) -> bool:
    """Returns whether all elements of a dequantized activation are at most half a step from x, except for roundings.

    Blocks with NaN or an infinity are skipped.

    Args:
        activation: float64, [..., K].
        x: The activation before it is quantized, float64, [..., K].
        block_size: The number of adjacent elements that share a scale.
        terms: The codes of an element.
        rounding: How much elements of x may differ in B before they are quantized, [..., K].
    """
    starts = np.arange(0, x.shape[-1], block_size)
    with np.errstate(all="ignore"):
        largest = np.maximum.reduceat(np.abs(x), starts, axis=-1)
        allowed = half_step(largest, terms)
        allowed = np.repeat(allowed, block_size, -1)[..., : x.shape[-1]]
        is_near = np.abs(activation - x) <= allowed + rounding
    return bool((is_near | ~np.isfinite(allowed)).all())


def noise_of(result: Array, reference: Array) -> float:
    """Returns the noise of a result in dB, as :class:`ort_dynq.verification.products.Product` defines it."""
    noise, signal = (float(np.square(each).sum()) for each in (result - reference, reference))
    return float("-inf") if noise == 0 else float("inf") if signal == 0 else 10 * math.log10(noise / signal)


def is_noise(error: Array, reference: Array, of_squares: Array, epsilon: float) -> bool:
    """Returns whether an error may come from rounding the activation of each row to 8 bits.

    If the reference had the wrong weights, the mean square of the error would be about `of_squares` or more. Rounding a
    row of 4096 elements to 255 steps gives at most a fifteenth of it, whatever the elements are.

    Args:
        error: The difference from the reference, float64.
        reference: The results in float64.
        of_squares: The product of the squares of the activation and of the weights.
        epsilon: The relative distance of the numbers of the result's type.
    """
    return float(np.square(error).sum()) <= float((_MAX_NOISE * of_squares + np.square(reference * epsilon)).sum())
