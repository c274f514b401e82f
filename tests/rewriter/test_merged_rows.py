"""Numbers of samples and rows with dimensions that a Reshape merges, or splits again, before the product."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import Array, diagonals
from product_models import model_of, reduced
from rewriting import products

from ort_dynq import verify
from ort_dynq.rewriter import rewrite

F = np.float32
K, N = 32, 18
RNG = np.random.default_rng(5)
CODES: Array = np.concatenate([np.full((1, N), 127), RNG.integers(-127, 128, (K - 1, N))])
KERNELS: Array = np.concatenate([np.full((16, 1, 3, 3), 127), RNG.integers(-127, 128, (16, 15, 3, 3))], 1)
MOST = reduced("Max", "a", 18).replace("last", "axes")
LEAST = MOST.replace("Max", "Min").replace("(a,", "(x,")
FORMS = {
    "symmetric": f"a = Abs(x) m = {MOST} m0 = Max(m, eps) s = Div(m0, c127) t = Div(x, s) r = Round(t)"
    " c = Clip(r, low, high) dx = Mul(c, s)\n",
    "asymmetric": f"h = {MOST.replace('(a,', '(x,')} l = {LEAST} h0 = Max(h, zero) l0 = Min(l, zero) e = Sub(h0, l0)"
    " s = Div(e, c255) f = Div(l0, s) z = Round(f) t = Div(x, s) r = Round(t) u = Sub(r, z) c = Clip(u, zero, c255)"
    " v = Add(c, z) dx = Mul(v, s)\n",
}
PLACES: dict[str, tuple[tuple[int, ...], list[int], str, str]] = {
    # the shape of x, the axes of a range, the inputs, the product
    "rows of a sample": ((3, 5, K), [1, 2], f"float[B, 5, {K}] x", "g = Reshape(dx, matrix) y = MatMul(g, w)"),
    "rows split again": (
        (15, K),
        [1],
        f"float[15, {K}] x",
        "g = Reshape(dx, tokens) y = MatMul(g, w)",
    ),
    "heads and back": (
        (3, 5, K),
        [2],
        f"float[B, 5, {K}] x",
        "i = Reshape(dx, heads) g = Reshape(i, merged) y = MatMul(g, w)",
    ),
    "heads that share a token's": (
        (3, 2, 5, K),
        [1, 3],
        f"float[B, 2, T, {K}] x",
        "y = MatMul(dx, w)",
    ),
    "heads that share a token's, flattened": (
        (3, 2, 5, K),
        [1, 3],
        f"float[3, 2, 5, {K}] x",
        "g = Flatten<axis = 3>(dx) y = MatMul(g, w)",
    ),
    "batches that share a token's": ((3, 5, K), [0, 2], f"float[B, T, {K}] x", "y = MatMul(dx, w)"),
    "columns of an image, then rows": (
        (3, K, 5, 6),
        [1, 2],
        f"float[B, {K}, H, W] x",
        "g = Transpose<perm = [0, 2, 3, 1]>(dx) y = MatMul(g, w)",
    ),
    "experts of one activation": ((5, K), [1], f"float[T, {K}] x", "g = Expand(dx, experts) y = MatMul(g, stack)"),
    "experts of one activation, repeated": (
        (5, K),
        [1],
        f"float[T, {K}] x",
        "tiled = Tile(dx, times) g = Reshape(tiled, of_experts) y = MatMul(g, stack)",
    ),
    "experts of one sample": (
        (5, K),
        [0, 1],
        f"float[T, {K}] x",
        "one = Unsqueeze(dx, first) g = Expand(one, experts) y = MatMul(g, stack)",
    ),
    "frames": ((2, 3, 16, 12, 12), [2, 3, 4], "float[2, 3, 16, 12, 12] x", "g = Reshape(dx, images) y = Conv(g, k)"),
    "frames of a sample": (
        (2, 3, 16, 12, 12),
        [1, 2, 3, 4],
        "float[2, 3, 16, 12, 12] x",
        "g = Reshape(dx, images) y = Conv(g, k)",
    ),
}


@pytest.mark.parametrize(("form", "place"), diagonals(1, FORMS, PLACES))
def test_rows_are_merged_or_split(place: str, form: str) -> None:
    shape, axes, inputs, product = PLACES[place]
    x = np.random.default_rng(6).normal(0.2, 1, shape).astype(F) * np.arange(1, shape[0] + 1).reshape(
        -1, *[1] * len(shape[1:])
    )
    constants = {"axes": np.array(axes), "images": np.array([-1, 16, 12, 12]), "matrix": np.array([-1, K])}
    constants |= {"heads": np.array([-1, 4, K // 4]), "merged": np.array([3, 5, K])}
    stack = np.stack([CODES, CODES[::-1], -CODES]).astype(F) * F(0.01)
    constants |= {"experts": np.array([3, 1, 1]), "times": np.array([3, 1]), "of_experts": np.array([3, -1, K])}
    constants |= {"first": np.array([0]), "stack": stack}
    constants |= {"tokens": np.array([-1, 5, K]), "w": CODES.astype(F) * F(0.01), "k": KERNELS.astype(F) * F(0.01)}
    model = model_of(FORMS[form] + product, constants, inputs=inputs)
    result = rewrite(model)
    assert products(result.report) == ["QuantizedConv" if "Conv" in product else "QuantizedMatMul"]
    if "that share" in place:
        assert any(each.operator == "RowProgram" for each in result.report.rewritten)
    data = {"x": x.astype(F)}
    verified = verify(model, result.to_proto(), inputs=data)
    assert verified.passed, verified
    assert verified.products


@pytest.mark.parametrize("form", FORMS)
def test_first_token_with_a_scale_of_its_own(form: str) -> None:
    """The parts of a sample have one number each, which belongs to as many tokens as the part has at run time."""
    names = {*re.findall(r"(\w+) = \w+[(<]", FORMS[form])}
    parts = [
        re.sub(
            r"\b[a-z]\w*\b", lambda m, i=i: f"p{i}" if m[0] == "x" else m[0] + f"_{i}" * (m[0] in names), FORMS[form]
        )
        for i in range(2)
    ]
    body = "p0 = Slice(x, n0, n1, n1) p1 = Slice(x, n1, end, n1) " + "".join(parts)
    constants = {"axes": np.array([1, 2]), "n0": np.array([0]), "n1": np.array([1]), "end": np.array([2**31])}
    model = model_of(
        body + "dx = Concat<axis = 1>(dx_0, dx_1) y = MatMul(dx, w)",
        constants | {"w": CODES.astype(F) * F(0.01)},
        inputs=f"float[B, T, {K}] x",
    )
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    x = np.random.default_rng(6).normal(0.2, 1, (3, 5, K)).astype(F) * np.array([30, 1, 1, 1, 1], F)[:, None]
    verified = verify(model, result.to_proto(), inputs={"x": x})
    assert verified.passed, verified
    assert verified.products


@pytest.mark.parametrize("shape", [[-1, 2 * K], [-1, K // 2]])
def test_rows_that_are_cut_otherwise_stay(shape: list[int]) -> None:
    weights: Array = np.tile(CODES, (2, 1))[: shape[1]].astype(F) * F(0.01)
    constants = {"axes": np.array([1, 2]), "matrix": np.array(shape), "w": weights}
    body = FORMS["symmetric"] + "g = Reshape(dx, matrix) y = MatMul(g, w)"
    report = rewrite(model_of(body, constants, inputs=f"float[B, 6, {K}] x")).report
    assert not products(report)
