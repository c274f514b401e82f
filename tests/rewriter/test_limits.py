"""Searches end at their limits, and the reason of the node says so."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from helpers import Array, with_arrays

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.analysis.limits import VISITED, Limit, noted
from ort_dynq.rewriter.reasons import Reason

F = np.float32
CONSTANTS: dict[str, Array] = {
    "one": np.array([-1]),
    "c127": F(127),
    "eps": F(1e-5),
    "half": F(0.5),
    "two": F(2),
    "w": np.random.default_rng(0).integers(-128, 128, (256, 128)).astype(F) * F(0.01),
}


def _model(factors: int) -> onnx.ModelProto:
    """Returns unclipped codes with the range times as many factors as the scale; they cancel out."""
    scale = " ".join(f"s{i + 1} = Mul(s{i}, {('half', 'two')[i % 2]})" for i in range(factors))
    body = (
        f"a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) b = Max(m, eps) s0 = Div(b, c127) {scale} "
        f"s = Identity(s{factors}) d = Div(x, s) r = Round(d) q = Cast<to = 3>(r) "
        "f = Cast<to = 1>(q) v = Mul(f, s) y = MatMul(v, w)"
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float[tokens, 256] x) => (float[tokens, 128] y) {{ {body} }}'
    )
    return with_arrays(model, CONSTANTS)


def test_a_reason_says_that_a_search_has_ended() -> None:
    short, long = (rewrite(_model(factors)).report for factors in (VISITED.most // 4, VISITED.most + 16))
    assert [each.operator for each in short.rewritten] == ["QuantizedMatMul", "RowProgram"]
    (why,) = (each.unconverted for each in long.unconverted if each.op_type == "Round")
    assert why is not None
    assert why.reason == Reason.PROGRAM_TOO_LONG
    assert why.second is not None
    assert why.second.reason == Reason.SEARCH_LIMIT
    assert f"ended after {VISITED.most} nodes" in str(why)


def test_limits_are_noted_in_their_order() -> None:
    first, second = Limit(2, "nodes", "why"), Limit(3, "steps", "why")
    assert first.is_passed(3)  # nobody notes it
    with noted() as passed:
        assert not second.is_passed(3)
        assert list(second.steps()) == [0, 1, 2]
        assert first.is_passed(3)
        with noted() as inner:
            assert first.is_passed(4)
        assert list(inner) == [first]
    assert list(passed) == [second, first]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_search_that_finds_something_in_its_last_step_passes_no_limit(steps: int) -> None:
    with noted() as passed:
        for i in Limit(steps, "nodes", "why").steps():
            if i == steps - 1:
                break
    assert not passed
