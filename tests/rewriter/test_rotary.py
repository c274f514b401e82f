"""Rotary position embeddings become ONNX Runtime's RotaryEmbedding, and what is not one stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, nodes_of, stock_session
from rewriting import parse

import ort_dynq
from ort_dynq import rewrite

H, S, D = 3, 5, 8
NUMBERS = (
    "nought = Constant<value_ints = [0]>() half = Constant<value_ints = [4]>() "
    "end = Constant<value_ints = [9223372036854775807]>() last = Constant<value_ints = [-1]>() "
    "heads = Constant<value_ints = [1]>() scale = Constant<value = float {0.9}>()"
)
TABLES = (
    "both = Concat<axis = -1>(angles, angles) c0 = Cos(both) s0 = Sin(both) c1 = Mul(c0, scale) s1 = Mul(s0, scale) "
    "cos = Unsqueeze(c1, heads) sin = Unsqueeze(s1, heads)"
)
SLICES = "below = Slice(x, nought, half, last) above = Slice(x, half, end, last)"
SPLIT = "below, above = Split<axis = -1, num_outputs = 2>(x)"
TURNED = "negative = Neg(above) turned = Concat<axis = -1>(negative, below)"
END = "a = Mul(x, cos) b = Mul(turned, sin) y = Add(a, b)"
INPUTS = f"float[B, {H}, S, {D}] x, float[1, S, {D // 2}] angles"


def model_of(*parts: str, inputs: str = INPUTS) -> onnx.ModelProto:
    return parse(" ".join((NUMBERS, *parts)), inputs=inputs, outputs=f"float[B, {H}, S, {D}] y")


def feeds(batch: int = 2, tables: int = 1, tokens: int = S) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(0, 1, (batch, H, tokens, D)).astype(np.float32),
        "angles": rng.normal(0, 3, (tables, tokens, D // 2)).astype(np.float32),
    }


def count(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "RotaryEmbedding" for node in nodes_of(model.graph))


def check(model: onnx.ModelProto, given: dict[str, Array]) -> onnx.ModelProto:
    """Rewrites a model: each element is a sum of two products, so it may differ by some roundings of its terms."""
    converted = rewrite(model, fuse=True).to_proto()
    assert count(converted) == 1
    before, after = (stock_session(each).run(None, given)[0] for each in (model, converted))
    np.testing.assert_allclose(after, before, rtol=0, atol=4 * 2.0**-24 * np.abs(given["x"]).max())
    verification = ort_dynq.verify(model, converted, inputs=given)
    assert verification.passed, verification
    assert [each.is_fusion for each in verification.products] == [True]
    return converted


@pytest.mark.parametrize("halves", [SLICES, SPLIT])
@pytest.mark.parametrize("end", [END, "a = Mul(cos, x) b = Mul(sin, turned) y = Add(b, a)"])
def test_spellings(halves: str, end: str) -> None:
    converted = check(model_of(TABLES, halves, TURNED, end), feeds())
    assert not {"Neg", "Add", "Split"} & {node.op_type for node in converted.graph.node}
    check(model_of(TABLES, halves, TURNED, end), feeds(tokens=1))


@pytest.mark.parametrize("batch", [1, 3])
def test_tables_of_each_sample(batch: int) -> None:
    inputs = INPUTS.replace("[1, S, 4]", "[B, S, 4]")
    check(model_of(TABLES, SLICES, TURNED, END, inputs=inputs), feeds(batch, tables=batch))


@pytest.mark.parametrize("length", [S, 1])
def test_tables_of_unknown_length(length: int) -> None:
    """One row serves all tokens."""
    model = model_of(TABLES, SLICES, TURNED, END, inputs=INPUTS.replace("[1, S, 4]", "[1, L, 4]"))
    given = feeds()
    given["angles"] = given["angles"][:, :length]
    check(model, given)


def test_bounds_that_are_computed_from_the_shape() -> None:
    bound = (
        "dims = Shape(x) three = Constant<value_ints = [3]>() two = Constant<value_ints = [2]>() "
        "size = Gather(dims, three) middle = Div(size, two)"
    )
    check(model_of(TABLES, bound, SLICES.replace("half", "middle"), TURNED, END), feeds())


def test_constant_tables() -> None:
    """Rows of tables by position."""
    text = "c0 = Gather(table, rows) s0 = Gather(table, rows) cos = Unsqueeze(c0, heads) sin = Unsqueeze(s0, heads)"
    model = model_of(text, SLICES, TURNED, END, inputs=f"float[B, {H}, S, {D}] x, int64[1, S] rows")
    half = np.random.default_rng(2).normal(0, 1, (9, D // 2)).astype(np.float32)
    for table, expected in ((np.concatenate([half, half], 1), 1), (np.concatenate([half, -half], 1), 0)):
        del model.graph.initializer[:]
        model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
        given = {"x": feeds()["x"], "rows": np.array([[3, 0, 8, 1, 1]])}
        if expected:
            check(model, given)
        else:
            assert count(rewrite(model, fuse=True).to_proto()) == 0


def test_layers_share_the_tables() -> None:
    second = (
        "below2 = Slice(y, nought, half, last) above2 = Slice(y, half, end, last) negative2 = Neg(above2) "
        "turned2 = Concat<axis = -1>(negative2, below2) a2 = Mul(y, cos) b2 = Mul(turned2, sin) z = Add(a2, b2)"
    )
    text = " ".join((NUMBERS, TABLES, SLICES, TURNED, END, second))
    model = parse(text, inputs=INPUTS, outputs=f"float[B, {H}, S, {D}] z")
    converted = rewrite(model, fuse=True).to_proto()
    assert count(converted) == 2
    assert sum(node.op_type == "Slice" for node in converted.graph.node) == 2
    before, after = (stock_session(each).run(None, feeds())[0] for each in (model, converted))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "parts",
    [
        (TABLES, SLICES, TURNED.replace("(negative, below)", "(below, negative)"), END),
        (TABLES, SLICES, TURNED.replace("Neg(above)", "Neg(below)").replace(", below)", ", above)"), END),
        (TABLES, SLICES, TURNED.replace("-1", "3").replace("Neg(above)", "Abs(above)"), END),
        ("other = Neg(angles)", TABLES.replace("(angles, angles)", "(angles, other)"), SLICES, TURNED, END),
        (TABLES, SLICES, TURNED, END.replace("Mul(x, cos)", "Mul(turned, cos)")),
        (TABLES, SLICES, TURNED, END.replace("y = Add", "y = Sub")),
        (TABLES, SLICES, TURNED, END.replace("y = Add(a, b)", "w = Add(a, b) y = Mul(w, a)")),
    ],
)
def test_others_stay(parts: tuple[str, ...]) -> None:
    assert count(rewrite(model_of(*parts), fuse=True).to_proto()) == 0


def test_without_fuse() -> None:
    assert count(rewrite(model_of(TABLES, SLICES, TURNED, END)).to_proto()) == 0
