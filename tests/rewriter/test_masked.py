"""Numbers that a model writes where a mask holds."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from helpers import Array, assert_same, stock_session, with_one_nan
from product_models import F, K, N, model_of
from repeated_models import FORMS, WEIGHTS
from rewriting import check, products, rows

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.loop import convert
from ort_dynq.rewriter.rules import PHASES


def test_mask_along_columns_stays() -> None:
    """TorchScript's exporter broadcasts a mask of rows along the columns: the model means other elements."""
    body = FORMS["Where of the rows"].replace("mask2 = Unsqueeze(mask, ones)\n ", "").replace("mask2", "mask")
    model = model_of(body, WEIGHTS, inputs=f"float[1, {K}, {K}] x")
    assert N != K
    assert not products(check(model, {"x": rows((1, K, K), seed=4)}, exact=False))


def _scatter(mask: str, dims: str, number: float = 1.0) -> str:
    """Returns nodes that write a number into x where a mask holds, which lacks some dimensions of x."""
    count = f"rest = Constant<value_ints = [{dims}]>()\n count = Concat<axis = 0>(found, rest)\n"
    return (
        f"{mask} nz = NonZero(w)\n at = Transpose<perm = [1, 0]>(nz)\n found = Shape<end = 1>(at)\n"
        + (count if dims else "count = Identity(found)\n")
        + f"number = Constant<value_float = {number}>()\n u = Expand(number, count)\n y = ScatterND(x, at, u)"
    )


