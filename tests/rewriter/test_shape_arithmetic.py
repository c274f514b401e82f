"""Lengths that exporters compute from shapes, in the ways of torch: inference and the blocks of rows know them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import Array, stock_session
from product_models import F, model_of
from rewriting import check, check_products, products

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.analysis.inference import Facts
from ort_dynq.rewriter.analysis.shape_arithmetic import known_lengths

K, N = 96, 64
CODES: Array = np.concatenate([np.full((1, N), 127), np.random.default_rng(1).integers(-127, 128, (K - 1, N))])
CONSTANTS: dict[str, Array] = {
    "w": CODES.astype(F) * F(0.01),
    "one": np.array([-1]),
    "n0": np.array([0]),
    "n1": np.array([1]),
    "n2": np.array([2]),
    "minus": np.array(-1),
    "rank": np.array(3),
    "size": np.array(32),
    "blocks": np.array([-1, 32]),
    "end": np.array([2**62]),
    "most": np.array(64),
    "i2": np.array(2),
    "z4": np.array([4]),
    "back": np.array([-(2**62)]),
    "pairs": np.array([-1, 2]),
    "flat": np.array([-1]),
}
UNFLATTEN = """axis = Mod(minus, rank)  a1 = Reshape(axis, n1)  s = Shape(x)  lead = Slice(s, n0, a1)
    a2 = Add(a1, n1)  rest = Slice(s, a2, end)  shape = Concat<axis = 0>(lead, blocks, rest)  h = Reshape(x, shape)\n"""
DIVIDED = """s = Shape(x)  lead = Slice(s, n0, n2)  width = Gather<axis = 0>(s, i2)  c = Div(width, size)
    c0 = Cast<to = 7>(c)  c1 = Unsqueeze(c0, n0)  b1 = Unsqueeze(size, n0)  flats = Concat<axis = 0>(one, c1, b1)
    first = Slice(s, n0, n1)  shape = Concat<axis = 0>(first, flats)  h = Reshape(x, shape)\n"""
PADDED = """s = Shape(x)  k = Gather<axis = 0>(s, i2)  m = Neg(k)  more = Mod(m, size)  p0 = Unsqueeze(more, n0)
    p = Concat<axis = 0>(n0, p0)  zeros = ConstantOfShape<value = int64[1] {0}>(z4)
    all = Concat<axis = 0>(p, zeros)  table = Reshape(all, pairs)  turned = Slice(table, one, back, n0, one)
    sides = Transpose<perm = [1, 0]>(turned)  pads = Reshape(sides, flat)  padded = Pad(x, pads)
    s2 = Shape(padded)  lead = Slice(s2, n0, n2)  shape = Concat<axis = 0>(lead, blocks)
    h = Reshape(padded, shape)\n"""
QUANTIZED = """a = Abs(h)  r0 = ReduceMax<keepdims = 1>(a, one)  r = Clip(r0, eps)  q0 = Div(r, c127)  t = Div(h, q0)
    n = Round(t)  y1 = Mul(n, q0)  hs = Shape(y1)  front = Slice(hs, n0, n2)  new = Concat<axis = 0>(front, one)
    y0 = Reshape(y1, new)\n"""
FORMS = {
    "unflatten": UNFLATTEN + QUANTIZED + "y = MatMul(y0, w)",
    "divided": DIVIDED + QUANTIZED + "y = MatMul(y0, w)",
    "padded": PADDED + QUANTIZED + "k1 = Unsqueeze(k, n0)  cut = Slice(y0, n0, k1, n2, n1)  y = MatMul(cut, w)",
    "padded to more": PADDED.replace("Mod(m, size)", "Mod(m, most)")
    + QUANTIZED
    + "k1 = Unsqueeze(k, n0)  cut = Slice(y0, n0, k1, n2, n1)  y = MatMul(cut, w)",
}


def data() -> Array:
    return np.random.default_rng(2).normal(size=(2, 3, K)).astype(F) * np.geomspace(1, 1e3, K, dtype=F)


@pytest.mark.parametrize("form", FORMS)
def test_lengths_are_those_of_a_run(form: str) -> None:
    model = model_of(FORMS[form], CONSTANTS, inputs=f"float[B, 3, {K}] x")
    lengths = {}
    with Facts(ir.from_proto(model)) as facts:
        for node in facts.model.graph:
            for value in node.outputs:
                lengths[value.name or ""] = list(value.shape) if value.shape is not None else []
    typed = onnx.shape_inference.infer_shapes(model).graph.value_info
    shown = [each for each in typed if lengths.get(each.name)]
    for each in shown:
        each.type.tensor_type.ClearField("shape")
    model.graph.output.extend(shown)
    for output, result in zip(model.graph.output, stock_session(model).run(None, {"x": data()}), strict=True):
        known = lengths[output.name]
        assert len(known) == result.ndim, output.name
        assert all(not isinstance(mine, int) or mine == its for mine, its in zip(known, result.shape, strict=True))
    assert lengths["h"][-2:] == [4 if form == "padded to more" else 3, 32]
    assert lengths["y"][1:] == [3, N]


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_computed_shapes(form: str) -> None:
    model = model_of(FORMS[form], CONSTANTS, inputs=f"float[B, T, {K}] x")
    check(model, {"x": data()}, exact=True)
    check_products(model, {"x": data()})
    assert products(rewrite(model).report) == ["QuantizedMatMul"]


@pytest.mark.parametrize(("start", "is_whole"), [(0, True), (32, True), (16, False)])
def test_slices_of_blocks(start: int, is_whole: bool) -> None:
    """A Slice that cuts a block has rows with scales that belong to unequal parts."""
    constants = {**CONSTANTS, "from": np.array([start]), "to": np.array([start + 64]), "w": CONSTANTS["w"][:64]}
    body = UNFLATTEN + QUANTIZED + "cut = Slice(y0, from, to, n2, n1)  y = MatMul(cut, w)"
    model = model_of(body, constants, inputs=f"float[B, T, {K}] x")
    check(model, {"x": data()}, exact=True)
    check_products(model, {"x": data()})
    assert products(rewrite(model).report) == ["QuantizedMatMul"] * is_whole


ROWS = """s = Shape(x)  whole = ReduceProd<keepdims = 0>(s)  c = Div(whole, length)  c0 = Unsqueeze(c, n0)
    counts = Concat<axis = 0>(c0, one)  h = Reshape(x, counts)  a = Abs(h)  r0 = ReduceMax<keepdims = 0>(a, one)
    r = Max(r0, eps)  r1 = Reshape(r, counts)  q0 = Div(r1, c127)  t = Div(h, q0)  n = Round(t)
    k = Clip(n, low, high)  y1 = Mul(k, q0)  y0 = Reshape(y1, s)  y = MatMul(y0, w)"""


@pytest.mark.parametrize(("length", "is_whole"), [(K, True), (48, True), (72, False), (2 * K, False)])
def test_rows_are_counted(length: int, is_whole: bool) -> None:
    """The rows are as many as elements divided by a length. Parts of 72 elements, or two rows, have other scales."""
    model = model_of(ROWS, {**CONSTANTS, "length": np.array(length)}, inputs=f"float[B, T, {K}] x")
    check(model, {"x": data()}, exact=True)
    check_products(model, {"x": data()})
    assert products(rewrite(model).report) == ["QuantizedMatMul"] * is_whole


TOKEN = """s = Shape(x)  b = Gather<axis = 0>(s, i0)  b0 = Unsqueeze(b, n0)  listed = Concat<axis = 0>(b0, kept, kept)
    given = Reshape(listed, flat)  gs = Shape(given)  o = ConstantOfShape<value = int64[1] {1}>(gs)
    m = Mul(o, replaced)  e = Equal(given, m)  to = Where(e, o, given)  cls = Expand(token, to)"""


@pytest.mark.parametrize(("replaced", "kept"), [(-1, -1), (2, 1)])
def test_a_token_is_expanded_to_the_batch(replaced: int, kept: int) -> None:
    """TorchScript keeps dimensions by -1, which Where makes 1. If it replaces 2, a batch of 2 becomes 1."""
    numbers = {"i0": np.array(0), "kept": np.array([kept]), "replaced": np.array([replaced])}
    constants = {**CONSTANTS, **numbers, "token": data()[:1, :1]}
    model = model_of(TOKEN, constants, inputs=f"float[B, 3, {K}] x", outputs="float[] cls")
    with Facts(ir.from_proto(model)) as facts:
        shape = facts.model.graph.outputs[0].shape
    run = stock_session(model).run(None, {"x": data()})[0].shape
    assert shape is not None
    assert [2 if each == "B" else each for each in shape] == [*run] or (replaced == 2 and "B" not in [*shape])


@pytest.mark.parametrize("step", [1, 2])
def test_slices_with_steps_of_run_time(step: int) -> None:
    """A Slice without steps has steps of 1; one with unknown steps may have any length."""
    body = UNFLATTEN + QUANTIZED + "cut = Slice(y0, n0, end, one, step)"
    model = model_of(body, CONSTANTS, inputs=f"float[2, 3, {K}] x, int64[1] step", outputs="float[] cut")
    with Facts(ir.from_proto(model)) as facts:
        shape = facts.model.graph.outputs[0].shape
        assert shape is not None
        assert [*shape][:2] == [2, 3]
        assert not isinstance(shape[2], int)
    halves = "left = Slice(y0, n0, to, one)  z = Concat<axis = -1>(cut, left)  y = MatMul(z, w2)"
    weights = {**CONSTANTS, "to": np.array([32]), "w2": np.resize(CONSTANTS["w"], (K // step + 32, N))}
    model = model_of(f"{body}  {halves}", weights, inputs=f"float[B, T, {K}] x, int64[1] step")
    check(model, {"x": data(), "step": np.array([step])}, exact=True)
    check_products(model, {"x": data(), "step": np.array([step])})


def test_long_vectors_are_not_computed() -> None:
    """Concat and broadcasting, again and again, would make them grow with a power of the number of nodes."""
    rows = "  ".join(f"e{i + 1} = Concat<axis = 0>(e{i}, e{i}, e{i})" for i in range(3))
    tables = "  ".join(
        f"c{i} = Reshape(e{i}, column)  s{i} = Add(c{i}, e{i})  t{i} = Reshape(s{i}, flat)" for i in (0, 1)
    )
    constants = {**CONSTANTS, "column": np.array([-1, 1])}
    model = model_of(f"e0 = Shape(x)  {rows}  {tables}", constants, inputs=f"float[2, 3, {K}] x", outputs="int64[] e3")
    with Facts(ir.from_proto(model)) as facts:
        values = {value.name: value for node in facts.model.graph for value in node.outputs}
        known = {name: known_lengths(values[name]) for name in ("e2", "e3", "t0", "t1")}
    shape = np.array([2, 3, K])
    assert known == {"e2": [*shape] * 9, "e3": None, "t0": [*(shape[:, None] + shape).reshape(-1)], "t1": None}
