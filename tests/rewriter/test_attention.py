"""Attention that exporters write becomes MultiHeadAttention, and what is not attention stays.

The result is compared with the original in ONNX Runtime without optimizations. Sums are taken in another order, and
scores are scaled in another place: every score of magnitude 8 or less may differ by some roundings of 8 * 2^-24, and
every probability by as much, relatively. The result is an average of v, so it may differ by 64 * 2^-24 of max|v|.

More than 450 lines: every spelling is the text of a graph.
"""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import Array, nodes_of, stock_session
from rewriting import parse

import ort_dynq
from ort_dynq.rewrite_options import RewriteOptions
from ort_dynq.rewriter.fusion import attention
from ort_dynq.rewriter.loop import convert
from ort_dynq.rewriter.report import Report
from ort_dynq.rewriter.variants import convert_best

F = np.float32
TOLERANCE = 64 * 2.0**-24
LOWEST = float(np.finfo(F).min)

# 3 heads of 8. `hd` and `rows` are shapes.
SHAPES = "hd = Constant<value_ints = [0, 0, 3, 8]>() rows = Constant<value_ints = [0, 0, 24]>()"
NUMBERS = (
    f"nought = Constant<value = float {{0}}>() ninf = Constant<value = float {{-inf}}>() "
    f"lowest = Constant<value = float {{{LOWEST}}}>() root = Constant<value = float {{2.8284271}}>() "
    "fourth = Constant<value = float {0.594603558}>()"
)
SPLIT = (
    "q4 = Reshape(q, hd) qh = Transpose<perm = [0, 2, 1, 3]>(q4) k4 = Reshape(k, hd) v4 = Reshape(v, hd) "
    "vh = Transpose<perm = [0, 2, 1, 3]>(v4)"
)
KEY = "kt = Transpose<perm = [0, 2, 3, 1]>(k4)"
KEY_TWICE = "kh = Transpose<perm = [0, 2, 1, 3]>(k4) kt = Transpose<perm = [0, 1, 3, 2]>(kh)"
SCORES = f"{SHAPES} {NUMBERS} {SPLIT} {KEY} s = MatMul(qh, kt)"
RESULT = "o = MatMul(p, vh) ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, rows)"
SAFE = "p0 = Softmax<axis = -1>(m) isnan = IsNaN(p0) p = Where(isnan, nought, p0)"
INPUTS = "float[B, S, 24] q, float[B, T, 24] k, float[B, T, 24] v"


def rewritten(model: onnx.ModelProto, *, always: bool = True) -> onnx.ModelProto:
    """Rewrites a model; if `always`, also where that is not known to be faster."""

    def apply(model: ir.Model) -> Report:
        return convert(model, ((attention.RULE,),), RewriteOptions(fuse=True))

    with mock.patch.object(attention, "_is_faster", return_value=True) if always else nullcontext():
        return ir.to_proto(convert_best(ir.from_proto(model), apply)[0])


def count(model: onnx.ModelProto, operator: str) -> int:
    return sum(node.op_type == operator for node in nodes_of(model.graph))


def check(
    model: onnx.ModelProto, feeds: dict[str, Array], expected: int = 1, *, largest: Array | None = None
) -> onnx.ModelProto:
    """Rewrites a model and compares it with the original; returns the new model."""
    result = rewritten(model)
    assert count(result, "MultiHeadAttention") == expected
    assert expected == 0 or count(result, "Softmax") == 0
    before, after = (stock_session(each).run(None, feeds) for each in (model, result))
    v = feeds["v"] if largest is None else largest
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=TOLERANCE * np.nanmax(np.abs(v)), equal_nan=True)
    if expected:
        verification = ort_dynq.verify(model, result, inputs=feeds)
        assert verification.passed or verification.outputs == (), verification.reason  # (): of a subgraph
        assert sum(each.is_fusion for each in verification.products) + verification.unreachable >= expected
    return result


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(F)


def operands(batch: int = 2, s: int = 5, t: int = 7) -> dict[str, Array]:
    return {"q": normal(batch, s, 24, seed=1), "k": normal(batch, t, 24, seed=2), "v": normal(batch, t, 24, seed=3)}


def padding(batch: int = 2, t: int = 7) -> Array:
    """Which keys are padding, [B, T]; every row has others."""
    return np.arange(t) >= np.array([t, t - 3, t - 1, t - 2])[:batch, None]


@pytest.mark.parametrize("key", [KEY, KEY_TWICE])
@pytest.mark.parametrize("scale", ["d = Div(s, root)", "d = Mul(root, s)", "d = Identity(s)"])
@pytest.mark.parametrize("add", ["m = Add(d, mask)", "m = Add(mask, d)"])
def test_bert(key: str, scale: str, add: str) -> None:
    text = f"{SCORES.replace(KEY, key)} {scale} {add} p = Softmax<axis = -1>(m) {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, float[B, 1, 1, T] mask", outputs="float[B, S, 24] y")
    mask = np.where(padding(), LOWEST, 0).astype(F)[:, None, None]
    result = check(model, {**operands(), "mask": mask})
    assert count(result, "Transpose") == 0
    assert {*(each.op_type for each in result.graph.node)} <= {
        *("MultiHeadAttention", "Reshape", "Shape", "Gather", "Concat", "Expand", "Constant")
    }
    assert {each.domain: each.version for each in result.opset_import} == {"": 18, "com.microsoft": 1}


def test_torchscript() -> None:
    """The scale is computed from the shape of q, and its square root multiplies both q and k."""
    scale = (
        "shape = Shape(qh) last = Constant<value_ints = [-1]>() end = Constant<value_ints = [9223372036854775807]>() "
        "size = Slice(shape, last, end) length = Cast<to = 1>(size) norm = Sqrt(length) "
        "unit = Constant<value = float[1] {1}>() inverse = Div(unit, norm) scale = Cast<to = 1>(inverse) "
        f"qf = Sqrt(scale) kf = Sqrt(scale) qs = Mul(qh, qf) {KEY_TWICE} ks = Mul(kt, kf) s = MatMul(qs, ks)"
    )
    text = f"{SHAPES} {NUMBERS} {SPLIT} {scale} bias = Where(mask, nought, ninf) m = Add(s, bias) {SAFE} {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, bool[B, 1, S, T] mask", outputs="float[B, S, 24] y")
    mask = np.broadcast_to(~padding()[:, None, None], (2, 1, 5, 7)).copy()
    mask[0, 0, 2] = False
    result = check(model, {**operands(), "mask": mask})
    assert count(result, "Transpose") == 1  # of the numbers of rows
    assert count(result, "Mul") == 1  # of the rows and these numbers: the scale is known


