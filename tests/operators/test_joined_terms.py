"""Two terms of QuantizedMatMul in groups equal the documented steps in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases.quantized_matmul import matmul_inputs
from helpers import Array, assert_same, with_one_nan

from ort_dynq import kernels

CODES = (np.uint8, np.int8)


def sums_of(inputs: list[Array], weights: Array, size: int, term: int) -> Array:
    """The exact sums of a term, [groups, M, N]."""
    src, _, zero_point, _, weight_zp, *_ = inputs
    depth, columns = weights.shape
    groups = depth // size
    codes = (src[:, term * depth : (term + 1) * depth].astype(np.int64)).reshape(-1, groups, size)
    each = np.broadcast_to(zero_point.astype(np.int64), (len(src), groups))
    zero_points = np.broadcast_to(weight_zp.astype(np.int64), (groups, columns))
    centered = weights.astype(np.int64).reshape(groups, size, columns) - zero_points[:, None]
    return np.asarray((codes - each[..., None]).transpose(1, 0, 2) @ centered)


def two_terms(inputs: list[Array], weights: Array, size: int) -> Array:
    """The documented steps in NumPy: integer sums of terms are added in groups of up to 128, in others their floats."""
    scale, column_scale, bias = inputs[1], inputs[5].astype(np.float32), inputs[7]
    first, second = (sums_of(inputs, weights, size, term) for term in range(2))
    row_groups = scale.shape[-1]

    def total(sums: Array, scale: Array) -> Array:
        result, one = np.full(sums.shape[1:], -0.0, np.float32), np.float32(1)
        in_groups = max(row_groups, len(column_scale)) > 1
        for group, exact in enumerate(sums):
            of_column = column_scale[group % len(column_scale)] if in_groups else one
            of_row = scale[:, group : group + 1] if row_groups > 1 else one
            result = result + exact.astype(np.float32) * of_column * of_row
        return np.asarray(result * (one if in_groups else column_scale[0]) * (one if row_groups > 1 else scale))

    with np.errstate(all="ignore"):
        if size <= 128:
            return with_one_nan(total(254 * first + second, scale) + bias)
        return with_one_nan(total(first, scale * np.float32(254)) + total(second, scale) + bias)


@pytest.mark.parametrize("size", [16, 32, 128, 144])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_two_terms_in_groups(product_isa: str, bits: int, size: int) -> None:
    """Rows as kernels of few rows, of many and of words take them; any zero points; given and computed sums."""
    rng = np.random.default_rng(bits + size)
    kinds = itertools.product((1, 2, 3, 5, 17, 40), (1, 4))
    for turn, (rows, groups) in enumerate(kinds):
        scale = (rows, groups) if turn % 5 else (rows, 1)
        inputs, weights = matmul_inputs(
            rng,
            (rows, size * groups),
            (7, 33, 64, 100)[turn % 4],
            bits=bits,
            group_size=size,
            codes=CODES[turn % 3 > 0],
            zero_points=("none", "one", "all")[turn % 3],
            column_groups=turn % 7 > 0,
            scale=scale,
        )
        inputs[0] = np.concatenate([inputs[0], rng.permuted(inputs[0], axis=1)], 1)
        if turn % 4:  # as activations have them
            inputs[2] = np.zeros((1,), np.int8) if inputs[0].dtype == np.int8 else np.full((1,), 128, np.uint8)
        if turn % 3:
            inputs[6] = inputs[6][:0]
        (result,) = kernels.run("QuantizedMatMul", inputs, bits=bits, group_size=size, scale_order=2, terms=2)
        assert_same(with_one_nan(result), two_terms(inputs, weights, size))