ONE = "[1]"
WHOLE_MASK = "to = Constant<value_ints = [3, 3]>()\n w = Expand(k, to)\n"
ZEROS = np.array([[0.0, -0.0] * 8] * 4, F)
BLOCKS_OF_4 = "t = Tile(s, r1)\n w = Reshape(t, r2)\n"
BRANCHES = (
    "y = If (k) <then_branch = a () => (float[2, 8] y1) { d1 = Div(x, w)\n y1 = Round(d1) }, "
    "else_branch = b () => (float[2, 8] y2) { d2 = Mul(x, w)\n y2 = Round(d2) }>"
)
TINY = rows((4, 3, 8), seed=6)
# The inputs, the nodes, x, s, k, the repeats, and whether the rules apply.
SHAPES: dict[str, tuple[str, str, Array, Array, Array | None, tuple[str, str], bool]] = {
    "a mask of the leading dimensions that Expand broadcasts": (
        "float[3, 3, 3] x, bool[1, 3] k",
        _scatter(WHOLE_MASK, "3"),
        TINY[:3, :, :3],
        np.ones(0, F),
        np.array([[True, False, True]]),
        (ONE, ONE),
        True,
    ),
    "a mask of all dimensions that Expand broadcasts": (
        "float[3, 3] x, bool[1, 3] k",
        _scatter(WHOLE_MASK, ""),
        TINY[0, :, :3],
        np.ones(0, F),
        np.array([[True, False, True]]),
        (ONE, ONE),
        True,
    ),
    "indices that are not those of NonZero": (
        "float[2, 2] x, bool[2, 2] k",
        "nz = NonZero(k)\n at = Transpose<perm = [0, 1]>(nz)\n one = Constant<value_float = 1.0>()\n"
        "to = Constant<value_ints = [2]>()\n u = Expand(one, to)\n y = ScatterND(x, at, u)",
        TINY[0, :2, :2],
        np.ones(0, F),
        np.array([[True, False], [False, True]]),
        (ONE, ONE),
        False,
    ),
    "-0 where a mask holds": (
        "float[3, 3] x, bool[3] k",
        _scatter("w = Not(k)\n", "3", -0.0),
        TINY[0, :, :3],
        np.ones(0, F),
        np.array([False, True, False]),
        (ONE, ONE),
        False,
    ),
    "a sum with more rows": (
        "float[1, 8] x, float[1, 1] s, float[1] k",
        "a = Expand(s, r1)\n b = Expand(k, r2)\n t = Add(a, b)\n y = Div(x, t)",
        TINY[0, :1],
        np.full((1, 1), 0.3, F),
        np.full(1, 0.2, F),
        ("[1, 8]", "[3, 8]"),
        False,
    ),
    "a product with more rows": (
        "float[1, 8] x, float[1, 1] s, float[1, 1] k",
        "a = Expand(s, r1)\n b = Expand(k, r2)\n t = Mul(b, a)\n y = Div(x, t)",
        TINY[0, :1],
        np.full((1, 1), 0.3, F),
        np.full((1, 1), 0.2, F),
        ("[4, 8]", "[1, 8]"),
        False,
    ),
    "one number in a column": (
        "float[1, 8] x, float[1, 1] s",
        "a = Tile(s, r1)\n t = Reshape(a, r2)\n y = Div(x, t)",
        TINY[0, :1],
        np.full((1, 1), 0.3, F),
        None,
        ("[1, 8]", "[8, 1]"),
        False,
    ),
    "one number with fewer dimensions": (
        "float[8] x, float[1, 1] s",
        "a = Tile(s, r1)\n t = Reshape(a, r2)\n y = Div(x, t)",
        TINY[0, 0],
        np.full((1, 1), 0.3, F),
        None,
        ("[1, 8]", "[8]"),
        False,
    ),
    "a Tile that repeats several rows": (
        "float[4, 6, 8] x, float[4, 2, 1] s",
        "t = Tile(s, r1)\n d = Div(x, t)\n y = Round(d)",
        np.concatenate([TINY, TINY], 1),
        TINY[:, :2, 1:2],
        None,
        ("[1, 3, 8]", ONE),
        False,
    ),
    "a Tile that repeats one row": (
        "float[4, 6, 8] x, float[4, 1, 1] s",
        "t = Tile(s, r1)\n d = Div(x, t)\n y = Round(d)",
        np.concatenate([TINY, TINY], 1),
        TINY[:, :1, 1:2],
        None,
        ("[1, 6, 8]", ONE),
        True,
    ),
    "a Reshape that copies the repeated dimension": (
        "float[2, 3, 3] x, float[6, 1] s",
        "t = Tile(s, r1)\n w = Reshape(t, r2)\n y = Div(x, w)",
        TINY[:2, :, :3],
        TINY[:2, :, 1:2].reshape(6, 1),
        None,
        ("[1, 3]", "[2, 0, 3]"),
        False,
    ),
    "blocks in two branches": (
        "float[2, 8] x, float[2, 2, 1] s, bool k",
        BLOCKS_OF_4 + BRANCHES,
        TINY[0, :2],
        TINY[:2, :2, 1:2],
        np.array(False),
        ("[1, 1, 4]", "[2, 8]"),
        True,
    ),
    "blocks and a constant with more dimensions": (
        "float[2, 8] x, float[2, 2, 1] s, float[1, 1, 1] k",
        BLOCKS_OF_4 + "v = Mul(w, k)\n y = Div(x, v)",
        TINY[0, :2],
        TINY[:2, :2, 1:2],
        np.full((1, 1, 1), 3, F),
        ("[1, 1, 4]", "[2, 8]"),
        False,
    ),
    **{
        f"the signs of zeros in {used}, {zero}": (
            "float[4, 16] x, float[4, 1] s, bool[4, 1] k",
            f"w = Expand(s, r1)\n c = Expand(k, r1)\n z = Constant<value_float = {zero}>()\n {used}",
            ZEROS,
            np.full((4, 1), zero, F),
            np.array([[True], [False]] * 2),
            ("[4, 16]", ONE),
            False,
        )
        for zero in (0.0, -0.0)
        for used in (
            "y = Max(w, x)",
            "y = Min(x, w)",
            "y = Where(c, x, w)",
            "v = Max(w, z)\n y = Div(x, v)",
            "v = Where(c, w, s)\n y = Div(x, v)",
        )
    },
    "Exp: its last bits depend on the position": (
        "float[4, 8] x, float[4, 1] s",
        "w = Tile(s, r1)\n e = Exp(w)\n y = Div(x, e)",
        TINY[:, 0],
        TINY[:, 0, 1:2],
        None,
        ("[1, 8]", ONE),
        False,
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_and_zeros(case: str) -> None:
    """The rules alone keep each shape and bit: they leave what one broadcast cannot do, and a model without chains."""
    inputs, body, x, s, k, (first, second), applies = SHAPES[case]
    repeats = f"r1 = Constant<value_ints = {first}>()\n r2 = Constant<value_ints = {second}>()\n"
    model = model_of(repeats + body, {}, inputs=inputs)
    changed = ir.from_proto(model)
    assert convert(changed, PHASES[:1]).is_prepared == applies
    data = {
        name: array for name, array in (("x", x), ("s", s), ("k", k)) if f"] {name}" in inputs or f"l {name}" in inputs
    }
    results = [stock_session(each).run(None, data)[0] for each in (model, ir.to_proto(changed))]
    assert_same(with_one_nan(results[1]), with_one_nan(results[0]))
    result = rewrite(model, exact=True)
    if not result.report.rewritten:
        assert [node.op_type for node in result.to_proto().graph.node] == [node.op_type for node in model.graph.node]


def test_a_number_that_is_written_into_float16() -> None:
    """ONNX Runtime has a float16 kernel of ScatterND, which reads rounded values, and none of Where."""
    body = """a = Abs(x)  m = ReduceMax<keepdims = 0>(a, one)  p = Mul(m, part)  mask = Equal(p, none)
        nz = NonZero(mask)  at = Transpose<perm = [1, 0]>(nz)  count = Shape<end = 1>(at)  u = Expand(units16, count)
        s0 = ScatterND(p, at, u)  s1 = Div(s0, most)  s = Unsqueeze(s1, one)  d = Div(x, s)  r = Round(d)
        c = Clip(r, least, most)  f = Mul(c, s)  f32 = Cast<to = 1>(f)  y = MatMul(f32, w)"""
    half = {"part": 0.9, "none": 0, "most": 127, "least": -128}
    constants = {
        **WEIGHTS,
        **{name: np.float16(each) for name, each in half.items()},
        "units16": np.ones(1, np.float16),
    }
    model = model_of(body, constants, inputs=f"float16[3, 37, {K}] x")
    x = np.random.default_rng(0).normal(size=(3, 37, K)).astype(np.float16)
    x[1, 2] = 0
    assert [each.op_type for each in check(model, {"x": x}, exact=True).rewritten if each.operator == "RowProgram"]
    assert products(rewrite(model).report) == ["QuantizedMatMul"]