@pytest.mark.parametrize("where", ["Where(mask, s, ninf)", "Where(other, ninf, s)", "Where(mask, s, lowest)"])
@pytest.mark.parametrize("opset", [13, 18, 21])
def test_dynamo(where: str, opset: int) -> None:
    """A row without keys is 0 after the safe softmax; with a finite number in the mask it is the mean of v."""
    scores = f"{SHAPES} {NUMBERS} {SPLIT} {KEY} qs = Mul(qh, fourth) ks = Mul(kt, fourth) s = MatMul(qs, ks)"
    text = f"{scores} other = Not(mask) m = {where} {SAFE} {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, bool[B, 1, S, T] mask", outputs="float[B, S, 24] y", opset=opset)
    mask = np.broadcast_to(~padding()[:, None, None], (2, 1, 5, 7)).copy()
    mask[1, 0, 3] = False
    result = check(model, {**operands(), "mask": mask})
    assert count(result, "ReduceMax") == ("ninf" in where)
    assert count(result, "Expand") == 0
    row = stock_session(result).run(None, {**operands(), "mask": mask})[0][1, 3]
    assert ("ninf" in where) == (not row.any())


def test_rows_without_keys_are_nan_after_plain_softmax() -> None:
    text = f"{SCORES} m = Where(mask, s, ninf) p = Softmax<axis = 3>(m) {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, bool[T] mask", outputs="float[B, S, 24] y")
    result = check(model, {**operands(), "mask": np.zeros(7, bool)})
    assert np.isnan(stock_session(result).run(None, {**operands(), "mask": np.zeros(7, bool)})[0]).all()


def test_distilbert() -> None:
    """The condition is expanded to the shape of the scores, which the Shape reads."""
    scores = f"{SHAPES} {NUMBERS} {SPLIT} {KEY} qs = Div(qh, root) s = MatMul(qs, kt)"
    mask = (
        "none = Constant<value_int = 0>() out = Equal(mask, none) axes = Constant<value_ints = [1, 2]>() "
        "out4 = Unsqueeze(out, axes) shape = Shape(s) wide = Expand(out4, shape) m = Where(wide, ninf, s)"
    )
    text = f"{scores} {mask} p = Softmax<axis = -1>(m) {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, int64[B, T] mask", outputs="float[B, S, 24] y")
    result = check(model, {**operands(), "mask": (~padding()).astype(np.int64)})
    assert count(result, "MatMul") == 0


def test_gpt2() -> None:
    """A causal Where and then an additive mask; the lowest float twice stays the lowest, or becomes -inf, as before."""
    text = f"{SCORES} d = Div(s, root) w = Where(causal, d, lowest) m = Add(w, mask) p = Softmax<axis = -1>(m) {RESULT}"
    inputs = f"{INPUTS}, bool[1, 1, S, T] causal, float[B, 1, 1, T] mask"
    causal = np.tri(5, 7, 2, bool)[None, None]
    mask = np.where(padding(), LOWEST, 0).astype(F)[:, None, None]
    check(parse(text, inputs=inputs, outputs="float[B, S, 24] y"), {**operands(), "causal": causal, "mask": mask})
    reverse = text.replace(
        "w = Where(causal, d, lowest) m = Add(w, mask)", "w = Add(d, mask) m = Where(causal, w, lowest)"
    )
    model = parse(reverse, inputs=inputs, outputs="float[B, S, 24] y")
    causal[..., 2, :] = False  # the row is the mean of v, also where the mask has the lowest float, too
    check(model, {**operands(), "causal": causal, "mask": mask})


def test_bias_that_is_repeated_for_each_sample() -> None:
    """torch repeats the bias of positions to lengths that it reads one by one; the operator needs no copies of it."""
    lengths = "b = Shape<start = 0, end = 1>(q) h = Constant<value_ints = [3]>() t = Shape<start = 1, end = 2>(k)"
    wide = f"{lengths} i = Shape<start = 1, end = 2>(q) full = Concat<axis = 0>(b, h, i, t) wide = Expand(bias, full)"
    text = f"{SCORES} {wide} m = Add(s, wide) p = Softmax<axis = -1>(m) {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, float[1, 3, S, T] bias", outputs="float[B, S, 24] y")
    result = check(model, {**operands(), "bias": np.linspace(-9, 9, 105, dtype=F).reshape(1, 3, 5, 7)})
    assert count(result, "Expand") == 0


@pytest.mark.parametrize("number", ["lowest", "some"])
def test_scores_times_a_mask(number: str) -> None:
    """The first GPT: scores become 0 where a mask of 0 and 1 hides them, and a number; a row without keys is a mean."""
    text = (
        f"{SCORES} some = Constant<value = float {{-1e4}}>() unit = Constant<value = float {{1}}>() "
        f"b = Cast<to = 1>(keep) w = Mul(s, b) c = Sub(unit, b) n = Mul(c, {number}) m = Add(w, n) "
        f"p = Softmax<axis = -1>(m) {RESULT}"
    )
    model = parse(text, inputs=f"{INPUTS}, bool[1, 1, S, T] keep", outputs="float[B, S, 24] y")
    keep = np.tri(5, 7, 2, bool)[None, None]
    keep[..., 2, :] = False
    check(model, {**operands(), "keep": keep})
    near = text.replace("n = Mul(c", "other = Abs(b) c2 = Sub(unit, other) n = Mul(c2")
    check(
        parse(near, inputs=f"{INPUTS}, bool[1, 1, S, T] keep", outputs="float[B, S, 24] y"),
        {**operands(), "keep": keep},
        0,
    )


