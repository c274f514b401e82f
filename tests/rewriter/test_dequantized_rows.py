"""Embeddings of codes: rows are picked before they are dequantized."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import assert_same, diagonals, stock_session, with_arrays
from rewriting import F, check, parse

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason

RNG = np.random.default_rng(0)
ROWS, WIDTH = 2048, 48
TABLE = RNG.integers(-128, 128, (ROWS, WIDTH)).astype(np.int8)
GATHER = "y = Gather(f, ids)"
FORMS = {
    "one scale": ("f = DequantizeLinear(table, s)", {"s": F(0.013)}),
    "one scale and a zero point": ("f = DequantizeLinear(table, s, z)", {"s": F(0.013), "z": np.int8(-7)}),
    "columns": ("f = DequantizeLinear(table, s)", {"s": RNG.uniform(0.001, 1, WIDTH).astype(F)}),
    "rows": ("f = DequantizeLinear<axis = 0>(table, s)", {"s": RNG.uniform(0.001, 1, ROWS).astype(F)}),
    "rows with zero points": (
        "f = DequantizeLinear<axis = 0>(table, s, z)",
        {"s": RNG.uniform(0.001, 1, ROWS).astype(F), "z": RNG.integers(-128, 128, ROWS).astype(np.int8)},
    ),
}


def model_of(body: str, arrays: dict[str, np.ndarray], ids: str = "B, T", table: np.ndarray = TABLE) -> onnx.ModelProto:
    return with_arrays(parse(body, inputs=f"int64[{ids}] ids", opset=17), {"table": table, **arrays})


@pytest.mark.parametrize(("dtype", "name", "ids"), diagonals(2, [np.int8, np.uint8], FORMS, ["", "T", "B, T"]))
def test_the_same_bits(ids: str, name: str, dtype: type) -> None:
    body, arrays = FORMS[name]
    given = {key: each.view(dtype) if each.dtype == np.int8 else each for key, each in arrays.items()}
    model = model_of(f"{body} {GATHER}", given, ids, TABLE.view(dtype))
    indices = RNG.integers(-ROWS, ROWS, [3, 5][: len(ids.split(", ")) if ids else 0])
    report = check(model, {"ids": np.asarray(indices, np.int64)})
    assert [each.op_type for each in report.rewritten] == ["Gather"]
    before = rewrite(model).to_proto().graph.node
    assert all(each.op_type != "DequantizeLinear" or each.input[0] != "table" for each in before)


H = np.float16
OF_HALF = {
    "one scale": {"s": H(0.013), "z": np.int8(-7)},
    "columns": {"s": RNG.uniform(0.001, 1, WIDTH).astype(H), "z": np.zeros(WIDTH, np.int8)},
    "rows": {"s": RNG.uniform(0.001, 60, ROWS).astype(H), "z": RNG.integers(-128, 128, ROWS).astype(np.int8)},
}


@pytest.mark.parametrize("name", OF_HALF)
@pytest.mark.parametrize(
    "body",
    [
        "y = Gather(f, ids)",
        "g = Cast<to = 1>(f) y = Gather(g, ids)",
        "g = Gather(f, ids) y = Cast<to = 1>(g)",
        "g = Gather(f, ids) y = Tanh(g)",  # which ONNX Runtime computes in float32, with a Cast of its own
        "g = Gather(f, ids) h = Tanh(g) i = Mul(h, g) y = Cast<to = 1>(i)",
    ],
)
def test_scales_of_float16(body: str, name: str) -> None:
    arrays, axis = OF_HALF[name], "<axis = 0>" if name == "rows" else ""
    model = model_of(f"f = DequantizeLinear{axis}(table, s, z) {body}", arrays)
    model.graph.output[0].type.tensor_type.elem_type = 1 if "to" in body else 10
    model.opset_import[0].version = 19
    report = check(model, {"ids": RNG.integers(-ROWS, ROWS, (3, 5))})
    assert [each.op_type for each in report.rewritten] == ["Gather"]


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("move", ["y = Reshape(g, flat)", "y = Transpose<perm = [0, 2, 1]>(g)"])
@pytest.mark.parametrize("given", ["table, s", "table, s, z"])
def test_nodes_that_move_rows(given: str, move: str, opset: int) -> None:
    """ONNX Runtime's optimizations repeat a DequantizeLinear behind these nodes, with a QuantizeLinear of uint8."""
    arrays = {"s": np.asarray(F(0.013)), "z": np.int8(-7), "flat": np.array([-1])}
    model = model_of(f"f = DequantizeLinear({given}) g = Gather(f, ids) {move}", arrays)
    model.opset_import[0].version = opset
    ids = {"ids": RNG.integers(-ROWS, ROWS, (3, 5))}
    check(model, ids)
    expected, actual = (
        stock_session(each, optimize=True).run(None, ids)[0] for each in (model, rewrite(model).to_proto())
    )
    assert_same(actual, expected)


@pytest.mark.parametrize(
    ("body", "ids", "table"),
    [
        (f"f = DequantizeLinear(table, s) {GATHER}", "B, T", TABLE[:512]),
        (f"f = DequantizeLinear(table, s) {GATHER}", "4, 512", TABLE),
        ("f = DequantizeLinear(table, s) y = Gather<axis = 1>(f, ids)", "3", TABLE),
    ],
)
def test_others_stay(body: str, ids: str, table: np.ndarray) -> None:
    """Tables that are not longer than what is picked, and columns."""
    assert not rewrite(model_of(body, {"s": F(0.1)}, ids, table)).report.rewritten


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_have_a_reason(operator: str, gates: int) -> None:
    body = f"f = DequantizeLinear(wx, s) g = DequantizeLinear(wh, s) y, h = {operator}<hidden_size = 16>(x, f, g)"
    model = parse(body, inputs="float[T, 1, 32] x", opset=17)
    arrays = {"wx": TABLE[: gates * 16, :32][None], "wh": TABLE[: gates * 16, :16][None], "s": np.asarray(F(0.1))}
    with_arrays(model, arrays)
    (found,) = rewrite(model).report.unconverted
    assert found.unconverted is not None
    assert found.unconverted.reason == Reason.WEIGHTS_DEQUANTIZED
