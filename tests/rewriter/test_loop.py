"""The loop applies the rules in every graph: in branches, loops and functions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from helpers import make_session, stock_session
from product_models import DATA, WEIGHTS, K, model_of, symmetric
from rewriting import products

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.loop import convert
from ort_dynq.rewriter.rule import Rule


def test_products_in_branches_and_functions() -> None:
    product = symmetric() + "dx = Mul(c, s)\n y = MatMul(dx, w)"
    branch = product.replace("y =", "y1 =")
    otherwise = "e () => (float[] y2) { y2 = Identity(x) }"
    body = f"y = If (flag) <then_branch = t () => (float[] y1) {{ {branch} }}, else_branch = {otherwise}>"
    model = model_of(body, WEIGHTS["folded"][1], inputs=f"bool flag, float[B, M, {K}] x")
    result = rewrite(model)
    assert "QuantizedMatMul" in products(result.report)
    inputs = DATA | {"flag": np.array(True)}
    expected = stock_session(model).run(None, inputs)[0]
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        np.testing.assert_allclose(
            session.run(None, inputs)[0], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
        )


def test_a_rule_meets_only_its_operators() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[2, 6] x) => (float[2, 6] y) {
            a = Relu(x)
            b = com.microsoft.Gelu(a)
            c = Gelu(b)
            y = Relu(c)
        }""")
    met: dict[str, list[str | None]] = {"all": [], "standard": [], "other": []}

    def rule(name: str, *operators: str) -> Rule[None]:
        return Rule(name, 0, lambda node, _: met[name].append(node.outputs[0].name), operators=operators)

    rules = [rule("all"), rule("standard", "Gelu", "Relu"), rule("other", "com.microsoft.Gelu")]
    convert(ir.from_proto(model), [rules])
    assert met == {"all": ["a", "b", "c", "y"], "standard": ["a", "c", "y"], "other": ["b"]}
