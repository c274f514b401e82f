"""QuantizedAttention equals attention in float64, where the codes of query, key and value are exact.

Every row has integers up to 127, one of which is 127: its scale is 1. So only the codes of softmax are rounded: each
of the T weights by at most 1 / 65535 of the largest one (a half, and another half in codes before), and powers by
2.6e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases.quantized_attention import LOWEST, attributes, in_layout, numbers, operands
from helpers import Array, assert_same, every

from ort_dynq import kernels

B, H, S, T, D, E = 2, 4, 13, 21, 8, 5
LAYOUTS = [(i % 3, i // 3 % 3, i // 9 % 3, (i + i // 3) % 3) for i in range(27)]


def exact_rows(rng: np.random.Generator, *shape: int) -> Array:
    x = rng.integers(-127, 128, shape).astype(np.float32)
    x[..., 0] = 127 * rng.choice([-1, 1], shape[:-1])
    return x


def attention(q: Array, k: Array, v: Array, bias: Array, scale: float, cap: float = 0, **given: Any) -> Array:
    """In float64; the scores become float32, because a mask of -1e9 absorbs some of them.

    `given`: `hidden` keys [S, T]; `replaced`: where the bias is the score.
    """
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], 1).astype(np.float64) for each in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) * scale
    if cap:
        scores = cap * np.tanh(scores / cap)
    with np.errstate(all="ignore"):
        scores = np.where(given.get("replaced", False), bias, scores.astype(np.float32) + bias).astype(np.float64)
        scores = np.where(given.get("hidden", False), -np.inf, scores)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(p / p.sum(-1, keepdims=True) @ v)


def check(actual: Array, expected: Array, keys: int, error: float = 0) -> None:
    """`error`: of the scores."""
    assert expected.shape == actual.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=127 * ((keys + 1) / 65535 + 2 * error))


def tensors(heads: int = H, key_heads: int = H, s: int = S, t: int = T, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = (B, heads, s, D), (B, key_heads, t, D), (B, key_heads, t, E)
    return [exact_rows(rng, *shape) for shape in shapes]


def run(inputs: Sequence[Array], **given: int) -> Array:
    return np.asarray(kernels.run("QuantizedAttention", list(inputs), **given)[0])


def bias_of(*shape: int, hidden: float = -np.inf) -> Array:
    rng = np.random.default_rng(5)
    bias = rng.normal(0, 1, shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.2, np.float32(hidden), bias)


@pytest.mark.parametrize("layouts", every(3, [(each,) for each in LAYOUTS]))
@pytest.mark.parametrize("key_heads", [H, 2, 1])
def test_layouts_and_shared_heads(product_isa: str, layouts: tuple[int, ...], key_heads: int) -> None:
    given, bias = tensors(key_heads=key_heads), bias_of(B, H, S, T)
    expected = attention(*given, bias, 1e-4)
    inputs = [*operands(given, layouts), bias, *numbers(1e-4)]
    actual = run(inputs, **attributes(H, key_heads, layouts))
    check(actual, in_layout(expected, layouts[3]), T)
    apart = run([*given, bias, *numbers(1e-4)], **attributes(H, key_heads, (1, 1, 1, 1)))
    assert_same(actual, in_layout(apart, layouts[3]))


@pytest.mark.parametrize("keys", [255, 256, 257, 512, 513])
def test_largest_sums(product_isa: str, keys: int) -> None:
    """All weights are the largest one, and so are all values: sums of up to 256 keys fit int32."""
    value = np.float32([-127, 127, -127, 127, 127])
    given = np.zeros((1, 1, 3, D), np.float32), np.ones((1, 1, keys, D), np.float32), np.tile(value, (1, 1, keys, 1))
    actual = run([*given, np.zeros((1, 1, 1, 1), np.float32), *numbers(1)], **attributes(1, 1, (1, 1, 1, 1)))
    check(actual, np.tile(value, (1, 1, 3, 1)), 0)


@pytest.mark.parametrize("window", [(-1, 0), (3, 0), (2, 5), (0, -1), (40, 40)])
@pytest.mark.parametrize("ends_together", [0, 1])
@pytest.mark.parametrize(("s", "t"), [(13, 13), (13, 21), (21, 13), (70, 70), (1, 50)])
def test_windows(product_isa: str, window: tuple[int, int], ends_together: int, s: int, t: int) -> None:
    """The same as a mask: rows that see no key are NaN, or 0."""
    given, (before, after) = tensors(s=s, t=t), window
    distances = np.arange(t) - np.arange(s)[:, None] - ends_together * (t - s)
    hidden = (before >= 0) & (distances < -before) | (after >= 0) & (distances > after)
    bias = bias_of(B, 1, 1, t, hidden=0)
    names = {"keys_before": before, "keys_after": after, "ends_together": ends_together}
    inputs = [*operands(given, (0, 1, 0)), bias, *numbers(1e-4)]
    actual = run(inputs, **attributes(H, 0, (0, 1, 0, 1), **names))
    check(actual, attention(*given, bias, 1e-4, hidden=hidden), t)
    inputs[3] = np.where(hidden, np.float32(-np.inf), bias)
    assert_same(actual, run(inputs, **attributes(H, 0, (0, 1, 0, 1))))
    zeros = run(inputs, **attributes(H, 0, (0, 1, 0, 1), zero_rows=1))
    assert_same(zeros, np.where(hidden.all(1)[:, None], np.float32(0), actual))


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_soft_cap(product_isa: str, cap: float) -> None:
    given, bias = tensors(), bias_of(B, 1, 1, T)
    inputs = [*operands(given, (0, 0, 0)), bias, *numbers(3e-3, cap)]
    actual = run(inputs, **attributes(H, 0, (0, 0, 0, 1)))
    check(actual, attention(*given, bias, 3e-3, cap), T, error=cap * 3e-7)


@pytest.mark.parametrize("number", [-1e9, -1e4, float(LOWEST), -np.inf])
@pytest.mark.parametrize("replaces", [True, False])
def test_rows_without_keys(product_isa: str, number: float, replaces: bool) -> None:
    """As the model: the mean of the values if the number replaces scores, or absorbs them; NaN of -infinity."""
    given = tensors()
    bias = np.zeros((B, 1, S, T), np.float32)
    bias[:, :, 3] = bias[1, :, 4:, ::2] = number
    least = number / 2 if number > -1e30 else -1e30 if replaces else -np.inf
    inputs = [*operands(given, (0, 0, 0)), bias, *numbers(1e-3, 0, least if replaces else -np.inf)]
    actual = run(inputs, **attributes(H, 0, (0, 0, 0, 1)))
    check(actual, attention(*given, bias, 1e-3, replaced=replaces & (bias < least)), T)
    if replaces and np.isfinite(number):
        mean = given[2].mean(2)
        np.testing.assert_allclose(actual[:, :, 3], mean, rtol=0, atol=127 * (T + 1) / 65535)
    assert np.isnan(actual[:, :, 3]).all() == (number == -np.inf)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layouts", [(0, 0, 0, 0), (1, 2, 0, 2), (2, 0, 2, 1)])
def test_16_bits(product_isa: str, dtype: Any, layouts: tuple[int, ...]) -> None:
    """The result of float32, rounded once: these integers are exact in 16 bits."""
    given, bias = tensors(key_heads=2), bias_of(1, H, S, T)
    inputs = [*operands(given, layouts), bias, *numbers(1e-4)]
    expected = run(inputs, **attributes(H, 2, layouts))
    halves = [each.astype(dtype) for each in inputs[:3]]
    assert_same(run([*halves, *inputs[3:]], **attributes(H, 2, layouts)), expected.astype(dtype))
