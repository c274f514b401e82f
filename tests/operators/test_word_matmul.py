"""WordMatMul equals its definition in NumPy, with exact integers, on every instruction set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from cases.word_matmul import SIZES, word_inputs
from helpers import Array, Shape, assert_same, explained, handwritten, make_session, parse

from ort_dynq import DynqError, kernels
from ort_dynq.backends.options import Backend
from ort_dynq.operators.packing import pack_words
from ort_dynq.operators.word_matmul import MAX_SRC_WORD, MAX_WEIGHT_WORD
from ort_dynq.operators.word_text import BLOCK


def defined(src: Array, words: Array, scale: Array, bias: Array) -> Array:
    """The definition; sums are of int64."""
    dst = bias[..., None, :]
    for first in range(0, src.shape[-1], BLOCK):
        x = src[..., first : first + BLOCK]
        step = np.maximum(np.abs(x).max(-1, keepdims=True) / np.float32(MAX_SRC_WORD), np.float32(2**-126))
        codes = np.rint(x * (np.float32(1) / step)).astype(np.int64)
        assert np.abs(codes).max(initial=0) <= MAX_SRC_WORD
        exact = codes @ words[..., first : first + BLOCK, :].astype(np.int64)
        assert np.abs(exact).max(initial=0) < 2**31
        dst = dst + exact.astype(np.float32) * scale[..., None, :] * step
    return np.asarray(dst, np.float32)


def tied(rng: np.random.Generator, shape: Shape) -> Array:
    """Numbers with powers of two as steps, so that half of the quotients are ties, and their float neighbours."""
    x = rng.integers(-MAX_SRC_WORD * 2, MAX_SRC_WORD * 2 + 1, shape).astype(np.float32) / 2
    x[..., ::BLOCK] = MAX_SRC_WORD
    x *= np.float32(2.0) ** rng.integers(-3, 4, (*shape[:-1], 1)).astype(np.float32)
    toward = rng.choice(np.float32([-np.inf, np.inf]), shape)
    return np.where((rng.random(shape) < 0.3) & (np.arange(shape[-1]) % BLOCK > 0), np.nextafter(x, toward), x)


@pytest.mark.parametrize(("src", "columns", "stack"), [each for each in SIZES if each[0][-1]])
def test_sums_are_exact(isas: Sequence[str], src: Shape, columns: int, stack: Shape) -> None:
    rng = np.random.default_rng(columns)
    inputs, words = word_inputs(rng, src, columns, stack)
    for x in (inputs[0], tied(rng, src)) if 0 not in src else (inputs[0],):
        expected = defined(np.atleast_2d(x), words, *inputs[2:])
        for isa in isas:
            with kernels.use_isa(isa), explained(isa):
                (dst,) = kernels.run("WordMatMul", [x, *inputs[1:]])
                assert_same(dst.reshape(expected.shape), expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums(isas: Sequence[str], sign: int) -> None:
    """All words are as large as they may be: the sums of a block are within 0.1 % of int32's limit."""
    words = np.full((2 * BLOCK + 3, 70), MAX_WEIGHT_WORD, np.int16)
    src = np.full((13, len(words)), sign, np.float32)
    ones, zeros = np.ones(70, np.float32), np.zeros(70, np.float32)
    expected = defined(src, words, ones, zeros)
    for isa in isas:
        with kernels.use_isa(isa):
            assert_same(kernels.run("WordMatMul", [src, pack_words(words), ones, zeros])[0], expected)


def test_numbers_near_the_largest_float(isas: Sequence[str]) -> None:
    """Results that float32 has are finite, though sums times steps exceed it."""
    inputs, words = word_inputs(np.random.default_rng(0), (3, 2 * BLOCK), 33)
    inputs[2] /= np.float32(64)
    inputs[0] *= np.float32(3e38) / np.abs(inputs[0]).max()
    exact = inputs[0].astype(np.float64) @ (words * inputs[2].astype(np.float64))
    assert np.abs(exact).max() < 3e38
    for isa in isas:
        with kernels.use_isa(isa):
            (dst,) = kernels.run("WordMatMul", inputs)
            assert np.abs(dst - exact).max() < 1e-3 * np.abs(exact).max()


