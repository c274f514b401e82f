"""Where a program stands in the model, and what it gives."""

from __future__ import annotations

import pytest
from program_models import CODES, F, converted
from rewriting import parse, rows

from ort_dynq.operators.program import parse as parse_program
from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(
    ("nodes", "outputs", "of_program"),
    [
        ("z = Identity(s) y = Mul(c, s)", "float[] y, float[] z", "dst scale"),
        ("y = Cast<to = 3>(c) z = Mul(s, c127) t = Cast<to = 1>(y) g = Mul(t, s)",
         "int8[] y, float[] z, float[] g", "codes dst scale"),
        ("y = Mul(c, s) z = Identity(s0) g = Identity(m)", "float[] y, float[] z, float[] g", "dst scale number"),
        # Another output computes the rest.
        ("y = Mul(c, s) z = Identity(r) g = Identity(d)", "float[] y, float[] z, float[] g", "dst dst_2 scale"),
        ("y = Mul(c, s) z = Identity(s0) g = Identity(m)", "float[] y, float[] z, float[] g, float[] s",
         "dst scale number"),
    ],
)  # fmt: skip
def test_outputs(nodes: str, outputs: str, of_program: str) -> None:
    """A program has what fits its outputs. Other nodes stay, and compute the rest."""
    (text,) = converted(parse(f"h = Neg(x) {CODES} {nodes}", outputs=outputs), {"x": rows((9, 33))})
    assert list(parse_program(text).outputs) == of_program.split()


def test_an_input_that_is_computed_late() -> None:
    """One operator stands at one place: nodes with results that are read before its inputs are known stay."""
    body = f"""h = Relu(x) t = Exp(h) u = Mul(t, h) {CODES} f = Mul(c, s) g = Softmax(f) k = Exp(g) z = Exp(u)
        v = Add(f, k) y = Mul(v, z)"""
    converted(parse(body), {"x": rows((9, 33)) * F(1e-3)})


def test_shapes_of_values_inside() -> None:
    """Nodes that compute only shapes and constants of the program are removed with it."""
    body = """h = Relu(x) a = Abs(h) m = ReduceMax<keepdims = 0>(a, one) i = Shape(m) z = Expand(eps, i) t = Max(m, z)
        s0 = Div(t, c127) s = Unsqueeze(s0, one) d = Div(h, s) r = Round(d) y = Mul(r, s)"""
    model = parse(body)
    assert len(converted(model, {"x": rows((9, 33))})) == 1
    kept = {node.op_type for node in rewrite(model, exact=True).to_proto().graph.node}
    assert kept == {"Constant", "RowProgram"}
