"""Names of new nodes in branches."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from branch_models import CONSTANTS, chain
from helpers import assert_same, make_session, stock_session
from rewriting import F

from ort_dynq.rewriter import rewrite


def test_a_branch_has_the_name_of_a_later_value() -> None:
    """The program outside moves before the If, since it reads only x."""
    scale = "a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127) d = Div(x, s)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]> g (float[n, 33] x, bool yes)
            => (float[n, 33] y, float[n, 33] z, float[n, 1] s) <{CONSTANTS}> {{
            y = If(yes) <then_branch = t () => (float[n, 33] z) {{ k = Neg(x) {chain("k", "z")} }},
                else_branch = e () => (float[n, 33] o) {{ o = Relu(x) }}>
            {scale} r = Round(d) c = Clip(r, low, high) z = Mul(c, m) }}""")
    before, result = model.SerializeToString(), rewrite(model, exact=True)
    assert [each.operator for each in result.report.rewritten].count("RowProgram") == 2
    x = np.random.default_rng(1).standard_normal((5, 33), F)
    sessions = make_session(result.to_proto(), "native"), stock_session(model)
    for yes in (True, False):
        feeds = {"x": x, "yes": np.array(yes)}
        for each, other in zip(*(session.run(None, feeds) for session in sessions), strict=True):
            assert_same(each, other)
    assert model.SerializeToString() == before
