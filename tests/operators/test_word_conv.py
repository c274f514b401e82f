"""WordConv equals its definition in NumPy, with exact integers, on every instruction set."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cases.case import Case
from cases.word_conv import SIZES, random_word_conv, sized, word_conv_inputs
from helpers import Array, assert_same, explained, make_session, parse, with_one_nan

from ort_dynq import DynqError, kernels
from ort_dynq.operators.encodings import AutoPad
from ort_dynq.operators.word_matmul import MAX_SRC_WORD, MAX_WEIGHT_WORD
from ort_dynq.operators.word_text import BLOCK


def words_of(src: Array) -> tuple[Array, Array]:
    """The words of each sample, of int64, and their steps."""
    axes = tuple(range(1, src.ndim))
    step = np.maximum(np.abs(src).max(axes, keepdims=True, initial=0) / np.float32(MAX_SRC_WORD), np.float32(2**-126))
    return np.rint(src * (np.float32(1) / step)).astype(np.int64), step


def patches_of(words: Array, geometry: Array, auto_pad: int) -> Array:
    """[N, C * kernel positions, output positions]."""
    kernel, strides, dilations, begin, end = geometry.astype(np.int64)
    lengths, span = np.array(words.shape[2:]), (kernel - 1) * dilations + 1
    if auto_pad:
        pads = np.maximum((-(-lengths // strides) - 1) * strides + span - lengths, 0)
        begin = pads // 2 if auto_pad == AutoPad.SAME_UPPER else pads - pads // 2
        end = pads - begin
    padded = np.pad(words, [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    counts = (lengths + begin + end - span) // strides + 1
    parts = []
    for position in itertools.product(*map(range, kernel)):
        firsts = np.array(position) * dilations
        ends = firsts + (counts - 1) * strides + 1
        parts.append(padded[(..., *map(slice, firsts, ends, strides))].reshape(*words.shape[:2], counts.prod()))
    return np.stack(parts, 2).reshape(len(words), words.shape[1] * len(parts), counts.prod())


def defined(case: Case) -> Array:
    """The definition, flat: [N, M, positions]."""
    src, weights, scale, bias, geometry = case.inputs
    group = int(case.attributes.get("group", 1))
    words, step = words_of(src)
    assert np.abs(words).max(initial=0) <= MAX_SRC_WORD
    patches = patches_of(words, geometry, int(case.attributes.get("auto_pad", 0)))
    parts = zip(np.split(patches, group, 1), np.split(weights.astype(np.int64), group), strict=True)
    results = []
    for (part, matrix), own_bias, own_scale in zip(parts, np.split(bias, group), np.split(scale, group), strict=True):
        rows, dst = matrix.reshape(len(matrix), -1), own_bias[:, None]
        for first in range(0, rows.shape[1], BLOCK):
            exact = rows[:, first : first + BLOCK] @ part[:, first : first + BLOCK]
            assert np.abs(exact).max(initial=0) < 2**31
            dst = dst + exact.astype(np.float32) * own_scale[:, None] * step.reshape(-1, 1, 1)
        results.append(dst)
    return np.concatenate(results, 1)


def tied(rng: np.random.Generator, case: Case) -> Case:
    """Numbers with powers of two as steps, so that half of the quotients are ties, and their float neighbours."""
    src = case.inputs[0]
    x = rng.integers(-MAX_SRC_WORD * 2, MAX_SRC_WORD * 2 + 1, src.shape).astype(np.float32) / 2
    x = np.where(rng.random(x.shape) < 0.3, np.nextafter(x, rng.choice(np.float32([-np.inf, np.inf]), x.shape)), x)
    x[(slice(None), *[0] * (x.ndim - 1))] = MAX_SRC_WORD
    factors = np.float32(2.0) ** rng.integers(-3, 4, (len(x), *[1] * (x.ndim - 1))).astype(np.float32)
    return Case(case.attributes, [np.clip(x, -MAX_SRC_WORD, MAX_SRC_WORD) * factors, *case.inputs[1:]])


@pytest.mark.parametrize("index", range(len(SIZES) + 12))
def test_sums_are_exact(isas: Sequence[str], index: int) -> None:
    rng = np.random.default_rng(index)
    case = sized(rng, index) if index < len(SIZES) else random_word_conv(rng)
    for each in (case, tied(rng, case)):
        expected = defined(each)
        for isa in isas:
            with kernels.use_isa(isa), explained(isa):
                (dst,) = kernels.run("WordConv", each.inputs, **each.attributes)
                assert_same(dst.reshape(expected.shape), expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums(isas: Sequence[str], sign: int) -> None:
    """All words are as large as they may be: the sums of a block are within 0.1 % of int32's limit."""
    inputs = word_conv_inputs(np.random.default_rng(0), (1, 2 * BLOCK + 3, 40), (7, 2 * BLOCK + 3, 1))
    inputs[0][:], inputs[1][:], inputs[2][:] = sign, MAX_WEIGHT_WORD, 1
    expected = defined(Case({}, inputs))
    for isa in isas:
        with kernels.use_isa(isa):
            assert_same(kernels.run("WordConv", inputs)[0], expected)


