"""Calls of QuantizedExperts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from functions import Attributes
from helpers import Array, Shape, random_codes

from ort_dynq.operators.packing import pack, packed_shape

from .case import Case, Cases, Fit, Fitting

SWIGLU = (
    "dst = Mul(Mul(Min(x, 1.5), Sigmoid(Mul(Min(x, 1.5), 1.702))), Add(Clip(tensor1, -1.5, 1.5), 1.0))"  # of GPT-OSS
)
PROGRAMS = (SWIGLU, "dst = Clip(x, 0.0, inf)", "dst = x", "dst = Mul(x, Sigmoid(x))", "dst = Mul(tensor1, x)")


def expert_inputs(
    rng: np.random.Generator,
    shape: Shape,
    experts: int,
    inner: int,
    *,
    bits: int = 4,
    group_size: int = 0,
    program: str = SWIGLU,
    zero_points: str = "none",
    float_type: Any = np.float32,
    scale_type: Any = np.float32,
    has_router_weight: bool = False,
) -> list[Array]:
    """Inputs of QuantizedExperts.

    The magnitudes of the results are about 1. Scores have ties, and a token in eight has a NaN or an infinity there.
    The ranges of many groups are whole numbers of steps, so that quotients are ties.

    Args:
        rng: The source of random numbers.
        shape: The shape of src.
        experts, inner: The lengths of dimensions; the first product has twice as many columns if the program is gated.
        bits, group_size, program: The attributes.
        zero_points: Whether weights have "none" (8 bits: 0; 4 bits: 8), or "all" groups and columns have their own.
        float_type: The type of src and router.
        scale_type: The type of the scales of columns.
        has_router_weight: Whether weights are given.
    """
    *lead, hidden = shape
    src = rng.normal(0, 1, shape)
    if group_size and rng.random() < 0.7:
        steps = rng.integers(0, 511, (*lead, hidden // group_size, group_size)) / 2
        steps[..., :2] = 0, 255
        src = ((steps - 100.5) * 2.0 ** rng.integers(-8, -4, (*lead, hidden // group_size, 1))).reshape(shape)
    scores = rng.integers(-9, 9, (*lead, experts)) / 4.0
    for token in np.ndindex(*lead):
        if rng.random() < 0.125:
            scores[(*token, rng.integers(experts))] = rng.choice([np.nan, np.inf, -np.inf, -30])
    weights = rng.uniform(-0.1, 1, (*lead, experts)) if has_router_weight else np.zeros((0,))
    inputs = [np.asarray(array, float_type) for array in (src, scores, weights)]
    columns = inner * (1 + ("tensor1" in program))
    for depth, count in ((hidden, columns), (inner, hidden)):
        groups = depth // group_size if group_size else 1
        low, high = (-128, 127) if bits == 8 else (0, 15)
        codes = rng.integers(low, high + 1, (experts, depth, count)).astype(np.int8)
        zps = np.full(1, 0 if bits == 8 else 8, np.int8)
        if zero_points == "all":
            zps = random_codes(rng, (experts, groups, count), np.int8)
            zps = zps if bits == 8 else zps & 15
        scale = rng.uniform(0.5, 1.5, (experts, groups, count)) * 4 / (high - low) / np.sqrt(depth)
        bias = np.where(rng.random((experts, count)) < 0.3, -0.0, rng.normal(0, 1, (experts, count)))
        packed = np.stack([pack(each, bits) for each in codes])
        inputs += [packed, zps, scale.astype(scale_type), bias.astype(np.float32)]
    return inputs


def experts_cases(opset: int) -> Iterator[Case]:
    """Every way to store weights; few and many tokens for each expert; experts without tokens."""
    rng = np.random.default_rng(opset)
    shapes: list[Shape] = [(7, 64), (2, 3, 64), (64,), (1, 64), (40, 64), (0, 64)]
    which = itertools.product((4, 8), (0, 16, 32), (1, 2), ("none", "all"))
    for i, (bits, group_size, terms, zero_points) in enumerate(which):
        program = PROGRAMS[(i + opset) % len(PROGRAMS)]
        inputs = expert_inputs(
            rng,
            shapes[i % (len(shapes) - (opset < 14))],
            5 + i % 4,
            (32, 64, 96)[(i + i // 3) % 3] if group_size else 35,
            bits=bits,
            group_size=group_size,
            program=program,
            zero_points=zero_points,
            float_type=np.float16 if i % 5 == 2 and opset >= 15 else np.float32,
            scale_type=(np.float32, np.float16)[(i + i // 6) % 2],
            has_router_weight=i % 3 == 0,
        )
        given: Attributes = {"bits": bits, "group_size": group_size, "terms": terms, "program": program}
        yield Case(given | {"k": 1 + i % 4, "normalize": i // 2 % 2}, inputs)


def fitting(n: int) -> Iterator[Fit]:
    """n tokens, n experts, n elements of a token, and n columns between the products; groups; gates."""
    for i, (tokens, experts, hidden, inner) in enumerate(((n, 2, 16, 32), (3, n, 32, 16), (2, 3, n, 5), (2, 1, 7, n))):
        for bits, size in itertools.product((8, 4), (16, 0) if i < 2 else (0,)):
            program = ("dst = Mul(x, Sigmoid(tensor1))", "dst = Clip(x, 0, 6)")[(n + bits // 4) % 2]
            columns = inner * (2 if "tensor1" in program else 1)
            shapes: list[Shape] = [(tokens, hidden), (tokens, experts), (tokens, experts) if n % 3 else (0,)]
            for depth, count in ((hidden, columns), (inner, hidden)):
                of_columns = (experts, depth // size if size else 1, count)
                zps = of_columns if (n + i) % 2 else (1,)
                shapes += [(experts, *packed_shape(depth, count, bits)), zps, of_columns, (experts, count)]
            k = min(1 + n % 3, experts)
            given = {"bits": bits, "group_size": size, "program": program, "k": k, "terms": 1 + n // 2 % 2}
            yield shapes, given | {"normalize": n % 2}


CASES: Cases = {
    "QuantizedExperts": experts_cases,
}
FITTING: Fitting = {"QuantizedExperts": fitting}
