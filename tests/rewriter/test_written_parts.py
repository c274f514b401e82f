"""Parts of a tensor that a model writes at their indices, as torch does for ``x[..., a:b] = y``."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Array, assert_same, stock_session
from product_models import F, model_of
from rewriting import check, check_products, products, rows

from ort_dynq.rewriter import rewrite

K, N, CUT = 64, 24, 48
RNG = np.random.default_rng(3)
DATA = {"x": rows((2, 9, K), seed=4)}
FINITE = {"x": DATA["x"][:, [0, 1, 2, 3, 4, 6, 7]]}
CODES: Array = np.concatenate([np.full((1, N), 127), RNG.integers(-127, 128, (K - 1, N))])
WEIGHTS: dict[str, Array] = {
    "w": (CODES * F(0.01)).astype(F),
    "zero64": np.array(0),
    "one64": np.array(1),
    "axis2": np.array(2),
    "axis1": np.array(1),
    "start": np.array([0]),
    "cut": np.array([CUT]),
    "wrong": np.array([CUT - 16]),
    "end": np.array([2**62]),
    "three": np.array([3]),
    "along2": np.array([2]),
    "along1": np.array([1]),
    "column": np.array([-1, 1]),
    "third": np.array([-1, 1, 1]),
    "part_of_row": np.arange(CUT, K)[:, None],
    "some": np.array([*range(CUT, K - 1), 0])[:, None],
}


def quantized(x: str, y: str, axes: str = "last") -> str:
    """Returns nodes that quantize x to codes of each row, or of each sample, and dequantize them."""
    return (
        f"{y}_a = Abs({x}) {y}_m = ReduceMax<keepdims = 1>({y}_a, {axes}) {y}_n = Max({y}_m, eps)"
        f" {y}_s = Div({y}_n, c127) {y}_t = Div({x}, {y}_s) {y}_r = Round({y}_t) {y}_c = Clip({y}_r, low, high)"
        f" {y} = Mul({y}_c, {y}_s)\n"
    )


def indices(axis: int, start: str, end: str, data: str = "x") -> str:
    """Returns nodes that compute the indices of a part of an axis from its length."""
    return (
        f"shape = Shape({data}) length = Gather(shape, axis{axis}) all = Range(zero64, length, one64)"
        f" part = Slice(all, {start}, {end}, start)\n"
    )


TURNED = {1: "<perm = [1, 0, 2]>", 2: "<perm = [2, 1, 0]>"}


def written(part: str, axis: int, at: str) -> str:
    """Returns nodes that write a part of x at indices of an axis, as torch's newer exporter does."""
    turn = TURNED[axis]
    return (
        f"pt = Transpose{turn}({part}) xt = Transpose{turn}(x) wt = ScatterND(xt, {at}, pt) x2 = Transpose{turn}(wt)\n"
    )


