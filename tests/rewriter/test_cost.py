"""Nodes stay as they are if their tensors are too small for a custom operator."""

from __future__ import annotations

import helpers
import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from ort_dynq.rewriter import rewrite


def reasons(body: str, inputs: str, outputs: str) -> list[str]:
    """Returns the reason of each finding of a model; empty if the node was converted."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    return [finding.reason for finding in rewrite(model).report.findings]


SMALL = "a tensor of {} elements: calling a custom operator costs more than it saves"
ASSUMED = SMALL.replace("elements", "elements, with 8 for each dynamic dimension")


@pytest.mark.parametrize(
    ("x", "scale", "attributes", "quantize", "dequantize"),
    [
        ("4, 16", "", "", True, True),
        ("4, 16", "1", "", True, True),
        ("4, 16", "4", "axis = 0", False, True),
        ("4, 16", "4", "axis = -2", False, True),
        ("4, 16", "16", "axis = 1", False, False),
        ("4, 16", "4, 2", "axis = 1, block_size = 8", True, False),
        ("4, 16", "2, 16", "axis = 0, block_size = 2", False, True),
        ("32, 64", "", "", False, False),
        ("31, 66", "", "", True, True),
        ("n, 16", "", "", True, True),
        ("n, m, 31", "", "", True, True),
        ("n, m, 32", "", "", False, False),
        ("n, m", "", "", False, False),
        ("", "", "", False, False),
    ],
)
def test_small_tensors_where_the_built_in_kernel_is_quick(
    x: str, scale: str, attributes: str, quantize: bool, dequantize: bool
) -> None:
    for op_type, is_left in (("QuantizeLinear", quantize), ("DequantizeLinear", dequantize)):
        types = ("float", "uint8") if op_type == "QuantizeLinear" else ("uint8", "float")
        s = f"float[{scale}] s" if scale else "float s"
        z = s.replace("float", "uint8").replace(" s", " z")
        given = f"<{attributes}>" if attributes else ""
        (said,) = reasons(f"y = {op_type}{given}(x, s, z)", f"{types[0]}[{x}] x, {s}, {z}", f"{types[1]}[{x}] y")
        elements = np.prod([int(n) if n.strip().isdecimal() else 8 for n in x.split(",")]) if x else 1
        assert said == ((ASSUMED if "n" in x else SMALL).format(elements) if is_left else "")


def test_small_tensors_next_to_fused_operators() -> None:
    """Nodes that ONNX Runtime fuses incorrectly, or into a slower kernel, are converted at any size."""
    inputs = "uint8[4,4] a, float[1] s, uint8[1] z, uint8[4,4] b"
    add = "p = DequantizeLinear(a, s, z) q = DequantizeLinear(b, s, z) r = Add(p, q) y = QuantizeLinear(r, s, z)"
    assert reasons(add, inputs, "uint8[4,4] y") == ["", "", SMALL.format(16)]  # no longer next to a fused operator
    constants = "c = Constant<value_float = 0.5>() " + add.replace("(a, s, z)", "(a, c)").replace("(b, s, z)", "(b, c)")
    assert reasons(constants, inputs, "uint8[4,4] y") == [""]
    alone = "p = DequantizeLinear(a, s, z) y = Neg(p)"
    assert reasons(alone, inputs, "float[4,4] y") == [SMALL.format(16)]
    pair = "p = QuantizeLinear(x, s, z) y = DequantizeLinear(p, s, z)"
    assert reasons(pair, "float[4,4] x, float s, uint8 z", "float[4,4] y") == [""]  # two nodes become one


@pytest.mark.parametrize(
    ("rows", "columns", "has_groups_of_activation", "is_left"),
    [
        ("2, 7", 13, False, True),
        ("2, 7", 19, False, False),
        ("n, m", 4, False, False),
        ("2, 7", 292, True, True),
        ("2, 7", 293, True, False),
        ("n, m", 63, True, True),
        ("n, m", 64, True, False),
    ],
)
def test_small_products_of_groups(rows: str, columns: int, has_groups_of_activation: bool, is_left: bool) -> None:
    """32 products for each row and column; scales of an activation in groups are reshaped by further nodes."""
    codes = np.random.default_rng(0).integers(-8, 8, (2, 16, columns))
    codes[:, 0] = 7
    weights = codes * np.random.default_rng(1).uniform(0.5, 1, (2, 1, columns)).astype(np.float32)
    split = "g = Reshape(x, split)" if has_groups_of_activation else "g = Identity(x)"
    joined = "dx = Reshape(d, joined)" if has_groups_of_activation else "dx = Identity(d)"
    model = helpers.parse(
        f"float[{rows}, 32] x",
        f"float[{rows}, {columns}] y",
        f"""split = Constant<value_ints = [0, 0, 2, 16]>() joined = Constant<value_ints = [0, 0, 32]>()
            last = Constant<value_ints = [-1]>() c = Constant<value_float = 127.0>()
            low = Constant<value_float = -128.0>() {split}
            a = Abs(g) m = ReduceMax(a, last) s = Div(m, c) t = Div(g, s) r = Round(t) k = Clip(r, low, c)
            d = Mul(k, s) {joined} w = Constant<value = float[1] {{0.0}}>() y = MatMul(dx, w)""",
    )
    constant = next(node for node in model.graph.node if node.output[0] == "w")
    constant.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(weights.reshape(32, columns).astype(np.float32)))
    report = rewrite(model).report
    (product,) = (finding for finding in report.findings if finding.op_type == "MatMul")
    assert (product.operator is None) == is_left
    if is_left:
        assert product.reason == "the product is too small: its groups cost more than integers save"