def test_t5() -> None:
    text = f"{SCORES} bias = Add(position, mask) m = Add(s, bias) p = Softmax<axis = -1>(m) {RESULT}"
    model = parse(
        text, inputs=f"{INPUTS}, float[1, 3, S, T] position, float[B, 1, 1, T] mask", outputs="float[B, S, 24] y"
    )
    mask = np.where(padding(), LOWEST, 0).astype(F)[:, None, None]
    feeds = {**operands(), "position": normal(1, 3, 5, 7), "mask": mask}
    result = check(model, feeds)
    assert count(result, "Expand") == 0
    apart = text.replace("bias = Add(position, mask) m = Add(s, bias)", "n = Add(mask, s) m = Add(n, position)")
    inputs = [f"{INPUTS}, float[1, 3, S, T] position, float[B, 1, 1, T] mask"]
    result = check(parse(apart, inputs=inputs[0], outputs="float[B, S, 24] y"), feeds)
    assert (count(result, "Add"), count(result, "Expand")) == (1, 0)


@pytest.mark.parametrize("safe", [False, True])
def test_bias_of_each_head(safe: bool) -> None:
    softmax = SAFE if safe else "p = Softmax<axis = -1>(m)"
    text = f"{SCORES} m = Add(s, bias) {softmax} {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, float[B, 3, S, T] bias", outputs="float[B, S, 24] y")
    bias = normal(2, 3, 5, 7)
    if safe:
        bias[0, 1, 2] = bias[1, :, 3] = -np.inf
    check(model, {**operands(), "bias": bias})


def test_llama() -> None:
    """Rotary embeddings, and one head of k and v for all heads of q."""
    rotary = (
        "{x}a, {x}b = Split<axis = -1>({x}0, halves) {x}n = Neg({x}b) {x}r = Concat<axis = -1>({x}n, {x}a) "
        "{x}c = Mul({x}0, cos) {x}s = Mul({x}r, sin) {x}h = Add({x}c, {x}s)"
    )
    repeat = "{x}u = Unsqueeze({x}h, two) {x}e = Expand({x}u, repeats) {x}all = Reshape({x}e, heads)"
    text = (
        f"{SHAPES} {NUMBERS} halves = Constant<value_ints = [4, 4]>() two = Constant<value_ints = [2]>() "
        "hd1 = Constant<value_ints = [0, 0, 1, 8]>() repeats = Constant<value_ints = [1, 1, 3, 1, 1]>() "
        "heads = Constant<value_ints = [0, 3, -1, 8]>() q4 = Reshape(q, hd) q0 = Transpose<perm = [0, 2, 1, 3]>(q4) "
        "k4 = Reshape(k, hd1) k0 = Transpose<perm = [0, 2, 1, 3]>(k4) v4 = Reshape(v, hd1) "
        f"vh = Transpose<perm = [0, 2, 1, 3]>(v4) {rotary.format(x='q')} {rotary.format(x='k')} {repeat.format(x='k')} "
        f"{repeat.format(x='v')} kt = Transpose<perm = [0, 1, 3, 2]>(kall) s = MatMul(qh, kt) d = Div(s, root) "
        f"m = Add(d, mask) p = Softmax<axis = -1>(m) {RESULT.replace('vh', 'vall')}"
    )
    inputs = "float[B, S, 24] q, float[B, S, 8] k, float[B, S, 8] v, float[S, 8] cos, float[S, 8] sin"
    model = parse(text, inputs=f"{inputs}, float[B, 1, S, S] mask", outputs="float[B, S, 24] y")
    angles = np.arange(6)[:, None] / np.tile(np.arange(1, 5), 2)
    feeds = {"q": normal(2, 6, 24), "k": normal(2, 6, 8, seed=1), "v": normal(2, 6, 8, seed=2)}
    feeds |= {"cos": np.cos(angles).astype(F), "sin": np.sin(angles).astype(F)}
    mask = np.where(np.tri(6, dtype=bool), 0, LOWEST).astype(F) + np.zeros((2, 1, 1, 1), F)
    result = check(model, {**feeds, "mask": mask})
    assert count(result, "Transpose") == 4  # of q before and after, of k and of v


@pytest.mark.parametrize("s", [1, 5, 9])
def test_cross_attention(s: int) -> None:
    model = parse(f"{SCORES} p = Softmax<axis = -1>(s) {RESULT}", inputs=INPUTS, outputs="float[B, S, 24] y")
    result = check(model, operands(s=s))
    assert {node.op_type for node in result.graph.node} == {"MultiHeadAttention", "Reshape", "Constant"}


def test_values_of_another_size() -> None:
    text = (
        f"{SCORES} p = Softmax<axis = -1>(s) w = Constant<value_ints = [0, 0, 3, 4]>() vw = Reshape(u, w) "
        "vt = Transpose<perm = [0, 2, 1, 3]>(vw) o = MatMul(p, vt) ot = Transpose<perm = [0, 2, 1, 3]>(o) "
        "narrow = Constant<value_ints = [0, 0, 12]>() y = Reshape(ot, narrow)"
    )
    model = parse(text, inputs=f"{INPUTS}, float[B, T, 12] u", outputs="float[B, S, 12] y")
    check(model, {**operands(), "u": normal(2, 7, 12)})
    heads = "float[B, 3, S, 8] qh, float[B, 3, T, 8] kh, float[B, 3, T, 4] vh"  # which rank 4 cannot have
    text = "kt = Transpose<perm = [0, 1, 3, 2]>(kh) s = MatMul(qh, kt) p = Softmax<axis = -1>(s) y = MatMul(p, vh)"
    feeds = {"qh": normal(2, 3, 5, 8), "kh": normal(2, 3, 7, 8), "vh": normal(2, 3, 7, 4)}
    check(parse(text, inputs=heads, outputs="float[B, 3, S, 4] y"), feeds, largest=feeds["vh"])