LOW = f"x_low = Slice(x, start, cut, along2)\n{quantized('x_low', 'low_q')}"
HIGH = f"x_high = Slice(x, cut, end, along2)\n{quantized('x_high', 'high_q')}"
NEWER = indices(2, "cut", "end") + "at = Reshape(part, column)\n" + written("high_q", 2, "at")
JOINED = (  # of TorchScript: the indices of all three axes, and of the part along the last one
    indices(2, "cut", "end")
    + "length0 = Gather(shape, zero64) all0 = Range(zero64, length0, one64) i0 = Reshape(all0, third)\n"
    "length1 = Gather(shape, axis1) all1 = Range(zero64, length1, one64) i1 = Reshape(all1, column)\n"
    "i01 = Add(i0, i1) i012 = Add(i01, part) whole = Shape(i012)\n"
    + "".join(
        f"e{i} = Expand({each}, whole) u{i} = Unsqueeze(e{i}, last)\n" for i, each in enumerate(("i0", "i1", "part"))
    )
    + "at = Concat<axis = -1>(u0, u1, u2)\n shape_q = Shape(high_q) wide_q = Expand(high_q, shape_q)\n"
    "new = Reshape(wide_q, whole) x2 = ScatterND(x, at, new)\n"
)
REST = "x2_low = Slice(x2, start, cut, along2)\n" + quantized("x2_low", "low_q")
SECOND = (
    "shape2 = Shape(x2) length2 = Gather(shape2, axis2) all2 = Range(zero64, length2, one64)"
    " part2 = Slice(all2, start, cut, start) at2 = Unsqueeze(part2, last)"
    " pt2 = Transpose<perm = [2, 1, 0]>(low_q) xt2 = Transpose<perm = [2, 1, 0]>(x2) wt2 = ScatterND(xt2, at2, pt2)"
    " x3 = Transpose<perm = [2, 1, 0]>(wt2) y = MatMul(x3, w)"
)
FORMS = {
    "newer exporter": HIGH + NEWER + REST + SECOND,
    "TorchScript": HIGH + JOINED + REST + SECOND,
    "constant indices": HIGH + written("high_q", 2, "part_of_row") + LOW + SECOND,
    "rows": f"x_tail = Slice(x, three, end, along1)\n{quantized('x_tail', 'tail_q', 'rows_of_sample')}"
    + indices(1, "three", "end")
    + "at = Unsqueeze(part, last)\n"
    + written("tail_q", 1, "at")
    + f"x_head = Slice(x, start, three, along1)\n{quantized('x_head', 'head_q', 'rows_of_sample')}"
    "all2 = Range(zero64, length, one64) part2 = Slice(all2, start, three, start) at2 = Unsqueeze(part2, last)"
    " pt2 = Transpose<perm = [1, 0, 2]>(head_q) xt2 = Transpose<perm = [1, 0, 2]>(x2) wt2 = ScatterND(xt2, at2, pt2)"
    " x3 = Transpose<perm = [1, 0, 2]>(wt2) y = MatMul(x3, w)",
}
MORE = {**WEIGHTS, "rows_of_sample": np.array([1, 2])}


@pytest.mark.parametrize("form", FORMS)
def test_parts(form: str) -> None:
    """Parts that were quantized alone are one activation: a product of integers, and exact results do not change."""
    inputs = f"float[B, 9, {K}] x" if form == "rows" else f"float[B, M, {K}] x"
    model = model_of(FORMS[form], MORE, inputs=inputs)
    assert not products(check(model, DATA, exact=True))
    finite = {"x": np.concatenate([FINITE["x"], FINITE["x"][:, :2]], 1)} if form == "rows" else FINITE
    check_products(model, finite)
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    assert not {"ScatterND", "Range", "MatMul"} & {node.op_type for node in result.to_proto().graph.node}


WHOLE = HIGH + NEWER + "y = MatMul(x2, w)"
NEAR_MISSES = {
    "indices in another order": WHOLE.replace("Reshape(part, column)", "Identity(some)"),
    "a sum": WHOLE.replace("ScatterND(", 'ScatterND<reduction = "add">('),
    "steps": WHOLE.replace("(all, cut, end, start)", "(all, wrong, end, start, along2)"),
    "a range that begins anywhere": WHOLE.replace("Range(zero64,", "Range(given,").replace("(all, cut", "(all, wrong"),
    "a length that is an input": WHOLE.replace("Range(zero64, length", "Range(zero64, given"),
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_near_misses(miss: str) -> None:
    """Whatever else is written stays."""
    is_input = "given" in NEAR_MISSES[miss]
    model = model_of(NEAR_MISSES[miss], MORE, inputs=f"float[B, M, {K}] x{', int64 given' * is_input}")
    first = 16 if "begins" in miss else K
    check(model, {**FINITE, **({"given": np.array(first)} if is_input else {})})
    assert "ScatterND" in {node.op_type for node in rewrite(model).to_proto().graph.node}


def test_part_that_stays() -> None:
    """A part that is written, read on both ways: all readers have the same elements."""
    body = HIGH + NEWER + "z = Neg(wt) y = Relu(x2)"
    model = model_of(body, MORE, inputs=f"float[B, M, {K}] x", outputs="float[] y, float[] z")
    result = rewrite(model)
    expected, got = (stock_session(each).run(None, FINITE) for each in (model, result.to_proto()))
    for a, b in zip(expected, got, strict=True):
        assert_same(a, b)