MODEL = "y = ort_dynq.WordMatMul(x, w, s, b)"


@pytest.mark.parametrize("backend", ["native", "extensions"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("word", [MAX_WEIGHT_WORD + 1, -MAX_WEIGHT_WORD - 1, -(2**15)])
def test_words_beyond_their_range_are_an_error(backend: Backend, is_constant: bool, word: int) -> None:
    """Sums of them may be beyond int32. The check of constants, which is made once, does not apply to other weights."""
    inputs, _ = word_inputs(np.random.default_rng(0), (3, 70), 40)
    wrong = inputs[1].copy()
    wrong[1, 7, 3, 1] = word
    others = "float[] x, float[] s, float[] b" + ("" if is_constant else ", int16[] w")
    model = parse(others, "float[] y", MODEL)
    if is_constant:
        model.graph.initializer.append(onnx.numpy_helper.from_array(wrong, "w"))
    session = make_session(handwritten(model, backend), backend)
    feeds = dict(zip("xwsb", inputs, strict=True))
    if is_constant:
        del feeds["w"]
    for given in (feeds, feeds):
        if not is_constant:
            session.run(None, given)
            given = given | {"w": wrong}
        with pytest.raises(Exception, match=f"WordMatMul: weight has the element {word}, expected -2047 to 2047"):
            session.run(None, given)


@pytest.mark.parametrize("rank", [14, 15, 16])
def test_a_rank_that_leaves_no_room_for_packed_weights(rank: int) -> None:
    """A weight without its last dimensions must not pass."""
    whole = (*[1] * (rank - 1), 1, 1, 32, 2)
    src, weight = np.zeros((*[1] * min(rank + 1, 15), 2), np.float32), np.zeros(whole[:16], np.int16)
    with pytest.raises(DynqError, match=f"WordMatMul: bias has rank {rank}, expected at most 13"):
        kernels.run("WordMatMul", [src, weight, *[np.zeros([1] * rank, np.float32)] * 2])


def test_a_row_does_not_depend_on_others(product_isa: str) -> None:
    inputs, _ = word_inputs(np.random.default_rng(0), (40, 300), 70)
    inputs[0][7, 299] = np.nan
    inputs[0][9, 0] = -np.inf
    (all_rows,) = kernels.run("WordMatMul", inputs)
    for row in range(len(all_rows)):
        assert_same(kernels.run("WordMatMul", [inputs[0][row], *inputs[1:]])[0], all_rows[row])
    assert list(np.flatnonzero(np.isnan(all_rows).any(1))) == [7, 9]
    assert np.isnan(all_rows[[7, 9]]).all()


@pytest.mark.parametrize(("src", "columns", "stack"), [((130, 1100), 600, ()), ((2, 3, 200, 260), 97, (3,))])
def test_threads_change_nothing(src: Shape, columns: int, stack: Shape) -> None:
    inputs, words = word_inputs(np.random.default_rng(0), src, columns, stack)
    dst = kernels.run("WordMatMul", inputs)[0]
    assert_same(dst, defined(inputs[0], words, *inputs[2:]))
    model = parse("float[] x, int16[] w, float[] s, float[] b", "float[] y", MODEL)
    for threads in (1, 2, 3):
        session = make_session(model, "native", threads=threads)
        assert_same(np.asarray(session.run(None, dict(zip("xwsb", inputs, strict=True)))[0]), dst)


@pytest.mark.parametrize("shape", [(1, 1), (2, 32), (3, 33), (7, 64), (256, 5)])
def test_packed_words(shape: tuple[int, int]) -> None:
    words = np.random.default_rng(0).integers(-2047, 2048, shape).astype(np.int16)
    packed = pack_words(words)
    k, n = np.indices(shape)
    assert_same(packed[n // 32, k // 2, n % 32, k % 2], words)
    assert packed.size == np.ceil(shape[0] / 2) * 2 * np.ceil(shape[1] / 32) * 32
    assert np.count_nonzero(packed) == np.count_nonzero(words)