@pytest.mark.parametrize("mask", [False, True])
def test_decoder_step(mask: bool) -> None:
    """One query; the key and the value with their past are outputs, too."""
    text = (
        f"{SHAPES} {NUMBERS} {SPLIT} kn = Transpose<perm = [0, 2, 1, 3]>(k4) kh = Concat<axis = 2>(past_k, kn) "
        "vall = Concat<axis = 2>(past_v, vh) kt = Transpose<perm = [0, 1, 3, 2]>(kh) s = MatMul(qh, kt) "
        f"d = Div(s, root) {'m = Add(d, mask)' if mask else 'm = Identity(d)'} p = Softmax<axis = -1>(m) "
        f"{RESULT.replace('vh', 'vall')}"
    )
    inputs = (
        "float[B, S, 24] q, float[B, S, 24] k, float[B, S, 24] v, float[B, 3, P, 8] past_k, float[B, 3, P, 8] past_v"
    )
    model = parse(
        text,
        inputs=f"{inputs}, float[B, 1, 1, A] mask" if mask else inputs,
        outputs="float[B, S, 24] y, float[B, 3, A, 8] kh, float[B, 3, A, 8] vall",
    )
    feeds = operands(s=1, t=1) | {"past_k": normal(2, 3, 9, 8, seed=4), "past_v": normal(2, 3, 9, 8, seed=5)}
    feeds |= {"mask": np.where(padding(2, 10), LOWEST, 0).astype(F)[:, None, None]} if mask else {}
    check(model, feeds, largest=np.concatenate([feeds["v"].ravel(), feeds["past_v"].ravel()]))


@pytest.mark.parametrize(
    "after",
    [
        "y = Identity(ot)",
        "flat = Constant<value_ints = [-1, 24]>() y = Reshape(ot, flat)",
        "parts = Constant<value_ints = [0, 0, 0, 2, 4]>() y = Reshape(ot, parts)",
    ],
)
def test_other_results(after: str) -> None:
    """The result is not joined to [B, S, 24]."""
    text = f"{SCORES} p = Softmax<axis = -1>(s) {RESULT.replace('y = Reshape(ot, rows)', after)}"
    check(parse(text, inputs=INPUTS, outputs="float[] y"), operands())


@pytest.mark.parametrize(
    ("dims", "shape"),
    [("M, N", (5, 7)), ("N", (7,)), ("1", (1,)), ("A, C, M, N", (2, 3, 5, 7)), ("3, 1, 1", (3, 1, 1))],
)
def test_unknown_lengths(dims: str, shape: tuple[int, ...]) -> None:
    """The mask is expanded where it is not known to have the right shape."""
    text = f"{SCORES} m = Add(s, mask) p = Softmax<axis = -1>(m) {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, float[{dims}] mask", outputs="float[B, S, 24] y")
    assert count(check(model, {**operands(), "mask": normal(*shape)}), "Expand") == 1


def test_nameless_lengths() -> None:
    """A Reshape by [0, 0, H, D] keeps the rows, also where inference does not know their number."""
    inputs = INPUTS.replace("B", "?").replace("S", "?").replace("T", "?")
    text = f"{SCORES} m = Where(mask, s, ninf) p = Softmax<axis = -1>(m) {RESULT}"
    model = parse(text, inputs=f"{inputs}, bool[?, 1, 1, ?] mask", outputs="float[?, ?, 24] y")
    result = check(model, {**operands(), "mask": ~padding()[:, None, None]})
    assert (count(result, "Transpose"), count(result, "Reshape"), count(result, "Expand")) == (0, 1, 1)


def test_rows_of_another_batch() -> None:
    """A Reshape that splits a batch is not the one that splits heads."""
    split = "two = Constant<value_ints = [2, 5, 3, 8]>() q4 = Reshape(q, two)"
    text = f"{SCORES.replace('q4 = Reshape(q, hd)', split)} p = Softmax<axis = -1>(s) {RESULT}"
    model = parse(text, inputs=INPUTS.replace("[B, S", "[1, 10"), outputs="float[] y")
    check(model, {**operands(), "q": normal(1, 10, 24)})


def test_one_query_for_a_batch() -> None:
    """MultiHeadAttention does not broadcast."""
    text = f"{SCORES} p = Softmax<axis = -1>(s) {RESULT}"
    model = parse(text, inputs=INPUTS.replace("[B, S", "[1, S"), outputs="float[] y")
    check(model, {**operands(), "q": normal(1, 5, 24)}, expected=0)


def test_one_query_and_one_head() -> None:
    """Batches take the place of heads; the last Reshape, which copies two lengths, reads a result of other ones."""
    text = (
        "hd = Constant<value_ints = [0, 0, 1, 8]>() q4 = Reshape(q, hd) qh = Transpose<perm = [0, 2, 1, 3]>(q4) "
        "k4 = Reshape(k, hd) kt = Transpose<perm = [0, 2, 3, 1]>(k4) v4 = Reshape(v, hd) "
        "vh = Transpose<perm = [0, 2, 1, 3]>(v4) s = MatMul(qh, kt) p = Softmax<axis = -1>(s) o = MatMul(p, vh) "
        "ot = Transpose<perm = [0, 2, 1, 3]>(o) rows = Constant<value_ints = [0, 0, 8]>() y = Reshape(ot, rows)"
    )
    model = parse(text, inputs="float[3, 1, 8] q, float[3, T, 8] k, float[3, T, 8] v", outputs="float[3, 1, 8] y")
    check(model, {name: each[:, :, :8] for name, each in operands(3, 1).items()})


@pytest.mark.parametrize("batches", ["ABB", "AAB", "2BB"])
def test_batches_of_other_names(batches: str) -> None:
    """One of them may be 1, which products repeat."""
    q, k, v = batches
    inputs = f"float[{q}, S, 24] q, float[{k}, T, 24] k, float[{v}, T, 24] v"
    model = parse(f"{SCORES} p = Softmax<axis = -1>(s) {RESULT}", inputs=inputs, outputs="float[] y")
    result = check(model, {**operands(), "k": normal(1, 7, 24), "v": normal(1, 7, 24)}, expected=0)
    (found,) = ort_dynq.rewrite(model, fuse=True).report.unconverted
    assert f"the lengths {min(q, v)}, {max(q, v)} in one place" in found.reason
    assert len(result.graph.node) == len(model.graph.node)


