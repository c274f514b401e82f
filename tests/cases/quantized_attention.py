"""Calls of QuantizedAttention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from helpers import Array

from .case import Case, Cases, Fit, Fitting, Given
from .row_program import any_numbers, finite_numbers

LOWEST = np.finfo(np.float32).min


def in_layout(x: Array, layout: int) -> Array:
    """[B, H, T, D] as [B, T, H * D], [B, H, T, D] or [B, H, D, T]."""
    if layout == 0:
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)
    return x if layout == 1 else np.ascontiguousarray(x.swapaxes(2, 3))


def laid_out(shape: Sequence[int], layout: int) -> tuple[int, ...]:
    """The shape of a tensor [B, H, T, D] in a layout."""
    b, h, t, d = shape
    return [(b, t, h * d), (b, h, t, d), (b, h, d, t)][layout]


def numbers(scale: float = 1.0, softcap: float = 0.0, least_added: float = -np.inf) -> list[Array]:
    """The inputs of one element."""
    return [np.array(each, np.float32) for each in (scale, softcap, least_added)]


def operands(x: Sequence[Array], layouts: Sequence[int]) -> list[Array]:
    """Query, key and value [B, H, T, D] in their layouts."""
    return [in_layout(each, layout) for each, layout in zip(x, layouts, strict=False)]


def attributes(heads: int, key_heads: int = 0, layouts: Sequence[int] = (0, 0, 0, 0), **given: int) -> dict[str, int]:
    """Attributes; the layouts are those of query, key, value and the result."""
    names = ("query_layout", "key_layout", "value_layout", "dst_layout")
    return {"num_heads": heads, "kv_num_heads": key_heads, **dict(zip(names, layouts, strict=True)), **given}


def attention_cases(opset: int) -> Iterator[Case]:
    """Lengths and sizes of heads around those of vectors and tiles; masks of every shape; rows without keys."""
    rng = np.random.default_rng(opset)
    sizes = [
        (1, 5, 7, 2, 8, 8),
        (2, 16, 16, 3, 32, 32),
        (1, 33, 50, 4, 5, 7),
        (2, 3, 129, 1, 64, 17),
        (1, 1, 65, 2, 20, 48),
    ]
    for i, (b, s, t, h, d, e) in enumerate(sizes):
        whole = (b, h, s, t)
        for k in range(7):
            tensors = [
                any_numbers(rng, (b, length, h * size)) if k == 5 else finite_numbers(rng, (b, length, h * size))
                for length, size in ((s, d), (t, d), (t, e))
            ]
            tensors[0][:, s // 2] = 0
            shape = tuple(1 if (i + k + axis) % 3 == 0 else length for axis, length in enumerate(whole))
            shape = [(1, 1, 1, 1), (b, 1, 1, t), whole, (1, 1, s, t), shape, shape, (1, 1, s, t)][k]
            bias = np.asarray(rng.normal(0, 2, shape)).astype(np.float32) * np.float32(k > 0)
            if k in (1, 2, 5):
                bias[rng.random(shape) < 0.3] = -np.inf
            if k == 3:
                bias[..., -1, :] = -np.inf
            if k == 6:  # finite masks, in some rows of all keys
                bias[rng.random(shape) < 0.5] = rng.choice([LOWEST, -3e38, -1e9])
                bias[..., -1, :] = LOWEST
            scale = np.full([(), (1,), (1, 1)][(i + k) % 3], [d**-0.5, 1.0, -0.25][k % 3], np.float32)
            yield Case({"num_heads": h}, [*tensors, bias, scale, *numbers()[1:]])
    yield from _forms(opset)


def _forms(opset: int) -> Iterator[Case]:
    """Layouts, shared heads, windows, caps and replaced scores."""
    rng = np.random.default_rng(100 + opset)
    windows = [(-1, -1), (-1, 0), (3, 0), (2, 2), (0, 20), (-1, -1), (0, 0)]
    for i in range(42):
        b, s, t = 1 + i % 2, (6, 35, 1, 18)[i % 4], (9, 50, 33, 18, 5)[i % 5]
        key_heads, repeats, d, e = (1, 2, 3)[i % 3], (1, 2, 4)[i // 2 % 3], (8, 5, 36)[i // 3 % 3], (8, 17, 3)[i % 3]
        heads = key_heads * repeats
        layouts = (i % 3, i // 3 % 3, i // 9 % 3, i // 2 % 3)
        shapes = ((b, heads, s, d), (b, key_heads, t, d), (b, key_heads, t, e))
        make = any_numbers if i % 7 == 6 else finite_numbers
        tensors = operands([make(rng, shape) for shape in shapes], layouts)
        before, after = windows[i % 7]
        shape = [(1, 1, 1, 1), (b, 1, 1, t), (1, heads, 1, 1), (b, heads, s, t), (1, 1, s, 1)][i // 2 % 5]
        bias = np.asarray(rng.normal(0, 2, shape)).astype(np.float32) * np.float32(i // 2 % 5 > 0)
        hidden = [0.0, -np.inf, LOWEST, -1e4][i % 4]
        if hidden:
            bias[rng.random(shape) < 0.4] = hidden
        cap = [0.0, 0.0, 2.5, 30.0][i // 3 % 4]
        least_added = [-np.inf, -1e3, float(LOWEST), -0.5, 1.5][i // 4 % 5]
        given = attributes(
            heads,
            key_heads if repeats > 1 or i % 4 == 0 else 0,
            layouts,
            keys_before=before,
            keys_after=after,
            ends_together=i // 5 % 2,
            zero_rows=i // 7 % 2,
        )
        yield Case(given, [*tensors, bias, *numbers([d**-0.5, 0.05][i % 2], cap, least_added)])
    for zero_rows in (0, 1):  # no keys, and an infinite value beside rows without keys
        tensors = [np.ones((1, length, 8), np.float32) for length in (3, 0, 0)]
        yield Case(attributes(2, zero_rows=zero_rows), [*tensors, np.zeros((1, 1, 1, 1), np.float32), *numbers()])
        tensors = [rng.normal(0, 1, (1, length, 8)).astype(np.float32) for length in (6, 9, 9)]
        tensors[2][0, 4, 0] = np.inf
        bias = np.where(rng.random((1, 2, 6, 1)) < 0.5, -np.inf, 0).astype(np.float32)
        yield Case(attributes(2, zero_rows=zero_rows, keys_after=1), [*tensors, bias, *numbers()])


def fitting(n: int) -> Iterator[Fit]:
    lone: list[Given] = [np.array([0, 2][n % 2], np.float32), np.array([-np.inf, 1][n // 2 % 2], np.float32)]
    for b, s, t, h, d, e in ((1, n, 3, 1, 4, 4), (1, 3, n, 2, 5, 3), (2, 2, 17, 1, n, 2), (1, 2, 3, 2, 4, n)):
        for bias in ((1, 1, 1, 1), (b, 1, s, t), (1, h, 1, t)):
            yield [(b, s, h * d), (b, t, h * d), (b, t, h * e), bias, (), *lone], {"num_heads": h}
    for i, (s, t, d, e) in enumerate(((n, 9, 4, 5), (9, n, 5, 4), (3, 17, n, 2), (4, 5, 2, n))):
        shapes = ((2, 4, s, d), (2, 2, t, d), (2, 2, t, e))
        layouts = tuple((i + n + k) % 3 for k in range(4))
        inputs: list[Given] = [laid_out(each, layout) for each, layout in zip(shapes, layouts, strict=False)]
        window = {"keys_before": n % 4 - 1, "keys_after": n // 2 % 3 - 1, "ends_together": n % 2}
        yield [*inputs, (1, 4, 1, t), (), *lone], attributes(4, 2, layouts, **window)


CASES: Cases = {
    "QuantizedAttention": attention_cases,
}
FITTING: Fitting = {"QuantizedAttention": fitting}
