"""Operators of float16 beside nodes that ONNX Runtime computes in float32: same roundings with the plugin and without.

ONNX Runtime removes Casts between nodes that it computes in float32. An operator may read and return float16, but the
nodes of its function may not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import Array, assert_same, diagonals, make_session, stock_session, with_arrays
from onnx import helper, numpy_helper
from qmoe import EXPERTS, HIDDEN, make

from ort_dynq import verify
from ort_dynq.rewriter import rewrite

K, N, BLOCK = 64, 96, 32


def agrees(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """Compares the plugin with the functions, and verifies, also if ONNX Runtime does not round a value of the original
    and rounds it where a verification records it.
    """
    result = rewrite(model, weights_only="two-term")
    assert len(result.report.rewritten) > 0
    content = result.to_proto()
    sessions = make_session(content, "native"), stock_session(content)
    (one,), (other,) = (session.run(None, feeds) for session in sessions)
    assert np.isfinite(one).all()
    assert_same(one, other)
    assert verify(model, content, inputs=feeds).passed


def matrix(rows: int, columns: int, seed: int) -> Array:
    return (np.random.default_rng(seed).normal(size=(rows, columns)) / 16).astype(np.float16)


@pytest.mark.parametrize(
    ("products", "bits"), diagonals(1, [("x",), ("router",), ("y",), ("x", "router", "y"), ()], [4, 8])
)
def test_mixtures_of_experts(products: Sequence[str], bits: int) -> None:
    case = make(half=True, bits=bits)
    model, (node,) = case.model, case.model.graph.node
    matrices = {"x": matrix(HIDDEN, HIDDEN, 0), "router": matrix(EXPERTS, EXPERTS, 1), "y": matrix(HIDDEN, HIDDEN, 2)}
    before, after = [], []
    for i, name in enumerate(("x", "router")):
        if name in products:
            before.append(helper.make_node("MatMul", [name, f"w_{name}"], [f"of_{name}"]))
            node.input[i] = f"of_{name}"
    if "y" in products:
        node.output[0] = "of_experts"
        after.append(helper.make_node("MatMul", ["of_experts", "w_y"], ["y"]))
    nodes = [*before, node, *after]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(numpy_helper.from_array(matrices[name], f"w_{name}") for name in products)
    agrees(model, case.feeds)


@pytest.mark.parametrize(
    "body",
    [
        "a = MatMul(x, wa) b = {}(a, w, s) y = MatMul(b, wb)",
        "a = MatMul(x, wa) y = {}(a, w, s)",
        "a = Add(x, x) y = {}(a, w, s)",
        "y0 = {}(x, w, s, zero, order, bias) y = Sigmoid(y0)",
    ],
)
def test_products_of_blocks(body: str) -> None:
    rng = np.random.default_rng(3)
    product = f"com.microsoft.MatMulNBits<K = {K}, N = {N}, bits = 4, block_size = {BLOCK}, accuracy_level = 4>"
    text = body.replace("{}", product).replace("zero, order", ", ")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> '
        f"g (float16[M, {K}] x) => (float16[M, {N}] y) {{ {text} }}"
    )
    arrays = {
        "w": rng.integers(0, 256, (N, K // BLOCK, BLOCK // 2)).astype(np.uint8),
        "s": (rng.uniform(0.5, 1.5, (N, K // BLOCK)) / 64).astype(np.float16),
        "wa": matrix(K, K, 4),
        "wb": matrix(N, N, 5),
        "bias": rng.normal(size=N).astype(np.float16),
    }
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(arrays[name], name) for name in sorted(read & set(arrays)))
    agrees(model, {"x": rng.normal(size=(9, K)).astype(np.float16)})


def with_weights(body: str, axis: int) -> onnx.ModelProto:
    """A model over x, float16, with int8 weights and float32 scales that a Cast rounds to float16."""
    head = f'<ir_version: 10, opset_import: ["": 21]> g (float16[B, {K}] x) => (float16[B, {N}] y)'
    weights = f"w32 = DequantizeLinear<axis = {axis}>(w, scales)\n wd = Cast<to = 10>(w32)"
    rng = np.random.default_rng(6)
    arrays = {"w": rng.integers(-127, 128, (K, N)).astype(np.int8)}
    arrays["scales"] = rng.uniform(0.001, 0.02, (K, N)[axis]).astype(np.float32)
    return with_arrays(onnx.parser.parse_model(f"{head} {{ {weights}\n {body} }}"), arrays)


@pytest.mark.parametrize("axis", [0, 1])
def test_cast_weights(axis: int) -> None:
    """ONNX Runtime reads the weights of the Cast without the rounding, the folded ones have it: both are right."""
    model, feeds = with_weights("y = MatMul(x, wd)", axis), {"x": matrix(9, K, 2)}
    agrees(model, feeds)
    content = rewrite(model).to_proto()
    (folded,) = content.graph.initializer
    changed = numpy_helper.to_array(folded) * np.float16(1 + 2**-8)
    folded.CopyFrom(numpy_helper.from_array(changed, folded.name))
    assert not verify(model, content, inputs=feeds).passed


def test_cast_weights_of_codes() -> None:
    """A product of a quantized activation becomes an integer product, though its operands are of float16."""
    activation = "x32 = Cast<to = 1>(x)\n q, s, z = DynamicQuantizeLinear(x32)\n d32 = DequantizeLinear(q, s, z)"
    model = with_weights(f"{activation}\n d = Cast<to = 10>(d32)\n y = MatMul(d, wd)", 1)
    agrees(model, {"x": matrix(9, K, 2)})
    assert rewrite(model).report.products == (1, 0)