def layers(number: int, nodes: str, result: str) -> str:
    """Returns the nodes of several layers, each with the result of the last one as its query, key and value."""
    text, x = f"{SHAPES} {NUMBERS}", "x"
    for i in range(number):
        layer = f"{SPLIT} {KEY} s = MatMul(qh, kt) d = Div(s, root) {nodes} {result}"
        kept = ("hd", "rows", "nought", "ninf", "lowest", "root", "fourth", "mask", "Constant", "axis", "perm")
        words = layer.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
        names = [w for w in dict.fromkeys(words) if w.isidentifier() and w not in kept and w[0].islower()]
        new = {name: f"{name}_{i}" for name in names} | dict.fromkeys("qkv", x)
        text += " " + " ".join(new.get(word, word) for word in words)
        x = f"y_{i}"
    return f"{text} z = Identity({x})"


@pytest.mark.parametrize("inputs", ["float[B, 1, 1, S] mask", "float[1, 1, S, S] mask"])
def test_layers_share_masks(inputs: str) -> None:
    text = layers(3, f"m = Add(d, mask) {SAFE}", RESULT)
    model = parse(text, inputs=f"float[B, S, 24] x, {inputs}", outputs="float[B, S, 24] z")
    mask = np.where(padding(), -np.inf, 0).astype(F)[:, None, None]
    if "S, S" in inputs:
        mask = np.where(np.tri(7, 7, -1, bool), 0, -np.inf).astype(F)[None, None]
    x = normal(2, 7, 24)
    result = check(model, {"x": x, "mask": mask}, expected=3, largest=x)
    assert count(result, "Expand") == ("1, 1, S]" in inputs and "S, S" not in inputs)
    assert (count(result, "ReduceMax"), count(result, "Mul"), count(result, "Cast")) == (1, 3, 1)


def test_layers_share_masks_of_where() -> None:
    model = parse(
        layers(2, "m = Where(mask, d, lowest) p = Softmax<axis = -1>(m)", RESULT),
        inputs="float[B, S, 24] x, bool[B, 1, 1, S] mask",
        outputs="float[B, S, 24] z",
    )
    x = normal(2, 7, 24)
    result = check(model, {"x": x, "mask": ~padding()[:, None, None]}, expected=2, largest=x)
    assert (count(result, "Where"), count(result, "Expand")) == (1, 1)


def test_one_mask_for_two_lengths() -> None:
    """Layers with other numbers of queries do not share an expanded mask."""
    text = f"{SCORES} m = Add(s, mask) p = Softmax<axis = -1>(m) {RESULT}"
    second = (
        "r4 = Reshape(r, hd) rh = Transpose<perm = [0, 2, 1, 3]>(r4) s2 = MatMul(rh, kt) m2 = Add(s2, mask) "
        "p2 = Softmax<axis = -1>(m2) o2 = MatMul(p2, vh) ot2 = Transpose<perm = [0, 2, 1, 3]>(o2) "
        "y2 = Reshape(ot2, rows)"
    )
    inputs = f"{INPUTS}, float[B, R, 24] r, float[B, 1, 1, T] mask"
    model = parse(f"{text} {second}", inputs=inputs, outputs="float[B, S, 24] y, float[B, R, 24] y2")
    mask = np.where(padding(), LOWEST, 0).astype(F)[:, None, None]
    result = check(model, {**operands(), "r": normal(2, 3, 24), "mask": mask}, expected=2)
    assert count(result, "Expand") == 2


@pytest.mark.parametrize("after", ["d = Dropout(p1)", "d = Identity(p1)", "d = Cast<to = 1>(p1)"])
def test_nodes_after_softmax(after: str) -> None:
    text = f"{SCORES} p1 = Softmax<axis = -1>(s) {after} p = Identity(d) {RESULT}"
    check(parse(text, inputs=INPUTS, outputs="float[B, S, 24] y"), operands())


def test_scale_of_run_time() -> None:
    """A scalar that is computed at run time multiplies q, also where it divides k."""
    scores = f"{SHAPES} {NUMBERS} {SPLIT} {KEY_TWICE} kd = Div(kt, a) s = MatMul(qh, kd) d = Mul(b, s)"
    text = f"{scores} p = Softmax(d) {RESULT}"
    model = parse(text, inputs=f"{INPUTS}, float[1] a, float b", outputs="float[B, S, 24] y")
    result = check(model, {**operands(), "a": np.array([4], F), "b": np.array(3, F)})
    assert (count(result, "Mul"), count(result, "Div")) == (2, 1)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("c = Gather(shape, index)", 1), ("after = Add(first, unit) c = Slice(shape, first, after)", 0)],
)
def test_scale_from_an_unknown_place(chosen: str, expected: int) -> None:
    """The index is a length that is known at run time only; the result of Slice may have any number of elements."""
    scale = (
        "shape = Shape(qh) first = Shape<start = 0, end = 1>(q) index = Squeeze(first) "
        f"unit = Constant<value_ints = [1]>() {chosen} length = Cast<to = 1>(c)"
    )
    text = f"{SCORES} {scale} d = Div(s, length) p = Softmax(d) {RESULT}"
    check(parse(text, inputs=INPUTS, outputs="float[B, S, 24] y"), operands(), expected)


def test_dequantization_stays() -> None:
    """A scalar that multiplies q at run time may be the scale of its codes; rules for quantized models look for it."""
    scores = f"{SHAPES} {NUMBERS} {SPLIT} {KEY} qs = Mul(qh, a) s = MatMul(qs, kt)"
    model = parse(f"{scores} p = Softmax<axis = -1>(s) {RESULT}", inputs=f"{INPUTS}, float a", outputs="float[] y")
    result = check(model, {**operands(), "a": np.array(0.5, F)})
    assert [list(node.input) for node in result.graph.node if node.op_type == "Mul"] == [["qh", "a"]]


