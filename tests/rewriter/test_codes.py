"""The codes of an activation: all its products share them, and other readers keep the floats."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import make_session, stock_session
from product_models import (
    DATA,
    INTEGER_TAILS,
    INTEGER_WEIGHTS,
    PRODUCTS,
    WEIGHTS,
    F,
    check_products,
    codes_of,
    model_of,
    scales_of,
    symmetric,
)
from rewriting import check, found, products

from ort_dynq.rewriter import rewrite


def test_outputs_of_the_chain_stay() -> None:
    body = symmetric() + "q = Cast<to = 3>(c)\n" + PRODUCTS["plain"] + INTEGER_TAILS["row, column"] + "\n z = Neg(s)"
    outputs = "float[] y, int8[] q, float[] s, int32[] i, float[] z"
    model = model_of(body, INTEGER_WEIGHTS, outputs=outputs)
    assert "MatMulInteger" in found(check(model, DATA))
    model = model_of(body, INTEGER_WEIGHTS, outputs="float[] y, int8[] q, float[] s, float[] z")
    assert "QuantizedMatMul" in products(check(model, DATA))


def test_one_quantization_for_several_products() -> None:
    body = symmetric() + "dx = Mul(c, s)\n" + "".join(f"{y} = MatMul(dx, {w})\n" for y, w in ("yw", "ku", "lv"))
    weights = {name: codes_of(seed=i).astype(F) * scales_of(i) for i, name in enumerate("wuv")}
    converted = rewrite(model_of(body, weights, outputs="float[] y, float[] k, float[] l")).to_proto()
    operators = [node.op_type for node in converted.graph.node]
    assert operators.count("RowProgram") == 1
    assert operators.count("QuantizedMatMul") == 3


def test_another_use_of_the_activation_keeps_the_floats() -> None:
    model = model_of(
        symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)\n n = Relu(dx)",
        WEIGHTS["folded"][1],
        outputs="float[] y, float[] n",
    )
    assert found(check_products(model, DATA)) == ["QuantizedMatMul", "RowProgram"]


@pytest.mark.parametrize("move", ["MaxPool<kernel_shape = [3, 3], strides = [2, 2]>", "Transpose<perm = [0, 1, 3, 2]>"])
def test_codes_that_others_read_are_moved_once(move: str) -> None:
    """uint8 codes that the model moves are those of the product, too."""
    rng = np.random.default_rng(6)
    weights = {"w": (rng.integers(-127, 128, (32, 16, 3, 3)) * 0.01).astype(F)}
    body = f"q, s, z = DynamicQuantizeLinear(x) p = {move}(q) d = DequantizeLinear(p, s, z) y = Conv(d, w)"
    model = model_of(
        f"{body} n = Cast<to = 1>(p)", weights, inputs="float[1, 16, 32, 32] x", outputs="float[] y, float[] n"
    )
    converted = rewrite(model).to_proto()
    operators = [node.op_type for node in converted.graph.node]
    assert operators.count(move[: move.index("<")]) == operators.count("QuantizedConv") == 1
    feeds = {"x": rng.normal(0, 1, (1, 16, 32, 32)).astype(F)}
    expected, actual = (each.run(None, feeds) for each in (stock_session(model), make_session(converted, "native")))
    np.testing.assert_array_equal(actual[1], expected[1])
    # The sums of the original, of 144 floats, are rounded: by less than 144 / 2^24 of the largest result.
    np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=1e-5 * np.abs(expected[0]).max())
