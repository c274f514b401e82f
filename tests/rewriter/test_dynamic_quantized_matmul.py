"""Products that make the codes of a DynamicQuantizeLinear which nothing else reads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, parse, stock_session, with_arrays
from rewriting import operators

import ort_dynq
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.metadata import CODES, RULE
from ort_dynq.rewriter.products.dynamic_quantized_matmul import split_dynamic_products

RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.integers(-127, 128, (40, 24)).astype(np.int8), "ws": np.full(24, 0.01, np.float32)}
QUANTIZE = "q, s, z = DynamicQuantizeLinear(x) "
PRODUCT = "i = MatMulInteger(q, w, z) f = Cast<to = 1>(i) k = Mul(s, ws) y = Mul(f, k) "
BOTH = QUANTIZE + PRODUCT
FUSED, APART = {"DynamicQuantizedMatMul": 1}, {"DynamicQuantizeLinear": 1, "QuantizedMatMul": 1}


def model_of(body: str, outputs: str = "float[] y") -> onnx.ModelProto:
    return with_arrays(parse("float[B, M, 40] x", outputs, body), WEIGHTS)


def data(special: float = 0.5) -> Array:
    """Ties of codes: the range is 255 halves."""
    x = RNG.integers(-120, 130, (2, 5, 40)).astype(np.float32) / 2
    x[0, 0, :3] = -64, 63.5, special
    return np.where(RNG.random(x.shape) < 0.3, np.nextafter(x, np.float32(0)), x).astype(np.float32)


CASES = {
    "alone": (BOTH, "float[] y", FUSED),
    "a program after it": (
        BOTH.replace("y =", "r =") + "y = Relu(r)", "float[] y", {"DynamicQuantizedMatMulProgram": 1}
    ),
    "codes are an output": (BOTH, "float[] y, uint8[] q", APART),
    "scale is an output": (BOTH, "float[] y, float s", APART),
    "another product reads the codes": (
        BOTH + PRODUCT.replace("i ", "i2 ").replace("(i)", "(i2)").replace("f ", "f2 ").replace("(f, k)", "(f2, k)")
        .replace("k = Mul(s, ws)", "").replace("y =", "y2 ="),
        "float[] y, float[] y2",
        {"DynamicQuantizeLinear": 1, "QuantizedMatMul": 2},
    ),
    "codes are moved": (
        QUANTIZE + "t = Identity(q) u = Transpose<perm = [1, 0, 2]>(t) " + PRODUCT.replace("(q,", "(u,"),
        "float[] y",
        APART,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_products(name: str) -> None:
    body, outputs, expected = CASES[name]
    model = model_of(body, outputs)
    for exact in (False, True):
        result = rewrite(model, exact=exact)
        assert operators(result.to_proto()) == {f"ort_dynq.{key}": count for key, count in expected.items()}
        assert result.report.products[0] == sum(count for key, count in expected.items() if "MatMul" in key)
    for special in (0.5, np.inf, -np.inf, np.nan):
        feeds = {"x": data(special)}
        with_plugin = make_session(result.to_proto(), "native").run(None, feeds)
        for actual, other in zip(with_plugin, stock_session(model).run(None, feeds), strict=True):
            assert_same(actual, other)
    assert ort_dynq.verify(model, result.to_proto(), inputs={"x": data()}).passed


def test_in_a_branch() -> None:
    """The quantization stands before the If: other branches may read its codes."""
    branch = f"then_branch = t () => (float[] y) {{ {PRODUCT} }}, else_branch = e () => (float[] y2) {{ y2 = Neg(x) }}"
    model = with_arrays(parse("float[B, M, 40] x, bool c", "float[] o", f"{QUANTIZE} o = If(c) <{branch}>"), WEIGHTS)
    assert "ort_dynq.DynamicQuantizedMatMul" not in operators(rewrite(model).to_proto())
    inside = branch.replace(PRODUCT, BOTH)
    model = with_arrays(parse("float[B, M, 40] x, bool c", "float[] o", f"o = If(c) <{inside}>"), WEIGHTS)
    result = rewrite(model).to_proto()
    assert operators(result) == {"ort_dynq.DynamicQuantizedMatMul": 1}
    for is_first in (True, False):
        feeds = {"x": data(), "c": np.array(is_first)}
        (actual,), (expected,) = make_session(result, "native").run(None, feeds), stock_session(model).run(None, feeds)
        assert_same(actual, expected)


def test_split_products_have_the_names_of_the_original() -> None:
    result = rewrite(model_of(BOTH)).model
    properties = result.graph[-1].metadata_props
    assert CODES in properties
    assert properties[RULE] == "integer matrix product"  # reports name the rule that made the product
    split_dynamic_products(result)
    quantizer, product = result.graph
    assert [output.name for output in quantizer.outputs] == ["q", "s", "z"]
    assert (product.op_type, product.outputs[0].name, [*product.inputs[:3]]) == (
        "QuantizedMatMul", "y", [*quantizer.outputs],
    )  # fmt: skip


def test_the_memory_of_large_codes_serves_the_next_run() -> None:
    """Codes of more than 4 MiB, of runs of other lengths."""
    model = model_of(BOTH)
    ours, stock = make_session(rewrite(model).to_proto(), "native"), stock_session(model)
    for rows in (110_000, 130_000, 105_000, 10, 110_000):
        feeds = {"x": np.resize(data() * np.float32(rows % 7 + 1), (1, rows, 40))}
        assert_same(ours.run(None, feeds)[0], stock.run(None, feeds)[0])