@pytest.mark.parametrize("operand", ["q", "v"])
@pytest.mark.parametrize("mask", ["m = Add(s, mask) p = Softmax<axis = -1>(m)", f"m = Add(s, mask) {SAFE}"])
def test_nan_stays(operand: str, mask: str) -> None:
    """NaN in v stays also in rows without keys: the probability 0 times NaN. The safe softmax hides NaN in q."""
    model = parse(f"{SCORES} {mask} {RESULT}", inputs=f"{INPUTS}, float[B, 1, S, T] mask", outputs="float[B, S, 24] y")
    feeds = operands()
    feeds[operand][0, 2, 9] = np.nan
    feeds["mask"] = np.where(padding(), -np.inf, 0).astype(F)[:, None, None] + np.zeros((1, 1, 5, 1), F)
    feeds["mask"][0, 0, 3] = -np.inf
    result = rewritten(model)
    assert count(result, "MultiHeadAttention") == 1
    before, after = (stock_session(each).run(None, feeds)[0] for each in (model, result))
    assert np.isnan(before).any() == (operand == "v" or mask != f"m = Add(s, mask) {SAFE}")
    assert np.isnan(after).any()
    assert np.isnan(after[np.isnan(before)]).all()
    same = ~np.isnan(after)
    np.testing.assert_allclose(after[same], before[same], rtol=0, atol=TOLERANCE * np.nanmax(np.abs(feeds["v"])))


def test_subgraph() -> None:
    body = f"{SCORES} p = Softmax<axis = -1>(s) {RESULT}"
    text = (
        f"z = If (c) <then_branch = yes () => (float[B, S, 24] y) {{ {body} }}, "
        "else_branch = no () => (float[B, S, 24] e) { e = Identity(q) }>"
    )
    model = parse(text, inputs=f"{INPUTS}, bool c", outputs="float[B, S, 24] z")
    check(model, {**operands(), "c": np.array(True)})