@pytest.mark.parametrize("word", [MAX_WEIGHT_WORD + 1, -(2**15)])
def test_words_beyond_their_range_are_an_error(word: int) -> None:
    inputs = word_conv_inputs(np.random.default_rng(0), (1, 2, 9), (3, 2, 3))
    inputs[1][2, 1, 2] = word
    with pytest.raises(DynqError, match=f"WordConv: weight has the element {word}, expected -2047 to 2047"):
        kernels.run("WordConv", inputs)


def test_a_sample_does_not_depend_on_others(product_isa: str) -> None:
    inputs = word_conv_inputs(np.random.default_rng(0), (5, 6, 9, 10), (7, 6, 3, 3))
    inputs[0][1, 5, 8, 9] = np.nan
    inputs[0][3, 0, 0, 0] = -np.inf
    (dst,) = kernels.run("WordConv", inputs)
    for i in range(len(dst)):
        assert_same(kernels.run("WordConv", [inputs[0][i : i + 1], *inputs[1:]])[0], dst[i : i + 1])
    assert [np.isnan(each).all() for each in dst] == [False, True, False, True, False]
    assert np.isfinite(dst[::2]).all()


LARGE: dict[str, tuple[Any, Any, int]] = {
    "tiles": ((1, 40, 60, 50), (30, 40, 3, 3), 1),
    "channels": ((1, 300, 4, 4), (400, 300, 3, 3), 1),
    "groups": ((2, 64, 30, 30), (64, 32, 3, 3), 2),
    "few weights": ((2, 3, 120, 130), (16, 3, 3, 3), 1),
}


@pytest.mark.parametrize(("src", "weights", "group"), LARGE.values(), ids=LARGE)
def test_threads_change_nothing(src: Any, weights: Any, group: int) -> None:
    """A large sample becomes words in parts, of which one has the largest magnitude, and perhaps the NaN."""
    rng = np.random.default_rng(0)
    inputs = word_conv_inputs(rng, src, weights)
    inputs[0].reshape(-1)[rng.integers(inputs[0].size)] = 100
    dst = kernels.run("WordConv", inputs, group=group)[0]
    assert_same(dst.reshape(*dst.shape[:2], -1), defined(Case({"group": group}, inputs)))
    model = parse(
        "float[] x, int16[] w, float[] s, float[] b, int32[] g",
        "float[] y",
        f"y = ort_dynq.WordConv<group = {group}>(x, w, s, b, g)",
    )
    lost = [inputs[0].copy(), *inputs[1:]]
    lost[0].reshape(-1)[-1] = np.nan
    for threads in (1, 2, 3):
        session = make_session(model, "native", threads=threads)
        assert_same(np.asarray(session.run(None, dict(zip("xwsbg", inputs, strict=True)))[0]), dst)
        unknown = np.asarray(session.run(None, dict(zip("xwsbg", lost, strict=True)))[0])
        assert_same(with_one_nan(unknown[-1]), np.full_like(unknown[-1], np.nan))
        assert_same(unknown[:-1], dst[:-1])