SPELLINGS = {
    "scaled after the mask": f"{SCORES} m = Add(s, mask) d = Div(m, root) p = Softmax(d) {RESULT}",
    "scalars of heads": f"{SCORES} d = Mul(s, vector) m = Sub(d, mask) p = Softmax<axis = -1>(m) {RESULT}",
    "scalars of q's heads": f"{SHAPES} {NUMBERS} {SPLIT} {KEY} qs = Mul(qh, vector) s = MatMul(qs, kt) "
    f"m = Add(mask, s) d = Mul(m, root) p = Softmax<axis = -1>(d) {RESULT}",
    "a finite mask": f"{SCORES} few = Constant<value = float {{-10000}}>() c = Less(mask, nought) m = Where(c, few, s) "
    f"p = Softmax<axis = -1>(m) {RESULT}",
    "a floor": f"{SCORES} m = Add(s, mask) d = Max(m, lowest) p = Softmax<axis = -1>(d) {RESULT}",
    "probabilities second": f"{SCORES} p = Softmax<axis = -1>(s) vt = Transpose<perm = [0, 2, 3, 1]>(v4) "
    "pt = Transpose<perm = [0, 1, 3, 2]>(p) y = MatMul(vt, pt)",
    "query second": f"{SHAPES} {NUMBERS} {SPLIT} kh = Transpose<perm = [0, 2, 1, 3]>(k4) "
    "qt = Transpose<perm = [0, 2, 3, 1]>(q4) st = MatMul(kh, qt) s = Transpose<perm = [0, 1, 3, 2]>(st) "
    f"p = Softmax<axis = -1>(s) {RESULT}",
    "heads that broadcast": f"{SHAPES} {NUMBERS} {SPLIT} kh = Transpose<perm = [0, 2, 1, 3]>(k4) "
    "first = Constant<value_ints = [0]>() k1 = Gather<axis = 1>(kh, first) kt = Transpose<perm = [0, 1, 3, 2]>(k1) "
    f"s = MatMul(qh, kt) p = Softmax<axis = -1>(s) {RESULT}",
    "dynamo's key": f"{SHAPES} {NUMBERS} {SPLIT} kh = Transpose<perm = [0, 2, 1, 3]>(k4) shape = Shape(kh) "
    "any = Constant<value_ints = [-1]>() t = Shape<start = 2, end = 3>(kh) d = Shape<start = 3, end = 4>(kh) "
    "lead = Shape<start = 0, end = 2>(kh) rank3 = Concat<axis = 0>(any, t, d) k3 = Reshape(kh, rank3) "
    "k3t = Transpose<perm = [0, 2, 1]>(k3) rank4 = Concat<axis = 0>(lead, d, t) kt = Reshape(k3t, rank4) "
    f"qs = Mul(qh, fourth) ks = Mul(kt, fourth) s = MatMul(qs, ks) m = Add(s, mask) p = Softmax<axis = -1>(m) {RESULT}",
    "heads as -1": f"{SCORES.replace('0, 0, 3, 8', '0, 0, -1, 8')} m = Add(s, mask) p = Softmax(m) {RESULT}",
    "rank 3": f"{SHAPES} {NUMBERS} {SPLIT} kh = Transpose<perm = [0, 2, 1, 3]>(k4) "
    "qb = Shape<start = 0, end = 1>(q) qs0 = Shape<start = 1, end = 2>(q) kt0 = Shape<start = 1, end = 2>(k) "
    "any = Constant<value_ints = [-1]>() size = Constant<value_ints = [8]>() "
    "qshape = Concat<axis = 0>(any, qs0, size) kshape = Concat<axis = 0>(any, kt0, size) q3 = Reshape(qh, qshape) "
    "k3 = Reshape(kh, kshape) v3 = Reshape(vh, kshape) kt = Transpose<perm = [0, 2, 1]>(k3) s = MatMul(q3, kt) "
    "d = Div(s, root) p = Softmax<axis = -1>(d) o = MatMul(p, v3) three = Constant<value_ints = [3]>() "
    "oshape = Concat<axis = 0>(qb, three, qs0, size) o4 = Reshape(o, oshape) "
    "ot = Transpose<perm = [0, 2, 1, 3]>(o4) y = Reshape(ot, rows)",
    "Einsum with dots": f"{SHAPES} {NUMBERS} q4 = Reshape(q, hd) k4 = Reshape(k, hd) v4 = Reshape(v, hd) "
    's = Einsum<equation = "...qhd,...khd->...hqk">(q4, k4) d = Div(s, root) p = Softmax<axis = -1>(d) '
    'o = Einsum<equation = "...hqk, ...khd -> ...qhd">(p, v4) y = Reshape(o, rows)',
    "Einsum": f"{SHAPES} {NUMBERS} q4 = Reshape(q, hd) k4 = Reshape(k, hd) v4 = Reshape(v, hd) "
    's = Einsum<equation = "bnhd,bmhd->bhnm">(q4, k4) d = Div(s, root) m = Add(d, mask) p = Softmax<axis = -1>(m) '
    'o = Einsum<equation = "bhnm, bmhd -> bnhd">(p, v4) y = Reshape(o, rows)',
    "softmax by hand": f"{SCORES} last = Constant<value_ints = [-1]>() top = ReduceMax<keepdims = 1>(s, last) "
    f"b = Sub(s, top) e = Exp(b) sum = ReduceSum<keepdims = 1>(e, last) p = Div(e, sum) {RESULT}",
    "Keras by tf2onnx": f"{SHAPES} {NUMBERS} q4 = Reshape(q, hd) k4 = Reshape(k, hd) v4 = Reshape(v, hd) "
    "i1 = Constant<value_ints = [1]>() i2 = Constant<value_ints = [2]>() i3 = Constant<value_ints = [3]>() "
    "i4 = Constant<value_ints = [4]>() lead = Constant<value_ints = [0, 1]>() any = Constant<value_ints = [-1]>() "
    + "".join(
        f"{x}5 = Unsqueeze({x}4, {axis}) {x}t = Transpose<perm = {perm}>({x}5) {x}s = Shape({x}t) "
        f"{x}l = Gather({x}s, lead) {x}n = ReduceProd<keepdims = 1>({x}l) {x}d = Gather({x}s, i4) "
        f"{x}r = Concat<axis = 0>({x}n, any, {x}d) {x}f = Reshape({x}t, {x}r) "
        for x, axis, perm in (
            ("q", "i3", "[0, 2, 1, 3, 4]"),
            ("k", "i1", "[0, 3, 1, 2, 4]"),
            ("v", "i2", "[0, 3, 2, 4, 1]"),
        )
    )
    + "kx = Transpose<perm = [0, 2, 1]>(kf) m3 = MatMul(qf, kx) largest = Max(ql, kl) rows_q = Gather(qs, i2) "
    "rows_k = Gather(ks, i3) shape5 = Concat<axis = 0>(largest, rows_q, rows_k, i1) m5 = Reshape(m3, shape5) "
    "m4 = Squeeze(m5, i4) d = Mul(m4, fourth) p = Softmax<axis = -1>(d) p5 = Unsqueeze(p, i3) ps = Shape(p5) "
    "pl = Gather(ps, lead) pn = ReduceProd<keepdims = 1>(pl) pd = Gather(ps, i4) pr = Concat<axis = 0>(pn, any, pd) "
    "pf = Reshape(p5, pr) vx = Transpose<perm = [0, 2, 1]>(vf) o3 = MatMul(pf, vx) big = Max(pl, vl) "
    "rows_p = Gather(ps, i2) size_v = Gather(vs, i3) o_shape = Concat<axis = 0>(big, rows_p, size_v, i1) "
    "o5 = Reshape(o3, o_shape) o = Squeeze(o5, i4) ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, rows)",
    "shapes are read": f"{SCORES} z = Shape(s) p = Softmax<axis = -1>(s) zp = Shape<start = 1, end = -1>(p) {RESULT}",
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings(text: str) -> None:
    """Each form is one operator. It copies what has heads before tokens; the text copies some in vain."""
    outputs = "float[] y, int64[] z, int64[] zp" if "zp =" in text else "float[] y"
    model = parse(text, inputs=f"{INPUTS}, float[B, 1, 1, T] mask, float[3, 1, 1] vector", outputs=outputs, opset=18)
    mask = np.where(padding(), LOWEST if "Max(" in text else -3, 0).astype(F)[:, None, None]
    feeds = {**operands(), "mask": mask, "vector": np.arange(1, 4, dtype=F).reshape(3, 1, 1)}
    result = check(model, feeds)
    copies = {"scalars of q's heads": 2, "probabilities second": 2, "query second": 1, "heads that broadcast": 1}
    assert count(result, "Transpose") == next((n for name, n in copies.items() if SPELLINGS[name] == text), 0)


MISSES = {
    "probabilities used elsewhere": f"{SCORES} p = Softmax<axis = -1>(s) {RESULT} z = Identity(p)",
    "scores used elsewhere": f"{SCORES} p = Softmax<axis = -1>(s) {RESULT} z = Identity(s)",
    "masked scores used elsewhere": f"{SCORES} m = Add(s, mask) p = Softmax<axis = -1>(m) {RESULT} z = Neg(m)",
    "another axis": f"{SCORES} p = Softmax<axis = 2>(s) {RESULT} z = Identity(y)",
    "scores and their square": f"{SCORES} d = Mul(s, s) p = Softmax<axis = -1>(d) {RESULT} z = Neg(y)",
    "v times probabilities": f"{SCORES} p = Softmax<axis = -1>(s) vt = Transpose<perm = [0, 2, 3, 1]>(v4) "
    "y = MatMul(vt, p) z = Neg(y)",
    "safe with another number": f"{SCORES} p0 = Softmax(s) n = IsNaN(p0) p = Where(n, root, p0) {RESULT} z = Neg(y)",
    "scores twice": f"{SCORES} m = Add(s, s) p = Softmax<axis = -1>(m) {RESULT} z = Neg(y)",
    "scores are an output": f"{SHAPES} {NUMBERS} {SPLIT} {KEY} z = MatMul(qh, kt) p = Softmax<axis = -1>(z) {RESULT}",
    "probabilities are an output": f"{SCORES} z = Softmax<axis = -1>(s) {RESULT.replace('(p,', '(z,')}",
    "no scale": f"{SCORES} d = Mul(s, nought) p = Softmax<axis = -1>(d) {RESULT} z = Neg(y)",
}


@pytest.mark.parametrize("text", MISSES.values(), ids=MISSES)
def test_near_misses(text: str) -> None:
    is_square = text == MISSES["v times probabilities"]
    inputs = INPUTS.replace("S", "8").replace("T", "8") if is_square else INPUTS
    model = parse(
        text, inputs=f"{inputs}, float[B, 1, 1, T] mask, float[3, 1, 1] vector", outputs="float[] y, float[] z"
    )
    t = 8 if is_square else 7
    feeds = operands(s=8 if is_square else 5, t=t) | {"vector": np.arange(1, 4, dtype=F).reshape(3, 1, 1)}
    result = rewritten(model)
    assert count(result, "MultiHeadAttention") == 0
    assert count(result, "Softmax") == 1
    stock_session(model).run(None, {**feeds, "mask": normal(2, 1, 1, t)})  # the model is valid


def test_float16_stays() -> None:
    text = f"{SCORES} p = Softmax<axis = -1>(s) {RESULT}"
    model = parse(text, inputs=INPUTS.replace("float", "float16"), outputs="float16[B, S, 24] y")
    assert count(rewritten(model), "MultiHeadAttention") == 0


def test_only_if_fusing() -> None:
    model = ir.from_proto(parse(f"{SCORES} p = Softmax<axis = -1>(s) {RESULT}", inputs=INPUTS))
    assert not convert(model, ((attention.RULE,),)).rewritten


PLAIN = "p = Softmax<axis = -1>(m)"
BACK = "Transpose<perm = [0, 3, 1, 2]>"


@pytest.mark.parametrize(
    ("nodes", "length", "is_faster"),
    [
        (f"m = Identity(s) {PLAIN}", "S", True),
        (f"m = Identity(s) {PLAIN}", "4", True),
        (f"m = Add(s, mask) {PLAIN}", "S", False),
        (f"m = Add(s, mask) {SAFE}", "S", True),
        (f"m = Add(s, mask) {SAFE}", "64", True),
        (f"m = Add(s, mask) {SAFE}", "63", False),
        (f"n = Add(s, mask) m = Add(n, mask) {PLAIN}", "S", True),
        (f"c = Less(mask, nought) m = Where(c, ninf, s) {PLAIN}", "S", True),
    ],
)
def test_only_if_faster(nodes: str, length: str, is_faster: bool) -> None:
    """One Add costs as much as the bias of MultiHeadAttention; see the measurements in attention.py."""
    inputs = f"{INPUTS}, float[B, 1, 1, T] mask".replace("S", length).replace("T", length)
    model = parse(f"{SCORES} {nodes} {RESULT}", inputs=inputs, outputs=f"float[B, {length}, 24] y")
    assert count(rewritten(model, always=False), "MultiHeadAttention") == is_faster


@pytest.mark.parametrize(
    "node",
    [
        "Attention<q_num_heads = 4, kv_num_heads = 4>(q, q, q)",
        "com.microsoft.MultiHeadAttention<num_heads = 4>(q, q, q)",
        "com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 4>(q, q, q, , , last, total)",
        "com.microsoft.Attention<num_heads = 4>(q, w, b)",
    ],
)
def test_operators_are_in_the_report(node: str) -> None:
    """Operators of the model stay, and the report says so; those that the rule has made are not in it."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        g (float[B, S, 32] q, int32[B] last, int32 total, float[32, 96] w, float[96] b) => (float[B, S, 32] y)
        {{ y = {node} }}"""
    )
    (found,) = ort_dynq.rewrite(model, fuse=True).report.unconverted
    assert found.reason.startswith("attention of floats: it stays ONNX Runtime's operator")
    assert not ort_dynq.rewrite(model).report.unconverted
    made = rewritten(parse(f"{SCORES} m = Identity(s) {PLAIN} {RESULT}", inputs=INPUTS), always=False)
    assert count(made, "MultiHeadAttention") == 1
    assert not ort_dynq.rewrite(made, fuse=True).report.unconverted


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (f"t = Abs(s) m = Mul(t, t) {PLAIN}", "no operator computes what t makes of the scores"),
        ("n = Softmax<axis = -1>(s) p = Div(n, n)", "n are weights of Softmax that the model also reads elsewhere"),
        (
            "n = Softmax<axis = -1>(s) p = Abs(n)",
            "p are weights of Softmax that the model also reads elsewhere, or what",
        ),
        (
            "m = Concat<axis = -1>(s, s) n = Softmax<axis = -1>(m) p = Slice(n, i0, i9, i3)",
            "what m makes of the scores",
        ),
        (
            f"t = Transpose<perm = [0, 2, 3, 1]>(s) u = MatMul(t, mix) m = {BACK}(u) {PLAIN}",
            "what u makes of the scores",
        ),
        (f"n = Softmax<axis = -1>(s) t = Transpose<perm = [0, 2, 3, 1]>(n) u = MatMul(t, mix) p = {BACK}(u)", "u are"),
        ("p = Sigmoid(s)", "no Softmax over the keys makes its weights p of the scores"),
        (
            "e = Exp(s) l = ReduceSum(e, last) n = Add(l, e) p = Div(e, n)",
            "no Softmax over the keys makes its weights p",
        ),
        ("p = Softmax<axis = -2>(s)", "no Softmax over the keys makes its weights p"),
    ],
)
def test_value_where_the_form_is_lost(nodes: str, reason: str) -> None:
    constants = (
        "i0 = Constant<value_ints = [0]>() i9 = Constant<value_ints = [9]>() i3 = Constant<value_ints = [3]>() "
        "last = Constant<value_ints = [-1]>() mix = Constant<value = float[3, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9}>()"
    )
    model = parse(f"{constants} {SCORES} {nodes} {RESULT}", inputs=INPUTS)
    (found,) = ort_dynq.rewrite(model, fuse=True).report.unconverted
    assert found.reason.startswith("attention stays in float: ")
    assert reason in found.reason
